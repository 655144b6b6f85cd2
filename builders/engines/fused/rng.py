"""The random draws of a member, in Triton: the numbers of ``builders.rng`` bit for bit, in 32-bit arithmetic.

``tests/builders/fused_interpreted.py`` compares them.
"""

# Triton's language, of which a type checker knows too little.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false
import math

import triton
import triton.language as tl

_ORDER, _CROP = tl.constexpr(1), tl.constexpr(2)
_GOLDEN, _MASK = tl.constexpr(0x9E3779B9), tl.constexpr(0xFFFFFFFF)


def side(count: int) -> int:
    """Return the longer side of the rectangle over which an order of ``count`` items is drawn."""
    root = math.isqrt(count - 1) + 1
    return root + root % 2


@triton.jit
def _mix(x: tl.tensor) -> tl.tensor:
    # 32-bit products wrap around, which is the mask of the other implementations
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _add(half: tl.tensor, word: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """Return ``(half + ((mix(word) * size) >> 32)) mod size``; both terms are below size."""
    total = half + tl.umulhi(_mix(word), tl.full((1,), size, tl.uint32))
    return tl.where(total >= size, total - size, total)


@triton.jit
def _network(x: tl.tensor, keys: tl.tuple, a: tl.constexpr, b: tl.constexpr, rounds: tl.constexpr) -> tl.tensor:
    shorter = tl.full((1,), b, tl.uint32)
    left, right = x // shorter, x % shorter
    for i in tl.static_range(0, rounds, 2):
        left = _add(left, right ^ keys[i], a)
        right = _add(right, left ^ keys[i + 1], b)
    return left * b + right


@triton.jit
def items(key: tl.tensor, epoch: tl.tensor, positions: tl.tensor, count: tl.constexpr, side: tl.constexpr) -> tl.tensor:
    """Return the training items at these positions of an epoch of ``count``; see ``builders.rng.order``. ``key`` is a
    member's, 64 bits; ``epoch`` and ``positions`` are words, ``side`` is ``side(count)``.
    """
    shorter: tl.constexpr = (count + side - 1) // side
    # as in ckptzoo.loader.permutation
    rounds: tl.constexpr = 24 if count < 256 else 8
    # tl.philox takes the words of the counter one by one; its ten rounds are the default
    low, high, _, _ = tl.philox(key, epoch * 0, epoch, _ORDER, 0)
    keys = ()
    for i in tl.static_range(rounds):
        keys += (_mix(_mix(low + (((i + 1) * _GOLDEN) & _MASK)) ^ high),)
    order = _network(positions, keys, side, shorter, rounds)
    # all lanes walk together until the last one is inside; those inside stay
    while tl.max((order >= count).to(tl.int32), 0) > 0:
        order = tl.where(order >= count, _network(order, keys, side, shorter, rounds), order)
    return order


@triton.jit
def corners(
    key: tl.tensor, epoch: tl.tensor, positions: tl.tensor, pad: tl.constexpr, width: tl.constexpr
) -> tl.tensor:
    """Return the places in a padded image where the crops at these positions start; see ``builders.rng.crops``."""
    down, right, _, _ = tl.philox(key, positions, epoch, _CROP, 0)
    size = tl.full((1,), 2 * pad + 1, tl.uint32)
    return tl.umulhi(down, size) * width + tl.umulhi(right, size)

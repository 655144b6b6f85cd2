"""The keyed permutation: which item comes at which position of a shuffled order, computed from a key alone."""

import math
from typing import Any

import numpy as np

from ckptzoo.errors import Problem, ZooError

LARGEST = 2**40
"""The largest number of items."""
_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
"""2**32 over the golden ratio, an odd number: its multiples make the keys of the rounds differ."""


def keyed_permutation(positions: Any, n: int, key: Any) -> Any:
    r"""Where a keyed permutation of ``0 .. n-1`` sends each position.

    A Feistel network over :math:`\mathbb{Z}_a \times \mathbb{Z}_b` with cycle walking (Black and Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002, sections 3 and 4), where a is :math:`\lceil\sqrt{n}\,\rceil` made even, so
    that odd permutations occur, and :math:`b = \lceil n/a \rceil`. Everything is integer arithmetic on 32-bit words,
    so that numpy, torch, Numba and Triton give the same bits; additions and multiplications wrap modulo
    :math:`2^{32}` where nothing else is said::

        mix(x):  x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16;  return x
        k[i]  =  mix(mix(low(key) + (i + 1) * 0x9E3779B9) ^ high(key))                  low, high: 32 bits each
        F(i, x, m)  =  (mix(x ^ k[i]) * m) >> 32                                        64-bit product
        x = position
        repeat:  l = x // b;  r = x % b
                 for i in 0, 2, 4, 6 (up to 22 where n < 256):
                     l = (l + F(i, r, a)) mod a;  r = (r + F(i + 1, l, b)) mod b
                 x = l * b + r
        until x < n

    Parameters
    ----------
    positions
        integers in ``0 .. n-1``: a number, a numpy array, or an int64 torch tensor on any device.
    n
        how many items there are, at most 2**40.
    key
        a 64-bit integer, or an array of them (numpy uint64; torch int64 with the same bits) that broadcasts with the
        positions: keys (M, 1) and positions (P,) give (M, P).

    Returns
    -------
    Any
        int64 of the broadcast shape. For a fixed key it is a bijection of ``0 .. n-1``.

    Raises
    ------
    ZooError
        ``n`` is out of range, or a position is (not checked for torch tensors).

    Notes
    -----
    About 1 + 2/sqrt(n) walks an item; 50 to 100 nanoseconds each where n >= 256.
    It shuffles; it is no cipher. Tested in ``tests/laws/test_permutation.py``, against known answers too.

    Examples
    --------
    >>> sorted(keyed_permutation([0, 1, 2, 3, 4], 5, key=7).tolist())
    [0, 1, 2, 3, 4]
    """
    if not 0 <= n <= LARGEST:
        raise ZooError(Problem("order", "number of items", "0 to 2**40", str(n), "Shuffle in pieces."))
    if hasattr(positions, "new_tensor"):  # a torch tensor, without importing torch
        return _permute(positions, n, key)
    # numpy scalars warn when a product wraps, arrays do not
    array = np.atleast_1d(np.asarray(positions, dtype=np.int64))
    keys = np.atleast_1d(np.asarray(key, dtype=np.uint64)).view(np.int64)
    shape = np.broadcast_shapes(np.shape(positions), np.shape(key))
    if not array.size:
        return np.zeros(shape, dtype=np.int64)
    if array.min() < 0 or array.max() >= n:
        got, step = f"{array.min()} to {array.max()}", "Give positions of this order."
        raise ZooError(Problem("order", "positions", f"0 to {n - 1}", got, step))
    return _permute(array, n, keys).reshape(shape)


def _permute(positions: Any, n: int, key: Any) -> Any:
    a = math.isqrt(n - 1) + 1
    a += a % 2
    b = -(-n // a)
    low, high = key & _MASK, (key >> 32) & _MASK
    keys = [_mix(_mix((low + (i + 1) * _GOLDEN) & _MASK) ^ high) for i in range(24 if n < 256 else 8)]
    x = _network(positions, a, b, keys)
    outside = x >= n  # a * b is at least n: what falls outside goes through the network again
    if bool(outside.any()):
        keys = [(k + 0 * x)[outside] for k in keys]
        walking = x[outside]
        while bool((left := walking >= n).any()):
            walking[left] = _network(walking[left], a, b, [k[left] for k in keys])
        x[outside] = walking
    return x


def _network(x: Any, a: int, b: int, keys: list[Any]) -> Any:
    left, right = x // b, x % b
    for i in range(0, len(keys), 2):
        left = _add(left, right ^ keys[i], a)
        right = _add(right, left ^ keys[i + 1], b)
    return left * b + right


def _add(half: Any, word: Any, size: int) -> Any:
    """Return ``(half + ((mix(word) * size) >> 32)) mod size``; both terms are below size."""
    # a word below 2**32 times a side of at most 2**20 + 1, rounded up to an even number: far below 2**63
    total = half + ((_mix(word) * size) >> 32)
    return total - size * (total >= size)


def _mix(x: Any) -> Any:
    """Apply a bijection of 32-bit words, held in 64-bit integers, in which every input bit reaches every output bit."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    # the product may pass 2**63 and wrap in int64; its low 32 bits are right all the same
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def derive_key(seed: int, *words: int) -> np.uint64:
    """A 64-bit key from a seed and any number of words, by ``numpy.random.SeedSequence``.

    Every number enters as two 32-bit words, behind the count of numbers, so that no two lists are the same entropy.
    ``seed`` and ``words`` are integers from 0 to 2**64 - 1. Raises ``ZooError`` if a number is out of range.
    """
    numbers = (seed, *words)
    for number in numbers:
        if not 0 <= number < 2**64:
            raise ZooError(Problem("order", "seed", "0 to 2**64 - 1", str(number), "Choose another seed."))
    # SeedSequence cuts a number into 32-bit words without leading zeros, and pads the list with zeros to four words:
    # [5 + 2**32] is [5, 1] to it, and [1] is [1, 0]
    entropy = [len(numbers)] + [half for number in numbers for half in (number & _MASK, number >> 32)]
    return np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]

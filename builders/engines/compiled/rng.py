"""The random draws of a member, compiled: the numbers of ``builders.rng`` bit for bit.

Every number here is an unsigned 64-bit one that holds a 32-bit word, because a mixture of signed and unsigned ones
would become floating point. ``tests/builders/test_compiled_pieces.py`` compares them.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from builders.engines.compiled.options import OPTIONS

Word = Any
"""``numpy.uint64``."""
_U = np.uint64
_MASK, _HALF = _U(0xFFFFFFFF), _U(32)
# Constants of Philox 4x32 (Salmon et al. 2011); the multiples of the first WEYL also make the keys of an order.
_MULTIPLIER0, _MULTIPLIER1 = _U(0xD2511F53), _U(0xCD9E8D57)
_WEYL0, _WEYL1 = _U(0x9E3779B9), _U(0xBB67AE85)
_ORDER, _CROP, _DROPOUT = _U(1), _U(2), _U(3)
# Multipliers of ``mix`` in ckptzoo.loader.permutation.
_MIX0, _MIX1 = _U(0x7FEB352D), _U(0x846CA68B)
_15, _16 = _U(15), _U(16)
# As in ckptzoo.loader.permutation: 24 rounds for fewer than 256 items, else 8.
_FEW = 256
"""Number of items below which an order has more rounds."""
ROUNDS = 24
"""The largest number of rounds of an order."""


@njit(**OPTIONS)
def philox(first: Word, second: Word, third: Word, key: Word) -> tuple[Word, Word]:
    """Return the first two of the four words of ``builders.rng.philox``, where the counter's last word is 0."""
    words = _four_words(first, second, third, _U(0), key)
    return words[0], words[1]


@njit(**OPTIONS)
def _four_words(first: Word, second: Word, third: Word, fourth: Word, key: Word) -> tuple[Word, Word, Word, Word]:
    c0, c1, c2, c3 = first, second, third, fourth
    k0, k1 = key & _MASK, key >> _HALF
    # ten rounds are Philox's default; the fewest that pass BigCrush are 7 (Salmon et al. 2011)
    for _ in range(10):
        low0, low1 = c0 * _MULTIPLIER0, c2 * _MULTIPLIER1
        c0, c2 = (low1 >> _HALF) ^ c1 ^ k0, (low0 >> _HALF) ^ c3 ^ k1
        c1, c3 = low1 & _MASK, low0 & _MASK
        k0, k1 = (k0 + _WEYL0) & _MASK, (k1 + _WEYL1) & _MASK
    return c0, c1, c2, c3


@njit(**OPTIONS)
def _mix(x: Word) -> Word:
    x = ((x ^ (x >> _16)) * _MIX0) & _MASK
    x = ((x ^ (x >> _15)) * _MIX1) & _MASK
    return x ^ (x >> _16)


@njit(**OPTIONS)
def round_keys(key: Word, epoch: int, keys: NDArray[np.uint64]) -> None:
    """Write the keys of the rounds in which an epoch's order is drawn into ``keys`` (24,)."""
    low, high = philox(_U(0), _U(epoch), _ORDER, key)
    for i in range(ROUNDS):
        keys[i] = _mix(_mix((low + _U(i + 1) * _WEYL0) & _MASK) ^ high)


@njit(**OPTIONS)
def _network(x: Word, a: Word, b: Word, keys: NDArray[np.uint64], rounds: int) -> Word:
    left, right = x // b, x % b
    for i in range(0, rounds, 2):
        # (word * a) >> 32 scales a word to 0 .. a-1 without a division
        left += (_mix(right ^ keys[i]) * a) >> _HALF
        left -= a if left >= a else _U(0)
        right += (_mix(left ^ keys[i + 1]) * b) >> _HALF
        right -= b if right >= b else _U(0)
    return left * b + right


def side(count: int) -> int:
    """Return the longer side of the rectangle over which an order of ``count`` items is drawn."""
    root = math.isqrt(count - 1) + 1
    # as in ckptzoo.loader.permutation: a is even and at least the root, b is what is needed to reach the count
    return root + root % 2


@njit(**OPTIONS)
def items(first: int, count: int, side: int, keys: NDArray[np.uint64], order: NDArray[np.int64]) -> None:
    """Write the training items at the positions from ``first`` on of an epoch of ``count``, as many as ``order`` holds.

    The permutation is that of ``ckptzoo.loader.permutation.keyed_permutation``. Every position takes its first walk
    before any takes a second one, so that the compiler can take several positions at once.
    """
    a, b = _U(side), _U(-(-count // side))
    if count >= _FEW:
        for k in range(len(order)):
            order[k] = np.int64(_network(_U(first + k), a, b, keys, 8))
    else:
        for k in range(len(order)):
            order[k] = np.int64(_network(_U(first + k), a, b, keys, ROUNDS))
    for k in range(len(order)):
        # cycle walking: a position outside is sent through the network again until it lands inside
        while order[k] >= count:
            order[k] = np.int64(_network(_U(order[k]), a, b, keys, 8 if count >= _FEW else ROUNDS))


@njit(**OPTIONS)
def corners(key: Word, epoch: int, first: int, pad: int, width: int, places: NDArray[np.int64]) -> None:
    """Write where the crops at the positions from ``first`` on start in a padded image; see ``builders.rng.crops``."""
    size = _U(2 * pad + 1)
    for k in range(len(places)):
        down, right = philox(_U(first + k), _U(epoch), _CROP, key)
        places[k] = np.int64(((down * size) >> _HALF) * _U(width) + ((right * size) >> _HALF))


@njit(**OPTIONS)
def dropout_scales(key: Word, epoch: int, first: int, threshold: int, scale: np.float32, scales: Any) -> None:
    """Write 0 or ``scale`` into ``scales`` (B, U) for the units of the example at each position from ``first`` on; see
    ``builders.rng.kept_units``. ``threshold`` is ``builders.rng.dropout_threshold``.
    """
    least = _U(threshold)
    for k in range(scales.shape[0]):
        for unit in range(0, scales.shape[1], 4):
            words = _four_words(_U(first + k), _U(epoch), _DROPOUT, _U(unit // 4), key)
            for number in range(min(4, scales.shape[1] - unit)):
                # as torch's dropout: kept units are scaled in training, so that a network in use needs no factor
                scales[k, unit + number] = scale if words[number] >= least else np.float32(0)

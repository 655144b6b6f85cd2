"""Linear assignment of channels, for many matrices at once, and of blocks of channels."""

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import require

MOST_ENUMERATED = 5
"""Up to this number of channels all permutations are compared at once: 0.03 to 1.1 us a matrix, scipy takes 2 to 10."""
_PIECE = 2**16
"""Sums that are compared at a time: they stay in a core's second-level cache."""


def assign(gains: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the permutations (..., n) with the greatest sums ``gains[i, perm[i]]``, of finite gains (..., n, n).

    Where several are best, the one returned depends on the matrix alone.
    """
    *lead, n, _ = gains.shape
    if n == 1:
        return np.zeros((*lead, 1), np.int64)
    if n <= MOST_ENUMERATED:
        found = np.concatenate([sums.argmax(axis=0) for sums in _all_sums(gains)])
        return _all_permutations(n)[found].reshape(*lead, n)
    linear_sum_assignment = require("scipy.optimize", "stats").linear_sum_assignment
    found = [linear_sum_assignment(matrix, maximize=True)[1] for matrix in gains.reshape(-1, n, n)]
    return np.array(found, np.int64).reshape(*lead, n)


def greatest(gains: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the greatest sums (...), ``gained(gains, assign(gains))``, without the permutations."""
    n = gains.shape[-1]
    if n == 1:
        return gains[..., 0, 0]
    if n > MOST_ENUMERATED:
        return gained(gains, assign(gains))
    return np.concatenate([sums.max(axis=0) for sums in _all_sums(gains)]).reshape(gains.shape[:-2])


def gained(gains: NDArray[np.floating], perms: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums ``gains[i, perm[i]]`` (...), of gains (..., n, n) and permutations (..., n)."""
    return np.take_along_axis(gains, perms[..., None], -1)[..., 0].sum(axis=-1, dtype=np.float64)


def by_block(gains: NDArray[np.floating], g: int) -> NDArray[np.floating]:
    """Return (K, n, n) of n = g * k channels as one (k, k) matrix for each pair of blocks: (K, g, g, k, k)."""
    K, n, _ = gains.shape
    return gains.reshape(K, g, n // g, g, n // g).swapaxes(2, 3)


def _all_sums(gains: NDArray[np.floating]) -> Iterator[NDArray[np.floating]]:
    """Yield the sums (n!, m) of all permutations for m matrices at a time.

    They are added row by row: BLAS products depend on the matrices' number.
    """
    *lead, n, _ = gains.shape
    perms, matrices = _all_permutations(n), gains.reshape(math.prod(lead), n, n)
    step = max(1, _PIECE // len(perms))
    for start in range(0, max(1, len(matrices)), step):
        entries = np.ascontiguousarray(np.moveaxis(matrices[start : start + step], 0, 2))
        total = entries[0, perms[:, 0]]
        for row in range(1, n):
            total += entries[row, perms[:, row]]
        yield total


@lru_cache
def _all_permutations(n: int) -> NDArray[np.int64]:
    """Return all permutations (n!, n)."""
    return np.array(list(itertools.permutations(range(n))))

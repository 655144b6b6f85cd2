"""Linear assignment of channels, for many matrices at once, and of blocks of channels."""

import itertools
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import require

MOST_ENUMERATED = 5
"""Up to this number of channels all permutations are compared at once: 0.03 to 1.1 us a matrix, scipy takes 2 to 10."""


def assign(gains: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the permutations (..., n) with the greatest sums ``gains[i, perm[i]]``, of finite gains (..., n, n).

    Where several are best, the one returned depends on the matrix alone.
    """
    *lead, n, _ = gains.shape
    if n == 1:
        return np.zeros((*lead, 1), np.int64)
    if n <= MOST_ENUMERATED:
        return _all_permutations(n)[_all_sums(gains).argmax(axis=0)]
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
    return _all_sums(gains).max(axis=0)


def gained(gains: NDArray[np.floating], perms: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums ``gains[i, perm[i]]`` (...), of gains (..., n, n) and permutations (..., n)."""
    return np.take_along_axis(gains, perms[..., None], -1)[..., 0].sum(axis=-1, dtype=np.float64)


def by_block(gains: NDArray[np.floating], g: int) -> NDArray[np.floating]:
    """Return (K, n, n) of n = g * k channels as one (k, k) matrix for each pair of blocks: (K, g, g, k, k)."""
    K, n, _ = gains.shape
    return gains.reshape(K, g, n // g, g, n // g).swapaxes(2, 3)


def _all_sums(gains: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the sums (n!, ...) of all permutations, added row by row: BLAS products depend on the matrices' number."""
    n = gains.shape[-1]
    perms, entries = _all_permutations(n), np.ascontiguousarray(np.moveaxis(gains, (-2, -1), (0, 1)))
    total = entries[0, perms[:, 0]]
    for row in range(1, n):
        total += entries[row, perms[:, row]]
    return total


@lru_cache
def _all_permutations(n: int) -> NDArray[np.int64]:
    """Return all permutations (n!, n)."""
    return np.array(list(itertools.permutations(range(n))))

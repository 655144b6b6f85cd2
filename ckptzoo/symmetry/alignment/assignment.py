"""Linear assignment of channels, for many matrices at once, and of blocks of channels."""

import itertools
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import require

MOST_ENUMERATED = 5
"""Up to so many channels all permutations are compared at once: 0.2 us a matrix, against 2 to 10 us of scipy."""


def assign(gains: NDArray[np.floating]) -> NDArray[np.int64]:
    """The permutations with the greatest sums ``gains[i, perm[i]]``.

    Parameters
    ----------
    gains
        (..., n, n), finite.

    Returns
    -------
    NDArray[np.int64]
        (..., n); of several that are best one that depends on the matrix alone.
    """
    *lead, n, _ = gains.shape
    if n == 1:
        return np.zeros((*lead, 1), np.int64)
    if n <= MOST_ENUMERATED:
        perms, chosen = _all_permutations(n)
        best = (gains.reshape(*lead, n * n) @ chosen.astype(gains.dtype)).argmax(axis=-1)
        return perms[best]
    linear_sum_assignment = require("scipy.optimize", "stats").linear_sum_assignment
    found = [linear_sum_assignment(matrix, maximize=True)[1] for matrix in gains.reshape(-1, n, n)]
    return np.array(found, np.int64).reshape(*lead, n)


def greatest(gains: NDArray[np.floating]) -> NDArray[np.floating]:
    """The greatest sums (...): ``gained(gains, assign(gains))`` without the permutations."""
    *lead, n, _ = gains.shape
    if n == 1:
        return gains[..., 0, 0]
    if n > MOST_ENUMERATED:
        return gained(gains, assign(gains))
    _, chosen = _all_permutations(n)
    return (gains.reshape(*lead, n * n) @ chosen.astype(gains.dtype)).max(axis=-1)


def gained(gains: NDArray[np.floating], perms: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sums ``gains[i, perm[i]]`` (...), of gains (..., n, n) and permutations (..., n)."""
    return np.take_along_axis(gains, perms[..., None], -1)[..., 0].sum(axis=-1, dtype=np.float64)


def by_block(gains: NDArray[np.floating], g: int) -> NDArray[np.floating]:
    """(K, n, n) of n = g * k channels as one (k, k) matrix for each pair of blocks: (K, g, g, k, k)."""
    K, n, _ = gains.shape
    return gains.reshape(K, g, n // g, g, n // g).swapaxes(2, 3)


@lru_cache
def _all_permutations(n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All n! permutations (n!, n), and for each entry of an (n, n) matrix which of them take it (n * n, n!)."""
    perms = np.array(list(itertools.permutations(range(n))))
    chosen = np.zeros((n * n, len(perms)))
    chosen[np.arange(n) * n + perms, np.arange(len(perms))[:, None]] = 1
    return perms, chosen

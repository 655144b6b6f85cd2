"""How alike two orders are: Kendall's tau, the number of transpositions, and what to expect of both by chance."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import ZooError

Values = NDArray[np.float64]


def kendall(first: ArrayLike, second: ArrayLike) -> Values:
    r"""Kendall's tau (tau-a: no ties) of two vectors of ranks or of keys.

    .. math:: \tau = \frac{C - D}{n (n - 1) / 2}

    where C of the pairs of entries are in the same order in both vectors and D are not (Kendall, "A new measure of
    rank correlation", 1938).

    Parameters
    ----------
    first, second : (..., n) with n of 2 or more, no two entries of a vector equal; entry i belongs to the same thing
        in both. For sorted things these are the ranks, ``argsort(order)``, and not the orders themselves: the orders
        [0, 4, 1, 2, 3] and [4, 0, 1, 2, 3] have tau 0.8, and as if they were ranks -0.4.

    Returns
    -------
    (...,) float64 in -1 .. 1: 1 for the same order, -1 for the reverse, 0 expected for unrelated ones.

    Raises
    ------
    ZooError
        Shapes differ, n is below 2, or entries are equal or not a number.

    Notes
    -----
    Time n log(n)^2 by merging, memory a few copies. Held against the definition in ``tests/measure/test_ranks.py``.
    """
    x, y = np.asarray(first), np.asarray(second)
    if x.shape != y.shape or not x.ndim or x.shape[-1] < 2:
        step = "Pass vectors of the same things."
        raise ZooError(f"kendall: shapes: expected twice (..., n) with n above 1, got {x.shape} and {y.shape}. {step}")
    n = x.shape[-1]
    if not _distinct(x) or not _distinct(y):
        raise ZooError("kendall: entries: expected different numbers, got equal or no numbers. Break the ties first.")
    relative = np.take_along_axis(_ranks(y), np.argsort(x, axis=-1), -1)
    pairs = n * (n - 1) // 2
    return (pairs - 2 * _inversions(relative.reshape(-1, n))).reshape(x.shape[:-1]) / pairs


def transpositions(perm: ArrayLike) -> NDArray[np.int64]:
    r"""The least number of exchanges of two entries that sort a permutation: n minus the number of its cycles.

    A permutation and its inverse need equally many. As a measure of how far orders are apart: Xiao, Liu and Bamler,
    arXiv 2401.00611.

    Parameters
    ----------
    perm : (..., n) integers, each of 0 to n - 1 once in every row.

    Returns
    -------
    (...,) int64 in 0 .. n - 1.

    Raises
    ------
    ZooError
        A row is no permutation.

    Notes
    -----
    Time n log n, memory a few copies.
    """
    found = np.asarray(perm)
    n = found.shape[-1] if found.ndim else 0
    if not n or found.dtype.kind not in "iu" or (np.sort(found, axis=-1) != np.arange(n)).any():
        raise ZooError(f"transpositions: rows: expected each of 0 to {n - 1} once, got another row. Pass permutations.")
    least, ahead = np.broadcast_to(np.arange(n), found.shape), found
    for _ in range(int(n - 1).bit_length()):
        least = np.minimum(least, np.take_along_axis(least, ahead, -1))
        ahead = np.take_along_axis(ahead, ahead, -1)
    return n - (least == np.arange(n)).sum(-1)


def random_transpositions(n: int) -> float:
    r"""The mean number of transpositions of a random permutation of n: ``n - H_n``.

    A random permutation has :math:`H_n = \sum_{k=1}^n 1/k` cycles on average: each of its n entries lies on a cycle
    of length k with probability 1/n for k = 1 .. n, and is then 1/k of a cycle (Xiao, Liu and Bamler,
    arXiv 2401.00611).
    """
    return n - float((1 / np.arange(1, n + 1)).sum())


def normal_tau(correlation: ArrayLike) -> Values:
    r"""The tau to expect of two jointly normal keys with this correlation.

    .. math:: \mathrm{E}\,\tau = \frac{2}{\pi} \arcsin \rho

    For two things with keys (x, y) and (x', y') the differences x - x' and y - y' are jointly normal with the same
    correlation. They have the same sign with probability 1/2 + arcsin(rho) / pi (Sheppard, 1899), and
    E tau = P(same) - P(other) = 2 P(same) - 1, for any n (Kendall and Gibbons, "Rank correlation methods", chapter 10).
    """
    return 2 / np.pi * np.arcsin(np.asarray(correlation, np.float64))


def normal_tau_sd(correlation: ArrayLike, n: int) -> Values:
    r"""The standard deviation of tau for n things with two jointly normal keys of this correlation.

    .. math:: \mathrm{var}\,\tau = \frac{2}{n (n - 1)} \left[ 1 - \left( \frac{2}{\pi} \arcsin \rho \right)^2
        + 2 (n - 2) \left( \frac{1}{9} - \left( \frac{2}{\pi} \arcsin \frac{\rho}{2} \right)^2 \right) \right]

    (Esscher, 1924; Kendall and Gibbons, "Rank correlation methods", chapter 10.)
    """
    half = normal_tau(np.asarray(correlation, np.float64) / 2)
    variance = 1 - normal_tau(correlation) ** 2 + 2 * (n - 2) * (1 / 9 - half**2)
    return np.sqrt(np.maximum(variance, 0) * 2 / (n * (n - 1)))


def noise_tau(size: ArrayLike) -> Values:
    r"""The tau to expect between keys and the same keys plus independent normal noise.

    .. math:: \mathrm{E}\,\tau = \frac{2}{\pi} \arcsin \frac{1}{\sqrt{1 + d^2}}

    Keys x with standard deviation s, and y = x + d s e with e standard normal and independent of x: var(y) is
    s^2 (1 + d^2) and cov(x, y) is s^2, so their correlation is 1 / sqrt(1 + d^2); the rest is ``normal_tau``.

    Parameters
    ----------
    size : d, the standard deviation of the change over that of the keys; 0 or above.
    """
    return normal_tau(1 / np.sqrt(1 + np.square(np.asarray(size, np.float64))))


def _distinct(values: NDArray[Any]) -> bool:
    ordered = np.sort(values, axis=-1)
    return bool((ordered[..., 1:] > ordered[..., :-1]).all())


def _ranks(values: NDArray[Any]) -> NDArray[np.int64]:
    order = np.argsort(values, axis=-1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), -1)
    return ranks


def _inversions(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of each row (K, n) that are out of order, counted while runs of 1, 2, 4, ... entries are merged.

    The place of an entry in the merged run, less its place in the left one, is how many smaller ones stood right.
    """
    K, n = rows.shape
    width = 1 << (n - 1).bit_length()
    runs = np.concatenate([rows, np.broadcast_to(np.arange(n, width), (K, width - n))], axis=1)
    found = np.zeros(K, np.int64)
    half = 1
    while half < width:
        runs = runs.reshape(K, -1, 2 * half)
        order = np.argsort(runs, axis=2)
        found += np.where(order < half, np.arange(2 * half), 0).sum(axis=(1, 2))
        found -= runs.shape[1] * (half * (half - 1) // 2)
        runs = np.take_along_axis(runs, order, 2)
        half *= 2
    return found

"""Numbers of transpositions: how far a permutation is from the identity, and permutations of a given number."""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.arrays import to_numpy
from ckptzoo.symmetry.element import GroupElement


def transpositions(perms: ArrayLike) -> NDArray[np.int64]:
    """The least number of transpositions (exchanges of two) that make up each permutation: n less its cycles.

    The number of transpositions between two networks (Xiao, Liu and Bamler, arXiv 2401.00611) is that of
    ``h.inverse().compose(g)``.

    Parameters
    ----------
    perms : (..., n) integers, each row a permutation.

    Examples
    --------
    >>> transpositions([[0, 1, 2, 3], [1, 0, 2, 3], [1, 2, 3, 0]]).tolist()
    [0, 1, 3]
    """
    current = np.asarray(perms)
    places = np.broadcast_to(np.arange(current.shape[-1]), current.shape)
    first, reached = places, 1
    while reached < current.shape[-1]:
        # the first place of each one's cycle: of twice as many steps of it every time
        first = np.minimum(first, np.take_along_axis(first, current, -1))
        current, reached = np.take_along_axis(current, current, -1), 2 * reached
    return (first != places).sum(axis=-1)


def transpositions_by_group(element: GroupElement) -> dict[str, NDArray[np.int64]]:
    """Those of K group elements: group id to (K,).

    Examples
    --------
    >>> from ckptzoo import archs
    >>> transpositions_by_group(GroupElement.identity(archs.symmetry("optunet"), 2))["conv2"].tolist()
    [0, 0]
    """
    return {name: transpositions(to_numpy(perm)) for name, perm in element.perms.items()}


def random_permutations(n: int, count: int, K: int, rng: np.random.Generator) -> NDArray[np.int64]:
    r"""Permutations of n things, uniform among those that have a given number of transpositions.

    Built thing by thing: the m-th is a cycle of its own with probability :math:`c(m-1, k-1) / c(m, k)`, where k cycles
    are left to be made and c are Stirling's numbers of the first kind, else it goes behind an earlier one.

    Parameters
    ----------
    n : things.
    count : transpositions, 0 to n - 1.
    K : permutations.

    Returns
    -------
    (K, n) int64.

    Raises
    ------
    SymmetryError
        There is no such permutation.

    Notes
    -----
    Time n (n - count) once and n K; memory 8 n (n - count) bytes. Tested against all permutations of 4 and of 5 in
    tests/symmetry/test_transpositions.py.

    Examples
    --------
    >>> found = random_permutations(100, 30, 5, np.random.default_rng(0))
    >>> transpositions(found).tolist()
    [30, 30, 30, 30, 30]
    """
    if not 0 <= count < n:
        raise SymmetryError(
            f"permutations: transpositions of {n} things: expected 0 to {n - 1}, got {count}. Choose another number."
        )
    cycles = n - count
    logs, alone = _log_stirling(n, cycles), np.zeros((K, n), bool)
    left = np.full(K, cycles)
    for m in range(n, 0, -1):
        with np.errstate(invalid="ignore"):  # -inf less -inf where no cycle is left
            chance = np.exp(logs[m - 1, np.maximum(left - 1, 0)] - logs[m, left])
        alone[:, m - 1] = (left > 0) & (rng.random(K) < chance)
        left -= alone[:, m - 1]
    perms, rows = np.tile(np.arange(n), (K, 1)), np.arange(K)
    for m in range(1, n):
        # thing m goes behind an earlier one in its cycle, or stays alone
        before = np.where(alone[:, m], m, rng.integers(0, m, K))
        perms[rows, m] = perms[rows, before]
        perms[rows, before] = m
    return perms


@lru_cache(maxsize=4)
def _log_stirling(n: int, cycles: int) -> NDArray[np.float64]:
    """(n + 1, cycles + 1) logarithms of the numbers of permutations of m things with k cycles."""
    logs = np.full((n + 1, cycles + 1), -np.inf)
    logs[0, 0] = 0
    for m in range(1, n + 1):
        logs[m] = logs[m - 1] + (np.log(m - 1) if m > 1 else -np.inf)
        logs[m, 1:] = np.logaddexp(logs[m, 1:], logs[m - 1, :-1])
    return logs

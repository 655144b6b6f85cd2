"""Numbers of transpositions: how far a permutation is from the identity, and permutations of a given number."""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.arguments import Count, Size, checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import to_numpy
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.registry import permutations_of
from ckptzoo.symmetry.tables import Arch, table_of


@checked
def transpositions(perms: ArrayLike) -> NDArray[np.int64]:
    """The least number of transpositions (exchanges of two) that make up each permutation: n less its cycles.

    A permutation and its inverse need equally many. The number of transpositions between two networks (Xiao, Liu and
    Bamler, arXiv 2401.00611) is that of ``h.inverse().compose(g)``.

    Parameters
    ----------
    perms
        (..., n) integers, each of 0 to n - 1 once in every row.

    Returns
    -------
    NDArray[np.int64]
        (...,) int64 in 0 .. n - 1.

    Raises
    ------
    SymmetryError
        A row is no permutation.

    Notes
    -----
    Time n log n, memory a few copies.

    Examples
    --------
    >>> transpositions([[0, 1, 2, 3], [1, 0, 2, 3], [1, 2, 3, 0]]).tolist()
    [0, 1, 3]
    """
    current = np.asarray(perms)
    n = current.shape[-1] if current.ndim else 0
    if not n or current.dtype.kind not in "iu" or (np.sort(current, axis=-1) != np.arange(n)).any():
        expected = f"each of 0 to {n - 1} once"
        raise SymmetryError(Problem("transpositions", "rows", expected, "another row", "Pass permutations."))
    places = np.broadcast_to(np.arange(current.shape[-1]), current.shape)
    first, reached = places, 1
    while reached < current.shape[-1]:
        # the first place of each one's cycle: of twice as many steps of it every time
        first = np.minimum(first, np.take_along_axis(first, current, -1))
        current, reached = np.take_along_axis(current, current, -1), 2 * reached
    return (first != places).sum(axis=-1)


def random_transpositions(n: int) -> float:
    r"""Return the mean number of transpositions of a random permutation of n: ``n - H_n``.

    A random permutation has :math:`H_n = \sum_{k=1}^n 1/k` cycles on average: each of its n entries lies on a cycle of
    length k with probability 1/n for k = 1 .. n, and is then 1/k of a cycle (Xiao, Liu and Bamler, arXiv 2401.00611).
    """
    return n - float((1 / np.arange(1, n + 1)).sum())


def transpositions_by_group(element: GroupElement) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of transpositions of K group elements: group id to (K,).

    Examples
    --------
    >>> from ckptzoo import archs
    >>> transpositions_by_group(GroupElement.identity(archs.symmetry("optunet"), 2))["conv2"].tolist()
    [0, 0]
    """
    return {name: transpositions(to_numpy(perm)) for name, perm in element.perms.items()}


def transpositions_in_total(element: GroupElement, symmetry: Arch) -> NDArray[np.int64]:
    """Return (K,) the sums over all groups, of which those that are like another one count once, with it.

    Examples
    --------
    >>> from ckptzoo import archs
    >>> table = archs.symmetry("mlp-4-8-8-2")
    >>> transpositions_in_total(random_element(table, 5, 2, np.random.default_rng(0)), table).tolist()
    [5, 5]
    """
    symmetry = table_of(symmetry)
    own = {group.id for group in symmetry.groups if symmetry.leader(group.id) is group}
    return sum(
        (counts for name, counts in transpositions_by_group(element).items() if name in own),
        np.zeros(len(element), np.int64),
    )


def most_transpositions(symmetry: Arch) -> int:
    """Return the largest number that ``random_element`` can be asked for: n - 1 of one group of n channels.

    Examples
    --------
    >>> from ckptzoo import archs
    >>> [most_transpositions(archs.symmetry(name)) for name in ("mlp-784-128-10", "mlp-4-8-8-2", "optunet")]
    [127, 14, 8]
    """
    symmetry = table_of(symmetry)
    return sum(size - 1 for _, _, size in _exchangeable(symmetry))


@checked
def random_element(symmetry: Arch, count: int, K: Size, rng: np.random.Generator) -> GroupElement:
    r"""Elements of a symmetry group that only permute, uniform among those that have a given number of transpositions.

    With several groups the number is the sum over them. A group of n channels has :math:`c(n, n - t)` permutations of
    t transpositions, so that the numbers :math:`t_1 + ... + t_k` of the groups are drawn with probability proportional
    to :math:`\prod_i c(n_i, n_i - t_i)`, and then a permutation for each. Blocks of wreath groups stay where they are:
    channels move within theirs. Channels that matrices mix keep their order: of ``monomial(table)`` they are permuted.

    Parameters
    ----------
    symmetry
        the table, or whatever names a network, as for ``canonicalize``.
    count
        transpositions, 0 to ``most_transpositions(symmetry)``.
    K
        elements.
    rng
        what they are drawn with.

    Raises
    ------
    SymmetryError
        There is no such element.

    Notes
    -----
    Tested against all elements of a small network in tests/symmetry/test_transpositions.py.

    Examples
    --------
    >>> from ckptzoo import archs
    >>> found = random_element(archs.symmetry("mlp-784-128-10"), 16, 3, np.random.default_rng(0))
    >>> transpositions_by_group(found)["fc1"].tolist()
    [16, 16, 16]
    """
    symmetry = table_of(symmetry)
    most = most_transpositions(symmetry)
    if not 0 <= count <= most:
        expected, step = f"0 to {most} in all groups", "Choose another number."
        raise SymmetryError(f"group element: transpositions: expected {expected}, got {count}. {step}")
    parts, element = _exchangeable(symmetry), GroupElement.identity(symmetry, K)
    logs = [_log_stirling(size, size)[size, size - np.arange(min(size, count + 1))] for _, _, size in parts]
    # behind[i][t]: in how many ways the parts from i on have t transpositions
    behind = [np.where(np.arange(count + 1), -np.inf, 0.0)]
    for ways in reversed(logs):
        sums = np.full(count + 1, -np.inf)
        for number, way in enumerate(ways):
            sums[number:] = np.logaddexp(sums[number:], way + behind[0][: count + 1 - number])
        behind.insert(0, sums)
    for row in range(K):
        left = count
        for (name, start, size), ways, rest in zip(parts, logs, behind[1:], strict=True):
            chances = ways[: left + 1] + rest[left - np.arange(min(len(ways), left + 1))]
            chances = np.exp(chances - chances.max())
            number = int(rng.choice(len(chances), p=chances / chances.sum()))
            moved = start + random_permutations(size, number, 1, rng)[0]
            element.perms[name][row, start : start + size] = moved
            left -= number
    for group in symmetry.groups:
        element.perms[group.id][:] = element.perms[symmetry.leader(group.id).id]
    return element


@checked
def random_permutations(n: Count, count: int, K: Size, rng: np.random.Generator) -> NDArray[np.int64]:
    r"""Permutations of n things, uniform among those that have a given number of transpositions.

    Built thing by thing: the m-th is a cycle of its own with probability :math:`c(m-1, k-1) / c(m, k)`, where k cycles
    are left to be made and c are Stirling's numbers of the first kind, else it goes behind an earlier one.

    Parameters
    ----------
    n
        things.
    count
        transpositions, 0 to n - 1.
    K
        permutations.
    rng
        what they are drawn with.

    Returns
    -------
    NDArray[np.int64]
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


def _exchangeable(symmetry: Symmetry) -> list[tuple[str, int, int]]:
    """Return runs of channels that can be exchanged with one another alone: group, first channel, and length."""
    return [(group.id, *run) for group in symmetry.groups for run in permutations_of(group).exchangeable(group)]


@lru_cache(maxsize=4)
def _log_stirling(n: int, cycles: int) -> NDArray[np.float64]:
    """Return (n + 1, cycles + 1) logarithms of the numbers of permutations of m things with k cycles."""
    logs = np.full((n + 1, cycles + 1), -np.inf)
    logs[0, 0] = 0
    for m in range(1, n + 1):
        logs[m] = logs[m - 1] + (np.log(m - 1) if m > 1 else -np.inf)
        logs[m, 1:] = np.logaddexp(logs[m, 1:], logs[m - 1, :-1])
    return logs

"""``barycentre`` is the mean of many networks, each under the permutation that brings it closest to the others."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.alignment.align import comparable
from ckptzoo.symmetry.alignment.joint_groups import Arrays, products
from ckptzoo.symmetry.alignment.nested_matching import NestedMatcher
from ckptzoo.symmetry.arrays import stack_of, stored_dtype
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.tables import Arch, finite, fits, table_of
from ckptzoo.text import brief_repr

BLOCKS = 64
"""The number of blocks in a pass: the networks of a block are matched to the sum before the block. Fewer networks
than this are matched one by one."""
MAX_PASSES = 50
"""The largest number of passes over all networks."""
_LEAST_RISE = 1e-7
"""The relative rise of the objective in a pass below which no further pass follows."""

Batches = Callable[[], Iterable[Any]]
"""Called for every pass: the same networks in the same order, each item tensor name to (K, *shape), or a ``Batch``."""


@dataclass(frozen=True, eq=False)
class Barycentre:
    """The mean of K networks under their permutations.

    Parameters
    ----------
    mean, std
        floating tensor's name to (*shape) float64: the mean of the ``g_k B_k`` and their standard deviation (ddof 1).
    element
        the K elements g_k.
    objective
        after each pass, ``sum_{k < l} <g_k B_k, g_l B_l>``, over all floating tensors but running statistics; the
        greatest is that of the mean.
    used
        (K,) bool, False for networks that are not finite, which do not count.
    """

    mean: dict[str, NDArray[np.float64]]
    std: dict[str, NDArray[np.float64]]
    element: GroupElement
    objective: tuple[float, ...]
    used: NDArray[np.bool_]

    __repr__ = brief_repr


@checked
def barycentre(batches: Batches, arch: Arch) -> Barycentre:
    r"""Align K networks with one another, and average them.

    .. math:: \max_{g_1 \dots g_K} \sum_{k < l} \langle g_k B_k, g_l B_l \rangle = (\|S\|^2 - \sum_k \|B_k\|^2) / 2,
              \quad S = \sum_k g_k B_k

    the objective of C2M3 (Crisostomi et al., arXiv 2405.17897), which needs the sum alone and no pairs: each network
    in turn is matched to the sum of the others (``align``'s coordinate ascent), and its share of the sum is replaced,
    until nothing rises. Later networks are aligned with the mean by ``align``.

    Parameters
    ----------
    batches
        called once a pass, for the same networks in the same order: ``lambda: zoo.batches()``.
    arch
        as in ``align``. Networks keep their scales: bring them into a gauge before.

    Raises
    ------
    SymmetryError
        There are fewer than two finite networks, they do not fit the table, it has matrices, or no table is known.

    Notes
    -----
    Memory for one batch with two copies, for four networks, and for a permutation a network. Each pass reads all and
    costs about an ``align`` of every network; another one measures the deviations. With more than 64 networks a block
    of K / 64 of them is matched to one sum, so that the objective may fall in a pass: the best one is kept. Rounding
    differs with the batches. Tested in tests/symmetry/alignment/test_barycentre.py.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> net = {"fc1.weight": rng.random((8, 4)), "fc1.bias": rng.random(8), "fc2.weight": rng.random((2, 8))}
    >>> net["fc2.bias"] = rng.random(2)
    >>> order = rng.permutation(8)
    >>> other = {"fc1.weight": net["fc1.weight"][order], "fc1.bias": net["fc1.bias"][order]}
    >>> other |= {"fc2.weight": net["fc2.weight"][:, order], "fc2.bias": net["fc2.bias"]}
    >>> both = {name: np.stack([array, other[name]]) for name, array in net.items()}
    >>> found = barycentre(lambda: [both], "mlp-4-8-2")
    >>> float(max(std.max() for std in found.std.values()))
    0.0
    """
    table = table_of(arch)
    if table.has_matrices:
        step = "Average by the permutations alone: ckptzoo.symmetry.monomial(table), or align all with one of them."
        raise SymmetryError(Problem("barycentre", "symmetry table", "one without matrices", "one with matrices", step))
    state = _NetworkSum(table)
    for arrays, usable in _read(batches, table, arch):
        state.begin(arrays, usable)
    if state.K < 2:
        got, step = str(state.K), "Select more of them."
        raise SymmetryError(f"barycentre: finite networks: expected 2 or more, got {got}. {step}")
    best, objective = state.copy(), [state.objective()]
    while len(objective) < MAX_PASSES:
        start = 0
        for arrays, usable in _read(batches, table, arch):
            state.improve(arrays, usable, start)
            start += len(usable)
        objective.append(state.objective())
        if objective[-1] > max(objective[:-1]):
            best = state.copy()
        if objective[-1] - objective[-2] <= _LEAST_RISE * abs(objective[-2]):
            break
    sums, perms = best
    mean, used = {name: total / state.K for name, total in sums.items()}, np.concatenate(state.usable)
    element = GroupElement(perms, GroupElement.identity(table, len(used)).scales)
    squares, start = {name: np.zeros_like(array) for name, array in mean.items()}, 0
    for arrays, usable in _read(batches, table, arch):
        rows = np.flatnonzero(usable)
        placed = apply(element[start + rows], {name: array[rows] for name, array in arrays.items()}, table)
        for name, total in squares.items():
            total += np.square(placed[name] - mean[name]).sum(axis=0)
        start += len(usable)
    std = {name: np.sqrt(total / (state.K - 1)) for name, total in squares.items()}
    return Barycentre(mean, std, element, tuple(objective), used)


class _NetworkSum:
    """The sum of networks under their permutations so far."""

    def __init__(self, table: Symmetry) -> None:
        self._table = table
        self.K, self.sums = 0, dict[str, NDArray[np.float64]]()
        self.perms = {group.id: np.zeros((0, group.n), np.int64) for group in table.groups}
        self.usable: list[NDArray[np.bool_]] = []
        self._squares = 0.0
        self._first: NestedMatcher | None = None

    def copy(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.int64]]]:
        """Return copies of the sums and the permutations."""
        return dict(self.sums), {name: perm.copy() for name, perm in self.perms.items()}

    def objective(self) -> float:
        """Return ``(|S|^2 - sum |B_k|^2) / 2`` over the tensors that count."""
        names = comparable(self.sums, self._table)
        return (sum(float(np.vdot(self.sums[name], self.sums[name])) for name in names) - self._squares) / 2

    def begin(self, arrays: Arrays, usable: NDArray[np.bool_]) -> None:
        """Add networks, matched to the first of all."""
        rows, names = np.flatnonzero(usable), comparable(arrays, self._table)
        found = GroupElement.identity(self._table, len(usable))
        if len(rows):
            some = {name: array[rows] for name, array in arrays.items()}
            if self._first is None:
                self._first = NestedMatcher({name: some[name][:1] for name in names}, self._table)
            matched = self._first.match({name: some[name] for name in names})
            found.put(rows, matched.element)
            self._include(apply(matched.element, some, self._table), 1)
            self._squares += sum(float(products(some[name], some[name]).sum()) for name in names)
        self.perms = {name: np.concatenate([perm, found.perms[name]]) for name, perm in self.perms.items()}
        self.usable.append(usable)
        self.K += len(rows)

    def improve(self, arrays: Arrays, usable: NDArray[np.bool_], start: int) -> None:
        """Match the networks from ``start`` on to the sum of the others, block by block."""
        rows = np.flatnonzero(usable)
        size = max(1, self.K // BLOCKS)
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            held = {name: array[some] for name, array in arrays.items()}
            current = self._element(start + some)
            placed = apply(current, held, self._table)
            names = comparable(placed, self._table)
            # in the precision of the weights: products of matrices are the cost
            others = {name: (self.sums[name] - placed[name]).astype(placed[name].dtype) for name in names}
            matched = NestedMatcher(others, self._table).match({name: placed[name] for name in names}, start="identity")
            element = matched.element.compose(current)
            self._include(placed, -1)
            self._include(apply(element, held, self._table), 1)
            for name, perm in element.perms.items():
                self.perms[name][start + some] = perm

    def _element(self, rows: NDArray[np.int64]) -> GroupElement:
        scales = GroupElement.identity(self._table, len(rows)).scales
        return GroupElement({name: perm[rows] for name, perm in self.perms.items()}, scales)

    def _include(self, placed: Mapping[str, NDArray[Any]], sign: int) -> None:
        for name in placed:
            if placed[name].dtype.kind != "f":
                continue
            total = placed[name].sum(axis=0, dtype=np.float64)
            # a new array: those of the best pass are kept
            self.sums[name] = self.sums.get(name, np.zeros(())) + sign * total


def _read(batches: Batches, table: Symmetry, arch: Arch) -> Iterator[tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]]:
    """Yield the networks batch by batch, in numpy and at least float32, with which of them are finite."""
    for batch in batches():
        weights = {name: batch[name] for name in getattr(batch, "tensors", batch)}
        arrays, K = stack_of(weights, table)
        fits(arrays, table, arch)
        single = {name: array.astype(stored_dtype(array.dtype), copy=False) for name, array in arrays.items()}
        yield single, finite(single, K)

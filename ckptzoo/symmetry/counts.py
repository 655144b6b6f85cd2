"""How many symmetries a network has, by group and in all, and which elements of a tensor permutations can exchange."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.folds import dimensions
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.kinds.registry import FACTORS, kinds_of, permutations_of
from ckptzoo.symmetry.matrices.tables import monomial
from ckptzoo.symmetry.matrix_action import gains_at_one
from ckptzoo.symmetry.moves import Move, sources
from ckptzoo.symmetry.tables import Arch, last_layer, table_of
from ckptzoo.symmetry.traced import Traced


@dataclass(frozen=True)
class GroupCounts:
    """The share of one group of channels in a network's symmetries.

    Parameters
    ----------
    id, n
        of the group, and its number of channels.
    kind
        ``"sym"``, ``"wreath"``, ``"fixed"`` or ``"like"``.
    log10_permutations
        decimal logarithm of the elements of its own permutation group: ``n!``, or ``(k!) ** g`` inside the blocks of a
        wreath group (1 where they are fixed), times ``g!`` in the first group that names the block permutation; 1 for
        ``Like`` and ``Fixed``.
        The product over the groups is that of the network.
    scaling_train, scaling_without_eps, scaling_eval, signs
        as in ``Counts``, the gains against running variances counted in the group that the variances belong to. Sums
        over the groups are those of the network.
    matrices
        dimensions of the group's matrices: ``k ** 2`` a block of invertible ones, ``n (n - 1) / 2`` of orthogonal ones,
        ``(n - 1) (n - 2) / 2`` where these keep the vector of ones, 2 a complex number. What only moves inside blocks
        is among them, and in no count of permutations.
    """

    id: str
    n: int
    kind: str
    log10_permutations: float
    scaling_train: int
    scaling_without_eps: int
    scaling_eval: int
    signs: int
    matrices: int = 0

    @property
    def shown(self) -> tuple[str, ...]:
        """A row of a table with the columns ``GROUP_COLUMNS``."""
        short = self.log10_permutations < EXACT_DIGITS
        permutations = f"{round(10**self.log10_permutations):,}" if short else f"10^{self.log10_permutations:.2f}"
        numbers = (self.scaling_train, self.scaling_eval, self.signs, self.matrices)
        return (self.id, f"{self.n:,}", self.kind, permutations, *(f"{number:,}" for number in numbers))


GROUP_COLUMNS = ("group", "n", "kind", "permutations", "scales, training", "scales, evaluation", "signs", "matrices")
EXACT_DIGITS = 12
"""The number of digits up to which numbers of permutations are shown in full; a logarithm determines it."""


@dataclass(frozen=True)
class Counts:
    """The size of a network's symmetry group.

    Parameters
    ----------
    permutations
        elements of the permutation group, exactly; the identity counts.
    log10_permutations
        its decimal logarithm.
    scaling_train
        positive scales that leave the function alone in training mode, where BatchNorms use the batch's statistics and
        eps > 0: those of the groups that no BatchNorm normalises.
    scaling_without_eps
        the same at eps = 0: all positive scales of the table.
    scaling_eval
        in evaluation mode: all positive scales, and one for each normalised channel of the table, its gain against its
        running variance.
    signs
        channels whose sign may be flipped, those in front of a BatchNorm together with its gain.
    softmax
        dimension of the changes of the last layer that add the same number to all logits; None where the table alone
        does not show the last layer.
    groups
        the same group by group, in the order of the table.
    folds
        dimensions of the additive freedoms in evaluation mode, by the kind of the fold, for the kinds that there are.
    continuous
        dimensions of all weights with the same function in evaluation mode that the table has, by their kind, for the
        kinds that there are: positive scales, matrices, gains that orthogonal matrices need to be 1, folds.
    """

    permutations: int = field(repr=False)
    log10_permutations: float
    scaling_train: int
    scaling_without_eps: int
    scaling_eval: int
    signs: int
    softmax: int | None
    groups: tuple[GroupCounts, ...] = field(default=(), repr=False, compare=False)
    folds: tuple[tuple[str, int], ...] = ()
    continuous: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def dimensions(self) -> int:
        """The dimensions of all continuous symmetries together, in evaluation mode."""
        return sum(number for _, number in self.continuous)

    def __str__(self) -> str:
        short = self.log10_permutations < 15
        permutations = f"{self.permutations:,}" if short else f"10^{self.log10_permutations:.2f}"
        scales = f"{self.scaling_train:,} in training mode ({self.scaling_without_eps:,} at eps = 0)"
        lines = (
            ("permutations", permutations),
            ("positive scales", f"{scales}, {self.scaling_eval:,} in evaluation mode"),
            ("sign flips", f"{self.signs:,}"),
            ("softmax shift", "unknown" if self.softmax is None else f"{self.softmax:,}"),
        )
        if any(name != "scales" for name, _ in self.continuous):
            kinds = ", ".join(f"{number:,} {name}" for name, number in self.continuous)
            lines += (("dimensions", f"{self.dimensions:,} in evaluation mode ({kinds})"),)
        return "\n".join(f"{name:<16} {value}" for name, value in lines)


@checked
def count(arch: Arch) -> Counts:
    r"""Count a network's symmetries.

    .. math:: |P| = \prod_{\mathrm{Sym}} n! \; \prod_{\mathrm{outer}} g! \; \prod_{\mathrm{Wreath}} (k!)^g

    over the groups that may be permuted freely, the block permutations that wreath groups share, each once, and
    the wreath groups that are free inside; ``Like`` and ``Fixed`` groups add nothing. Positive scales form a group of
    as many dimensions as there are channels that scale. The function after a softmax also stays under
    :math:`(W, b) \to (W + 1 v^T, b + c 1)` of the last layer, of dimension fan-in + 1. Sources: arXiv 2310.08287,
    section 3 and appendix D.4, with the blocks of grouped convolutions moved on both sides jointly.

    Parameters
    ----------
    arch
        a table, an architecture whose forward function is in ``ckptzoo.archs``, or a name there. A table alone is taken
        to read all inputs of the last layer and to have a bias there.

    Raises
    ------
    SymmetryError
        No such name in ``ckptzoo.archs``.
    SpecError
        The registry's table does not fit the architecture.

    Notes
    -----
    Milliseconds, but for the exact number of permutations of groups of tens of thousands of channels (seconds).
    Gains against variances count where both stand in the table. What shifts a running mean against BatchNorm's
    shift is no scale and is not counted. Tested in tests/symmetry/test_counts.py.
    """
    table = table_of(arch)
    permutations = _permutations(table)
    groups = counts_by_group(table)
    return Counts(
        permutations,
        math.log10(permutations),
        scaling_train=sum(group.scaling_train for group in groups),
        scaling_without_eps=sum(group.scaling_without_eps for group in groups),
        scaling_eval=sum(group.scaling_eval for group in groups),
        signs=sum(group.signs for group in groups),
        softmax=_softmax(table, _architecture(arch)),
        groups=groups,
        folds=_folded(table),
        continuous=_continuous(table, groups),
    )


def _continuous(table: Symmetry, groups: tuple[GroupCounts, ...]) -> tuple[tuple[str, int], ...]:
    """Return the dimensions of the continuous symmetries by kind; kinds without any are left out."""
    numbers: Counter[str] = Counter(scales=sum(group.scaling_eval for group in groups))
    for group in groups:
        numbers[table[group.id].scale.removesuffix("_mean")] += group.matrices
    numbers["gains"] = sum(len(gain.places) for gain in gains_at_one(table))
    numbers["folds"] = sum(dimensions(table.folds))
    mixing = (name.removesuffix("_mean") for name, kind in FACTORS.items() if kind.part == "matrices")
    kinds = dict.fromkeys(("scales", *mixing, "gains", "folds"))
    return tuple((kind, numbers[kind]) for kind in kinds if numbers[kind])


def _folded(table: Symmetry) -> tuple[tuple[str, int], ...]:
    """Return the dimensions that the table's folds fix, by their kinds."""
    numbers: Counter[str] = Counter()
    for fold, number in zip(table.folds, dimensions(table.folds), strict=True):
        numbers[fold.kind] += number
    return tuple(sorted(numbers.items()))


@checked
def counts_by_group(table: Arch) -> tuple[GroupCounts, ...]:
    """The symmetries of each group of channels, in the order of the table; cheap for groups of any size.

    Parameters
    ----------
    table
        whose groups are counted.
    """
    table = table_of(table)
    normalised = {segment.group for action in table.actions if action.role == "variance" for segment in action.segments}
    gains = _gains_against_variances(table)
    counted: set[str] = set()
    found: list[GroupCounts] = []
    for group in table.groups:
        factorials = permutations_of(group).factorials(group, counted)
        logarithms = [math.copysign(math.lgamma(n + 1), power) for n, power in factorials for _ in range(abs(power))]
        positive = group.n if group.resizes else 0
        found.append(
            GroupCounts(
                group.id,
                group.n,
                group.perm.kind(),
                math.fsum(logarithms) / math.log(10),
                scaling_train=0 if group.id in normalised else positive,
                scaling_without_eps=positive,
                scaling_eval=positive + gains[group.id],
                signs=group.n if group.flips else 0,
                matrices=sum(kind.dimensions(group) for kind in kinds_of(group)),
            )
        )
    return tuple(found)


def _permutations(table: Symmetry) -> int:
    powers: Counter[int] = Counter()
    counted: set[str] = set()
    for group in table.groups:
        for n, power in permutations_of(group).factorials(group, counted):
            powers[n] += power
    above, below = (
        math.prod(math.factorial(n) ** max(0, sign * power) for n, power in powers.items()) for sign in (1, -1)
    )
    return above // below


def _gains_against_variances(table: Symmetry) -> Counter[str]:
    """Return for each group the channels whose running variances stand beside a gain."""
    gains = {_layer(action.tensor) for action in table.actions if action.role == "gain"}
    found: Counter[str] = Counter()
    for action in table.actions:
        if action.role == "variance" and _layer(action.tensor) in gains:
            for segment in action.segments:
                found[segment.group] += segment.count
    return found


def _architecture(arch: Arch) -> Architecture | None:
    """Return the architecture, where there is more than a table."""
    if isinstance(arch, Traced):
        return arch.architecture
    if isinstance(arch, str):
        return archs.architecture(arch)
    return None if isinstance(arch, Symmetry) else arch


def _softmax(table: Symmetry, arch: Architecture | None) -> int | None:
    """Return the fan-in of the last layer, and its bias."""
    last = last_layer(table)
    if arch is None:
        return sum(item.inner * item.count for item in last.segments) + 1 if last else None
    weights = [arch[last.tensor]] if last else [tensor for tensor in arch.tensors if len(tensor.shape) > 1]
    if not weights:
        return None
    return math.prod(weights[-1].shape[1:]) + (f"{weights[-1].layer}.bias" in arch)


def _layer(tensor: str) -> str:
    return tensor.rpartition(".")[0]


_Perms = dict[str, np.ndarray]


@checked
def orbits(symmetry: Arch, tensor: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    r"""Label the positions of a tensor by their orbits under the table's permutation group.

    .. math:: i \sim j \iff \exists\, \pi \in P: \; (\pi \cdot \theta)_i = \theta_j

    for all weights :math:`\theta`, with scales left at 1. Weights at two positions of one orbit have equal marginals in
    every distribution over weights that the permutations leave as it is (arXiv 2310.08287, section 3: such is the
    posterior, as the likelihood and a prior with independent and equally distributed weights stay the same).

    Parameters
    ----------
    symmetry
        the table, or whatever names a network, as for ``canonicalize``.
    tensor
        a name; one that the table does not name has every position by itself.
    shape
        of the tensor in one checkpoint.

    Returns
    -------
    NDArray[np.int64]
        (*shape) int64: positions have the same label if and only if they share an orbit; labels count from 0 in the
        order of the orbits' first positions.

    Notes
    -----
    Two generators for each symmetric group (a cycle and an exchange), four for each wreath product, and the connected
    components of what they do to the positions. Time and memory a few passes over the axes that move, for each
    generator. Against random group elements: tests/symmetry/test_orbits.py.
    """
    symmetry = table_of(symmetry)
    symmetry = monomial(symmetry)
    needed = max((action.axis for action in symmetry.actions_on(tensor)), default=-1) + 1
    if len(shape) < needed:
        step = f"Pass the shape of {tensor!r} in one checkpoint."
        raise SymmetryError(Problem("orbits", "shape", f"{needed} axes or more", str(tuple(shape)), step))
    move = Move.of(shape, symmetry.actions_on(tensor), symmetry)
    rows, columns, elements = move.shape
    parent = np.arange(rows * columns)
    try:
        edges = list(_edges(move, symmetry))
    except ValueError as error:
        expected, step = "sizes of the groups that act", f"Pass the shape of {tensor!r} in one checkpoint."
        raise SymmetryError(Problem("orbits", "shape", expected, str(tuple(shape)), step)) from error
    while True:
        before = parent.copy()
        for first, second in edges:
            one, other = parent[first], parent[second]
            np.minimum.at(parent, np.maximum(one, other), np.minimum(one, other))
            while (parent != (above := parent[parent])).any():
                parent = above
        if (parent == before).all():
            break
    _, labels = np.unique(parent, return_inverse=True)
    return (labels[:, None] * elements + np.arange(elements)).reshape(shape)


def _edges(move: Move, symmetry: Symmetry) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield for each generator the entries that it moves, and where they come from."""
    rows, columns, _ = move.shape
    for perms in _generators(move.groups, symmetry):
        row, column = move.rows(perms), move.columns(perms)
        found = sources(row, column, slice(0, rows), move.shape)[0]
        if column is None:
            found = found[:, None] * columns + np.arange(columns)
        found = found.ravel()
        moved = np.flatnonzero(found != np.arange(len(found)))
        yield moved, found[moved]


def _generators(groups: set[str], symmetry: Symmetry) -> Iterator[_Perms]:
    """Yield elements that generate what the table's permutations do to these groups: group to (1, n)."""
    found: dict[str, _Perms] = {}
    for name in sorted(groups):
        leader = symmetry.leader(name)
        for generator, perm in permutations_of(leader).generators(leader).items():
            found.setdefault(generator, {})[name] = perm[None]
    yield from found.values()

"""The canonical gauge of tables with matrices, up to what permutations, scales and signs are left.

In this order, on weights that are folded:

1. scales other than signs come to unit norm, as in ckptzoo/symmetry/scales.py;
2. matrices with sizes, of which what is written and what is read are balanced (kinds/linear.py, kinds/complex.py);
   those that meet in a tensor, as linear layers in a row have them, take turns until all are balanced at once;
3. the others, which are orthogonal (kinds/orthogonal.py): what writes them is balanced by then;
4. rows that nothing determined so far, in this basis.

Each step's numbers depend on nothing that later ones change. Rows of balanced blocks and complex numbers have open
signs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.arrays import is_float, stored_copies, stored_dtype
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.folds import commuting, fold
from ckptzoo.symmetry.kinds.matrix import Basis, Matrix
from ckptzoo.symmetry.kinds.registry import is_balanced, matrix_kind_of
from ckptzoo.symmetry.matrices.tables import unmixed
from ckptzoo.symmetry.matrix_action import (
    Arrays,
    MixedChannels,
    by_tensor,
    have_unit_gains,
    is_acting,
    mixed_channels,
    multiply_sides,
    precision_of,
)
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales, solve
from ckptzoo.symmetry.tables import pieces, take_rows

TURNS = 1000
"""The largest number of turns of groups that meet in a tensor."""
MAX_ROUNDS = 200
"""The largest number of turns where scales stay, in the dtype of the weights."""
STILL = 1e-12
"""The largest difference of an entry of G G^T from the identity's in a round that changes nothing any more."""
ROUNDS = 8
"""The number of times that scales and matrices are computed again where they depend on each other."""
Bases = dict[str, Basis]


@dataclass(frozen=True, eq=False)
class Settled:
    """The matrices of the gauge for K checkpoints, and how well they are determined.

    Parameters
    ----------
    left
        group id to the matrices that act on what is written, (K, blocks, k, k) or (K, n, 2).
    right
        the same for what is read: the inverse transposes, but for blocks whose rank is less than k.
    scales
        group id to positive scales (K, n).
    margin
        (K,) float64, the smallest of all groups' margins.
    degenerate
        (K,) int64, channels of blocks whose rank is less than k: no element of the group leads there.
    unresolved
        (K,) bool, an orthogonal matrix, a phase, or a sign is left that nothing determines.
    dead, clamped
        (K,) int64, as of ``scales.Scales``.
    """

    left: dict[str, NDArray[np.float64]]
    right: dict[str, NDArray[np.float64]]
    scales: dict[str, NDArray[np.float64]]
    margin: NDArray[np.float64]
    degenerate: NDArray[np.int64]
    unresolved: NDArray[np.bool_]
    dead: NDArray[np.int64]
    clamped: NDArray[np.int64]

    @classmethod
    def blank(cls, K: int) -> "Settled":
        """Return an empty result for K checkpoints."""
        none = np.zeros(K, np.int64)
        return cls({}, {}, {}, np.full(K, np.inf), none, np.zeros(K, bool), none.copy(), none.copy())

    def note(self, margin: NDArray[np.float64], degenerate: NDArray[np.int64], unresolved: NDArray[np.bool_]) -> None:
        """Count what is said of the blocks of a group (K, ...), in place."""
        axes = tuple(range(1, margin.ndim))
        self.margin[:] = np.minimum(self.margin, margin.min(axis=axes, initial=np.inf))
        self.degenerate[:] += degenerate.sum(axis=axes)
        self.unresolved[:] |= unresolved.any(axis=axes)

    def follow(self, step: "Settled", rows: NDArray[np.int64], symmetry: Symmetry) -> None:
        """Add a further step on some rows after these matrices; its margins and counts replace those of the rows."""
        for totals, made in ((self.left, step.left), (self.right, step.right)):
            for name, matrix in made.items():
                if name in totals:
                    totals[name][rows] = _kind(symmetry[name]).product(matrix, totals[name][rows])
                else:
                    totals[name] = matrix.copy()
        for name in ("margin", "degenerate", "unresolved"):
            getattr(self, name)[rows] = getattr(step, name)

    def element(self, symmetry: Symmetry) -> GroupElement:
        """Return the elements, with NaN in the matrices of blocks that have none."""
        one = GroupElement.identity(symmetry, len(self.margin))
        found = {name: _kind(symmetry[name]).as_value(left) for name, left in self.left.items()}
        return GroupElement(one.perms, {**one.scales, **self.scales}, {**one.matrices, **found})


def settled_matrices(
    arrays: Mapping[str, np.ndarray], symmetry: Symmetry, usable: np.ndarray, report: Report
) -> tuple[dict[str, np.ndarray], GroupElement]:
    """Fold the weights, settle scales and matrices, and return copies of all weights with what led there."""
    element, work = GroupElement.identity(symmetry, len(usable)), dict[str, np.ndarray]()
    for rows in pieces(np.flatnonzero(usable), arrays, 1):
        folded = fold(take_rows(arrays, rows), commuting(symmetry))
        if not (unit := have_unit_gains(folded, symmetry)).all():
            usable[rows], rows, folded = unit, rows[unit], {name: array[unit] for name, array in folded.items()}
            if not len(rows):
                continue
        part = {name: _own(array, arrays[name]) for name, array in folded.items()}
        del folded
        found = settle(part, symmetry)
        report.dead[rows], report.clamped[rows], report.degenerate[rows] = found.dead, found.clamped, found.degenerate
        report.margin[rows], report.unresolved[rows] = found.margin, found.unresolved
        element.put(rows, found.element(symmetry))
        if len(rows) == len(usable):
            return part, element
        work = work or stored_copies(arrays)
        for name in arrays:
            work[name][rows] = part.pop(name)
    return work or stored_copies(arrays), element


def _own(array: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return the array in the dtype of the result, in memory apart from what was given."""
    if array.dtype != stored_dtype(array.dtype) or np.may_share_memory(array, given):
        return array.astype(stored_dtype(array.dtype), order="C")
    return np.require(array, requirements=["C", "W"])


def open_signs(moments: Moments) -> Scales:
    """Return the signs that settled matrices leave open, and multiply the weights by them, in place."""
    found, table, none = solve(moments), moments.symmetry, np.zeros(moments.K, np.int64)
    for name, array in moments.arrays.items():
        if actions := table.actions_on(name):
            flipped = transform(array, actions, GroupElement({}, found.scales), table)
            if flipped is not array:
                array[...] = flipped
    moments.forget()
    return replace(found, dead=none, clamped=none)  # which were counted with the matrices


def settle(arrays: dict[str, NDArray[Any]], symmetry: Symmetry) -> Settled:
    """Bring folded weights of a table with matrices to where matrices and scales are settled, in place.

    ``arrays`` maps tensor names to (K, *shape), finite, writeable, at least float32; they are overwritten in their
    dtype. It takes 100 MiB and the float64 copy of one tensor of one checkpoint beside the weights. Raises
    ``SymmetryError`` for an orthogonal group whose channels no tensor writes with a weight.
    """
    found = Settled.blank(len(next(iter(arrays.values()))))
    _scale(arrays, symmetry, found)
    balanced, in_turn = _balanced_groups(symmetry), meeting_blocks(symmetry)
    bases = _settle_each(arrays, [group for group in balanced if group.id not in in_turn], symmetry, found)
    if in_turn:
        bases |= _take_turns(arrays, [symmetry[name] for name in in_turn], symmetry, found)
    others = [group for group in symmetry.groups if matrix_kind_of(group) and not is_balanced(group)]
    bases |= _settle_each(arrays, others, symmetry, found)
    _resolve(arrays, bases, symmetry, found)
    return found


def balance_blocks(arrays: dict[str, NDArray[Any]], symmetry: Symmetry, *, rounds: int = MAX_ROUNDS) -> GroupElement:
    """Give matrices with sizes the same size on both sides, in place, while scales and other matrices stay.

    ``arrays`` maps tensor names to (K, *shape), finite, writeable, at least float32; they are overwritten in their
    dtype. Returns the element that leads there, with NaN in the matrices of blocks that have none. Raises
    ``SymmetryError`` where a group's matrices act on two axes of one tensor.

    One pass is enough unless two blocks meet in a tensor, as in a chain of linear layers. Then they take at most
    ``rounds`` turns, as in ``settle``. Rounds do not depend on how many networks are stacked.
    """
    K, groups = len(next(iter(arrays.values()))), _balanced_groups(symmetry)
    element, waiting = GroupElement.identity(symmetry, K), np.arange(K)
    if not groups:
        return element
    for left in reversed(range(rounds if _meet(symmetry) else 1)):
        some = {name: array[waiting] for name, array in arrays.items()}
        found = Settled.blank(len(waiting))
        _resolve(some, _settle_each(some, groups, symmetry, found), symmetry, found)
        for name, array in some.items():
            arrays[name][waiting] = array
        # a block that is degenerate in the first round has no element from then on
        step = found.element(symmetry)
        composed = step.compose(element[waiting])
        for name, matrix in element.matrices.items():
            matrix[waiting] = composed.matrices[name]
        if left:
            waiting = waiting[_changes([(group, step.matrices[group.id]) for group in groups], len(waiting))]
        if not len(waiting):
            break
    return element


def depend_on_others(symmetry: Symmetry) -> bool:
    """Whether blocks meet in tensors, or scales depend on the matrices of a block."""
    return bool(meeting_blocks(symmetry)) or scales_depend_on_matrices(symmetry)


def scales_depend_on_matrices(symmetry: Symmetry) -> bool:
    """Whether channels with scales read a block of invertible matrices, which change the norms of their weights."""
    return bool(_chained(symmetry, unmixed(symmetry)))


def meeting_blocks(symmetry: Symmetry) -> list[str]:
    """Return the groups with matrices to be balanced of which a tensor has two, or one on two axes."""
    found: set[str] = set()
    for _, axes in _balanced_axes(symmetry):
        if len({axis for axis, _ in axes}) > 1:
            found |= {group for _, group in axes}
    return [group.id for group in symmetry.groups if group.id in found]


def _kind(group: Group) -> Matrix:
    """Return the kind of the matrices of a group that has some."""
    kind = matrix_kind_of(group)
    assert kind is not None
    return kind


def _balanced_groups(symmetry: Symmetry) -> list[Group]:
    return [group for group in symmetry.groups if is_balanced(group)]


def _balanced_axes(symmetry: Symmetry) -> Iterator[tuple[str, set[tuple[int, str]]]]:
    """Yield each tensor with the axes and groups whose matrices must be balanced."""
    for name, actions in by_tensor(symmetry):
        mixed = mixed_channels(actions, symmetry)
        yield name, {(item.axis, item.group) for item in mixed if is_balanced(symmetry[item.group])}


def _meet(symmetry: Symmetry) -> bool:
    """Whether two axes of one tensor have matrices that must be balanced.

    Raises ``SymmetryError`` where they are those of one group: what balances is no quadratic equation then.
    """
    found = False
    for name, axes in _balanced_axes(symmetry):
        if len(axes) > len({group for _, group in axes}):
            step = "Use the table of permutations and scales alone: ckptzoo.symmetry.monomial(table)."
            got = "one on two"
            raise SymmetryError(Problem(f"tensor {name!r}", "matrices", "those of a group on one axis", got, step))
        found |= len({axis for axis, _ in axes}) > 1
    return found


def _settle_each(
    arrays: dict[str, NDArray[Any]],
    groups: Iterable[Group],
    symmetry: Symmetry,
    found: Settled,
    precision: float | None = None,
) -> Bases:
    """Settle groups one after the other, in place.

    ``precision`` is the machine epsilon of the weights; by default that of the tensors that a group acts on.
    """
    made: Bases = {}
    for group in groups:
        epsilon = precision_of(arrays, group, symmetry) if precision is None else precision
        basis = made[group.id] = _kind(group).settle(group, arrays, symmetry, epsilon)
        found.note(basis.margin, basis.degenerate, basis.unresolved)
        found.left[group.id], found.right[group.id] = basis.left, basis.right
        multiply_sides(arrays, group.id, basis.left, basis.right, symmetry)
    return made


def _take_turns(arrays: dict[str, NDArray[Any]], groups: list[Group], symmetry: Symmetry, found: Settled) -> Bases:
    """Settle groups that meet in tensors, in place, until another round changes none of them.

    Each step makes the sum of squares the least over one block's matrices. That sum is convex along one-parameter
    subgroups, so that the limit is the least over all blocks, and unique up to orthogonal matrices (Kempf and Ness
    1979), which the singular values of each block determine. Rounds do not depend on how many networks are stacked.
    """
    K = len(found.margin)
    acted = {
        action.tensor for action in symmetry.actions if any(is_acting(action, group.id, symmetry) for group in groups)
    }
    precision = max(float(np.finfo(arrays[name].dtype).eps) for name in acted)
    work = {name: arrays[name].astype(np.float64) for name in arrays if name in acted}
    waiting, total = np.arange(K), Settled.blank(K)
    made: Bases = {}
    for _ in range(TURNS):
        some = {name: array[waiting] for name, array in work.items()}
        step = Settled.blank(len(waiting))
        bases = _settle_each(some, groups, symmetry, step, precision)
        for name, array in some.items():
            work[name][waiting] = array
        for name, basis in bases.items():
            made.setdefault(name, basis).put(waiting, basis)
        total.follow(step, waiting, symmetry)
        sides = (*step.left.items(), *step.right.items())
        waiting = waiting[_changes([(symmetry[name], value) for name, value in sides], len(waiting))]
        if not len(waiting):
            break
    total.unresolved[waiting] = True
    for name, array in work.items():
        arrays[name][...] = array
    found.left.update(total.left)
    found.right.update(total.right)
    found.note(total.margin, total.degenerate, total.unresolved)
    return made


def _changes(values: Iterable[tuple[Group, NDArray[np.float64]]], K: int) -> NDArray[np.bool_]:
    """Return (K,) whether some matrix changes sizes."""
    changed = np.zeros(K, bool)
    for group, value in values:
        changed |= _kind(group).off_unit(value) > STILL
    return changed


def _resolve(arrays: dict[str, NDArray[Any]], bases: Mapping[str, Basis], symmetry: Symmetry, found: Settled) -> None:
    """Settle what was left open until all groups have their basis, in place."""
    for name, basis in bases.items():
        if (resolved := _kind(symmetry[name]).resolve(symmetry[name], arrays, symmetry, basis)) is None:
            continue
        turns, unresolved = resolved
        found.note(basis.margin, np.zeros(basis.margin.shape, np.int64), unresolved)
        if (turns != np.eye(turns.shape[-1])).any():
            for side in (found.left, found.right):
                side[name] = turns @ side[name]
            multiply_sides(arrays, name, turns, turns, symmetry)


def _scale(arrays: dict[str, NDArray[Any]], symmetry: Symmetry, found: Settled) -> None:
    """Bring channels to unit norm, in place; where matrices are in between, with these at unit norm too."""
    table = unmixed(symmetry)
    if not any(group.scaled for group in table.groups):
        return
    chained = _chained(symmetry, table)
    # a layer that is used twice does not determine the scales behind it, as its columns are in the same basis
    found.unresolved[:] |= any(_on_two_axes(group, symmetry) for group in chained)
    K = len(found.margin)
    total = GroupElement.identity(table, K)
    for _ in range(ROUNDS if chained else 1):
        whitened = _whitened(arrays, chained, symmetry) if chained else arrays
        solved = solve(Moments(whitened, table))
        found.dead[:], found.clamped[:] = solved.dead, solved.clamped
        found.unresolved[:] |= solved.unsolved
        step = GroupElement(GroupElement.identity(table, K).perms, solved.scales)
        total = step.compose(total)
        for name, actions in by_tensor(table):
            if is_float(arrays[name]):
                arrays[name][...] = transform(arrays[name], actions, step, table)
        if all((scale == 1).all() for scale in solved.scales.values()):
            break
    else:
        found.unresolved[:] |= chained != []
    found.unresolved[:] |= _dead_in_front_of_blocks(arrays, symmetry, table)
    found.scales.update({group.id: total.scales[group.id] for group in symmetry.groups if group.resizes})


def _chained(symmetry: Symmetry, table: Symmetry) -> list[Group]:
    """Return the groups of invertible matrices that tensors read which write channels with scales."""
    reading: set[str] = set()
    for _, actions in by_tensor(symmetry):
        if any(table[segment.group].scaled for act in actions for segment in act.segments if act.exponent == 1):
            reading |= {mixed.group for mixed in mixed_channels(actions, symmetry) if mixed.inverted}
    if reading:  # what writes these may read others, whose matrices it depends on
        before: set[str] = set()
        while before != reading:
            before = set(reading)
            for _, actions in by_tensor(symmetry):
                mixed = mixed_channels(actions, symmetry)
                if any(item.group in before and not item.inverted for item in mixed):
                    reading |= {item.group for item in mixed if item.inverted}
    return [group for group in symmetry.groups if group.id in reading and _kind(group).whitens]


def _dead_in_front_of_blocks(arrays: Arrays, symmetry: Symmetry, table: Symmetry) -> NDArray[np.bool_]:
    """Return (K,) whether nothing writes a channel whose scale is that of a column which matrices with sizes mix."""
    moments, dead = Moments(arrays, table), np.zeros(len(next(iter(arrays.values()))), bool)
    into = {
        name
        for name, axes in _balanced_axes(symmetry)
        if any((item.axis, item.group) in axes and not item.inverted for item in _mixed(name, symmetry))
    }
    for group in table.groups if into else ():
        reading = [action for action in moments.readers(group.id) if action.tensor in into]
        if reading and group.resizes:
            silent = np.ones((len(dead), group.n), bool)
            for action in moments.writers(group.id):
                silent &= moments.unordered_norms(action, group.id, {}, {}).values == 0
            for action in reading if silent.any() else ():
                dead |= (silent & (moments.unordered_norms(action, group.id, {}, {}).values != 0)).any(axis=1)
    return dead


def _mixed(name: str, symmetry: Symmetry) -> list[MixedChannels]:
    return mixed_channels(symmetry.actions_on(name), symmetry)


def _on_two_axes(group: Group, symmetry: Symmetry) -> bool:
    """Whether a tensor has the same matrices on two axes."""
    return any([name for _, name in axes].count(group.id) > 1 for _, axes in _balanced_axes(symmetry))


def _whitened(arrays: Arrays, groups: list[Group], symmetry: Symmetry) -> dict[str, NDArray[Any]]:
    """Return the weights with orthonormal rows in what writes these groups, where anything writes them."""
    made = dict(arrays)
    for group in groups:
        left, right = _kind(group).white(group, made, symmetry)
        multiply_sides(made, group.id, left, right, symmetry, copy=True)
    return made

"""The canonical gauge of tables with matrices, up to what permutations, scales and signs are left.

In this order, on weights that are folded:

1. scales other than signs come to unit norm, as in ckptzoo/symmetry/scales.py;
2. every block of invertible matrices is balanced: with A all that its channels write and B all that reads them,
   tensors that count in the mass alone, ``A A^T = B B^T = S`` for the singular values S of ``A^T B``, in descending
   order; complex numbers give equal norms to what they multiply and what their inverses multiply, and the sum of
   squares of the first a positive value; blocks that meet in a tensor, as linear layers in a row have them, take turns
   until all of them are balanced at once;
3. a stream's channels are the eigenvectors of the sum of ``W W^T`` over all that writes it, in descending order of
   eigenvalues; their signs make the sum of cubes of each channel's weights positive, in the first tensor that no other
   group acts on;
4. rows of equal singular values, which are known up to orthogonal matrices, are determined in this basis.

Each step's numbers depend on nothing that later ones change. Rows of A and B and complex numbers have open signs.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.registry import arithmetic
from ckptzoo.symmetry.matrices.balance import Balance, are_kept, balance, resolve_equal
from ckptzoo.symmetry.matrices.complex_pairs import balance_complex
from ckptzoo.symmetry.matrices.repeated import equal_below
from ckptzoo.symmetry.matrices.stream import StreamAxes, settle_signs, stream_axes
from ckptzoo.symmetry.matrices.tables import unmixed
from ckptzoo.symmetry.matrix_action import MixedChannels, mixed_channels, multiply
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.scales import solve

Arrays = Mapping[str, NDArray[Any]]
GRAM = 2**21
"""Elements of a writer that are squared at a time: 16 MiB of float64."""
BLOCKS = ("linear", "complex")
"""The kinds of groups of which what is written and what is read are balanced."""
TURNS = 1000
"""The largest number of turns of blocks that meet in a tensor."""
STILL = 1e-12
"""The largest difference of an entry of G G^T from the identity's in a round that changes nothing any more."""
ROUNDS = 8
"""The number of times that scales and matrices are computed again where they depend on each other."""


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
        (K,) float64, the smallest gap between neighbouring singular values of a block, or eigenvalues of a stream,
        relative to the largest one there.
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

    def follow(self, step: "Settled", rows: NDArray[np.int64]) -> None:
        """Add a further step on some rows after these matrices; its margins and counts replace those of the rows."""
        for totals, made in ((self.left, step.left), (self.right, step.right)):
            for name, matrix in made.items():
                if name in totals:
                    totals[name][rows] = arithmetic("matrices", matrix).product(matrix, totals[name][rows])
                else:
                    totals[name] = matrix.copy()
        for name in ("margin", "degenerate", "unresolved"):
            getattr(self, name)[rows] = getattr(step, name)

    def element(self, symmetry: Symmetry) -> GroupElement:
        """Return the elements, with NaN in the matrices of blocks that have none."""
        K = len(self.margin)
        one = GroupElement.identity(symmetry, K)
        matrices = dict(one.matrices)
        for name, left in self.left.items():
            zero = (left == 0).all(axis=-1)  # rows of matrices, or complex numbers
            lost = zero[..., None] if left.ndim == 3 else zero.any(axis=-1)[..., None, None]
            matrices[name] = np.where(lost, np.nan, left)
        return GroupElement(one.perms, {**one.scales, **self.scales}, matrices)


def settle(arrays: dict[str, NDArray[Any]], symmetry: Symmetry) -> Settled:
    """Bring folded weights of a table with matrices to where matrices and scales are settled, in place.

    ``arrays`` maps tensor names to (K, *shape), finite, writeable, at least float32; they are overwritten in their
    dtype. It takes 100 MiB and the float64 copy of one tensor of one checkpoint beside the weights. Raises
    ``SymmetryError`` for an orthogonal group whose channels no tensor writes with a weight.
    """
    K = len(next(iter(arrays.values())))
    found = Settled.blank(K)
    table = unmixed(symmetry)
    _scale(arrays, symmetry, table, found)
    in_turn = meeting_blocks(symmetry)
    alone = [group for group in symmetry.groups if group.scale in BLOCKS and group.id not in in_turn]
    balanced = _balance_all(arrays, alone, symmetry, found)
    if in_turn:
        balanced |= _take_turns(arrays, [symmetry[name] for name in in_turn], symmetry, found)
    for group in symmetry.groups:
        if group.scale in ("orthogonal", "orthogonal_mean"):
            _rotate(arrays, group, symmetry, found)
    for name, made in balanced.items():
        _resolve(arrays, symmetry[name], made, symmetry, found)
    return found


def balance_once(arrays: dict[str, NDArray[Any]], symmetry: Symmetry) -> Settled:
    """Balance every block of a table once, one after the other, in place; parameters are those of ``settle``."""
    found = Settled.blank(len(next(iter(arrays.values()))))
    blocks = [group for group in symmetry.groups if group.scale in BLOCKS]
    for name, made in _balance_all(arrays, blocks, symmetry, found).items():
        _resolve(arrays, symmetry[name], made, symmetry, found)
    return found


def depend_on_others(symmetry: Symmetry) -> bool:
    """Whether blocks meet in tensors, or scales depend on the matrices of a block."""
    return bool(meeting_blocks(symmetry)) or scales_depend_on_matrices(symmetry)


def scales_depend_on_matrices(symmetry: Symmetry) -> bool:
    """Whether channels with scales read a block of invertible matrices, which change the norms of their weights."""
    return bool(_chained(symmetry, unmixed(symmetry)))


def meeting_blocks(symmetry: Symmetry) -> list[str]:
    """Return the groups of invertible matrices and complex numbers of which a tensor has two, or one on two axes."""
    found: set[str] = set()
    for _, actions in _by_tensor(symmetry):
        axes = {(item.axis, item.group) for item in mixed_channels(actions, symmetry)}
        axes = {(axis, group) for axis, group in axes if symmetry[group].scale in BLOCKS}
        if len({axis for axis, _ in axes}) > 1:
            found |= {group for _, group in axes}
    return [group.id for group in symmetry.groups if group.id in found]


def _balance_all(
    arrays: dict[str, NDArray[Any]],
    groups: list[Group],
    symmetry: Symmetry,
    found: Settled,
    precision: float | None = None,
) -> dict[str, Balance]:
    """Balance blocks one after the other, in place, and return those of invertible matrices.

    ``precision`` is the machine epsilon of the weights; by default that of the tensors that a group acts on.
    """
    made: dict[str, Balance] = {}
    for group in groups:
        epsilon = _precision(arrays, group, symmetry) if precision is None else precision
        if group.scale == "linear":
            made[group.id] = _balance(arrays, group, symmetry, found, epsilon)
        else:
            _turn(arrays, group, symmetry, found, epsilon)
    return made


def _take_turns(
    arrays: dict[str, NDArray[Any]], groups: list[Group], symmetry: Symmetry, found: Settled
) -> dict[str, Balance]:
    """Balance blocks that meet in tensors, in place, until another round changes none of them.

    Each step makes the sum of squares the least over one block's matrices. That sum is convex along one-parameter
    subgroups, so that the limit is the least over all blocks, and unique up to orthogonal matrices (Kempf and Ness
    1979), which the singular values of each block determine. Rounds do not depend on how many networks are stacked.
    """
    K = len(found.margin)
    acted = {action.tensor for action in symmetry.actions if any(_acts(action, group.id, symmetry) for group in groups)}
    precision = max(float(np.finfo(arrays[name].dtype).eps) for name in acted)
    work = {name: arrays[name].astype(np.float64) for name in arrays if name in acted}
    waiting, total = np.arange(K), Settled.blank(K)
    made: dict[str, Balance] = {}
    for _ in range(TURNS):
        some = {name: array[waiting] for name, array in work.items()}
        step = Settled.blank(len(waiting))
        balanced = _balance_all(some, groups, symmetry, step, precision)
        for name, array in some.items():
            work[name][waiting] = array
        for name, item in balanced.items():
            made.setdefault(name, item).put(waiting, item)
        total.follow(step, waiting)
        waiting = waiting[_changes(step)]
        if not len(waiting):
            break
    total.unresolved[waiting] = True
    for name, array in work.items():
        arrays[name][...] = array
    found.left.update(total.left)
    found.right.update(total.right)
    _note(found, total.margin, total.degenerate, total.unresolved)
    return made


def _changes(step: Settled) -> NDArray[np.bool_]:
    """Return (K,) whether some matrix is not orthogonal, or some number not of modulus 1, but for rows that are 0."""
    changed = np.zeros(len(step.margin), bool)
    for matrix in (*step.left.values(), *step.right.values()):
        if matrix.ndim == 3:
            size = (matrix * matrix).sum(axis=-1)
            off = np.where(size > 0, size - 1, 0)
        else:
            square = matrix @ matrix.swapaxes(-1, -2)
            kept = (matrix != 0).any(axis=-1)
            off = square - kept[..., None] * np.eye(matrix.shape[-1])
        changed |= np.abs(off).reshape(len(changed), -1).max(axis=1, initial=0) > STILL
    return changed


def _scale(arrays: dict[str, NDArray[Any]], symmetry: Symmetry, table: Symmetry, found: Settled) -> None:
    """Bring channels to unit norm, in place; where matrices are in between, with these at unit norm too."""
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
        for name, actions in _by_tensor(table):
            if is_float(arrays[name]):
                arrays[name][...] = transform(arrays[name], actions, step, table)
        if all((scale == 1).all() for scale in solved.scales.values()):
            break
    else:
        found.unresolved[:] |= chained != []
    found.scales.update({group.id: total.scales[group.id] for group in symmetry.groups if group.resizes})


def _chained(symmetry: Symmetry, table: Symmetry) -> list[Group]:
    """Return the groups of invertible matrices that tensors read which write channels with scales."""
    reading: set[str] = set()
    for _, actions in _by_tensor(symmetry):
        if any(table[segment.group].scaled for act in actions for segment in act.segments if act.exponent == 1):
            reading |= {mixed.group for mixed in mixed_channels(actions, symmetry) if mixed.inverted}
    if reading:  # what writes these may read others, whose matrices it depends on
        before: set[str] = set()
        while before != reading:
            before = set(reading)
            for _, actions in _by_tensor(symmetry):
                mixed = mixed_channels(actions, symmetry)
                if any(item.group in before and not item.inverted for item in mixed):
                    reading |= {item.group for item in mixed if item.inverted}
    return [group for group in symmetry.groups if group.scale == "linear" and group.id in reading]


def _on_two_axes(group: Group, symmetry: Symmetry) -> bool:
    """Whether a tensor has the same matrices on two axes."""
    return any(
        len({item.axis for item in mixed_channels(actions, symmetry) if item.group == group.id}) > 1
        for _, actions in _by_tensor(symmetry)
    )


def _whitened(arrays: Arrays, groups: list[Group], symmetry: Symmetry) -> dict[str, NDArray[Any]]:
    """Return the weights with orthonormal rows in what writes these groups.

    Directions that weights do not reach are those that biases reach, and those that nothing reaches become 0.
    """
    made = dict(arrays)
    for group in groups:
        written = joined_rows(made, group, symmetry, inverted=False)
        precision = _precision(arrays, group, symmetry)
        left, right, rank = _white(written, precision)
        short = (rank < written.shape[-2]).any(axis=1)
        if short.any():
            wide = joined_rows(made, group, symmetry, inverted=False, biases=True)[short]
            left[short], right[short], _ = _white(wide, precision)
        _multiply(made, group.id, left, right, symmetry, copy=True)
    return made


def _white(A: NDArray[np.float64], precision: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return the symmetric matrix that gives A (..., k, m) orthonormal rows, its inverse, both within what A reaches,
    and the rank.
    """
    U, values, _ = np.linalg.svd(A, full_matrices=False)
    kept = are_kept(values, precision)
    inverse = np.divide(1, values, out=np.zeros_like(values), where=kept)
    left, right = (U * item[..., None, :] @ U.swapaxes(-1, -2) for item in (inverse, np.where(kept, values, 0)))
    return left, right, kept.sum(axis=-1)


def _balance(
    arrays: dict[str, NDArray[Any]], group: Group, symmetry: Symmetry, found: Settled, precision: float
) -> Balance:
    written, read = (joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True))
    made = balance(written, read, precision)
    short = (made.degenerate > 0).any(axis=1)
    if short.any():  # biases may reach where the weights do not
        wide = [joined_rows(arrays, group, symmetry, inverted=side, biases=True)[short] for side in (False, True)]
        again = balance(wide[0], wide[1], precision)
        for name in ("left", "right", "values", "rank", "margin", "degenerate", "unresolved"):
            getattr(made, name)[short] = getattr(again, name)
    _note(found, made.margin, made.degenerate, np.zeros(made.margin.shape, bool))
    found.left[group.id], found.right[group.id] = made.left, made.right
    _multiply(arrays, group.id, made.left, made.right, symmetry)
    return made


def _resolve(arrays: dict[str, NDArray[Any]], group: Group, made: Balance, symmetry: Symmetry, found: Settled) -> None:
    """Settle the rows of equal singular values, once streams have their basis."""
    precision = _precision(arrays, group, symmetry)
    if (made.margin >= equal_below(precision)).all():
        return
    written, read = (joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True))
    turns, unresolved = resolve_equal(written, read, made.values, precision)
    _note(found, made.margin, np.zeros(made.margin.shape, np.int64), unresolved)
    if (turns != np.eye(turns.shape[-1])).any():
        for side in (found.left, found.right):
            side[group.id] = turns @ side[group.id]
        _multiply(arrays, group.id, turns, turns, symmetry)


def _turn(arrays: dict[str, NDArray[Any]], group: Group, symmetry: Symmetry, found: Settled, precision: float) -> None:
    written, read = (joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True))
    sides = [side[..., 0, :] + 1j * side[..., 1, :] for side in (written, read)]
    made = balance_complex(sides[0], sides[1], precision)
    _note(found, np.where(made.degenerate, np.inf, made.margin), made.degenerate.astype(np.int64), made.unresolved)
    left, right = (np.stack([side.real, side.imag], axis=-1) for side in (made.left, made.right))
    found.left[group.id], found.right[group.id] = left, right
    _multiply(arrays, group.id, left, right, symmetry)


def _rotate(arrays: dict[str, NDArray[Any]], group: Group, symmetry: Symmetry, found: Settled) -> None:
    axes, lacking = basis_of_stream(arrays, group, symmetry)
    _note(found, axes.margin, np.zeros(axes.margin.shape, np.int64), axes.unresolved | (lacking > 0))
    found.left[group.id] = found.right[group.id] = axes.matrix
    _multiply(arrays, group.id, axes.matrix, axes.matrix, symmetry)


def basis_of_stream(arrays: Arrays, group: Group, symmetry: Symmetry) -> tuple[StreamAxes, NDArray[np.int64]]:
    """Return the matrices (K, blocks, k, k) into the basis of a stream's variance, and how many signs are not settled.

    Raises ``SymmetryError`` where no tensor writes the channels with a weight.
    """
    mean, precision = group.scale == "orthogonal_mean", _precision(arrays, group, symmetry)
    writers = list(_writers(group, symmetry))
    if not any(symmetry.actions[at].in_mass for at, _ in writers):
        raise SymmetryError(
            f"symmetry table: group {group.id!r}: expected a weight that writes its channels, got none. "
            "Trace the module again, or declare the group without matrices."
        )
    shape = group.matrix_shape
    assert shape is not None
    blocks, k = shape[:2]
    total = np.zeros((len(next(iter(arrays.values()))), blocks, k, k))
    for at, mixed in writers:
        if symmetry.actions[at].in_mass:
            _add_gram(arrays[symmetry.actions[at].tensor], mixed, total)
    axes = stream_axes(total, precision, mean=mean)
    matrix, lacking = axes.matrix, np.ones(axes.margin.shape, np.int64)
    for at, mixed in writers:
        tensor = symmetry.actions[at].tensor
        if len(symmetry.actions_on(tensor)) == 1 and (lacking > 0).any():
            # the first tensor settles all signs, but where its sums vanish
            settled, left = settle_signs(matrix, _rows(arrays[tensor], mixed), precision, mean=mean)
            matrix = np.where((lacking > 0)[..., None, None], settled, matrix)
            lacking = np.minimum(lacking, left) if lacking.any() else lacking
    return replace(axes, matrix=matrix), lacking


def _writers(group: Group, symmetry: Symmetry) -> Iterator[tuple[int, MixedChannels]]:
    """Yield what writes the channels of a group itself, with the number of the action."""
    for at, action in enumerate(symmetry.actions):
        own = {segment.group for segment in action.segments}
        if group.id not in own:
            continue
        for mixed in mixed_channels((action,), symmetry):
            if mixed.group == group.id and not mixed.inverted:
                yield at, mixed


def _note(
    found: Settled, margin: NDArray[np.float64], degenerate: NDArray[np.int64], unresolved: NDArray[np.bool_]
) -> None:
    axes = tuple(range(1, margin.ndim))
    found.margin[:] = np.minimum(found.margin, margin.min(axis=axes, initial=np.inf))
    found.degenerate[:] += degenerate.sum(axis=axes)
    found.unresolved[:] |= unresolved.any(axis=axes)


def _by_tensor(symmetry: Symmetry) -> Iterator[tuple[str, tuple[AxisAction, ...]]]:
    for name in dict.fromkeys(action.tensor for action in symmetry.actions):
        yield name, symmetry.actions_on(name)


def _acts(action: AxisAction, group: str, symmetry: Symmetry) -> bool:
    """Whether a group's matrices may act on an axis; ``mixed_channels`` lists the channels, but takes longer."""
    names = action.listed_groups
    return group in names or any(symmetry.leader(name).id == group for name in names)


def joined_rows(
    arrays: Arrays, group: Group, symmetry: Symmetry, *, inverted: bool, biases: bool = False
) -> NDArray[np.float64]:
    """Return all that is written or read by a group's channels side by side, (K, blocks, k, m) float64."""
    parts: list[NDArray[np.float64]] = []
    for name, actions in _by_tensor(symmetry):
        for action in actions:
            if (biases or action.in_mass) and _acts(action, group.id, symmetry):
                parts += [
                    _rows(arrays[name], mixed)
                    for mixed in mixed_channels((action,), symmetry)
                    if mixed.group == group.id and mixed.inverted == inverted
                ]
    if not parts:
        shape = group.matrix_shape
        assert shape is not None
        K, sizes = len(next(iter(arrays.values()))), shape[:2] if len(shape) == 3 else (group.n, 2)
        return np.zeros((K, *sizes, 1))
    return np.concatenate(parts, axis=-1)


def _rows(array: NDArray[Any], mixed: MixedChannels) -> NDArray[np.float64]:
    """Return the weights of each channel in a tensor, (K, blocks, k, m) float64."""
    moved = np.moveaxis(array, mixed.axis + 1, 1)
    taken = moved[:, mixed.places]  # (K, blocks, k, positions, ...)
    return taken.reshape(*taken.shape[:3], -1).astype(np.float64)


def _add_gram(array: NDArray[Any], mixed: MixedChannels, total: NDArray[np.float64]) -> None:
    """Add W W^T of a tensor's channels, a piece at a time."""
    blocks, k, count = mixed.places.shape
    moved = np.moveaxis(array, mixed.axis + 1, 1)
    flat = moved.reshape(len(moved), moved.shape[1], -1)
    step = max(1, GRAM // (blocks * k * count))
    for at, one in enumerate(flat):
        for start in range(0, flat.shape[2], step):
            piece = one[mixed.places.ravel(), start : start + step].astype(np.float64)
            piece = piece.reshape(blocks, k, -1)
            total[at] += piece @ piece.swapaxes(-1, -2)


def _precision(arrays: Arrays, group: Group, symmetry: Symmetry) -> float:
    """Return the largest machine epsilon of the tensors that a group acts on."""
    tensors = {action.tensor for action in symmetry.actions if group.id in action.groups}
    return max(float(np.finfo(arrays[name].dtype).eps) for name in tensors)


def _multiply(
    arrays: dict[str, NDArray[Any]],
    group: str,
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    symmetry: Symmetry,
    *,
    copy: bool = False,
) -> None:
    """Multiply what is written by one matrix and what is read by the other, in place or in new arrays."""
    for name, actions in _by_tensor(symmetry):
        if not any(_acts(action, group, symmetry) for action in actions):
            continue
        mixed = [item for item in mixed_channels(actions, symmetry) if item.group == group]
        if not mixed:
            continue
        target = arrays[name].copy() if copy else arrays[name]
        step = max(1, GRAM // max(1, math.prod(target.shape[1:])))
        for start in range(0, len(target), step):
            some = slice(start, start + step)
            work = np.array(target[some], np.float64)
            for item in mixed:
                side = right if item.inverted else left
                multiply(work, [replace(item, inverted=False)], {group: side[some]})
            target[some] = work
        arrays[name] = target

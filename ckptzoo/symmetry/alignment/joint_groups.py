"""The groups that are permuted jointly, which alignment visits in turn, and the tensors that they permute.

A joint group is a symmetric group and those that are ``Like`` it, or all wreath groups that share a block permutation.
Each axis that they permute gives a view of its tensor by channels.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.arrays import by_channel, positions
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.kind import Turn
from ckptzoo.symmetry.kinds.registry import matrix_kind_of, permutations_of, within_blocks_of
from ckptzoo.symmetry.matrix_action import MixedChannels, mixed_channels, multiply
from ckptzoo.symmetry.ordering import leaders

_PIECE = 2**15
"""Elements that are multiplied in float64 at a time: both factors stay in a core's second-level cache."""
Arrays = Mapping[str, NDArray[np.floating]]
"""Tensor name to (K, *shape)."""


@dataclass(frozen=True, eq=False)
class ChannelView:
    """One axis of one tensor, as the channels of one group meet it.

    ``leader`` is the id of the group whose permutation it is. ``listings`` are positions (n, inner) of the channels, on
    an axis with blocks counted through all of them. ``others`` are the actions on the tensor's other axes, and
    ``applied`` those of them whose permutations, of other groups, are applied before channels are compared.
    """

    action: AxisAction
    leader: str
    listings: tuple[NDArray[np.int64], ...]
    others: tuple[AxisAction, ...]
    applied: tuple[AxisAction, ...]

    def slices(self, array: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the slices (K, n, features) of the channels in a tensor (K, *shape)."""
        channels = by_channel(array, self.action)
        size = channels.shape[1] * channels.shape[2]
        channels = channels.reshape(len(array), size, -1)
        parts = [
            channels
            if places.shape == (size, 1) and np.array_equal(places[:, 0], np.arange(size))
            else channels[:, places].reshape(len(array), len(places), -1)
            for places in self.listings
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)

    def sorted_slices(self, array: NDArray[np.floating], symmetry: Symmetry) -> NDArray[np.floating]:
        """Return ``slices``, sorted along the other axes that permutations move: no other permutation changes them."""
        moving = [action for action in self.others if _moves(action, symmetry)]
        for action in moving[:1] if len(moving) == 1 else []:
            array = _sorted_along(array, action, self.action, symmetry)
        if len(moving) <= 1:
            return self.slices(array)
        # sums of products of values in any order along both axes are at most those of values sorted along both at once
        found = self.slices(array)
        return np.sort(found, axis=2)


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor on two axes of which a block permutation moves the blocks, and channels move within them.

    ``rows`` and ``columns`` are the views of axis 0 and of the axis with blocks.
    """

    rows: ChannelView
    columns: ChannelView


@dataclass(frozen=True, eq=False)
class JointGroups:
    """Groups that are permuted together: one symmetric group, or the wreath groups of one block permutation.

    Parameters
    ----------
    g
        the number of blocks; 1 for a symmetric group.
    views
        by group, those that are linear in its permutation while all others stay.
    pairs
        tensors in which two of the groups meet within blocks.
    quadratic
        names of tensors that are permuted on two axes otherwise; their views are linear only where the other axis
        stays.
    """

    groups: tuple[Group, ...]
    g: int
    views: Mapping[str, tuple[ChannelView, ...]]
    pairs: tuple[Pair, ...]
    quadratic: frozenset[str]
    symmetry: Symmetry

    @cached_property
    def is_alone(self) -> bool:
        """Whether no other permutation moves what it moves, so that one assignment is exact."""
        moving = (action for view in self.all_views() for action in view.applied)
        return not self.pairs and not self.quadratic and not any(_moves(action, self.symmetry) for action in moving)

    @property
    def is_exact(self) -> bool:
        """Whether its best permutations stay the best ones while others do: no two of its groups or axes meet."""
        return not (self.pairs or self.quadratic)

    @cached_property
    def turn(self) -> Turn:
        """The first turn of its groups."""
        return min(within_blocks_of(group).turn(group) for group in self.groups)

    @property
    def family(self) -> set[str]:
        """Its groups, and those that are like them."""
        return {item.id for group in self.groups for item in self.symmetry.family(group.id)}

    @cached_property
    def tensors(self) -> set[str]:
        """Names of the tensors that the groups move."""
        return {view.action.tensor for view in self.all_views()}

    def all_views(self) -> Iterator[ChannelView]:
        """Yield the views of all groups, and of pairs."""
        for views in self.views.values():
            yield from views
        for pair in self.pairs:
            yield from (pair.rows, pair.columns)

    def views_of(self, group: Group, only: str | None = None) -> Iterator[ChannelView]:
        """Yield the views of a group, or of one that is like it, without gains, on which matrices do not act."""
        for view in self.views[group.id]:
            if matrix_kind_of(group) and view.action.role == "gain":
                continue
            if only is None:
                yield view
            elif listed := tuple(places for name, places in positions(view.action, self.symmetry) if name == only):
                yield replace(view, listings=listed)


def joint_groups_of(symmetry: Symmetry, tensors: Collection[str], *, in_place: bool = False) -> tuple[JointGroups, ...]:
    """Return the joint groups of a table that permute some of these tensors, in its order.

    With ``in_place`` groups that keep their order, and have signs, are among them. Raises ``SymmetryError`` where a
    group permutes positions inside the channels of another one.
    """
    for _, inside in symmetry.nested:
        expected = "groups that permute no positions inside the channels of another one"
        step = "Keep the order of the channels that have others inside: ckptzoo.symmetry.unnested(table)."
        raise SymmetryError(Problem("alignment", f"group {inside!r}", expected, "one", step))
    together: dict[str, list[Group]] = {}
    for group in leaders(symmetry):
        name = permutations_of(group).together(group)
        if name is None and (within_blocks_of(group).part != "perms" or (in_place and group.flips)):
            name = group.id
        if name is not None:
            together.setdefault(name, []).append(group)
    found = (_joint(groups, symmetry, tensors) for groups in together.values())
    return tuple(joint for joint in found if joint.tensors)


def put(element: GroupElement, found: GroupElement, rows: NDArray[np.int64] | slice, symmetry: Symmetry) -> None:
    """Put elements of some groups into some networks, in place; groups that are like them take the permutations."""
    perms = {member.id: perm for name, perm in found.perms.items() for member in symmetry.family(name)}
    element.put(rows, replace(found, perms=perms))


def products(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return (K,) inner products of stacked tensors, summed in float64; the first may be (1, *shape)."""
    one, other = (array.reshape(len(array), -1) for array in (first, second))
    found, step = np.empty(len(other)), max(1, _PIECE // max(1, other.shape[1]))
    for start in range(0, len(other), step):
        some = slice(start, start + step)
        ours = other[some].astype(np.float64)
        theirs = ours if first is second else one[some if len(one) > 1 else slice(1)].astype(np.float64)
        # a sum along contiguous rows adds each row in an order of its own; einsum's depends on the number of rows
        found[some] = np.multiply(ours, theirs, out=ours).sum(axis=1)
    return found


def placed(
    array: NDArray[np.floating],
    actions: Sequence[AxisAction],
    element: GroupElement,
    symmetry: Symmetry,
    *,
    orthogonal: bool = True,
) -> NDArray[np.floating]:
    """Return a stacked tensor under some of its actions; the array itself where elements leave it alone.

    Scales act beside matrices alone, where they are signs; ``orthogonal`` matrices are their own inverse transposes.
    """
    names = sorted({name for action in actions for name in action.groups})
    if not names:
        return array
    signs = {name: element.scales[name] for name in names if name in element.scales} if element.matrices else {}
    found = transform(array, actions, GroupElement({name: element.perms[name] for name in names}, signs), symmetry)
    return mixed(found, actions, element.matrices, symmetry, orthogonal=orthogonal) if element.matrices else found


def mixed(
    array: NDArray[np.floating],
    actions: Sequence[AxisAction],
    matrices: Mapping[str, NDArray[np.float64]],
    symmetry: Symmetry,
    *,
    orthogonal: bool = True,
) -> NDArray[np.floating]:
    """Return a stacked tensor whose channels are mixed by the matrices of some groups."""
    channels: list[MixedChannels] = [item for item in mixed_channels(actions, symmetry) if item.group in matrices]
    if not channels:
        return array
    work = np.array(array, np.float64, order="C")
    multiply(work, [replace(item, inverted=False) for item in channels] if orthogonal else channels, matrices)
    return work


def _joint(groups: list[Group], symmetry: Symmetry, tensors: Collection[str]) -> JointGroups:
    ids = {group.id for group in groups}
    blocks = permutations_of(groups[0]).blocks(groups[0])
    views: dict[str, list[ChannelView]] = {group.id: [] for group in groups}
    pairs: list[Pair] = []
    quadratic: set[str] = set()
    for tensor in dict.fromkeys(action.tensor for action in symmetry.actions if action.tensor in tensors):
        actions = symmetry.actions_on(tensor)
        own = [action for action in actions if _leaders(action, symmetry) & ids]
        if not own:
            continue
        found = [list(_views(action, actions, own, ids, symmetry)) for action in own]
        if len(own) == 1:
            for view in found[0]:
                views[view.leader].append(view)
            continue
        rows, columns = found[0][0], found[-1][0]
        if len(own) == 2 and blocks > 1 and columns.action.blocks == blocks:
            inside = [_moving_inside(symmetry[view.leader], blocks) for view in (rows, columns)]
            if 1 in inside:
                # within a block only the channels of one side move: linear in those
                view = rows if inside[1] == 1 else columns
                views[view.leader].append(view)
            else:
                pairs.append(Pair(rows, columns))
            continue
        quadratic.add(tensor)
        for view in (view for axis in found for view in axis):
            other_axes = tuple(action for action in actions if action is not view.action)
            views[view.leader].append(ChannelView(view.action, view.leader, view.listings, view.others, other_axes))
    kept = {name: tuple(listed) for name, listed in views.items()}
    return JointGroups(tuple(groups), blocks, kept, tuple(pairs), frozenset(quadratic), symmetry)


def _views(
    action: AxisAction, actions: Sequence[AxisAction], own: Sequence[AxisAction], ids: set[str], symmetry: Symmetry
) -> Iterator[ChannelView]:
    """Yield the views of one axis: one for each of the joint groups there."""
    listings: dict[str, list[NDArray[np.int64]]] = {}
    for group, places in positions(action, symmetry):
        leader = symmetry.leader(group).id
        if leader in ids:
            listings.setdefault(leader, []).append(places)
    others = tuple(other for other in actions if other is not action)
    applied = tuple(other for other in others if other not in own)
    for leader, listed in listings.items():
        yield ChannelView(action, leader, tuple(listed), others, applied)


def _leaders(action: AxisAction, symmetry: Symmetry) -> set[str]:
    return {symmetry.leader(segment.group).id for segment in action.segments}


def _moving_inside(group: Group, blocks: int) -> int:
    """Return how many channels of a block may change places; 1 where they keep their order."""
    return 1 if permutations_of(group).keeps_order(group) else group.n // blocks


def _moves(action: AxisAction, symmetry: Symmetry) -> bool:
    """Whether permutations move anything on an axis."""
    return any(is_moved(symmetry[leader]) for leader in _leaders(action, symmetry))


def is_moved(group: Group) -> bool:
    """Whether permutations move channels of a group."""
    return group.n > 1 and permutations_of(group).together(group) is not None


def _sorted_along(
    array: NDArray[np.floating], action: AxisAction, own: AxisAction, symmetry: Symmetry
) -> NDArray[np.floating]:
    """Return a tensor sorted along another axis: channels among those of their group, or of their block.

    Channels that keep their order within their block are sorted block by block.
    """
    axis = action.axis + 1
    blocks = max(action.blocks, own.blocks if action.axis == 0 else 1)
    kinds = [(permutations_of(group), group) for group in (symmetry[leader] for leader in _leaders(action, symmetry))]
    if blocks > 1 and all(kind.keeps_order(group) and kind.blocks(group) == blocks for kind, group in kinds):
        return array  # nothing moves within a block
    if action.blocks > 1:  # positions of the axis itself are those of one block
        return np.sort(array, axis=axis)
    if own.blocks > 1 and action.axis == 0:
        split = array.reshape(len(array), own.blocks, -1, *array.shape[2:])
        return np.sort(split, axis=2).reshape(array.shape)
    result = array.copy()
    for group, places in positions(action, symmetry):
        leader = symmetry.leader(group)
        kind = permutations_of(leader)
        if kind.together(leader) is not None:
            if kind.keeps_order(leader):
                places = places.reshape(kind.blocks(leader), -1)  # a block moves as one channel does
            # each of a channel's positions is compared with the same one of the others
            taken = np.take(array, places, axis=axis)
            np.moveaxis(result, axis, 0)[places] = np.moveaxis(np.sort(taken, axis=axis), (axis, axis + 1), (0, 1))
    return result

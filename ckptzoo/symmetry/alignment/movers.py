"""What is permuted together, and the tensors in which it is: the parts of a table that alignment goes through in turn.

A *mover* is a symmetric group with those that are ``Like`` it, or all wreath groups that share a block permutation. Its
*faces* are the axes on which it acts: each lists the channels of one group, and what belongs to each channel.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.symmetry import AxisAction, Fixed, Group, Symmetry, Wreath
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.arrays import by_channel, positions
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.ordering import leaders

Arrays = Mapping[str, NDArray[np.floating]]
"""Tensor name to (K, *shape)."""


@dataclass(frozen=True, eq=False)
class Face:
    """One axis of one tensor, as the channels of one group meet it.

    Parameters
    ----------
    action : what the group does there.
    leader : id of the group whose permutation it is.
    listings : every listing of the channels: positions (n, inner), on an axis with blocks counted through all of them.
    others : the actions on the tensor's other axes.
    applied : of these the ones whose permutations are applied before channels are compared: those of other movers.
    """

    action: AxisAction
    leader: str
    listings: tuple[NDArray[np.int64], ...]
    others: tuple[AxisAction, ...]
    applied: tuple[AxisAction, ...]

    def slices(self, array: NDArray[np.floating]) -> NDArray[np.floating]:
        """What belongs to each channel: (K, n, features) of a tensor (K, *shape)."""
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
        """As ``slices``, each sorted along the other axes that permutations move: no other permutation changes them."""
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

    Parameters
    ----------
    rows, columns : the faces of axis 0 and of the axis with blocks.
    """

    rows: Face
    columns: Face


@dataclass(frozen=True, eq=False)
class Mover:
    """Groups that are permuted together.

    Parameters
    ----------
    groups : one symmetric group, or the wreath groups of one block permutation.
    g : blocks; 1 for a symmetric group.
    faces : by group, those that are linear in its permutation while all others stay.
    pairs : tensors in which two groups of the mover meet within blocks.
    quadratic : names of tensors in which the mover acts on two axes otherwise; their faces are linear only where the
        other axis stays.
    symmetry : the table.
    """

    groups: tuple[Group, ...]
    g: int
    faces: Mapping[str, tuple[Face, ...]]
    pairs: tuple[Pair, ...]
    quadratic: frozenset[str]
    symmetry: Symmetry

    @cached_property
    def is_alone(self) -> bool:
        """Whether no other permutation moves what it moves, so that one assignment is exact."""
        moving = (action for face in self.all_faces() for action in face.applied)
        return not self.pairs and not self.quadratic and not any(_moves(action, self.symmetry) for action in moving)

    @cached_property
    def tensors(self) -> set[str]:
        """Names of the tensors that it moves."""
        return {face.action.tensor for face in self.all_faces()}

    def all_faces(self) -> Iterator[Face]:
        """Those of all groups, and of pairs."""
        for faces in self.faces.values():
            yield from faces
        for pair in self.pairs:
            yield from (pair.rows, pair.columns)


def movers_of(symmetry: Symmetry, tensors: Collection[str]) -> tuple[Mover, ...]:
    """The movers of a table that act on some of these tensors, in its order."""
    together: dict[str, list[Group]] = {}
    for group in leaders(symmetry):
        if isinstance(group.perm, Wreath):
            together.setdefault(f"*{group.perm.outer}", []).append(group)
        elif not isinstance(group.perm, Fixed) and group.n > 1:
            together[group.id] = [group]
    movers = (_mover(groups, symmetry, tensors) for groups in together.values())
    return tuple(mover for mover in movers if mover.tensors)


def neighbours_of(movers: Sequence[Mover]) -> list[list[int]]:
    """For each mover the places of the others that act on one of its tensors."""
    tensors = [mover.tensors for mover in movers]
    return [
        [other for other in range(len(movers)) if other != place and tensors[other] & tensors[place]]
        for place in range(len(movers))
    ]


def moved(
    array: NDArray[np.floating], actions: Sequence[AxisAction], element: GroupElement, symmetry: Symmetry
) -> NDArray[np.floating]:
    """A stacked tensor with the permutations of some of its actions; the array itself where they leave it alone."""
    names = {name for action in actions for name in action.groups}
    if not names:
        return array
    return transform(array, actions, GroupElement({name: element.perms[name] for name in sorted(names)}, {}), symmetry)


def _mover(groups: list[Group], symmetry: Symmetry, tensors: Collection[str]) -> Mover:
    ids = {group.id for group in groups}
    first = groups[0].perm
    blocks = first.g if isinstance(first, Wreath) else 1
    faces: dict[str, list[Face]] = {group.id: [] for group in groups}
    pairs: list[Pair] = []
    quadratic: set[str] = set()
    for tensor in dict.fromkeys(action.tensor for action in symmetry.actions if action.tensor in tensors):
        actions = symmetry.actions_on(tensor)
        own = [action for action in actions if _leaders(action, symmetry) & ids]
        if not own:
            continue
        found = [list(_faces(action, actions, own, ids, symmetry)) for action in own]
        if len(own) == 1:
            for face in found[0]:
                faces[face.leader].append(face)
            continue
        rows, columns = found[0][0], found[-1][0]
        if len(own) == 2 and blocks > 1 and columns.action.blocks == blocks:
            inside = [symmetry[face.leader].n // blocks for face in (rows, columns)]
            if 1 in inside:
                # within a block only the channels of one side move: linear in those
                face = rows if inside[1] == 1 else columns
                faces[face.leader].append(face)
            else:
                pairs.append(Pair(rows, columns))
            continue
        quadratic.add(tensor)
        for face in (face for axis in found for face in axis):
            other_axes = tuple(action for action in actions if action is not face.action)
            faces[face.leader].append(Face(face.action, face.leader, face.listings, face.others, other_axes))
    kept = {name: tuple(listed) for name, listed in faces.items()}
    return Mover(tuple(groups), blocks, kept, tuple(pairs), frozenset(quadratic), symmetry)


def _faces(
    action: AxisAction, actions: Sequence[AxisAction], own: Sequence[AxisAction], ids: set[str], symmetry: Symmetry
) -> Iterator[Face]:
    """The faces of one axis: one for each group of the mover there."""
    listings: dict[str, list[NDArray[np.int64]]] = {}
    for group, places in positions(action, symmetry):
        leader = symmetry.leader(group).id
        if leader in ids:
            listings.setdefault(leader, []).append(places)
    others = tuple(other for other in actions if other is not action)
    applied = tuple(other for other in others if other not in own)
    for leader, listed in listings.items():
        yield Face(action, leader, tuple(listed), others, applied)


def _leaders(action: AxisAction, symmetry: Symmetry) -> set[str]:
    return {symmetry.leader(segment.group).id for segment in action.segments}


def _moves(action: AxisAction, symmetry: Symmetry) -> bool:
    """Whether permutations move anything on an axis."""
    return any(
        not isinstance(symmetry[leader].perm, Fixed) and symmetry[leader].n > 1 for leader in _leaders(action, symmetry)
    )


def _sorted_along(
    array: NDArray[np.floating], action: AxisAction, own: AxisAction, symmetry: Symmetry
) -> NDArray[np.floating]:
    """A tensor sorted along another axis: channels among those of their group; on axes with blocks, of their block."""
    axis = action.axis + 1
    if action.blocks > 1:  # positions of the axis itself are those of one block
        return np.sort(array, axis=axis)
    if own.blocks > 1 and action.axis == 0:
        split = array.reshape(len(array), own.blocks, -1, *array.shape[2:])
        return np.sort(split, axis=2).reshape(array.shape)
    result = array.copy()
    for group, places in positions(action, symmetry):
        if not isinstance(symmetry.leader(group).perm, Fixed):
            # each of a channel's positions is compared with the same one of the others
            taken = np.take(array, places, axis=axis)
            np.moveaxis(result, axis, 0)[places] = np.moveaxis(np.sort(taken, axis=axis), (axis, axis + 1), (0, 1))
    return result

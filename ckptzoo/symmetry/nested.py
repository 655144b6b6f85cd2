"""Groups whose channels have others inside, and the two tables that such a table is made of.

Examples are heads of queries that share heads of keys and values: heads move in the blocks of those that share, and the
permutations and matrices of a shared head act inside each of them (``Segment.within``). Every element of the table is
one of ``unnested``, whose heads keep their order within their block, before one of ``within_blocks``, which permutes
these alone.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import Listing, listings
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.permutation import block_move
from ckptzoo.symmetry.tables import Arch, table_of


def is_nested(symmetry: Symmetry) -> bool:
    """Whether a group acts inside the channels of another one."""
    return bool(_outside(symmetry))


@checked
def unnested(symmetry: Arch) -> Symmetry:
    """The table of the symmetries that keep the order of heads of queries that share a head of keys and values.

    Heads of keys and values are permuted with all heads of queries that share them, and everything else is as before:
    a subgroup, which what takes no group inside the channels of another one can take. A table without such groups is
    returned as it is.

    Parameters
    ----------
    symmetry
        the table. Of a group of n channels in g blocks, inside which another group acts (``Segment.within``), every
        listing becomes ``n / g`` listings of the other group, one for each place in a block; elsewhere its channels
        are permuted by whole blocks.

    Returns
    -------
    Symmetry
        A table for the same tensors, (K, *shape), with as many scales and matrices. A group that is on no axis any more
        is left out.

    Notes
    -----
    Linear in the number of channels. Of the permutations ``((n / g)!) ** g`` are lost for each such group.
    Tested in tests/symmetry/test_nested.py: its elements do what those of the table do.

    Examples
    --------
    >>> from ckptzoo.schema.groups import AxisAction, Group, Segment, Wreath
    >>> from ckptzoo.schema.symmetry import Symmetry
    >>> groups = (Group("kv", 6, Wreath("heads", 2, 3), "none"), Group("q", 4, Wreath("heads", 2, 2), "none"))
    >>> queries = AxisAction("W_q", 0, (Segment("q", 0, 3, 4, within="kv"),), 1, True, "out")
    >>> keys = AxisAction("W_k", 0, (Segment("kv", 0, 1, 6),), -1, True, "out")
    >>> table = unnested(Symmetry(groups, (queries, keys)))
    >>> [group.id for group in table.groups], [item.offset for item in table.actions_on("W_q")[0].segments]
    (['kv'], [0, 6, 3, 9])
    """
    symmetry = table_of(symmetry)
    outside = _outside(symmetry)
    if not outside:
        return symmetry
    actions = tuple(_with_inner_groups(action, symmetry) for action in symmetry.actions)
    used = {name for action in actions for name in action.groups}
    groups: list[Group] = []
    for group in symmetry.groups:
        leader = symmetry.leader(group.id)
        if leader.id in outside:
            assert isinstance(leader.perm, Wreath)
            group = replace(group, perm=replace(leader.perm, inner="fixed"))
        if group.id in used:
            groups.append(group)
    return replace(symmetry, groups=tuple(groups), actions=actions)


def within_blocks(symmetry: Symmetry) -> Symmetry | None:
    """Return the table of the permutations of channels with others inside, within their blocks: one group for a block.

    None where there are none of these. Raises ``SymmetryError`` where the channels of such a group are inside those of
    another one, too.
    """
    moving = moving_within(symmetry)
    if not moving:
        return None
    for _, inside in symmetry.nested:
        if inside in moving:
            what, expected = f"group {inside!r}", "channels that have others inside, or are inside others"
            step = "Keep their order: ckptzoo.symmetry.unnested(table)."
            raise SymmetryError(Problem("alignment", what, expected, "both", step))
    actions: list[AxisAction] = []
    rests: list[Group] = []
    for action in symmetry.actions:
        segments: list[Segment] = []
        listed = listings(action, symmetry)
        for item in (item for item in listed if symmetry.leader(item.group).id in moving):
            k = _blocks_of(item.group, symmetry).k
            for channel, places in enumerate(item.places):
                segments.append(Segment(f"{item.group}.{channel // k}", int(places[0]), len(places), 1))
        if not segments:
            continue
        if action.blocks > 1:  # an axis with blocks is listed without a hole
            places = [item.places.ravel() for item in listed if symmetry.leader(item.group).id not in moving]
            if rest := [int(place) for some in places for place in some]:
                rests.append(Group(f"{action.tensor}.{action.axis}.rest", len(rest), Fixed(), "none"))
                segments += [Segment(rests[-1].id, place, 1, 1) for place in rest]
        actions.append(
            AxisAction(action.tensor, action.axis, tuple(segments), 0, action.in_mass, action.role, action.blocks)
        )
    used = {name for action in actions for name in action.groups}
    groups: list[Group] = []
    for group in symmetry.groups:
        if (leader := symmetry.leader(group.id).id) in moving:
            blocks = _blocks_of(leader, symmetry)
            for block in range(blocks.g):
                perm = Sym() if group.id == leader else Like(f"{leader}.{block}")
                groups.append(Group(f"{group.id}.{block}", blocks.k, perm, "none"))
    kept = (*(group for group in groups if group.id in used), *rests)
    return Symmetry(kept, tuple(actions), tied=symmetry.tied)


def moving_within(symmetry: Symmetry) -> list[str]:
    """Return the groups whose channels have others inside and change places within their blocks."""
    found: list[str] = []
    for name in sorted(_outside(symmetry)):
        blocks = _blocks_of(name, symmetry)
        if blocks.inner == "free" and blocks.k > 1:
            found.append(name)
    return found


def from_unnested(element: GroupElement, symmetry: Symmetry) -> GroupElement:
    """Return elements of ``unnested`` as elements of the table itself, with the same action."""
    outers: dict[str, np.ndarray] = {}
    for group in symmetry.groups:
        if isinstance(perm := group.perm, Wreath) and group.id in element.perms:
            outers[perm.outer] = element.perms[group.id][:, :: perm.k] // perm.k
    perms = {
        group.id: element.perms[group.id]
        if group.id in element.perms
        else block_move(blocks := _blocks_of(group.id, symmetry), outers[blocks.outer])
        for group in symmetry.groups
    }
    return GroupElement(perms, element.scales, element.matrices)


def from_blocks(element: GroupElement, symmetry: Symmetry) -> GroupElement:
    """Return elements of ``within_blocks`` as elements of the table itself, with the same action."""
    found = GroupElement.identity(symmetry, len(element))
    moving = moving_within(symmetry)
    for group in symmetry.groups:
        if (leader := symmetry.leader(group.id).id) in moving:
            blocks = _blocks_of(leader, symmetry)
            parts = [element.perms[f"{leader}.{block}"] + block * blocks.k for block in range(blocks.g)]
            found.perms[group.id][:] = np.concatenate(parts, axis=1)
    return found


def _outside(symmetry: Symmetry) -> set[str]:
    """Return the groups whose channels have others inside."""
    return {group for group, _ in symmetry.nested}


def _blocks_of(group: str, symmetry: Symmetry) -> Wreath:
    perm = symmetry.leader(group).perm
    assert isinstance(perm, Wreath)
    return perm


def _with_inner_groups(action: AxisAction, symmetry: Symmetry) -> AxisAction:
    """Return the action with the groups inside channels in place of those that have them inside."""
    segments = list(action.without_others_inside.segments)
    if len(segments) == len(action.segments):
        return action
    for item in listings(action, symmetry):
        segments += _inner_segments(item, action, symmetry)
    return replace(action, segments=tuple(segments))


def _inner_segments(item: Listing, action: AxisAction, symmetry: Symmetry) -> Iterator[Segment]:
    """Yield the channels of the group inside those of a listing: once for each place in a block."""
    if item.inside is None:
        return
    name, _ = item.inside
    outside, k = _blocks_of(item.group, symmetry), _blocks_of(name, symmetry).k
    exponent = -action.exponent if item.inverse else None
    taken = item.places.shape[1] // k
    for place in range(outside.k):
        for first in item.places[place :: outside.k, 0]:
            yield Segment(name, int(first), taken, k, exponent, part=item.part)

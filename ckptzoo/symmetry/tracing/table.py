"""From the groups of channels to the symmetry table: its groups, and their actions on the axes of tensors."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.tracing.constraints import (
    FIXED,
    FORBIDDEN,
    NORMED,
    OUTPUT,
    POSITIVE,
    SIGN,
    SINGLE,
    AxisPlacement,
    Constraints,
)
from ckptzoo.symmetry.tracing.groups import (
    NO_SCALE,
    Channel,
    ChannelGroup,
    ChannelPosition,
    channel_groups,
    unique_name,
)
from ckptzoo.symmetry.tracing.union_find import NodeIds

_Positions = dict[tuple[int, int, bool, int], list[list[int]]]
"""The positions of each channel by the number of a group, of a scale among its channels' scales, whether its inverse
acts, and the number of a scale of gates beside it (-1 for none)."""

_Look = tuple[tuple[int, int, str, bool, bool, int], ...]
"""A signature of each position of a channel: the placement, the scale, its kind, whether its sign alone acts,
whether its inverse does, and the gate's scale."""


@dataclass(frozen=True)
class _AxisPart:
    """The positions of a channel group that are scaled alike: one group of the table.

    ``group`` is the number of the channel group, ``scale`` that of the scale among each channel's, -1 where there is
    none. ``writer`` is the placement that writes it first; where none does, the first of the channel group.
    """

    group: int
    scale: int
    kind: str
    writer: int
    first: int


def build_table(
    constraints: Constraints, arch: Architecture
) -> tuple[Symmetry, tuple[str, ...], set[str], dict[str, str]]:
    """Return the symmetry table that the constraints leave, and notes on what keeps groups in place, unscaled or apart.

    The third item are the groups that no operation takes channel by channel, so that matrices may mix their channels;
    the fourth those that an operation takes together, so that orthogonal matrices may, and which one.
    """
    groups = _with_blocks_joined(channel_groups(constraints))
    placements = list(constraints.placements.values())
    parts = sorted(_parts(constraints, groups, placements), key=lambda part: (part.writer, part.first))
    leaders: dict[int, str] = {}
    table_groups: list[Group] = []
    names: dict[tuple[int, int], str] = {}
    notes = list(dict.fromkeys(constraints.notes))
    mixable: set[str] = set()
    normed: dict[str, str] = {}
    for part in parts:
        group, tensor = groups[part.group], placements[part.writer].tensor
        name = unique_name(tensor.rpartition(".")[0] or tensor, names.values())
        names[part.group, part.scale] = name
        fixed = isinstance(group.perm, Fixed)
        perm = group.perm if fixed or part.group not in leaders else Like(leaders[part.group])
        leaders.setdefault(part.group, name)
        table_groups.append(Group(name, len(group.channels), perm, part.kind))
        roots = np.array([channel.root for channel in group.channels])
        if (constraints.channels.marks(roots, SINGLE) < 0).all() and part.kind in ("positive", "nonzero"):
            mixable.add(name)
        if not isinstance(perm, Like) and (reason := constraints.channels.marks(roots, NORMED)).min() >= 0:
            normed[name] = constraints.reasons[reason[0]]
        notes += _notes(constraints, group, part, name, placements)
    flipping = {group.id for group in table_groups if group.flips}
    positions = _positions(groups)
    signs = _positions(groups, signs=True)
    actions = [
        _action(placement, positions.get(number, {}), signs.get(number, {}), names, flipping)
        for number, placement in enumerate(placements)
    ]
    order = {name: number for number, name in enumerate(arch.names)}
    acting = sorted((item for item in actions if item is not None), key=lambda item: (order[item.tensor], item.axis))
    return Symmetry(tuple(table_groups), tuple(acting)), tuple(notes), mixable, normed


def _parts(
    constraints: Constraints, groups: Sequence[ChannelGroup], placements: Sequence[AxisPlacement]
) -> Iterator[_AxisPart]:
    listed = _listed(groups, placements, constraints)
    for number, group in enumerate(groups):
        if number not in listed:
            continue
        # Channels of a group look alike, so that the first one shows them all.
        entries = group.channels[0].entries
        first = group.channels[0].first[0]
        for scale in dict.fromkeys(entry.scale for entry in entries):
            scaled = [entry for entry in entries if entry.scale == scale and not entry.sign]
            if not scaled:  # channels of zeros in front of a normalisation: nothing has their signs but a gain
                continue
            written = [entry.placement for entry in scaled if placements[entry.placement].role != "in"]
            first_here = min(entry.placement for entry in scaled)
            yield _AxisPart(number, scale, scaled[0].kind, min(written, default=first), first_here)


def _listed(groups: Sequence[ChannelGroup], placements: Sequence[AxisPlacement], constraints: Constraints) -> set[int]:
    """Return the channel groups in the table: all but inputs and outputs of the network without any other role."""
    listed: set[int] = set()
    by_tensor: dict[str, dict[int, set[int]]] = {}
    for number, group in enumerate(groups):
        entries, fixed = group.channels[0].entries, group.channels[0].fixed
        is_read = {placements[entry.placement].role == "in" for entry in entries}
        output = constraints.channels.marks(np.array([group.channels[0].root]), OUTPUT)[0] >= 0
        scaled = any(entry.kind != NO_SCALE for entry in entries)
        if not fixed or scaled or len(is_read) == 2 or (is_read == {False} and not output):
            listed.add(number)
        for entry in entries:
            by_tensor.setdefault(placements[entry.placement].tensor, {}).setdefault(entry.placement, set()).add(number)
    # An axis in blocks is given in full, with the groups beside those that are listed.
    for tensor in {placement.tensor for placement in placements if placement.blocks > 1}:
        for on_axis in by_tensor[tensor].values():
            if on_axis & listed:
                listed |= on_axis
    return listed


def _positions(groups: Sequence[ChannelGroup], *, signs: bool = False) -> dict[int, _Positions]:
    """Return each channel's positions for every placement, group and scale there, or scale with its sign alone."""
    positions: dict[int, _Positions] = {}
    for number, group in enumerate(groups):
        for rank, channel in enumerate(group.channels):
            for entry in channel.entries:
                if entry.sign != signs:
                    continue
                key = (number, entry.scale, entry.inverse, entry.gate)
                rows = positions.setdefault(entry.placement, {}).setdefault(key, [])
                if rank == len(rows):
                    rows.append([])
                rows[rank].append(entry.position)
    return positions


def _action(
    placement: AxisPlacement,
    positions: _Positions,
    signs: _Positions,
    names: dict[tuple[int, int], str],
    flipping: set[str],
) -> AxisAction | None:
    """Return the action of the groups on an axis, some of which are ``flipping`` signs; None where there is none."""
    exponent = placement.exponent
    # The sign of the exponent is that of most groups where only inverses of scales act, and theirs alone otherwise.
    if exponent in (1, -1) and positions and all(inverse for _, _, inverse, _ in positions):
        exponent = -exponent
        positions = {(group, scale, False, gate): rows for (group, scale, _, gate), rows in positions.items()}
    segments, gates = _all_segments(positions, names, exponent)
    if not segments:
        return None
    taken, _ = _all_segments(signs, names, 0)
    if taken and {item.inner for item in segments} != {item.inner for item in taken}:
        # several positions of a channel have one sign and gains of their own: both are listed position by position
        segments, gates = _all_segments(positions, names, exponent, together=False)
        taken, _ = _all_segments(signs, names, 0, together=False)
    flipped = {names.get((group, scale)) for group, scale, _, _ in positions} & flipping
    return AxisAction(
        placement.tensor,
        placement.axis,
        segments,
        exponent,
        placement.in_mass,
        placement.role,
        placement.blocks,
        placement.eps,
        taken,
        bool(placement.absolute and flipped and not gates),
        gates,
    )


def _all_segments(
    positions: _Positions, names: dict[tuple[int, int], str], exponent: int, *, together: bool = True
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return the segments of all groups on an axis, and of gates beside some of them.

    Those where the inverses of scales act have an exponent of their own. Positions of a channel side by side are
    ``together`` in a segment, or each in one of its own.
    """
    by_group: dict[tuple[str, bool], list[Segment]] = {}
    gates: dict[Segment, Segment] = {}
    # those of a gated value and of the value itself are listed one after the other
    ordered = sorted(positions.items(), key=lambda item: item[1][0][0]) if any(key[3] >= 0 for key in positions) else []
    for (group, scale, inverse, gate), rows in ordered or positions.items():
        if (group, scale) not in names:
            continue
        name = names[group, scale]
        own = -exponent if inverse and exponent else None
        found = list(_segments(name, np.array(rows), own, together=together))
        by_group.setdefault((name, inverse), []).extend(found)
        if gate >= 0 and (group, gate) in names:
            gates |= {segment: replace(segment, group=names[group, gate]) for segment in found}
    segments = [segment for items in by_group.values() for segment in items]
    of_gates = [
        [gate for gate in gates.values() if gate.group == name] for name in {gate.group for gate in gates.values()}
    ]
    # By offset, unless that would put the segments of one group in another order than its channels'.
    if all(items == sorted(items, key=lambda item: item.offset) for items in (*by_group.values(), *of_gates)):
        segments.sort(key=lambda item: item.offset)
    return tuple(segments), tuple(gates[segment] for segment in segments if segment in gates)


def _segments(
    group: str, positions: NDArray[np.int64], exponent: int | None, *, together: bool = True
) -> Iterator[Segment]:
    """Yield runs of channels in order, from positions (n, times) of each channel, corresponding ones in a column."""
    order = positions.argsort(axis=1)
    if (order == order[0]).all():
        positions = positions[:, order[0]]
    column, (n, times) = 0, positions.shape
    while column < times:
        inner = 1
        while (
            together and column + inner < times and (positions[:, column + inner] == positions[:, column] + inner).all()
        ):
            inner += 1
        starts = positions[:, column]
        cuts = [0, *(np.flatnonzero(np.diff(starts) != inner) + 1).tolist(), n]
        for first, last in itertools.pairwise(cuts):
            yield Segment(group, int(starts[first]), inner, last - first, exponent)
        column += inner


def _notes(
    constraints: Constraints, group: ChannelGroup, part: _AxisPart, name: str, placements: Sequence[AxisPlacement]
) -> Iterator[str]:
    """Yield why a group stays in place, and why it is not scaled."""
    channel = group.channels[0]
    if isinstance(group.perm, Fixed):
        fixed, output = (constraints.channels.marks(np.array([channel.root]), kind)[0] for kind in (FIXED, OUTPUT))
        reason = fixed if fixed >= 0 else output
        why = "each of its channels lies in a block of its own that stays in place"
        if reason >= 0:
            why = constraints.reasons[reason]
        yield f"Group {name!r} stays in place: {why}."
    if part.kind == NO_SCALE:
        entries = [entry for entry in channel.entries if entry.scale == part.scale]
        scales = np.array([placements[entry.placement].scale[entry.position] for entry in entries])
        yield f"Group {name!r} is not scaled: {_why(constraints, scales)}."


def _why(constraints: Constraints, scales: NodeIds) -> str:
    """Return why these scales have no factor left."""
    forbidden, positive, sign = (constraints.scales.marks(scales, kind) for kind in (FORBIDDEN, POSITIVE, SIGN))
    if (forbidden >= 0).any():
        return constraints.reasons[forbidden[forbidden >= 0][0]]
    both = (positive >= 0) & (sign >= 0)
    if both.any():
        return f"{constraints.reasons[positive[both][0]]}, and {constraints.reasons[sign[both][0]]}"
    return "no parameter gives it a scale"


def _with_blocks_joined(groups: Sequence[ChannelGroup]) -> list[ChannelGroup]:
    """Return the groups, those of one channel a block joined where they move together and are in the same places.

    They are given in the order in which they are first written. Channels keep their order within blocks that move as a
    whole in an attention's heads under rotary embeddings, which rotate each pair by an angle of its own, and under a
    norm whose gains all heads share: colour refinement tells the places in a head apart, so that each comes as a group
    of one channel a block. Those that look alike otherwise get one ``Wreath`` with ``inner = "fixed"``.
    """
    joined: list[ChannelGroup] = []
    at: dict[tuple[str | None, _Look], int] = {}
    places: dict[int, list[tuple[Channel, ...]]] = {}
    for group in groups:
        if not (isinstance(group.perm, Fixed) or (isinstance(group.perm, Wreath) and group.perm.k == 1)):
            joined.append(group)
            continue
        channels = _in_order_of_positions(group.channels)
        mover = group.perm.outer if isinstance(group.perm, Wreath) else None
        number = at.setdefault((mover, _look(channels[0])), len(joined))
        if number == len(joined):
            joined.append(group)
        places.setdefault(number, []).append(channels)
    for number, found in places.items():
        perm = joined[number].perm
        if len(found) == 1:
            continue
        if isinstance(perm, Wreath):
            channels = tuple(channel for block in zip(*found, strict=True) for channel in block)
            joined[number] = ChannelGroup(channels, Wreath(perm.outer, perm.g, len(found), "fixed"))
        else:
            joined[number] = ChannelGroup(tuple(itertools.chain(*found)), perm)
    return joined


def _look(channel: Channel) -> _Look:
    return tuple(
        (item.placement, item.scale, item.kind, item.sign, item.inverse, item.gate) for item in channel.entries
    )


def _in_order_of_positions(channels: Sequence[Channel]) -> tuple[Channel, ...]:
    """Return channels that look alike, their positions in the order of those of the first one."""
    entries = channels[0].entries
    order = sorted(range(len(entries)), key=lambda at: (entries[at].placement, entries[at].position, entries[at].sign))
    return tuple(replace(channel, entries=_renumbered([channel.entries[at] for at in order])) for channel in channels)


def _renumbered(entries: Sequence[ChannelPosition]) -> tuple[ChannelPosition, ...]:
    """Return the positions with scales numbered in this order, inverses against the first position of each scale."""
    numbers: dict[int, int] = {-1: -1}
    inverted: dict[int, bool] = {}
    made: list[ChannelPosition] = []
    for item in entries:
        number = numbers.setdefault(item.scale, len(numbers) - 1)
        # which of s and 1 / s is called the scale differs between channels
        inverse = inverted.setdefault(item.scale, item.inverse) != item.inverse
        gate = numbers.setdefault(item.gate, len(numbers) - 1)
        made.append(replace(item, scale=number, inverse=inverse, gate=gate))
    return tuple(made)

"""Channels that keep their order within blocks which move as a whole: one group in place of one for every place.

Such are the channels of an attention's heads under rotary embeddings, which rotate each pair by an angle of its own,
and under a norm whose gains all heads share. Colour refinement tells the places in a head apart, so that each comes as
a group of one channel a block; those that look alike otherwise are joined in a ``Wreath`` with ``inner = "fixed"``.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ckptzoo.schema.groups import Fixed, Wreath
from ckptzoo.symmetry.tracing.groups import Channel, ChannelGroup, ChannelPosition

_Look = tuple[tuple[int, int, str, bool, bool, int], ...]
"""A signature of each position of a channel: the placement, the scale, its kind, whether its sign alone acts,
whether its inverse does, and the gate's scale."""


def join_places_of_blocks(groups: Sequence[ChannelGroup]) -> list[ChannelGroup]:
    """Return the groups, those of one channel a block joined where they move together and are in the same places. They
    are given in the order in which they are first written.
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

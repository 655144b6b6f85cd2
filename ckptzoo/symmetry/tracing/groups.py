"""The groups of channels that may be permuted, and the blocks in which grouped operations keep them together.

Three questions, in this order: which channels are tied, where each one is in the tensors, and which look alike there
(``tied_channels``); which of those that look alike may be exchanged, by colour refinement over the blocks that they
are in; and how the blocks of grouped operations move. Blocks of a depthwise convolution that no table can move are
merged with the channels that it reads; other such blocks are pinned, and their channels are exchanged within them.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ckptzoo.schema.groups import Fixed, Perm, Sym, Wreath
from ckptzoo.symmetry.tracing.constraints import (
    FIXED,
    NONZERO,
    OUTPUT,
    POSITIVE,
    SIGN,
    ChannelBlocks,
    Constraints,
)
from ckptzoo.symmetry.tracing.scale_products import settle_products
from ckptzoo.symmetry.tracing.union_find import NodeIds

NO_SCALE = "none"


@dataclass(frozen=True)
class ChannelPosition:
    """One position of a channel in a tensor, by the number of the placement and the position there.

    ``scale`` is the number of the scale among the channel's, in the order of its entries, -1 where there is none, and
    ``kind`` its kind. ``sign`` says whether the sign of the scale alone acts here, beside another entry at the same
    position; ``inverse`` whether the inverse of the scale does, against the first of the channel's entries that it
    scales. ``gate`` is the number of another scale that acts here too, as of a gated value; -1 where there is none.
    """

    placement: int
    position: int
    scale: int
    kind: str
    sign: bool
    inverse: bool = False
    gate: int = -1


@dataclass(frozen=True)
class Channel:
    """A class of tied channels, named by the root of its set of nodes.

    ``entries`` are in an order in which those of channels that look alike correspond. ``signature`` is equal for
    channels that are in the same places with the same histories and scales. ``fixed`` says whether something keeps it
    in place, and ``first`` where it is written first: placement and position.
    """

    root: int
    entries: tuple[ChannelPosition, ...]
    signature: int
    fixed: bool
    first: tuple[int, int]


@dataclass(frozen=True, order=True)
class _Row:
    """A position of a channel, so that rows of channels that look alike correspond when they are sorted.

    ``placement``, ``path`` and ``position`` are the number of the placement, the entry's path, and the position.
    ``scale`` is the root of the scale, of a ``kind``, and ``gate`` that of another scale that acts here too; -1 where
    there is none. ``sign`` is that of ``ChannelPosition``. ``side`` is 1 or -1 where the scale or its inverse acts
    here, against the root.
    """

    placement: int
    path: int
    position: int
    scale: int
    kind: str
    sign: bool = False
    side: int = 1
    gate: int = -1


_BlockPermutation = tuple[int, tuple[int, ...]]
"""Blocks that one permutation moves: the number of the operation that has them, and which of its blocks."""


@dataclass(frozen=True)
class ChannelGroup:
    """Channels in order, and how they may be permuted."""

    channels: tuple[Channel, ...]
    perm: Perm


@dataclass(frozen=True)
class _BlockClaim:
    """A requirement of an operation: the channels of a group, given by its number, move in these blocks alone."""

    group: int
    permutation: _BlockPermutation


def channel_groups(constraints: Constraints) -> list[ChannelGroup]:
    """Return all groups of channels, by where they are first written.

    Channels that look alike, in blocks that look alike, are one group. Blocks that no table can move as a whole stay in
    place, and the notes say which and why; after each such decision the groups are found again.
    """
    settle_products(constraints)
    pinned = _merge_heads(constraints)
    while True:
        constraints.settle_signs()
        for number in pinned:
            _fix_across_blocks(constraints, constraints.blocks[number])
        channels = tied_channels(constraints)
        groups = _group_channels(channels, _colours(constraints, channels, pinned))
        owner = {channel.root: number for number, group in enumerate(groups) for channel in group.channels}
        claims: list[_BlockClaim] = []
        for number, blocks in enumerate(constraints.blocks):
            if number in pinned or not blocks.members:
                continue
            new = _block_claims(constraints, number, groups, owner)
            why = "the channels on its sides are not one group in order" if new is None else ""
            for claim in new or ():
                for other in claims:
                    if other.group == claim.group and len(other.permutation[1]) != len(claim.permutation[1]):
                        names = (repr(constraints.blocks[item.permutation[0]].name) for item in (other, claim))
                        number = (
                            other.permutation[0]
                            if can_merge(constraints, constraints.blocks[other.permutation[0]])
                            else number
                        )
                        why = " and ".join(names) + " have blocks of the same channels"
            if why:
                _merge_or_pin(constraints, number, why, pinned)
                break
            claims += new or ()
        else:
            return _with_block_permutations(constraints, groups, claims)


# Which channels are tied, and which look alike.


def tied_channels(constraints: Constraints) -> dict[int, Channel]:
    """Return all channels that are on axes of tensors, by their roots."""
    _forbid_shared_scales(constraints)
    rows = _rows(constraints)
    sums = _sums(constraints)
    roots = np.array(sorted(rows), np.int64)
    fixed_roots = (constraints.channels.marks(roots, FIXED) >= 0) | (constraints.channels.marks(roots, OUTPUT) >= 0)
    reads = [place.role == "in" for place in constraints.placements.values()]
    signatures: dict[Hashable, int] = {}
    channels: dict[int, Channel] = {}
    for root, fixed in zip(roots.tolist(), fixed_roots.tolist(), strict=True):
        scale_numbers: dict[int, int] = {}
        entries: list[ChannelPosition] = []
        facts: list[Hashable] = [fixed, *sorted(sums.get(root, ()))]
        sides: dict[int, int] = {}
        for row in sorted(rows[root]):
            inverse = sides.setdefault(row.scale, row.side) != row.side
            scale, gate = (
                -1 if item < 0 else scale_numbers.setdefault(item, len(scale_numbers)) for item in (row.scale, row.gate)
            )
            entries.append(ChannelPosition(row.placement, row.position, scale, row.kind, row.sign, inverse, gate))
            facts.append((row.placement, row.path, scale, row.kind, row.sign, inverse, gate))
        first = min((reads[entry.placement], entry.placement, entry.position) for entry in entries)
        channels[root] = Channel(
            root, tuple(entries), signatures.setdefault(tuple(facts), len(signatures)), fixed, first[1:]
        )
    return channels


def _rows(constraints: Constraints) -> dict[int, list[_Row]]:
    """Return the positions of every channel."""
    rows: dict[int, list[_Row]] = {}
    absorbed = _absorbed_signs(constraints)
    for number, place in enumerate(constraints.placements.values()):
        roots = constraints.channels.find(place.channel).tolist()
        for labels, sign in ((place.scale, False), (place.signs, True)):
            if labels is None:
                continue
            gates = np.full_like(labels, -1) if sign or place.gate is None else place.gate
            labels, gates = _with_first_alive(constraints, labels, gates)
            scales, kinds = _scale_kinds(constraints, labels, absorbed)
            sides = constraints.scales.signs(labels).tolist()
            for position, (path, scale, kind, root, side, gate) in enumerate(
                zip(place.path.tolist(), scales.tolist(), kinds, roots, sides, gates.tolist(), strict=True)
            ):
                if root >= 0 and (not sign or kind in ("sign", "nonzero")):
                    rows.setdefault(root, []).append(_Row(number, path, position, scale, kind, sign, side, gate))
    return rows


def _with_first_alive(constraints: Constraints, scales: NodeIds, gates: NodeIds) -> tuple[NodeIds, NodeIds]:
    """Return scales, and the roots of gates beside them: a gate in the place of a scale that has no factor but 1."""
    alone = ~constraints.can_scale(scales)
    gates = np.where(constraints.can_scale(gates), constraints.scales.find(gates), -1)
    return np.where(alone & (gates >= 0), gates, scales), np.where(alone, -1, gates)


def _absorbed_signs(constraints: Constraints) -> NodeIds:
    """Return the roots of the scales whose signs a gain takes."""
    signs = [place.signs for place in constraints.placements.values() if place.signs is not None]
    return np.unique(constraints.scales.find(np.concatenate(signs))) if signs else np.empty(0, np.int64)


def _scale_kinds(constraints: Constraints, labels: NodeIds, absorbed: NodeIds) -> tuple[NodeIds, list[str]]:
    """Return the roots of scales, -1 where there is no factor but 1, and their kinds as in ``Group``."""
    alive = constraints.can_scale(labels)
    scales = np.where(alive, constraints.scales.find(labels), -1)
    signs, positive = (constraints.scales.marks(scales, kind) >= 0 for kind in (SIGN, POSITIVE))
    # Unmarked factors may have any sign. Only those that a gain takes, or that are in an attention, are flipped.
    nonzero = ~positive & (np.isin(scales, absorbed) | (constraints.scales.marks(scales, NONZERO) >= 0))
    kinds = np.where(signs, "sign", np.where(nonzero, "nonzero", "positive"))
    return scales, np.where(alive, kinds, NO_SCALE).tolist()


def _sums(constraints: Constraints) -> dict[int, list[tuple[int, int]]]:
    """Return for every channel the sums that it is in, and its paths there."""
    sums: dict[int, list[tuple[int, int]]] = {}
    for number, labels in enumerate(constraints.sums):
        roots, paths = np.broadcast_arrays(constraints.channels.find(labels.channel), labels.path)
        for root, path in zip(roots.ravel().tolist(), paths.ravel().tolist(), strict=True):
            sums.setdefault(root, []).append((number, path))
    return sums


def _forbid_shared_scales(constraints: Constraints) -> None:
    """Forbid factors of a scale that several channels would share."""
    for place in constraints.placements.values():
        constraints.operation = f"{place.tensor!r}"
        for labels in place.scales:
            constraints.forbid_scale(labels[(place.channel < 0) & (labels >= 0)], "has values that stay in place")
    owners: dict[int, int] = {}
    placed = [(place, labels) for place in constraints.placements.values() for labels in place.scales]
    for place, labels in placed:
        alive = constraints.can_scale(labels)
        roots, scales = constraints.channels.find(place.channel[alive]), constraints.scales.find(labels[alive])
        for root, scale in zip(roots.tolist(), scales.tolist(), strict=True):
            if owners.setdefault(scale, root) != root:
                constraints.operation = f"{place.tensor!r}"
                constraints.forbid_scale(np.array([scale]), "has one scale for several channels")


# Which channels that look alike may be exchanged.


def _colours(constraints: Constraints, channels: Mapping[int, Channel], pinned: set[int]) -> dict[int, Hashable]:
    """Return colours of channels: equal where they and the blocks that they are in look alike, to any depth.

    Colour refinement: a channel's next colour is its colour with those of the channels beside it in blocks, until the
    number of colours stays the same. A block that does not move as a whole counts with its number.
    """
    colours: dict[int, Hashable] = {
        # a colour of its own for each channel in place; signatures are 0 or more
        root: -1 - root if channel.fixed else channel.signature
        for root, channel in channels.items()
    }
    colours |= _head_colours(constraints, colours)
    relations = [
        (number, _roots(constraints, blocks)) for number, blocks in enumerate(constraints.blocks) if blocks.members
    ]
    count = len(set(colours.values()))
    while relations:
        seen: dict[int, list[Hashable]] = {root: [] for root in colours}
        for number, sides in relations:
            for block, members in enumerate(zip(*sides, strict=True)):
                whole = number not in pinned and all(root in colours for side in members for root in side)
                # by repr: colours are numbers, and those of heads tuples
                beside = tuple(tuple(sorted((colours.get(root, 0) for root in side), key=repr)) for side in members)
                for side_number, side in enumerate(members):
                    for root in side:
                        if root in seen:
                            seen[root].append((number, side_number, -1 if whole else block, beside))
        refined: dict[Hashable, int] = {}
        colours = {
            root: refined.setdefault((colours[root], *sorted(facts, key=repr)), len(refined))
            for root, facts in seen.items()
        }
        # a refinement never joins colours, so that as many colours are the same ones
        if len(refined) == count:
            break
        count = len(refined)
    return colours


def _head_colours(constraints: Constraints, channels: Mapping[int, Hashable]) -> dict[int, Hashable]:
    """Return first colours of the heads on no tensor: alike, but for those that stay in place or are summed apart."""
    sides = [side for blocks in constraints.blocks if blocks.heads for side in blocks.members]
    if not sides:
        return {}
    roots = np.unique(constraints.channels.find(np.concatenate([side.ravel() for side in sides])))
    roots = np.array([root for root in roots.tolist() if root >= 0 and root not in channels], np.int64)
    fixed = (constraints.channels.marks(roots, FIXED) >= 0) | (constraints.channels.marks(roots, OUTPUT) >= 0)
    sums = _sums(constraints)
    return {
        root: ("head", root if stays else -1, *sorted(sums.get(root, ())))
        for root, stays in zip(roots.tolist(), fixed.tolist(), strict=True)
    }


def _merge_heads(constraints: Constraints) -> set[int]:
    """Make one relation of all whose heads are the same, so that all sides move their blocks together. Returns the
    numbers of those among whose heads some are tied to each other: their blocks stay in place.
    """
    for blocks in constraints.blocks:
        if blocks.heads:
            blocks.members = _distinct_heads(constraints, *blocks.members)
    merged: list[ChannelBlocks] = []
    for blocks in constraints.blocks:
        same = _with_same_heads(constraints, blocks, merged) if blocks.heads else None
        if same is None:
            merged.append(blocks)
        else:
            same.members = (*same.members, *blocks.members[1:])
    constraints.blocks[:] = merged
    for blocks in merged:
        if blocks.heads and (why := _why_in_place(constraints, blocks.members[0])):
            constraints.notes.append(f"The heads of {blocks.name!r} stay in place: {why}.")
    tied: set[int] = set()
    for number, blocks in enumerate(merged):
        if blocks.heads and len(np.unique(constraints.channels.find(blocks.members[0]))) < len(blocks.members[0]):
            tied.add(number)
            constraints.notes.append(f"The heads of {blocks.name!r} stay in place: they are joined with each other.")
    return tied


def _why_in_place(constraints: Constraints, nodes: NodeIds) -> str:
    """Return why the first of these channels that stays in place does; empty where none does."""
    for kind in (FIXED, OUTPUT):
        marks = constraints.channels.marks(nodes, kind)
        if (marks >= 0).any():
            return constraints.reasons[marks[marks >= 0][0]]
    return ""


def _with_same_heads(
    constraints: Constraints, blocks: ChannelBlocks, others: Iterable[ChannelBlocks]
) -> ChannelBlocks | None:
    """Return the relation among others that has the same heads in the same order; heads that are in others too stay."""
    heads, same = constraints.channels.find(blocks.members[0]), None
    for other in others:
        if not other.heads:
            continue
        found = constraints.channels.find(other.members[0])
        if np.array_equal(found, heads):
            same = other
        elif np.isin(heads, found).any():
            constraints.operation = f"{blocks.name!r}"
            constraints.fix(np.concatenate([found.ravel(), heads.ravel()]), "has heads of several attentions")
    return same


def _distinct_heads(constraints: Constraints, heads: NodeIds, rows: NodeIds) -> tuple[NodeIds, NodeIds]:
    """Return heads and their channels, each once; heads that share all channels become one, as may follow from ties."""
    members = [tuple(dict.fromkeys(row)) for row in constraints.channels.find(rows).tolist()]
    first = {row: members.index(row) for row in members}
    same = np.array([first[row] for row in members])
    constraints.channels.union(heads.ravel(), heads[same].ravel())
    kept = sorted(first.values())
    if len({len(members[number]) for number in kept}) > 1:
        return heads, rows
    return heads[kept], np.array([members[number] for number in kept], np.int64)


def _roots(constraints: Constraints, blocks: ChannelBlocks) -> list[list[list[int]]]:
    """Return for each side and each block the roots of the channels in it."""
    return [constraints.channels.find(side).tolist() for side in blocks.members]


def _group_channels(channels: Mapping[int, Channel], colours: Mapping[int, Hashable]) -> list[ChannelGroup]:
    """Return groups of channels of one colour. Channels that look alike but are alone with their colour, each in a
    pinned block, make one group that stays in place.
    """
    by_colour: dict[Hashable, list[Channel]] = {}
    for root, channel in channels.items():
        by_colour.setdefault(("fixed", channel.signature) if channel.fixed else colours[root], []).append(channel)
    together: dict[Hashable, list[Channel]] = {}
    for colour, members in by_colour.items():
        together.setdefault(("alone", members[0].signature) if len(members) == 1 else colour, []).extend(members)
    groups: list[ChannelGroup] = []
    for members in together.values():
        # alike and yet told apart: nothing may be exchanged
        fixed = members[0].fixed or len({colours[channel.root] for channel in members}) > 1
        ordered = tuple(sorted(members, key=lambda channel: channel.first))
        groups.append(ChannelGroup(ordered, Fixed() if fixed else Sym()))
    return sorted(groups, key=lambda group: group.channels[0].first)


# How blocks move.


def _block_claims(
    constraints: Constraints, number: int, groups: Sequence[ChannelGroup], owner: Mapping[int, int]
) -> list[_BlockClaim] | None:
    """Return what an operation requires of the groups in its blocks; None where no table can express it."""
    blocks = constraints.blocks[number]
    sides = _roots(constraints, blocks)
    if all(root < 0 for side in sides for block in side for root in block):
        return []
    if blocks.heads:
        found = [_claims_without_tensor(number, side, groups, owner) for side in sides]
        return None if None in found else [claim for claims in found for claim in claims or ()]
    if not blocks.axes:
        return _claims_without_tensor(number, sides[0], groups, owner)
    claims: list[_BlockClaim] = []
    for side in sides:
        roots = [root for block in side for root in block]
        group = owner.get(roots[0])
        if group is None or groups[group].perm != Sym():
            return None
        if roots != [channel.root for channel in groups[group].channels]:
            return None
        claims.append(_BlockClaim(group, (number, tuple(range(len(side))))))
    return claims


def _claims_without_tensor(
    number: int, side: list[list[int]], groups: Sequence[ChannelGroup], owner: Mapping[int, int]
) -> list[_BlockClaim] | None:
    """Return the claims where no tensor has the blocks, as with GroupNorm: each group may be in some of them."""
    blocks_of: dict[int, list[int]] = {}
    for block, roots in enumerate(side):
        for root in roots:
            blocks_of.setdefault(root, []).append(block)
    claims: list[_BlockClaim] = []
    for group in sorted({owner[root] for root in blocks_of if root in owner}):
        if groups[group].perm != Sym():
            continue
        block_lists = [blocks_of[channel.root] for channel in groups[group].channels]
        order = [blocks[0] for blocks in block_lists]
        if any(len(set(blocks)) > 1 for blocks in block_lists) or order != sorted(order):
            return None
        if len(set(order)) > 1:
            claims.append(_BlockClaim(group, (number, tuple(sorted(set(order))))))
    return claims


def _with_block_permutations(
    constraints: Constraints, groups: Sequence[ChannelGroup], claims: Sequence[_BlockClaim]
) -> list[ChannelGroup]:
    """Return the groups with their permutations; claims on one group make one permutation of blocks."""
    names = _permutation_names(constraints, claims)
    permuted: list[ChannelGroup] = []
    for number, group in enumerate(groups):
        blocks = next((claim.permutation for claim in claims if claim.group == number), None)
        perm = group.perm
        # consecutive channels are a block, as torch's groups are
        if blocks is not None:
            perm = Wreath(names[blocks], len(blocks[1]), len(group.channels) // len(blocks[1]))
        permuted.append(ChannelGroup(group.channels, perm))
    return permuted


def _permutation_names(constraints: Constraints, claims: Sequence[_BlockClaim]) -> dict[_BlockPermutation, str]:
    """Return a name for each permutation of blocks: that of the first operation that has them."""
    parent = {claim.permutation: claim.permutation for claim in claims}

    def root(item: _BlockPermutation) -> _BlockPermutation:
        return item if parent[item] == item else root(parent[item])

    for left, right in _same_permutation(claims):
        low, high = sorted((root(left), root(right)))
        parent[high] = low
    names: dict[_BlockPermutation, str] = {}
    for item in sorted({root(item) for item in parent}):
        names[item] = unique_name(constraints.blocks[item[0]].name, names.values())
    return {item: names[root(item)] for item in parent}


def _same_permutation(claims: Sequence[_BlockClaim]) -> Iterator[tuple[_BlockPermutation, _BlockPermutation]]:
    """Yield pairs of block permutations that are one, as they move the same group."""
    first: dict[int, _BlockPermutation] = {}
    for claim in claims:
        yield first.setdefault(claim.group, claim.permutation), claim.permutation


# What happens to blocks that no table can move.


def _merge_or_pin(constraints: Constraints, number: int, why: str, pinned: set[int]) -> None:
    """Merge blocks that no table can move as a whole with what they read, or pin them."""
    blocks = constraints.blocks[number]
    if can_merge(constraints, blocks):
        merge_blocks(constraints, blocks, why)
        return
    pinned.add(number)
    constraints.notes.append(f"The blocks of {blocks.name!r} stay in place: {why}.")


def _fix_across_blocks(constraints: Constraints, blocks: ChannelBlocks) -> None:
    """Fix channels that are in several blocks of a tensor, once these are pinned."""
    constraints.operation = f"{blocks.name!r}"
    for side in blocks.members if blocks.axes else ():
        roots = constraints.channels.find(side)
        for root in np.unique(roots[roots >= 0]):
            if (roots == root).any(axis=1).sum() > 1:
                constraints.fix(np.array([root]), "has a channel in several blocks")


def can_merge(constraints: Constraints, blocks: ChannelBlocks) -> bool:
    """Whether each block reads one channel, which may move, wherever the weight is used."""
    if not blocks.axes or blocks.members[0].shape[1] > 1:
        return False
    read = np.concatenate([use.members[0].ravel() for use in _uses(constraints, blocks)])
    fixed = [(constraints.channels.marks(read, kind) >= 0).any() for kind in (FIXED, OUTPUT)]
    return bool((read >= 0).all()) and not any(fixed)


def merge_blocks(constraints: Constraints, blocks: ChannelBlocks, why: str) -> None:
    """Tie what each block writes to the channel that it reads. The weight is permuted along its first axis alone. Where
    both what it reads and what it writes could be scaled, these scales become one, and the weight is not scaled.
    """
    constraints.operation = f"{blocks.name!r}"
    written = blocks.members[1].shape
    reads, writes = (constraints.placements[place] for place in blocks.axes)
    before = np.broadcast_to(reads.scale[:, None], written)
    after = writes.scale.reshape(written)
    alive = constraints.can_scale(before).any(), constraints.can_scale(after).any()
    scale, exponent, role = after, 1, "out"
    if alive[0] and not alive[1]:
        scale, exponent, role = before, reads.exponent, "in"
    elif alive[0]:
        if reads.exponent == 1:
            constraints.forbid_scale(before, "reads inverses")
        scale, exponent, role = (
            constraints.tie_scales(before, after, "joins scaled values with others that cannot be"),
            0,
            "out",
        )
    kept, dropped = (reads, writes) if reads.axis == 0 else (writes, reads)
    if kept is reads:
        scale = constraints.tie_scales(scale[:, :1], scale, "writes several channels of one")[:, :1]
    kept.scale, kept.exponent, kept.role = scale.ravel(), exponent, role
    del constraints.placements[dropped.tensor, dropped.axis]
    for use in _uses(constraints, blocks):
        constraints.tie_channels(use.members[0], use.members[1], "writes what stays in place")
        use.members, use.axes = (), ()
    constraints.notes.append(
        f"The channels that {blocks.name!r} writes move with those that it reads, and share their scales: {why}."
    )


def _uses(constraints: Constraints, blocks: ChannelBlocks) -> list[ChannelBlocks]:
    return [use for use in constraints.blocks if use.axes == blocks.axes]


def unique_name(name: str, taken: Iterable[str]) -> str:
    """Return the name, or the first of ``name:2``, ``name:3``, ... that is not taken."""
    names = set(taken)
    others = (f"{name}:{number}" for number in itertools.count(2))
    return next(item for item in itertools.chain([name], others) if item not in names)

"""Families of channels that may be permuted, and the blocks in which grouped operations hold them together.

Classes of tied channels: where each sits in the tensors, how it scales there, and which look alike.

Depthwise convolutions whose blocks do not fit the groups around them: they write more entries of what they read.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ckptzoo.schema.symmetry import Fixed, Perm, Sym, Wreath
from ckptzoo.symmetry.tracing.constraints import FIXED, OUTPUT, SIGN, ChannelBlocks, Constraints

NO_SCALE = "none"


@dataclass(frozen=True)
class ChannelPosition:
    """One position of a channel in a tensor.

    Parameters
    ----------
    place : number of the place among the ledger's.
    at : the position there.
    scale : number of the scale among the channel's, in the order of its entries; -1 where there is none.
    kind : of that scale.
    """

    place: int
    at: int
    scale: int
    kind: str


@dataclass(frozen=True)
class Channel:
    """A class of tied channels.

    Parameters
    ----------
    atom : the leader of its atoms.
    entries : in an order in which those of channels that look alike correspond.
    looks : equal for channels that sit in the same places with the same histories and scales.
    fixed : whether something keeps it in place.
    first : where it is written first: place and position.
    """

    atom: int
    entries: tuple[ChannelPosition, ...]
    looks: int
    fixed: bool
    first: tuple[int, int]


@dataclass(frozen=True, order=True)
class _Row:
    """A position of a channel, so that rows of channels that look alike correspond when they are sorted.

    Parameters
    ----------
    place, path, at : number of the place, the entry's path, and the position.
    scale, kind : the scale's atom, -1 where there is none, and its kind.
    """

    place: int
    path: int
    at: int
    scale: int
    kind: str


def channels(ledger: Constraints) -> dict[int, Channel]:
    """All channels that sit in tensors, by their atoms."""
    _apart(ledger)
    rows = _rows(ledger)
    sums = _sums(ledger)
    atoms = np.array(sorted(rows), np.int64)
    held = (ledger.channels.marks(atoms, FIXED) >= 0) | (ledger.channels.marks(atoms, OUTPUT) >= 0)
    reads = [place.role == "in" for place in ledger.places.values()]
    looks: dict[Hashable, int] = {}
    made: dict[int, Channel] = {}
    for atom, fixed in zip(atoms.tolist(), held.tolist(), strict=True):
        seen: dict[int, int] = {}
        entries: list[ChannelPosition] = []
        facts: list[Hashable] = [fixed, *sorted(sums.get(atom, ()))]
        for row in sorted(rows[atom]):
            scale = -1 if row.scale < 0 else seen.setdefault(row.scale, len(seen))
            entries.append(ChannelPosition(row.place, row.at, scale, row.kind))
            facts.append((row.place, row.path, scale, row.kind))
        first = min((reads[entry.place], entry.place, entry.at) for entry in entries)
        made[atom] = Channel(atom, tuple(entries), looks.setdefault(tuple(facts), len(looks)), fixed, first[1:])
    return made


def _rows(ledger: Constraints) -> dict[int, list[_Row]]:
    """The positions of every channel."""
    rows: dict[int, list[_Row]] = {}
    for number, place in enumerate(ledger.places.values()):
        alive = ledger.alive(place.scale)
        scales = np.where(alive, ledger.scales.find(place.scale), -1)
        signs = ledger.scales.marks(scales, SIGN) >= 0
        kinds = np.where(alive, np.where(signs, "sign", "positive"), NO_SCALE).tolist()
        atoms = ledger.channels.find(place.channel).tolist()
        for at, (path, scale, kind, atom) in enumerate(
            zip(place.path.tolist(), scales.tolist(), kinds, atoms, strict=True)
        ):
            if atom >= 0:
                rows.setdefault(atom, []).append(_Row(number, path, at, scale, kind))
    return rows


def _sums(ledger: Constraints) -> dict[int, list[tuple[int, int]]]:
    """For every channel the sums that it goes into, and its paths there."""
    sums: dict[int, list[tuple[int, int]]] = {}
    for number, labels in enumerate(ledger.sums):
        atoms, paths = np.broadcast_arrays(ledger.channels.find(labels.channel), labels.path)
        for atom, path in zip(atoms.ravel().tolist(), paths.ravel().tolist(), strict=True):
            sums.setdefault(atom, []).append((number, path))
    return sums


def _apart(ledger: Constraints) -> None:
    """No scale for what several channels would share."""
    for place in ledger.places.values():
        ledger.here = f"{place.tensor!r}"
        ledger.forbid_scale(place.scale[(place.channel < 0) & (place.scale >= 0)], "has values that stay in place")
    owners: dict[int, int] = {}
    for place in ledger.places.values():
        alive = ledger.alive(place.scale)
        atoms, scales = ledger.channels.find(place.channel[alive]), ledger.scales.find(place.scale[alive])
        for atom, scale in zip(atoms.tolist(), scales.tolist(), strict=True):
            if owners.setdefault(scale, atom) != atom:
                ledger.here = f"{place.tensor!r}"
                ledger.forbid_scale(np.array([scale]), "has one scale for several channels")


def mergeable(ledger: Constraints, blocks: ChannelBlocks) -> bool:
    """Whether each block reads one channel, which may move, wherever the weight is used."""
    if not blocks.places or blocks.members[0].shape[1] > 1:
        return False
    read = np.concatenate([use.members[0].ravel() for use in _uses(ledger, blocks)])
    held = [(ledger.channels.marks(read, kind) >= 0).any() for kind in (FIXED, OUTPUT)]
    return bool((read >= 0).all()) and not any(held)


def merge(ledger: Constraints, blocks: ChannelBlocks, why: str) -> None:
    """Tie what each block writes to the channel that it reads.

    The weight is permuted along its first axis alone. Where both what it reads and what it writes could be scaled,
    these scales become one, and the weight is not scaled.
    """
    ledger.here = f"{blocks.name!r}"
    written = blocks.members[1].shape
    reads, writes = (ledger.places[place] for place in blocks.places)
    before = np.broadcast_to(reads.scale[:, None], written)
    after = writes.scale.reshape(written)
    alive = ledger.alive(before).any(), ledger.alive(after).any()
    scale, exponent, role = after, 1, "out"
    if alive[0] and not alive[1]:
        scale, exponent, role = before, reads.exponent, "in"
    elif alive[0]:
        if reads.exponent == 1:
            ledger.forbid_scale(before, "reads inverses")
        scale, exponent, role = (
            ledger.tie_scales(before, after, "joins scaled values with others that cannot be"),
            0,
            "out",
        )
    kept, dropped = (reads, writes) if reads.axis == 0 else (writes, reads)
    if kept is reads:
        scale = ledger.tie_scales(scale[:, :1], scale, "writes several channels of one")[:, :1]
    kept.scale, kept.exponent, kept.role = scale.ravel(), exponent, role
    del ledger.places[dropped.tensor, dropped.axis]
    for use in _uses(ledger, blocks):
        ledger.tie_channels(use.members[0], use.members[1], "writes what stays in place")
        use.members, use.places = (), ()
    ledger.notes.append(
        f"The channels that {blocks.name!r} writes move with those that it reads, and share their scales: {why}."
    )


def _uses(ledger: Constraints, blocks: ChannelBlocks) -> list[ChannelBlocks]:
    """All uses of the weight."""
    return [use for use in ledger.blocks if use.places == blocks.places]


_Moves = tuple[int, tuple[int, ...]]
"""Blocks that move together: the number of the operation that has them, and theirs."""


@dataclass(frozen=True)
class Family:
    """Channels in order, and how they may be permuted."""

    channels: tuple[Channel, ...]
    perm: Perm


@dataclass(frozen=True)
class _Claim:
    """What an operation asks of a family, which is given by its number: that these blocks of it stay whole."""

    family: int
    moves: _Moves


def families(ledger: Constraints) -> list[Family]:
    """All families, by where they are first written.

    Channels that look alike, in blocks that look alike, are one family. Blocks that no table can move as a whole stay
    in place, and the ledger's notes say which and why.
    """
    pinned: set[int] = set()
    while True:
        for number in pinned:
            _hold_across(ledger, ledger.blocks[number])
        known = channels(ledger)
        found = _groups(known, _colours(ledger, known, pinned))
        owner = {channel.atom: number for number, family in enumerate(found) for channel in family.channels}
        claims: list[_Claim] = []
        for number, blocks in enumerate(ledger.blocks):
            if number in pinned or not blocks.members:
                continue
            asked = _claims(ledger, number, found, owner)
            why = "the channels on its sides are not one group in order" if asked is None else ""
            for claim in asked or ():
                for other in claims:
                    if other.family == claim.family and len(other.moves[1]) != len(claim.moves[1]):
                        names = (repr(ledger.blocks[item.moves[0]].name) for item in (other, claim))
                        number = other.moves[0] if mergeable(ledger, ledger.blocks[other.moves[0]]) else number
                        why = " and ".join(names) + " have blocks of the same channels"
            if why:
                _give_up(ledger, number, why, pinned)
                break
            claims += asked or ()
        else:
            return _moving(ledger, found, claims)


def _colours(ledger: Constraints, known: Mapping[int, Channel], pinned: set[int]) -> dict[int, int]:
    """Colours of channels: equal where they look alike, and the blocks that they lie in, to any depth."""
    colours = {atom: -1 - atom if channel.fixed else channel.looks for atom, channel in known.items()}
    relations = [(number, _atoms(ledger, blocks)) for number, blocks in enumerate(ledger.blocks) if blocks.members]
    count = len(set(colours.values()))
    while relations:
        seen: dict[int, list[Hashable]] = {atom: [] for atom in colours}
        for number, sides in relations:
            for block, members in enumerate(zip(*sides, strict=True)):
                whole = number not in pinned and all(atom in colours for side in members for atom in side)
                held = tuple(tuple(sorted(colours.get(atom, 0) for atom in side)) for side in members)
                for at, side in enumerate(members):
                    for atom in side:
                        if atom in seen:
                            seen[atom].append((number, at, -1 if whole else block, held))
        fresh: dict[Hashable, int] = {}
        colours = {
            atom: fresh.setdefault((colours[atom], *sorted(facts, key=repr)), len(fresh))
            for atom, facts in seen.items()
        }
        if len(fresh) == count:
            break
        count = len(fresh)
    return colours


def _atoms(ledger: Constraints, blocks: ChannelBlocks) -> list[list[list[int]]]:
    """For each side and each block, the channels."""
    return [ledger.channels.find(side).tolist() for side in blocks.members]


def _groups(known: Mapping[int, Channel], colours: Mapping[int, int]) -> list[Family]:
    """Channels of one colour; those that blocks in place leave alone are put together, and stay."""
    found: dict[Hashable, list[Channel]] = {}
    for atom, channel in known.items():
        found.setdefault(("fixed", channel.looks) if channel.fixed else colours[atom], []).append(channel)
    together: dict[Hashable, list[Channel]] = {}
    for colour, members in found.items():
        together.setdefault(("alone", members[0].looks) if len(members) == 1 else colour, []).extend(members)
    made: list[Family] = []
    for members in together.values():
        still = members[0].fixed or len({colours[channel.atom] for channel in members}) > 1
        made.append(Family(tuple(sorted(members, key=lambda channel: channel.first)), Fixed() if still else Sym()))
    return sorted(made, key=lambda family: family.channels[0].first)


def _claims(ledger: Constraints, number: int, found: Sequence[Family], owner: Mapping[int, int]) -> list[_Claim] | None:
    """What an operation asks of the families in its blocks; None where no table can say it."""
    blocks = ledger.blocks[number]
    sides = _atoms(ledger, blocks)
    if all(atom < 0 for side in sides for block in side for atom in block):
        return []
    if not blocks.places:
        return _claims_inside(number, sides[0], found, owner)
    made: list[_Claim] = []
    for side in sides:
        atoms = [atom for block in side for atom in block]
        family = owner.get(atoms[0])
        if family is None or found[family].perm != Sym():
            return None
        if atoms != [channel.atom for channel in found[family].channels]:
            return None
        made.append(_Claim(family, (number, tuple(range(len(side))))))
    return made


def _claims_inside(
    number: int, side: list[list[int]], found: Sequence[Family], owner: Mapping[int, int]
) -> list[_Claim] | None:
    """The same where no tensor has the blocks: each family may lie in some of them."""
    where: dict[int, list[int]] = {}
    for block, atoms in enumerate(side):
        for atom in atoms:
            where.setdefault(atom, []).append(block)
    made: list[_Claim] = []
    for family in sorted({owner[atom] for atom in where if atom in owner}):
        if found[family].perm != Sym():
            continue
        lies = [where[channel.atom] for channel in found[family].channels]
        order = [blocks[0] for blocks in lies]
        if any(len(set(blocks)) > 1 for blocks in lies) or order != sorted(order):
            return None
        if len(set(order)) > 1:
            made.append(_Claim(family, (number, tuple(sorted(set(order))))))
    return made


def _give_up(ledger: Constraints, number: int, why: str, pinned: set[int]) -> None:
    """Blocks that no table can move as a whole stay in place, or write more entries of what they read."""
    blocks = ledger.blocks[number]
    if mergeable(ledger, blocks):
        merge(ledger, blocks, why)
        return
    pinned.add(number)
    ledger.notes.append(f"The blocks of {blocks.name!r} stay in place: {why}.")


def _hold_across(ledger: Constraints, blocks: ChannelBlocks) -> None:
    """Channels that lie in several blocks of a tensor, which stay in place, stay too."""
    ledger.here = f"{blocks.name!r}"
    for side in blocks.members if blocks.places else ():
        atoms = ledger.channels.find(side)
        for atom in np.unique(atoms[atoms >= 0]):
            if (atoms == atom).any(axis=1).sum() > 1:
                ledger.fix(np.array([atom]), "has a channel in several blocks")


def _moving(ledger: Constraints, found: Sequence[Family], claims: Sequence[_Claim]) -> list[Family]:
    """The families with their permutations; blocks that meet in a family move by one permutation of blocks."""
    names = _names(ledger, claims)
    made: list[Family] = []
    for number, family in enumerate(found):
        moves = next((claim.moves for claim in claims if claim.family == number), None)
        perm = family.perm
        if moves is not None:
            perm = Wreath(names[moves], len(moves[1]), len(family.channels) // len(moves[1]))
        made.append(Family(family.channels, perm))
    return made


def _names(ledger: Constraints, claims: Sequence[_Claim]) -> dict[_Moves, str]:
    """A name for each permutation of blocks: that of the first operation that has them."""
    first = {claim.moves: claim.moves for claim in claims}

    def leader(moves: _Moves) -> _Moves:
        return moves if first[moves] == moves else leader(first[moves])

    for one, two in _meeting(claims):
        low, high = sorted((leader(one), leader(two)))
        first[high] = low
    taken: dict[_Moves, str] = {}
    for moves in sorted({leader(item) for item in first}):
        taken[moves] = unique(ledger.blocks[moves[0]].name, taken.values())
    return {moves: taken[leader(moves)] for moves in first}


def _meeting(claims: Sequence[_Claim]) -> Iterator[tuple[_Moves, _Moves]]:
    first: dict[int, _Moves] = {}
    for claim in claims:
        yield first.setdefault(claim.family, claim.moves), claim.moves


def unique(name: str, taken: Iterable[str]) -> str:
    """The name, or the first of ``name:2``, ``name:3``, ... that is not taken."""
    held = set(taken)
    others = (f"{name}:{number}" for number in itertools.count(2))
    return next(item for item in itertools.chain([name], others) if item not in held)

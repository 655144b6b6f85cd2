"""From families of channels to the symmetry table: groups, and what they do to the tensors."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import AxisAction, Fixed, Group, Like, Segment, Symmetry
from ckptzoo.symmetry.tracing.constraints import DEAD, FIXED, OUTPUT, POSITIVE, SIGN, AxisPlacement, Constraints
from ckptzoo.symmetry.tracing.groups import NO_SCALE, Family, families, unique
from ckptzoo.symmetry.tracing.union_find import NodeIds


@dataclass(frozen=True)
class _Part:
    """The positions of a family that are scaled alike.

    Parameters
    ----------
    family : its number.
    scale : number of the scale among each channel's; -1 where there is none.
    kind : of that scale.
    writer : the place that writes it first; where none does, the family's first.
    first : its first place.
    """

    family: int
    scale: int
    kind: str
    writer: int
    first: int


def table(ledger: Constraints, arch: Architecture) -> tuple[Symmetry, tuple[str, ...]]:
    """The symmetry table of all that the ledger knows, and what keeps groups in place, unscaled or apart."""
    found = families(ledger)
    places = list(ledger.places.values())
    parts = sorted(_parts(ledger, found, places), key=lambda part: (part.writer, part.first))
    leaders: dict[int, str] = {}
    groups: list[Group] = []
    names: dict[tuple[int, int], str] = {}
    notes = list(dict.fromkeys(ledger.notes))
    for part in parts:
        family, tensor = found[part.family], places[part.writer].tensor
        name = unique(tensor.rpartition(".")[0] or tensor, names.values())
        names[part.family, part.scale] = name
        still = isinstance(family.perm, Fixed)
        perm = family.perm if still or part.family not in leaders else Like(leaders[part.family])
        leaders.setdefault(part.family, name)
        groups.append(Group(name, len(family.channels), perm, part.kind))
        notes += _notes(ledger, family, part, name, places)
    listings = _listings(found)
    made = [_action(place, listings.get(number, {}), names) for number, place in enumerate(places)]
    order = {name: at for at, name in enumerate(arch.names)}
    actions = sorted((item for item in made if item is not None), key=lambda item: (order[item.tensor], item.axis))
    return Symmetry(tuple(groups), tuple(actions)), tuple(notes)


def _parts(ledger: Constraints, found: Sequence[Family], places: Sequence[AxisPlacement]) -> Iterator[_Part]:
    shown = _shown(found, places, ledger)
    for number, family in enumerate(found):
        if number not in shown:
            continue
        entries = family.channels[0].entries
        first = family.channels[0].first[0]
        for scale in dict.fromkeys(entry.scale for entry in entries):
            mine = [entry for entry in entries if entry.scale == scale]
            written = [entry.place for entry in mine if places[entry.place].role != "in"]
            yield _Part(number, scale, mine[0].kind, min(written, default=first), min(entry.place for entry in mine))


def _shown(found: Sequence[Family], places: Sequence[AxisPlacement], ledger: Constraints) -> set[int]:
    """The families that get groups: all but inputs and outputs of the network that nothing else is known of."""
    shown: set[int] = set()
    by_place: dict[str, dict[int, set[int]]] = {}
    for number, family in enumerate(found):
        entries, fixed = family.channels[0].entries, family.channels[0].fixed
        roles = {places[entry.place].role == "in" for entry in entries}
        atom = np.array([family.channels[0].atom])
        output = ledger.channels.marks(atom, OUTPUT)[0] >= 0
        scaled = any(entry.kind != NO_SCALE for entry in entries)
        if not fixed or scaled or (len(roles) == 2) or (roles == {False} and not output):
            shown.add(number)
        for entry in entries:
            by_place.setdefault(places[entry.place].tensor, {}).setdefault(entry.place, set()).add(number)
    for tensor in {place.tensor for place in places if place.blocks > 1}:
        for here in by_place[tensor].values():
            if here & shown:
                shown |= here
    return shown


def _listings(found: Sequence[Family]) -> dict[int, dict[tuple[int, int], list[list[int]]]]:
    """For every place, and every family and scale there: the positions of each channel."""
    made: dict[int, dict[tuple[int, int], list[list[int]]]] = {}
    for number, family in enumerate(found):
        for rank, channel in enumerate(family.channels):
            for entry in channel.entries:
                rows = made.setdefault(entry.place, {}).setdefault((number, entry.scale), [])
                if rank == len(rows):
                    rows.append([])
                rows[rank].append(entry.at)
    return made


def _action(
    place: AxisPlacement, listing: dict[tuple[int, int], list[list[int]]], names: dict[tuple[int, int], str]
) -> AxisAction | None:
    """What the groups do to an axis; None where they do nothing."""
    by_group = {key: list(_segments(names[key], np.array(rows))) for key, rows in listing.items() if key in names}
    segments = [segment for items in by_group.values() for segment in items]
    if not segments:
        return None
    if all(items == sorted(items, key=lambda item: item.offset) for items in by_group.values()):
        segments.sort(key=lambda item: item.offset)
    return AxisAction(
        place.tensor,
        place.axis,
        tuple(segments),
        place.exponent,
        place.in_mass,
        place.role,
        place.blocks,
        place.eps,
    )


def _segments(group: str, at: NDArray[np.int64]) -> Iterator[Segment]:
    """Runs of channels in order; ``at`` (n, times) are the positions of each, those in a column corresponding."""
    order = at.argsort(axis=1)
    if (order == order[0]).all():
        at = at[:, order[0]]
    column, (n, times) = 0, at.shape
    while column < times:
        inner = 1
        while column + inner < times and (at[:, column + inner] == at[:, column] + inner).all():
            inner += 1
        starts = at[:, column]
        cuts = [0, *(np.flatnonzero(np.diff(starts) != inner) + 1).tolist(), n]
        for first, last in itertools.pairwise(cuts):
            yield Segment(group, int(starts[first]), inner, last - first)
        column += inner


def _notes(
    ledger: Constraints, family: Family, part: _Part, name: str, places: Sequence[AxisPlacement]
) -> Iterator[str]:
    """Why a group stays in place, and why it is not scaled."""
    channel = family.channels[0]
    if isinstance(family.perm, Fixed):
        marks = (
            ledger.channels.marks(np.array([channel.atom]), FIXED)[0],
            ledger.channels.marks(np.array([channel.atom]), OUTPUT)[0],
        )
        reason = max(marks[0], -1) if marks[0] >= 0 else marks[1]
        why = (
            ledger.reasons[reason]
            if reason >= 0
            else "each of its channels lies in a block of its own that stays in place"
        )
        yield f"Group {name!r} stays in place: {why}."
    if part.kind == NO_SCALE:
        atoms = np.array(
            [places[entry.place].scale[entry.at] for entry in channel.entries if entry.scale == part.scale]
        )
        yield f"Group {name!r} is not scaled: {_why(ledger, atoms)}."


def _why(ledger: Constraints, scales: NodeIds) -> str:
    dead, positive, sign = (ledger.scales.marks(scales, kind) for kind in (DEAD, POSITIVE, SIGN))
    if (dead >= 0).any():
        return ledger.reasons[dead[dead >= 0][0]]
    both = (positive >= 0) & (sign >= 0)
    if both.any():
        return f"{ledger.reasons[positive[both][0]]}, and {ledger.reasons[sign[both][0]]}"
    return "no parameter gives it a scale"

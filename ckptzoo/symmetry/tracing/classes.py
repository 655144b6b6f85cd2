"""Classes of tied channels: where each sits in the tensors, how it scales there, and which look alike."""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.tracing.ledger import FIXED, OUTPUT, SIGN, Ledger

NO_SCALE = "none"


@dataclass(frozen=True)
class Entry:
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
    entries: tuple[Entry, ...]
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


def channels(ledger: Ledger) -> dict[int, Channel]:
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
        entries: list[Entry] = []
        facts: list[Hashable] = [fixed, *sorted(sums.get(atom, ()))]
        for row in sorted(rows[atom]):
            scale = -1 if row.scale < 0 else seen.setdefault(row.scale, len(seen))
            entries.append(Entry(row.place, row.at, scale, row.kind))
            facts.append((row.place, row.path, scale, row.kind))
        first = min((reads[entry.place], entry.place, entry.at) for entry in entries)
        made[atom] = Channel(atom, tuple(entries), looks.setdefault(tuple(facts), len(looks)), fixed, first[1:])
    return made


def _rows(ledger: Ledger) -> dict[int, list[_Row]]:
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


def _sums(ledger: Ledger) -> dict[int, list[tuple[int, int]]]:
    """For every channel the sums that it goes into, and its paths there."""
    sums: dict[int, list[tuple[int, int]]] = {}
    for number, labels in enumerate(ledger.sums):
        atoms, paths = np.broadcast_arrays(ledger.channels.find(labels.channel), labels.path)
        for atom, path in zip(atoms.ravel().tolist(), paths.ravel().tolist(), strict=True):
            sums.setdefault(atom, []).append((number, path))
    return sums


def _apart(ledger: Ledger) -> None:
    """No scale for what several channels would share."""
    for place in ledger.places.values():
        ledger.here = f"{place.tensor!r}"
        ledger.kill(place.scale[(place.channel < 0) & (place.scale >= 0)], "has values that stay in place")
    owners: dict[int, int] = {}
    for place in ledger.places.values():
        alive = ledger.alive(place.scale)
        atoms, scales = ledger.channels.find(place.channel[alive]), ledger.scales.find(place.scale[alive])
        for atom, scale in zip(atoms.tolist(), scales.tolist(), strict=True):
            if owners.setdefault(scale, atom) != atom:
                ledger.here = f"{place.tensor!r}"
                ledger.kill(np.array([scale]), "has one scale for several channels")

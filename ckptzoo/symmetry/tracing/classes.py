"""Classes of tied channels: where each sits in the tensors, how it scales there, and which look alike."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.tracing.ledger import FIXED, OUTPUT, SIGN, Ledger

POSITIVE_SCALE, SIGN_SCALE, NO_SCALE = "positive", "sign", "none"


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


def channels(ledger: Ledger) -> dict[int, Channel]:
    """All channels that sit in tensors, by their atoms."""
    _apart(ledger)
    rows = _rows(ledger)
    sums: dict[int, list[tuple[int, int]]] = {}
    for number, labels in enumerate(ledger.sums):
        atoms, paths = np.broadcast_arrays(ledger.channels.find(labels.channel), labels.path)
        for atom, path in zip(atoms.ravel().tolist(), paths.ravel().tolist(), strict=True):
            sums.setdefault(atom, []).append((number, path))
    looks: dict[Hashable, int] = {}
    atoms = np.array(sorted(rows), np.int64)
    held = (ledger.channels.marks(atoms, FIXED) >= 0) | (ledger.channels.marks(atoms, OUTPUT) >= 0)
    places = list(ledger.places.values())
    made: dict[int, Channel] = {}
    for atom, fixed in zip(atoms.tolist(), held.tolist(), strict=True):
        seen: dict[int, int] = {}
        entries: list[Entry] = []
        signature: list[Hashable] = []
        for place, path, at, scale, kind in sorted(rows[atom]):
            number = -1 if scale < 0 else seen.setdefault(scale, len(seen))
            entries.append(Entry(place, at, number, kind))
            signature.append((place, path, number, kind))
        signature.append(tuple(sorted(sums.get(atom, ()))))
        number = looks.setdefault((tuple(signature), fixed), len(looks))
        made[atom] = Channel(atom, tuple(entries), number, fixed, _first(entries, [place.role for place in places]))
    return made


def _first(entries: Iterable[Entry], roles: list[str]) -> tuple[int, int]:
    return min((roles[entry.place] == "in", entry.place, entry.at) for entry in entries)[1:]


def _rows(ledger: Ledger) -> dict[int, list[tuple[int, int, int, int, str]]]:
    """For every channel: place, path, position, scale and its kind."""
    rows: dict[int, list[tuple[int, int, int, int, str]]] = {}
    for number, place in enumerate(ledger.places.values()):
        atoms = ledger.channels.find(place.channel).tolist()
        alive = ledger.alive(place.scale)
        scales = np.where(alive, ledger.scales.find(place.scale), -1)
        signs = ledger.scales.marks(scales, SIGN) >= 0
        kinds = np.where(alive, np.where(signs, SIGN_SCALE, POSITIVE_SCALE), NO_SCALE).tolist()
        for at, row in enumerate(zip(atoms, place.path.tolist(), scales.tolist(), kinds, strict=True)):
            atom, path, scale, kind = row
            if atom >= 0:
                rows.setdefault(atom, []).append((number, path, at, scale, kind))
    return rows


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

"""From blocks that are wanted to requests: few, with little waste, in the order in which they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ckptzoo.spec.span import Span

WASTE_SHARE = 0.02
"""Of the wanted bytes of a file: so many between them are fetched too, where that saves requests."""
WASTE_BYTES = 200_000
"""Up to so many, where a file has more than ``MOST`` requests otherwise."""
SPLIT_BYTES = 32 * 2**20
"""Requests of at least twice this are cut in two, where a file has only one."""
MOST = 2
"""Requests a file that are few: up to these long ones are cut, and down to these ``WASTE_BYTES`` are spent."""


@dataclass(frozen=True)
class Run:
    """One request.

    Parameters
    ----------
    name : the file.
    start, stop : bytes, with those between blocks that are fetched in vain.
    places : which of the wanted blocks it brings; ascending, in the file too.
    """

    name: str
    start: int
    stop: int
    places: tuple[int, ...]


def plan(wanted: Sequence[Span], places: Sequence[int], *, longest: int) -> list[Run]:
    """Requests for some of the blocks, by the first block that each brings.

    A request brings blocks of one file whose order in the file is the order in which they are wanted, so that a
    reader who takes them in order never waits behind a block that it wants later. Among such neighbours the smallest
    gaps are bridged first, while the bytes between stay within ``WASTE_SHARE`` of those wanted of the file, and then
    within ``WASTE_BYTES`` while the file has more than ``MOST`` requests. No other choice of as much waste has fewer.

    Parameters
    ----------
    wanted : blocks in the order of the reader; none overlaps another.
    places : those to fetch.
    longest : bytes up to which a long request is cut in two; a longer one could not be read from both ends at once.

    Notes
    -----
    Held by ``tests/remote/test_plan.py``. Cost: one sort.
    """
    files: dict[str, list[int]] = {}
    for place in places:
        files.setdefault(wanted[place].name, []).append(place)
    runs: list[Run] = []
    for mine in files.values():
        runs.extend(_file(wanted, sorted(mine, key=lambda place: wanted[place].start), longest))
    return sorted(runs, key=lambda run: run.places[0])


def _file(wanted: Sequence[Span], order: list[int], longest: int) -> list[Run]:
    gaps: list[tuple[int, int]] = []
    cuts = set[int]()
    for at, (before, after) in enumerate(pairwise(order), start=1):
        gap = wanted[after].start - wanted[before].stop
        if before > after or gap < 0:
            cuts.add(at)
        else:
            gaps.append((gap, at))
    share = WASTE_SHARE * sum(wanted[place].stop - wanted[place].start for place in order)
    requests, waste = len(order), 0
    for gap, at in sorted(gaps):
        most = share if requests <= MOST else max(share, WASTE_BYTES)
        if waste + gap <= most:
            requests, waste = requests - 1, waste + gap
        else:
            cuts.add(at)
    bounds = [0, *sorted(cuts), len(order)]
    pieces = [order[start:stop] for start, stop in pairwise(bounds)]
    while 0 < len(pieces) < MOST:
        halves = [half for piece in pieces for half in _halved(wanted, piece, longest)]
        if len(halves) == len(pieces):
            break
        pieces = halves
    return [
        Run(wanted[piece[0]].name, wanted[piece[0]].start, wanted[piece[-1]].stop, tuple(piece)) for piece in pieces
    ]


def _halved(wanted: Sequence[Span], piece: list[int], longest: int) -> list[list[int]]:
    start, stop = wanted[piece[0]].start, wanted[piece[-1]].stop
    if len(piece) < 2 or not 2 * SPLIT_BYTES <= stop - start <= longest:
        return [piece]
    middle = (start + stop) // 2
    at = min(range(1, len(piece)), key=lambda at: abs(wanted[piece[at]].start - middle))
    return [piece[:at], piece[at:]]

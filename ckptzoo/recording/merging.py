"""Units of finished work become parts of a zoo; what a merge that was killed left undone is done by the next."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.writer import append
from ckptzoo.recording.claims import Claims

MERGE = "merge"
"""The name of the claim of a merge."""
MAX_PART_BYTES = 32 * 2**30
"""The largest number of bytes of weights in a part that a merge writes, unless one unit is larger."""
AnyUnit = TypeVar("AnyUnit")
Weights = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class MergedPart(Generic[AnyUnit]):
    """A part that a merge made, and the units in it."""

    name: str
    units: tuple[AnyUnit, ...]
    checkpoints: int


@contextmanager
def one_merge(folder: Path, root: Path) -> Iterator[None]:
    """Hold the claim of merges in a folder; raises ZooError where another process has it."""
    claims = Claims(folder)
    with claims.held(MERGE) as claim:
        if claim is None:
            holder = claims.holder(MERGE)
            got = "another" if holder is None else f"process {holder.process} on {holder.host}"
            raise ZooError(Problem(str(root), "merge", "no other one at work", got, "Wait for it to end, or stop it."))
        yield


def add_units(
    root: Path,
    units: Iterable[AnyUnit],
    *,
    nbytes: Callable[[AnyUnit], int],
    read: Callable[[AnyUnit], Iterable[tuple[Weights, Rows]]],
    forget: Callable[[AnyUnit], None],
) -> Iterator[MergedPart[AnyUnit]]:
    """Write units into a zoo, in parts of at most ``MAX_PART_BYTES`` of weights; yield each part as it is published.

    ``read`` gives the stacked checkpoints of a unit and their rows, and ``forget`` removes the unit's files, after its
    part was published: a merge that was killed in between finds the ids of the unit in the zoo.
    """
    for group in _groups(units, nbytes):
        count = 0
        with append(root) as writer:
            for unit in group:
                for weights, rows in read(unit):
                    writer.add(weights, rows)
                    count += len(rows)
            part = writer.commit()
        for unit in group:
            forget(unit)
        if part is not None:
            yield MergedPart(part, tuple(group), count)


def _groups(units: Iterable[AnyUnit], nbytes: Callable[[AnyUnit], int]) -> Iterator[list[AnyUnit]]:
    """Yield groups of units of at most ``MAX_PART_BYTES``, or of one unit."""
    group: list[AnyUnit] = []
    held = 0
    for unit in units:
        size = nbytes(unit)
        if group and held + size > MAX_PART_BYTES:
            yield group
            group, held = [], 0
        group.append(unit)
        held += size
    if group:
        yield group

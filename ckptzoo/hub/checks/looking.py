"""Every check of a contribution, from the bytes of its parts in a folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ckptzoo
from ckptzoo.hub.checks import rows
from ckptzoo.hub.checks.accuracy import Bench, Figures, accuracy, measure
from ckptzoo.hub.checks.check import Check, judged
from ckptzoo.hub.checks.duplicates import copies
from ckptzoo.hub.checks.entries import Entry, entries
from ckptzoo.hub.checks.evaluation import evaluations, of_recipe
from ckptzoo.hub.checks.standing import Standing
from ckptzoo.loader.zoo import Zoo

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Looked:
    """What was found in the parts of a contribution.

    Parameters
    ----------
    checks : in order; where the parts are not sound there is nothing but that.
    entries : the checkpoints.
    zoo : they alone, opened; None where they are not sound.
    """

    checks: tuple[Check, ...]
    entries: tuple[Entry, ...] = ()
    zoo: Zoo | None = None


def sound(folder: Path) -> Check:
    """Seals, digests, names, shapes and dtypes, and no file that does not belong there: ``ckptzoo.verify``."""
    problems = ckptzoo.verify(folder)
    wrong = [f"{problem.where}: {problem.what}: expected {problem.expected}, got {problem.got}" for problem in problems]
    return judged("bytes", wrong, "seals, digests, names, shapes and dtypes are right")


def look(
    folder: Path,
    standing: Standing | None,
    bench: Bench,
    *,
    measured: dict[str, Figures] | None = None,
    progress: Progress | None = None,
) -> Looked:
    """Check the parts of a contribution.

    Parameters
    ----------
    folder : a zoo's documents and the contributed parts alone.
    standing : the zoo as it is; None for a new one.
    bench : measures accuracies where it can.
    measured : figures by id that were measured already; None measures them.
    """
    first = sound(folder)
    if first.outcome == "failed":
        return Looked((first,))
    zoo = ckptzoo.open(folder)
    if not len(zoo):
        return Looked((first, Check("ids", "failed", "no checkpoints")))
    looks = rows.ids_and_units(zoo, standing), rows.licence(zoo), rows.values(zoo), rows.finiteness(zoo)
    found = copies(zoo, standing)
    if measured is None:
        told = evaluations(zoo)
        if standing is not None:
            named = zoo.metadata["recipe"].to_pylist()
            own = {name: of_recipe(standing.zoo, name) for name in set(named) - {None}}
            told = [item or own.get(name) for item, name in zip(told, named, strict=True)]
        measured = measure(zoo, bench, told, None if progress is None else lambda a, b: progress("measuring", a, b))
    checks = (first, *looks, found.check(), accuracy(zoo, measured, bench))
    return Looked(checks, entries(zoo, measured, found.found), zoo)

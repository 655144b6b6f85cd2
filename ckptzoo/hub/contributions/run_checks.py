"""Every check of a contribution, from the bytes of its parts in a folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ckptzoo
from ckptzoo.hub.contributions import row_checks
from ckptzoo.hub.contributions.duplicates import copies
from ckptzoo.hub.contributions.evaluation import EvaluatorPool, Figures, accuracy, evaluations, measure, of_recipe
from ckptzoo.hub.contributions.report import Check, CheckpointSummary, check_result, entries
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from ckptzoo.loader.zoo import Zoo

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class CheckReport:
    """What was found in the parts of a contribution.

    Parameters
    ----------
    checks : in order; where the parts are not sound there is nothing but that.
    entries : the checkpoints.
    zoo : they alone, opened; None where they are not sound.
    """

    checks: tuple[Check, ...]
    entries: tuple[CheckpointSummary, ...] = ()
    zoo: Zoo | None = None


def sound(folder: Path) -> Check:
    """Seals, digests, names, shapes and dtypes, and no file that does not belong there: ``ckptzoo.verify``."""
    problems = ckptzoo.verify(folder)
    wrong = [
        f"{problem.location}: {problem.what}: expected {problem.expected}, got {problem.got}" for problem in problems
    ]
    return check_result("bytes", wrong, "seals, digests, names, shapes and dtypes are right")


def run_checks(
    folder: Path,
    standing: TargetZoo | None,
    bench: EvaluatorPool,
    *,
    measured: dict[str, Figures] | None = None,
    progress: Progress | None = None,
) -> CheckReport:
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
        return CheckReport((first,))
    zoo = ckptzoo.open(folder)
    if not len(zoo):
        return CheckReport((first, Check("ids", "failed", "no checkpoints")))
    looks = (
        row_checks.ids_and_units(zoo, standing),
        row_checks.licence(zoo),
        row_checks.values(zoo),
        row_checks.finiteness(zoo),
    )
    found = copies(zoo, standing)
    if measured is None:
        told = evaluations(zoo)
        if standing is not None:
            named = zoo.metadata["recipe"].to_pylist()
            own = {name: of_recipe(standing.zoo, name) for name in set(named) - {None}}
            told = [item or own.get(name) for item, name in zip(told, named, strict=True)]
        measured = measure(zoo, bench, told, None if progress is None else lambda a, b: progress("measuring", a, b))
    checks = (first, *looks, found.check(), accuracy(zoo, measured, bench))
    return CheckReport(checks, entries(zoo, measured, found.found), zoo)

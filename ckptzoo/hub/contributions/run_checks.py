"""``run_checks``: every check of a contribution, from the bytes of its parts in a folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import ckptzoo
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_trees
from ckptzoo.format.tree import empty_tree
from ckptzoo.hub.contributions import row_checks
from ckptzoo.hub.contributions.duplicates import copies
from ckptzoo.hub.contributions.evaluation import (
    EvaluatorPool,
    Figures,
    evaluation_of_recipe,
    evaluations,
    measure_zoo,
)
from ckptzoo.hub.contributions.figure_checks import check_accuracy, check_loss
from ckptzoo.hub.contributions.report import Check, CheckpointSummary, check_result, summarize
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.text import Progress, StageProgress, excerpt


@dataclass(frozen=True)
class CheckReport:
    """The result of checking the parts of a contribution.

    ``checks`` are in order; where the bytes are damaged, that check alone, and ``zoo`` is None; else ``zoo`` holds the
    contributed checkpoints. ``measured`` has figures by id.
    """

    checks: tuple[Check, ...]
    entries: tuple[CheckpointSummary, ...] = ()
    zoo: Zoo | None = None
    measured: Mapping[str, Figures] = field(default_factory=dict)


def check_bytes(folder: Path) -> Check:
    """Check seals, digests, names, shapes and dtypes, and that no other file is there: ``ckptzoo.verify``."""
    problems = ckptzoo.verify(folder)
    wrong = [
        f"{problem.location}: {problem.what}: expected {problem.expected}, got {problem.got}" for problem in problems
    ]
    if not wrong:
        # other facts would be printed on the owner's page, or say that a part has no weights
        parts = read_trees(Folder(folder)).get(layout.PARTS, empty_tree()).parts
        odd = [part for part in parts if part.facts != {"kind": layout.RAW}]
        wrong = [f"{part.path}: facts: expected the kind raw alone, got {excerpt(part.facts, 80)}" for part in odd]
    return check_result("bytes", wrong, "seals, digests, names, shapes and dtypes are right")


def run_checks(
    folder: Path,
    target: TargetZoo | None,
    evaluators: EvaluatorPool,
    *,
    measured: dict[str, Figures] | None = None,
    progress: StageProgress | None = None,
) -> CheckReport:
    """Check the parts of a contribution.

    ``folder`` has a zoo's documents and the contributed parts alone; ``target`` is the zoo's present state, None for a
    new one; ``evaluators`` measure accuracies where they can; ``measured`` has figures by id that were measured before,
    None measures them.
    """
    byte_check = check_bytes(folder)
    if byte_check.outcome == "failed":
        return CheckReport((byte_check,))
    zoo = ckptzoo.open(folder)
    if not len(zoo):
        return CheckReport((byte_check, Check("ids", "failed", "no checkpoints")))
    row_results = (
        row_checks.check_ids(zoo, target),
        row_checks.check_licence(zoo),
        row_checks.check_values(zoo),
        row_checks.check_finite(zoo),
    )
    duplicates = copies(zoo, target)
    if measured is None:
        measured = measured_figures(
            zoo, target, evaluators, None if progress is None else partial(progress, "measuring")
        )
    loss = check_loss(zoo, measured)
    figures = (check_accuracy(zoo, measured, evaluators), *((loss,) if loss is not None else ()))
    checks = (byte_check, *row_results, duplicates.check(), *figures)
    return CheckReport(checks, summarize(zoo, measured, duplicates.found), zoo, measured)


def measured_figures(
    zoo: Zoo, target: TargetZoo | None, evaluators: EvaluatorPool, progress: Progress | None = None
) -> dict[str, Figures]:
    """Return figures by id of the checkpoints that can be measured, scaled as their rows or the zoo's recipes say."""
    evaluations_by_row = evaluations(zoo)
    if target is not None:
        recipes = zoo.metadata["recipe"].to_pylist()
        by_recipe = {name: evaluation_of_recipe(target.zoo, name) for name in set(recipes) - {None}}
        evaluations_by_row = [
            item or by_recipe.get(name) for item, name in zip(evaluations_by_row, recipes, strict=True)
        ]
    return measure_zoo(zoo, evaluators, evaluations_by_row, progress)

"""``run_checks``: every check of a contribution, from the bytes of its parts in a folder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
from ckptzoo.hub.contributions.file_names import claimed_accuracy, claimed_loss
from ckptzoo.hub.contributions.report import ACCURACY, CheckpointSummary, ReviewCheck, check_result, said_as, summarize
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.text import Progress, StageProgress, counted, excerpt


@dataclass(frozen=True)
class CheckReport:
    """The result of checking the parts of a contribution.

    ``checks`` are in order; where the bytes are damaged, that check alone, and ``zoo`` is None; else ``zoo`` holds the
    contributed checkpoints. ``measured`` has figures by id.
    """

    checks: tuple[ReviewCheck, ...]
    entries: tuple[CheckpointSummary, ...] = ()
    zoo: Zoo | None = None
    measured: Mapping[str, Figures] = field(default_factory=dict)


def check_bytes(folder: Path) -> ReviewCheck:
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
        return CheckReport((byte_check, ReviewCheck("ids", "failed", "no checkpoints")))
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
        recipes = zoo.column("recipe").to_pylist()
        by_recipe = {name: evaluation_of_recipe(target.zoo, name) for name in set(recipes) - {None}}
        evaluations_by_row = [
            item or by_recipe.get(name) for item, name in zip(evaluations_by_row, recipes, strict=True)
        ]
    return measure_zoo(zoo, evaluators, evaluations_by_row, progress)


STATED_TOLERANCE = 1e-3
"""Largest difference between a measured figure that a row states and one measured here, as machines round; of a loss
also as a share of it."""
CLAIMED_TOLERANCE = 5e-3
"""The same for claimed figures, as people round."""
_NO_CROSS_ENTROPY = (
    "a file's test loss, which need not be the mean cross entropy in nats; claimed_test_loss in contribution.toml is"
)


def check_accuracy(zoo: Zoo, measured: Mapping[str, Figures], evaluators: EvaluatorPool) -> ReviewCheck:
    """Check that stated and claimed accuracies agree with the measured ones.

    A stated one (``test_accuracy``) may differ by 0.001, which is 10 of 10,000 images; a claimed one by 0.005. Figures
    that the file of a checkpoint held are claims.
    """
    wrong: list[str] = []
    given: dict[str, list[float]] = {"test_accuracy": [], "claimed_test_accuracy": []}
    for row in zoo.metadata.select(["id", "test_accuracy", "claimed_test_accuracy", "extra"]).to_pylist():
        said = {"test_accuracy": row["test_accuracy"], "claimed_test_accuracy": claimed_accuracy(row)}
        for column, value in said.items():
            given[column] += [] if value is None else [value]
        if (figures := measured.get(row["id"])) is not None:
            wrong += _differing(row["id"], said, figures["test_accuracy"], share=0.0)
    if not measured:
        reason = "; ".join(evaluators.reasons) or "nothing to measure"
        stated, claimed = given.values()
        how = said_as(claimed=bool(claimed), stated=bool(stated))
        untested = f"{how} {_spread([*stated, *claimed])}, not measured: " if how else ""
        return ReviewCheck(ACCURACY, "not done", f"{untested}{reason}")
    spread = _spread([figures["test_accuracy"] for figures in measured.values()])
    unmeasured = len(zoo) - len(measured)
    remaining = f"; {counted(unmeasured, 'other')} not measured: {'; '.join(evaluators.reasons)}" if unmeasured else ""
    return check_result(
        ACCURACY,
        wrong,
        f"measured of {counted(len(measured), 'checkpoint')}, {spread}, on {evaluators.summary}{remaining}",
    )


def check_loss(zoo: Zoo, measured: Mapping[str, Figures]) -> ReviewCheck | None:
    """Check that stated and claimed losses agree with the measured mean cross entropy in nats; None where there are
    none.

    A stated one (``test_nll``) may differ by 0.001 and 0.1 % of it, a claimed one by 0.005 and 0.5 %. A test loss
    that a file held may be of another kind, such as with smoothed labels: one that differs is named, and fails
    nothing.
    """
    wrong: list[str] = []
    unknown: list[str] = []
    compared = claims = claimed_losses = 0
    for row in zoo.metadata.select(["id", "test_nll", "claimed_test_loss", "extra"]).to_pylist():
        claimed = claimed_loss(row)
        stated: dict[str, float | None] = {"test_nll": row["test_nll"]}
        if claimed is not None:
            stated["claimed_test_loss"] = claimed.value
        claimed_losses += claimed is not None
        claims += any(value is not None for value in stated.values())
        if (figures := measured.get(row["id"])) is None:
            continue
        differing = _differing(row["id"], stated, figures["test_nll"], share=1.0)
        compared += any(value is not None for value in stated.values())
        for text in differing:
            of_file = claimed is not None and not claimed.is_cross_entropy and "claimed_test_loss" in text
            (unknown if of_file else wrong).append(text)
    if not claims:
        return None
    if not compared:
        how = said_as(claimed=claimed_losses > 0, stated=claims > claimed_losses)
        return ReviewCheck(
            "loss", "not done", f"{how} of {counted(claims, 'checkpoint')}, not measured; see {ACCURACY}"
        )
    note = f"; not compared: {'; '.join(unknown[:4])} ({_NO_CROSS_ENTROPY})" if unknown else ""
    return check_result("loss", wrong, f"{counted(compared, 'checkpoint')} with the mean cross entropy in nats{note}")


def _differing(name: str, said: Mapping[str, float | None], measured: float, *, share: float) -> Iterable[str]:
    """Yield figures that differ from what was measured by more than their tolerance, which grows by ``share`` of
    itself for each unit of the measured value.
    """
    for column, value in said.items():
        tolerance = CLAIMED_TOLERANCE if column.startswith("claimed_") else STATED_TOLERANCE
        if (
            value is not None
            # not <=, because every comparison with NaN is false, and NaN alone differs from itself
            and not abs(value - measured) <= tolerance * (1 + share * abs(measured))
            and not (value != value and measured != measured)
        ):
            yield f"{name}: {column} {value:.4f}, measured {measured:.4f}"


def _spread(values: Sequence[Any]) -> str:
    finite = [value for value in map(float, values) if not np.isnan(value)]
    ends = (min(finite), max(finite)) if finite else ()
    return " to ".join(dict.fromkeys(f"{value:.2%}" for value in ends)) or "no number"

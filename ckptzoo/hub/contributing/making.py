"""The new part: built in a folder that has the zoo's documents and nothing else of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo.hub.checks.accuracy import Bench, Figures
from ckptzoo.hub.checks.duplicates import digests
from ckptzoo.hub.checks.evaluation import KEY, Evaluation, evaluation_of, of_recipe
from ckptzoo.hub.checks.standing import Standing
from ckptzoo.hub.contributing.submission import Row, Submission
from ckptzoo.hub.contributing.taking import Taken, Taker
from ckptzoo.spec import layout
from ckptzoo.spec.architecture import Architecture

UNIT = "weights"
"""How the unit of a contributed checkpoint begins, before the digest of its weights."""


@dataclass
class Made:
    """What went into a part.

    Parameters
    ----------
    part : its name; None where nothing fitted.
    measured : figures by id.
    notes : what was done to files, and to how many.
    left_out : what files hold besides, and how many of them.
    """

    part: str | None = None
    measured: dict[str, Figures] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def told(self, counts: dict[str, int]) -> tuple[str, ...]:
        """Remarks, with how many sources each is of."""
        return tuple(f"{text} ({count:,} of the files)" for text, count in counts.items())


def fill(
    folder: Path,
    taker: Taker,
    paths: Sequence[Path],
    arch: Architecture,
    standing: Standing | None,
    bench: Bench,
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the checkpoints of files into one new part of the zoo in a folder, measuring them on the way.

    Nothing is written where a file does not fit; ``taker.problems`` says why.
    """
    made, writer = Made(), ckptzoo.append(folder)
    count = 0
    with writer:
        for taken in taker.take(paths, arch):
            count += len(taken.rows)
            if progress is not None:
                progress(count, max(count, len(paths)))
            for counts, texts in ((made.notes, taken.notes), (made.left_out, taken.left_out)):
                for text in texts:
                    counts[text] = counts.get(text, 0) + 1
            if taker.problems:
                continue
            _measure(taken, taker.submission, standing, bench, made.measured)
            for row, digest in zip(taken.rows, digests(dict(taken.weights)), strict=True):
                row["unit"] = f"{UNIT}-{digest[:40]}"
            writer.add(taken.weights, taken.rows)
        if taker.problems:
            writer.discard()
        else:
            made.part = writer.commit()
    return made


def numbered(folder: Path, part: str, sequence: int) -> str:
    """Give a part the number that it has in the zoo; its digest does not cover its name."""
    name = f"{sequence:06d}{part[6:]}"
    (folder / layout.PARTS / part).rename(folder / layout.PARTS / name)
    return name


def _measure(
    taken: Taken, submission: Submission, standing: Standing | None, bench: Bench, measured: dict[str, Figures]
) -> None:
    """Put figures and how they were measured into rows that have none."""
    for at, row in enumerate(taken.rows):
        evaluation = _evaluation(row, submission, standing)
        (found,) = bench.measured(_one(taken, at), evaluation)
        if evaluation is not None:
            row["extra"] = {**row["extra"], KEY: evaluation.to_json()}
        if found is None or evaluation is None:
            continue
        measured[row["id"]] = found
        if row.get("test_accuracy") is None:
            row.update({name: value for name, value in found.items() if np.isfinite(value)})
            row["extra"][KEY]["test_set"] = bench.digest(evaluation)


def _one(taken: Taken, at: int) -> dict[str, NDArray[Any]]:
    return {name: array[at : at + 1] for name, array in taken.weights.items()}


def _evaluation(row: Row, submission: Submission, standing: Standing | None) -> Evaluation | None:
    """What the contribution says, else the row, else the zoo's rows of the same recipe."""
    if submission.evaluation is not None:
        return submission.evaluation
    own = evaluation_of(row["extra"], row.get("dataset"))
    if own is None and standing is not None and isinstance(recipe := row.get("recipe"), str):
        own = of_recipe(standing.zoo, recipe)
    return own

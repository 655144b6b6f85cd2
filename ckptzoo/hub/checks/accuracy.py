"""The accuracy that rows state, held against one that is measured here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ckptzoo.hub import heldout
from ckptzoo.hub.checks.check import Check, judged
from ckptzoo.hub.checks.evaluation import Evaluation
from ckptzoo.hub.checks.measuring import COLUMNS, Factory, Judge, factory_of
from ckptzoo.hub.checks.standing import Weights, batches
from ckptzoo.hub.heldout import HeldOut
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec.architecture import Architecture
from ckptzoo.words import counted

STATED = 1e-3
"""A measured accuracy that a row states may differ by so much from one measured here, as machines round."""
CLAIMED = 5e-3
"""One that is claimed may differ by so much, as people round."""

Figures = dict[str, float]
Progress = Callable[[int, int], None]


@dataclass
class Bench:
    """Measures checkpoints where their data set and their forward function are at hand.

    Parameters
    ----------
    arch : of the checkpoints.
    module : ``FILE.py:NAME`` of one's own, or a factory; None for that of ``ckptzoo.archs``.
    data : where test sets lie; None for the folder of ``CKPTZOO_DATA``.
    """

    arch: Architecture
    module: str | Factory | None = None
    data: str | Path | None = None
    _judges: dict[Evaluation, Judge | None] = field(default_factory=dict)
    _sets: dict[str, HeldOut | None] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def measured(self, weights: Weights, evaluation: Evaluation | None) -> list[Figures | None]:
        """Figures of K checkpoints; None where they cannot be measured, ``reasons`` says why."""
        count = len(next(iter(weights.values())))
        judge = self._judge(evaluation)
        if judge is None:
            return [None] * count
        found = judge.columns(weights)
        return [{name: float(found[name][row]) for name in COLUMNS} for row in range(count)]

    def _judge(self, evaluation: Evaluation | None) -> Judge | None:
        if evaluation is None:
            self._note("no row or card says which test set and which scaling of its pixels")
            return None
        if evaluation not in self._judges:
            self._judges[evaluation] = self._made(evaluation)
        return self._judges[evaluation]

    def _made(self, evaluation: Evaluation) -> Judge | None:
        if evaluation.dataset not in self._sets:
            self._sets[evaluation.dataset] = heldout.find(evaluation.dataset, self.data)
        images = self._sets[evaluation.dataset]
        if images is None:
            variable = heldout.FOLDER_VARIABLE
            self._note(f"no test set of {evaluation.dataset} at hand (--data FOLDER or {variable} names where it is)")
            return None
        factory = factory_of(self.arch, self.module)
        if factory is None:
            self._note(f"ckptzoo.archs has no forward function for {self.arch.name} (--module FILE.py:NAME gives one)")
            return None
        return Judge(self.arch, factory, images, evaluation)

    def digest(self, evaluation: Evaluation) -> str | None:
        """The digest of a test set that was used."""
        found = self._sets.get(evaluation.dataset)
        return None if found is None else found.digest

    @property
    def used(self) -> str:
        """On what was measured, for people."""
        told = [str(evaluation) for evaluation, judge in self._judges.items() if judge is not None]
        return "; ".join(told[:3]) + (f" and {len(told) - 3:,} others" if len(told) > 3 else "")

    def _note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def measure(
    zoo: Zoo, bench: Bench, evaluations: list[Evaluation | None], progress: Progress | None = None
) -> dict[str, Figures]:
    """Figures of a zoo's checkpoints by id, of those that can be measured."""
    made: dict[str, Figures] = {}
    at = 0
    for ids, weights in batches(zoo):
        for row, name in enumerate(ids):
            (found,) = bench.measured({key: array[row : row + 1] for key, array in weights.items()}, evaluations[at])
            at += 1
            if found is not None:
                made[name] = found
            if progress is not None:
                progress(at, len(zoo))
    return made


def accuracy(zoo: Zoo, measured: Mapping[str, Figures], bench: Bench) -> Check:
    """Stated and claimed accuracies agree with those that were measured.

    A stated one (``test_accuracy``) may differ by 0.001, which is 10 of 10,000 images; a claimed one by 0.005.
    """
    wrong: list[str] = []
    for row in zoo.metadata.select(["id", "test_accuracy", "claimed_test_accuracy"]).to_pylist():
        if (found := measured.get(row["id"])) is None:
            continue
        mine = found["test_accuracy"]
        for column, most in (("test_accuracy", STATED), ("claimed_test_accuracy", CLAIMED)):
            said = row[column]
            if said is not None and not abs(said - mine) <= most and not (said != said and mine != mine):
                wrong.append(f"{row['id']}: {column} {said:.4f}, measured {mine:.4f}")
    if not measured and not wrong:
        return Check("accuracy", "not done", "; ".join(bench.reasons) or "nothing to measure")
    values = np.array([found["test_accuracy"] for found in measured.values()])
    finite = values[~np.isnan(values)]
    spread = f", {finite.min():.2%} to {finite.max():.2%}" if len(finite) else ""
    left = len(zoo) - len(measured)
    told = f"; {counted(left, 'other')} not measured: {'; '.join(bench.reasons)}" if left else ""
    return judged(
        "accuracy", wrong, f"measured of {counted(len(measured), 'checkpoint')}{spread}, on {bench.used}{told}"
    )

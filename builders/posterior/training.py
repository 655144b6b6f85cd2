"""The training of chains and the draws of their modes, unit by unit, with the metadata of each draw."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from builders import metadata, rng
from builders.checkpointing import Interrupted, Unit
from builders.data_source import Feed
from builders.energy import Spent
from builders.posterior.method import Method, Surroundings
from builders.posterior.modes import MODE_WEIGHTS, FoundModes, draw_id
from builders.posterior.plan import DrawUnit, PosteriorPlan
from builders.progress import duration
from builders.state import TrainingState
from builders.train import Trainer
from builders.units import UnitTraining
from ckptzoo.text import counted

FIRST_GAUSSIAN = 10**6
"""The number under which a unit's Gaussians are stored beside its draws; a mode has fewer draws."""
_EXTRA = ("engine", "trained_together", "energy_joules")
"""The keys of ``extra`` that draws share with trained members."""
_MEASURED = 64
"""Draws that are measured together."""


def with_steps(trainer: Trainer, model: Method, surroundings: Surroundings) -> Trainer:
    """Return the trainer with the steps of a method in place of plain training."""

    def advance(data_source: Feed, state: TrainingState, stop: int) -> None:
        model.advance(surroundings, state, stop)

    alone = model.one_at_a_time
    return replace(trainer, engine=advance, few_groups=not alone, one_at_a_time=alone)


@dataclass(frozen=True, eq=False)
class DrawTraining(UnitTraining):
    """The chains of a plan's modes, and their draws."""

    plan: PosteriorPlan
    model: Method
    modes: FoundModes
    surroundings: Surroundings

    @property
    def name(self) -> str:
        return self.model.label

    @property
    def steps(self) -> int:
        return self.model.steps

    def stops(self, unit: Unit) -> Sequence[int]:
        assert isinstance(unit, DrawUnit)
        # the end too, where a chain's mean and deviations are known
        return sorted({*(step for step, _ in self.model.stops(unit.draws)), self.model.steps})

    def is_finished(self, unit: Unit) -> bool:
        assert isinstance(unit, DrawUnit)
        return self.build_folder.is_finished(unit, unit.draws) and not self._unmeasured(unit)

    def is_stored(self, unit: Unit, step: int) -> bool:
        assert isinstance(unit, DrawUnit)
        numbers = (number for at, places in self.model.stops(unit.draws) if at == step for number in places)
        return all(self.build_folder.is_kept(unit, number) for number in numbers)

    def start(self, unit: Unit) -> TrainingState:
        assert isinstance(unit, DrawUnit)
        keys = rng.member_keys(self.model.digest, unit.seeds)
        weights = self.modes.weights_of(list(unit.modes), self.surroundings.data_source.device)
        return self.model.start(self.surroundings, keys, weights)

    def at_stop(self, unit: Unit, state: TrainingState, total: Spent) -> None:
        assert isinstance(unit, DrawUnit)
        gaussian = self.model.gaussian(self.surroundings, state) if state.step == self.steps else None
        if gaussian is not None and not self.build_folder.is_kept(unit, FIRST_GAUSSIAN):
            now, recipe = datetime.now(UTC), self.model.recipe
            facts = {"dataset": recipe.dataset, "dataset_digest": self.plan.dataset_digest, "extra": self.model.facts()}
            rows = [
                {"id": name, "member": name, "seed": seed, "unit": unit.name, "created": now, **facts, **self._common()}
                for name, seed in zip(self._names(unit), unit.seeds, strict=True)
            ]
            self.build_folder.keep(unit, FIRST_GAUSSIAN, gaussian, rows)
        for step, numbers in self.model.stops(unit.draws):
            for number in numbers if step == state.step else ():
                if not self.build_folder.is_kept(unit, number):
                    weights = self.model.draw(self.surroundings, state, number)
                    self.build_folder.keep(unit, number, weights, self._rows(unit, number, state, total))

    def finish(self, unit: Unit) -> None:
        """Measure the draws, many together, because a few take as long as ``_MEASURED`` of them."""
        assert isinstance(unit, DrawUnit)
        unmeasured, size = self._unmeasured(unit), max(1, _MEASURED // len(unit.modes))
        for first in range(0, len(unmeasured), size):
            if self.should_stop():
                raise Interrupted(f"{unit.name}: stopped while draws were measured. Run the same command to carry on.")
            numbers = unmeasured[first : first + size]
            kept = [self.build_folder.read_kept(unit, number) for number in numbers]
            together = {
                name: torch.from_numpy(np.concatenate([weights[name] for weights, _ in kept])).to(
                    self.surroundings.data_source.device
                )
                for name in kept[0][0]
            }
            measured = self.trainer.measure(together)
            for place, (number, (weights, rows)) in enumerate(zip(numbers, kept, strict=True)):
                for mode, row in enumerate(rows):
                    index = place * len(unit.modes) + mode
                    row |= {column: values[index].item() for column, values in measured.items()}
                tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
                self.build_folder.keep(unit, number, tensors, rows)

    def _unmeasured(self, unit: DrawUnit) -> list[int]:
        """Return the stored draws whose rows lack the measured columns."""
        return [number for number in unit.draws if "diverged" not in self.build_folder.read_kept(unit, number)[1][0]]

    def _rows(self, unit: DrawUnit, number: int, state: TrainingState, total: Spent) -> list[dict[str, Any]]:
        """Return one row a mode, without the columns that are measured later."""
        rows = metadata.rows(
            self.model.chain,
            self.surroundings.source,
            {},
            unit=unit.name,
            seeds=unit.seeds,
            step=state.step,
            spent=total,
            device=self.plan.device,
            engine=self.engine,
        )
        own = self.model.mode_facts(state)
        starts = [{MODE_WEIGHTS: self.modes.digests[mode]} if self.modes.digests else {} for mode in unit.modes]
        for row, mode, seed, facts, start in zip(rows, self._names(unit), unit.seeds, own, starts, strict=True):
            name = draw_id(self.model, seed, number)
            kept = {key: row["extra"][key] for key in _EXTRA if key in row["extra"]}
            extra = {**self.model.facts(), **facts, **kept, **start}
            row |= {"id": name, "member": name, "mode": mode, "draw": number, **self._common(), "extra": extra}
        return rows

    def _names(self, unit: DrawUnit) -> list[str]:
        return [self.modes.names[mode] for mode in unit.modes]

    def _common(self) -> dict[str, Any]:
        return {
            "method": self.model.name,
            "recipe": self.model.label,
            "recipe_digest": self.model.digest,
            "source": f"python -m builders posterior {self.model.name} {self.model.recipe.name}",
        }

    def describe(self, steps_per_second: float) -> str:
        units = self.plan.units
        modes = sum(len(unit.modes) for unit in units)
        seconds = modes * self.steps / steps_per_second
        drawn = sum(len(unit.modes) * len(unit.draws) for unit in units)
        what = f"{counted(drawn, 'draw')} of {counted(modes, 'mode')}"
        return f"{what} with {self.engine}: {duration(seconds)} of steps, besides measuring"

"""How often the state of a unit is saved."""

import io
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import builders.units
from builders.build import build
from builders.checkpointing import BuildFolder
from builders.recipe import Recipe
from builders.state import TrainingState
from builders.train import Trainer


@pytest.mark.parametrize(("saving", "apart"), [(3.0, 300.0), (0.1, 20.0), (0.0, 20.0)])
@pytest.mark.exhaustive
def test_saving_takes_a_hundredth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving: float, apart: float
) -> None:
    """By a clock that a step moves by a second, and a save by some."""
    now, saves = [0.0], list[float]()
    advance, save = Trainer.advance, BuildFolder.save

    def advance_by_seconds(self: Trainer, state: TrainingState, stop: int) -> None:
        # one step a call: the span is measured by the real clock
        advance(self, state, state.step + 1)
        now[0] += 1

    def save_for_seconds(self: BuildFolder, *arguments: object) -> None:
        saves.append(now[0])
        save(self, *arguments)  # type: ignore[arg-type]
        now[0] += saving

    monkeypatch.setattr(Trainer, "advance", advance_by_seconds)
    monkeypatch.setattr(BuildFolder, "save", save_for_seconds)
    monkeypatch.setattr(builders.units, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    recipe = Recipe.load("toy").shortened(25)
    build(recipe, tmp_path / "zoo", members=1, save_seconds=20, console=Console(file=io.StringIO()))
    assert len(saves) >= 3
    ends = [start + saving for start in saves]
    assert saves[0] >= 20
    gaps = [start - end for end, start in zip(ends, saves[1:], strict=False)]
    assert all(apart <= gap <= apart + 2 for gap in gaps)
    assert saving * (len(saves) - 1) <= 0.01 * sum(gaps)

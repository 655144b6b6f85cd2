"""All methods in one command: every step leaves alone what is there."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ckptzoo
from builders.build import build
from builders.posterior.comparison import compare
from builders.recipe import Recipe


@pytest.mark.slow
def test_it_makes_everything_and_a_second_call_adds_nothing(tmp_path: Path) -> None:
    recipe, console = Recipe.load("toy").shortened(2), Console(quiet=True)
    build(recipe, tmp_path / "cards" / "toy", members=16, console=console)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cards").rglob("*")}
    options: dict[str, Any] = {"modes": 2, "draws": 3, "one_mode_draws": 5, "replicates": 2, "ensemble": 3}
    options |= {"methods": ("laplace",), "console": console}
    # the toy's networks have one output, whose labels are not stored: the last step refuses them
    for _ in range(2):
        with pytest.raises(ckptzoo.errors.ZooError, match="a set with labels"):
            compare(recipe, tmp_path / "cards" / "toy", tmp_path / "zoos" / "draws", **options)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cards").rglob("*")} == before
    draws, target = (ckptzoo.open(tmp_path / "zoos" / name) for name in ("draws", "toy"))
    assert len(draws) == 2 * 5 + 2 * 3
    assert {"unit-norm", "first-weight", "canonical"} <= set(draws.variants) & set(target.variants)
    assert draws.predicted == target.predicted == ("two-gaussians/test",)
    assert len(list((tmp_path / "zoos" / "draws" / "parts").iterdir())) == 2

"""Which engine a build takes: the fastest when it is begun, from then on the one that it was begun with."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import builders.build
import ckptzoo
from builders import engines
from builders.__main__ import run
from builders.build import build
from builders.checkpointing import WORK_FOLDER, Interrupted
from builders.recipe import Recipe
from ckptzoo.errors import ZooError
from tests.support.builds import QUIET, stopped_soon

QUICK = Recipe.load("digits-optunet").shortened(1)


def engine_of(zoo: Path) -> set[str]:
    return {json.loads(row["extra"])["engine"] for row in ckptzoo.open(zoo).metadata.to_pylist()}


def test_a_build_goes_on_with_the_engine_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_soon(monkeypatch), pytest.raises(Interrupted):
        build(QUICK, tmp_path, members=2, engine="optunet", console=QUIET)
    assert engines.fastest(QUICK) != "optunet"
    with pytest.raises(ZooError, match=r"expected engine optunet, got engine general\. Carry it on"):
        build(QUICK, tmp_path, members=2, engine="general", console=QUIET)
    assert build(QUICK, tmp_path, members=2, console=QUIET).checkpoints == 2
    assert engine_of(tmp_path) == {"optunet"}
    assert not (tmp_path / WORK_FOLDER).exists()
    assert build(QUICK, tmp_path, members=3, console=QUIET).checkpoints == 1
    assert engine_of(tmp_path) == {"optunet"}


def test_another_precision_is_trained_by_an_engine_that_can_and_stored_in_float32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["digits-optunet", "--members", "2", "--epochs", "1"]
    assert run(["build", *command, "--precision", "float64", "--to", str(tmp_path)]) == 0
    first, second = ckptzoo.open(tmp_path).metadata.to_pylist()
    recipe = Recipe.of("digits-optunet", 1, "float64")
    assert first["precision"] == second["precision"] == "float64" == json.loads(first["extra"])["precision"]
    assert first["id"].startswith(f"{recipe.prefix}-000000")
    assert engine_of(tmp_path) == {"optunet"}
    assert ckptzoo.open(tmp_path)["fc.weight"][:].dtype == "float32"
    capsys.readouterr()
    assert run(["estimate", *command, "--precision", "tf32"]) == 2
    message = capsys.readouterr().err
    assert "compiled does not train in tf32" in message and message.count("\n") == 1
    assert run(["build", *command, "--precision", "float16", "--to", str(tmp_path)]) == 3
    assert "float16 needs loss scaling, which skips steps" in capsys.readouterr().err


@pytest.mark.parametrize(("steps_per_second", "members"), [(100.0, 30), (10.0, 4), (0.1, 2)])
def test_units_of_members_trained_one_at_a_time_take_about_five_minutes(
    steps_per_second: float, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = SimpleNamespace(steps_per_second=steps_per_second)
    monkeypatch.setattr(builders.build, "time_steps", lambda *_: timed)
    trainer: Any = SimpleNamespace(one_at_a_time=True, threads=2, recipe=SimpleNamespace(steps=1000))
    # members are 0.3 times the steps a second; a multiple of the two that are trained side by side
    assert builders.build.default_size(trainer, "single", trainer) == members


@pytest.mark.exhaustive
def test_the_number_of_threads_changes_no_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for threads in ("1", "3"):
        command = ["build", "toy", "--members", "3", "--epochs", "1", "--engine", "single", "--threads", threads]
        assert run([*command, "--unit-size", "3", "--to", str(tmp_path / threads)]) == 0
    one, three = (ckptzoo.open(tmp_path / threads) for threads in ("1", "3"))
    assert all(np.array_equal(one[name][:], three[name][:]) for name in one.arch.names)
    capsys.readouterr()
    assert run(["build", "toy", "--members", "3", "--threads", "0", "--to", str(tmp_path / "none")]) == 2
    assert "--threads" in capsys.readouterr().err

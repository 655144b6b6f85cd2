"""Estimates: exact arithmetic, sizes near the true ones, speeds from real steps."""

import dataclasses
import io
import json
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import builders.build
import builders.units
import ckptzoo
from builders.__main__ import run
from builders.build import build
from builders.estimate import Estimate, estimate
from builders.recipe import Recipe
from builders.state import TrainingState
from builders.train import Trainer, open_trainer
from ckptzoo.errors import UnknownNameError, ZooError

QUICK = Recipe.load("digits-optunet").shortened(1)
EXACT = Estimate(
    recipe="r",
    device="cpu",
    engine="e",
    members=100,
    checkpoints=200,
    parameter_bytes=1568,
    member_steps=720_000,
    steps_per_second=100.0,
    measuring=1800.0,
    joules_per_step=5.0,
)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes steps for a fifth of a second."""
    monkeypatch.setitem(estimate.__kwdefaults__, "seconds", 0.2)


def test_the_arithmetic() -> None:
    assert EXACT.device_hours == 720_000 / 100 / 3600 == 2
    assert EXACT.hours == 2.5
    assert EXACT.members_per_device_hour == 50
    assert EXACT.kilowatt_hours == 1
    assert EXACT.nbytes == pytest.approx(200 * 1568, rel=0.1)
    content = EXACT.to_json()
    assert (content["hours"], content["kilowatt_hours"], content["members"]) == (2.5, 1, 100)
    json.dumps(content, allow_nan=False)
    unknown = dataclasses.replace(EXACT, measuring=None, joules_per_step=None)
    assert (unknown.hours, unknown.kilowatt_hours) == (2, None)
    shown = io.StringIO()
    EXACT.print(Console(file=shown, width=120))
    unknown.print(Console(file=shown, width=120))
    assert shown.getvalue().count("energy") == 1
    assert "2:30:00 (2.5 hours, of which 0:30:00 measuring)" in shown.getvalue()
    assert "2:00:00 (2 hours)" in shown.getvalue()
    assert EXACT.line().startswith("100 members on cpu with e: about 2:00:00 of training, ")


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.randoms())
def test_many_devices_end_within_the_bounds(members: int, unit: int, devices: int, order: random.Random) -> None:
    """Every device takes the next unit when it is free; units last as long as their members."""
    found = dataclasses.replace(
        Estimate("r", "cpu", "e", members, members, 100, members * 3600, 2.0, measuring=members * 200.0),
        unit_members=min(unit, members),
        devices=devices,
        price=3.0,
    )
    lengths = [min(unit, members - start) * found.hours / members for start in range(0, members, unit)]
    order.shuffle(lengths)
    free = [0.0] * devices
    for length in lengths:
        first = free.index(min(free))
        free[first] += length
    least, most = found.elapsed_hours
    assert least - 1e-9 <= max(free) <= most + 1e-9
    assert devices > 1 or least == most == found.hours
    assert found.money is not None
    assert found.money[0] == pytest.approx(3 * found.hours) and found.money[1] == pytest.approx(3 * devices * most)
    assert found.disk_bytes >= 2 * found.nbytes


def test_real_steps_are_taken_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = estimate(QUICK, members=100, keep_steps=(0, 3), unit_size=4, engine="optunet", seconds=0.2)
    assert (found.recipe, found.device, found.engine) == (QUICK.prefix, "cpu", "optunet")
    assert (found.members, found.checkpoints, found.member_steps) == (100, 300, 100 * 45)
    assert 10 < found.steps_per_second < 1e6
    assert found.measuring is not None
    assert 0 < found.measuring < 600
    assert found.joules_per_step is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_the_speed_is_that_of_a_build(tmp_path: Path) -> None:
    recipe = Recipe.load("digits-optunet").shortened(2)
    expected = estimate(recipe, members=8, engine="optunet", seconds=0.3)
    (found,) = build(recipe, tmp_path, members=8, engine="optunet", console=Console(file=io.StringIO())).cost
    assert found.steps_per_second is not None
    assert 0.1 < found.steps_per_second / expected.steps_per_second < 10, "as near as a busy machine lets it be"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("brief")
def test_outputs_are_counted_where_they_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["toy", "--members", "40", "--epochs", "1", "--keep-steps", "0"]
    assert run(["estimate", *command, "--predictions"]) == 0
    assert "64 kB of these; their forward passes are not timed" in capsys.readouterr().out
    plain, more = (estimate("toy", members=40, keep_steps=(0,), examples=n, seconds=0.1) for n in (0, 400))
    assert more.nbytes - plain.nbytes == 80 * 400 * 1 * 2
    assert run(["build", *command, "--predictions", "--to", str(tmp_path)]) == 0
    assert ckptzoo.open(tmp_path).predictions("two-gaussians/test").logits.nbytes == 80 * 400 * 2
    with pytest.raises(ZooError, match="examples: expected at least 0, got -1"):
        estimate("toy", members=1, examples=-1)


@pytest.mark.parametrize(("name", "members", "kept"), [("digits-optunet", 64, ()), ("toy", 1000, (0, 20))])
@pytest.mark.sampled(2)
def test_the_size_is_about_that_of_a_build(name: str, members: int, kept: tuple[int, ...], tmp_path: Path) -> None:
    recipe = Recipe.load(name).shortened(1)
    expected = estimate(recipe, members=members, keep_steps=kept, seconds=0.1)
    made = build(recipe, tmp_path, members=members, keep_steps=kept, console=Console(file=io.StringIO()))
    size = sum(file.stat().st_size for file in (tmp_path / "parts" / str(made.part)).iterdir())
    assert made.checkpoints == expected.checkpoints
    assert expected.nbytes == pytest.approx(size, rel=0.2)


def test_what_is_done_once_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once: list[int] = []

    @contextmanager
    def compiling(*arguments: Any, **options: Any) -> Iterator[Trainer]:
        """A trainer whose engine takes a second longer when it is first used."""
        with open_trainer(*arguments, **options) as trainer:

            def advance(data_source: Any, state: TrainingState, stop: int) -> None:
                if not once:
                    once.append(stop)
                    time.sleep(1)
                trainer.engine(data_source, state, stop)

            yield dataclasses.replace(trainer, engine=advance)

    build(QUICK, tmp_path / "plain", members=2, engine="optunet", console=Console(file=io.StringIO()))
    monkeypatch.setattr(builders.build, "open_trainer", compiling)
    monkeypatch.setattr(builders.units, "SECONDS", 1e-9)
    lines = io.StringIO()
    made = build(QUICK, tmp_path / "slow", members=2, engine="optunet", console=Console(file=lines))
    (found,) = made.cost
    assert once == [2]
    assert made.seconds >= 1 > found.seconds
    first, second = (ckptzoo.open(tmp_path / name) for name in ("plain", "slow"))
    assert all(np.array_equal(np.asarray(first[name]), np.asarray(second[name])) for name in first.arch.names)
    said = [line for line in lines.getvalue().splitlines() if "about" in line]
    assert len(said) == 1
    assert re.match(r"digits-optunet: 2 members on cpu with optunet: about 0:00:0[0-2] of training, ", said[0])


@pytest.mark.usefixtures("brief")
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["estimate", "toy", "--members", "3", "--epochs", "1", "--engine", "general", "--keep-steps", "0"]
    assert run([*command, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["engine"], content["members"], content["checkpoints"]) == ("general", 3, 6)
    assert content["member_steps"] == 120


def test_engines_that_cannot_are_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo = tmp_path / "zoo"
    for command in (["build", "toy", "--members", "2", "--to", str(zoo)], ["estimate", "toy", "--members", "2"]):
        assert run([*command, "--engine", "optunet"]) == 2
        assert (
            "mlp-2-2-1: engine: expected single or general or mlp, got optunet, which trains optunet alone. Choose"
            in capsys.readouterr().err
        )
        assert run([*command, "--engine", "optnet"]) == 2
        assert "Did you mean optunet" in capsys.readouterr().err
    assert not zoo.exists()
    with pytest.raises(UnknownNameError):
        estimate("toy", members=1, engine="none")
    with pytest.raises(ZooError, match="members: expected at least 1, got 0"):
        estimate("toy", members=0)
    with pytest.raises(ZooError, match="steps to keep: expected 0 to 400"):
        estimate("toy", members=1, keep_steps=(401,))

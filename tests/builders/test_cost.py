"""What a zoo cost: known answers from rows of metadata, and from a zoo that was built."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ckptzoo
from builders.__main__ import run
from builders.cost import Spending, cost
from builders.energy import Spent
from builders.metadata import rows
from builders.posterior import build as posterior_build
from builders.recipe import Recipe
from builders.sources import load
from ckptzoo.schema.metadata import COLUMNS
from tests.conftest import MIXED, weights_of

KEPT = {"recipe": "mine", "recipe_digest": "sha256:0123456789", "device": "cpu"}


def row(member: str, step: int | None, seconds: float | None, extra: Any, **facts: Any) -> dict[str, Any]:
    text = extra if isinstance(extra, str | None) else json.dumps(extra)
    return {"id": f"{member}-{step}", "member": member, "step": step, "wall_seconds": seconds, "extra": text, **facts}


def made(path: Path, listed: list[dict[str, Any]]) -> ckptzoo.Zoo:
    with ckptzoo.create(path, arch=MIXED) as writer:
        writer.add(weights_of(MIXED, len(listed)), listed)
    return ckptzoo.open(path)


def test_the_last_checkpoint_of_each_member_counts(tmp_path: Path) -> None:
    fast = {"engine": "fast", "energy_joules": 1.8e6}
    zoo = made(
        tmp_path / "zoo",
        [
            row("a", 100, 1800.0, fast, **KEPT),
            row("a", 10, 180.0, {"engine": "fast", "energy_joules": 1e5}, **KEPT),
            row("b", 10, 180.0, {"engine": "fast", "energy_joules": 1e5}, **KEPT),
            row("b", 100, 5400.0, fast, **KEPT),
            row("c", 100, 3600.0, {"engine": "slow"}, **KEPT),
            row("d", None, None, None),
        ],
    )
    unknown, first, second = cost(zoo).spendings
    assert unknown == Spending(None, None, None, 1, 1, 0, 0, 0, 0, 0)
    assert first == Spending("mine-01234567", "cpu", "fast", 2, 4, 2, 200, 7200.0, 2, 3.6e6)
    assert (first.device_hours, first.members_per_device_hour, first.kilowatt_hours) == (2.0, 1.0, 1.0)
    assert first.steps_per_second == pytest.approx(200 / 7200)
    assert second == Spending("mine-01234567", "cpu", "slow", 1, 1, 1, 100, 3600.0, 0, 0)
    assert second.kilowatt_hours is None
    assert unknown.to_json() == {
        **dict.fromkeys(["recipe", "device", "engine", "device_hours", "members_per_device_hour"]),
        **dict.fromkeys(["steps_per_second", "kilowatt_hours"]),
        **dict.fromkeys(["members", "checkpoints"], 1),
        **dict.fromkeys(["timed", "member_steps", "metered"], 0),
    }
    assert first.line() == (
        "2 members, 2 device-hours on cpu with fast, 1 members a device-hour, 0.0278 member-steps a second, 1 kWh"
    )
    assert unknown.line() == "1 member"
    assert [item.members for item in cost(zoo.where("member == 'c'")).spendings] == [1]


@pytest.mark.usefixtures("any_rows")
def test_untrusted_figures_are_added_only_if_they_are_numbers(tmp_path: Path) -> None:
    odd: list[Any] = ["[1]", "{", '{"energy_joules": NaN}', '{"energy_joules": -3}', '{"energy_joules": "much"}']
    odd += ['{"energy_joules": true, "engine": 7}', '{"energy_joules": 36}']
    seconds = [math.nan, math.inf, -1.0, None, 0.0, 2.0, 4.0]
    listed = [row(f"m{at}", 10, seconds[at], text, **KEPT) for at, text in enumerate(odd)]
    (found,) = cost(made(tmp_path / "zoo", listed)).spendings
    assert (found.members, found.engine, found.timed, found.seconds) == (7, None, 3, 6.0)
    assert (found.metered, found.joules) == (1, 36)
    json.dumps(found.to_json(), allow_nan=False)
    assert "0.00001 kWh (of 1)" in found.line().replace("1e-05", "0.00001")


def test_a_table_of_everything_that_is_known(tmp_path: Path) -> None:
    extra = {"engine": "fast", "energy_joules": 7.2e6}
    listed = [row("a", 100, 1800.0, extra, **KEPT), row("b", 100, None, {"engine": "fast"}, **KEPT)]
    shown = io.StringIO()
    found = cost(made(tmp_path / "zoo", listed))
    found.print(Console(file=shown, width=200))
    header, line, note = shown.getvalue().splitlines()
    assert header.split("  ")[0] == "recipe"
    assert " ".join(line.split()) == "mine-01234567 cpu fast 2 2 0.5 (of 1) 2 0.0556 2 (of 1)"
    assert note == "Training alone; measuring the checkpoints is not counted."


def test_rows_of_a_unit_add_up_to_what_it_took(tmp_path: Path) -> None:
    recipe = Recipe.load("toy")
    listed = rows(
        recipe,
        load(recipe),
        {},
        unit="u",
        seeds=range(7),
        step=400,
        spent=Spent(12.0, 36.0),
        device="cpu",
        engine="mlp",
    )
    zoo = made(tmp_path / "zoo", [{**item, "extra": json.dumps(item["extra"])} for item in listed])
    (found,) = cost(zoo).spendings
    assert (found.recipe, found.device, found.engine) == (recipe.prefix, "cpu", "mlp")
    assert (found.members, found.member_steps) == (7, 2800)
    assert found.seconds == pytest.approx(12.0)
    assert found.joules == pytest.approx(36.0)
    assert set(listed[0]) <= {column.name for column in COLUMNS}


def test_the_command(make_zoo: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "toy", "--members", "5", "--epochs", "1", "--to", str(tmp_path / "toys")]) == 0
    told = capsys.readouterr().out
    assert run(["cost", str(tmp_path / "toys"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["zoo"] == "toys"
    (found,) = content["spendings"]
    assert (found["members"], found["member_steps"], found["engine"]) == (5, 200, "mlp")
    assert found["kilowatt_hours"] is None
    assert f"toys: 5 members, {found['device_hours']:,.3g} device-hours on cpu with mlp, " in told
    other, _ = make_zoo()
    assert run(["cost", str(other)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert run(["cost", str(tmp_path / "none")]) != 0


def test_draws_of_a_chain_are_paid_for_once(tmp_path: Path) -> None:
    settings = {"epochs": 6, "burn_in": 1, "first_draw": 2, "every": 1}
    given: dict[str, Any] = {"modes": 2, "draws": 5, "changes": settings, "console": Console(quiet=True)}
    posterior_build.build("sghmc", Recipe.load("toy"), tmp_path / "zoo", **given)
    (found,) = cost(ckptzoo.open(tmp_path / "zoo")).spendings
    assert (found.members, found.checkpoints, found.member_steps) == (2, 10, 2 * 6 * 2)
    assert found.recipe is not None
    assert found.recipe.startswith("toy-sghmc-")

"""A build that is killed, interrupted or repeated: nothing lost, nothing twice."""

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import builders.build
import builders.units
import ckptzoo
from builders.__main__ import run
from builders.build import Built, build
from builders.checkpointing import WORK_FOLDER, BuildFolder, BuildPlan, Interrupted, locked_build_folder
from builders.progress import Progress
from builders.recipe import Recipe
from builders.sources import load
from ckptzoo import archs
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.format.durable import write_file
from ckptzoo.schema.documents import seal
from tests.support.builds import stopped_soon
from tests.support.effort import ALL

ROOT = Path(__file__).parents[2]
MEMBERS, UNIT, KEPT = 24 if ALL else 8, 4, (0, 700)
ENDINGS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGKILL) if ALL else (signal.SIGKILL,)
"""How the first processes of a build end; then this one carries it on."""
RECIPE = Recipe.load("digits-optunet")
QUICK = RECIPE.shortened(1)


def quick(to: Path, **options: Any) -> Built:
    """A build of one epoch in this process, without output."""
    with Path(os.devnull).open("w") as nowhere:
        return build(QUICK, to, **{"members": 4, "console": Console(file=nowhere), **options})


def ids(path: Path) -> list[str]:
    return ckptzoo.open(path).ids


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "zoo"
    with Path(os.devnull).open("w") as nowhere:
        build(RECIPE, path, members=MEMBERS, unit_size=UNIT, keep_steps=KEPT, console=Console(file=nowhere))
    return path


def test_killed_at_random_moments_it_ends_with_the_same_zoo(undisturbed: Path, tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    arguments = [
        *("build", RECIPE.name, "--to", str(path), "--save-every", "0.05"),
        *("--members", str(MEMBERS), "--unit-size", str(UNIT), "--keep-steps", ",".join(map(str, KEPT))),
    ]
    command = [sys.executable, "-m", "builders", *arguments]
    moments = random.Random(7)
    work = path / WORK_FOLDER / RECIPE.prefix
    killed = resumed = 0
    for ending in ENDINGS:
        begun = saved(work)
        resumed += bool(begun)
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while child.poll() is None and saved(work) == begun:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.25))
        child.send_signal(ending)
        _, errors = child.communicate(timeout=120)
        if child.returncode == 0:
            break
        killed += 1
        if ending is signal.SIGINT:
            assert child.returncode == 130
            assert errors.count("\n") == 1
            assert "Run the same command to carry on." in errors
        else:
            assert child.returncode == -signal.SIGKILL
    resumed += bool(saved(work))
    assert run(arguments) == 0
    assert killed >= min(3, len(ENDINGS)), "the work must be long enough to be interrupted"
    assert resumed >= min(3, len(ENDINGS)), "the work must go on from what was saved"
    same(undisturbed, path)
    assert not (path / WORK_FOLDER).exists()
    assert ckptzoo.verify(path) == []


def saved(work: Path) -> set[tuple[str, int]]:
    """What a build has saved, and when."""
    with suppress(FileNotFoundError):
        return {(file.name, file.stat().st_mtime_ns) for file in work.glob("*.safetensors")}
    return set()


def same(expected: Path, found: Path) -> None:
    """The same checkpoints in the same order, bit for bit, with the same facts but for time."""
    one, two = ckptzoo.open(expected), ckptzoo.open(found)
    assert one.ids == two.ids
    assert len(set(two.ids)) == MEMBERS * (len(KEPT) + 1)
    for name in one.arch.names:
        assert np.array_equal(np.asarray(one[name]), np.asarray(two[name]))
    varying = ["created", "wall_seconds"]
    assert one.metadata.drop_columns(varying).equals(two.metadata.drop_columns(varying))


def test_the_rows_say_what_was_done(undisturbed: Path) -> None:
    rows = ckptzoo.open(undisturbed).metadata.to_pylist()
    prefix = RECIPE.prefix
    assert [row["id"] for row in rows[:5]] == [
        *(f"{prefix}-{seed:06d}-000000" for seed in range(4)),
        f"{prefix}-000000-000700",
    ]
    assert {row["step"] for row in rows} == {0, 700, 1800}
    for row in rows:
        assert row["member"] == f"{prefix}-{row['seed']:06d}"
        first = row["seed"] // UNIT * UNIT
        assert row["unit"] == f"{prefix}-{first:06d}-{first + UNIT - 1:06d}"
        assert row["epoch"] == row["step"] / 45
        assert row["recipe"] == "digits-optunet"
        assert row["recipe_digest"] == RECIPE.digest
        assert (row["dataset"], row["device"], row["precision"]) == ("digits", "cpu", "float32")
        assert row["builder"].startswith("ckptzoo-builders ")
        assert not row["diverged"], "told by a member's last step, also for its first"
        for column in ("train_loss", "train_accuracy", "test_loss", "test_nll", "test_brier", "test_ece"):
            assert row[column] > 0
    last = [row for row in rows if row["step"] == 1800]
    assert all(row["wall_seconds"] > 0 for row in last)
    assert np.mean([row["test_accuracy"] for row in last]) > 0.88


def test_the_same_command_again_adds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["build", "digits-optunet", "--members", "2", "--epochs", "1", "--to", str(tmp_path / "zoo")]
    assert run(command) == 0
    before = sorted((tmp_path / "zoo").rglob("*"))
    capsys.readouterr()
    assert run(command) == 0
    assert "holds 2 members of digits-optunet already; nothing was added." in capsys.readouterr().out
    assert run([*command[:3], "1", *command[4:]]) == 0
    assert "holds 2 members of digits-optunet already" in capsys.readouterr().out, "not those that were asked for"
    assert sorted((tmp_path / "zoo").rglob("*")) == before


@pytest.mark.exhaustive
def test_more_members_take_the_seeds_that_are_free(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    quick(path, members=2, first_seed=3)
    made = quick(path, members=5, unit_size=2)
    assert (made.members, made.checkpoints) == (3, 3)
    seeds = ckptzoo.open(path).metadata["seed"].to_pylist()
    assert seeds == [3, 4, 0, 1, 2]
    quick(path, members=6)
    assert ckptzoo.open(path).metadata["seed"].to_pylist() == [3, 4, 0, 1, 2, 5]
    full = RECIPE.shortened(2)
    assert build(full, path, members=1).members == 1, "another number of epochs is another recipe"
    assert len(set(ids(path))) == 7


def test_members_do_not_depend_on_their_unit(tmp_path: Path) -> None:
    quick(tmp_path / "a", unit_size=4)
    quick(tmp_path / "b", unit_size=1, first_seed=2, members=2)
    one, two = ckptzoo.open(tmp_path / "a"), ckptzoo.open(tmp_path / "b")
    assert one.ids[2:] == two.ids
    for name in one.arch.names:
        np.testing.assert_allclose(np.asarray(one[name])[2:], np.asarray(two[name]), atol=1e-4)


def test_killed_between_publishing_and_cleaning_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    publish: Callable[..., Any] = builders.build.merge_units

    def publish_and_die(*arguments: Any) -> None:
        list(publish(*arguments))
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(builders.build, "merge_units", publish_and_die)
        with pytest.raises(KeyboardInterrupt):
            quick(path)
    assert (path / WORK_FOLDER).exists()
    before = ids(path)
    again = quick(path)
    assert (again.part, again.checkpoints) == (None, 0)
    assert ids(path) == before
    assert not (path / WORK_FOLDER).exists()


def test_another_build_cannot_join_or_change_an_unfinished_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=archs.architecture("optunet"))
    with (
        locked_build_folder(path, QUICK.prefix),
        pytest.raises(ZooError, match=f"no other one at work, got process {os.getpid()}"),
    ):
        quick(path)

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(builders.build, "merge_units", die)
        with pytest.raises(KeyboardInterrupt):
            quick(path)
    with pytest.raises(ZooError, match=r"expected members 4, unit_size 64, got members 6, unit_size 2\. Carry it on"):
        quick(path, members=6, unit_size=2)
    with pytest.raises(ZooError, match=r"expected first_seed 0, got first_seed 3\. Carry it on"):
        quick(path, first_seed=3)
    assert quick(path).checkpoints == 4
    assert not (path / WORK_FOLDER).exists()


def test_a_plan_that_does_not_say_its_first_seed_is_carried_on(tmp_path: Path) -> None:
    plan = BuildPlan(QUICK.digest, QUICK.prefix, 2, (5, 6), 64, (45,), "cpu", "optunet", load(QUICK).digest)
    content = asdict(plan)
    del content["first_seed"]
    folder = tmp_path / WORK_FOLDER / QUICK.prefix
    folder.mkdir(parents=True)
    write_file(folder / "plan.json", seal(content))
    assert BuildFolder(folder).settle_plan(replace(plan, seeds=(0, 1), first_seed=0), BuildPlan) == plan
    with pytest.raises(ZooError, match=r"expected members 2, got members 3\."):
        BuildFolder(folder).settle_plan(replace(plan, members=3, first_seed=0), BuildPlan)


def test_rows_with_momentum_go_on_where_they_were_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(Recipe.load("toy"), momentum=0.9, learning_rate=0.05, epochs=3)
    quiet = Console(file=io.StringIO())
    build(recipe, tmp_path / "whole", members=6, keep_steps=(50,), console=quiet)
    with stopped_soon(monkeypatch):
        for _ in range(3):
            with pytest.raises(Interrupted, match="Run the same command"):
                build(recipe, tmp_path / "pieces", members=6, keep_steps=(50,), console=quiet)
    assert len(list((tmp_path / "pieces" / WORK_FOLDER / recipe.prefix).glob("*.state.safetensors"))) == 1
    assert build(recipe, tmp_path / "pieces", members=6, keep_steps=(50,), console=quiet).checkpoints == 12
    one, two = ckptzoo.open(tmp_path / "whole"), ckptzoo.open(tmp_path / "pieces")
    assert one.ids == two.ids
    for name in one.arch.names:
        assert np.array_equal(np.asarray(one[name]), np.asarray(two[name]))


def test_a_thousand_perceptrons_are_one_unit_and_one_part(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    made = build("toy", path, members=1000, epochs=2, console=Console(file=io.StringIO()))
    zoo = ckptzoo.open(path)
    assert (len(zoo), made.members, len(list((path / "parts").iterdir()))) == (1000, 1000, 1)
    assert set(zoo.metadata["unit"].to_pylist()) == {f"{Recipe.load('toy').shortened(2).prefix}-000000-000999"}
    row = zoo.metadata.slice(7, 1).to_pylist()[0]
    assert (row["recipe"], row["dataset"], row["step"], row["epoch"]) == ("toy", "two-gaussians", 80, 2)
    assert 0 < row["test_nll"] == row["test_loss"]
    assert ckptzoo.verify(path) == []
    more = build("toy", path, members=1003, epochs=2, console=Console(file=io.StringIO()))
    assert (more.members, len(ckptzoo.open(path))) == (3, 1003)


def test_progress_counts_what_this_process_did() -> None:
    lines = io.StringIO()
    with Progress(Console(file=lines), "name", members=4, member_steps=80, done=20, finished=1) as progress:
        assert progress.facts() == "1/4 members, 20/80 steps"
        progress.resume(10)
        assert progress.facts() == "1/4 members, 30/80 steps"
        progress.advance(20, 3600.0)
        progress.finish(1)
        assert progress.facts() == "2/4 members, 50/80 steps, 1 members an hour, 1:30:00 left"
        assert progress.taken == 20
    assert lines.getvalue() == "name: 2/4 members, 50/80 steps, 1 members an hour, 1:30:00 left\n"


def test_while_the_last_members_are_measured_nothing_is_left() -> None:
    progress = Progress(Console(file=io.StringIO()), "name", members=4, member_steps=80, done=0, finished=0)
    progress.advance(40, 3600.0)
    assert progress.facts() == "0/4 members, 40/80 steps, 2 members an hour, 1:00:00 left"
    progress.advance(40, 3600.0)
    assert progress.facts().startswith("0/4 members, 80/80 steps, ")
    assert progress.facts().endswith(" members an hour, measuring the last")
    assert progress.seconds == 7200
    progress.finish(4)
    assert progress.facts().endswith(", 0:00:00 left")


def test_the_last_line_says_that_all_is_done_and_is_written_once() -> None:
    lines = io.StringIO()
    with Progress(Console(file=lines), "name", members=2, member_steps=10, done=0, finished=0) as progress:
        progress.advance(10, 2.0)
        progress.finish(2)
    assert lines.getvalue() == "name: 2/2 members, 10/10 steps, 3,600 members an hour, 0:00:00 left\n"
    lines = io.StringIO()
    with (
        suppress(KeyboardInterrupt),
        Progress(Console(file=lines), "name", members=2, member_steps=10, done=0, finished=0) as progress,
    ):
        progress.advance(4, 2.0)
        raise KeyboardInterrupt
    assert lines.getvalue() == ""


def test_what_cannot_be_built_is_refused(tmp_path: Path, make_zoo: Callable[..., Any]) -> None:
    other, _ = make_zoo()
    with pytest.raises(IntegrityError, match="architecture: expected optunet"):
        quick(other)
    assert not (other / WORK_FOLDER).exists()
    with pytest.raises(ZooError, match=r"steps to keep: expected 0 to 45 .*, got 46"):
        quick(tmp_path / "mine", keep_steps=(0, 46))
    with pytest.raises(ZooError, match="members: expected at least 1, got 0"):
        quick(tmp_path / "mine", members=0)
    assert not (tmp_path / "mine").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ZooError, match="expected no folder or an empty one"):
        quick(tmp_path / "full")
    assert run(["build", "digits-optunet", "--members", "1", "--to", "x", "--keep-steps", "1,b"]) == 2

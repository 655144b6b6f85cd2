"""One build by several processes: plan, work, merge and status."""

import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import builders.shared
import ckptzoo
from builders.__main__ import run
from builders.build import build
from builders.checkpointing import WORK_FOLDER, Interrupted
from builders.recipe import Recipe
from builders.shared import merge, plan, work
from builders.state import TrainingState
from builders.status import BuildStatus, status, watch
from builders.train import Trainer
from ckptzoo.errors import ZooError
from ckptzoo.format.durable import Staging
from ckptzoo.schema.documents import seal, unseal
from tests.support.builds import QUIET
from tests.support.effort import ALL
from tests.support.hosted import hosted

TOY = Recipe.load("toy").shortened(2)
COMMAND = """
import sys
from builders.__main__ import run
sys.exit(run(sys.argv[1:]))
"""


def planned(path: Path, members: int = 12, **options: Any) -> Any:
    return plan(TOY, path, members=members, unit_size=2, keep_steps=(1,), **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ckptzoo.Zoo:
    """12 members built by one process."""
    path = tmp_path_factory.mktemp("whole") / "zoo"
    build(TOY, path, members=12, unit_size=2, keep_steps=(1,), console=QUIET)
    return ckptzoo.open(path)


def assert_same(path: Path, whole: ckptzoo.Zoo) -> None:
    """The same checkpoints, bit for bit, in any order of parts."""
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert sorted(zoo.ids) == sorted(whole.ids)
    order = np.array([zoo.ids.index(name) for name in whole.ids])
    for name in whole.arch.names:
        assert np.asarray(zoo[name])[order].tobytes() == np.asarray(whole[name]).tobytes()


def the_status(path: Path) -> BuildStatus:
    (found,) = status(path)
    return found


def test_the_verbs_together_are_a_build(tmp_path: Path, whole: ckptzoo.Zoo) -> None:
    path = tmp_path / "zoo"
    found = planned(path)
    assert (found.units, found.members, found.unit_size) == (6, 12, 2)
    before = (path / WORK_FOLDER / TOY.prefix / "plan.json").read_bytes()
    assert planned(path) == found and (path / WORK_FOLDER / TOY.prefix / "plan.json").read_bytes() == before
    assert {unit.state for unit in the_status(path).units} == {"waiting"}
    first = work(path, share=(1, 3), console=QUIET)
    assert (first.units, first.members, first.left) == (2, 4, 0)
    name = the_status(path).units[0].name
    one = work(path, unit=name, console=QUIET)
    assert (one.units, one.left) == (1, 0)
    added = merge(path)
    assert (added.units, added.checkpoints, added.left) == (3, 12, 3) and len(added.parts) == 1
    assert [unit.state for unit in the_status(path).units] == 2 * ["merged"] + 2 * ["waiting"] + ["merged", "waiting"]
    assert merge(path).parts == ()
    assert work(path, console=QUIET).units == 3
    last = merge(path)
    assert (last.units, last.left) == (3, 0) and not (path / WORK_FOLDER).exists() and status(path) == ()
    assert_same(path, whole)
    assert planned(path).units == 0
    with pytest.raises(ZooError, match="Plan it first: python -m builders plan RECIPE --members N"):
        merge(path)


def test_build_carries_on_what_was_planned(tmp_path: Path, whole: ckptzoo.Zoo) -> None:
    path = tmp_path / "zoo"
    planned(path)
    work(path, share=(0, 2), console=QUIET)
    build(TOY, path, members=12, unit_size=2, keep_steps=(1,), console=QUIET)
    assert_same(path, whole)


def test_steps_that_are_saved_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    planned(path)
    fresh = the_status(path)
    assert (fresh.saved_steps, fresh.remaining_seconds) == (0, None)
    work(path, seconds=0.0, console=QUIET)
    found = the_status(path)
    held = [unit for unit in found.units if unit.saved]
    assert len(held) == 1 and 0 < held[0].saved <= TOY.steps and held[0].state in ("waiting", "finished")
    assert found.saved_steps == 2 * held[0].saved and found.remaining_seconds is not None
    with (console := Console(width=200)).capture() as printed:
        found.print(console)
    assert f"{found.saved_steps:,} of {12 * TOY.steps:,} steps saved" in printed.get()
    assert found.to_json()["saved_steps"] == found.saved_steps
    state = next((path / WORK_FOLDER).glob("*/*.state.safetensors"), None)
    if state is not None:
        state.write_bytes(b"damaged")
        assert the_status(path).saved_steps == 0


def worker(path: Path, *more: str) -> "subprocess.Popen[bytes]":
    arguments = ["work", "toy", "--to", str(path), "--save-every", "0.1", *more]
    return subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.DEVNULL)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20 if ALL else 1))
def test_workers_that_are_killed_lose_nothing(tmp_path: Path, seed: int) -> None:
    """Five kills of two workers in the middle of their units; every unit is done once, with the bits of a build."""
    toy, path, rng = Recipe.load("toy"), tmp_path / "zoo", random.Random(seed)
    build(toy, tmp_path / "whole", members=12, unit_size=2, console=QUIET)
    plan(toy, path, members=12, unit_size=2)
    workers = [worker(path), worker(path)]
    for _ in range(5):
        # in the middle of a unit, unless there is none left
        running: set[int] = set()
        while not running and any(process.poll() is None for process in workers):
            holders = [unit.holder for unit in the_status(path).units if unit.state == "running"]
            held = {holder.process for holder in holders if holder is not None}
            running = {at for at, process in enumerate(workers) if process.pid in held}
            time.sleep(rng.uniform(0.0, 0.2))
        if not running:
            break
        victim = rng.choice(sorted(running))
        workers[victim].kill()
        workers[victim].wait(60)
        workers[victim] = worker(path)
    assert {process.wait(240) for process in workers} == {0}
    done = work(path, toy, console=QUIET)
    assert done.left == 0
    added = merge(path, toy)
    assert (added.units, added.checkpoints, added.left) == (6, 12, 0)
    assert_same(path, ckptzoo.open(tmp_path / "whole"))


def test_a_unit_that_fails_stops_no_other_and_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "zoo"
    planned(path)
    bad = the_status(path).units[2].name
    advance = Trainer.advance

    def failing(self: Trainer, state: TrainingState, stop: int) -> None:
        if state.step and int(state.keys[0]) == int(first_key):
            raise RuntimeError("out of memory")
        advance(self, state, stop)

    from builders import rng

    (first_key,) = rng.member_keys(TOY.digest, [4])
    with monkeypatch.context() as broken:
        broken.setattr(Trainer, "advance", failing)
        done = work(path, console=QUIET)
        assert (done.units, done.left) == (5, 1) and dict(done.failed) == {bad: "RuntimeError: out of memory"}
        for _ in range(4):
            assert run(["work", "toy", "--epochs", "2", "--to", str(path)]) == 1
        assert f"{bad}: failed: RuntimeError: out of memory" in capsys.readouterr().out
    log = (path / WORK_FOLDER / TOY.prefix / f"{bad}.log").read_text()
    assert "RuntimeError: out of memory" in log and log.count(f"begun by process {os.getpid()} on ") == 5
    good = (path / WORK_FOLDER / TOY.prefix / f"{the_status(path).units[0].name}.log").read_text()
    assert [line.split(" ")[2] for line in good.splitlines()] == ["begun", "finished"], good
    unit = the_status(path).units[2]
    assert (unit.state, unit.attempts) == ("set aside", 5)
    assert work(path, console=QUIET).left == 1  # not tried any more
    assert run(["status", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "10 members finished, 2 members set aside" in shown and bad in shown
    added = merge(path)
    assert (added.units, added.left) == (5, 1)
    (path / WORK_FOLDER / TOY.prefix / f"{bad}.failures.json").unlink()
    assert work(path, console=QUIET).units == 1
    assert merge(path).left == 0


def test_time_is_up(tmp_path: Path) -> None:
    """What was reached is saved, and the next one carries on from there."""
    path = tmp_path / "zoo"
    planned(path)
    done = work(path, seconds=0.0, console=QUIET)
    assert (done.units, done.left) == (0, 6)
    assert len(list((path / WORK_FOLDER / TOY.prefix).glob("*.state.safetensors"))) == 1
    assert not list((path / WORK_FOLDER / TOY.prefix).glob("*.claim-*"))
    assert work(path, seconds=600.0, console=QUIET).left == 0


def test_a_merge_that_was_killed_adds_nothing_twice(
    tmp_path: Path, whole: ckptzoo.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zoo"
    planned(path)
    work(path, share=(0, 2), console=QUIET)

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(builders.shared.BuildFolder, "forget", die)
        with pytest.raises(KeyboardInterrupt):
            merge(path)
    assert len(ckptzoo.open(path)) == 12
    again = merge(path)
    assert (again.units, again.left) == (0, 3)
    assert not list((path / WORK_FOLDER / TOY.prefix).glob("*.kept.safetensors"))
    work(path, console=QUIET)
    assert merge(path).left == 0
    assert_same(path, whole)


@pytest.mark.exhaustive
def test_parts_have_a_limit(tmp_path: Path, whole: ckptzoo.Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    planned(path)
    work(path, console=QUIET)
    monkeypatch.setattr(
        ckptzoo.recording.merging, "MAX_PART_BYTES", 4 * 2 * TOY.arch.nbytes
    )  # two units of two members, two steps
    assert len(merge(path).parts) == 3
    assert_same(path, whole)


def test_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    planned(path)
    with pytest.raises(ZooError, match="expected one of the plan, got none; there are toy-"):
        work(path, unit="toy-7", console=QUIET)
    for share in ((3, 3), (-1, 2)):
        with pytest.raises(ZooError, match="I/N with I from 0 to N - 1"):
            work(path, share=share, console=QUIET)
    with pytest.raises(ZooError, match="Plan it first"):
        work(path, "toy", console=QUIET)  # of all its epochs
    for wrong in (["--share", "1"], ["--for", "long"], ["--for", "5d"]):
        assert run(["work", "toy", "--epochs", "2", "--to", str(path), *wrong]) == 2
    plan_file = path / WORK_FOLDER / TOY.prefix / "plan.json"
    plan_file.write_bytes(plan_file.read_bytes().replace(b'"members":12', b'"members":13'))
    with pytest.raises(ZooError, match="digest"):
        work(path, console=QUIET)
    with pytest.raises(ZooError, match="expected a folder, got nothing"):
        status(tmp_path / "nowhere")


@pytest.mark.exhaustive
def test_a_plan_says_its_recipe(tmp_path: Path) -> None:
    """The folder is enough, whatever the recipe is; where it has several plans they are named."""
    path, file = tmp_path / "zoo", tmp_path / "mine.toml"
    file.write_text(Recipe.load("toy").to_toml().replace('name = "toy"', 'name = "mine"'))
    command = ["plan", str(file), "--members", "4", "--unit-size", "2", "--to", str(path), "--epochs", "1"]
    assert run([*command, "--precision", "float64"]) == 0
    mine = Recipe.of(file, 1, "float64")
    file.unlink()
    assert run(["work", str(path), "--share", "0/2"]) == 0 and run(["merge", str(path)]) == 0
    assert ckptzoo.open(path).metadata["recipe_digest"].to_pylist() == 2 * [mine.digest]
    plan(TOY, path, members=2, unit_size=2)
    for several in (work, merge):
        with pytest.raises(ZooError, match=f"expected one, got {mine.prefix}, {TOY.prefix}. Name"):
            several(path)
    assert run(["work", "toy", "--epochs", "2", "--to", str(path)]) == 0
    assert run(["merge", "toy", "--epochs", "2", "--to", str(path)]) == 0
    assert run(["work", str(path), "--epochs", "2"]) == 2
    assert run(["work", str(path)]) == 0 and run(["merge", str(path)]) == 0 and status(path) == ()
    assert len(ckptzoo.open(path)) == 6 and ckptzoo.verify(path) == []


def change_plan(path: Path, **changes: Any) -> Path:
    """Other values in the plan, with a digest that fits."""
    (file,) = (path / WORK_FOLDER).glob("*/plan.json")
    content, _ = unseal(file.read_bytes(), location=str(file))
    file.write_bytes(seal({**content, **changes}))
    return file


def test_a_plan_whose_recipe_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    planned(path)
    content = TOY.content
    for recipe, expected in (
        ({**content, "momentum": 0.5}, f"expected one of {TOY.prefix}"),
        ({**content, "momentum": -1}, "momentum: expected a finite number"),
        ({**content, "inputs": "words"}, "key 'inputs': expected one of images"),
        ({"name": "toy"}, "key 'architecture': expected a value, got none"),
        (Recipe.load("toy").content, f"expected one of {TOY.prefix}"),
    ):
        change_plan(path, recipe_content=recipe)
        with pytest.raises(ZooError, match=expected):
            work(path, console=QUIET)
    change_plan(path, recipe_content=content, transpositions=[1])
    with pytest.raises(ZooError, match=r"got one of planted pairs\. Carry it on with the command that started it"):
        merge(path)
    change_plan(path, transpositions=[], later=1, others=2)
    with pytest.raises(
        ZooError, match=r"plan: expected the fields of a BuildPlan of version .* got 'later', 'others'. Go on"
    ):
        status(path)


def test_a_worker_of_other_versions_is_refused(
    tmp_path: Path, whole: ckptzoo.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zoo"
    with monkeypatch.context() as older:
        older.setattr(ckptzoo, "__version__", "0.0.9")
        planned(path)
    with pytest.raises(
        ZooError, match=r"versions: expected ckptzoo 0\.0\.9, torch .*, got ckptzoo .*\. Work with that"
    ):
        work(path, console=QUIET)
    # one process may carry on by itself, as ever
    build(TOY, path, members=12, unit_size=2, keep_steps=(1,), console=QUIET)
    assert_same(path, whole)


def test_a_stop_is_for_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    planned(path)
    advance, sent = Trainer.advance, list[bool]()

    def stopping(self: Trainer, state: TrainingState, stop: int) -> None:
        advance(self, state, stop)
        if not sent:  # a second one would end this process
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "advance", stopping)
    with pytest.raises(Interrupted):
        work(path, console=QUIET)
    assert not list((path / WORK_FOLDER / TOY.prefix).glob("*.claim-*"))


def test_the_status_is_shown_until_all_is_done(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    planned(path, 6)
    shown = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=200)
    watching = threading.Thread(target=watch, args=(path, shown), kwargs={"seconds": 0.01})
    watching.start()
    work(path, console=QUIET)
    watching.join()
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "6 members in 3 units: 6 members finished" in text


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the client library itself
@pytest.mark.usefixtures("isolated_clients")
@pytest.mark.exhaustive
def test_a_merge_publishes_part_by_part(tmp_path: Path, whole: ckptzoo.Zoo) -> None:
    """A program of its own, which merges whenever it is given a token: huggingface_hub reads its address once."""
    path = tmp_path / "zoo"
    planned(path)
    work(path, share=(0, 3), console=QUIET)
    code = """
import os, sys
import ckptzoo.recording.merging as merging
from builders.__main__ import run
merging.MAX_PART_BYTES = 1
for token in sys.stdin:
    os.environ["HF_TOKEN"] = token.strip()
    print("ended with", run(sys.argv[1:]), flush=True)
"""
    arguments = ["merge", "toy", "--epochs", "2", "--to", str(path), "--push", "lab/toy"]
    with (
        hosted(tmp_path / "hub") as hub,
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments], env={**os.environ, "HF_ENDPOINT": hub.url},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1,
        ) as program,
    ):  # fmt: skip

        def merged(token: str) -> tuple[bool, str]:
            assert program.stdin is not None and program.stdout is not None
            program.stdin.write(f"{token}\n")
            printed = ""
            while line := program.stdout.readline():
                if line.startswith("ended with "):
                    return line == "ended with 0\n", printed
                printed += line
            raise AssertionError(printed)

        ended, printed = merged("hf_wrong")
        assert not ended and "HF_TOKEN" in printed, printed
        assert len(ckptzoo.open(path)) == 4  # the first part stays
        ended, printed = merged(hub.tokens["write"])
        assert ended and "4 checkpoints of 1 unit" in printed, printed
        assert len(ckptzoo.open("lab/toy", endpoint=hub.url)) == 8
        work(path, console=QUIET)
        ended, printed = merged(hub.tokens["write"])
        assert ended and "16 checkpoints of 4 units" in printed, printed
        assert sorted(ckptzoo.open("lab/toy", endpoint=hub.url).ids) == sorted(whole.ids)
        assert not (path / WORK_FOLDER).exists()


def test_a_zoo_that_another_process_makes_meanwhile_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, publish = tmp_path / "zoo", Staging.publish

    def published_second(self: Staging, target: Path) -> None:
        with monkeypatch.context() as other:
            other.setattr(Staging, "publish", publish)
            ckptzoo.create(path, arch=TOY.arch)
        publish(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Staging, "publish", published_second)
        assert planned(path).members == 12
        patched.setattr(Staging, "publish", published_second)
        with pytest.raises(ZooError, match="no folder or an empty one, got a zoo"):
            ckptzoo.create(path, arch=TOY.arch)
    assert [item.name for item in tmp_path.iterdir()] == ["zoo"]

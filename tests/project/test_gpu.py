"""A day with a GPU, tried on a CPU: it is killed, carries on, and brings back what earlier calls made."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ckptzoo
from benchmarks.gpu import rank_of
from builders import data
from builders.build import build
from builders.recipe import Recipe

ROOT = Path(__file__).parents[2]


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--minutes", "4", *options]


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())["steps"]


@pytest.mark.exhaustive
def test_a_killed_call_carries_on_where_it_was_and_from_what_was_brought_back(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    out, options = tmp_path / "out", ("--device", "cpu", "--stages", "tests,optunets", "--members", "8")
    running = subprocess.Popen(command(out, *options), cwd=ROOT, start_new_session=True)
    finished = tmp_path / "out.work" / "results" / "tests.json"
    end = time.monotonic() + 150
    while not finished.exists() and running.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert finished.exists()
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = finished.read_bytes()
    subprocess.run(command(out, *options), cwd=ROOT, check=True)
    assert finished.read_bytes() == before, "what is finished is not done again"
    found = results(out)
    assert found["tests"]["result"]["tests"] == len(found["tests"]["result"]["skipped"]) > 0
    assert found["optunets"]["status"] == "finished"
    assert {path.name for path in out.iterdir()} == {"results.json", "volume-0.tar"}

    # another machine has only what was brought back, and is asked for more members
    shutil.rmtree(tmp_path / "out.work")
    second = tmp_path / "second"
    (tmp_path / "first").mkdir()
    shutil.copy(out / "volume-0.tar", tmp_path / "first")
    more = ("--device", "cpu", "--stages", "tests", "--from", str(tmp_path / "first"))
    ran = subprocess.run(command(second, *more), cwd=ROOT, check=True, capture_output=True, text=True)
    assert "tests:" not in ran.stdout
    zoo = tmp_path / "second.work" / "optunets"
    assert ckptzoo.verify(zoo) == []
    recipe = Recipe.of("digits-optunet", 1)
    assert data.load(recipe).name == "digits"
    assert build(recipe, zoo, members=9).held == 9


@pytest.mark.exhaustive
def test_a_call_waits_for_the_step_of_a_killed_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    work = tmp_path / "out.work"
    work.mkdir()
    # the step of a killed call, which saves for 3 seconds
    holds = "import fcntl, sys, time; file = open(sys.argv[1], 'ab'); fcntl.flock(file, fcntl.LOCK_EX)"
    holds += "; print('held', flush=True); time.sleep(3)"
    with subprocess.Popen([sys.executable, "-c", holds, str(work / "lock")], stdout=subprocess.PIPE) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == b"held\n"
        subprocess.run(command(out, "--device", "cpu", "--stages", "facts"), cwd=ROOT, check=True)
        assert step.poll() is not None
    assert results(out)["facts"]["status"] == "finished"


def test_without_a_gpu_it_says_what_it_skipped(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        command(tmp_path / "out"), cwd=ROOT, check=True, capture_output=True, text=True, env=environment
    )
    assert ran.stdout.count("torch finds no CUDA device") == len(results(tmp_path / "out")) > 8
    assert {step["status"] for step in results(tmp_path / "out").values()} == {"skipped"}


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """Where Python has no packages, even that is said."""
    isolated = [sys.executable, "-I", "-S", "-c"]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks.gpu import main; main()"
    ran = subprocess.run(
        [*isolated, code, *command(tmp_path / "out", "--stages", "facts")[3:]],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "facts: skipped, not installed: torch, numpy" in ran.stdout


def test_results_come_first_and_state_last() -> None:
    paths = ("results/facts.json", "logs/tests.log", "optunets/weights/raw/a.safetensors")
    paths += ("resnets/predictions/a.safetensors", "resnets/weights/raw/a.safetensors", "resnets/.work/b/c.safetensors")
    assert [rank_of(Path(path)) for path in paths] == [0, 1, 2, 3, 4, 5]
    assert rank_of(Path("data/cifar100/cifar100_test.npz")) is None
    assert rank_of(Path("optunets/.work/b/lock")) is None

"""``work --on ray``: a cluster of two nodes on this machine, whose workers, nodes and driver are killed."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptzoo
from builders import ray_work
from builders.__main__ import run
from builders.build import build
from builders.checkpointing import WORK_FOLDER
from builders.recipe import Recipe
from builders.shared import merge, plan
from builders.status import BuildStatus, status
from ckptzoo.errors import MissingExtraError, ZooError
from ckptzoo.recording.claims import Claims
from tests.builders.test_shared import assert_same
from tests.support.builds import QUIET
from tests.support.effort import ALL

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed")

TOY = Recipe.load("toy").shortened(2)
EPOCHS = 20
"""Of units that take long enough to be killed in the middle."""
COMMAND = """
import sys
from builders.__main__ import run
sys.exit(run(sys.argv[1:]))
"""


class TwoNodes:
    """A cluster of a head and another node, each with one core, and a GPU that is not there; nodes can be killed and replaced.

    By default it is the head alone: each node takes seconds to start, and its worker to import torch.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        settings = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
        self._settings = settings
        self._cluster: Any = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
        self.address: str = self._cluster.address
        self._node = self._cluster.add_node(**settings) if ALL else None

    def replace_node(self) -> None:
        """Kill the other node with its workers, and start a new one."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = self._cluster.add_node(**self._settings)

    def workers(self) -> list[int]:
        """The processes that train, on both nodes."""
        raylets = {node.all_processes["raylet"][0].process.pid for node in self._cluster.list_all_nodes()}
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                name = (path / "cmdline").read_bytes()
                fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            if name.startswith(b"ray::train_unit") and int(fields[1]) in raylets and fields[0] != b"Z":
                found.append(int(path.name))
        return found

    def close(self) -> None:
        """End all its processes."""
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    cluster = TwoNodes()
    yield cluster
    cluster.close()


def on(nodes: TwoNodes, path: Path, recipe: Recipe = TOY, **options: Any) -> Any:
    return ray_work.work(path, recipe, address=nodes.address, console=QUIET, **options)


def the_status(path: Path) -> BuildStatus:
    (found,) = status(path)
    return found


def test_the_bits_of_a_build(nodes: TwoNodes, tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    build(TOY, tmp_path / "whole", members=8, unit_size=2, keep_steps=(1,), console=QUIET)
    plan(TOY, path, members=8, unit_size=2, keep_steps=(1,))
    done = on(nodes, path)
    assert (done.units, done.members, done.left, done.failed) == (4, 8, 0, ())
    assert {unit.state for unit in the_status(path).units} == {"finished"}
    names = {item.name.partition(".")[2] for item in (path / WORK_FOLDER / TOY.prefix).iterdir()}
    assert names == {"", "json", "kept.safetensors", "log"}  # no claim, no state
    merge(path)
    assert_same(path, ckptzoo.open(tmp_path / "whole"))


def driver(nodes: TwoNodes, path: Path) -> "subprocess.Popen[bytes]":
    arguments = [
        "work",
        "toy",
        "--epochs",
        str(EPOCHS),
        "--to",
        str(path),
        "--save-every",
        "0.1",
        "--on",
        f"ray://{nodes.address}",
    ]
    return subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.DEVNULL)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20 if ALL else 1))
def test_kills_of_workers_nodes_and_the_driver_lose_nothing(nodes: TwoNodes, tmp_path: Path, seed: int) -> None:
    """Five kills in the middle of units; every unit is done once, with the bits of a build."""
    toy, path, rng = Recipe.load("toy").shortened(EPOCHS), tmp_path / "zoo", random.Random(seed)
    build(toy, tmp_path / "whole", members=12, unit_size=2, console=QUIET)
    plan(toy, path, members=12, unit_size=2)
    victims = ["worker", "node", "worker", "driver", "worker"]
    rng.shuffle(victims)
    process = driver(nodes, path)
    for victim in victims:
        # in the middle of a unit, unless there is none left
        while process.poll() is None and not (the_status(path).count("running") and nodes.workers()):
            time.sleep(0.02)
        if process.poll() is not None:
            break
        time.sleep(rng.uniform(0.0, 0.5))
        if victim == "worker":
            for worker in nodes.workers()[:1]:
                os.kill(worker, signal.SIGKILL)
        elif victim == "node":
            nodes.replace_node()
        else:
            process.kill()
            process.wait(60)
            process = driver(nodes, path)
    assert process.wait(120) == 0
    added = merge(path, toy)
    assert (added.units, added.checkpoints, added.left) == (6, 12, 0)
    assert_same(path, ckptzoo.open(tmp_path / "whole"))


@pytest.mark.exhaustive
def test_what_others_hold_is_left_to_them(nodes: TwoNodes, tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    plan(TOY, path, members=6, unit_size=2)
    held = the_status(path).units[1].name
    with Claims(path / WORK_FOLDER / TOY.prefix).held(held):
        done = on(nodes, path)
        assert (done.units, done.left) == (2, 1)
        assert [unit.state for unit in the_status(path).units] == ["finished", "running", "finished"]
    assert on(nodes, path, seconds=0.0).left == 1
    assert not list((path / WORK_FOLDER / TOY.prefix).glob("*.claim-*"))


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_unit_that_fails_is_noted(nodes: TwoNodes, tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    plan(TOY, path, members=2, unit_size=2)
    done = on(nodes, path, device="cuda")
    (unit,) = the_status(path).units
    ((name, error),) = done.failed
    assert (done.units, done.left, name, unit.attempts, unit.state) == (0, 1, unit.name, 1, "waiting")
    assert error.startswith("ZooError: build: device")
    log = (path / WORK_FOLDER / TOY.prefix / f"{name}.log").read_text()
    assert "in device_kind" in log  # the traceback of the worker


@pytest.mark.exhaustive
def test_workers_with_other_code_are_refused(nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    plan(TOY, path, members=4, unit_size=2)
    monkeypatch.setattr(ray_work, "version", lambda: "ckptzoo 0.0.1")
    with pytest.raises(
        ZooError, match=r"code of a worker: expected ckptzoo 0\.0\.1, got ckptzoo .* torch .* Give every"
    ):
        on(nodes, path)
    assert {unit.state for unit in the_status(path).units} == {"waiting"}


@pytest.mark.exhaustive
def test_a_worker_that_is_silent_is_given_up(nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy, path, stopped = Recipe.load("toy").shortened(EPOCHS), tmp_path / "zoo", list[int]()
    plan(toy, path, members=4, unit_size=2)
    monkeypatch.setattr(ray_work, "SILENT_SECONDS", 4.0)
    monkeypatch.setattr(ray_work, "START_SECONDS", 2.0)

    def stop_one() -> None:
        while not (the_status(path).count("running") and nodes.workers()):
            time.sleep(0.02)
        stopped.extend(nodes.workers()[:1])
        os.kill(stopped[0], signal.SIGSTOP)

    thread = threading.Thread(target=stop_one)
    thread.start()
    try:
        done = on(nodes, path, toy, save_seconds=0.1)
    finally:
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(stopped[0], signal.SIGKILL)
    assert (done.units, done.left) == (2, 0)


def test_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zoo"
    plan(TOY, path, members=2, unit_size=2)
    arguments = ["work", "toy", "--epochs", "2", "--to", str(path), "--on"]
    for wrong in ("slurm", "ray://", "ray:6379"):
        assert run([*arguments, wrong]) == 2
        assert "expected ray or ray://HOST:PORT" in capsys.readouterr().err
    for wrong in ("ray://127.0.0.1:1", "ray://127.0.0.1"):
        assert run([*arguments, wrong]) == 2
        assert "Name the head's address as ray start prints it" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ckptzoo\[ray\]'"):
        ray_work.work(path, console=QUIET)

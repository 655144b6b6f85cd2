"""Tasks of a real Slurm: its controller and one node, as processes of this test."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import builders.slurm
import ckptzoo
from builders.__main__ import run
from builders.build import build
from builders.checkpointing import WORK_FOLDER
from builders.recipe import Recipe
from builders.shared import merge, plan
from builders.slurm import ArrayTask, submit
from builders.state import TrainingState
from builders.status import status
from builders.train import Trainer
from ckptzoo.errors import ZooError
from tests.support.builds import QUIET
from tests.support.effort import ALL
from tests.support.ports import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
needs_slurm = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)) or os.geteuid() != 0, reason="no Slurm (slurmctld, slurmd), or not root"
)
pytest.importorskip("submitit")
ROOT = Path(__file__).parents[2]
TOY = Recipe.load("toy").shortened(2)
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
MaxArraySize=50
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of one node with two cores; the folder of its logs."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(folder=folder, host=host, controller=free_port(), node=free_port())
    (folder / "slurm.conf").write_text(text)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_CONF", environment["SLURM_CONF"])
        # for the tasks
        patched.setenv("PYTHONPATH", str(ROOT))
        processes = [
            subprocess.Popen([name, "-D"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name in ("slurmctld", "slurmd")
        ]
        try:
            wait_for(lambda: "idle" in subprocess.run(["sinfo"], capture_output=True, text=True).stdout, 60)
            yield folder
            subprocess.run(["scancel", "--user=root"], check=True)
            wait_for(lambda: not queued())
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def queued() -> list[str]:
    """The tasks that wait or run."""
    shown = subprocess.run(["squeue", "--noheader", "--array"], capture_output=True, text=True, check=True).stdout
    return shown.splitlines()


def assert_whole(path: Path, expected: ckptzoo.Zoo) -> None:
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert sorted(zoo.ids) == sorted(expected.ids)
    order = np.array([zoo.ids.index(name) for name in expected.ids])
    for name in expected.arch.names:
        assert np.asarray(zoo[name])[order].tobytes() == np.asarray(expected[name]).tobytes()


@needs_slurm
@pytest.mark.slow
def test_tasks_that_are_killed_lose_nothing(tmp_path: Path, slurm: Path) -> None:
    """Five tasks are killed in the middle; the others, and those submitted later, carry on with the same bits."""
    recipe = Recipe.load("digits-optunet").shortened(30)
    whole, path = tmp_path / "whole", tmp_path / "zoo"
    build(recipe, whole, members=8, unit_size=2, console=QUIET)
    plan(recipe, path, members=8, unit_size=2)
    folder = path / WORK_FOLDER / recipe.prefix
    killed: set[int] = set()
    end = time.monotonic() + 200
    while unfinished(path):
        assert time.monotonic() < end
        if not queued():
            submitted = submit(path, recipe, tasks=2, seconds=300, threads=1, save_seconds=0)
            assert submitted.tasks == 2 and submitted.folder.is_dir()
        for unit in status(path)[0].units:
            process = unit.holder.process if unit.holder is not None else 0
            is_saved = (folder / f"{unit.name}.state.safetensors").exists()
            if len(killed) < 5 and unit.state == "running" and is_saved and process not in killed:
                os.kill(process, signal.SIGKILL)
                killed.add(process)
        time.sleep(0.05)
    wait_for(lambda: not queued())
    logs = "\n".join(file.read_text() for file in (path / WORK_FOLDER).glob("*-slurm/*.err"))
    assert len(killed) == 5, logs[-3000:]
    assert merge(path, recipe).left == 0 and not folder.exists()
    assert_whole(path, ckptzoo.open(whole))


def unfinished(path: Path) -> bool:
    return any(unit.state != "finished" for unit in status(path)[0].units)


@needs_slurm
@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="CKPTZOO_TESTS=all runs it")
def test_a_task_whose_time_is_up_comes_back(tmp_path: Path, slurm: Path) -> None:
    """Slurm lets a task that was put back into the queue wait for two minutes."""
    recipe = Recipe.load("digits-optunet").shortened(300)
    whole, path = tmp_path / "whole", tmp_path / "zoo"
    build(recipe, whole, members=4, unit_size=2, console=QUIET)
    plan(recipe, path, members=4, unit_size=2)
    job = submit(path, recipe, tasks=1, seconds=1, threads=1).job
    wait_for(lambda: int(restarts(job)) > 0, 60)
    assert queued()
    # the next turns are longer
    wait_for(lambda: not unfinished(path), 900)
    wait_for(lambda: not queued(), 60)
    merge(path, recipe)
    assert_whole(path, ckptzoo.open(whole))


def restarts(job: str) -> str:
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True).stdout
    return shown.partition("Restarts=")[2].partition(" ")[0] or "0"


@needs_slurm
@pytest.mark.slow
def test_what_slurm_refuses_is_said_in_its_words(
    tmp_path: Path, slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "zoo"
    plan(TOY, path, members=4, unit_size=2)
    with pytest.raises(
        ZooError, match=r"sbatch: expected a job that it accepts, got .*[Ii]nvalid partition.* See sbatch"
    ):
        submit(path, tasks=2, sbatch={"partition": "none"})
    with pytest.raises(ZooError, match=r"sbatch: expected a job that it accepts, got .*[Ii]nvalid job array"):
        submit(path, tasks=60)
    assert (
        run(["submit", str(Recipe.load("toy").name), "--to", str(path), "--epochs", "2", "--slurm", "--tasks", "60"])
        == 2
    )
    assert "array" in capsys.readouterr().err


def test_without_a_plan_or_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZooError, match=r"plans: expected one, got none\. Plan it first: python -m builders plan"):
        submit(tmp_path, tasks=2)
    plan(TOY, tmp_path / "zoo", members=4, unit_size=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ZooError, match=r"Slurm: expected sbatch and srun on this machine, got none. Run this where"):
        submit(tmp_path / "zoo", tasks=2)


@pytest.mark.exhaustive
def test_the_command_for_other_schedulers_trains_what_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "zoo with a blank"
    plan(TOY, path, members=4, unit_size=2)
    capsys.readouterr()
    assert run(["submit", "toy", "--epochs", "2", "--to", str(path), "--print", "--for", "5m", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(sys.executable) and "--for 300s" in printed and "--epochs 2" in printed
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(printed, shell=True, cwd=tmp_path, env=environment, check=True)
    assert merge(path).units == 2


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--slurm", "--print"],
        ["--slurm", "--sbatch", "partition"],
        ["--slurm", "--tasks", "0"],
        ["--print", "--for", "soon"],
    ],
)
def test_wrong_options(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "toy", "--to", str(tmp_path), *arguments]) == 2
    assert "expected" in capsys.readouterr().err or "--tasks" in arguments


def test_a_task_tries_units_again_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(TOY, tmp_path, members=4, unit_size=2)
    advance, failed = Trainer.advance, threading.Event()

    def fails_once(self: Trainer, state: TrainingState, stop: int) -> None:
        if state.step and not failed.is_set():
            failed.set()
            raise RuntimeError("once")
        advance(self, state, stop)

    monkeypatch.setattr(Trainer, "advance", fails_once)
    monkeypatch.setattr(builders.slurm, "_RETRY_SECONDS", 0.0)
    task = ArrayTask(tmp_path, TOY, 60, {"console": QUIET})
    assert task() == 2 and failed.is_set()
    assert merge(tmp_path).left == 0

"""Training of one unit far from the zoo's folder: what ``builders.ray_work`` runs as a task of Ray.

A task has no file in common with the process that submitted it: it gets the unit's last saved state, and yields the
files that it would have written.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import builders
import ckptzoo
from builders.build import MemberTraining, code_version
from builders.checkpointing import BuildFolder, BuildPlan, Unit
from builders.energy import counter_of
from builders.recipe import Recipe
from builders.sources import Source
from builders.train import open_trainer

HEARTBEAT_SECONDS = 5.0
"""The longest time in seconds between two values that a task yields."""
_REPORT_SECONDS = 1.0
"""The shortest time in seconds between two values that report progress alone."""


@dataclass(frozen=True, eq=False)
class UnitTask:
    """The training that a task does. ``state`` is the content of the file ``state_name`` with the unit's saved state,
    None where it begins; ``kept`` are the steps whose checkpoints are stored already.
    """

    recipe: Recipe
    plan: BuildPlan
    plan_digest: str
    unit: Unit
    state: bytes | None
    state_name: str
    kept: frozenset[int]
    device: str
    threads: int
    save_seconds: float


@dataclass(frozen=True)
class TaskProgress:
    """The progress of a task.

    ``step`` counts the optimiser steps of the unit so far; ``member_steps`` those of all members together since the
    last report, in the first one those that were taken before, and ``seconds`` their time. ``files`` ``{name:
    content}`` are to be written in this order.
    """

    step: int
    member_steps: int
    seconds: float
    files: dict[str, bytes] = field(default_factory=dict)


@cache
def version() -> str:
    """Return the versions that bits depend on, of sources too, because nodes have copies."""
    total = hashlib.sha256()
    for package in (builders, ckptzoo):
        root = Path(str(package.__file__)).parent
        # sorted: the order of a folder differs between file systems
        for path in sorted(root.rglob("*.py")):
            total.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"{code_version()}, numpy {np.__version__}, sources {total.hexdigest()[:12]}"


def train_unit(task: UnitTask, source: Source) -> Iterator[str | TaskProgress]:
    """Train a unit from its saved state to its end; yield first ``version()``, then reports. A report with nothing new
    comes where nothing else has come for some seconds.
    """
    yield version()
    reports, step = _reports(task, source), 0
    # another thread trains, so that this one can send heartbeats during a long step
    with ThreadPoolExecutor(1) as thread:
        while True:
            coming: Future[TaskProgress | None] = thread.submit(next, reports, None)
            while not wait([coming], timeout=HEARTBEAT_SECONDS).done:
                yield TaskProgress(step, 0, 0.0)
            report = coming.result()
            if report is None:
                return
            step = report.step
            yield report


def _reports(task: UnitTask, source: Source) -> Iterator[TaskProgress]:
    with (
        tempfile.TemporaryDirectory(prefix="ckptzoo-") as folder,
        open_trainer(task.recipe, source, device=task.device, engine=task.plan.engine, threads=task.threads) as trainer,
        counter_of(task.device) as counter,
    ):
        saved = Path(folder, task.state_name)
        if task.state is not None:
            saved.write_bytes(task.state)
        files = _YieldedFiles(Path(folder), task.plan_digest, task.kept)
        job = MemberTraining(files, trainer, task.plan.engine, task.save_seconds, _never, counter, task.plan)
        member_steps, seconds, reported = 0, 0.0, -_REPORT_SECONDS
        for taken in job.proceed(task.unit):
            # a worker that is killed leaves its folder behind
            saved.unlink(missing_ok=True)
            member_steps, seconds = member_steps + taken.member_steps, seconds + taken.seconds
            if files.written or time.monotonic() - reported >= _REPORT_SECONDS:
                yield TaskProgress(taken.step, member_steps, seconds, files.take())
                member_steps, seconds, reported = 0, 0.0, time.monotonic()


def _never() -> bool:
    return False


class _YieldedFiles(BuildFolder):
    """A build folder that keeps written files in memory, until they are taken."""

    def __init__(self, folder: Path, plan_digest: str, kept: frozenset[int]) -> None:
        super().__init__(folder, plan_digest)
        self._stored = kept
        self.written: dict[str, bytes] = {}

    def write(self, name: str, *pieces: bytes | memoryview) -> None:
        self.written[name] = b"".join(pieces)

    def take(self) -> dict[str, bytes]:
        """Return everything that was written since the last time."""
        taken, self.written = self.written, {}
        return taken

    def is_kept(self, unit: Unit, number: int) -> bool:
        return number in self._stored

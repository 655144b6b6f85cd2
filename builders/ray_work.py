"""``work`` on a cluster of Ray: this process has the zoo's folder, and the machines of the cluster have the cores.

::

    this process                              a worker, on any node
    submits every open unit with its state    trains one unit
    claims a unit when it starts              yields states and checkpoints
    writes them, as ``work`` does             ends, or dies: the unit is submitted again from its last state

No file system is shared. Units are submitted all at once, so that a cluster that grows on demand sees the demand.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from builders.build import SAVE_SECONDS
from builders.checkpointing import Interrupted, Unit, catch_stop_signals
from builders.failures import ATTEMPTS, forget_failures, log, note_failure
from builders.progress import Progress
from builders.ray_tasks import HEARTBEAT_SECONDS, TaskProgress, UnitTask, train_unit, version
from builders.recipe import Recipe
from builders.shared import Worked, WorkOrder
from ckptzoo.errors import Problem, ZooError
from ckptzoo.ray_cluster import connected
from ckptzoo.recording.claims import Claims
from ckptzoo.recording.unit_files import read_small

SILENT_SECONDS = 12 * HEARTBEAT_SECONDS
"""Seconds without a heartbeat after which a task counts as lost: some are, when nodes die (Ray's issues 39109, 46425).
"""
START_SECONDS = 30.0
"""Seconds that a task may wait while there is room for it before it is submitted again; doubled each time."""
_MAX_WAIT_SECONDS = 600.0
_ROOM_SECONDS = 60.0
"""Seconds after which the missing resources are named when no unit has started."""
_POLL_SECONDS = 0.2
_UNREAD = 2
"""Reports by which a task may be ahead of the reader; then it waits, which counts as time of its saves."""


class _SilentError(Exception):
    """A task sends no heartbeat any more."""


class _OutdatedError(Exception):
    """A task was not started, or begins where another process has been already."""


def work(
    to: str | Path,
    recipe: Recipe | str | Path | None = None,
    *,
    address: str | None = None,
    unit: str | None = None,
    share: tuple[int, int] | None = None,
    seconds: float | None = None,
    folder: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    save_seconds: float = SAVE_SECONDS,
    console: Console | None = None,
) -> Worked:
    """Train units of a plan on a cluster of Ray, beside other ``work`` processes if there are any.

    Other arguments are those of ``builders.shared.work``; only this machine needs the data. Weights have the bits of
    ``builders.shared.work``. Workers that die lose at most what was trained since the last save; a unit that is lost
    five times without progress counts as failed.

    Raises Interrupted on Ctrl-C or SIGTERM; units carry on from their last saved states. Raises MissingExtraError: Ray
    is not installed. Raises ZooError as ``builders.shared.work``; there is no cluster at the address, or its nodes have
    other code.

    ``address`` is that of the cluster's head, ``host:6379``; this machine must belong to the cluster. By default it is
    the environment variable ``RAY_ADDRESS``, else the cluster that this machine belongs to, else one of this machine
    alone. ``threads`` are the cores of a unit, by default 1; on a GPU, of which a unit has one, streams.
    """
    console = console or Console()
    order = WorkOrder.of(to, recipe, folder, unit=unit, share=share)
    end = None if seconds is None else time.monotonic() + seconds
    done: set[str] = set()
    failed: dict[str, str] = {}
    if not order.units:
        return order.worked(done, failed, 0, 0.0)
    members = sum(len(item.seeds) for item in order.units)
    steps = members * order.plan.keep_steps[-1]
    began = time.monotonic()
    with (
        connected(address) as ray,
        # Ray replaces the handler of SIGTERM when it connects
        catch_stop_signals() as asked,
        Progress(console, order.recipe.name, members=members, member_steps=steps, done=0, finished=0) as progress,
    ):

        def should_stop() -> bool:
            return asked() or (end is not None and time.monotonic() >= end)

        driver = _Driver(ray, order, device or order.plan.device, threads or 1, save_seconds, progress, done, failed)
        asyncio.run(driver.run(should_stop))
        if asked():
            raise Interrupted("stopped. Run the same command to carry on from the last saved states.")
    return order.worked(done, failed, progress.taken, time.monotonic() - began)


@dataclass(frozen=True, eq=False)
class _Driver:
    """Runs units as tasks and writes what they yield; collects names of those done, and errors of those failed."""

    ray: Any
    order: WorkOrder
    device: str
    threads: int
    save_seconds: float
    progress: Progress
    done: set[str]
    failed: dict[str, str]
    started: set[str] = field(default_factory=set)

    @cached_property
    def source(self) -> Any:
        """The data, put into the cluster's memory once."""
        return self.ray.put(self.order.source)

    @cached_property
    def claims(self) -> Claims:
        return Claims(self.order.build_folder.folder)

    @cached_property
    def needs(self) -> dict[str, float]:
        """The resources that a node must have free for a unit."""
        return {"CPU": 1, "GPU": 1} if self.device.startswith("cuda") else {"CPU": self.threads}

    async def run(self, should_stop: Callable[[], bool]) -> None:
        """Train all units; end when they are done, or when it is time to stop."""
        pending = {asyncio.create_task(self._train(unit)) for unit in self.order.units}
        began, noted = time.monotonic(), False
        try:
            while pending and not should_stop():
                # woken without an event, too: ``should_stop`` is a question, and no event
                ended, pending = await asyncio.wait(pending, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
                for task in ended:
                    task.result()
                if not noted and not self.started and time.monotonic() - began > _ROOM_SECONDS:
                    noted, there = True, self.ray.cluster_resources()
                    has = {name: there.get(name, 0) for name in self.needs}
                    self.progress.note(f"no unit has started: each needs {self.needs}, the cluster has {has} in all")
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _train(self, unit: Unit) -> None:
        """Have one unit trained, by as many tasks as it takes."""
        errors, folder = self.ray.exceptions, self.order.build_folder.folder
        losses, reached, patience = 0, -1, START_SECONDS
        while True:
            attempt = _TaskAttempt(self, unit, patience)
            try:
                return await attempt.run()
            except _OutdatedError:
                patience *= 2
            # before RayError, from which it is derived: the training itself failed, as it would on any worker
            except errors.RayTaskError as error:
                if not attempt.started:
                    raise _other_code(f"none that runs: {str(error).strip().splitlines()[-1]}") from error
                return self._fail(unit, attempt.step, _cause(error))
            except (_SilentError, errors.RayError) as error:
                saved = attempt.saved_step
                losses, reached = (1, saved) if saved > reached else (losses + 1, reached)
                if losses >= ATTEMPTS:
                    return self._fail(unit, saved, error)
                log(self.order.build_folder, unit.name, f"lost its worker at step {attempt.step:,}: {error}")
                self.progress.note(f"{unit.name}: its worker was lost at step {attempt.step:,}; it is tried again.")
            except (ZooError, FileNotFoundError):
                # another process has merged the last units and removed the folder
                if folder.exists():
                    raise
                return None

    def submit(self, task: UnitTask) -> Any:
        """Submit a task to the cluster; return the generator of references to what it yields."""
        return self._remote_task.remote(task, self.source)

    def has_room(self) -> bool:
        """Return whether a unit could start now."""
        free = self.ray.available_resources()
        return all(free.get(name, 0) >= number for name, number in self.needs.items())

    @cached_property
    def _remote_task(self) -> Any:
        needs = {"num_cpus": self.needs["CPU"], "num_gpus": self.needs.get("GPU", 0)}
        # Ray itself would try a generator again from its beginning
        streaming = {"num_returns": "streaming", "max_retries": 0, "_generator_backpressure_num_objects": _UNREAD}
        return self.ray.remote(**needs, **streaming)(train_unit)

    def _fail(self, unit: Unit, step: int, error: Exception) -> None:
        self.failed[unit.name] = f"{type(error).__name__}: {error}"
        note_failure(self.order.build_folder, unit.name, step, error)


class _TaskAttempt:
    """One task of a unit, which may wait ``patience`` seconds to be started while there is room for it.

    ``started`` tells whether the task has begun to train, and this process holds the unit; ``step`` counts the
    optimiser steps that it is known to have taken, ``saved_step`` those that are saved.
    """

    def __init__(self, driver: _Driver, unit: Unit, patience: float) -> None:
        self.started, self.step, self.saved_step = False, 0, 0
        self._driver, self._unit, self._patience = driver, unit, patience
        self._folder = driver.order.build_folder
        self._counted = 0

    async def run(self) -> None:
        """Follow the task to its end, or to the moment when another process is found to hold the unit."""
        driver, unit, finished = self._driver, self._unit, False
        path, changed, state = self._folder.saved_file(unit), self._changed(), None
        if path is not None:
            # a process that finishes the unit meanwhile removes it
            with suppress(FileNotFoundError):
                state = await asyncio.to_thread(read_small, path)
        plan = driver.order.plan
        kept = frozenset(step for step in plan.keep_steps if self._folder.is_kept(unit, step))
        name = self._folder.state_name(unit)
        settings = driver.device, driver.threads, driver.save_seconds
        task = UnitTask(driver.order.recipe, plan, self._folder.plan_digest, unit, state, name, kept, *settings)
        reports = driver.submit(task)
        try:
            if (found := await self._first(reports)) != version():
                raise _other_code(str(found))
            with driver.claims.held(unit.name) as claim:
                if claim is None or driver.order.is_finished(unit):
                    return
                # another process has saved the unit since its state was read: the task begins too early
                if self._changed() != changed:
                    raise _OutdatedError
                self.started = True
                driver.started.add(unit.name)
                log(self._folder, unit.name, "begun by a worker of Ray", begin=True)
                while (report := await self._next(reports)) is not None:
                    await self._take(report)
                    claim.progress = self.step
                    if claim.lost:
                        return
                finished = True
                log(self._folder, unit.name, f"finished at step {self.step:,}")
                self._folder.forget_state(unit)
                forget_failures(self._folder, unit.name)
                driver.done.add(unit.name)
                driver.progress.finish(len(unit.seeds))
        finally:
            if not finished:
                # the next attempt counts the steps again
                driver.progress.resume(-self._counted)
                with suppress(driver.ray.exceptions.RayError):
                    # force: the worker ends at once; a task within a step looks for nothing
                    driver.ray.cancel(reports, force=True)

    async def _take(self, report: TaskProgress) -> None:
        """Write the files of a report, and count its steps."""
        progress, members = self._driver.progress, len(self._unit.seeds)
        for name, data in report.files.items():
            # a file server that is slow must not hold up the other units
            await asyncio.to_thread(self._folder.write, name, data)
        if self._counted or report.seconds:
            progress.advance(report.member_steps, report.seconds)
        else:
            progress.resume(report.member_steps)
            self.saved_step = report.member_steps // members
        if self._folder.state_name(self._unit) in report.files:
            self.saved_step = report.step
        self.step, self._counted = report.step, self._counted + report.member_steps

    async def _first(self, reports: Any) -> str | TaskProgress | None:
        """Return the first value that a task yields; it may wait for a free node without limit."""
        coming = asyncio.ensure_future(_read(reports))
        try:
            seconds = self._patience
            while not (await asyncio.wait({coming}, timeout=seconds))[0]:
                if self._driver.has_room():
                    raise _OutdatedError
                # thousands may wait, and each question goes to the head
                seconds = min(2 * seconds, _MAX_WAIT_SECONDS)
            return coming.result()
        finally:
            coming.cancel()

    async def _next(self, reports: Any) -> Any:
        """Return the next report; None behind the last."""
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                return await _read(reports)
        except TimeoutError:
            raise _SilentError(f"no heartbeat for {SILENT_SECONDS:.0f} s") from None

    def _changed(self) -> int:
        """Return when the unit was last saved; 0 where it was not."""
        path = self._folder.saved_file(self._unit)
        with suppress(FileNotFoundError):
            return 0 if path is None else path.stat().st_mtime_ns
        return 0


async def _read(reports: Any) -> Any:
    """Return the next value of a generator of references; None behind the last."""
    reference = await anext(reports, None)
    return None if reference is None else await reference


def _cause(error: Any) -> Exception:
    """Return the error that a task ended with, with its traceback there as a note."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    if cause is not error:
        cause.add_note(str(error))
    return cause


def _other_code(got: str) -> ZooError:
    step = "Give every node this checkout (at the same path, or on PYTHONPATH when ray start is called) and packages."
    return ZooError(Problem("ray", "code of a worker", version(), got, step))

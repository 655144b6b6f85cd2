"""``work`` on a cluster of Ray: this process has the zoo's folder, and the machines of the cluster have the cores.

::

    this process                              a worker, on any node
    submits every open unit with its state    trains one unit
    claims a unit when it starts              yields states and checkpoints
    writes them, as ``work`` does             ends, or dies: the unit is submitted again from its last state

No file system is shared. Units are submitted all at once, so that a cluster that grows on demand sees the demand.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from builders.build import SAVE_SECONDS
from builders.checkpointing import Interrupted, Unit, catch_stop_signals
from builders.claims import Claims
from builders.failures import ATTEMPTS, forget_failures, note_failure
from builders.progress import Progress
from builders.ray_tasks import SIGN_SECONDS, Report, UnitTask, code_version, train_unit
from builders.recipe import Recipe
from builders.shared import Worked, WorkOrder
from ckptzoo.errors import Problem, ZooError, require

SILENT_SECONDS = 12 * SIGN_SECONDS
"""After these without a sign of life a task is taken for lost: some are, when nodes die (Ray's issues 39109, 46425)."""
START_SECONDS = 120.0
"""How long a task may wait while there is room for it."""
_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 10.0
_UNREAD = 2
"""Reports that a task may be ahead of what was read; then it waits, which counts as time of its saves."""


class _LostError(Exception):
    """A task gives no sign of life."""


def work(
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    address: str | None = None,
    unit: str | None = None,
    share: tuple[int, int] | None = None,
    seconds: float | None = None,
    folder: str | Path | None = None,
    epochs: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    save_seconds: float = SAVE_SECONDS,
    console: Console | None = None,
) -> Worked:
    """Train units of a plan on a cluster of Ray, beside other ``work`` processes if there are any.

    Parameters
    ----------
    address : of the cluster's head, ``host:6379``; this machine must belong to the cluster. By default the environment
        variable ``RAY_ADDRESS``, else the cluster that this machine belongs to, else one of this machine alone.
    threads : cores of a unit, by default 1; on a GPU, of which a unit has one, streams.
    recipe, to, unit, share, seconds, folder, epochs, device, save_seconds : as for ``builders.shared.work``. Only this
        machine needs the data.

    Raises
    ------
    Interrupted
        On Ctrl-C or SIGTERM; units carry on from their last saved states.
    MissingExtraError
        Ray is not installed.
    ZooError
        As ``builders.shared.work``; there is no cluster at the address, or its nodes have other code.

    Notes
    -----
    Weights have the bits of ``builders.shared.work``. Workers that die lose at most what was trained since the last
    save; a unit that is lost five times without progress counts as failed.
    """
    ray = require("ray", "ray")
    console = console or Console()
    order = WorkOrder.of(Recipe.of(recipe, epochs), to, folder, unit=unit, share=share)
    end = None if seconds is None else time.monotonic() + seconds
    done: set[str] = set()
    failed: dict[str, str] = {}
    if not order.units:
        return order.worked(done, failed, 0, 0.0)
    members = sum(len(item.seeds) for item in order.units)
    steps = members * order.plan.keep_steps[-1]
    began = time.monotonic()
    with (
        _connected(ray, address),
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


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to a cluster, until the end of the block."""
    address = address or os.environ.get("RAY_ADDRESS") or None
    try:
        if address not in (None, "auto", "local"):
            _require_listener(address)
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        step = "Name the head's address as ray start prints it, on a machine where ray start was called as well."
        raise ZooError(Problem("ray", f"cluster {address or ''}".strip(), "one to connect to", text, step)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Raise OSError or ValueError at once where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r}, which is not HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


@dataclass(frozen=True, eq=False)
class _Driver:
    """Has units trained by tasks, and writes what they yield.

    Parameters
    ----------
    done, failed : filled with the names of units, and with the errors of those that failed.
    """

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
        """Of the units."""
        return Claims(self.order.build_folder.folder)

    @cached_property
    def needs(self) -> dict[str, float]:
        """What a node must have free for a unit."""
        return {"CPU": 1, "GPU": 1} if self.device.startswith("cuda") else {"CPU": self.threads}

    async def run(self, should_stop: Callable[[], bool]) -> None:
        """Train all units; end when they are done, or when it is time to stop."""
        pending = {asyncio.create_task(self._train(unit)) for unit in self.order.units}
        began, told = time.monotonic(), False
        try:
            while pending and not should_stop():
                ended, pending = await asyncio.wait(
                    pending, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in ended:
                    task.result()
                if not told and not self.started and time.monotonic() - began > START_SECONDS:
                    told, there = True, self.ray.cluster_resources()
                    has = {name: there.get(name, 0) for name in self.needs}
                    self.progress.note(f"no unit has started: each needs {self.needs}, the cluster has {has} in all")
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _train(self, unit: Unit) -> None:
        """Have one unit trained, by as many tasks as it takes."""
        losses, reached = 0, -1
        while True:
            attempt = _Attempt(self, unit)
            try:
                await attempt.run()
                return
            except self.ray.exceptions.RayTaskError as error:
                if not attempt.started:
                    text = str(error).strip().splitlines()[-1]
                    raise _other_code(f"none that runs: {text}") from error
                self._fail(unit, attempt.step, _cause(error))
                return
            except (_LostError, self.ray.exceptions.RayError) as error:
                # what waited has lost nothing; what was claimed by others is left to them
                self.progress.resume(-attempt.counted)
                if not attempt.started:
                    continue
                saved = attempt.saved_step
                losses, reached = (1, saved) if saved > reached else (losses + 1, reached)
                if losses >= ATTEMPTS:
                    self._fail(unit, saved, error)
                    return
                self.progress.note(f"{unit.name}: its worker was lost ({type(error).__name__}); it is tried again")

    def _fail(self, unit: Unit, step: int, error: Exception) -> None:
        self.failed[unit.name] = f"{type(error).__name__}: {error}"
        note_failure(self.order.build_folder, unit.name, step, error)



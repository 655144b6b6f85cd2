"""``status``: the progress of the builds in a zoo's folder, and when they will end."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from builders.checkpointing import PLAN, BuildFolder, BuildPlan, member_plans
from builders.failures import ATTEMPTS, failures_of
from builders.progress import duration
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents
from ckptzoo.recording.claims import Claims, Holder
from ckptzoo.text import counted


@dataclass(frozen=True)
class UnitStatus:
    """The status of one unit.

    ``state`` is ``merged``, ``finished``, ``running``, ``silent`` (its holder sends no heartbeat, so that others take
    over), ``set aside`` (it failed too often), or ``waiting``. ``attempts`` counts how often it ended without progress;
    ``saved`` is the optimiser step up to which its training is saved.
    """

    name: str
    members: int
    state: str
    holder: Holder | None
    attempts: int
    saved: int = 0


@dataclass(frozen=True)
class BuildStatus:
    """The status of one build, with all its units in order; ``seconds`` are those since it was planned."""

    prefix: str
    units: tuple[UnitStatus, ...]
    steps: int
    seconds: float

    def count(self, *states: str) -> int:
        """Return how many members are in these states."""
        return sum(unit.members for unit in self.units if unit.state in states)

    @property
    def remaining_seconds(self) -> float | None:
        """The time that the rest takes at the pace since the build was planned; None where nothing is finished."""
        done = self.count("merged", "finished")
        started = sum(
            unit.members * max(unit.saved, unit.holder.progress if unit.holder is not None else 0) / self.steps
            for unit in self.units
            if unit.state not in ("merged", "finished")
        )
        rest = sum(unit.members for unit in self.units) - done - started
        return None if done + started == 0 else self.seconds * rest / (done + started)

    @property
    def saved_steps(self) -> int:
        """Optimiser steps of all members that are saved."""
        return sum(unit.members * unit.saved for unit in self.units)

    def to_json(self) -> dict[str, Any]:
        return {
            "build": self.prefix,
            "seconds": self.seconds,
            "remaining_seconds": self.remaining_seconds,
            "saved_steps": self.saved_steps,
            "steps": self.steps * sum(unit.members for unit in self.units),
            "units": [asdict(unit) for unit in self.units],
        }

    def print(self, console: Console) -> None:
        console.print(self.rendered())

    def rendered(self) -> Group:
        """Return counts, and a table of the units that are not merged, finished or waiting."""
        members = sum(unit.members for unit in self.units)
        counts = ", ".join(
            f"{counted(number, 'member')} {state}"
            for state in ("merged", "finished", "running", "silent", "set aside", "waiting")
            if (number := self.count(state))
        )
        rest = self.remaining_seconds
        left = "" if not rest else f"; {duration(rest)} left at this pace"
        saved = f"; {self.saved_steps:,} of {members * self.steps:,} steps saved" if self.saved_steps else ""
        line = f"{self.prefix}: {members:,} members in {counted(len(self.units), 'unit')}: {counts}{saved}{left}."
        table = Table(box=None, pad_edge=False)
        for column in ("unit", "state", "where", "step", "last sign", "attempts", "saved"):
            table.add_column(column)
        for unit in self.units:
            if unit.state not in ("merged", "finished", "waiting") or (unit.state == "waiting" and unit.saved):
                holder = unit.holder
                where = ("", "", "") if holder is None else _where(holder, self.steps)
                table.add_row(unit.name, unit.state, *where, str(unit.attempts or ""), f"{unit.saved:,}")
        return Group(line, table) if table.row_count else Group(line)


def _where(holder: Holder, steps: int) -> tuple[str, str, str]:
    return f"{holder.host} process {holder.process}", f"{holder.progress:,} of {steps:,}", f"{holder.age:.0f} s ago"


def status(to: str | Path) -> tuple[BuildStatus, ...]:
    """Return the status of the builds in a zoo's folder; raises ZooError without one, or if a plan cannot be read."""
    root = Path(to).absolute()
    if not root.is_dir():
        raise ZooError(Problem(str(root), "a zoo", "a folder", "nothing", "Plan a build there first."))
    return tuple(status for plan in member_plans(root) if (status := _status_of(root, *plan)) is not None)


def watch(to: str | Path, console: Console, *, seconds: float = 2.0) -> None:
    """Show the status of the builds in a zoo's folder every ``seconds``, until no unit waits or runs, or Ctrl-C."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            found = status(to)
            shown = [item.rendered() for item in found] or [f"{to}: nothing is planned; all that was is in the zoo."]
            live.update(Group(*shown), refresh=True)
            if not any(item.count("running", "silent", "waiting") for item in found):
                return
            time.sleep(seconds)


def _status_of(root: Path, build_folder: BuildFolder, settled: BuildPlan) -> BuildStatus | None:
    """Return the status of one plan; None where the build ended at this moment."""
    try:
        # one listing, because each look at a file of a shared folder asks its server
        names = {item.name for item in build_folder.folder.iterdir()}
        holders = Claims(build_folder.folder).holders()
        # the clock of a file server may be ahead
        seconds = max(0.0, time.time() - (build_folder.folder / PLAN).stat().st_mtime)
    except FileNotFoundError:
        return None
    merged = set(read_contents(Folder(root)).raw.rows["unit"].to_pylist())
    last = settled.keep_steps[-1]
    units: list[UnitStatus] = []
    for unit in settled.units:
        holder = holders.get(unit.name)
        attempts = len(failures_of(build_folder, unit.name)) if f"{unit.name}.failures.json" in names else 0
        if unit.name in merged:
            state = "merged"
        elif f"{unit.name}-{last:06d}.kept.safetensors" in names and build_folder.is_kept(unit, last):
            state = "finished"
        elif holder is not None:
            state = "running" if holder.alive else "silent"
        else:
            state = "set aside" if attempts >= ATTEMPTS else "waiting"
        saved = last if state in ("merged", "finished") else build_folder.saved_step(unit)
        units.append(UnitStatus(unit.name, len(unit.seeds), state, holder, attempts, min(saved, last)))
    return BuildStatus(settled.prefix, tuple(units), last, seconds)

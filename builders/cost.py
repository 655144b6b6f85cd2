"""``cost``: device-hours and energy of a zoo, from its metadata alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from builders.progress import rate
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import JsonFields
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.text import counted, printable

_COLUMNS = ["member", "mode", "unit", "step", "recipe", "recipe_digest", "device", "wall_seconds", "extra"]
JOULES_PER_KWH = 3.6e6
"""1,000 W for 3,600 s."""
_Key = tuple[str | None, str | None, str | None]
"""Recipe, device and engine."""


@dataclass(frozen=True)
class Spending:
    """The time and energy of the members of one recipe on one kind of device with one engine.

    ``recipe`` is its name and the first 8 digits of its digest; it, the device and the engine are None where unknown.
    ``timed`` counts the members whose time of training is known; ``member_steps`` and ``seconds`` are their optimiser
    steps and their shares of their units' time on the device, both up to each one's last checkpoint, without measuring
    the checkpoints. ``metered`` counts the members whose energy is known, and ``joules`` is the sum of their shares.
    """

    recipe: str | None
    device: str | None
    engine: str | None
    members: int
    checkpoints: int
    timed: int
    member_steps: int
    seconds: float
    metered: int
    joules: float

    @property
    def device_hours(self) -> float | None:
        """Hours of a device for the members whose time is known."""
        return self.seconds / 3600 if self.timed else None

    @property
    def members_per_device_hour(self) -> float | None:
        """Members that a device trains from beginning to end in an hour."""
        return self.timed / self.seconds * 3600 if self.seconds else None

    @property
    def steps_per_second(self) -> float | None:
        """Optimiser steps a second of all members together."""
        return self.member_steps / self.seconds if self.seconds else None

    @property
    def kilowatt_hours(self) -> float | None:
        """Kilowatt-hours of the members whose energy is known."""
        return self.joules / JOULES_PER_KWH if self.metered else None

    def to_json(self) -> dict[str, Any]:
        """Return everything by name; unknown values are None."""
        names = ("recipe", "device", "engine", "members", "checkpoints", "timed", "member_steps", "device_hours")
        names += ("members_per_device_hour", "steps_per_second", "metered", "kilowatt_hours")
        return {name: getattr(self, name) for name in names}

    def line(self) -> str:
        """Return the figures in one sentence."""
        parts = [counted(self.members, "member")]
        if (hours := self.device_hours) is not None:
            parts.append(f"{hours:,.3g} device-hours on {self.device or 'an unknown device'} with {self.engine or '?'}")
        if (hourly := self.members_per_device_hour) is not None:
            parts.append(f"{rate(hourly)} members a device-hour")
        if (speed := self.steps_per_second) is not None:
            parts.append(f"{rate(speed)} member-steps a second")
        if (energy := self.kilowatt_hours) is not None:
            parts.append(f"{energy:,.3g} kWh{self._partly}")
        return printable(", ".join(parts))

    def cells(self) -> list[str]:
        hours, energy = self.device_hours, self.kilowatt_hours
        return [
            printable(self.recipe or "-"),
            printable(self.device or "-"),
            printable(self.engine or "-"),
            f"{self.members:,}",
            f"{self.checkpoints:,}",
            "-" if hours is None else f"{hours:,.3g}" + (f" (of {self.timed:,})" if self.timed < self.members else ""),
            "-" if (hourly := self.members_per_device_hour) is None else rate(hourly),
            "-" if (speed := self.steps_per_second) is None else rate(speed),
            "-" if energy is None else f"{energy:,.3g}{self._partly}",
        ]

    @property
    def _partly(self) -> str:
        return f" (of {self.metered:,})" if self.metered < self.members else ""


@dataclass(frozen=True)
class Cost(JsonFields):
    """The cost of a zoo, or of a selection of one, by recipe, device and engine in the order of their names."""

    zoo: str
    spendings: tuple[Spending, ...]

    def print(self, console: Console | None = None) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in ("recipe", "device", "engine"):
            table.add_column(name, overflow="fold")
        for name in (
            *("members", "checkpoints", "device-hours", "members a device-hour", "member-steps a second", "kWh"),
        ):
            table.add_column(name, justify="right")
        for item in self.spendings:
            table.add_row(*item.cells())
        out = console or Console()
        out.print(table, markup=False, highlight=False)
        out.print("Training alone; measuring the checkpoints is not counted.", highlight=False)


def cost(zoo: Zoo) -> Cost:
    """Add up the time and energy of the members of a zoo, or of a selection of one.

    Reads metadata; no weights. A member's last checkpoint holds all its time (``wall_seconds``) and energy
    (``energy_joules`` of the ``extra`` column), each an equal share of its unit's, so that the sum over members is the
    time of the device. Draws that were taken from a mode in one piece of work are one member here.
    """
    return Cost(zoo.name, spendings(zoo.metadata))


def spendings(metadata: pa.Table) -> tuple[Spending, ...]:
    """Return the same from rows of raw metadata."""
    groups: dict[_Key, dict[object, dict[str, Any]]] = {}
    counts: dict[_Key, int] = {}
    for row in metadata.select(_COLUMNS).to_pylist():
        row["extra"] = parse_extra(row["extra"]) or {}
        engine, digest = row["extra"].get("engine"), (row["recipe_digest"] or "").removeprefix("sha256:")[:8]
        recipe = "-".join(part for part in (row["recipe"], digest) if part) or None
        key: _Key = (recipe, row["device"], engine if isinstance(engine, str) else None)
        counts[key] = counts.get(key, 0) + 1
        # each draw holds the time of its chain up to it
        # draws of a mode are members of their own in the zoo
        member = row["member"] if row["mode"] is None else (row["mode"], row["unit"])
        last = groups.setdefault(key, {}).setdefault(member, row)
        if (row["step"] or 0) > (last["step"] or 0):
            groups[key][member] = row
    order = sorted(groups, key=lambda key: tuple(part or "" for part in key))
    return tuple(_spending(key, counts[key], groups[key].values()) for key in order)


def _spending(key: _Key, checkpoints: int, last: Iterable[dict[str, Any]]) -> Spending:
    rows = list(last)
    timed = [row for row in rows if _is_amount(row["wall_seconds"])]
    joules = [energy for row in rows if _is_amount(energy := row["extra"].get("energy_joules"))]
    steps, seconds = (sum(row[name] or 0 for row in timed) for name in ("step", "wall_seconds"))
    return Spending(*key, len(rows), checkpoints, len(timed), steps, seconds, len(joules), sum(joules))


def _is_amount(value: object) -> bool:
    """Return whether an untrusted figure can be added up."""
    # JSON's true is an int for Python, and its parser takes NaN and Infinity
    return isinstance(value, int | float) and value is not True and 0 <= value < math.inf

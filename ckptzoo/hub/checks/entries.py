"""The checkpoints of a contribution, one line each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from ckptzoo.hub.card import markdown
from ckptzoo.loader.zoo import Zoo
from ckptzoo.words import printable

MOST = 50
"""Checkpoints that a table lists."""
_HEADER = ("checkpoint", "claimed", "stated", "measured", "finite", "copy of")


@dataclass(frozen=True)
class Entry:
    """One contributed checkpoint.

    Parameters
    ----------
    id : its id.
    claimed, stated : test accuracies that its row gives, as claimed and as measured by whoever wrote the row.
    measured : the one that was measured here; None where it was not.
    finite : whether its row says that every element is.
    copy : what it is a copy of, in words.
    """

    id: str
    claimed: float | None
    stated: float | None
    measured: float | None
    finite: bool | None
    copy: str | None

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON-ready values."""
        return {
            "id": self.id,
            "claimed_test_accuracy": _finite(self.claimed),
            "test_accuracy": _finite(self.stated),
            "measured_test_accuracy": _finite(self.measured),
            "finite": self.finite,
            "copy_of": self.copy,
        }

    def cells(self) -> tuple[str, ...]:
        """Its figures for a table, behind the id."""
        finite = {True: "yes", False: "no", None: "-"}[self.finite]
        return _share(self.claimed), _share(self.stated), _share(self.measured), finite


def entries(zoo: Zoo, measured: Mapping[str, Mapping[str, float]], copies: Mapping[str, str]) -> tuple[Entry, ...]:
    """The checkpoints of a zoo with what was found of them."""
    columns = ["id", "claimed_test_accuracy", "test_accuracy", "finite"]
    return tuple(
        Entry(
            row["id"],
            row["claimed_test_accuracy"],
            row["test_accuracy"],
            measured.get(row["id"], {}).get("test_accuracy"),
            row["finite"],
            copies.get(row["id"]),
        )
        for row in zoo.metadata.select(columns).to_pylist()
    )


def shown(listed: Sequence[Entry]) -> Table:
    """The first of them as a table for a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in _HEADER:
        table.add_column(name, justify="right" if name in ("claimed", "stated", "measured") else "left", no_wrap=True)
    for entry in listed[:MOST]:
        table.add_row(printable(entry.id), *entry.cells(), printable(entry.copy or "-"))
    if len(listed) > MOST:
        table.add_row(f"and {len(listed) - MOST:,} more")
    return table


def written(listed: Sequence[Entry]) -> str:
    """The first of them as a table in Markdown."""
    rows = [
        (markdown.code(entry.id), *entry.cells(), markdown.code(entry.copy) if entry.copy else "-")
        for entry in listed[:MOST]
    ]
    table = markdown.table(_HEADER, rows, right=(1, 2, 3))
    return table + (f"\n\nand {len(listed) - MOST:,} more" if len(listed) > MOST else "")


def _share(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2%}"


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value

"""What was looked at in a contribution, and what came of it.

The checkpoints of a contribution, one line each.

The checkpoints of a contribution and what was looked at, on a console.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ckptzoo.hub.card import markdown
from ckptzoo.loader.zoo import Zoo
from ckptzoo.text import printable, shortened

MAX_DETAIL = 200
"""Characters of a detail where the output is no terminal, which would fold it."""

Outcome = Literal["passed", "failed", "not done"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name : what was looked at, in a word or two.
    outcome : ``passed``, ``failed``, or ``not done`` where something for it was not at hand.
    detail : what was found, in one line.
    """

    name: str
    outcome: Outcome
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON-ready values."""
        return {"name": self.name, "outcome": self.outcome, "detail": self.detail}


def check_result(name: str, wrong: Sequence[str], right: str) -> Check:
    """A check that fails with what is wrong, the first four of it, or passes with what is right."""
    more = f"; and {len(wrong) - 4:,} more" if len(wrong) > 4 else ""
    return Check(name, "failed", "; ".join(wrong[:4]) + more) if wrong else Check(name, "passed", right)


def failures(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Those that failed."""
    return tuple(check for check in checks if check.outcome == "failed")


def checks_table(checks: Sequence[Check], *, most: int | None = None) -> Table:
    """The checks as a table, whose details are folded to the width of a terminal, or have at most so many characters.

    JSON has them in full.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("check", "outcome", "detail"):
        table.add_column(name, no_wrap=name != "detail", overflow="fold")
    for check in checks:
        detail = printable(check.detail)
        table.add_row(check.name, check.outcome, detail if most is None else shortened(detail, most))
    return table


MOST = 50
"""Checkpoints that a table lists."""
_HEADER = ("checkpoint", "claimed", "stated", "measured", "finite", "copy of")


@dataclass(frozen=True)
class CheckpointSummary:
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


def entries(
    zoo: Zoo, measured: Mapping[str, Mapping[str, float]], copies: Mapping[str, str]
) -> tuple[CheckpointSummary, ...]:
    """The checkpoints of a zoo with what was found of them."""
    columns = ["id", "claimed_test_accuracy", "test_accuracy", "finite"]
    return tuple(
        CheckpointSummary(
            row["id"],
            row["claimed_test_accuracy"],
            row["test_accuracy"],
            measured.get(row["id"], {}).get("test_accuracy"),
            row["finite"],
            copies.get(row["id"]),
        )
        for row in zoo.metadata.select(columns).to_pylist()
    )


def entries_table(listed: Sequence[CheckpointSummary]) -> Table:
    """The first of them as a table for a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in _HEADER:
        table.add_column(name, justify="right" if name in ("claimed", "stated", "measured") else "left", no_wrap=True)
    for entry in listed[:MOST]:
        table.add_row(printable(entry.id), *entry.cells(), printable(entry.copy or "-"))
    if len(listed) > MOST:
        table.add_row(f"and {len(listed) - MOST:,} more")
    return table


def written(listed: Sequence[CheckpointSummary]) -> str:
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


def show(out: Console, listed: Sequence[CheckpointSummary], checks: Sequence[Check]) -> None:
    """Print both as tables, with an empty line below each; no table of no checkpoints."""
    most = None if out.is_terminal else MAX_DETAIL
    for table in (*([entries_table(listed)] if listed else []), checks_table(checks, most=most)):
        out.print(table, markup=False, highlight=False)
        out.print()

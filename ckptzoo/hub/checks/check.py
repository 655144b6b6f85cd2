"""What was looked at in a contribution, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table

from ckptzoo.words import printable, shortened

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


def judged(name: str, wrong: Sequence[str], right: str) -> Check:
    """A check that fails with what is wrong, the first four of it, or passes with what is right."""
    more = f"; and {len(wrong) - 4:,} more" if len(wrong) > 4 else ""
    return Check(name, "failed", "; ".join(wrong[:4]) + more) if wrong else Check(name, "passed", right)


def failures(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Those that failed."""
    return tuple(check for check in checks if check.outcome == "failed")


def shown(checks: Sequence[Check], *, most: int | None = None) -> Table:
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

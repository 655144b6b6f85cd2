"""One thing that was looked at (``Check``), and all of them together, without secrets (``Examination``)."""

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ckptzoo.console import PrintedResult, say
from ckptzoo.text import counted, printable

Outcome = Literal["ok", "note", "problem"]
OK: Outcome = "ok"
NOTE: Outcome = "note"
PROBLEM: Outcome = "problem"
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
"""A user's name and password within an address."""
_LEAST_SECRET = 8
"""Characters; a shorter text is no token, and may be a part of any word."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name
        What was looked at.
    outcome
        ``ok``, ``note`` for what one may want to know, or ``problem``.
    detail
        What was found.
    step
        What to do next; empty where there is nothing to do.
    """

    name: str
    outcome: Outcome
    detail: str
    step: str = ""

    def without(self, secrets: Collection[str]) -> "Check":
        """The same, with each secret and all credentials within addresses replaced by three stars.

        Parameters
        ----------
        secrets
            Texts that are shown to nobody, such as tokens.
        """

        def public(text: str) -> str:
            for secret in secrets:
                text = text.replace(secret, "***") if len(secret) >= _LEAST_SECRET else text
            return _CREDENTIALS.sub("***@", text)

        return replace(self, detail=public(self.detail), step=public(self.step))


@dataclass(frozen=True)
class Examination(PrintedResult):
    """Everything that was looked at, in the order in which one would look.

    Parameters
    ----------
    checks
        In the order in which one would look.
    """

    checks: Sequence[Check]

    @property
    def problems(self) -> int:
        """How many checks found a problem."""
        return sum(check.outcome == PROBLEM for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Every check, and the number of problems."""
        return {"checks": [asdict(check) for check in self.checks], "problems": self.problems}

    def print(self, console: Console | None = None) -> None:
        """Print a table on a rich console, by default the standard output.

        Parameters
        ----------
        console
            A rich console; None for the standard output.
        """
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in self.checks:
            table.add_row(check.outcome, printable(check.name), printable(check.detail))
            if check.step:
                table.add_row("", "", printable(check.step))
        out = console or Console()
        out.print(table, markup=False, highlight=False)
        notes = sum(check.outcome == NOTE for check in self.checks)
        say(out, "", f"{counted(self.problems, 'problem')}, {counted(notes, 'note')}.")

"""All that was looked at, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ckptzoo.checks import NOTE, PROBLEM, Check
from ckptzoo.console import PrintedResult, say
from ckptzoo.text import counted, printable


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

"""``examine``: all checks in order; one that fails itself is a problem and does not end the others."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from ckptzoo.arguments import checked
from ckptzoo.checks import NOTE, OK, PROBLEM, Check
from ckptzoo.console import PrintedResult, say
from ckptzoo.doctor import hub, installation, machine
from ckptzoo.doctor import zoo as zoo_checks
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import counted, printable

# HUGGING_FACE_HUB_TOKEN is the earlier name of HF_TOKEN, which huggingface_hub still reads.
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Environment variables whose values must not be shown in any message."""


@dataclass(frozen=True)
class Examination(PrintedResult, JsonFields, derived=("problems",)):
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

    def print(self, console: Console | None = None) -> None:
        """Print a table on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        shown = list(_with_extras_together(self.checks))
        for check in shown:
            table.add_row(check.outcome, printable(check.name), printable(check.detail))
            if check.step:
                table.add_row("", "", printable(check.step))
        out = console or Console()
        out.print(table, markup=False, highlight=False)
        notes = sum(check.outcome == NOTE for check in shown)
        say(out, "", f"{counted(self.problems, 'problem')}, {counted(notes, 'note')}.")


def _with_extras_together(checks: Sequence[Check]) -> Iterator[Check]:
    """Yield the checks with one for all extras that are installed and one for those that are not."""
    extras = [check for check in checks if check.name.startswith(installation.EXTRA) and check.outcome != PROBLEM]
    for check in checks:
        if check not in extras:
            yield check
        elif check is extras[0]:
            step = "pip install 'ckptzoo[NAME]' installs one; ckptzoo doctor --json says what each needs."
            there, lacking = (
                ", ".join(item.name.removeprefix(installation.EXTRA) for item in extras if item.outcome == outcome)
                for outcome in (OK, NOTE)
            )
            yield from [Check("extras", OK, f"installed: {there}")] * bool(there)
            yield from [Check("extras", NOTE, f"not installed: {lacking}", step)] * bool(lacking)


@checked
def examine(zoo: str | os.PathLike[str] | None = None) -> Examination:
    """Look at this installation, its machine and its hub, and at a zoo.

    Parameters
    ----------
    zoo
        A folder, or an address as ``ckptzoo.open`` takes it; None for no zoo.

    Returns
    -------
    Examination
        The checks; ``problems`` counts those that found something wrong.

    Notes
    -----
    A hub has five seconds to answer. Of a zoo one block of weights is read; ``ckptzoo.verify`` reads all. Into the
    cache's folder, and into nothing else, a small file is written and removed.
    """
    address = None if zoo is None else os.fspath(zoo)
    steps: list[tuple[str, Callable[[], Iterable[Check]]]] = [
        ("installation", installation.checks),
        ("machine", machine.checks),
        ("cache", machine.cache_checks),
        ("hub", partial(hub.checks, needed=address is not None and hub.is_on_hub(address))),
    ]
    if address is not None:
        steps.append(("zoo", partial(zoo_checks.checks, address)))
    secrets = {value for name in _SECRETS if (value := os.environ.get(name))} | hub.tokens()
    checks = [check for name, step in steps for check in _run(name, step)]
    return Examination(tuple(check.without(secrets) for check in checks))


def _run(name: str, step: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    try:
        yield from step()
    except Exception as error:  # whatever is wrong with an installation, the other checks are wanted the more
        yield Check(name, PROBLEM, f"could not be examined: {type(error).__name__}: {error}")

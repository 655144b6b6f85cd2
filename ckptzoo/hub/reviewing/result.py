"""What a review found."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ckptzoo.hub.checks.check import Check, failures
from ckptzoo.hub.checks.entries import Entry
from ckptzoo.hub.checks.showing import show
from ckptzoo.hub.saying import say
from ckptzoo.words import counted


@dataclass(frozen=True)
class Review:
    """What was found in a pull request.

    Parameters
    ----------
    repository, number : where it is.
    title, author, status, url : as the hub says; ``status`` before anything was merged, ``url`` where it has pages.
    base, head, main : the commits that it starts from, that was reviewed, and that the zoo was at.
    parts : names of the new parts.
    nbytes : of their files.
    entries : the checkpoints.
    checks : what was looked at.
    merged : the commit that merged it, or that it was merged where the hub says no more; None where it was not.
    notes : what a person should know of what came after the merge.
    """

    repository: str
    number: int
    title: str
    author: str
    status: str
    url: str | None
    base: str | None = None
    head: str | None = None
    main: str | None = None
    parts: tuple[str, ...] = ()
    nbytes: int = 0
    entries: tuple[Entry, ...] = ()
    checks: tuple[Check, ...] = ()
    merged: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not failures(self.checks)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON-ready values."""
        return {
            "repository": self.repository,
            "number": self.number,
            "title": self.title,
            "author": self.author,
            "status": self.status,
            "url": self.url,
            "base": self.base,
            "head": self.head,
            "main": self.main,
            "parts": list(self.parts),
            "nbytes": self.nbytes,
            "passed": self.passed,
            "checkpoints": [entry.to_json() for entry in self.entries],
            "checks": [check.to_json() for check in self.checks],
            "merged": self.merged,
            "notes": list(self.notes),
        }

    def print(self, console: Console | None = None) -> None:
        """Print it as tables on a rich console, by default the standard output."""
        out = console or Console()
        head = f"{self.repository} pull request {self.number}: {self.title} (by {self.author}, {self.status})"
        say(out, head, *([self.url] if self.url else []), "")
        show(out, self.entries, self.checks)
        failed = failures(self.checks)
        undone = sum(check.outcome == "not done" for check in self.checks)
        told = f"; {counted(undone, 'check')} not done" if undone else ""
        ending = f"nothing failed{told}." + ("" if self.merged is None else f" Merged: {self.merged}.")
        if failed:
            ending = f"{counted(len(failed), 'check')} of {len(self.checks)} failed{told}. Nothing was merged."
        say(out, ending, *(f"note: {note}" for note in self.notes))

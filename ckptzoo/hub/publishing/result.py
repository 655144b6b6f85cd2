"""What a push did, and what one would do."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    Parameters
    ----------
    repository, url : where the zoo is, and its page.
    created : the repository was made.
    commits : in order; none where nothing was lacking.
    parts : those that were uploaded, by their folders in the zoo.
    already : how many parts were there before.
    documents : the other files that were written: documents, cards, a snapshot.
    nbytes : of all these files.
    sent : bytes that were sent for them; what the hub had from before is not sent again.
    """

    repository: str
    url: str
    created: bool
    commits: tuple[str, ...]
    parts: tuple[str, ...]
    already: int
    documents: tuple[str, ...]
    nbytes: int
    sent: int

    def to_json(self) -> dict[str, Any]:
        """Everything by name."""
        return asdict(self)

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output."""
        lines = [f"{self.repository}: nothing to do, {_counted(self.already, 'part')} there already."]
        if self.commits:
            lines = [
                f"{self.repository}: {_counted(len(self.parts), 'part')} uploaded, {self.already:,} there already.",
                f"{_size(self.sent)} sent of {_size(self.nbytes)}, in {_counted(len(self.commits), 'commit')}.",
            ]
        for line in (*lines, self.url):
            (console or Console()).print(line, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Planned:
    """What a push would do now.

    Parameters
    ----------
    repository, url : where the zoo would be, and its page.
    creates : the repository would be made.
    commits : how many.
    parts : those that would be uploaded.
    already : how many parts are there.
    documents : the other files that would be written.
    removed : snapshots that would be replaced.
    nbytes : of the parts and documents; an upper bound of what would be sent.
    """

    repository: str
    url: str
    creates: bool
    commits: int
    parts: tuple[str, ...]
    already: int
    documents: tuple[str, ...]
    removed: tuple[str, ...]
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """Everything by name."""
        return asdict(self)

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output."""
        lines = [f"{self.repository}: nothing to do, {_counted(self.already, 'part')} there already."]
        if self.commits:
            made = " in a new repository" if self.creates else ""
            lines = [
                f"{self.repository}: {_counted(len(self.parts), 'part')} to upload{made}, {self.already:,} there.",
                *(f"  {name}" for name in (*self.documents, *self.parts)),
                *(f"  {name} (removed)" for name in self.removed),
                f"{_size(self.nbytes)} at most, in {_counted(self.commits, 'commit')}; nothing was sent.",
            ]
        for line in lines:
            (console or Console()).print(line, markup=False, highlight=False, soft_wrap=True)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _size(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"

"""What a push did, and what one would do."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from ckptzoo.hub.saying import say
from ckptzoo.words import counted, size


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    Parameters
    ----------
    repository, url : where the zoo is, and its page where the hub has pages.
    created : the repository was made.
    commits : in order; none where nothing was lacking.
    parts : those that were uploaded, by their folders in the zoo.
    already : how many parts were there before.
    documents : the other files that were written: documents, cards and pictures, a snapshot.
    nbytes : of all these files.
    sent : bytes that were sent; what the hub had from before is not sent again, what was made for a commit that came
        too late because others published meanwhile was sent in vain.
    notes : what a person should know.
    """

    repository: str
    url: str | None
    created: bool
    commits: tuple[str, ...]
    parts: tuple[str, ...]
    already: int
    documents: tuple[str, ...]
    nbytes: int
    sent: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything by name."""
        return asdict(self)

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output."""
        lines = [f"{self.repository}: nothing to do, {counted(self.already, 'part')} there already."]
        if self.commits:
            lines = [
                f"{self.repository}: {counted(len(self.parts), 'part')} uploaded, {self.already:,} there already.",
                f"{self._amount()}, in {counted(len(self.commits), 'commit')}.",
            ]
        told = (f"note: {note}" for note in self.notes)
        say(console or Console(), *lines, *([self.url] if self.url else []), *told)

    def _amount(self) -> str:
        """Bytes that were sent, and how many of them are in the commits."""
        if self.sent <= self.nbytes:
            return f"{size(self.sent)} sent of {size(self.nbytes)}"
        return f"{size(self.nbytes)} uploaded ({size(self.sent)} sent in all, because others published meanwhile)"


@dataclass(frozen=True)
class Planned:
    """What a push would do now.

    Parameters
    ----------
    repository, url : where the zoo would be, and its page where the hub has pages.
    creates : the repository would be made.
    commits : how many.
    parts : those that would be uploaded.
    already : how many parts are there.
    documents : the other files that would be written.
    removed : snapshots that would be replaced.
    nbytes : of the parts and documents; an upper bound of what would be sent.
    notes : what a person should know.
    """

    repository: str
    url: str | None
    creates: bool
    commits: int
    parts: tuple[str, ...]
    already: int
    documents: tuple[str, ...]
    removed: tuple[str, ...]
    nbytes: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything by name."""
        return asdict(self)

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output."""
        lines = [f"{self.repository}: nothing to do, {counted(self.already, 'part')} there already."]
        if self.commits:
            made = " in a new repository" if self.creates else ""
            lines = [
                f"{self.repository}: {counted(len(self.parts), 'part')} to upload{made}, {self.already:,} there.",
                *(f"  {name}" for name in (*self.documents, *self.parts)),
                *(f"  {name} (removed)" for name in self.removed),
                f"{size(self.nbytes)} at most, in {counted(self.commits, 'commit')}; nothing was sent.",
            ]
        say(console or Console(), *lines, *(f"note: {note}" for note in self.notes))

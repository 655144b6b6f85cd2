"""Bring a zoo to a repository.

What a push did, and what one would do.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ckptzoo.console import say
from ckptzoo.errors import HubError, IntegrityError, Problem, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import list_trees
from ckptzoo.format.verify import verify
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.models import Listing
from ckptzoo.hub.client.retry import HubRetryPolicy, NotThereError, RaceError
from ckptzoo.hub.push.plan import PushPlan, difference, is_there
from ckptzoo.hub.push.sources import CommitBatch, LocalZoo, RepositoryFiles, links_outside, read_local
from ckptzoo.remote.address import repository
from ckptzoo.text import Progress, counted, size


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


RACES = 16
"""Races that may be lost one after another."""
_MAY_NOT = ("read", "contribute")
_PUBLIC = "the repository was there, is public, and stays so; --private is for one that is made."


def push(
    zoo: str | Path,
    address: str,
    *,
    private: bool = False,
    message: str | None = None,
    snapshot: bool = True,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
    progress: Progress | None = None,
) -> Pushed:
    """Publish a zoo: upload what its repository lacks, and make its page anew.

    The page is README.md for all that the repository then holds, parts of others too, from the folder's card.toml, else
    from the repository's; without either the folder's README.md is taken as it is. Where the cards of two people differ
    that of the last push stands.

    Parameters
    ----------
    zoo : its folder.
    address : ``org/zoo`` or ``hf://datasets/org/zoo``; the repository is made where there is none.
    private : where the repository is made, make it one that is not public; one that is there stays as it is.
    message : the commits' title; by default says what they add.
    snapshot : also write a snapshot of all the repository will hold, so that opening it from afar is cheap, in place
        of those that it has.
    endpoint, token : by default those of huggingface_hub (``HF_ENDPOINT``, ``HF_TOKEN``).
    retry_policy : how long to go on asking.
    progress : called with the bytes sent and the bytes in all.

    Raises
    ------
    IntegrityError
        The zoo is damaged; nothing is uploaded. A shard's digest is compared with its index before it is sent.
    SpecError
        The folder's card.toml is not valid, or another zoo's, or the folder lacks a picture that it names.
    HubError
        The hub refuses or gives no answer; the repository holds another zoo, or checkpoints of the same ids in other
        parts. The message says what to do. Repeated, a push sends only what is lacking.

    Notes
    -----
    Documents come first, then raw parts in order, then derived ones, then card, pictures, page, snapshot, at most 100
    files a commit; every commit is a valid zoo, so a part of more files is a commit of its own. Each names the commit
    that it was made for, so of two pushes at once the later one looks again and goes on from there. Parts that others
    added stay. What page and snapshot need of them is read: their rows and indices, no weights. Held by
    ``tests/hub/test_push*.py``.
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    return _Push(_sound(Path(zoo).absolute()), client, repo, snapshot).carry_out(private, message, progress)


def plan(
    zoo: str | Path,
    address: str,
    *,
    snapshot: bool = True,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
) -> Planned:
    """What ``push`` would do now; nothing is changed.

    Raises
    ------
    IntegrityError, HubError
        As ``push``, but for what the hub refuses only when it is asked to change something.
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    return _Push(_sound(Path(zoo).absolute()), client, repo, snapshot).planned()


def _sound(root: Path) -> LocalZoo:
    """What is to be published; parts that come while it is verified are left for the next time."""
    if not root.is_dir():
        found = "a file" if root.exists() else "nothing"
        raise ZooError(f"{root}: a zoo: expected a folder, got {found}. Make one with ckptzoo.create.")
    trees = list_trees(Folder(root))
    if problems := verify(root, deep=False):
        raise IntegrityError(problems)
    local = read_local(root, trees)
    if problems := links_outside(local):
        raise IntegrityError(problems)
    return local


class _Push:
    """One zoo on its way to one repository."""

    def __init__(self, local: LocalZoo, client: Client, repo: str, snapshot: bool) -> None:
        self._local, self._client, self._repo, self._snapshot = local, client, repo, snapshot
        self._repository = RepositoryFiles(client, repo)
        self._commits: list[str] = []
        self._groups: list[CommitBatch] = []
        self._sent = 0

    def _look(self, listing: Listing | None) -> PushPlan:
        """What a commit of the repository lacks."""
        return difference(self._local, self._repository, listing, snapshot=self._snapshot)

    def planned(self) -> Planned:
        """What it lacks now, as people read it."""
        found = self._look(self._client.find(self._repo))
        groups = found.groups
        return Planned(
            self._repository.name,
            self._client.page(self._repo),
            found.head is None,
            len(groups),
            tuple(name for group in groups for name in group.parts),
            found.already,
            _documents(groups),
            tuple(name for group in groups for name in group.delete),
            sum(group.nbytes for group in groups),
            found.notes,
        )

    def carry_out(self, private: bool, message: str | None, progress: Progress | None) -> Pushed:
        """Commit until nothing is lacking."""
        listing = self._client.find(self._repo)
        found = self._look(listing)
        created, already = found.head is None, found.already
        if found.groups:
            self._refuse_role(new=created)
        if created:
            self._client.create(self._repo, private=private)
            found = self._look(self._client.listing(self._repo))
        total = sum(group.nbytes for group in found.groups)
        for _ in range(RACES):
            lost = self._commit_all(found, message, total, progress)
            if lost is None:
                break
            time.sleep(random.uniform(0.0, self._client.retry_policy.first_pause))
            found = self._again(lost)
        else:
            step = "Others publish to it at the same time: try again later. What was uploaded is not sent again."
            raise HubError(Problem(self._repository.name, "commit", f"one of {RACES} races won", "none", step))
        self._check()
        public = private and listing is not None and listing.private is False
        return Pushed(
            self._repository.name,
            self._client.page(self._repo),
            created,
            tuple(self._commits),
            tuple(name for group in self._groups for name in group.parts),
            already,
            _documents(self._groups),
            sum(group.nbytes for group in self._groups),
            self._sent,
            (*((_PUBLIC,) if public else ()), *found.notes),
        )

    def _refuse_role(self, *, new: bool) -> None:
        """Refuse before anything is sent where the token may not commit."""
        try:
            account = self._client.whoami()
        except NotThereError:  # a hub that does not tell
            return
        if account.role in _MAY_NOT:
            got = f"one of {account.name} that may {account.role}"
            other = account.role == "contribute" and not new
            step = f"Use another token{', or open a pull request with ckptzoo contribute' if other else ''}."
            raise HubError(Problem(self._repository.name, "token", "one that may write", got, step))

    def _commit_all(
        self, found: PushPlan, message: str | None, total: int, progress: Progress | None
    ) -> tuple[CommitBatch, RaceError] | None:
        """Make the commits in order; the one whose race was lost, or None."""
        head, count = found.head or "", len(found.groups)
        for number, group in enumerate(found.groups, 1):
            title = message or group.title
            if count > 1:
                title = f"{title} ({number} of {count})"
            done = sum(made.nbytes for made in self._groups)

            def moved(now: int, _: int, done: int = done) -> None:
                if progress is not None:
                    progress(min(done + now, total), total)

            try:
                made = self._client.commit(
                    self._repo,
                    group.files,
                    title=title,
                    parent=head,
                    delete=group.delete,
                    sha256=group.sha256,
                    progress=moved,
                )
            except RaceError as error:
                self._sent += error.sent
                return group, error
            head = made.commit
            self._sent += made.sent
            self._made(head, group)
        return None

    def _again(self, lost: tuple[CommitBatch, RaceError]) -> PushPlan:
        """A fresh look after a race; a commit that was made although its answer was lost is counted."""
        group, error = lost
        listing = self._client.listing(self._repo)
        if error.unanswered and is_there(group, listing):
            self._made(listing.commit, group)
        return self._look(listing)

    def _made(self, commit: str, group: CommitBatch) -> None:
        self._commits.append(commit)
        self._groups.append(group)

    def _check(self) -> None:
        """Compare the last commit with what was sent."""
        if not self._commits:
            return
        listing = self._client.listing(self._repo, self._commits[-1])
        if not all(is_there(group, listing) for group in self._groups):
            step = "Push again; if that does not help, see whether its .gitignore leaves some out."
            raise HubError(Problem(self._repository.name, "files after the push", "those of the zoo", "fewer", step))


def _documents(groups: Iterable[CommitBatch]) -> tuple[str, ...]:
    """The files that lie in no part."""
    return tuple(name for group in groups for name in group.files if name.rpartition("/")[0] not in group.parts)

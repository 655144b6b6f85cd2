"""``push`` and ``plan``, and ``Pushed`` and ``Planned``, what they report."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from ckptzoo.arguments import checked
from ckptzoo.console import PrintedResult, say
from ckptzoo.errors import HubError, IntegrityError, Problem, ZooError
from ckptzoo.format.reader import read_contents
from ckptzoo.format.releases import read_releases
from ckptzoo.format.verify import verified_trees
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.models import WITHOUT_WRITE, RevisionListing
from ckptzoo.hub.client.retry import HubRetryPolicy, NotThereError, RaceError
from ckptzoo.hub.push.collection import plan_collection, read_collection
from ckptzoo.hub.push.plan import CommitBatch, PushPlan, is_committed, plan_push
from ckptzoo.hub.push.sources import LocalZoo, RepositoryFiles, links_outside, read_local
from ckptzoo.loader.collection import holds_zoos
from ckptzoo.loader.zoo import files_at
from ckptzoo.remote.address import HubAddress, repository
from ckptzoo.schema import layout
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import Progress, counted, size

MAX_RACES = 16
"""Races that may be lost one after another, before the push gives up."""
_PUBLIC = "the repository was there, is public, and stays so; --private is for one that is made."


@dataclass(frozen=True)
class Pushed(PrintedResult, JsonFields):
    """The result of a push.

    Parameters
    ----------
    repository, url
        where the zoo is, and its page where the hub has pages.
    created
        the repository was made.
    commits
        in order; none where nothing was missing.
    parts
        those that were uploaded, by their folders in the zoo.
    already
        how many parts were there before.
    documents
        the other files that were written: documents, card and pictures, page, snapshot.
    nbytes
        of all these files.
    sent
        bytes that were sent: fewer than ``nbytes`` where the hub had some already, more where a commit lost a race with
        somebody else's and what was generated for it was replaced.
    notes
        what a person should know.
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

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        lines = [f"{self.repository}: nothing to do, {counted(self.already, 'part')} there already."]
        if self.commits:
            lines = [
                f"{self.repository}: {_counted_parts(self.parts)} uploaded, {self.already:,} there already.",
                f"{self._amount()}, in {counted(len(self.commits), 'commit')}.",
            ]
        notes = (f"note: {note}" for note in self.notes)
        say(console or Console(), *lines, *([self.url] if self.url else []), *notes)

    def _amount(self) -> str:
        """Return the bytes that were sent, and how many of them are in the commits."""
        if self.sent <= self.nbytes:
            return f"{size(self.sent)} sent of {size(self.nbytes)}"
        return f"{size(self.nbytes)} uploaded ({size(self.sent)} sent in all, because others published meanwhile)"


def _counted_parts(names: Sequence[str]) -> str:
    """How many parts have checkpoints, and how many hold what is derived of them: ``1 part, 2 derived``."""
    derived = sum(f"/{layout.DERIVED}/" in f"/{name}" for name in names)
    raw = counted(len(names) - derived, "part")
    return f"{raw}, {derived:,} derived" if derived and derived < len(names) else counted(len(names), "part")


@dataclass(frozen=True)
class Planned(PrintedResult, JsonFields):
    """The plan of a push.

    Parameters
    ----------
    repository, url
        where the zoo would be, and its page where the hub has pages.
    creates
        the repository would be made.
    commits
        how many.
    parts
        those that would be uploaded.
    already
        how many parts are there.
    documents
        the other files that would be written.
    removed
        snapshots that would be replaced.
    nbytes
        of the parts and documents; an upper bound of what would be sent.
    notes
        what a person should know.
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

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        lines = [f"{self.repository}: nothing to do, {counted(self.already, 'part')} there already."]
        if self.commits:
            where = " in a new repository" if self.creates else ""
            lines = [
                f"{self.repository}: {_counted_parts(self.parts)} to upload{where}, {self.already:,} there.",
                *(f"  {name}" for name in (*self.documents, *self.parts)),
                *(f"  {name} (removed)" for name in self.removed),
                f"{size(self.nbytes)} at most, in {counted(self.commits, 'commit')}; nothing was sent.",
            ]
        say(console or Console(), *lines, *(f"note: {note}" for note in self.notes))


@checked
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
    """Publish a zoo: upload what its repository lacks, and make its page again.

    The page is README.md for all that the repository then holds, parts of others too, from the folder's card.toml, else
    from the repository's; without either the folder's README.md is taken as it is. Where the cards of two people
    differ, that of the last push stays.

    Parameters
    ----------
    zoo
        its folder.
    address
        ``org/zoo`` or ``hf://datasets/org/zoo``; the repository is made where there is none.
    private
        make the repository one that is not public; one that exists already stays as it is.
    message
        the commits' title; by default it says what they add.
    snapshot
        also write a snapshot of all that the repository will hold, so that opening it takes few requests, in place of
        those that it has.
    endpoint, token
        by default those of huggingface_hub (``HF_ENDPOINT``, ``HF_TOKEN``).
    retry_policy
        how long to go on asking.
    progress
        called with the bytes sent and the bytes in all.

    Raises
    ------
    IntegrityError
        The zoo is damaged; nothing is uploaded. A shard's digest is compared with its index before it is sent.
    SpecError
        The folder's card.toml is not valid, or another zoo's, or the folder lacks a picture that it names.
    HubError
        The hub refuses or gives no answer; the repository holds another zoo, or checkpoints of the same ids in other
        parts. The message says what to do. Repeated, a push sends only what is missing.

    Notes
    -----
    Documents come first, then raw parts in order, then derived ones, then card, pictures, page, snapshot, at most 100
    files a commit; every commit is a valid zoo, so a part of more files is a commit of its own. Each names the commit
    that it was made for, so of two pushes at once the later one compares again and goes on from there. Parts that
    others added stay. What page and snapshot need of them is read: their rows and indices, no weights. Tested in
    ``tests/hub/push``.

    Examples
    --------
    >>> pushed = ckptzoo.push("zoos/few", "lab/few", private=True)
    >>> pushed.created, len(pushed.parts)
    (True, 6)
    >>> ckptzoo.open("lab/few")
    <zoo mnist-optunet: 16 checkpoints of optunet, 1 part>
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    make_plan = partial(plan_push, _read_verified(Path(zoo).absolute()), snapshot=snapshot)
    return _Push(client, repo, make_plan).carry_out(private, message, progress)


@checked
def push_collection(
    folder: str | Path,
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
    """Publish a collection: of each zoo what the repository lacks, then the table of all rows and the page.

    Zoos of the repository that the folder lacks stay, and so do parts that others added; the table has them all. The
    page is README.md, made of what the zoos hold and of the folder's card.toml, else of the repository's; without
    either a README.md that somebody wrote stays.

    Parameters
    ----------
    folder
        of the collection, as ``ckptzoo.write_collection`` leaves it.
    address, private, message, snapshot, endpoint, token, retry_policy, progress
        as ``push`` takes them.

    Raises
    ------
    IntegrityError
        The folder is no collection, a zoo in it is damaged or has changed since the collection was written, or a link
        leads out of the folder; nothing is uploaded.
    SpecError
        A card is not valid.
    HubError
        As ``push``; or the repository holds one zoo, or something else.

    Notes
    -----
    Each zoo is published as ``push`` does it, in a folder of the repository. The document that names the zoos with
    their revisions comes last, in one commit with the table: until then readers have the collection as it was, because
    zoos only grow. Tested in ``tests/hub/push/test_push_collection.py``.

    Examples
    --------
    >>> entries = ckptzoo.write_collection("zoos")
    >>> pushed = ckptzoo.push_collection("zoos", "lab/all", private=True)
    >>> len(ckptzoo.open_collection("lab/all"))
    100
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    make_plan = partial(plan_collection, read_collection(Path(folder).absolute()), snapshot=snapshot)
    return _Push(client, repo, make_plan).carry_out(private, message, progress)


@checked
def plan(
    zoo: str | Path,
    address: str,
    *,
    snapshot: bool = True,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
) -> Planned:
    """Tell what ``push``, or for a collection ``push_collection``, would do now; nothing is changed.

    Parameters
    ----------
    zoo
        its folder, or the collection's.
    address
        ``org/zoo`` or ``hf://datasets/org/zoo``.
    snapshot
        count a snapshot of all that the repository will hold.
    endpoint
        by default that of huggingface_hub (``HF_ENDPOINT``).
    token
        by default that of huggingface_hub (``HF_TOKEN``).
    retry_policy
        how long to go on asking.

    Raises
    ------
    IntegrityError, HubError
        As ``push``, but for what the hub refuses only when it is asked to change something.
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    root = Path(zoo).absolute()
    make_plan: Callable[[RepositoryFiles, RevisionListing | None], PushPlan]
    if holds_zoos(root):
        make_plan = partial(plan_collection, read_collection(root), snapshot=snapshot)
    else:
        make_plan = partial(plan_push, _read_verified(root), snapshot=snapshot)
    return _Push(client, repo, make_plan).report_plan()


def _read_verified(root: Path) -> LocalZoo:
    """Read what is to be published; parts that are added while it is verified are left for the next push."""
    if not root.is_dir():
        got = "a file" if root.exists() else "nothing"
        raise ZooError(Problem(str(root), "a zoo", "a folder", got, "Make one with ckptzoo.create."))
    # not the weights: each shard is compared with its digest before it is sent
    problems, trees = verified_trees(root)
    if problems:
        raise IntegrityError(problems)
    local = read_local(root, trees)
    if problems := links_outside(local):
        raise IntegrityError(problems)
    return local


class _Push:
    """One push to one repository; ``make_plan`` compares what is pushed with a commit of it, or with none."""

    def __init__(
        self, client: Client, repo: str, make_plan: Callable[[RepositoryFiles, RevisionListing | None], PushPlan]
    ) -> None:
        self._client, self._repo, self._make_plan = client, repo, make_plan
        self._repository = RepositoryFiles(client, repo)
        self._commits: list[str] = []
        self._committed: list[CommitBatch] = []
        self._sent = 0

    def report_plan(self) -> Planned:
        """Return what would be done now."""
        push_plan = self._plan(self._client.find(self._repo))
        batches = push_plan.batches
        return Planned(
            self._repository.name,
            self._client.page(self._repo),
            push_plan.head is None,
            len(batches),
            tuple(name for batch in batches for name in batch.parts),
            push_plan.already,
            _documents(batches),
            tuple(name for batch in batches for name in batch.delete),
            sum(batch.nbytes for batch in batches),
            push_plan.notes,
        )

    def carry_out(self, private: bool, message: str | None, progress: Progress | None) -> Pushed:
        """Commit until nothing is missing."""
        listing = self._client.find(self._repo)
        push_plan = self._plan(listing)
        created, already = push_plan.head is None, push_plan.already
        if push_plan.batches:
            self._check_role(new=created)
        if created:
            self._client.create(self._repo, private=private)
            # a new repository has a first commit, which the others follow
            push_plan = self._plan(self._client.listing(self._repo))
        total = sum(batch.nbytes for batch in push_plan.batches)
        for _ in range(MAX_RACES):
            lost = self._commit_all(push_plan, message, total, progress)
            if lost is None:
                break
            # At random, because those who lost the same race would meet again in the next.
            time.sleep(random.uniform(0.0, self._client.retry_policy.first_pause))
            push_plan = self._plan_after_race(*lost)
        else:
            step = "Others publish to it at the same time: try again later. What was uploaded is not sent again."
            raise HubError(Problem(self._repository.name, "commit", f"one of {MAX_RACES} races won", "none", step))
        self._check_result()
        self._add_tags(listing)
        stays_public = private and listing is not None and listing.private is False
        return Pushed(
            self._repository.name,
            self._client.page(self._repo),
            created,
            tuple(self._commits),
            tuple(name for batch in self._committed for name in batch.parts),
            already,
            _documents(self._committed),
            sum(batch.nbytes for batch in self._committed),
            self._sent,
            (*((_PUBLIC,) if stays_public else ()), *push_plan.notes),
        )

    def _plan(self, listing: RevisionListing | None) -> PushPlan:
        return self._make_plan(self._repository, listing)

    def _check_role(self, *, new: bool) -> None:
        """Refuse before anything is sent where the token may not commit."""
        try:
            account = self._client.whoami()
        except NotThereError:  # a hub without this call
            return
        if account.role in WITHOUT_WRITE:
            got = f"one of {account.name} that may {account.role}"
            may_contribute = account.role == "contribute" and not new
            step = f"Use another token{', or open a pull request with ckptzoo contribute' if may_contribute else ''}."
            raise HubError(Problem(self._repository.name, "token", "one that may write", got, step))

    def _commit_all(
        self, push_plan: PushPlan, message: str | None, total: int, progress: Progress | None
    ) -> tuple[CommitBatch, RaceError] | None:
        """Make the commits in order; return the one whose race was lost, or None."""
        head, count = push_plan.head or "", len(push_plan.batches)
        for number, batch in enumerate(push_plan.batches, 1):
            title = message or batch.title
            if count > 1:
                title = f"{title} ({number} of {count})"
            done = sum(committed.nbytes for committed in self._committed)

            def report(sent: int, _: int, done: int = done) -> None:
                if progress is not None:
                    progress(min(done + sent, total), total)

            try:
                # The hub refuses a commit whose parent is no longer the head of the branch (RaceError).
                committed = self._client.commit(
                    self._repo,
                    batch.files,
                    title=title,
                    parent=head,
                    delete=batch.delete,
                    sha256=batch.sha256,
                    progress=report,
                )
            except RaceError as error:
                self._sent += error.sent
                return batch, error
            head = committed.commit
            self._sent += committed.sent
            self._record(head, batch)
        return None

    def _plan_after_race(self, batch: CommitBatch, error: RaceError) -> PushPlan:
        """Compare again; a commit that was made although its answer was lost is counted as ours."""
        listing = self._client.listing(self._repo)
        if error.unanswered and is_committed(batch, listing):
            self._record(listing.commit, batch)
        return self._plan(listing)

    def _record(self, commit: str, batch: CommitBatch) -> None:
        self._commits.append(commit)
        self._committed.append(batch)

    def _add_tags(self, listing: RevisionListing | None) -> None:
        """Tag the releases of what the repository holds now, from this push or from one that was interrupted.

        A release of fewer checkpoints gets no tag here: at no commit does the repository hold just them.
        """
        names = {name for batch in self._committed for name in batch.files} | set(listing.files if listing else ())
        prefix = f"{layout.RELEASES}/"
        releases = layout.release_names(name.removeprefix(prefix) for name in names if name.startswith(prefix))
        if releases and set(releases) - set(self._client.tags(self._repo)):
            tag_releases(self._client, self._repo, self._client.head(self._repo))

    def _check_result(self) -> None:
        """Compare the last commit with what was sent."""
        if not self._commits:
            return
        listing = self._client.listing(self._repo, self._commits[-1])
        # the client library sends no file that the repository's .gitignore names (shouldIgnore in the hub's answer)
        if not all(is_committed(batch, listing) for batch in self._committed):
            step = "Push again; if that does not help, see whether its .gitignore leaves some out."
            raise HubError(Problem(self._repository.name, "files after the push", "those of the zoo", "fewer", step))


def tag_releases(client: Client, repo: str, commit: str) -> None:
    """Tag a commit with the names of the releases of what it holds."""
    files = files_at(f"hf://{HubAddress(repo).page}@{commit}", client.endpoint, client.token)
    contents = read_contents(files)
    known = read_releases(files, contents.identity)
    client.add_tags(repo, [item.name for item in known if item.revision == contents.revision], commit)


def _documents(batches: Iterable[CommitBatch]) -> tuple[str, ...]:
    """Return the files that are in no part."""
    return tuple(name for batch in batches for name in batch.files if name.rpartition("/")[0] not in batch.parts)

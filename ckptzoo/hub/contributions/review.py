"""Review a pull request from the bytes on the hub.

What a review found.

The new parts of a pull request, fetched into a folder that has the zoo's documents.

What a pull request changes, file by file, and whether that is new parts and nothing else.
"""

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ckptzoo.console import say
from ckptzoo.errors import HubError, Problem, ZooError
from ckptzoo.hub.client import Client, Discussion, Listing, RepoFile
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.hub.contributions.evaluation import EvaluatorPool, Factory
from ckptzoo.hub.contributions.report import Check, CheckpointSummary, check_result, failures, show
from ckptzoo.hub.contributions.run_checks import CheckReport, Progress, run_checks
from ckptzoo.hub.contributions.target_zoo import TargetZoo, opened, write_documents
from ckptzoo.hub.push import refresh
from ckptzoo.remote import open_remote
from ckptzoo.remote.address import repository
from ckptzoo.schema import layout
from ckptzoo.text import counted, printable, shortened, size


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
    entries: tuple[CheckpointSummary, ...] = ()
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


MAX_TABLE = 64 * 2**20
"""Bytes of a part's rows, and of its index."""
MAX_PARTS = 100
_FILE = re.compile(
    rf"{layout.PARTS}/({layout.PART_NAME.pattern})/"
    rf"({re.escape(layout.METADATA)}|{re.escape(layout.INDEX)}|{layout.RAW}-\d{{2,6}}\.safetensors)"
)
"""What a contribution may add. Nothing else is ever written to this machine."""


@dataclass(frozen=True)
class Changes:
    """A pull request's files against those of the commit that it starts from.

    Parameters
    ----------
    base, head, main : that commit, the pull request's last one, and the zoo's as it is now.
    added, changed, deleted : files by name.
    """

    base: Listing
    head: Listing
    main: Listing
    added: Mapping[str, RepoFile]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the folders that are new parts."""
        return tuple(sorted({found[1] for name in self.added if (found := _FILE.fullmatch(name))}))

    @property
    def files(self) -> dict[str, RepoFile]:
        """The added files that belong to parts."""
        return {name: stored for name, stored in self.added.items() if _FILE.fullmatch(name)}

    @property
    def nbytes(self) -> int:
        """Bytes of the files of new parts."""
        return sum(stored.size for stored in self.files.values())

    def check(self) -> Check:
        """That files of new parts are added, and nothing else happens."""
        wrong = [f"{_shown(name)} is changed" for name in self.changed]
        wrong += [f"{_shown(name)} is deleted" for name in self.deleted]
        wrong += [f"{_shown(name)} is added" for name in self.added if not _FILE.fullmatch(name)]
        held = {name.split("/")[1] for name in {**self.main.files, **self.base.files} if name.startswith("parts/")}
        wrong += [f"{part} is a part of the zoo already" for part in self.parts if part in held]
        if not self.parts:
            wrong.append("no new part")
        return check_result("changes", wrong, f"{counted(len(self.parts), 'new part')} and nothing else")

    def sizes(self, most: int) -> Check:
        """That what has to be fetched is bounded."""
        wrong: list[str] = []
        for name, stored in self.files.items():
            if not name.endswith(".safetensors") and stored.size > MAX_TABLE:
                wrong.append(f"{name} has {size(stored.size)}, at most {size(MAX_TABLE)} are read")
        if self.nbytes > most:
            wrong.append(f"{size(self.nbytes)} in all, at most {size(most)} are fetched")
        if len(self.parts) > MAX_PARTS:
            wrong.append(f"{len(self.parts):,} parts, at most {MAX_PARTS} are read")
        return check_result("sizes", wrong, size(self.nbytes))

    def order(self) -> Check:
        """Where the new parts come in the zoo's order; anywhere is right, at the end is best."""
        parts = sorted(name.split("/")[1] for name in self.main.files if name.startswith("parts/") and "/" in name[6:])
        last = max((part for part in parts if layout.PART_NAME.fullmatch(part)), default="")
        before = [part for part in self.parts if part < last]
        told = f"{before[0]} comes before {last}, which came meanwhile" if before else "behind the parts that are there"
        return Check("order", "passed", told)


def changes(client: Client, repo: str, number: int) -> Changes:
    """Compare a pull request with the commit that it starts from.

    Raises
    ------
    HubError
        There is no such pull request, or it does not start from a commit of the zoo.
    """
    revision = f"refs/pr/{number}"
    main, head = client.listing(repo), client.listing(repo, revision)
    held = set(client.commits(repo))
    start = next((commit for commit in client.commits(repo, head.commit) if commit in held), None)
    if start is None:
        step = "Close it; its contributor may open another one."
        problem = Problem(client.address(repo), f"pull request {number}", "one that starts from main", "another", step)
        raise HubError(problem)
    base = main if start == main.commit else client.listing(repo, start)
    before, after = base.files, head.files
    return Changes(
        base,
        head,
        main,
        {name: stored for name, stored in after.items() if name not in before},
        tuple(sorted(name for name, stored in after.items() if name in before and before[name] != stored)),
        tuple(sorted(name for name in before if name not in after)),
    )


def _shown(name: str) -> str:
    return shortened(printable(name), 120)


_PIECE = 16 * 2**20


def fetch(
    client: Client, repo: str, found: Changes, folder: Path, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the files of new parts, pinned to the pull request's commit; digests are for the caller to check.

    Only names that are those of parts are written; sizes are those of the listing, which were checked. What came
    otherwise than the hub lists it is fetched once more, so that a damaged line is not taken for a damaged part.
    """
    afar = open_remote(f"hf://datasets/{repo}@{found.head.commit}", endpoint=client.endpoint, token=client.token)
    done = 0
    for name, stored in found.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % stored.size, usedforsecurity=False)
            with path.open("wb") as file:
                for start in range(0, stored.size, _PIECE):
                    data = afar.span(name, start, min(start + _PIECE, stored.size))
                    for taker in (file.write, sha256.update, git.update):
                        taker(data)
                    if progress is not None:
                        progress(done + start + len(data), found.nbytes)
            came = git.hexdigest() if stored.sha256 is None else sha256.hexdigest()
            if came == (stored.sha256 or stored.oid):
                break
        done += stored.size


MAX_BYTES = 64 * 2**30
"""Of new parts that are fetched."""


def review(
    address: str,
    number: int,
    *,
    merge: bool = False,
    module: str | Factory | None = None,
    data: str | Path | None = None,
    max_bytes: int = MAX_BYTES,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
    progress: Progress | None = None,
) -> Review:
    """Check what a pull request adds to a zoo, and merge it where nothing is wrong.

    It may add new parts and nothing else. These are fetched at the pull request's last commit and checked against the
    zoo as it is now: seals and digests, names, shapes and dtypes, finiteness, ids and units, copies in disguise,
    licences, figures, and accuracies, which are measured again where the test set and the forward function are at hand.
    Nothing that the contributor said of these checks is believed, and nothing that they sent is executed.

    Parameters
    ----------
    address : ``org/zoo``.
    number : of the pull request.
    merge : merge it if no check failed, and if neither it nor the zoo has moved on meanwhile; then bring the zoo's page
        and its snapshot up to date in a commit of their own. Where that cannot be done a note says why.
    module : ``FILE.py:NAME`` of one's own that makes the network; by default that of ``ckptzoo.archs``.
    data : folder of test sets; by default that of ``CKPTZOO_DATA``.
    max_bytes : of the new parts; a larger contribution fails, and is not fetched.
    endpoint, token : by default those of huggingface_hub.
    retry_policy : how long to go on asking.
    progress : called with what is being done, how much of it is done, and how much there is.

    Raises
    ------
    HubError
        There is no such pull request, the hub refuses, or gives no answer.

    Notes
    -----
    New parts are fetched to the folder of temporary files, and of the zoo rows and index; see ``copies`` for its
    weights. What must be turned away is in tests/hub/contributions/test_tampered.py.
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    about = client.pull_requests.read(repo, number)
    made = Review(repo, number, about.title, about.author, about.status, about.url)
    if about.revision is None or about.status not in ("open", "draft"):
        got = about.status if about.revision is not None else "a discussion without changes"
        return replace(made, checks=(Check("open", "failed", f"expected an open pull request, it is {got}"),))
    found = changes(client, repo, number)
    standing = TargetZoo(opened(client, repo, found.main))
    checks = [_conflicts(about), found.check(), found.sizes(max_bytes), found.order()]
    looked = CheckReport(())
    if found.parts and checks[2].outcome == "passed":
        looked = _looked(client, repo, found, standing, EvaluatorPool(standing.zoo.arch, module, data), progress)
    made = replace(
        made,
        base=found.base.commit,
        head=found.head.commit,
        main=found.main.commit,
        parts=found.parts,
        nbytes=found.nbytes,
        entries=looked.entries,
        checks=(*checks, *looked.checks),
    )
    return _merged(made, client, found) if merge and made.passed else made


def _conflicts(about: Discussion) -> Check:
    shown = ", ".join(about.conflicts[:4])
    return Check("merge", "failed" if shown else "passed", f"conflicts in {shown}" if shown else "no conflicts")


def _looked(
    client: Client, repo: str, found: Changes, standing: TargetZoo, bench: EvaluatorPool, progress: Progress | None
) -> CheckReport:
    """The checks of the new parts' bytes, in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="ckptzoo-review-") as place:
        folder = write_documents(standing, Path(place, "zoo"))
        fetch(client, repo, found, folder, None if progress is None else partial(progress, "fetching"))
        looked = run_checks(folder, standing, bench, progress=progress)
    return replace(looked, zoo=None)


def _merged(made: Review, client: Client, found: Changes) -> Review:
    """Merge what was reviewed, and see that it is what was merged."""
    revision = f"refs/pr/{made.number}"
    moved = [
        what
        for what, now, then in (
            ("the pull request", client.head(made.repository, revision), made.head),
            ("the zoo", client.head(made.repository), made.main),
        )
        if now != then
    ]
    if moved:
        told = f"{' and '.join(moved)} moved on during the review; review it again"
        return replace(made, checks=(*made.checks, Check("merged", "failed", told)))
    comment = f"Reviewed at {made.head}: {len(made.checks)} checks, none failed."
    commit = client.pull_requests.merge(made.repository, made.number, comment)
    now = client.files(made.repository)
    wrong = sorted(name for name, stored in found.files.items() if now.get(name) != stored)
    if wrong:
        step = f"Look at the commits of the zoo: what was merged is not what was reviewed at {made.head}."
        where = client.address(made.repository)
        raise HubError(Problem(where, wrong[0], "the file that was reviewed", "another, or none", step))
    return replace(made, merged=commit or "yes", notes=_refreshed(client, made.repository))


def _refreshed(client: Client, repo: str) -> tuple[str, ...]:
    """Bring page and snapshot up to date; what keeps that from being done, as notes."""
    try:
        return refresh(client, repo).notes
    except ZooError as error:
        step = f"Bring them up to date with ckptzoo card {repo}."
        return (f"merged, but the page and the snapshot are as they were: {error} {step}",)

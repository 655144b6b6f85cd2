"""``review``: checks a pull request from the bytes on the hub, and merges it.

First what it changes, file by file, which may be new parts and nothing else; then the new parts, fetched into a folder
that has the zoo's documents.
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
from ckptzoo.hub.contributions.report import Check, CheckpointSummary, check_result, failures, print_report
from ckptzoo.hub.contributions.run_checks import CheckReport, StageProgress, run_checks
from ckptzoo.hub.contributions.target_zoo import TargetZoo, open_target, write_documents
from ckptzoo.hub.push import refresh
from ckptzoo.remote import open_remote
from ckptzoo.remote.address import repository
from ckptzoo.schema import layout
from ckptzoo.text import counted, excerpt, size

MAX_BYTES = 64 * 2**30
"""Of new parts that are fetched."""
MAX_TABLE = 64 * 2**20
"""Bytes of a part's rows, and of its index."""
MAX_PARTS = 100
"""New parts of one pull request."""
_PART_FILE = re.compile(
    rf"{layout.PARTS}/({layout.PART_NAME.pattern})/"
    rf"({re.escape(layout.METADATA)}|{re.escape(layout.INDEX)}|{layout.RAW}-\d{{2,6}}\.safetensors)"
)
"""What a contribution may add. Nothing else is ever written to this machine."""
_PIECE_BYTES = 16 * 2**20
"""Bytes of a file that are fetched at a time."""


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
    checks : what was checked.
    merged : the commit that merged it, ``yes`` where the hub names none; None where it was not merged.
    notes : what could not be done after the merge.
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
        title = f"{self.repository} pull request {self.number}: {self.title} (by {self.author}, {self.status})"
        say(out, title, *([self.url] if self.url else []), "")
        print_report(out, self.entries, self.checks)
        failed = failures(self.checks)
        undone = sum(check.outcome == "not done" for check in self.checks)
        undone_note = f"; {counted(undone, 'check')} not done" if undone else ""
        verdict = f"nothing failed{undone_note}." + ("" if self.merged is None else f" Merged: {self.merged}.")
        if failed:
            verdict = f"{counted(len(failed), 'check')} of {len(self.checks)} failed{undone_note}. Nothing was merged."
        say(out, verdict, *(f"note: {note}" for note in self.notes))


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
        return tuple(sorted({match[1] for name in self.added if (match := _PART_FILE.fullmatch(name))}))

    @property
    def files(self) -> dict[str, RepoFile]:
        """The added files that belong to parts."""
        return {name: stored for name, stored in self.added.items() if _PART_FILE.fullmatch(name)}

    @property
    def nbytes(self) -> int:
        """Bytes of the files of new parts."""
        return sum(stored.size for stored in self.files.values())

    def check(self) -> Check:
        """Check that files of new parts are added, and nothing else changes."""
        wrong = [f"{excerpt(name, 120)} is changed" for name in self.changed]
        wrong += [f"{excerpt(name, 120)} is deleted" for name in self.deleted]
        wrong += [f"{excerpt(name, 120)} is added" for name in self.added if not _PART_FILE.fullmatch(name)]
        present_parts = {
            name.split("/")[1] for name in {**self.main.files, **self.base.files} if name.startswith("parts/")
        }
        wrong += [f"{part} is a part of the zoo already" for part in self.parts if part in present_parts]
        if not self.parts:
            wrong.append("no new part")
        return check_result("changes", wrong, f"{counted(len(self.parts), 'new part')} and nothing else")

    def check_sizes(self, limit: int) -> Check:
        """Check that no more has to be fetched than ``limit`` bytes, and no large table."""
        wrong: list[str] = []
        for name, stored in self.files.items():
            if not name.endswith(".safetensors") and stored.size > MAX_TABLE:
                wrong.append(f"{name} has {size(stored.size)}, at most {size(MAX_TABLE)} are read")
        if self.nbytes > limit:
            wrong.append(f"{size(self.nbytes)} in all, at most {size(limit)} are fetched")
        if len(self.parts) > MAX_PARTS:
            wrong.append(f"{len(self.parts):,} parts, at most {MAX_PARTS} are read")
        return check_result("sizes", wrong, size(self.nbytes))

    def check_order(self) -> Check:
        """Say where the new parts come in the zoo's order; any place is right."""
        parts = sorted(name.split("/")[1] for name in self.main.files if name.startswith("parts/") and "/" in name[6:])
        # part names begin with six digits, so that their order as texts is that of the numbers
        last = max((part for part in parts if layout.PART_NAME.fullmatch(part)), default="")
        before = [part for part in self.parts if part < last]
        position = (
            f"{before[0]} comes before {last}, which was added meanwhile"
            if before
            else "after the parts that are there"
        )
        return Check("order", "passed", position)


def compare(client: Client, repo: str, number: int) -> Changes:
    """Compare a pull request with the commit that it starts from.

    Raises
    ------
    HubError
        There is no such pull request, or it does not start from a commit of the zoo.
    """
    # the ref under which a hub keeps the commits of a pull request
    revision = f"refs/pr/{number}"
    main, head = client.listing(repo), client.listing(repo, revision)
    # a hub names the branch that a pull request goes to, not the commit that it starts from
    zoo_commits = set(client.commits(repo))
    base_commit = next((commit for commit in client.commits(repo, head.commit) if commit in zoo_commits), None)
    if base_commit is None:
        step = "Close it; its contributor may open another one."
        problem = Problem(client.address(repo), f"pull request {number}", "one that starts from main", "another", step)
        raise HubError(problem)
    base = main if base_commit == main.commit else client.listing(repo, base_commit)
    before, after = base.files, head.files
    return Changes(
        base,
        head,
        main,
        {name: stored for name, stored in after.items() if name not in before},
        tuple(sorted(name for name, stored in after.items() if name in before and before[name] != stored)),
        tuple(sorted(name for name in before if name not in after)),
    )


def fetch(
    client: Client, repo: str, changes: Changes, folder: Path, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the files of new parts, pinned to the pull request's commit; digests are for the caller to check.

    Only names that are those of parts are written; sizes are those of the listing, which were checked. A file whose
    digest is not the one that the hub lists is fetched once more, so that damage on the way is not taken for a damaged
    part.
    """
    remote = open_remote(f"hf://datasets/{repo}@{changes.head.commit}", endpoint=client.endpoint, token=client.token)
    done = 0
    for name, stored in changes.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            # The hub lists large files by sha256, and the others by git's own digest of a blob.
            sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % stored.size, usedforsecurity=False)
            with path.open("wb") as file:
                for start in range(0, stored.size, _PIECE_BYTES):
                    data = remote.span(name, start, min(start + _PIECE_BYTES, stored.size))
                    for consume in (file.write, sha256.update, git.update):
                        consume(data)
                    if progress is not None:
                        progress(done + start + len(data), changes.nbytes)
            digest = git.hexdigest() if stored.sha256 is None else sha256.hexdigest()
            if digest == (stored.sha256 or stored.oid):
                break
        done += stored.size


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
    progress: StageProgress | None = None,
) -> Review:
    """Check what a pull request adds to a zoo, and merge it where nothing is wrong.

    It may add new parts and nothing else. These are fetched at the pull request's last commit and checked against the
    zoo as it is now: seals and digests, names, shapes and dtypes, finiteness, ids and units, copies (permuted and
    rescaled ones too), licences, figures, and accuracies, which are measured again where the test set and the forward
    function are available. Nothing that the contributor said of these checks is used, and nothing that they sent is
    executed.

    Parameters
    ----------
    address : ``org/zoo``.
    number : of the pull request.
    merge : merge it if no check failed, and if neither it nor the zoo has moved on meanwhile; then bring the zoo's page
        and its snapshot up to date in a commit of their own. Where that cannot be done a note says why.
    module : ``FILE.py:NAME`` of your own that makes the network; by default that of ``ckptzoo.archs``.
    data : folder of test sets; by default that of ``CKPTZOO_DATA``.
    max_bytes : of the new parts; a larger contribution fails, and is not fetched.
    endpoint, token : by default those of huggingface_hub.
    retry_policy : how long to go on asking.
    progress : called with the stage, how much of it is done, and how much there is.

    Raises
    ------
    HubError
        There is no such pull request, the hub refuses, or gives no answer.

    Notes
    -----
    New parts are fetched to the folder of temporary files, and of the zoo rows and index; see ``copies`` for its
    weights. What must be refused is tested in tests/hub/contributions/test_tampered.py.
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    discussion = client.pull_requests.read(repo, number)
    result = Review(repo, number, discussion.title, discussion.author, discussion.status, discussion.url)
    if discussion.revision is None or discussion.status not in ("open", "draft"):
        got = discussion.status if discussion.revision is not None else "a discussion without changes"
        return replace(result, checks=(Check("open", "failed", f"expected an open pull request, it is {got}"),))
    changes = compare(client, repo, number)
    target = TargetZoo(open_target(client, repo, changes.main))
    sizes = changes.check_sizes(max_bytes)
    checks = [_check_conflicts(discussion), changes.check(), sizes, changes.check_order()]
    report = CheckReport(())
    if changes.parts and sizes.outcome == "passed":
        report = _check_parts(client, repo, changes, target, EvaluatorPool(target.zoo.arch, module, data), progress)
    result = replace(
        result,
        base=changes.base.commit,
        head=changes.head.commit,
        main=changes.main.commit,
        parts=changes.parts,
        nbytes=changes.nbytes,
        entries=report.entries,
        checks=(*checks, *report.checks),
    )
    return _merge(result, client, changes) if merge and result.passed else result


def _check_conflicts(discussion: Discussion) -> Check:
    conflicts = ", ".join(discussion.conflicts[:4])
    return Check(
        "merge", "failed" if conflicts else "passed", f"conflicts in {conflicts}" if conflicts else "no conflicts"
    )


def _check_parts(
    client: Client,
    repo: str,
    changes: Changes,
    target: TargetZoo,
    evaluators: EvaluatorPool,
    progress: StageProgress | None,
) -> CheckReport:
    """Fetch the new parts into a temporary folder and make every check of them."""
    with tempfile.TemporaryDirectory(prefix="ckptzoo-review-") as temporary:
        folder = write_documents(target, Path(temporary, "zoo"))
        fetch(client, repo, changes, folder, None if progress is None else partial(progress, "fetching"))
        report = run_checks(folder, target, evaluators, progress=progress)
    return replace(report, zoo=None)


def _merge(result: Review, client: Client, changes: Changes) -> Review:
    """Merge what was reviewed, and compare it with what was merged."""
    revision = f"refs/pr/{result.number}"
    moved = [
        what
        for what, head, reviewed in (
            ("the pull request", client.head(result.repository, revision), result.head),
            ("the zoo", client.head(result.repository), result.main),
        )
        if head != reviewed
    ]
    if moved:
        detail = f"{' and '.join(moved)} moved on during the review; review it again"
        return replace(result, checks=(*result.checks, Check("merged", "failed", detail)))
    comment = f"Reviewed at {result.head}: {len(result.checks)} checks, none failed."
    commit = client.pull_requests.merge(result.repository, result.number, comment)
    merged_files = client.files(result.repository)
    wrong = sorted(name for name, stored in changes.files.items() if merged_files.get(name) != stored)
    if wrong:
        step = f"Look at the commits of the zoo: what was merged is not what was reviewed at {result.head}."
        location = client.address(result.repository)
        raise HubError(Problem(location, wrong[0], "the file that was reviewed", "another, or none", step))
    return replace(result, merged=commit or "yes", notes=_refresh_page(client, result.repository))


def _refresh_page(client: Client, repo: str) -> tuple[str, ...]:
    """Bring page and snapshot up to date; returns notes on what could not be done."""
    try:
        return refresh(client, repo).notes
    except ZooError as error:
        step = f"Bring them up to date with ckptzoo card {repo}."
        return (f"merged, but the page and the snapshot are as they were: {error} {step}",)

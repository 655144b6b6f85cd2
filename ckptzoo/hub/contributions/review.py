"""``review``: checks a pull request from the bytes on the hub, and merges it.

First what it changes, file by file, which may be new parts and nothing else; then the new parts, fetched into a folder
that has the zoo's documents. Figures that it measures become rows of ``ckptzoo.schema.metadata.MEASURED_COLUMNS`` in
``completion.py``.
"""

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.console import Console

from ckptzoo.arguments import Size, Within, checked
from ckptzoo.console import PrintedResult, say
from ckptzoo.derive.labelled import read_labelled
from ckptzoo.errors import HubError, Problem, ZooError
from ckptzoo.format.durable import naming
from ckptzoo.hub.card.markdown import code
from ckptzoo.hub.client import Client, Discussion, NotThereError, RepoFile, RevisionListing
from ckptzoo.hub.client.models import WITHOUT_WRITE
from ckptzoo.hub.client.retry import HubRetryPolicy, RaceError
from ckptzoo.hub.contributions.completion import complete
from ckptzoo.hub.contributions.evaluation import EvaluatorPool, Factory, own_network
from ckptzoo.hub.contributions.independence import check_independence
from ckptzoo.hub.contributions.near_copies import check_near_copies
from ckptzoo.hub.contributions.open_requests import check_open_requests
from ckptzoo.hub.contributions.rebuilding import REBUILT, ConfinedRebuild
from ckptzoo.hub.contributions.report import (
    MAX_TEXT,
    CheckpointSummary,
    ReviewCheck,
    check_result,
    checks_markdown,
    failures,
    print_report,
    summaries_markdown,
    undone_checks,
    unmeasured,
)
from ckptzoo.hub.contributions.row_checks import check_author
from ckptzoo.hub.contributions.run_checks import (
    CheckReport,
    StageProgress,
    run_checks,
)
from ckptzoo.hub.contributions.target_zoo import TargetZoo, open_target, write_documents
from ckptzoo.loader.rebuilding import MAX_SECONDS
from ckptzoo.loader.zoo import Zoo
from ckptzoo.remote import open_remote
from ckptzoo.remote.address import repository
from ckptzoo.schema import layout
from ckptzoo.schema.documents import JsonFields
from ckptzoo.schema.review_mark import ReviewMark
from ckptzoo.text import counted, excerpt, shortened, size

MAX_BYTES = 64 * 2**30
"""Bytes of new parts that are fetched."""
MAX_TABLE = 64 * 2**20
"""Bytes of a part's rows, and of its index."""
MAX_PARTS = 100
"""New parts of one pull request."""
_PART_FILE = re.compile(
    rf"{layout.PARTS}/({layout.PART_NAME.pattern})/"
    rf"({re.escape(layout.METADATA)}|{re.escape(layout.INDEX)}|{layout.RAW}-\d{{2,6}}\.safetensors)"
)
"""The files that a contribution may add; nothing else is ever written to this machine."""
_NOT_REBUILT = (
    f"not merged: the check {REBUILT!r} that was asked for was not done, and says why. Merge without --rebuild if you "
    "accept that."
)
_PIECE_BYTES = 16 * 2**20
"""Bytes of a file that are fetched at a time."""


@dataclass(frozen=True)
class Review(PrintedResult, JsonFields, derived=("passed",), named={"entries": "checkpoints"}):
    """The result of a review of a pull request.

    Parameters
    ----------
    repository, number
        where it is.
    title, author, status, url
        as the hub says; ``status`` before anything was merged, ``url`` where it has pages.
    base, head, main
        the commits that it starts from, that was reviewed, and that the zoo was at.
    parts
        names of the new parts.
    nbytes
        of their files.
    entries
        the checkpoints.
    checks
        what was checked.
    merged
        the commit that merged it, ``yes`` where the hub names none; None where it was not merged.
    notes
        what could not be done after the merge, or why it was not merged though no check failed.
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
    checks: tuple[ReviewCheck, ...] = ()
    merged: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not failures(self.checks)

    @property
    def verdict(self) -> str:
        """A sentence on how many checks failed and which were not done; another where claims were not measured."""
        failed = failures(self.checks)
        outcome = f"{counted(len(failed), 'check')} of {len(self.checks)} failed" if failed else "nothing failed"
        return f"{outcome}{undone_checks(self.checks)}. {unmeasured(self.checks, self.entries)}".rstrip()

    def comment(self) -> str:
        """``markdown`` with a last line for programs, which is not shown: what was reviewed, and whether it passed."""
        mark = ReviewMark(self.head or "", self.main or "", self.passed)
        return f"{self.markdown()}\n\n{mark.line()}"

    def markdown(self) -> str:
        """The commits that were reviewed, the verdict, every checkpoint and every check; a comment, with its marks."""
        of_parts = f", {size(self.nbytes)} of new parts" if self.parts else ""
        head, main = (code(commit or "") for commit in (self.head, self.main))
        lines = [f"Reviewed {head} against main at {main}{of_parts}: {self.verdict}", ""]
        lines += [summaries_markdown(self.entries), ""] if self.entries else []
        return shortened("\n".join([*lines, checks_markdown(self.checks)]), MAX_TEXT).strip()

    def print(self, console: Console | None = None) -> None:
        """Print it as tables on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        out = console or Console()
        title = f"{self.repository} pull request {self.number}: {self.title} (by {self.author}, {self.status})"
        say(out, title, *([self.url] if self.url else []), "")
        print_report(out, self.entries, self.checks)
        merged = "" if self.merged is None else f" Merged: {self.merged}."
        verdict = f"{self.verdict}{merged if self.passed else ' Nothing was merged.'}"
        say(out, verdict, *(f"note: {note}" for note in self.notes))


@dataclass(frozen=True)
class Changes:
    """A pull request's files against those of the commit that it starts from.

    ``base`` is that commit, ``head`` the pull request's last one, ``main`` the zoo's current one; ``added``,
    ``changed`` and ``deleted`` are files by name.
    """

    base: RevisionListing
    head: RevisionListing
    main: RevisionListing
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
        return sum(stored.size for stored in self.files.values())

    def check(self) -> ReviewCheck:
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

    def check_sizes(self, limit: int) -> ReviewCheck:
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

    def check_order(self) -> ReviewCheck:
        """Check that the new parts have the next numbers, of the zoo as it is or as it was at their first commit."""
        parts = _parts_of(self.main)
        try:
            first, behind = (layout.next_sequence(known, location="parts") for known in (_parts_of(self.base), parts))
        except ZooError as error:
            return check_result("order", [str(error)], "")
        final = min(behind + len(self.parts) - 1, layout.MAX_SEQUENCE)
        wrong = [
            f"{part} is none of the next parts, which are numbered {first:06d} to {final:06d}"
            for part in self.parts
            if not first <= int(part[:6]) <= final
        ]
        if wrong:
            return check_result("order", wrong, "")
        # part names begin with six digits, so that their order as texts is that of the numbers
        last = max(parts, default="")
        before = [part for part in self.parts if part < last]
        position = (
            f"{before[0]} comes before {last}, which was added meanwhile"
            if before
            else "after the parts that are there"
        )
        return ReviewCheck("order", "passed", position)


def _parts_of(listing: RevisionListing) -> list[str]:
    folders = (name.split("/")[1] for name in listing.files if name.startswith("parts/") and "/" in name[6:])
    return sorted({part for part in folders if layout.PART_NAME.fullmatch(part)})


def compare(client: Client, repo: str, number: int, *, own: Set[str] = frozenset()) -> Changes:
    """Compare a pull request with the commit that it starts from.

    ``own`` are its commits where it is merged, because they are commits of the zoo then. Raises ``HubError`` where
    there is no such pull request, or it does not start from a commit of the zoo.
    """
    # the ref under which a hub keeps the commits of a pull request
    revision = f"refs/pr/{number}"
    main, head = client.listing(repo), client.listing(repo, revision)
    # a hub names the branch that a pull request goes to, not the commit that it starts from
    zoo_commits = set(client.commits(repo)) - own
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
    # by its commit: the pull request may get others while it is fetched
    remote = open_remote(f"hf://datasets/{repo}@{changes.head.commit}", endpoint=client.endpoint, token=client.token)
    done = 0
    for name, stored in changes.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            # The hub lists large files by sha256, and the others by git's own digest of a blob.
            sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % stored.size, usedforsecurity=False)
            with naming(path), path.open("wb") as file:
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


@checked
def review(
    address: str,
    number: int,
    *,
    merge: bool = False,
    derive: bool = False,
    post: bool = False,
    accept_near_copies: bool = False,
    module: str | Factory | None = None,
    data: str | Path | None = None,
    inputs: str | Path | None = None,
    rebuild: Size = 0,
    rebuild_seconds: Annotated[float, Within(0)] = MAX_SECONDS,
    max_bytes: int = MAX_BYTES,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
    progress: StageProgress | None = None,
) -> Review:
    """Check what a pull request adds to a zoo, and merge it where nothing is wrong.

    It may add new parts and nothing else. These are fetched at the pull request's last commit and checked against the
    zoo as it is now: seals and digests, names, shapes and dtypes, finiteness, ids and units, the author's name before
    them, copies (permuted and rescaled ones too, those that compute nearly the same, and those of other pull requests),
    licences, figures, and accuracies, which are measured again where the test set and the forward function are
    available. Nothing that the contributor said of these checks is used, and nothing that they sent is executed.

    Parameters
    ----------
    address
        ``org/zoo``.
    number
        of the pull request.
    merge
        merge it if no check failed, if members were trained again where ``rebuild`` asks for it, and if neither it nor
        the zoo has moved on meanwhile; then, in a commit of its own,
        add the figures that were measured of rows that have none, and bring the zoo's page and its snapshot up to date.
        Where that cannot be done a note says why.
    derive
        with ``merge``: that commit also has every variant and every set of predictions that the zoo has, of the new
        checkpoints, so that readers always find a whole zoo.
    post
        write the checks as a comment that names the commits, unless there is one that says the same.
    accept_near_copies
        checkpoints that compute nearly the same as others are different networks all the same; you have looked at those
        that the check named.
    module
        ``FILE.py:NAME`` of your own that makes the network; by default that of ``ckptzoo.archs``.
    data
        folder of test sets; by default that of ``CKPTZOO_DATA``.
    inputs
        a ``.npz`` file of your own test set, as the networks take it: arrays ``inputs`` (N, ...) and ``targets`` (N,),
        labels from 0. All accuracies are measured on it; by default on the test set that rows name.
    rebuild
        how many members are trained again from what their rows say and compared bit for bit, drawn at random; in a
        process of its own without network, tokens and other programs. Needs the extra ``build`` and the data set.
    rebuild_seconds
        the most seconds of training them; what would take longer is not done.
    max_bytes
        of the new parts; a larger contribution fails, and is not fetched.
    endpoint, token
        by default those of huggingface_hub.
    retry_policy
        how long to go on asking.
    progress
        called with the stage, how much of it is done, and how much there is.

    Raises
    ------
    HubError
        There is no such pull request, the hub refuses, or gives no answer.

    Notes
    -----
    New parts are fetched to the folder of temporary files, and of the zoo rows and index; see ``copies`` for its
    weights. What must be refused is tested in tests/hub/contributions/test_tampered.py.

    Examples
    --------
    >>> made = ckptzoo.contribute(["net.safetensors"], to="lab/optunets", card="contribution.toml")
    >>> found = ckptzoo.review("lab/optunets", made.number, merge=True)
    >>> found.passed, found.merged is not None
    (True, True)
    >>> len(ckptzoo.open("lab/optunets"))
    17
    """
    own = None if inputs is None else read_labelled(inputs)
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    discussion = client.pull_requests.read(repo, number)
    result = Review(repo, number, discussion.title, discussion.author, discussion.status, discussion.url)
    if discussion.revision is None or discussion.status not in ("open", "draft"):
        got = discussion.status if discussion.revision is not None else "a discussion without changes"
        return replace(result, checks=(ReviewCheck("open", "failed", f"expected an open pull request, it is {got}"),))
    changes = compare(client, repo, number)
    if merge:
        _require_merging(client, repo, changes.main.role)
    target = TargetZoo(open_target(client, repo, changes.main))
    sizes = changes.check_sizes(max_bytes)
    checks = [_check_conflicts(discussion), changes.check(), sizes, changes.check_order()]
    report, rebuilt = CheckReport(()), None
    with tempfile.TemporaryDirectory(prefix="ckptzoo-review-") as temporary:
        folder, network = Path(temporary, "zoo"), own_network(target.zoo.arch, module)
        # sizes come first: untrusted parts may be of any size, and nothing is fetched of more than max_bytes
        if changes.parts and sizes.outcome == "passed":
            evaluators = EvaluatorPool(target.zoo.arch, module, data, own)
            report = _check_parts(client, result, changes, target, folder, evaluators, progress)
            if report.zoo is not None:
                comparing = None if progress is None else partial(progress, "comparing")
                near = partial(check_near_copies, network=network, data=data, own=own, accepted=accept_near_copies)
                report = _compare_weights(report, report.zoo, target, partial(near, progress=comparing))
            if report.zoo is not None and rebuild:
                confined = ConfinedRebuild(rebuild, data, rebuild_seconds)
                rebuilt_check, rebuilt = confined.carry_out(folder)
                report = replace(report, checks=(*report.checks, rebuilt_check))
        result = _checked(result, changes, (*checks, *report.checks), report.entries)
        comment = result.comment()
        if post and comment not in {item.text.strip() for item in discussion.comments}:
            client.pull_requests.comment(repo, number, comment)
        if not (merge and result.passed):
            return result
        # what a row states decides whether it can be trained here, and its contributor wrote it
        if any(check.name == REBUILT and check.outcome == "not done" for check in result.checks):
            return replace(result, notes=(_NOT_REBUILT,))
        result = _merge(result, client, changes)
        if result.merged is None:
            return result
        try:
            notes = complete(
                client,
                repo,
                number,
                folder,
                report.measured,
                rebuilt=rebuilt,
                derives=derive,
                network=network,
                data=data,
                own=own,
                progress=progress,
            )
        except (ZooError, OSError) as error:  # OSError: the disk is full
            step = f"Bring them up to date with ckptzoo card {repo}."
            notes = (f"merged, but the page and the snapshot are as they were: {error} {step}",)
    return replace(result, notes=notes)


def _compare_weights(
    report: CheckReport, submitted: Zoo, target: TargetZoo, near_copies: Callable[..., ReviewCheck]
) -> CheckReport:
    """Return the report with checks of what the new weights have in common with those that are there."""
    copied = {entry.id for entry in report.entries if entry.copy is not None}
    near, starts = near_copies(submitted, target, without=copied), check_independence(submitted, target, without=copied)
    return replace(report, checks=(*report.checks, near, *(() if starts is None else (starts,))))


def _checked(
    result: Review, changes: Changes, checks: tuple[ReviewCheck, ...], entries: tuple[CheckpointSummary, ...]
) -> Review:
    """Return the result with the commits that were compared and the outcome of their checks."""
    return replace(
        result,
        base=changes.base.commit,
        head=changes.head.commit,
        main=changes.main.commit,
        parts=changes.parts,
        nbytes=changes.nbytes,
        entries=entries,
        checks=checks,
    )


def _require_merging(client: Client, repo: str, role: str | None) -> None:
    """Refuse before anything is fetched where the token may not merge, as far as the hub says so."""
    try:
        account = client.whoami()
    except NotThereError:  # a hub without this call
        return
    if (role or account.role) in WITHOUT_WRITE:
        got, step = f"one of {account.name} that may {role or account.role}", "Use another token, or leave out --merge."
        raise HubError(Problem(client.address(repo), "token", "one that may merge", got, step))


def _check_conflicts(discussion: Discussion) -> ReviewCheck:
    conflicts = ", ".join(discussion.conflicts[:4])
    return ReviewCheck(
        "merge", "failed" if conflicts else "passed", f"conflicts in {conflicts}" if conflicts else "no conflicts"
    )


def _check_parts(
    client: Client,
    result: Review,
    changes: Changes,
    target: TargetZoo,
    folder: Path,
    evaluators: EvaluatorPool,
    progress: StageProgress | None,
) -> CheckReport:
    """Fetch the new parts into a folder and make every check of them alone."""
    write_documents(target, folder)
    fetch(client, result.repository, changes, folder, None if progress is None else partial(progress, "fetching"))
    report = run_checks(folder, target, evaluators, progress=progress)
    if report.zoo is None:
        return report
    author = check_author(report.zoo, result.author)
    requests = check_open_requests(client, result.repository, report.zoo, target, number=result.number)
    return replace(report, checks=(author, *report.checks, requests))


def _merge(result: Review, client: Client, changes: Changes) -> Review:
    """Merge what was reviewed, and compare the files that are there then with those before and those reviewed."""
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
        return replace(result, checks=(*result.checks, ReviewCheck("merged", "failed", detail)))
    comment = f"Reviewed at {result.head}: {len(result.checks)} checks, none failed."
    # ckptzoo serve refuses to merge others; huggingface.co takes no such condition, hence the looks before and behind
    expected = {"expected_head": result.head, "expected_target": result.main}
    try:
        commit = client.pull_requests.merge(result.repository, result.number, comment, **expected)
    except RaceError:
        detail = "the pull request or the zoo moved on during the review; review it again"
        return replace(result, checks=(*result.checks, ReviewCheck("merged", "failed", detail)))
    merged, reviewed = client.files(result.repository), {**changes.main.files, **changes.files}
    # a commit may arrive behind the look at the heads: nothing but what was reviewed may be there
    wrong = sorted(name for name in merged.keys() | reviewed.keys() if merged.get(name) != reviewed.get(name))
    if wrong:
        step = f"Look at the commits of the zoo: it is not {result.main} with what was reviewed at {result.head}."
        got = "a file that is neither reviewed nor was there" if wrong[0] not in reviewed else "another file, or none"
        what = f"{excerpt(wrong[0], 120)} behind the merge"
        raise HubError(Problem(client.address(result.repository), what, "what was reviewed, or was there", got, step))
    return replace(result, merged=commit or "yes")

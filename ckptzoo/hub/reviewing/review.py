"""Review a pull request from the bytes on the hub."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from ckptzoo.errors import HubError, Problem, ZooError
from ckptzoo.hub.checks.accuracy import Bench
from ckptzoo.hub.checks.check import Check
from ckptzoo.hub.checks.looking import Looked, Progress, look
from ckptzoo.hub.checks.measuring import Factory
from ckptzoo.hub.checks.place import opened, skeleton
from ckptzoo.hub.checks.standing import Standing
from ckptzoo.hub.client import Client, Discussion
from ckptzoo.hub.client.asking import Bounds
from ckptzoo.hub.publishing import refresh
from ckptzoo.hub.reviewing.changes import Changes, changes
from ckptzoo.hub.reviewing.fetching import fetch
from ckptzoo.hub.reviewing.result import Review
from ckptzoo.remote.address import repository

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
    bounds: Bounds | None = None,
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
    bounds : how long to go on asking.
    progress : called with what is being done, how much of it is done, and how much there is.

    Raises
    ------
    HubError
        There is no such pull request, the hub refuses, or gives no answer.

    Notes
    -----
    New parts are fetched to the folder of temporary files, and of the zoo rows and index; see ``copies`` for its
    weights. What must be turned away is in tests/hub/reviewing/test_tampered.py.
    """
    client, repo = Client(endpoint, token, bounds=bounds), repository(address)
    about = client.pull_requests.read(repo, number)
    made = Review(repo, number, about.title, about.author, about.status, about.url)
    if about.revision is None or about.status not in ("open", "draft"):
        got = about.status if about.revision is not None else "a discussion without changes"
        return replace(made, checks=(Check("open", "failed", f"expected an open pull request, it is {got}"),))
    found = changes(client, repo, number)
    standing = Standing(opened(client, repo, found.main))
    checks = [_conflicts(about), found.check(), found.sizes(max_bytes), found.order()]
    looked = Looked(())
    if found.parts and checks[2].outcome == "passed":
        looked = _looked(client, repo, found, standing, Bench(standing.zoo.arch, module, data), progress)
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
    client: Client, repo: str, found: Changes, standing: Standing, bench: Bench, progress: Progress | None
) -> Looked:
    """The checks of the new parts' bytes, in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="ckptzoo-review-") as place:
        folder = skeleton(standing, Path(place, "zoo"))
        fetch(client, repo, found, folder, None if progress is None else partial(progress, "fetching"))
        looked = look(folder, standing, bench, progress=progress)
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

"""Bring checkpoints to a zoo: files become a part, the part becomes a pull request."""

import shutil
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import ckptzoo
from ckptzoo.errors import HubError, Problem, SpecError
from ckptzoo.format.part import Part
from ckptzoo.hub.checks.accuracy import Bench
from ckptzoo.hub.checks.looking import Progress, look
from ckptzoo.hub.checks.measuring import Factory
from ckptzoo.hub.checks.place import opened, skeleton
from ckptzoo.hub.checks.standing import Standing
from ckptzoo.hub.client import Client, Listing
from ckptzoo.hub.client.asking import Bounds
from ckptzoo.hub.contributing import founding, making, telling
from ckptzoo.hub.contributing.naming import NamesError
from ckptzoo.hub.contributing.result import Contribution
from ckptzoo.hub.contributing.submission import Submission
from ckptzoo.hub.contributing.taking import Taker
from ckptzoo.hub.publishing import push
from ckptzoo.remote.address import repository
from ckptzoo.spec import layout

MAX_PROBLEMS = 200


def contribute(
    files: Sequence[str | Path],
    *,
    to: str,
    card: str | Path | Submission,
    map: str | Path | Mapping[str, str] | None = None,
    module: str | Factory | None = None,
    data: str | Path | None = None,
    new: str | Path | None = None,
    dry_run: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
    bounds: Bounds | None = None,
    progress: Progress | None = None,
) -> Contribution:
    """Make a part of strangers' checkpoints and open a pull request with it.

    Files are read as data, in a process of their own. Their names, shapes and dtypes are brought to the zoo's, their
    accuracy is measured where the test set and the forward function are at hand, and everything is checked that
    ``review`` will check. Where a check fails nothing is uploaded.

    Parameters
    ----------
    files : .safetensors, .pt, .pth, .th and .npz files, one state dict or several in each, or K stacked; or zoos.
    to : ``org/zoo``. Where there is no such zoo yet and the contribution has a table ``[zoo]``, a new one is made and
        published, which needs a token that may write.
    card : contribution.toml; every key is explained in cards/template/contribution.toml.
    map : further old and new names, or a TOML file with them.
    module : ``FILE.py:NAME`` of one's own, called without arguments for the network; by default the forward function
        of ``ckptzoo.archs`` that the zoo names. The file is executed on this machine and goes nowhere.
    data : folder of test sets; by default that of ``CKPTZOO_DATA``.
    new : folder of a new zoo; by default the repository's name here. It stays, unless a check fails; where it could
        not be published the same contribution again carries on from it.
    dry_run : do everything but the upload; the part stays in a folder.
    endpoint, token : by default those of huggingface_hub.
    bounds : how long to go on asking.
    progress : called with what is being done, how much of it is done, and how much there is.

    Raises
    ------
    SpecError
        The card is not valid, or files do not fit, with every problem; ``NamesError`` proposes names.
    IntegrityError
        A file is refused; it says why.
    HubError
        The hub refuses, or gives no answer.

    Notes
    -----
    Memory is that of one file; the part is written to the folder of temporary files first. A checkpoint's ``unit`` is
    the digest of its weights, so that the same contribution again is recognised.
    """
    submission = card if isinstance(card, Submission) else Submission.from_toml(card)
    taker = Taker(submission, {**submission.names, **_names(map)})
    paths = _paths(files)
    client, repo = Client(endpoint, token, bounds=bounds), repository(to)
    listing = client.find(repo)
    if listing is None or layout.ZOO not in listing.files:
        if submission.zoo is None:
            raise founding.needed(repo)
        return _founded(repo, taker, paths, module, data, new, dry_run, client, token, progress)
    standing = Standing(opened(client, repo, listing))
    folder = Path(tempfile.mkdtemp(prefix="ckptzoo-contribution-")) / standing.zoo.name
    keep = False
    try:
        made = _proposal(folder, taker, paths, module, data, standing, repo, progress)
        made = _known(made, client, repo, standing, listing)
        if made.status == "dry run" and not dry_run:
            return _sent(made, client, repo, listing, submission, progress)
        keep = made.status == "dry run"
        return made if keep else replace(made, folder=None)
    finally:
        if not keep:
            shutil.rmtree(folder.parent, ignore_errors=True)


def _proposal(
    folder: Path,
    taker: Taker,
    paths: list[Path],
    module: str | Factory | None,
    data: str | Path | None,
    standing: Standing | None,
    repo: str,
    progress: Progress | None,
) -> Contribution:
    """Make the part and check it; the zoo's documents are written first, or there already."""
    if standing is not None:
        skeleton(standing, folder)
    arch = ckptzoo.append(folder).arch
    bench = Bench(arch, module, data)
    told = None if progress is None else partial(progress, "reading")
    made = making.fill(folder, taker, paths, arch, standing, bench, told)
    if taker.problems:
        shown = taker.problems[:MAX_PROBLEMS]
        raise NamesError(shown, taker.proposal) if taker.proposal else SpecError(shown)
    if made.part is None:
        raise SpecError(Problem(repo, "files", "checkpoints", "none", "Name some files."))
    if standing is not None:
        made.part = making.numbered(folder, made.part, standing.next_sequence)
    looked = look(folder, standing, bench, measured=made.measured, progress=progress)
    files = [path for path in (folder / layout.PARTS / made.part).iterdir() if path.is_file()]
    return Contribution(
        repository=repo,
        zoo=folder.name if standing is None else standing.zoo.name,
        part=f"{layout.PARTS}/{made.part}",
        nbytes=sum(path.stat().st_size for path in files),
        entries=looked.entries,
        checks=looked.checks,
        notes=made.told(made.notes),
        left_out=made.told(made.left_out),
        license=taker.submission.license,
        source=taker.submission.defaults.get("source", ""),
        folder=folder,
    )


def _known(made: Contribution, client: Client, repo: str, standing: Standing, listing: Listing) -> Contribution:
    """Whether the same checkpoints are in the zoo or in an open pull request already, or a check failed."""
    assert made.folder is not None
    units = set(ckptzoo.open(made.folder).metadata["unit"].to_pylist())
    if units <= standing.units:
        return replace(made, status="merged")
    if not made.passed:
        return replace(made, status="refused")
    mine = _index_of(made)
    for item in client.pull_requests.listed(repo):
        theirs = client.find(repo, item.revision) if item.revision is not None else None
        for name, stored in {} if theirs is None else theirs.files.items():
            ours = name not in listing.files and name.endswith(f"-{mine.digest[7:15]}/{layout.INDEX}")
            if ours and stored.size == (made.folder / made.part / layout.INDEX).stat().st_size:
                return replace(made, status="open", number=item.number, url=item.url)
    return made


def _index_of(made: Contribution) -> Part:
    assert made.folder is not None
    (part,) = ckptzoo.open(made.folder).contents.raw.parts
    return part


def _sent(
    made: Contribution,
    client: Client,
    repo: str,
    listing: Listing,
    submission: Submission,
    progress: Progress | None,
) -> Contribution:
    """Open the pull request."""
    assert made.folder is not None
    folder = made.folder / made.part
    files: dict[str, Path | bytes] = {f"{made.part}/{path.name}": path for path in sorted(folder.iterdir())}
    request = client.pull_requests.propose(
        repo,
        files,
        title=telling.title(made, submission),
        description=telling.description(made, submission),
        parent=listing.commit,
        progress=None if progress is None else partial(progress, "uploading"),
    )
    return replace(made, status="proposed", number=request.number, url=request.url, folder=None)


def _founded(
    repo: str,
    taker: Taker,
    paths: list[Path],
    module: str | Factory | None,
    data: str | Path | None,
    new: str | Path | None,
    dry_run: bool,
    client: Client,
    token: str | None,
    progress: Progress | None,
) -> Contribution:
    """Make a new zoo and publish it; one that was made before and not published is taken as it is."""
    folder = Path(new if new is not None else repo.rpartition("/")[2]).absolute()
    if dry_run and new is None:
        folder = Path(tempfile.mkdtemp(prefix="ckptzoo-contribution-")) / folder.name
    founding.refuse(folder, repo)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ckptzoo-contribution-", dir=folder.parent) as place:
        fresh = Path(place, folder.name)
        founding.found(fresh, taker.submission, taker, paths, module)
        made = replace(_proposal(fresh, taker, paths, module, data, None, repo, progress), folder=folder)
        if not made.passed:
            return replace(made, status="refused", folder=None)
        founding.settle(fresh, folder, repo)
    if dry_run:
        return made
    told = None if progress is None else partial(progress, "uploading")
    try:
        push(folder, repo, endpoint=client.endpoint, token=token, bounds=client.bounds, progress=told)
    except HubError as error:
        problem = error.problem
        more = (
            f"The new zoo is in {folder}; the same command carries on from there, as does ckptzoo push {folder} {repo}."
        )
        raise HubError(replace(problem, next_step=f"{problem.next_step} {more}")) from error
    return replace(made, status="published", url=client.page(repo))


def _paths(files: Sequence[str | Path]) -> list[Path]:
    paths = [Path(file) for file in files]
    problems = [
        Problem(str(path), "file", "a file of checkpoints or a zoo's folder", "nothing", "Correct its name.")
        for path in paths
        if not path.exists()
    ]
    names = [path.name for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [
        Problem(name, "file", "names that differ", "several of this name", "Rename one of them.") for name in twice
    ]
    if problems or not paths:
        raise SpecError(problems or [Problem("contribution", "files", "at least one", "none", "Name some files.")])
    return paths


def _names(map: str | Path | Mapping[str, str] | None) -> Mapping[str, str]:
    """Names from a mapping, or from a TOML file of ``"old" = "new"``, under ``[names]`` or not."""
    if map is None or isinstance(map, Mapping):
        return map or {}
    step = 'Write lines such as "old.weight" = "new.weight".'
    try:
        content = tomllib.loads(Path(map).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SpecError(Problem(str(map), "file", "names in TOML", str(error), step)) from error
    found = content.get("names", content)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SpecError(Problem(str(map), "names", "old and new ones, as texts", "others", step))
    return found

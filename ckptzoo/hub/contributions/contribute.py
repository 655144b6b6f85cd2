"""Bring checkpoints to a zoo: files become a part, the part becomes a pull request.

The new part: built in a folder that has the zoo's documents and nothing else of it.
"""

import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo.errors import HubError, Problem, SpecError
from ckptzoo.format.part import Part
from ckptzoo.hub.client import Client, Listing
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.hub.contributions import new_zoo, result
from ckptzoo.hub.contributions.duplicates import digests
from ckptzoo.hub.contributions.evaluation import (
    KEY,
    Evaluation,
    EvaluatorPool,
    Factory,
    Figures,
    evaluation_of,
    of_recipe,
)
from ckptzoo.hub.contributions.ingest import IngestedBatch, Ingestor
from ckptzoo.hub.contributions.matching import NamesError
from ckptzoo.hub.contributions.result import Contribution
from ckptzoo.hub.contributions.run_checks import Progress, run_checks
from ckptzoo.hub.contributions.submission import Row, Submission
from ckptzoo.hub.contributions.target_zoo import TargetZoo, opened, write_documents
from ckptzoo.hub.push import push
from ckptzoo.remote.address import repository
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture

UNIT = "weights"
"""How the unit of a contributed checkpoint begins, before the digest of its weights."""


@dataclass
class BuiltPart:
    """What went into a part.

    Parameters
    ----------
    part : its name; None where nothing fitted.
    measured : figures by id.
    notes : what was done to files, and to how many.
    left_out : what files hold besides, and how many of them.
    """

    part: str | None = None
    measured: dict[str, Figures] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def summaries(self, counts: dict[str, int]) -> tuple[str, ...]:
        """Remarks, with how many sources each is of."""
        return tuple(f"{text} ({count:,} of the files)" for text, count in counts.items())


def build_part(
    folder: Path,
    taker: Ingestor,
    paths: Sequence[Path],
    arch: Architecture,
    standing: TargetZoo | None,
    bench: EvaluatorPool,
    progress: Callable[[int, int], None] | None = None,
) -> BuiltPart:
    """Write the checkpoints of files into one new part of the zoo in a folder, measuring them on the way.

    Nothing is written where a file does not fit; ``taker.problems`` says why.
    """
    made, writer = BuiltPart(), ckptzoo.append(folder)
    count = 0
    with writer:
        for taken in taker.take(paths, arch):
            count += len(taken.rows)
            if progress is not None:
                progress(count, max(count, len(paths)))
            for counts, texts in ((made.notes, taken.notes), (made.left_out, taken.left_out)):
                for text in texts:
                    counts[text] = counts.get(text, 0) + 1
            if taker.problems:
                continue
            _measure(taken, taker.submission, standing, bench, made.measured)
            for row, digest in zip(taken.rows, digests(dict(taken.weights)), strict=True):
                row["unit"] = f"{UNIT}-{digest[:40]}"
            writer.add(taken.weights, taken.rows)
        if taker.problems:
            writer.discard()
        else:
            made.part = writer.commit()
    return made


def numbered(folder: Path, part: str, sequence: int) -> str:
    """Give a part the number that it has in the zoo; its digest does not cover its name."""
    name = f"{sequence:06d}{part[6:]}"
    (folder / layout.PARTS / part).rename(folder / layout.PARTS / name)
    return name


def _measure(
    taken: IngestedBatch,
    submission: Submission,
    standing: TargetZoo | None,
    bench: EvaluatorPool,
    measured: dict[str, Figures],
) -> None:
    """Put figures and how they were measured into rows that have none."""
    for at, row in enumerate(taken.rows):
        evaluation = _evaluation(row, submission, standing)
        (found,) = bench.measured(_one(taken, at), evaluation)
        if evaluation is not None:
            row["extra"] = {**row["extra"], KEY: evaluation.to_json()}
        if found is None or evaluation is None:
            continue
        measured[row["id"]] = found
        if row.get("test_accuracy") is None:
            row.update({name: value for name, value in found.items() if np.isfinite(value)})
            row["extra"][KEY]["test_set"] = bench.digest(evaluation)


def _one(taken: IngestedBatch, at: int) -> dict[str, NDArray[Any]]:
    return {name: array[at : at + 1] for name, array in taken.weights.items()}


def _evaluation(row: Row, submission: Submission, standing: TargetZoo | None) -> Evaluation | None:
    """What the contribution says, else the row, else the zoo's rows of the same recipe."""
    if submission.evaluation is not None:
        return submission.evaluation
    own = evaluation_of(row["extra"], row.get("dataset"))
    if own is None and standing is not None and isinstance(recipe := row.get("recipe"), str):
        own = of_recipe(standing.zoo, recipe)
    return own


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
    retry_policy: HubRetryPolicy | None = None,
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
    retry_policy : how long to go on asking.
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
    taker = Ingestor(submission, {**submission.names, **_names(map)})
    paths = _paths(files)
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(to)
    listing = client.find(repo)
    if listing is None or layout.ZOO not in listing.files:
        if submission.zoo is None:
            raise new_zoo.needed(repo)
        return _founded(repo, taker, paths, module, data, new, dry_run, client, token, progress)
    standing = TargetZoo(opened(client, repo, listing))
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
    taker: Ingestor,
    paths: list[Path],
    module: str | Factory | None,
    data: str | Path | None,
    standing: TargetZoo | None,
    repo: str,
    progress: Progress | None,
) -> Contribution:
    """Make the part and check it; the zoo's documents are written first, or there already."""
    if standing is not None:
        write_documents(standing, folder)
    arch = ckptzoo.append(folder).arch
    bench = EvaluatorPool(arch, module, data)
    told = None if progress is None else partial(progress, "reading")
    made = build_part(folder, taker, paths, arch, standing, bench, told)
    if taker.problems:
        shown = taker.problems[:MAX_PROBLEMS]
        raise NamesError(shown, taker.proposal) if taker.proposal else SpecError(shown)
    if made.part is None:
        raise SpecError(Problem(repo, "files", "checkpoints", "none", "Name some files."))
    if standing is not None:
        made.part = numbered(folder, made.part, standing.next_sequence)
    looked = run_checks(folder, standing, bench, measured=made.measured, progress=progress)
    files = [path for path in (folder / layout.PARTS / made.part).iterdir() if path.is_file()]
    return Contribution(
        repository=repo,
        zoo=folder.name if standing is None else standing.zoo.name,
        part=f"{layout.PARTS}/{made.part}",
        nbytes=sum(path.stat().st_size for path in files),
        entries=looked.entries,
        checks=looked.checks,
        notes=made.summaries(made.notes),
        left_out=made.summaries(made.left_out),
        license=taker.submission.license,
        source=taker.submission.defaults.get("source", ""),
        folder=folder,
    )


def _known(made: Contribution, client: Client, repo: str, standing: TargetZoo, listing: Listing) -> Contribution:
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
        title=result.title(made, submission),
        description=result.description(made, submission),
        parent=listing.commit,
        progress=None if progress is None else partial(progress, "uploading"),
    )
    return replace(made, status="proposed", number=request.number, url=request.url, folder=None)


def _founded(
    repo: str,
    taker: Ingestor,
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
    new_zoo.refuse(folder, repo)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ckptzoo-contribution-", dir=folder.parent) as place:
        fresh = Path(place, folder.name)
        new_zoo.create_zoo(fresh, taker.submission, taker, paths, module)
        made = replace(_proposal(fresh, taker, paths, module, data, None, repo, progress), folder=folder)
        if not made.passed:
            return replace(made, status="refused", folder=None)
        new_zoo.install_zoo(fresh, folder, repo)
    if dry_run:
        return made
    told = None if progress is None else partial(progress, "uploading")
    try:
        push(folder, repo, endpoint=client.endpoint, token=token, retry_policy=client.retry_policy, progress=told)
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

"""``contribute``: files become one new part of a zoo, and the part becomes a pull request.

The part is built in a folder that has the zoo's documents and nothing else of it.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo.arguments import checked
from ckptzoo.derive.labelled import Labelled, read_labelled
from ckptzoo.errors import HubError, Problem, SpecError, ZooError
from ckptzoo.format.part import Part
from ckptzoo.hub.client import Client, RevisionListing
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.hub.contributions import new_zoo, result
from ckptzoo.hub.contributions.duplicates import units
from ckptzoo.hub.contributions.evaluation import (
    EvaluatorPool,
    Factory,
    Figures,
    evaluation_of_recipe,
    output_differences,
)
from ckptzoo.hub.contributions.ingest import IngestedBatch, Ingestor
from ckptzoo.hub.contributions.matching import NamesError, names_table
from ckptzoo.hub.contributions.open_requests import check_open_requests
from ckptzoo.hub.contributions.result import Contribution
from ckptzoo.hub.contributions.run_checks import StageProgress, run_checks
from ckptzoo.hub.contributions.submission import Row, Submission
from ckptzoo.hub.contributions.target_zoo import TargetZoo, open_target, write_documents
from ckptzoo.hub.push import push
from ckptzoo.image_sets.evaluation import EVALUATION_KEY, Evaluation, evaluation_of
from ckptzoo.remote.address import repository
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import read_toml

SAME_OUTPUTS = 1e-4
"""Two networks have the same outputs, except for the order of sums, below this share of the largest output."""


@dataclass
class BuiltPart:
    """The result of building a part.

    ``part`` is None where nothing fitted; ``measured`` has figures by id; ``notes`` counts files by what was done to
    them, ``left_out`` by what they hold besides checkpoints.
    """

    part: str | None = None
    measured: dict[str, Figures] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def summaries(self, counts: dict[str, int]) -> tuple[str, ...]:
        """Return remarks, each with the number of files that it is about."""
        return tuple(f"{text} ({count:,} of the files)" for text, count in counts.items())


def build_part(
    folder: Path,
    ingestor: Ingestor,
    paths: Sequence[Path],
    arch: Architecture,
    target: TargetZoo | None,
    evaluators: EvaluatorPool,
    progress: Callable[[int, int], None] | None = None,
) -> BuiltPart:
    """Measure the checkpoints of files and write them into one new part of the zoo in a folder.

    Nothing is written where a file does not fit; ``ingestor.problems`` says why.
    """
    built, writer = BuiltPart(), ckptzoo.append(folder)
    count = 0
    with writer:
        for batch in ingestor.ingest(paths, arch):
            count += len(batch.rows)
            if progress is not None:
                progress(count, max(count, len(paths)))
            for counts, texts in ((built.notes, batch.notes), (built.left_out, batch.left_out)):
                for text in texts:
                    counts[text] = counts.get(text, 0) + 1
            if ingestor.problems:
                continue
            _measure(batch, ingestor.submission, target, evaluators, built.measured)
            for row, unit in zip(batch.rows, units(dict(batch.weights)), strict=True):
                row["unit"] = unit
            writer.add(batch.weights, batch.rows)
        if ingestor.problems:
            writer.discard()
        else:
            built.part = writer.commit()
    return built


def rename_part(folder: Path, part: str, sequence: int) -> str:
    """Give a part the number that it has in the zoo; its digest does not cover its name. Returns the new name."""
    # a part is named by six digits, a hyphen and the start of its digest
    name = f"{sequence:06d}{part[6:]}"
    # both names are in one folder, so that the part is never seen in part
    (folder / layout.PARTS / part).rename(folder / layout.PARTS / name)
    return name


def _measure(
    batch: IngestedBatch,
    submission: Submission,
    target: TargetZoo | None,
    evaluators: EvaluatorPool,
    measured: dict[str, Figures],
) -> None:
    """Put figures and how they were measured into rows that have none."""
    for row_index, row in enumerate(batch.rows):
        evaluation = _evaluation(row, submission, target)
        (figures,) = evaluators.measure(_checkpoint(batch, row_index), evaluation)
        if facts := evaluators.facts(evaluation):
            row["extra"] = {**row["extra"], EVALUATION_KEY: facts}
        if figures is None:
            continue
        measured[row["id"]] = figures
        if row.get("test_accuracy") is None:
            row.update({name: value for name, value in figures.items() if np.isfinite(value)})
            row["extra"][EVALUATION_KEY]["test_set"] = evaluators.digest(evaluation)


def _checkpoint(batch: IngestedBatch, row_index: int) -> dict[str, NDArray[Any]]:
    return {name: array[row_index : row_index + 1] for name, array in batch.weights.items()}


def _evaluation(row: Row, submission: Submission, target: TargetZoo | None) -> Evaluation | None:
    """Return how a row is evaluated: as the contribution says, else the row, else the zoo's rows of the same recipe."""
    if submission.evaluation is not None:
        return submission.evaluation
    evaluation = evaluation_of(row["extra"], row.get("dataset"))
    if evaluation is None and target is not None and isinstance(recipe := row.get("recipe"), str):
        evaluation = evaluation_of_recipe(target.zoo, recipe)
    return evaluation


@dataclass(frozen=True)
class _NetworkOptions:
    """The network of the checkpoints and the inputs that it is measured on: options of ``contribute``."""

    module: str | Factory | None
    data: str | Path | None
    own: Labelled | None

    def evaluators(self, arch: Architecture) -> EvaluatorPool:
        """Return the evaluators of networks of this architecture."""
        return EvaluatorPool(arch, self.module, self.data, self.own)


@checked
def contribute(
    files: Sequence[str | Path],
    *,
    to: str,
    card: str | Path | Submission,
    map: str | Path | Mapping[str, str] | None = None,
    module: str | Factory | None = None,
    data: str | Path | None = None,
    inputs: str | Path | None = None,
    new: str | Path | None = None,
    dry_run: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
    progress: StageProgress | None = None,
) -> Contribution:
    """Make a part of untrusted checkpoints and open a pull request with it.

    Files are read as data, in a process of their own. Their names, shapes and dtypes are brought to the zoo's, their
    accuracy is measured where the test set and the forward function are available, and everything is checked that
    ``review`` will check. Where a check fails nothing is uploaded.

    Parameters
    ----------
    files
        files of safetensors, torch.save or numpy.savez, whatever they are called, one state dict or several in each, or
        K stacked; or zoos. Where several have the same name, their folders tell them apart.
    to
        ``org/zoo``. Where there is no such zoo yet and the contribution has a table ``[zoo]``, a new one is made and
        published, which needs a token that may write.
    card
        contribution.toml; every key is explained in cards/template/contribution.toml.
    map
        further old and new names, or a TOML file with them.
    module
        ``FILE.py:NAME`` of your own, called without arguments for the network; by default the forward function of
        ``ckptzoo.archs`` that the zoo names. Its tensors have the names of the zoo, or those of the files where that
        decides between proposals of names. The file is executed on this machine and not uploaded.
    data
        folder of test sets; by default that of ``CKPTZOO_DATA``.
    inputs
        a ``.npz`` file of your own test set, as the networks take it: arrays ``inputs`` (N, ...) and ``targets`` (N,),
        labels from 0. All accuracies are measured on it; by default on the test set that rows name.
    new
        folder of a new zoo; by default the repository's name here. It stays, unless a check fails; where it could not
        be published the same contribution again carries on from it.
    dry_run
        do everything but the upload; the part stays in a folder.
    endpoint, token
        by default those of huggingface_hub.
    retry_policy
        how long to go on asking.
    progress
        called with the stage, how much of it is done, and how much there is.

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

    Examples
    --------
    >>> made = ckptzoo.contribute(["net.safetensors"], to="lab/optunets", card="contribution.toml")
    >>> made.status, made.number
    ('proposed', 1)
    """
    submission = card if isinstance(card, Submission) else Submission.from_toml(card)
    ingestor = Ingestor(submission, {**submission.names, **_names_table(map)})
    paths = _check_paths(files)
    network = _NetworkOptions(module, data, None if inputs is None else read_labelled(inputs))
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(to)
    listing = client.find(repo)
    if listing is None or layout.ZOO not in listing.files:
        if listing is not None and layout.COLLECTION in listing.files:
            step = "Contribute to a repository of one zoo; a collection grows when its owner pushes it again."
            raise ZooError(Problem(repo, "repository", "one zoo", "a collection", step))
        if submission.zoo is None:
            raise new_zoo.missing_zoo_error(repo)
        return _publish_new_zoo(repo, ingestor, paths, network, new, dry_run, client, token, progress)
    # ids of a zoo's builders have no slash, so that no contribution takes one that its owner will want
    ingestor.namespace = _namespace(client, submission, dry_run=dry_run)
    target = TargetZoo(open_target(client, repo, listing))
    folder = Path(tempfile.mkdtemp(prefix="ckptzoo-contribution-")) / target.zoo.name
    keep = False
    try:
        contribution = _build_and_check(folder, ingestor, paths, network, target, repo, progress)
        contribution = _with_status(contribution, client, repo, target, listing)
        if contribution.status == "dry run" and not dry_run:
            return _open_pull_request(contribution, client, repo, listing, submission, progress)
        keep = contribution.status == "dry run"
        return contribution if keep else replace(contribution, folder=None)
    finally:
        if not keep:
            shutil.rmtree(folder.parent, ignore_errors=True)


def _namespace(client: Client, submission: Submission, *, dry_run: bool) -> str:
    """Return the start of ids and members, before a slash: the account's name, which reviews ask for.

    A dry run without a token uses the name of the card instead.
    """
    try:
        return client.whoami().name.lower()
    except HubError:
        if not dry_run:
            raise
        return submission.namespace


def _build_and_check(
    folder: Path,
    ingestor: Ingestor,
    paths: list[Path],
    network: _NetworkOptions,
    target: TargetZoo | None,
    repo: str,
    progress: StageProgress | None,
) -> Contribution:
    """Build the part and check it; the documents of an existing zoo are written first, those of a new one exist."""
    if target is not None:
        write_documents(target, folder)
    arch = ckptzoo.append(folder).arch
    evaluators = network.evaluators(arch)
    reading = None if progress is None else partial(progress, "reading")
    built = build_part(folder, ingestor, paths, arch, target, evaluators, reading)
    if ingestor.problems:
        raise misfit(ingestor, arch, network.module)
    if built.part is None:
        raise SpecError(Problem(repo, "files", "checkpoints", "none", "Name some files."))
    if target is not None:
        built.part = rename_part(folder, built.part, target.next_sequence)
    report = run_checks(folder, target, evaluators, measured=built.measured, progress=progress)
    files = [path for path in (folder / layout.PARTS / built.part).iterdir() if path.is_file()]
    return Contribution(
        repository=repo,
        zoo=folder.name if target is None else target.zoo.name,
        part=f"{layout.PARTS}/{built.part}",
        nbytes=sum(path.stat().st_size for path in files),
        entries=report.entries,
        checks=report.checks,
        notes=built.summaries(built.notes),
        left_out=built.summaries(built.left_out),
        license=ingestor.submission.license,
        source=ingestor.submission.defaults.get("source", ""),
        folder=folder,
        options=evaluators.options,
    )


def _joined(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems, with one for all files that have the same."""
    locations: dict[Problem, list[str]] = {}
    for problem in problems:
        locations.setdefault(replace(problem, location=""), []).append(problem.location)
    return [
        replace(problem, location=", ".join(files[:4]) + (f" and {len(files) - 4:,} more" if len(files) > 4 else ""))
        for problem, files in locations.items()
    ]


def misfit(ingestor: Ingestor, arch: Architecture, module: str | Factory | None) -> SpecError:
    """Describe what is wrong with files that do not fit, and the table of names that keeps the outputs, if any."""
    problems = _joined(ingestor.problems)
    if ingestor.misnamed is None:
        return SpecError(problems)
    state, proposals = ingestor.misnamed
    differences = None if module is None else output_differences(arch, module, state, proposals)
    if differences is None:
        return NamesError(problems, proposals)
    right = [names for names, difference in zip(proposals, differences, strict=True) if difference < SAME_OUTPUTS]
    got = ", ".join(f"{difference:.2g}" for difference in differences)
    step = (
        f"Add the table [names] to contribution.toml, and leave --module out.\n{names_table(right[0])}" if right else ""
    )
    step = step or "Write a table [names] by hand, or bring the files to a zoo of their own architecture."
    what = "largest difference from the outputs of the module, by table of names"
    outputs = Problem("contribution", what, f"one below {SAME_OUTPUTS:g}", got, step)
    return NamesError([outputs, *problems], right or proposals)


def _with_status(
    contribution: Contribution, client: Client, repo: str, target: TargetZoo, listing: RevisionListing
) -> Contribution:
    """Set status ``merged`` or ``open`` where the same checkpoints exist, ``refused`` if a check failed."""
    assert contribution.folder is not None
    units = set(ckptzoo.open(contribution.folder).column("unit").to_pylist())
    if units <= target.units:
        return replace(contribution, status="merged")
    if not contribution.passed:
        return replace(contribution, status="refused")
    # A part's name ends in the first digits of its digest; a pull request may have it under another number.
    own_part = _only_part(contribution)
    for item in client.pull_requests.listed(repo):
        listing_of_request = client.find(repo, item.revision) if item.revision is not None else None
        for name, stored in {} if listing_of_request is None else listing_of_request.files.items():
            # [7:15] are the eight digits behind "sha256:"
            is_same_part = name not in listing.files and name.endswith(f"-{own_part.digest[7:15]}/{layout.INDEX}")
            if is_same_part and stored.size == (contribution.folder / contribution.part / layout.INDEX).stat().st_size:
                return replace(contribution, status="open", number=item.number, url=item.url)
    check = check_open_requests(client, repo, ckptzoo.open(contribution.folder), target)
    checked = replace(contribution, checks=(*contribution.checks, check))
    return checked if checked.passed else replace(checked, status="refused")


def _only_part(contribution: Contribution) -> Part:
    assert contribution.folder is not None
    (part,) = ckptzoo.open(contribution.folder).contents.raw.parts
    return part


def _open_pull_request(
    contribution: Contribution,
    client: Client,
    repo: str,
    listing: RevisionListing,
    submission: Submission,
    progress: StageProgress | None,
) -> Contribution:
    assert contribution.folder is not None
    folder = contribution.folder / contribution.part
    files: dict[str, Path | bytes] = {f"{contribution.part}/{path.name}": path for path in sorted(folder.iterdir())}
    request = client.pull_requests.propose(
        repo,
        files,
        title=result.title(contribution, submission),
        description=result.description(contribution, submission),
        parent=listing.commit,
        progress=None if progress is None else partial(progress, "uploading"),
    )
    return replace(contribution, status="proposed", number=request.number, url=request.url, folder=None)


def _publish_new_zoo(
    repo: str,
    ingestor: Ingestor,
    paths: list[Path],
    network: _NetworkOptions,
    new: str | Path | None,
    dry_run: bool,
    client: Client,
    token: str | None,
    progress: StageProgress | None,
) -> Contribution:
    """Make a new zoo and publish it; one that was made before and could not be published is published as it is."""
    declared = ingestor.submission.zoo
    if network.own is not None and declared is not None and declared.input_shape is None:
        shape = tuple(network.own.inputs.shape[1:])
        ingestor.submission = replace(ingestor.submission, zoo=replace(declared, input_shape=shape))
    folder = Path(new if new is not None else repo.rpartition("/")[2]).absolute()
    if dry_run and new is None:
        folder = Path(tempfile.mkdtemp(prefix="ckptzoo-contribution-")) / folder.name
    try:
        new_zoo.check_folder(folder, repo)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # beside the folder, because rename(2) works within one file system alone
        with tempfile.TemporaryDirectory(prefix=".ckptzoo-contribution-", dir=folder.parent) as temporary:
            new_folder = Path(temporary, folder.name)
            notes = new_zoo.create_zoo(new_folder, ingestor.submission, ingestor, paths, network.module)
            contribution = _build_and_check(new_folder, ingestor, paths, network, None, repo, progress)
            contribution = replace(contribution, folder=folder, notes=(*notes, *contribution.notes))
            if not contribution.passed:
                return replace(contribution, status="refused", folder=None)
            new_zoo.install_zoo(new_folder, folder, repo)
    finally:
        # a temporary folder that was made for it, unless the zoo is in it now
        if dry_run and new is None and not folder.exists():
            shutil.rmtree(folder.parent)
    if dry_run:
        return contribution
    uploading = None if progress is None else partial(progress, "uploading")
    try:
        push(folder, repo, endpoint=client.endpoint, token=token, retry_policy=client.retry_policy, progress=uploading)
    except HubError as error:
        problem = error.problem
        more = f"The new zoo is in {folder}; the same command carries on from there, as does ckptzoo push "
        more += f"{quote(str(folder))} {repo}."
        raise HubError(replace(problem, next_step=f"{problem.next_step} {more}")) from error
    return replace(contribution, status="published", url=client.page(repo))


def _check_paths(files: Sequence[str | Path]) -> list[Path]:
    paths = [Path(file) for file in files]
    problems = [
        Problem(str(path), "file", "a file of checkpoints or a zoo's folder", "nothing", "Correct its name.")
        for path in paths
        if not path.exists()
    ]
    places = [path.absolute() for path in paths]
    repeated = sorted({place for place in places if places.count(place) > 1})
    problems += [Problem(str(place), "file", "each once", "it twice", "Leave one out.") for place in repeated]
    if problems or not paths:
        raise SpecError(problems or [Problem("contribution", "files", "at least one", "none", "Name some files.")])
    return paths


def _names_table(map: str | Path | Mapping[str, str] | None) -> Mapping[str, str]:
    """Return names from a mapping, or from a TOML file of ``"old" = "new"``, under ``[names]`` or not."""
    if map is None or isinstance(map, Mapping):
        return map or {}
    step = 'Write lines such as "old.weight" = "new.weight".'
    content = read_toml(map, expected="names in TOML", step=step)
    names = content.get("names", content)
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
        raise SpecError(Problem(str(map), "names", "old and new ones, as texts", "others", step))
    return names

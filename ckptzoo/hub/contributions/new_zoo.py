"""A new zoo from the first contribution of an architecture."""

import filecmp
from pathlib import Path

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import Problem, SpecError, ZooError
from ckptzoo.hub.contributions.evaluation import Factory, factory_of, traced
from ckptzoo.hub.contributions.ingest import Ingestor, with_aliases
from ckptzoo.hub.contributions.matching import renamed, unwrapped
from ckptzoo.hub.contributions.submission import NewZoo, Submission
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.card import CARDS, Card
from ckptzoo.schema.symmetry import Symmetry

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def create_zoo(
    folder: Path, submission: Submission, taker: Ingestor, paths: list[Path], module: str | Factory | None
) -> Architecture:
    """Make a zoo without checkpoints for the architecture of the first file.

    Parameters
    ----------
    folder : of the new zoo.
    submission : names the zoo, and its forward function where ``ckptzoo.archs`` has it.
    module : a network of one's own, whose symmetries are traced where no others are known.

    Raises
    ------
    SpecError
        The forward function is not one of ``ckptzoo.archs``, or the file's tensors make no architecture.
    """
    assert submission.zoo is not None
    arch, symmetry = _architecture(submission.zoo, taker, paths)
    if symmetry is None and (factory := factory_of(arch, module)) is not None:
        symmetry = traced(arch, factory)
    told = submission.zoo
    card = Card(
        name=told.name,
        summary=told.summary,
        license=submission.license,
        dataset=submission.defaults.get("dataset", ""),
        authors=told.authors or (submission.defaults["contributor"],),
        citation=told.citation,
        tags=told.tags,
    )
    ckptzoo.create(folder, arch=arch, card=card, symmetry=symmetry)
    return arch


def _architecture(told: NewZoo, taker: Ingestor, paths: list[Path]) -> tuple[Architecture, Symmetry | None]:
    if told.forward is not None:
        declared = archs.architecture(told.forward)
        if told.architecture is None:
            return declared, archs.symmetry(told.forward)
        named = Architecture(told.architecture, declared.tensors, declared.forward, declared.input_shape)
        return named, archs.symmetry(told.forward)
    for path in paths:
        if (path / "zoo.json").is_file():
            zoo = ckptzoo.open(path)
            return zoo.arch, zoo.symmetry
    first = next((item for _, item in taker.read(paths[:1])), None)
    if first is None:
        raise SpecError(taker.problems or [Problem("contribution", "files", "checkpoints", "none", "Name some files.")])
    state = with_aliases(first)
    names, _ = renamed(tuple(state), taker.names)
    shared = {old: unwrapped(new) for old, new in names.items()}
    if len(set(shared.values())) < len(shared):
        shared = names
    tied: dict[str, list[str]] = {}
    for name, other in first.aliases.items():
        tied.setdefault(other, []).append(shared[name])
    tensors = tuple(
        Tensor(
            shared[name],
            tuple(array.shape),
            array.dtype.name,
            "buffer" if name.rpartition(".")[2] in _BUFFERS else "parameter",
            tuple(tied.get(name, ())),
        )
        for name, array in first.tensors.items()
        if name not in first.aliases
    )
    return Architecture(told.architecture or told.name, tensors, None, told.input_shape), None


def refuse(folder: Path, repository: str) -> None:
    """Raise where a new zoo cannot be in a folder: it must be empty, not be there, or be a zoo."""
    if folder.exists() and not folder.is_dir():
        raise _occupied(folder, repository, "a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / layout.ZOO).is_file():
        raise _occupied(folder, repository, "one with other files")


def install_zoo(fresh: Path, folder: Path, repository: str) -> None:
    """Put a new zoo in its place; where it is there from an earlier time it stays as it is, cards and variants too.

    Raises
    ------
    SpecError
        There is another zoo, or this one with other checkpoints.
    """
    if not folder.exists() or not any(folder.iterdir()):
        fresh.rename(folder)
        return
    refuse(folder, repository)
    own, theirs = (
        {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (fresh, folder)
    )
    own -= {*CARDS}
    others = {name for name in theirs - own if name.startswith(f"{layout.PARTS}/")}
    if others or not own <= theirs or filecmp.cmpfiles(fresh, folder, sorted(own), shallow=False)[0] != sorted(own):
        raise _occupied(folder, repository, "another zoo")


def _occupied(folder: Path, repository: str, got: str) -> SpecError:
    step = "Name another folder with --new, or remove this one"
    step += f"; ckptzoo push {folder} {repository} publishes the zoo in it." if got == "another zoo" else "."
    expected = "none, an empty one, or one with this zoo from before"
    return SpecError(Problem(str(folder), "folder of the new zoo", expected, got, step))


def needed(repository: str) -> ZooError:
    """Why nothing can be made without a name for the zoo."""
    return ZooError(
        f"{repository}: the zoo: expected one that is there and may be seen, got none. Check the name; to begin a new "
        "zoo with these checkpoints, add a table [zoo] with a name to contribution.toml."
    )

"""``create_zoo`` and ``install_zoo``: a new zoo from the first contribution of an architecture."""

import filecmp
from pathlib import Path
from shlex import quote

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import Problem, SpecError, ZooError
from ckptzoo.hub.contributions.evaluation import Factory, network_factory, trace_symmetry
from ckptzoo.hub.contributions.ingest import Ingestor
from ckptzoo.hub.contributions.matching import rename, without_wrappers
from ckptzoo.hub.contributions.submission import NewZoo, Submission
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor, kind_of
from ckptzoo.schema.card import CARDS, Card
from ckptzoo.schema.symmetry import Symmetry


def create_zoo(
    folder: Path, submission: Submission, ingestor: Ingestor, paths: list[Path], module: str | Factory | None
) -> tuple[str, ...]:
    """Make a zoo without checkpoints for the architecture of the first file; return notes for its owner.

    ``submission`` names the zoo, and its forward function where ``ckptzoo.archs`` has it; ``module`` is the user's own
    network, whose symmetries are traced where no others are known. Raises ``SpecError`` where the forward function is
    unknown, or the file's tensors make no architecture.
    """
    assert submission.zoo is not None
    arch, symmetry = _architecture(submission.zoo, ingestor, paths)
    notes: tuple[str, ...] = ()
    if symmetry is None and (factory := network_factory(arch, module)) is not None:
        symmetry, reason = trace_symmetry(arch, factory)
        notes = () if symmetry is not None else (f"the zoo has no symmetry table: {reason}",)
    new_zoo = submission.zoo
    card = Card(
        name=new_zoo.name,
        summary=new_zoo.summary,
        license=submission.license,
        dataset=submission.defaults.get("dataset", ""),
        authors=new_zoo.authors or (submission.defaults["contributor"],),
        citation=new_zoo.citation,
        tags=new_zoo.tags,
    )
    ckptzoo.create(folder, arch=arch, card=card, symmetry=symmetry)
    return notes


def _architecture(new_zoo: NewZoo, ingestor: Ingestor, paths: list[Path]) -> tuple[Architecture, Symmetry | None]:
    if new_zoo.forward is not None:
        declared = archs.architecture(new_zoo.forward)
        if new_zoo.architecture is None:
            return declared, archs.symmetry(new_zoo.forward)
        named = Architecture(new_zoo.architecture, declared.tensors, declared.forward, declared.input_shape)
        return named, archs.symmetry(new_zoo.forward)
    for path in paths:
        if (path / layout.ZOO).is_file():
            zoo = ckptzoo.open(path)
            return zoo.arch, zoo.symmetry
    state = next((item for _, item in ingestor.read_states(paths[:1])), None)
    if state is None:
        raise SpecError(
            ingestor.problems or [Problem("contribution", "files", "checkpoints", "none", "Name some files.")]
        )
    arrays = state.tensors
    names, _ = rename(tuple(arrays), ingestor.names)
    new_names = {old: without_wrappers(new) for old, new in names.items()}
    if len(set(new_names.values())) < len(new_names):
        new_names = names
    tied: dict[str, list[str]] = {}
    for name, other in state.aliases.items():
        tied.setdefault(other, []).append(new_names[name])
    tensors = tuple(
        Tensor(
            new_names[name],
            tuple(array.shape),
            array.dtype.name,
            kind_of(name, array.dtype.name, arrays),
            tuple(tied.get(name, ())),
        )
        for name, array in state.tensors.items()
        if name not in state.aliases
    )
    return Architecture(new_zoo.architecture or new_zoo.name, tensors, None, new_zoo.input_shape), None


def check_folder(folder: Path, repository: str) -> None:
    """Raise where a new zoo cannot be in a folder: it must be empty, not be there, or be a zoo."""
    if folder.exists() and not folder.is_dir():
        raise _occupied_error(folder, repository, "a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / layout.ZOO).is_file():
        raise _occupied_error(folder, repository, "one with other files")


def install_zoo(new_folder: Path, folder: Path, repository: str) -> None:
    """Put a new zoo in its place; the same zoo from an earlier attempt stays as it is, cards and variants included.

    Raises ``SpecError`` where there is another zoo, or this one with other checkpoints.
    """
    if not folder.exists() or not any(folder.iterdir()):
        # rename(2) replaces an empty folder
        new_folder.rename(folder)
        return
    check_folder(folder, repository)
    new_files, present = (
        {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (new_folder, folder)
    )
    new_files -= {*CARDS}
    others = {name for name in present - new_files if name.startswith(f"{layout.PARTS}/")}
    if (
        others
        or not new_files <= present
        # shallow=True would take files of the same size and time for equal
        or filecmp.cmpfiles(new_folder, folder, sorted(new_files), shallow=False)[0] != sorted(new_files)
    ):
        raise _occupied_error(folder, repository, "another zoo")


def _occupied_error(folder: Path, repository: str, got: str) -> SpecError:
    step = "Name another folder with --new, or remove this one"
    step += (
        f"; ckptzoo push {quote(str(folder))} {repository} publishes the zoo in it." if got == "another zoo" else "."
    )
    expected = "none, an empty one, or one with this zoo from before"
    return SpecError(Problem(str(folder), "folder of the new zoo", expected, got, step))


def missing_zoo_error(repository: str) -> ZooError:
    """Return the error where there is no such zoo, and the contribution names no new one."""
    step = (
        "Check the name; to begin a new zoo with these checkpoints, add a table [zoo] with a name to contribution.toml."
    )
    return ZooError(Problem(repository, "the zoo", "one that is there and may be seen", "none", step))

"""What a zoo's folder holds, read and checked cheaply: every byte that opening reads, and every file's size."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, UnknownNameError, ZooError
from ckptzoo.format import snapshot
from ckptzoo.format.checks import geometry_problems
from ckptzoo.format.files import Files
from ckptzoo.format.part import Part, decode_index, decode_rows, filled_rows
from ckptzoo.format.snapshot import Snapshot
from ckptzoo.format.tree import INDEX_SCHEMA, LazyTable, Tree, empty_tree
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import REFETCH, Document, Identity, unseal
from ckptzoo.schema.symmetry import Symmetry

MAX_DOCUMENT = 64 * 2**20
"""Bytes of a sealed document that are read at most."""


@dataclass(frozen=True)
class Contents:
    """A zoo as it was when it was read."""

    files: Files
    identity: Identity
    architecture: Architecture
    symmetry: Symmetry | None
    raw: Tree
    retracted: Tree
    derived_parts: dict[str, tuple[str, ...]]
    snapshot: Snapshot | None = field(repr=False)
    _trees: dict[str, Tree] = field(default_factory=dict, repr=False)

    @property
    def root(self) -> Path:
        """The zoo's folder.

        Raises
        ------
        ZooError
            It is not on this machine.
        """
        if self.files.here is None:
            step = f"Fetch it first: ckptzoo pull {self.files.name} -o FOLDER."
            expected, got = "a folder on this machine", "one on another machine"
            raise ZooError(Problem(self.files.name, "the zoo", expected, got, step))
        return self.files.here

    @property
    def revision(self) -> str:
        """Digest of the ordered list of raw parts and tombstones."""
        return snapshot.revision_of(part.digest for tree in (self.raw, self.retracted) for part in tree.parts)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of derived trees that are not predictions."""
        return tuple(name for name in self.derived_parts if layout.set_name(name) is None)

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """The ids of all raw rows; IntegrityError where one is repeated, or a unit was written twice."""
        _require_none(duplicate_problems(self.files, self.raw))
        return self.raw.rows["id"]

    def derived(self, name: str) -> Tree:
        """The parts under ``derived/<name>`` that were there at opening, read on first use."""
        if name not in self.derived_parts:
            raise UnknownNameError(self.files.name, "variant", name, [layout.RAW, *self.variants])
        if name not in self._trees:
            tree = f"{layout.DERIVED}/{name}"
            self._trees[name] = read_tree(self.files, tree, self.derived_parts[name], self.snapshot)
            _require_none(geometry_problems(self.files, self.architecture, self.symmetry, self._trees[name]))
        return self._trees[name]

    def kind(self, name: str) -> str | None:
        """What the parts under ``derived/<name>`` are; from a snapshot's footer where one covers them."""
        kind = None if self.snapshot is None or name in self._trees else self.snapshot.kind(f"{layout.DERIVED}/{name}")
        return self.derived(name).kind if kind is None else kind


def read_contents(files: Files) -> Contents:
    """Read a zoo.

    Raises
    ------
    IntegrityError
        With what is wrong, as far as it can be seen without reading the shards, and of a remote zoo without reading
        all rows.
    """
    identity, architecture, symmetry = read_documents(files)
    trees = list_trees(files)
    newest = snapshot.newest(files, trees)
    raw = read_tree(files, layout.PARTS, trees.pop(layout.PARTS, ()), newest)
    tombstones = trees.pop(f"{layout.DERIVED}/{layout.RETRACTED}", ())
    retracted = read_tree(files, f"{layout.DERIVED}/{layout.RETRACTED}", tombstones, newest)
    _require_none(geometry_problems(files, architecture, symmetry, raw))
    derived = {tree.removeprefix(f"{layout.DERIVED}/"): names for tree, names in trees.items()}
    contents = Contents(files, identity, architecture, symmetry, raw, retracted, derived, newest)
    if files.here is not None:
        _ = contents.ids  # checked at once where reading them costs no request
    return contents


def read_documents(files: Files) -> tuple[Identity, Architecture, Symmetry | None]:
    """zoo.json and the documents it names, their digests checked."""
    if files.size(layout.ZOO) is None:
        step = "Make a zoo with ckptzoo.create, or name another folder."
        raise IntegrityError(Problem(files.name, layout.ZOO, "a file", "none; this is not a zoo", step))
    names = [name for name in (layout.ZOO, layout.ARCHITECTURE, layout.SYMMETRY) if files.size(name) is not None]
    read = dict(zip(names, files.read_many(names, max_bytes=MAX_DOCUMENT), strict=True))

    def document(name: str) -> tuple[Document, str, str]:
        location = f"{files.name}/{name}"
        data = read[name] if name in read else files.read(name, max_bytes=MAX_DOCUMENT)
        return *unseal(data, location=location), location

    content, _, location = document(layout.ZOO)
    identity = Identity.from_json(content, location=location)
    content, digest, location = document(layout.ARCHITECTURE)
    if digest != identity.architecture:
        raise IntegrityError(Problem(location, "digest named in zoo.json", identity.architecture, digest, REFETCH))
    architecture = Architecture.from_json(content, location=location)
    # a zoo that was made without a table may get one later, which zoo.json then does not name
    if identity.symmetry is None and layout.SYMMETRY not in read:
        return identity, architecture, None
    content, digest, location = document(layout.SYMMETRY)
    if identity.symmetry not in (None, digest):
        raise IntegrityError(Problem(location, "digest named in zoo.json", str(identity.symmetry), digest, REFETCH))
    symmetry = Symmetry.from_json(content, location=location)
    symmetry.check(architecture)
    return identity, architecture, symmetry


def list_trees(files: Files) -> dict[str, tuple[str, ...]]:
    """Every tree of the zoo with the names of its parts in order; other names and hidden ones are left out."""
    trees = {layout.PARTS: _parts(files, layout.PARTS)}
    for name in files.listed(layout.DERIVED):
        folder = f"{layout.DERIVED}/{name}"
        if layout.DERIVED_NAME.fullmatch(name) and (names := _parts(files, folder)):
            trees[folder] = names
    return trees


def _parts(files: Files, folder: str) -> tuple[str, ...]:
    return tuple(name for name in files.listed(folder) if layout.PART_NAME.fullmatch(name))


def read_tree(files: Files, tree: str, names: tuple[str, ...], known: Snapshot | None) -> Tree:
    """Read a tree's parts, from the snapshot where it has them.

    Parameters
    ----------
    tree : ``parts`` or ``derived/<name>``.
    names : of the parts, in order.
    """
    parts, rows, indices = list[Part](), list[LazyTable](), list[LazyTable]()
    # of use where it covers the first parts; later ones come from their folders
    if known is not None and known.parts.get(tree) == names[: len(known.parts.get(tree, ()))] != ():
        covered = known.tree(tree)
        parts, rows, indices = list(covered.parts), [covered.rows], [covered.blocks]
    later = names[len(parts) :]
    paths = [f"{tree}/{name}/{file}" for name in later for file in (layout.INDEX, layout.METADATA)]
    data = dict(zip(paths, files.read_many(paths), strict=True))
    for name in later:
        path = f"{tree}/{name}"
        location = f"{files.name}/{path}"
        part, index = decode_index(data[f"{path}/{layout.INDEX}"], tree, name, location=f"{location}/{layout.INDEX}")
        stored = decode_rows(data[f"{path}/{layout.METADATA}"], part, location=f"{location}/{layout.METADATA}")
        rows.append(LazyTable.of(filled_rows(stored, part, location=location)))
        numbers = pa.repeat(pa.scalar(len(parts), pa.int32()), len(index))
        indices.append(LazyTable.of(index.append_column(INDEX_SCHEMA.field("part"), numbers)))
        parts.append(part)
    if not parts:
        return empty_tree(layout.RETRACTED if tree == f"{layout.DERIVED}/{layout.RETRACTED}" else layout.RAW)
    kinds = {str(part.facts.get("kind")) for part in parts}
    if len(kinds) > 1:
        got = ", ".join(sorted(kinds))
        raise IntegrityError(Problem(f"{files.name}/{tree}", "kinds of its parts", "one", got, REFETCH))
    return Tree(tuple(parts), LazyTable.joined(rows), LazyTable.joined(indices))


def duplicate_problems(files: Files, raw: Tree) -> list[Problem]:
    """Checkpoint ids that are repeated, and units that were written by two parts."""
    problems: list[Problem] = []
    step = "Remove the part that came later."
    ids = raw.rows["id"]
    if len(ids.unique()) != len(ids):
        counts = ids.combine_chunks().value_counts()
        twice = [item["values"].as_py() for item in counts if item["counts"].as_py() > 1]
        got = f"{len(twice)} twice, such as {twice[0]!r}"
        problems.append(Problem(files.name, "ids", "each id once", got, step))
    if len(raw.parts) > 1:
        first, owner = 0, dict[str, str]()
        for part in raw.parts:
            units = raw.rows["unit"].slice(first, part.rows).drop_null().unique().to_pylist()
            first += part.rows
            for unit in units:
                if owner.setdefault(unit, part.name) != part.name:
                    got = f"in {owner[unit]} and {part.name}"
                    problems.append(Problem(files.name, f"unit {unit!r}", "written once", got, step))
    return problems


def _require_none(problems: list[Problem]) -> None:
    if problems:
        raise IntegrityError(problems)

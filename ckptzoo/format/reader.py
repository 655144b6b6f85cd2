"""What a zoo's folder holds, read and checked cheaply: every byte that opening reads, and every file's size."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, UnknownNameError
from ckptzoo.format import snapshot, table
from ckptzoo.format.geometry import geometry_problems
from ckptzoo.format.part import Part, read_part, read_rows
from ckptzoo.format.snapshot import Snapshot
from ckptzoo.format.tree import INDEX_SCHEMA, Tree, empty_tree
from ckptzoo.spec import layout
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.document import REFETCH, Document, unseal
from ckptzoo.spec.identity import Identity
from ckptzoo.spec.symmetry import Symmetry


@dataclass(frozen=True)
class Contents:
    """A zoo as it was when it was read."""

    root: Path
    identity: Identity
    architecture: Architecture
    symmetry: Symmetry | None
    raw: Tree
    retracted: Tree
    derived_parts: dict[str, tuple[str, ...]]
    snapshot: Snapshot | None = field(repr=False)
    _trees: dict[str, Tree] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "snapshot": None}

    @property
    def revision(self) -> str:
        """Digest of the ordered list of raw parts and tombstones."""
        return snapshot.revision_of(part.digest for tree in (self.raw, self.retracted) for part in tree.parts)

    def derived(self, name: str) -> Tree:
        """The parts under ``derived/<name>`` that were there at opening, read on first use."""
        if name not in self.derived_parts:
            raise UnknownNameError(self.root.name, "variant", name, [layout.RAW, *self.derived_parts])
        if name not in self._trees:
            where = f"{layout.DERIVED}/{name}"
            self._trees[name] = read_tree(self.root, where, self.derived_parts[name], self.snapshot)
            _refuse(geometry_problems(self.root, self.architecture, self.symmetry, self._trees[name]))
        return self._trees[name]


def read_contents(root: Path) -> Contents:
    """Read a zoo's folder.

    Raises
    ------
    IntegrityError
        With what is wrong, as far as it can be seen without reading the shards.
    """
    identity, architecture, symmetry = read_documents(root)
    trees = list_trees(root)
    known = snapshot.newest(root, trees)
    raw = read_tree(root, layout.PARTS, trees.pop(layout.PARTS, ()), known)
    tombs = trees.pop(f"{layout.DERIVED}/{layout.RETRACTED}", ())
    retracted = read_tree(root, f"{layout.DERIVED}/{layout.RETRACTED}", tombs, known)
    _refuse([*geometry_problems(root, architecture, symmetry, raw), *repeated(root, raw)])
    derived = {tree.removeprefix(f"{layout.DERIVED}/"): names for tree, names in trees.items()}
    return Contents(root, identity, architecture, symmetry, raw, retracted, derived, known)


def read_documents(root: Path) -> tuple[Identity, Architecture, Symmetry | None]:
    """zoo.json and the documents it names, their digests checked."""
    if not (root / layout.ZOO).is_file():
        step = "Make a zoo with ckptzoo.create, or name another folder."
        raise IntegrityError(Problem(str(root), layout.ZOO, "a file", "none; this is not a zoo", step))
    content, _ = _document(root, layout.ZOO)
    identity = Identity.from_json(content, where=f"{root.name}/{layout.ZOO}")
    content, digest = _document(root, layout.ARCHITECTURE)
    where = f"{root.name}/{layout.ARCHITECTURE}"
    if digest != identity.architecture:
        raise IntegrityError(Problem(where, "digest named in zoo.json", identity.architecture, digest, REFETCH))
    architecture = Architecture.from_json(content, where=where)
    if identity.symmetry is None and not (root / layout.SYMMETRY).exists():
        return identity, architecture, None
    content, digest = _document(root, layout.SYMMETRY)
    where = f"{root.name}/{layout.SYMMETRY}"
    if identity.symmetry not in (None, digest):
        raise IntegrityError(Problem(where, "digest named in zoo.json", str(identity.symmetry), digest, REFETCH))
    table_of_groups = Symmetry.from_json(content, where=where)
    table_of_groups.check(architecture)
    return identity, architecture, table_of_groups


def _document(root: Path, name: str) -> tuple[Document, str]:
    where = f"{root.name}/{name}"
    return unseal(table.read_bytes(root / name, where=where, max_bytes=64 * 2**20), where=where)


def list_trees(root: Path) -> dict[str, tuple[str, ...]]:
    """Every tree of the zoo with the names of its parts in order; other names and hidden ones are left out."""
    found = {layout.PARTS: _parts(root / layout.PARTS)}
    if (root / layout.DERIVED).is_dir():
        for folder in sorted((root / layout.DERIVED).iterdir()):
            if layout.DERIVED_NAME.fullmatch(folder.name) and (names := _parts(folder)):
                found[f"{layout.DERIVED}/{folder.name}"] = names
    return found


def _parts(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    return tuple(sorted(path.name for path in folder.iterdir() if layout.PART_NAME.fullmatch(path.name)))


def read_tree(root: Path, tree: str, names: tuple[str, ...], known: Snapshot | None) -> Tree:
    """Read a tree's parts, from the snapshot where it has them."""
    parts, rows, indices = list[Part](), list[pa.Table](), list[pa.Table]()
    if known is not None and known.parts.get(tree) == names[: len(known.parts.get(tree, ()))] != ():
        held = known.tree(tree)
        parts, rows, indices = list(held.parts), [held.metadata], [held.index]
    for name in names[len(parts) :]:
        part, index = read_part(root, tree, name)
        rows.append(read_rows(root, part))
        number = pa.repeat(pa.scalar(len(parts), pa.int32()), len(index))
        indices.append(index.append_column(INDEX_SCHEMA.field("part"), number))
        parts.append(part)
    if not parts:
        return empty_tree()
    kinds = {str(part.facts.get("kind")) for part in parts}
    if len(kinds) > 1:
        where = f"{root.name}/{tree}"
        raise IntegrityError(Problem(where, "kinds of its parts", "one", ", ".join(sorted(kinds)), REFETCH))
    return Tree(tuple(parts), pa.concat_tables(rows).combine_chunks(), pa.concat_tables(indices).combine_chunks())


def repeated(root: Path, raw: Tree) -> list[Problem]:
    """Checkpoint ids that stand twice, and units that were written by two parts."""
    problems: list[Problem] = []
    ids = raw.metadata["id"]
    if len(ids.unique()) != len(ids):
        counts = ids.combine_chunks().value_counts()
        twice = [item["values"].as_py() for item in counts if item["counts"].as_py() > 1]
        step = "Remove the part that came later."
        problems.append(Problem(root.name, "ids", "each id once", f"{len(twice)} twice, such as {twice[0]!r}", step))
    if len(raw.parts) > 1:
        at, owner = 0, dict[str, str]()
        for part in raw.parts:
            units = raw.metadata["unit"].slice(at, part.rows).drop_null().unique().to_pylist()
            at += part.rows
            for unit in units:
                if owner.setdefault(unit, part.name) != part.name:
                    found = f"in {owner[unit]} and {part.name}"
                    step = "Remove the part that came later."
                    problems.append(Problem(root.name, f"unit {unit!r}", "written once", found, step))
    return problems


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise IntegrityError(problems)

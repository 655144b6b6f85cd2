"""The contents of a zoo's folder, read and checked cheaply: documents, indices and sizes at once, rows by column."""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, UnknownNameError, ZooError
from ckptzoo.format import limits as bounds
from ckptzoo.format import snapshot, table
from ckptzoo.format.checks import RowLimits, geometry_problems, require_bytes, row_limits
from ckptzoo.format.files import Files, typed
from ckptzoo.format.part import Part, decode_index, kind_of, read_columns, require_room
from ckptzoo.format.referenced_files import ReferencedFiles
from ckptzoo.format.references import References, require_references
from ckptzoo.format.snapshot import Snapshot
from ckptzoo.format.sources import followed, followed_servers, remembered_files
from ckptzoo.format.table import array_of, array_of_values, row_of
from ckptzoo.format.tree import INDEX_SCHEMA, LazyTable, Read, Tree, empty_tree, places_of, selected
from ckptzoo.lazy_names import lazy_module
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import REFETCH, Document, Identity, canonical, unseal
from ckptzoo.schema.equivalence import largest_allowed
from ckptzoo.schema.metadata import DIFFERENCES, FIGURES, KINDS
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.text import counted, excerpt

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = lazy_module("pyarrow.compute")

_MAX_REVISIONS = 2**20
"""The number of newest revisions with which a requested one is compared (about 2 s)."""
_NAMED = 5
"""The number of checkpoints that a message names."""
_TOGETHER = 16 * 2**20
"""Bytes of tables that are read before the first of them is checked, unless one alone has more."""
_T = TypeVar("_T")
_FINITE = "finite"
"""The column that is filled when weights in files of others were read."""


@dataclass(frozen=True)
class FailedChecks:
    """Checkpoints of a variant whose outputs differ from those of the raw weights by more than rounding.

    ``largest`` is the largest of their differences, infinite where outputs are not finite; ``allowed`` is the largest
    difference that a right variant may have.
    """

    ids: tuple[str, ...]
    largest: float
    allowed: float

    def problem(self, zoo: str, variant: str) -> Problem:
        """The problem of the failed checks, for messages."""
        named = ", ".join(self.ids[:_NAMED]) + (
            f" and {len(self.ids) - _NAMED:,} more" if len(self.ids) > _NAMED else ""
        )
        got = f"up to {self.largest:.2g} in {counted(len(self.ids), 'checkpoint')}: {named}"
        step = (
            "Do not use this variant: its weights are another function. Check that the table and the network of the "
            "check are those of the zoo, and make the zoo again with the right ones."
        )
        expected = f"outputs that differ from the raw ones by {self.allowed:.2g} at most"
        return Problem(f"{zoo}/{layout.DERIVED}/{variant}", "equivalence check", expected, got, step)


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
    _figures: dict[tuple[str, str], tuple[NDArray[np.int64], pa.Array]] = field(default_factory=dict, repr=False)

    @property
    def root(self) -> Path:
        """The zoo's folder.

        Raises ``ZooError`` if it is not on this machine.
        """
        if self.files.here is None:
            step = f"Fetch it first: ckptzoo pull {typed(self.files)} -o FOLDER."
            expected, got = "a folder on this machine", "one on another machine"
            raise ZooError(Problem(self.files.name, "the zoo", expected, got, step))
        return self.files.here

    @property
    def revision(self) -> str:
        """Digest of the ordered list of raw parts and tombstones."""
        return snapshot.revision_of(part.digest for tree in (self.raw, self.retracted) for part in tree.parts)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of derived trees other than predictions and figures that were measured later."""
        names = (name for name in self.derived_parts if layout.set_name(name) is None)
        return tuple(name for name in names if name not in layout.ROWS_ALONE)

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids of all raw rows; IntegrityError where one is repeated, or a unit was written twice."""
        self.check_ids()
        return self.raw.rows["id"]

    def check_ids(self) -> None:
        """Raise IntegrityError where an id is repeated or a unit was written twice; found out on the first call."""
        _ = self._ids_are_sound

    @cached_property
    def _ids_are_sound(self) -> bool:
        names = tuple(part.name for part in self.raw.parts)
        # a snapshot that says so was made of parts whose ids were checked
        if self.snapshot is None or names != self.snapshot.checked_parts[: len(names)]:
            _require_none(duplicate_problems(self.files, self.raw))
        return True

    def derived(self, name: str) -> Tree:
        """The parts under ``derived/<name>`` that were there at opening, read on first use."""
        if name not in self.derived_parts:
            raise UnknownNameError(self.files.name, "variant", name, [layout.RAW, *self.variants])
        if name not in self._trees:
            tree = f"{layout.DERIVED}/{name}"
            limits = row_limits(self.architecture, self.symmetry)
            self._trees[name] = read_tree(self.files, tree, self.derived_parts[name], self.snapshot, limits=limits)
            _require_none(geometry_problems(self.files, self.architecture, self.symmetry, self._trees[name]))
        return self._trees[name]

    @cached_property
    def references(self) -> References:
        """Where the raw weights are in files of others; of a zoo that refers to some."""
        return References(self.files, self.raw, self.architecture)

    @cached_property
    def referenced_files(self) -> ReferencedFiles:
        """The reader of those files, as far as they may be followed on this machine."""
        follow, names = getattr(self.files, "follow", None), self.references.sources
        folders = followed(self.files.here, follow, names)
        servers = followed_servers(self.files.here, follow, names, getattr(self.files, "hub", (None, None)))
        accepted = remembered_files(self.files.here)
        return ReferencedFiles(self.references, folders, str(self.files.here or self.files.name), servers, accepted)

    @cached_property
    def block_digests(self) -> dict[str, str]:
        """The digests of weights in files of others by the ids of checkpoints, the first that were recorded of each."""
        known = dict[str, str]()
        if layout.DIGESTS in self.derived_parts:
            for _, run in self.derived(layout.DIGESTS).rows.runs(["id", "blocks"]):
                for name, digests in zip(run["id"].to_pylist(), run["blocks"].to_pylist(), strict=True):
                    known.setdefault(name, digests or "")
        return known

    @property
    def measured(self) -> Tree:
        """Figures that were measured when their checkpoints were already in the zoo."""
        if layout.MEASURED not in self.derived_parts:
            return empty_tree(layout.MEASURED)
        return self.derived(layout.MEASURED)

    def columns(self, tree: Tree, names: Sequence[str], rows: NDArray[np.int64] | None = None) -> pa.Table:
        """Some columns of a tree's rows; figures that rows lack are those that were measured later, the last of each.

        ``tree`` is the tree of raw parts, or of a variant; ``rows`` are positions in it, by default all.
        """
        table = tree.rows.select(names) if rows is None else tree.rows.take(names, rows)
        return self._with_later(tree, table, np.arange(len(tree.rows)) if rows is None else rows)

    def runs(self, tree: Tree, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield some columns of all rows of a tree, as ``columns`` and a bounded number at a time, after the first."""
        if not self._has_later:
            yield from tree.rows.runs(names)
            return
        for start, run in tree.rows.runs(names):
            yield start, self._with_later(tree, run, np.arange(start, start + len(run)))

    def row(self, position: int) -> dict[str, Any]:
        """One row of the raw tree, as ``columns``."""
        row = self.raw.rows.row(position)
        missing = [name for name in (*FIGURES, _FINITE) if name in row and row[name] is None]
        if missing and self._has_later:
            row.update(row_of(self.columns(self.raw, missing, np.array([position])), 0))
        return row

    @property
    def _has_later(self) -> bool:
        """Whether there are figures that were measured when their checkpoints were in the zoo."""
        return layout.MEASURED in self.derived_parts or layout.DIGESTS in self.derived_parts

    def _with_later(self, tree: Tree, table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
        """A table of some rows of a tree with the figures that were measured later where it lacks them."""
        if not self._has_later or not tree.parts:
            return table
        for at, name in enumerate(table.column_names):
            if name not in FIGURES and (name != _FINITE or tree is not self.raw):
                continue
            places, values = self._later(tree, name)
            column = table[name].combine_chunks()
            found = np.searchsorted(places, rows)
            found[found == len(places)] = 0
            lacking = column.is_null().to_numpy(zero_copy_only=False)
            lacking &= places[found] == rows if len(places) else False
            if lacking.any():
                arguments = [column, array_of(lacking), values.take(array_of(found[lacking]))]
                table = table.set_column(at, table.schema.field(at), pc.call_function("replace_with_mask", arguments))
        return table

    def _later(self, tree: Tree, name: str) -> tuple[NDArray[np.int64], pa.Array]:
        """Rows of a tree of which a figure was measured later, ascending, and the last figure of each."""
        key = tree.parts[0].tree, name
        if key not in self._figures:
            others = self.measured
            if name == _FINITE:
                there = layout.DIGESTS in self.derived_parts
                others = self.derived(layout.DIGESTS) if there else empty_tree(layout.DIGESTS)
            later = others.rows.select(["id", "unit", name])
            digests = array_of_values([part.digest for part in tree.parts], pa.string())
            of_tree = pc.call_function("is_in", [later["unit"]], pc.SetLookupOptions(digests))
            later = later.filter(pc.call_function("and", [of_tree, later[name].is_valid()]))
            places = places_of(later["id"], tree.rows["id"])
            places, last = np.unique(places[::-1], return_index=True)
            values = later[name].combine_chunks().take(array_of(len(later) - 1 - last))
            own = places >= 0
            self._figures[key] = places[own], values.filter(array_of(own))
        return self._figures[key]

    def stated(self, figure: str) -> frozenset[str]:
        """Ids of contributed checkpoints whose figure is what their row states: nobody measured it in the zoo.

        Ids of contributed checkpoints have the name of an account, before a slash.
        """
        rows = self.raw.rows
        if all(run["contributor"].null_count == len(run) for _, run in rows.runs(["contributor"])):
            return frozenset()
        ids = set[str]()
        for _, run in rows.runs(["id", "contributor", figure]):
            contributed = pc.call_function("and", [run["contributor"].is_valid(), run[figure].is_valid()])
            ids.update(name for name in run["id"].filter(contributed).to_pylist() if "/" in name)
        if layout.MEASURED in self.derived_parts:
            later = self.measured.rows.select(["id", figure])
            ids.difference_update(later["id"].filter(later[figure].is_valid()).to_pylist())
        return frozenset(ids)

    def failed_checks(self, name: str) -> "FailedChecks":
        """The checkpoints of a variant that are other functions than the raw ones, by the checks that are stored.

        That follows from the figures and ``ckptzoo.schema.equivalence.largest_allowed``: nothing is stored of it.
        Retracted checkpoints do not count.
        """
        tree, columns = self.derived(name), ["certified", *DIFFERENCES]
        kept = [column for column in columns if column in tree.rows.schema.names]
        if tree.kind != "variant" or kept != columns:
            return FailedChecks((), 0.0, 0.0)
        rows = self.columns(tree, columns)
        precisions = rows["certified"].to_pylist()
        limits = {item: largest_allowed(self.architecture, item) for item in set(precisions) if item is not None}
        failed: list[tuple[int, float]] = []
        for column in DIFFERENCES:
            differences = rows[column].to_pylist()
            for at, (precision, difference) in enumerate(zip(precisions, differences, strict=True)):
                if precision is not None and difference is not None and difference > limits[precision]:
                    failed.append((at, difference))
        if not failed:
            return FailedChecks((), 0.0, 0.0)
        gone = set(self.retracted.rows["id"].to_pylist())
        failed.sort()
        ids = tree.rows.take(["id"], np.array([at for at, _ in failed]))["id"].to_pylist()
        named = [(id, figure) for id, (_, figure) in zip(ids, failed, strict=True)]
        standing = {id: figure for id, figure in named if id not in gone}
        return FailedChecks(tuple(standing), max(standing.values(), default=0.0), max(limits.values()))

    def kind(self, name: str) -> str | None:
        """The kind of the parts under ``derived/<name>``; from a snapshot's footer where one covers them."""
        kind = None if self.snapshot is None or name in self._trees else self.snapshot.kind(f"{layout.DERIVED}/{name}")
        return self.derived(name).kind if kind is None else kind


def read_contents(files: Files, revision: str | None = None) -> Contents:
    """Read a zoo, or the first parts and tombstones of it that a revision names; no rows, which are read on demand.

    Raises an ``IntegrityError`` that lists what is wrong, as far as it can be seen without shards and rows, and
    ``ZooError`` if no first parts and tombstones have this revision; the message names the nearest that some have.
    """
    identity, architecture, symmetry = read_documents(files)
    trees, limits = list_trees(files), row_limits(architecture, symmetry)
    newest = snapshot.newest(files, trees)
    raw = read_tree(files, layout.PARTS, trees.pop(layout.PARTS, ()), newest, limits=limits)
    tombstones = trees.pop(gone := f"{layout.DERIVED}/{layout.RETRACTED}", ())
    retracted = read_tree(files, gone, tombstones, newest, limits=limits)
    if revision is not None:
        parts, tombs = counts_at(files, revision, raw, retracted)
        if (parts, tombs) != (len(raw.parts), len(retracted.parts)):
            first, early = ([part.name for part in tree.parts] for tree in (raw, retracted))
            raw = read_tree(files, layout.PARTS, tuple(first[:parts]), newest, limits=limits)
            retracted = read_tree(files, gone, tuple(early[:tombs]), newest, limits=limits)
    _require_none(geometry_problems(files, architecture, symmetry, raw))
    require_references(raw.parts, wanted=identity.references, location=files.name)
    derived = {tree.removeprefix(f"{layout.DERIVED}/"): names for tree, names in trees.items()}
    return Contents(files, identity, architecture, symmetry, raw, retracted, derived, newest)


def contents_of(files: Files, trees: Mapping[str, Tree]) -> Contents:
    """A zoo of trees that were read, and checked, before; its documents are read."""
    raw = trees.get(layout.PARTS, empty_tree())
    own = {path.removeprefix(f"{layout.DERIVED}/"): tree for path, tree in trees.items() if path != layout.PARTS}
    retracted = own.pop(layout.RETRACTED, empty_tree(layout.RETRACTED))
    names = {name: tuple(part.name for part in tree.parts) for name, tree in own.items()}
    return Contents(files, *read_documents(files), raw, retracted, names, None, own)


def counts_at(files: Files, revision: str, raw: Tree, retracted: Tree) -> tuple[int, int]:
    """How many parts and tombstones a zoo had at a revision; of several that fit, the newest.

    A revision is the sha256 of a JSON list, so that the hash of what a list begins with serves all that begin so: the
    time is that of parts times tombstones, and bounded.
    """
    digests, tombstones = ([canonical(part.digest) for part in tree.parts] for tree in (raw, retracted))
    if revision == snapshot.revision_of(part.digest for tree in (raw, retracted) for part in tree.parts):
        return len(digests), len(tombstones)  # that is asked for most
    # where there are many of both, as many of the newest of each
    tried_parts = min(len(digests) + 1, _MAX_REVISIONS // min(len(tombstones) + 1, math.isqrt(_MAX_REVISIONS)))
    tried_tombs = min(len(tombstones) + 1, _MAX_REVISIONS // tried_parts)
    first_parts, first_tombs = len(digests) + 1 - tried_parts, len(tombstones) + 1 - tried_tombs
    nearest, shared, counts = "", -1, (0, 0)
    of_parts = hashlib.sha256(b"[" + b",".join(digests[:first_parts]))
    for parts in range(first_parts, len(digests) + 1):
        if parts > first_parts:
            of_parts.update(digests[parts - 1] if parts == 1 else b"," + digests[parts - 1])
        of_both = of_parts.copy()
        of_both.update((b"," if parts and first_tombs else b"") + b",".join(tombstones[:first_tombs]))
        for tombs in range(first_tombs, len(tombstones) + 1):
            if tombs > first_tombs:
                of_both.update(tombstones[tombs - 1] if parts + tombs == 1 else b"," + tombstones[tombs - 1])
            whole = of_both.copy()
            whole.update(b"]")
            found = f"sha256:{whole.hexdigest()}"
            if not found.startswith(revision[: max(shared, 0)]):
                continue
            same = _shared_length(found, revision)
            if (same, tombs, parts) > (shared, *counts[::-1]):
                nearest, shared, counts = found, same, (parts, tombs)
    if nearest == revision:
        return counts
    held = f"{counted(counts[0], 'part')} and {counted(counts[1], 'part')} of tombstones"
    step = f"The nearest is {nearest}, of the first {held}. Where parts were lost or came between, no revision is left."
    raise ZooError(Problem(files.name, "revision", "one that its first parts have", repr(revision)[:90], step))


def _shared_length(one: str, other: str) -> int:
    """The number of first characters that are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def read_documents(files: Files) -> tuple[Identity, Architecture, Symmetry | None]:
    """zoo.json and the documents it names, their digests checked."""
    if files.size(layout.ZOO) is None:
        step = "Make a zoo with ckptzoo.create, or name another folder."
        if files.size(layout.COLLECTION) is not None:
            step = (
                "It is a collection of zoos: ckptzoo.open_collection opens it, ckptzoo.push_collection publishes it. "
                "Or name one of its folders."
            )
        elif files.here is not None and (names := zoo_folders(files.here)):
            step = f"It holds zoos: name one of them, such as {files.here / names[0]}; ckptzoo info lists them."
        raise IntegrityError(Problem(files.name, layout.ZOO, "a file", "none; this is not a zoo", step))
    names = [name for name in (layout.ZOO, layout.ARCHITECTURE, layout.SYMMETRY) if files.size(name) is not None]
    read = dict(zip(names, files.read_many(names, max_bytes=bounds.MAX_DOCUMENT), strict=True))

    def document(name: str) -> tuple[Document, str, str]:
        location = f"{files.name}/{name}"
        data = read[name] if name in read else files.read(name, max_bytes=bounds.MAX_DOCUMENT)
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
    shape = content.pop("input_shape", None)
    symmetry = Symmetry.from_json(content, location=location)
    symmetry.check(architecture)
    return identity, architecture if shape is None else _shaped(architecture, shape, location), symmetry


def _shaped(architecture: Architecture, shape: Any, location: str) -> Architecture:
    """The architecture with the input shape that was declared with the table, because it is never rewritten."""
    if not isinstance(shape, list) or architecture.input_shape is not None:
        expected = "a list of sizes" if architecture.input_shape is None else f"none: {layout.ARCHITECTURE} has it"
        raise IntegrityError(Problem(location, "input_shape", expected, excerpt(shape, 80), REFETCH))
    return replace(architecture, input_shape=tuple(cast(list[Any], shape)))


def zoo_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder that are zoos, in order."""
    return sorted(path.parent.name for path in folder.glob(f"*/{layout.ZOO}"))


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


def read_tree(files: Files, tree: str, names: tuple[str, ...], known: Snapshot | None, *, limits: RowLimits) -> Tree:
    """Read the indices of a tree's parts, from the snapshot where it has them; columns of rows are read on demand.

    ``tree`` is ``parts`` or ``derived/<name>``; ``limits`` are the zoo's, so that nothing with more rows is decoded.
    """
    parts, pieces, indices = list[Part](), list[tuple[int, Read]](), list[tuple[int, Read]]()
    # of use where it covers the first parts; later ones come from their folders
    if known is not None and known.parts.get(tree) == names[: len(known.parts.get(tree, ()))] != ():
        parts = list(known.tree(tree, blocks_a_row=limits.blocks).parts)
        pieces = [
            (count, partial(_from_either, read, partial(read_columns, files, tuple(own))))
            for count, read, own in known.pieces(tree, parts)
        ]
        copied = known.index_pieces(tree, parts, blocks_a_row=limits.blocks)
        ends = np.cumsum([0, *(count for count, _ in copied)]).tolist()
        again = partial(_index_columns, files, tuple(parts), limits, ends[-1])
        indices += [
            (count, partial(_from_either, read, partial(again, slice(stop - count, stop))))
            for (count, read), stop in zip(copied, ends[1:], strict=True)
        ]
    own = list[Part]()
    for part, index in _decoded(files, tree, names[len(parts) :], limits, first=len(parts)):
        indices.append((len(index), partial(selected, index)))
        own.append(part)
    parts += own
    if not parts:
        return empty_tree(layout.RETRACTED if tree == f"{layout.DERIVED}/{layout.RETRACTED}" else layout.RAW)
    kinds = {str(part.facts.get("kind")) for part in parts}
    if len(kinds) > 1:
        got = ", ".join(sorted(kinds))
        raise IntegrityError(Problem(f"{files.name}/{tree}", "kinds of its parts", "one", got, REFETCH))
    sizes = [require_room(files, part) for part in own]
    pieces += [
        (sum(part.rows for part in group), partial(read_columns, files, tuple(group)))
        for group in _together(own, sizes)
    ]
    single = [(part.rows, partial(read_columns, files, (part,))) for part in parts]
    file_bytes = sum(files.size(f"{part.path}/{layout.METADATA}") or 0 for part in parts)
    schema = table.schema_of(KINDS[kinds.pop()])
    rows = LazyTable(schema, pieces, single, location=f"{files.name}/{tree}", file_bytes=file_bytes)
    index_bytes = sum(files.size(f"{part.path}/{layout.INDEX}") or 0 for part in own)
    index_bytes += 0 if known is None else known.nbytes
    blocks = LazyTable(INDEX_SCHEMA, indices, location=f"{files.name}/{tree}", file_bytes=index_bytes)
    return Tree(tuple(parts), rows, blocks)


def _decoded(
    files: Files, tree: str, names: tuple[str, ...], limits: RowLimits, *, first: int
) -> Iterator[tuple[Part, pa.Table]]:
    """Yield parts with their indices from their folders, each with its position, that of the first being ``first``."""
    nbytes = file_bytes = 0
    for number, (name, data) in enumerate(_indices(files, tree, names), first):
        location = f"{files.name}/{tree}/{name}/{layout.INDEX}"
        part, index = decode_index(data, tree, name, location=location, blocks_a_row=limits.blocks)
        kind_of(part, location=location.removesuffix(f"/{layout.INDEX}"))
        require_bytes(files, part, index, limits.nbytes)
        nbytes += index.get_total_buffer_size()
        limit = bounds.indices_in(file_bytes := file_bytes + len(data))
        _require_room(f"{files.name}/{tree}", "size in memory of all indices", nbytes, limit)
        numbers = array_of(np.full(len(index), number, np.int32))
        yield part, index.append_column(INDEX_SCHEMA.field("part"), numbers)


def _index_columns(
    files: Files, parts: Sequence[Part], limits: RowLimits, count: int, rows: slice, names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield columns of some of the ``count`` index rows of parts from their folders.

    Raises ``IntegrityError`` before anything is yielded if they have other rows or are other parts.
    """
    found = list[pa.Table]()
    tree = parts[0].tree
    for known, (part, index) in zip(
        parts, _decoded(files, tree, tuple(part.name for part in parts), limits, first=0), strict=True
    ):
        if part != known:
            location = f"{files.name}/{part.path}/{layout.INDEX}"
            raise IntegrityError(Problem(location, "digest", known.digest, part.digest, REFETCH))
        found.append(index.select(names))
    if (total := sum(map(len, found))) != count:
        raise IntegrityError(Problem(f"{files.name}/{tree}", "index rows", str(count), str(total), REFETCH))
    yield pa.concat_tables(found)[rows]


def _from_either(read: Read, read_parts: Read, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns from a snapshot, and from the parts that it covers where the snapshot is damaged or gone."""
    done = 0
    try:
        for piece in read(names):
            done += len(piece)
            yield piece
            del piece  # not held while the next is read
    except IntegrityError as error:
        try:
            for piece in read_parts(names):
                if done < len(piece):
                    yield piece.slice(done)
                done = max(0, done - len(piece))
        except ZooError:
            raise error from None


def _indices(files: Files, tree: str, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield names of parts with their indices; some are read together, the next after these were checked."""
    paths = {name: f"{tree}/{name}/{layout.INDEX}" for name in names}
    sizes = [files.size(path) or 0 for path in paths.values()]
    _require_room(f"{files.name}/{tree}", "size of all indices", sum(sizes), bounds.MAX_FILE)
    for group in _together(names, sizes):
        yield from zip(group, files.read_many([paths[name] for name in group]), strict=True)


def _together(items: Sequence[_T], sizes: Sequence[int]) -> Iterator[list[_T]]:
    """Yield runs of items of up to ``_TOGETHER`` bytes, and of one item at least."""
    group, nbytes = list[_T](), 0
    for item, size in zip(items, sizes, strict=True):
        if group and nbytes + size > _TOGETHER:
            yield group
            group, nbytes = [], 0
        group.append(item)
        nbytes += size
    if group:
        yield group


def _require_room(location: str, what: str, nbytes: int, limit: int) -> None:
    """Raise IntegrityError where a tree's tables take more bytes together than a limit."""
    if nbytes > limit:
        step = "Write what is to come into another zoo; a writer refuses this."
        raise IntegrityError(Problem(location, what, f"at most {limit} bytes", str(nbytes), step))


def read_trees(
    files: Files, known: Snapshot | None = None, named: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, Tree]:
    """Every tree that has parts, by its path; from the snapshot where it has them.

    ``named`` has the names of the parts of each tree, by default all.
    """
    _, architecture, symmetry = read_documents(files)
    limits = row_limits(architecture, symmetry)
    listed = (list_trees(files) if named is None else named).items()
    return {tree: read_tree(files, tree, names, known, limits=limits) for tree, names in listed if names}


def duplicate_problems(files: Files, raw: Tree) -> list[Problem]:
    """Checkpoint ids that are repeated, and units that were written by two parts."""
    return _duplicates(files.name, raw)


def ids_differ(raw: Tree) -> bool:
    """Whether no id is repeated, and no unit was written by two parts."""
    return not _duplicates("", raw)


def _duplicates(location: str, raw: Tree) -> list[Problem]:
    """Problems of ids and units that are repeated."""
    problems: list[Problem] = []
    step = layout.SET_ASIDE
    if twice := _shared(lambda: _ids(raw)):
        got = f"{len(twice)} twice, such as {next(iter(twice))!r}"
        problems.append(Problem(location, "ids", "each id once", got, step))
    for unit, owners in _shared(lambda: _units(raw)).items() if len(raw.parts) > 1 else ():
        first, *others = (raw.parts[owner].name for owner in owners)
        for name in others:
            problems.append(Problem(location, f"unit {unit!r}", "written once", f"in {first} and {name}", step))
    return problems


def _shared(owned: Callable[[], Iterator[tuple[NDArray[np.int64], list[str]]]]) -> dict[str, list[int]]:
    """The texts that several owners have, with the first owners of each.

    ``owned`` goes through all texts, each time in the same order, with the owners of each; the owners of one text
    ascend. Texts are compared by their hashes, of which ten million take 80 MB, and only those whose hashes are equal
    by themselves: other texts may have the same.
    """
    hashes = np.concatenate(
        [np.empty(0, np.int64), *(np.fromiter(map(hash, texts), np.int64, len(texts)) for _, texts in owned())]
    )
    hashes.sort()
    suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    found = dict[str, list[int]]()
    for own, texts in owned() if suspects else ():
        for owner, text in zip(own.tolist(), texts, strict=True):
            if hash(text) in suspects:
                known = found.setdefault(text, [])
                if (not known or known[-1] != owner) and len(known) < _NAMED:
                    known.append(owner)
    return {text: known for text, known in found.items() if len(known) > 1}


def _ids(raw: Tree) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
    """Every id; its owner is its row."""
    for start, run in raw.rows.runs(["id"]):
        yield np.arange(start, start + len(run)), run["id"].to_pylist()


def _units(raw: Tree) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
    """The units of every part, which is their owner."""
    starts = np.cumsum([0, *(part.rows for part in raw.parts)])
    for start, run in raw.rows.runs(["unit"]):
        stop = start + len(run)
        cuts = [start, *starts[(starts > start) & (starts < stop)].tolist(), stop]
        for low, high in itertools.pairwise(cuts):
            owner = int(np.searchsorted(starts, low, side="right")) - 1
            units = run["unit"].slice(low - start, high - low).drop_null().unique().to_pylist()
            yield np.full(len(units), owner), units


def _require_none(problems: list[Problem]) -> None:
    if problems:
        raise IntegrityError(problems)

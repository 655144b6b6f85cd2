"""Snapshots: rows and index of many parts in one file, so that a zoo of many parts opens fast.

A snapshot is derived and never needed. Its name holds the number of parts it covers, the number of bytes in its tail
and their sha256. The tail is what opening needs: the raw index without the blocks' digests, and the footer, which holds
the sha256 of every other column. So a reader fetches the tail, and later the columns that it is asked for, and each
is checked. A reader uses the newest valid snapshot and reads the parts after it from their folders.
"""

import hashlib
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import table
from ckptzoo.format.files import Files, check_span
from ckptzoo.format.part import part_of
from ckptzoo.format.tree import DIGEST, INDEX_SCHEMA, LazyTable, Tree
from ckptzoo.schema.documents import REFETCH, Document, digest_of
from ckptzoo.schema.layout import PARTS, SNAPSHOT_NAME, SNAPSHOTS, Span
from ckptzoo.schema.metadata import KINDS, LEAST, Column, columns_of

_MAGIC = b"PAR1"
"""The first bytes of a Parquet file, which readers check before the footer."""
INDEX = "index:"
"""The prefix of the names of the index's columns; those of rows begin with their kind."""
_STEP = "Remove it and run ckptzoo compact ZOO --index."


class _Chunk(NamedTuple):
    """One column of one row group: its bytes in the file, and their sha256."""

    start: int
    stop: int
    sha256: bytes


class Snapshot:
    """One snapshot file whose tail was checked; columns are read, and checked, when they are asked for.

    ``name`` is the snapshot's. Raises ``IntegrityError`` if the bytes are not those that the name promises, or they
    cannot be read.
    """

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._path = files, f"{SNAPSHOTS}/{name}"
        self.location = f"{files.name}/{self._path}"
        self._tail = self._read_tail(name)
        self._buffer: bytearray | None = None
        self._fetched: set[_Chunk] = set()
        self._file: pq.ParquetFile | None = None
        # Arrow's reader keeps the ranges of one read at a time: with two at once it says that it lost some
        self._reading = threading.RLock()
        file, facts = table.open_table(self._contents(), location=self.location)
        if facts.get("version") not in (1, 2):
            raise IntegrityError(Problem(self.location, "footer", "version 1 or 2", str(facts)[:120], REFETCH))
        self._rest = str(facts.get("rest"))
        self._trees = _trees(facts.get("trees"), file.num_row_groups, location=self.location)
        self._chunks = _chunks(facts.get("chunks", {}), self._size - len(self._tail), location=self.location)

    def _read_tail(self, name: str) -> bytes:
        """The tail; the whole file for a snapshot of version 1, which had none."""
        match = SNAPSHOT_NAME.fullmatch(name)
        assert match is not None
        size, digest = self._files.size(self._path) or 0, match[3]
        tail = int(match[2] or size)
        if not 0 < tail <= size <= table.MAX_FILE:
            expected = f"{tail} to {table.MAX_FILE} bytes"
            raise IntegrityError(Problem(self.location, "size", expected, str(size), _STEP))
        self._size = size
        span = Span(self._path, size - tail, size, bytes.fromhex(digest))
        try:
            return self._files.spans([span])[0]
        except IntegrityError as error:
            problem = error.problems[0]
            raise IntegrityError(Problem(self.location, DIGEST, problem.expected, problem.got, _STEP)) from error

    def __getstate__(self) -> dict[str, Any]:
        # on another machine the bytes are not sent along, because they can be read again
        remote = self._files.here is None
        dropped = {"_buffer": None, "_fetched": set()} if remote else {}
        return {**self.__dict__, "_file": None, "_reading": None, **dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reading = threading.RLock()

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Every tree it covers, with the names of the parts in order."""
        return {tree: tuple(part["name"] for part in item["parts"]) for tree, item in self._trees.items()}

    def kind(self, tree: str) -> str | None:
        """The kind of a tree's parts; None for a tree that it does not cover."""
        return str(self._trees[tree]["kind"]) if tree in self._trees else None

    def tree(self, name: str, *, blocks_a_row: int | None = None) -> Tree:
        """Rows and index of one tree.

        ``blocks_a_row`` is the maximum of index rows for one checkpoint, where the architecture is known; an index with
        more is refused before it is decoded.
        """
        item = self._trees[name]
        parts = tuple(
            part_of(
                name,
                part["name"],
                {"version": 1, "digest": part["digest"], "rows": part["rows"], "facts": part["facts"]},
                location=self.location,
            )
            for part in item["parts"]
        )
        kind = item["kind"]
        schema = table.schema_of(KINDS[kind])
        rows = self._rows(item["metadata"], f"{kind}:", schema, LEAST[kind])
        index = self._rows(item["index"], INDEX, INDEX_SCHEMA, len(INDEX_SCHEMA))
        if len(rows) != sum(part.rows for part in parts):
            raise IntegrityError(
                Problem(self.location, f"rows of {name}", "those of its parts", str(len(rows)), REFETCH)
            )
        # as in decode_index: rows of different blocks have different digests, of 32 bytes each
        limit = table.FREE_ROWS + self._size
        if blocks_a_row is not None:
            limit = min(limit, len(rows) * blocks_a_row)
        if len(index) > limit:
            expected = f"at most {limit}"
            raise IntegrityError(Problem(self.location, f"index rows of {name}", expected, str(len(index)), _STEP))
        return Tree(parts, rows, index)

    def check(self) -> None:
        """Read and check every byte."""
        before = self._size - len(self._tail)
        if not before:
            return
        whole, buffer = self._files.read(self._path), self._contents()
        chunks = sorted(set(self._chunks.values()))
        for start, stop, sha256 in chunks:
            check_span(data := whole[start:stop], Span(self._path, start, stop, sha256), location=self.location)
            buffer[start:stop] = data
        self._fetched.update(chunks)
        cuts = [0, *itertools.chain.from_iterable((chunk.start, chunk.stop) for chunk in chunks), before]
        digest = hashlib.sha256(outside(whole, cuts)).hexdigest()
        if digest != self._rest:
            raise IntegrityError(Problem(self.location, f"{DIGEST} of the other bytes", self._rest, digest, _STEP))

    def _rows(self, group: int, prefix: str, schema: pa.Schema, least: int) -> LazyTable:
        file = self._opened()
        try:
            count = file.metadata.row_group(group).num_rows
            stored = set(file.schema_arrow.names)
        except (*table.UNREADABLE, IndexError, TypeError) as error:
            raise IntegrityError(
                Problem(self.location, "row groups", "those of its trees", str(group), _STEP)
            ) from error
        own = [name for name in schema.names if prefix + name in stored]
        known = pa.schema(list(schema)[: max(least, len(own))])
        return LazyTable(schema, [(count, partial(self._columns, group, prefix, schema, known))])

    def _columns(self, group: int, prefix: str, schema: pa.Schema, known: pa.Schema, names: Sequence[str]) -> pa.Table:
        """Columns of a row group; those that an older snapshot lacks are null."""
        own = [name for name in names if name in known.names]
        fields = pa.schema([known.field(name) for name in own])
        prefixed = [prefix + name for name in own]
        with self._reading:
            self._fetch((group, name) for name in prefixed)
            try:
                file, data = self._opened(), self._contents()
                stored = table.read_bounded(data, file, location=self.location, group=group, columns=prefixed)
                stored = stored.select(prefixed).rename_columns(own).cast(fields)
            except (*table.UNREADABLE, KeyError) as error:
                problem = Problem(self.location, "table", "the columns of docs/format.md", str(error)[:160], REFETCH)
                raise IntegrityError(problem) from error
        count = file.metadata.row_group(group).num_rows
        columns = [stored[name] if name in own else pa.nulls(count, schema.field(name).type) for name in names]
        return pa.Table.from_arrays(columns, schema=pa.schema([schema.field(name) for name in names]))

    def _fetch(self, wanted: Iterable[tuple[int, str]]) -> None:
        """Put the bytes of columns, given by row group and name, where they are in the file."""
        buffer = self._contents()
        chunks = {chunk for key in wanted if (chunk := self._chunks.get(key)) is not None} - self._fetched
        spans = [Span(self._path, chunk.start, chunk.stop, chunk.sha256) for chunk in sorted(chunks)]
        for span, data in zip(spans, self._files.spans(spans), strict=True):
            buffer[span.start : span.stop] = data
        self._fetched |= chunks

    def _contents(self) -> bytearray:
        """The file with what was fetched of it; the rest is zero, and costs no memory until it is written to."""
        if self._buffer is None:
            self._buffer, self._fetched = bytearray(self._size), set()
            self._buffer[: len(_MAGIC)] = _MAGIC
            self._buffer[self._size - len(self._tail) :] = self._tail
        return self._buffer

    def _opened(self) -> pq.ParquetFile:
        if self._file is None:
            self._file, _ = table.open_table(self._contents(), location=self.location)
        return self._file


def _trees(listed: Any, groups: int, *, location: str) -> dict[str, Document]:
    """The footer's entries for the trees, by name."""
    trees: dict[str, Document] = {}
    for item in listed if isinstance(listed, list) else [listed]:
        match item:
            case {"tree": str(name), "kind": str(kind), "metadata": int(rows), "index": int(index), "parts": [*parts]}:
                fits = kind in KINDS and name not in trees and 0 <= rows < groups and 0 <= index < groups
                if fits and all(_is_part(part) for part in parts):
                    trees[name] = item
                    continue
        expected = "trees, each once, with their kinds, row groups and parts"
        raise IntegrityError(Problem(location, "footer", expected, repr(item)[:120], REFETCH))
    return trees


def _is_part(item: Any) -> bool:
    match item:
        case {"name": str(), "digest": str(), "rows": int(), "facts": {}}:
            return True
    return False


def _chunks(listed: Any, end: int, *, location: str) -> dict[tuple[int, str], _Chunk]:
    """Columns before the tail, which starts at ``end``, by row group and name."""
    chunks: dict[tuple[int, str], _Chunk] = {}
    try:
        for group, columns in listed.items():
            for name, (start, nbytes, digest) in columns.items():
                if type(start) is not int or type(nbytes) is not int or not 4 <= start < start + nbytes <= end:
                    raise ValueError(f"{start} and {nbytes}")
                chunks[int(group), name] = _Chunk(start, start + nbytes, bytes.fromhex(digest))
    except (AttributeError, TypeError, ValueError) as error:
        problem = Problem(location, "columns in the footer", "[offset, bytes, sha256]", str(error)[:120], REFETCH)
        raise IntegrityError(problem) from error
    return chunks


def outside(data: bytes, cuts: list[int]) -> bytes:
    """The bytes between the columns that are listed."""
    return b"".join(data[start:stop] for start, stop in zip(cuts[::2], cuts[1::2], strict=True))


def listed(files: Files) -> list[str]:
    """Names of the snapshots of a zoo, the one that covers most parts first."""
    return sorted((name for name in files.listed(SNAPSHOTS) if SNAPSHOT_NAME.fullmatch(name)), reverse=True)


def newest(files: Files, trees: Mapping[str, tuple[str, ...]]) -> Snapshot | None:
    """The newest valid snapshot all of whose parts are there; invalid ones are for ``verify`` to report."""
    for name in listed(files):
        try:
            snapshot = Snapshot(files, name)
            if files.here is not None:
                snapshot.check()
        except IntegrityError:
            continue
        if all(set(parts) <= set(trees.get(tree, ())) for tree, parts in snapshot.parts.items()):
            return snapshot
    return None


def revision_of(digests: Iterable[str]) -> str:
    """Digest of an ordered list of parts."""
    return digest_of(list(digests))


def encode(trees: dict[str, Tree]) -> tuple[str, bytes]:
    """A snapshot of all parts of some trees: its path in the zoo, and its bytes.

    There are two row groups a tree; the raw index comes last, its digests before its other columns. The path is
    ``snapshots/000128-20817-<sha256>.parquet`` for 128 parts where the tail has 20,817 bytes and that digest.
    """
    kinds = sorted({str(tree.kind) for tree in trees.values()})
    # not the columns that only tables with matrices fill, where none does: snapshots of other zoos are as they were
    matrices = any(_fills(tree, columns_of("variant", matrices=False)) for tree in trees.values())
    written = {kind: table.schema_of(columns_of(kind, matrices=matrices)) for kind in kinds}
    fields = [pa.field(f"{kind}:{item.name}", item.type) for kind in kinds for item in written[kind]]
    index = sorted(INDEX_SCHEMA, key=lambda item: item.name != DIGEST)
    schema = pa.schema([*fields, *(pa.field(INDEX + item.name, item.type) for item in index)])
    groups: list[tuple[str, pa.Table]] = []
    listed: list[Document] = []
    for name in sorted(trees, key=lambda name: (name == PARTS, name)):
        tree = trees[name]
        parts = [
            {"name": part.name, "digest": part.digest, "rows": part.rows, "facts": part.facts} for part in tree.parts
        ]
        numbers = {"metadata": len(groups), "index": len(groups) + 1}
        listed.append({"tree": name, "kind": tree.kind, "parts": parts, **numbers})
        groups += [(f"{tree.kind}:", tree.metadata), (INDEX, tree.index)]
    wide = [_widened(rows, prefix, schema) for prefix, rows in groups]
    draft = table.encode(wide, {}, sealed=False)
    # what the footer says of the columns does not move them: a draft without it has them at the same offsets
    chunks, rest, cut = _described(draft, [prefix for prefix, _ in groups], first=INDEX + index[1].name)
    data = table.encode(wide, {"version": 2, "trees": listed, "chunks": chunks, "rest": rest}, sealed=False)
    count = sum(len(tree.parts) for tree in trees.values())
    return f"{SNAPSHOTS}/{count:06d}-{len(data) - cut}-{hashlib.sha256(data[cut:]).hexdigest()}.parquet", data


def _fills(tree: Tree, columns: Sequence[Column]) -> bool:
    """Whether the rows of a variant have values in other columns than these."""
    if tree.kind != "variant":
        return False
    others = tree.rows.select(tree.rows.schema.names[len(columns) :])
    return any(column.null_count < len(column) for column in others.columns)


def _described(draft: bytes, prefixes: list[str], *, first: str) -> tuple[dict[str, Document], str, int]:
    """Offset and digest of every column before the tail, the digest of all between them, and where the tail starts."""
    metadata = pq.read_metadata(pa.BufferReader(draft))
    chunks: dict[str, Document] = {}
    cuts = [0]
    for group, prefix in enumerate(prefixes):
        # a column chunk of Parquet starts with its dictionary page where it has one
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name = column.path_in_schema.partition(".")[0]
            start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
            if group == len(prefixes) - 1 and name == first:
                return chunks, hashlib.sha256(outside(draft, [*cuts, start])).hexdigest(), start
            if name.startswith(prefix):
                stop = start + column.total_compressed_size
                digest = hashlib.sha256(draft[start:stop]).hexdigest()
                chunks.setdefault(str(group), {})[name] = [start, stop - start, digest]
                cuts += [start, stop]
    raise AssertionError(first)


def _widened(rows: pa.Table, prefix: str, schema: pa.Schema) -> pa.Table:
    """A table as a row group of the snapshot, whose columns are those of all kinds; the others are null."""
    columns = [
        rows[item.name.removeprefix(prefix)] if item.name.startswith(prefix) else pa.nulls(len(rows), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)

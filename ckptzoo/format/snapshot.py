"""Snapshots: rows and index of many parts in one file, so that a zoo of many parts opens fast.

A snapshot is derived and never needed. Its name holds the number of parts it covers, the number of bytes in its tail
and their sha256. The tail is what opening needs: the raw index without the blocks' digests, and the footer, which holds
the sha256 of every other column. So a reader fetches the tail, and later the columns that it is asked for, and each
is checked. Rows are in groups of whole parts, so that some are written and read at a time. A reader uses the newest
snapshot whose tail is right, and reads the parts after it, and those of columns of rows or of an index that are damaged
or gone, from their folders.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import limits, table
from ckptzoo.format.durable import make_folder, naming, publish_file, regular, sweep, temporary_file
from ckptzoo.format.files import Files, check_span
from ckptzoo.format.packed import RUN_ROWS
from ckptzoo.format.part import Part, part_of
from ckptzoo.format.tree import DIGEST, INDEX_SCHEMA, LazyTable, Read, Tree, regrouped
from ckptzoo.schema.documents import REFETCH, Document, digest_of
from ckptzoo.schema.layout import PARTS, SNAPSHOT_NAME, SNAPSHOTS, Span
from ckptzoo.schema.metadata import KINDS, LEAST, Column, columns_of

_MAGIC = b"PAR1"
"""The first bytes of a Parquet file, which readers check before the footer."""
INDEX = "index:"
"""The prefix of the names of the index's columns; those of rows begin with their kind."""
_STEP = "Remove it and run ckptzoo compact ZOO --index."
_PIECE_ROWS = 2**19
"""The number of rows of a column that are read together, and from another machine by as few requests as possible."""
_CHECKED = "checked"
"""The mark in the footer that the ids were found to differ."""
_COLUMNS = "[offset, bytes, sha256], no two over the same bytes"
_INDEX_ROWS, _GROUP_BYTES = 2**20, 2**28
"""The number of index rows, and of bytes in memory of rows or of index rows, in a row group; one part alone may have
more bytes, no more than readers take."""
_CHECKED_BYTES = 16 * 2**20
"""The number of bytes between columns that are read together to be checked."""
_PLACE = 10**13 - 1
"""Takes the place of an offset and a size while the footer is written; no file is larger."""


class _Chunk(NamedTuple):
    """One column of one row group: its bytes in the file, and their sha256."""

    start: int
    stop: int
    sha256: bytes


class _Pieces(io.RawIOBase):
    """A file of which some pieces are known; the rest are zeros, and take no memory."""

    def __init__(self, size: int, pieces: Sequence[tuple[int, bytes]]) -> None:
        self._size, self._pieces, self._at = size, tuple(pieces), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        start = min(self._at, self._size)
        stop = self._size if size < 0 else min(start + size, self._size)
        found = bytearray(stop - start)
        for first, data in self._pieces:
            low, high = max(start, first), min(stop, first + len(data))
            if low < high:
                found[low - start : high - start] = memoryview(data)[low - first : high - first]
        self._at = stop
        return bytes(found)


class Snapshot:
    """One snapshot file whose tail was checked; columns are read, and checked, when they are asked for.

    ``name`` is the snapshot's. Raises ``IntegrityError`` if the bytes are not those that the name promises, or they
    cannot be read.
    """

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._path = files, f"{SNAPSHOTS}/{name}"
        self.location = f"{files.name}/{self._path}"
        self._tail = self._read_tail(name)
        file, facts = table.open_table(self._source({}), location=self.location, by_group=True)
        if facts.get("version") not in (1, 2, 3, 4):
            raise IntegrityError(Problem(self.location, "footer", "version 1, 2, 3 or 4", str(facts)[:120], REFETCH))
        self._rest, self._is_checked = str(facts.get("rest")), facts.get("ids") == _CHECKED
        # Parquet's footer is parsed once; to read a column it is parsed again, with the column's bytes in the file
        self._counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self._stored = frozenset(file.schema_arrow.names)
        self._trees = _trees(facts.get("trees"), len(self._counts), location=self.location)
        self._chunks = _chunks(facts.get("chunks", {}), self._size - len(self._tail), location=self.location)
        self._require_possible()

    def _require_possible(self) -> None:
        """Raise IntegrityError where a tree has more rows than a file of this size may have.

        Parquet packs equal rows by their number; those of a tree differ by their ids.
        """
        limit = limits.rows_in(self._size)
        for name, item in self._trees.items():
            rows = sum(self._counts[group] for group in _numbers(item["metadata"]))
            if rows > limit:
                raise IntegrityError(Problem(self.location, f"rows of {name}", f"at most {limit}", str(rows), _STEP))

    def _read_tail(self, name: str) -> bytes:
        """The tail; the whole file for a snapshot of version 1, which had none."""
        match = SNAPSHOT_NAME.fullmatch(name)
        assert match is not None
        size, digest = self._files.size(self._path) or 0, match[3]
        tail = int(match[2] or size)
        if not 0 < tail <= size or tail > limits.MAX_FILE:
            expected = f"{tail} bytes or more, of which at most {limits.MAX_FILE} in the tail"
            raise IntegrityError(Problem(self.location, "size", expected, str(size), _STEP))
        self._size = size
        span = Span(self._path, size - tail, size, bytes.fromhex(digest))
        try:
            return self._files.spans([span])[0]
        except IntegrityError as error:
            problem = error.problems[0]
            raise IntegrityError(Problem(self.location, DIGEST, problem.expected, problem.got, _STEP)) from error

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Every tree it covers, with the names of the parts in order."""
        return {tree: tuple(part["name"] for part in item["parts"]) for tree, item in self._trees.items()}

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self._size

    @property
    def checked_parts(self) -> tuple[str, ...]:
        """The raw parts whose ids were found to differ when the snapshot was made; none where it does not say so."""
        return self.parts.get(PARTS, ()) if self._is_checked else ()

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
        pieces = [(count, read) for count, read, _ in self.pieces(name, parts)]
        schema = table.schema_of(KINDS[item["kind"]])
        rows = LazyTable(schema, pieces, location=self.location, file_bytes=self._size)
        return Tree(parts, rows, LazyTable(INDEX_SCHEMA, self.index_pieces(name, parts, blocks_a_row=blocks_a_row)))

    def index_pieces(
        self, name: str, parts: Sequence[Part], *, blocks_a_row: int | None = None
    ) -> list[tuple[int, Read]]:
        """The index of a tree in pieces, with the number of rows of each; ``blocks_a_row`` is as in ``tree``."""
        groups = _numbers(self._trees[name]["index"])
        count = sum(self._counts[group] for group in groups)
        limit = limits.index_rows_in(self._size)
        if blocks_a_row is not None:
            limit = min(limit, sum(part.rows for part in parts) * blocks_a_row)
        if count > limit:
            expected = f"at most {limit}"
            raise IntegrityError(Problem(self.location, f"index rows of {name}", expected, str(count), _STEP))
        return [(self._counts[group], partial(self._columns, [group], None)) for group in groups]

    def pieces(self, name: str, parts: Sequence[Part]) -> list[tuple[int, Read, Sequence[Part]]]:
        """The rows of a tree in pieces: the number of rows, the reader, and those of its parts that have them."""
        item = self._trees[name]
        groups = _numbers(item["metadata"])
        ends = np.cumsum([part.rows for part in parts])
        pieces: list[tuple[int, Read, Sequence[Part]]] = []
        first, start, stop, together = 0, 0, 0, list[int]()
        for number, group in enumerate(groups, 1):
            together.append(group)
            stop += self._counts[group]
            if number < len(groups) and stop - start < _PIECE_ROWS:
                continue
            last = len(parts) if number == len(groups) else int(np.searchsorted(ends, stop)) + 1
            own = parts[first:last]
            if sum(part.rows for part in own) != stop - start:
                expected, got = f"the {sum(part.rows for part in parts)} of its parts", f"{stop} in groups of others"
                raise IntegrityError(Problem(self.location, f"rows of {name}", expected, got, REFETCH))
            pieces.append((stop - start, partial(self._columns, together, item["kind"]), own))
            first, start, together = last, stop, []
        return pieces

    def check(self) -> None:
        """Read and check every byte; of a snapshot on this machine."""
        before = self._size - len(self._tail)
        if not before or self._files.here is None:
            return
        rest, behind = hashlib.sha256(), 0
        with open(self._files.here / self._path, "rb", opener=regular) as file:
            for start, stop, sha256 in sorted(self._chunks.values()):
                _update(rest, file, start - behind)
                check_span(file.read(stop - start), Span(self._path, start, stop, sha256), location=self.location)
                behind = stop
            _update(rest, file, before - behind)
        if (digest := rest.hexdigest()) != self._rest:
            raise IntegrityError(Problem(self.location, f"{DIGEST} of the other bytes", self._rest, digest, _STEP))

    def _columns(self, groups: Sequence[int], kind: str | None, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield columns of row groups, of the rows of a kind or of an index; those that a snapshot lacks are null."""
        prefix = INDEX if kind is None else f"{kind}:"
        schema = INDEX_SCHEMA if kind is None else table.schema_of(KINDS[kind])
        required = schema.names if kind is None else schema.names[: LEAST[kind]]
        own = [name for name in names if name in required or prefix + name in self._stored]
        chunks = self._fetched([(group, prefix + name) for group in groups for name in own])
        try:
            source = self._source(chunks)
            file, _ = table.open_table(source, location=self.location, by_group=True)
            for group in groups:
                if not self._counts[group]:
                    yield pa.Table.from_batches([], pa.schema([schema.field(name) for name in names]))
                    continue
                read = partial(
                    table.read_bounded, source, file, location=self.location, group=group, packed=kind is not None
                )
                yield _fitted(self._group(read, prefix, own), names, schema, self._counts[group])
        except (*table.UNREADABLE, KeyError) as error:
            problem = Problem(self.location, "table", "the columns of docs/format.md", str(error)[:160], REFETCH)
            raise IntegrityError(problem) from error

    def _group(self, read: Callable[..., pa.Table], prefix: str, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Columns of a row group, by their names without the prefix."""
        try:
            together = read(columns=[prefix + name for name in names])
            return {name: together[prefix + name] for name in names}
        except IntegrityError:
            # the limit is one of a column, and it takes longer to read each by itself
            return self._one_by_one({name: partial(read, columns=[prefix + name]) for name in names})

    def _one_by_one(self, readers: Mapping[str, Callable[[], pa.Table]]) -> dict[str, pa.ChunkedArray]:
        """Columns of a row group that are read one after the other, each bounded, and so are all together."""
        columns, nbytes, limit = dict[str, pa.ChunkedArray](), 0, limits.columns_in(self._size)
        for name, read in readers.items():
            columns[name] = read().column(0)
            nbytes += columns[name].nbytes
            if nbytes > limit:
                expected = f"at most {limit} bytes"
                raise IntegrityError(Problem(self.location, "size of columns", expected, str(nbytes), _STEP))
        return columns

    def _fetched(self, wanted: Iterable[tuple[int, str]]) -> dict[int, bytes]:
        """The bytes of columns, given by row group and name, at their places in the file."""
        chunks = sorted({chunk for key in wanted if (chunk := self._chunks.get(key)) is not None})
        spans = [Span(self._path, chunk.start, chunk.stop, chunk.sha256) for chunk in chunks]
        return {span.start: data for span, data in zip(spans, self._files.spans(spans), strict=True)}

    def _source(self, chunks: Mapping[int, bytes]) -> _Pieces:
        """The file with the bytes of some columns and the tail."""
        behind = self._size - len(self._tail)
        return _Pieces(self._size, [(0, _MAGIC), *chunks.items(), (behind, self._tail)])


def _fitted(columns: Mapping[str, pa.ChunkedArray], names: Sequence[str], schema: pa.Schema, count: int) -> pa.Table:
    """Columns that were read as a table of the types of a schema, texts perhaps as dictionaries; null where one lacks.

    Raises ``ArrowInvalid`` if a value lacks where the schema has no nulls.
    """
    fitted: list[pa.ChunkedArray | pa.Array] = []
    for name in names:
        field, column = schema.field(name), columns.get(name)
        if column is None:
            fitted.append(pa.nulls(count, field.type))
            continue
        if column.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"{name} is null in some rows")
        packed = pa.types.is_dictionary(column.type) and pa.types.is_string(field.type)
        fitted.append(column if packed else column.cast(field.type))
    return pa.Table.from_arrays(fitted, names=list(names))


def _trees(listed: Any, groups: int, *, location: str) -> dict[str, Document]:
    """The footer's entries for the trees, by name."""
    trees: dict[str, Document] = {}
    for item in listed if isinstance(listed, list) else [listed]:
        match item:
            case {"tree": str(name), "kind": str(kind), "metadata": rows, "index": index, "parts": [*parts]}:
                numbers = [*_numbers(rows), *_numbers(index)]
                fits = kind in KINDS and name not in trees and rows != [] and index != []
                fits = fits and all(type(number) is int and 0 <= number < groups for number in numbers)
                if fits and all(_is_part(part) for part in parts):
                    trees[name] = item
                    continue
        expected = "trees, each once, with their kinds, row groups and parts"
        raise IntegrityError(Problem(location, "footer", expected, repr(item)[:120], REFETCH))
    return trees


def _numbers(groups: Any) -> list[Any]:
    """The numbers of row groups, which are a list where they are several."""
    return groups if isinstance(groups, list) else [groups]


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
                if nbytes > limits.MAX_FILE:
                    raise ValueError(f"{nbytes} bytes")
                chunks[int(group), name] = _Chunk(start, start + nbytes, bytes.fromhex(digest))
        for one, other in pairwise(sorted(chunks.values())):
            if other.start < one.stop:
                raise ValueError(f"{one.start} to {one.stop} and {other.start} to {other.stop}")
    except (AttributeError, TypeError, ValueError) as error:
        problem = Problem(location, "columns in the footer", _COLUMNS, str(error)[:120], REFETCH)
        raise IntegrityError(problem) from error
    return chunks


def _update(digest: Any, file: BinaryIO, nbytes: int) -> None:
    """Add the next bytes of a file, some at a time; fewer where it ends."""
    while nbytes > 0 and (data := file.read(min(nbytes, _CHECKED_BYTES))):
        digest.update(data)
        nbytes -= len(data)


def listed(files: Files) -> list[str]:
    """Names of the snapshots of a zoo, the one that covers most parts first."""
    return sorted((name for name in files.listed(SNAPSHOTS) if SNAPSHOT_NAME.fullmatch(name)), reverse=True)


def newest(files: Files, trees: Mapping[str, tuple[str, ...]]) -> Snapshot | None:
    """The newest snapshot with a sound tail all of whose parts are there; others are for ``verify`` to report."""
    for name in listed(files):
        try:
            snapshot = Snapshot(files, name)
        except IntegrityError:
            continue
        if all(set(parts) <= set(trees.get(tree, ())) for tree, parts in snapshot.parts.items()):
            return snapshot
    return None


def revision_of(digests: Iterable[str]) -> str:
    """Digest of an ordered list of parts."""
    return digest_of(list(digests))


def write(trees: Mapping[str, Tree], root: Path) -> Path:
    """Write a snapshot of all parts of some trees into a zoo's folder, whole or not at all, and return its path.

    ``trees`` are the zoo's by their paths, and the ids of its raw rows differ.
    """
    folder = root / SNAPSHOTS
    make_folder(folder)
    sweep(folder)
    with naming(folder), temporary_file(folder) as (temporary, file):
        target = root / _encode(trees, file, ids_differ=True)
        publish_file(file, temporary, target)
    return target


def encode(trees: Mapping[str, Tree], *, ids_differ: bool = False) -> tuple[str, bytes]:
    """A snapshot as ``write`` makes it: its path in the zoo, and its bytes.

    ``ids_differ`` says that this was checked; otherwise its readers do.
    """
    file = io.BytesIO()
    name = _encode(trees, file, ids_differ=ids_differ)
    return name, file.getvalue()


def _encode(trees: Mapping[str, Tree], file: BinaryIO, *, ids_differ: bool) -> str:
    """Write a snapshot to an empty file and return its path in the zoo.

    Each tree has row groups of its rows, and one of its index unless that is large; the raw index comes last, its
    digests before its other columns. The path is ``snapshots/000128-20817-<sha256>.parquet`` for 128 parts where the
    tail has 20,817 bytes and that digest.
    """
    kinds = sorted({str(tree.kind) for tree in trees.values()})
    # not the columns that only tables with matrices fill, where none does: snapshots of other zoos are as they were
    matrices = any(_fills(tree, columns_of("variant", matrices=False)) for tree in trees.values())
    written = {kind: table.schema_of(columns_of(kind, matrices=matrices)) for kind in kinds}
    fields = [pa.field(f"{kind}:{item.name}", item.type) for kind in kinds for item in written[kind]]
    index = sorted(INDEX_SCHEMA, key=lambda item: item.name != DIGEST)
    schema = pa.schema([*fields, *(pa.field(INDEX + item.name, item.type) for item in index)])
    prefixes: list[str] = []
    listed: list[Document] = []
    order = sorted(trees, key=lambda name: (name == PARTS, name))
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:

        def write(groups: Iterable[pa.Table], prefix: str) -> int | list[int]:
            first = len(prefixes)
            for rows in groups:
                writer.write_table(_widened(rows, prefix, schema), row_group_size=max(1, len(rows)))
                prefixes.append(prefix)
                del rows  # not held while the next are read
            return first if len(prefixes) == first + 1 else list(range(first, len(prefixes)))

        for name in order:
            tree = trees[name]
            parts = [{key: getattr(part, key) for key in ("name", "digest", "rows", "facts")} for part in tree.parts]
            rows = write(_row_groups(tree, written[str(tree.kind)].names), f"{tree.kind}:")
            entries = write(_index_groups(tree.index), INDEX)
            listed.append({"tree": name, "kind": tree.kind, "parts": parts, "metadata": rows, "index": entries})
        facts: Document = {
            "version": _version(listed),
            "trees": listed,
            **({"ids": _CHECKED} if ids_differ else {}),
            "rest": "0" * 64,
            "chunks": {
                str(group): {name: [_PLACE, _PLACE, "0" * 64] for name in schema.names if name.startswith(prefix)}
                for group, prefix in enumerate(prefixes)
            },
        }
        # offsets and digests are known when all is written; what the footer says of them does not move them
        place = _text(facts)
        writer.add_key_value_metadata({table.KEY.decode(): place})
    size = file.seek(0, io.SEEK_END)
    chunks, rest, cut = _described(file, prefixes, first=INDEX + index[1].name)
    file.seek(cut)
    tail = bytearray(file.read())
    at = tail.rindex(place.encode())
    tail[at : at + len(place)] = _text({**facts, "chunks": chunks, "rest": rest}).ljust(len(place)).encode()
    file.seek(cut)
    file.write(tail)
    count = sum(len(tree.parts) for tree in trees.values())
    return f"{SNAPSHOTS}/{count:06d}-{size - cut}-{hashlib.sha256(tail).hexdigest()}.parquet"


def _text(facts: Document) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def _version(listed: Sequence[Document]) -> int:
    """The version of a footer, so that earlier readers leave alone what they cannot read."""
    if any(isinstance(item["index"], list) for item in listed):
        return 4
    return 3 if any(isinstance(item["metadata"], list) for item in listed) else 2


def _row_groups(tree: Tree, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of a tree's rows, those of as many whole parts together as fit into a row group, at least one."""
    counts = [part.rows for part in tree.parts]
    held, count, nbytes = list[pa.Table](), 0, 0
    for number, rows in enumerate(regrouped(map(itemgetter(1), tree.rows.runs(names)), counts), 1):
        if count and nbytes + rows.nbytes > _GROUP_BYTES:
            yield _concatenated(held)
            count = nbytes = 0
        held.append(rows)
        count, nbytes = count + len(rows), nbytes + rows.nbytes
        del rows  # not held while the next part is read
        if count and number < len(counts) and count + counts[number] > RUN_ROWS:
            yield _concatenated(held)
            count = nbytes = 0
    yield _concatenated(held)


def _concatenated(held: list[pa.Table]) -> pa.Table:
    """The rows of some tables, which are taken from the list so that they are not in memory twice."""
    rows = pa.concat_tables(held).combine_chunks()
    held.clear()
    return rows


def _index_groups(index: pa.Table) -> Iterator[pa.Table]:
    """Yield an index in row groups, at least one."""
    step = max(1, min(_INDEX_ROWS, len(index) * _GROUP_BYTES // max(1, index.nbytes)))
    for start in range(0, max(1, len(index)), step):
        yield index.slice(start, step)


def _fills(tree: Tree, columns: Sequence[Column]) -> bool:
    """Whether the rows of a variant have values in other columns than these."""
    if tree.kind != "variant":
        return False
    others = tree.rows.runs(tree.rows.schema.names[len(columns) :])
    return any(column.null_count < len(column) for _, run in others for column in run.columns)


def _described(file: BinaryIO, prefixes: list[str], *, first: str) -> tuple[dict[str, Document], str, int]:
    """Offset and digest of every column before the tail, the digest of all between them, and where the tail starts."""
    file.seek(0)
    metadata = pq.read_metadata(file)
    chunks: dict[str, Document] = {}
    rest, behind = hashlib.sha256(), 0

    def read(start: int, stop: int) -> bytes:
        file.seek(start)
        return file.read(stop - start)

    for group, prefix in enumerate(prefixes):
        # a column chunk of Parquet starts with its dictionary page where it has one
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name = column.path_in_schema.partition(".")[0]
            start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
            start = max(start, behind)  # where a group has no rows, some columns have no place
            if group == len(prefixes) - 1 and name == first:
                rest.update(read(behind, start))
                return chunks, rest.hexdigest(), start
            if name.startswith(prefix) and metadata.row_group(group).num_rows:
                stop = start + column.total_compressed_size
                digest = hashlib.sha256(read(start, stop)).hexdigest()
                chunks.setdefault(str(group), {})[name] = [start, stop - start, digest]
                rest.update(read(behind, start))
                behind = stop
    raise AssertionError(first)


def _widened(rows: pa.Table, prefix: str, schema: pa.Schema) -> pa.Table:
    """A table as a row group of the snapshot, whose columns are those of all kinds; the others are null."""
    columns = [
        rows[item.name.removeprefix(prefix)] if item.name.startswith(prefix) else pa.nulls(len(rows), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)

"""A part: shards, rows and index rows that are committed together and never change."""

import hashlib
import itertools
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.format import limits, table
from ckptzoo.format.durable import Staging, locked, naming
from ckptzoo.format.files import Files
from ckptzoo.format.shard import Block, ShardWriter
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.documents import REFETCH, Document, canonical, digest_of
from ckptzoo.schema.layout import INDEX, METADATA, next_sequence, part_name, shard_name
from ckptzoo.schema.metadata import KINDS, LEAST

# The hub recommends files of at most 20 GB, and fewer than 100,000 of them in a repository.
SHARD_BYTES = 2 * 2**30
"""Target size of a shard."""

_AT_ONCE_BYTES = 2**18
"""The bytes of rows and index up to which a digest is made of one document in memory, in three quarters of the time."""
_AT_A_TIME, _SPOOLED = 2**11, 2**16
"""The number of rows that are Python objects at a time, and of those that go into a file together."""
Arrays = Mapping[str, Any]
"""Stacked tensors by name."""


@dataclass(frozen=True)
class Part:
    """One committed part.

    ``tree`` is ``parts`` or ``derived/<name>``; ``name`` is the part's folder, ``<6-digit sequence>-<8 hex>``;
    ``digest`` is ``sha256:...`` of its rows, index and facts; the index holds the shards' digests; ``facts`` are
    recorded by its maker, such as the gauge's version; ``facts["kind"]`` is the kind of part.
    """

    tree: str
    name: str
    rows: int
    digest: str
    facts: Document

    @property
    def path(self) -> str:
        """The path of its folder in the zoo."""
        return f"{self.tree}/{self.name}"


class StoredRows:
    """A part's rows with the columns that its file has, each decoded when it is asked for, and not kept.

    Raises ``IntegrityError`` if the file is damaged, or has other rows than the part.
    """

    def __init__(self, files: Files, part: Part) -> None:
        path = f"{part.path}/{METADATA}"
        kind_of(part, location=f"{files.name}/{part.path}")
        self._data, self._part, self._location = files.read(path), part, f"{files.name}/{path}"
        self._file = _opened_rows(self._data, part, location=self._location)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return self._file.schema_arrow.names

    def __len__(self) -> int:
        return self._part.rows

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return _decoded_rows(self._data, self._file, self._part, location=self._location, names=[name])[name]


def part_digest(metadata: pa.Table | StoredRows, index: pa.Table, facts: Document) -> str:
    """sha256 over the canonical JSON of rows, index and facts, by columns, a few values of a column at a time.

    The shards' bytes are covered through their sha256 in the index.
    """
    tables = {"index": index, "rows": metadata}
    if not isinstance(metadata, StoredRows) and index.nbytes + metadata.nbytes <= _AT_ONCE_BYTES:
        columns = {
            key: {name: [*itertools.chain(*table.plain(rows, name))] for name in rows.column_names}
            for key, rows in tables.items()
        }
        return digest_of({"facts": facts, **columns})
    digest = hashlib.sha256(b'{"facts":' + canonical(facts))
    for key, rows in tables.items():
        digest.update(b"," + canonical(key) + b":{")
        for number, name in enumerate(sorted(rows.column_names)):
            digest.update((b"," if number else b"") + canonical(name) + b":[")
            for place, values in enumerate(table.plain(rows, name)):
                digest.update((b"," if place else b"") + canonical(values)[1:-1])
            digest.update(b"]")
        digest.update(b"}")
    digest.update(b"}")
    return f"sha256:{digest.hexdigest()}"


class PartWriter:
    """Fills one part in bounded memory, then publishes it whole.

    Raises ``ZooError`` if the tree has a part with the last sequence number; nothing is written; and any method raises
    ``OSError``, whose ``filename`` is the tree, if the disk is full or cannot be written.

    Parameters
    ----------
    tree
        the folder that will hold it, ``ZOO/parts`` or ``ZOO/derived/<name>``.
    sets
        for each stem (``raw``, ``first-weight``, ``g``) the tensors of its shards. A variant that leaves out
        its own stem has its weights computed from ``g`` and the raw ones when they are read.
    schema
        of its rows.
    facts
        recorded in the index's footer and covered by the digest.
    shard_bytes
        target size of a shard.
    rows
        the largest number of rows that will come, where it is known; then no tensor has to be moved at the end.
    """

    def __init__(
        self,
        tree: Path,
        *,
        sets: Mapping[str, Sequence[Tensor]],
        schema: pa.Schema,
        facts: Document,
        shard_bytes: int = SHARD_BYTES,
        rows: int | None = None,
    ) -> None:
        self._tree, self._sets, self._schema, self._facts = tree, sets, schema, facts
        self._capacity = {stem: rows_a_shard(tensors, shard_bytes) for stem, tensors in sets.items()}
        self._max_rows = rows
        self._next_sequence()
        with naming(tree):
            self._staging = Staging(tree)
        self._open: dict[str, ShardWriter] = {}
        self._shards = dict.fromkeys(sets, 0)
        self._blocks: list[Block] = []
        self._rows = _RowSpool(schema, self._staging.path, location=str(tree))
        self.index_bytes = 0

    def add(self, arrays: Mapping[str, Arrays], rows: Sequence[dict[str, Any]]) -> None:
        """Append rows; ``arrays[stem][name]`` has shape ``(len(rows), *shape)`` and its tensor's dtype."""
        with naming(self._tree):
            for stem, stacked in arrays.items():
                done = 0
                while done < len(rows):
                    shard = self._open.get(stem) or self._next(stem)
                    count = min(shard.room, len(rows) - done)
                    shard.write({name: array[done : done + count] for name, array in stacked.items()}, count)
                    done += count
                    if not shard.room:
                        self._close(stem)
            self._rows.add(rows)

    @property
    def rows(self) -> pa.Table:
        """The rows that were added."""
        return self._rows.table()

    def commit(self, root: Path, *, refuse: Callable[[pa.Table], None]) -> Part:
        """Publish the part under the next sequence number.

        ``refuse`` is called under the zoo's lock with the rows and raises if they must not go in.
        """
        with naming(self._tree):
            for stem in list(self._open):
                self._close(stem)
        blocks = sorted(self._blocks, key=lambda block: block.file)
        index = table.table_of([asdict(block) for block in blocks], table.INDEX_SCHEMA, location=str(self._tree))
        metadata = self.rows
        digest = part_digest(metadata, index, self._facts)
        rows_file = table.encode([metadata], {"version": 1}, sealed=True)
        footer = {"version": 1, "digest": digest, "rows": len(metadata), "facts": self._facts}
        index_file = table.encode([index], footer, sealed=True)
        self._require_readable(rows_file, metadata, limits.rows_in(len(rows_file)), METADATA)
        self.index_bytes = len(index_file)
        self._require_readable(index_file, index, limits.index_rows_in(len(index_file)), INDEX)
        with naming(self._tree):
            (self._staging.path / METADATA).write_bytes(rows_file)
            (self._staging.path / INDEX).write_bytes(index_file)
        with locked(root):  # so that two writers never take one sequence number
            refuse(metadata)
            name = part_name(self._next_sequence(), digest)
            with naming(self._tree):
                self._staging.publish(self._tree / name)
        tree = self._tree.relative_to(root).as_posix()
        return Part(tree, name, len(metadata), digest, self._facts)

    def attach(self, name: str, data: bytes, fact: str, digest: str) -> None:
        """Write a file of the part, of which a fact says the digest."""
        with naming(self._tree):
            (self._staging.path / name).write_bytes(data)
        self._facts = {**self._facts, fact: digest}

    def discard(self) -> None:
        """Abandon the part and remove what was written of it."""
        for shard in self._open.values():
            shard.close()
        self._staging.discard()

    def _require_readable(self, data: bytes, content: pa.Table, rows: int, name: str) -> None:
        """Raise SpecError where readers would refuse a table: by its size, by what it unpacks to, or by its rows."""
        location = f"{self._tree.parent.name}/{self._tree.name}: {name}"
        try:
            file, _ = table.open_table(data, location=location)
            table.check_count(file, rows, location=location)
            for what, nbytes, limit in (
                ("size", len(data), limits.MAX_FILE),
                ("size of the table", content.nbytes, limits.MAX_TABLE),
            ):
                if nbytes > limit:
                    raise IntegrityError(Problem(location, what, f"at most {limit} bytes", f"{nbytes} bytes", ""))
        except IntegrityError as error:
            step = "Commit fewer checkpoints at a time, with shorter texts: each commit is a part of its own."
            raise SpecError([replace(problem, next_step=step) for problem in error.problems]) from error

    def _next_sequence(self) -> int:
        names = os.listdir(self._tree) if self._tree.is_dir() else []  # noqa: PTH208, paths of thousands cost more
        return next_sequence(names, location=f"{self._tree.parent.name}/{self._tree.name}")

    def _next(self, stem: str) -> ShardWriter:
        path, capacity = self._staging.path / shard_name(stem, self._shards[stem]), self._capacity[stem]
        if self._max_rows is not None:
            capacity = min(capacity, self._max_rows - self._shards[stem] * capacity)
        self._open[stem] = ShardWriter(path, self._sets[stem], capacity=capacity, stem=stem)
        return self._open[stem]

    def _close(self, stem: str) -> None:
        shard = self._open.pop(stem)
        first = sum(block.row_stop - block.row_start for block in self._blocks if _whole(block, stem))
        self._blocks.extend(shard.finish(first_row=first))
        self._shards[stem] += 1


class _RowSpool:
    """Rows of a part that are added bit by bit: tables of ``_SPOOLED`` rows each, which are in a file, and the rest.

    What is in the table does not depend on how many rows came at a time, nor do the bytes that are made of it.
    """

    def __init__(self, schema: pa.Schema, folder: Path, *, location: str) -> None:
        self._schema, self._folder, self._location = schema, folder, location
        self._waiting: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._held = 0
        self._spooled: list[pa.Table] = []

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows."""
        for start in range(0, len(rows), _AT_A_TIME):
            self._waiting.extend(rows[start : start + _AT_A_TIME])
            if len(self._waiting) >= _AT_A_TIME:
                self._convert(_AT_A_TIME)

    def table(self) -> pa.Table:
        """All rows so far."""
        self._convert(len(self._waiting))
        rest = pa.concat_tables([pa.Table.from_batches([], self._schema), *self._tables]).combine_chunks()
        self._tables = [rest]
        return pa.concat_tables([*self._spooled, rest] if len(rest) else self._spooled or [rest])

    def _convert(self, count: int) -> None:
        """Turn the first of the rows that wait into a table."""
        made = table.table_of(self._waiting[:count], self._schema, location=self._location)
        del self._waiting[:count]
        self._tables.append(made)
        self._held += count
        while self._held >= _SPOOLED:
            held = pa.concat_tables(self._tables)
            self._spool(held.slice(0, _SPOOLED).combine_chunks())
            self._tables, self._held = [held.slice(_SPOOLED)], self._held - _SPOOLED

    def _spool(self, rows: pa.Table) -> None:
        """Write rows into a file without a name and map it, so that they are in memory only while they are read."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            with pa.ipc.new_stream(file, self._schema) as stream:
                stream.write_table(rows)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._spooled.append(pa.ipc.open_stream(pa.py_buffer(mapped)).read_all())


def rows_a_shard(tensors: Sequence[Tensor], shard_bytes: int = SHARD_BYTES) -> int:
    """The number of checkpoints in a shard of these tensors, at least one."""
    return max(1, shard_bytes // sum(tensor.nbytes for tensor in tensors))


def _whole(block: Block, stem: str) -> bool:
    return block.tensor is None and block.file.rpartition("-")[0] == stem


def read_part(files: Files, tree: str, name: str) -> tuple[Part, pa.Table]:
    """A part's facts and its index, the seal checked.

    Raises ``IntegrityError`` if the index is missing, unreadable, or is not what its seal says.
    """
    path = f"{tree}/{name}/{INDEX}"
    return decode_index(files.read(path), tree, name, location=f"{files.name}/{path}")


def decode_index(
    data: bytes, tree: str, name: str, *, location: str, blocks_a_row: int | None = None
) -> tuple[Part, pa.Table]:
    """A part's facts and its index from the bytes of ``index.parquet``.

    ``blocks_a_row`` is the maximum of index rows for one checkpoint, where the architecture is known
    (``checks.RowLimits``). Raises ``IntegrityError`` if it is damaged, or has more rows than a sound index of its size
    or of its part; these are not decoded.
    """
    table.check_seal(data, location=location)
    file, footer = table.open_table(data, location=location)
    part = part_of(tree, name, footer, location=location)
    # Parquet packs equal rows by their number
    limit = limits.index_rows_in(len(data))
    if blocks_a_row is not None:
        limit = min(limit, part.rows * blocks_a_row)
    table.check_count(file, limit, location=location)
    return part, table.read_table(data, file, table.INDEX_SCHEMA, location=location)


def part_of(tree: str, name: str, footer: Document, *, location: str) -> Part:
    """A part from the facts in its index's footer."""
    digest, rows, facts = footer.get("digest"), footer.get("rows"), footer.get("facts")
    if footer.get("version") != 1:
        got = repr(footer.get("version"))
        raise IntegrityError(Problem(location, "format version", "1", got, "Upgrade ckptzoo to read it."))
    if not isinstance(digest, str) or type(rows) is not int or rows < 0 or not isinstance(facts, dict):
        raise IntegrityError(Problem(location, "footer", "digest, rows and facts", str(footer)[:160], REFETCH))
    if name[7:] != digest.removeprefix("sha256:")[:8]:  # behind the sequence number and its hyphen
        raise IntegrityError(Problem(location, "name of the part", f"...-{digest[7:15]}", name, REFETCH))
    return Part(tree, name, rows, digest, facts)


def kind_of(part: Part, *, location: str) -> str:
    """Return the kind of a part, a key of ``ckptzoo.schema.metadata.KINDS``.

    Raises ``IntegrityError`` if it is of a kind that this version does not know.
    """
    kind = part.facts.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        expected = "one of " + ", ".join(KINDS)
        raise IntegrityError(Problem(location, "kind", expected, repr(kind), "Upgrade ckptzoo to read it."))
    return kind


def read_rows(files: Files, part: Part) -> pa.Table:
    """A part's rows with every column of its kind, null in those that its file lacks; seal and count are checked."""
    return filled_rows(stored_rows(files, part), part, location=f"{files.name}/{part.path}")


def filled_rows(rows: pa.Table, part: Part, *, location: str) -> pa.Table:
    """Rows with every column of the part's kind, null in those that they lack."""
    return table.filled(rows, table.schema_of(KINDS[kind_of(part, location=location)]))


def stored_rows(files: Files, part: Part) -> pa.Table:
    """A part's rows with the columns that its file has, which are those that its digest covers."""
    path = f"{part.path}/{METADATA}"
    kind_of(part, location=f"{files.name}/{part.path}")
    return decode_rows(files.read(path), part, location=f"{files.name}/{path}")


def decode_rows(
    data: bytes, part: Part, *, location: str, names: Sequence[str] | None = None, packed: bool = False
) -> pa.Table:
    """A part's rows from the bytes of ``metadata.parquet``, with those of the columns that they have.

    ``names`` are columns of the part's kind, by default all; ``packed`` leaves the texts of many rows as dictionaries.
    """
    file = _opened_rows(data, part, location=location)
    return _decoded_rows(data, file, part, location=location, names=names, packed=packed)


def _opened_rows(data: bytes, part: Part, *, location: str) -> pq.ParquetFile:
    """The bytes of ``metadata.parquet`` as a file, once seal and count are checked; nothing is decoded."""
    table.check_seal(data, location=location)
    file, _ = table.open_table(data, location=location)
    table.check_count(file, min(part.rows, limits.rows_in(len(data))), location=location)
    if file.metadata.num_rows != part.rows:
        raise IntegrityError(Problem(location, "rows", str(part.rows), str(file.metadata.num_rows), REFETCH))
    return file


def _decoded_rows(
    data: bytes,
    file: pq.ParquetFile,
    part: Part,
    *,
    location: str,
    names: Sequence[str] | None = None,
    packed: bool = False,
) -> pa.Table:
    """Columns of a part's rows from its opened file."""
    kind = kind_of(part, location=location.removesuffix(f"/{METADATA}"))
    schema = table.schema_of(KINDS[kind])
    return table.read_table(data, file, schema, location=location, least=LEAST[kind], names=names, packed=packed)


def read_columns(files: Files, parts: Sequence[Part], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield some columns of the rows of each part, null in a part whose file lacks them; texts may be dictionaries.

    Every file is read whole and its seal checked.
    """
    paths = [f"{part.path}/{METADATA}" for part in parts]
    for part, path, data in zip(parts, paths, files.read_many(paths), strict=True):
        location = f"{files.name}/{path}"
        stored = decode_rows(data, part, location=location, names=names, packed=True)
        schema = table.schema_of(KINDS[kind_of(part, location=location)])
        held = dict(zip(stored.column_names, stored.columns, strict=True))
        columns = [held[name] if name in held else pa.nulls(part.rows, schema.field(name).type) for name in names]
        yield pa.Table.from_arrays(columns, names=list(names))


def require_room(files: Files, part: Part) -> int:
    """The bytes of a part's ``metadata.parquet``, of which nothing is read.

    Raises ``IntegrityError`` if there is none, or it is too small for the part's rows or too large to be read.
    """
    location = f"{files.name}/{part.path}/{METADATA}"
    if (nbytes := files.size(f"{part.path}/{METADATA}")) is None:
        raise IntegrityError(Problem(location, "file", "a readable file", "none", REFETCH))
    if nbytes > limits.MAX_FILE:
        raise IntegrityError(Problem(location, "size", f"at most {limits.MAX_FILE} bytes", f"{nbytes} bytes", REFETCH))
    if part.rows > (limit := limits.rows_in(nbytes)):
        raise IntegrityError(Problem(location, "rows of the table", f"at most {limit}", str(part.rows), REFETCH))
    return nbytes

"""A tree of parts in memory: all raw parts of a zoo, or all parts of one derived thing."""

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import limits, table
from ckptzoo.format.packed import RUN_ROWS, PackedColumn, Packer
from ckptzoo.format.part import Part
from ckptzoo.lazy_names import lazy_module
from ckptzoo.schema.layout import RAW
from ckptzoo.schema.metadata import KINDS

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = lazy_module("pyarrow.compute")

INDEX_SCHEMA = table.INDEX_SCHEMA.append(pa.field("part", pa.int32(), nullable=False))
"""The index of a part and, for each row, the part's position in the tree."""
DIGEST = "sha256"
"""The index column of the blocks' digests."""
_KEPT_VALUES = 2**22
"""Columns with more values in all are not kept where they are only gone through."""
_WHOLE_ROWS = 2**18
"""The rows of a table above which a single row is read from its part alone, not from every column of all."""
_KEPT_BYTES = 256 * 2**20
"""The number of bytes of packed columns that are kept, and of parts of which single rows were asked for, unless one
alone has more."""
_SMALL_BYTES = 4 * 2**20
"""The number of bytes up to which a whole table is also kept as it is, from which a row takes a third of the time."""
_JOINED_ROWS = 2**12
"""The number of rows of small tables that are worked on as one."""
_OTHER_BYTES = 64
"""A value of a column other than the bytes of its text has fewer: a number, a digest, the shape of a tensor."""

Read = Callable[[Sequence[str]], Iterable[pa.Table]]
"""Names of columns, to consecutive tables of them in this order, in which texts may be dictionaries."""


class LazyTable:
    """A table of consecutive pieces whose columns are read when they are first needed, and kept packed.

    ``schema`` is that of the whole table; ``pieces`` are pairs of a number of rows and a reader; ``parts`` are the same
    for the parts, from which single rows are read; ``location`` and ``file_bytes`` say where the pieces come from, and
    how many bytes their files have, so that what they unpack to is bounded.
    """

    def __init__(
        self,
        schema: pa.Schema,
        pieces: Sequence[tuple[int, Read]],
        parts: Sequence[tuple[int, Read]] | None = None,
        *,
        location: str = "",
        file_bytes: int | None = None,
    ) -> None:
        self.schema, self._pieces, self._parts = schema, tuple(pieces), tuple(pieces if parts is None else parts)
        self._location, self._file_bytes = location, file_bytes
        self._count = sum(count for count, _ in pieces)
        self._forget()

    def _forget(self) -> None:
        self._columns = OrderedDict[str, PackedColumn]()
        self._part_rows = OrderedDict[int, dict[str, PackedColumn]]()
        self._longest = dict[str, int]()
        self._small: pa.Table | None = None
        self._is_too_large = False
        self._locks = dict[int, threading.RLock]()

    @property
    def _lock(self) -> threading.RLock:
        """The lock of this process: in a forked one, a thread of the parent may hold the lock forever."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def __getstate__(self) -> dict[str, Any]:
        # another process reads what it needs again
        dropped = ("_columns", "_part_rows", "_longest", "_small", "_is_too_large", "_locks")
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @classmethod
    def of(cls, *tables: pa.Table) -> "LazyTable":
        """Rows of tables with one schema that are in memory."""
        return cls(tables[0].schema, [(len(table), partial(selected, table)) for table in tables])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.select([name])[name]

    def select(self, names: Sequence[str]) -> pa.Table:
        """Some columns; those that are not kept are read at once.

        Raises ``IntegrityError`` if they are larger in memory than files of these sizes may unpack to.
        """
        if self._small is not None:
            return self._small.select(names)
        columns = self._packed(names)
        self._require_room(nbytes := sum(column.unpacked_bytes for column in columns.values()))
        found = self._table(names, [columns[name].array() for name in names])
        if nbytes <= _SMALL_BYTES and list(names) == self.schema.names:
            self._small = found
        return found

    def take(self, names: Sequence[str], rows: NDArray[np.int64]) -> pa.Table:
        """Some columns of the rows at these positions, in any order.

        Raises ``IntegrityError`` as ``select``.
        """
        columns = self._packed(names)
        step = self._rows_in(names, self._limit)
        if len(rows) <= step:
            return self._table(names, [columns[name].take(rows) for name in names])
        # a few kilobytes may hold a long text in every row: it is not unpacked before it is known to fit
        runs, nbytes = list[pa.Table](), 0
        for start in range(0, len(rows), step):
            own = rows[start : start + step]
            runs.append(self._table(names, [columns[name].take(own) for name in names]))
            self._require_room(nbytes := nbytes + runs[-1].nbytes)
        return pa.concat_tables(runs)

    def runs(self, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield some columns of all rows in order, a bounded number of rows at a time, each after its first row.

        Columns of large tables are not kept, so that memory is bounded whatever is gone through.
        """
        with self._lock:
            is_kept = self._count * len(names) <= _KEPT_VALUES or all(name in self._columns for name in names)
            columns = self._packed(names) if is_kept else {}
        start = 0
        if is_kept:
            step = min(RUN_ROWS, self._rows_in(names, limits.MAX_TABLE))
            for start in range(0, max(1, self._count), step):  # one without rows, too
                stop = min(start + step, self._count)
                yield start, self._table(names, [columns[name].slice(start, stop) for name in names])
            return
        schema = pa.schema([self.schema.field(name) for name in names])
        for count, read in self._pieces:
            for piece in self._counted(read(names), count):
                self._measure(piece)
                step = min(RUN_ROWS, self._rows_in(names, limits.MAX_TABLE))
                for first in range(0, len(piece), step):
                    yield start + first, piece.slice(first, step).cast(schema)
                start += len(piece)
                del piece  # not held while the next is read
                # Arrow's allocator keeps what was freed, otherwise as much again as is in use
                pa.default_memory_pool().release_unused()

    def keep(self) -> None:
        """Read every column of a small table, which is then kept: for who goes through one column after the other."""
        if self._count * len(self.schema) <= _KEPT_VALUES:
            self._packed(self.schema.names)

    def row(self, position: int) -> dict[str, Any]:
        """One row, with every column."""
        names = self.schema.names
        if self._small is not None:
            return table.row_of(self._small, position)
        if self._count <= _WHOLE_ROWS and not self._is_too_large:
            columns = self._packed(names)
            if sum(column.unpacked_bytes for column in columns.values()) <= _SMALL_BYTES:
                return table.row_of(self.table(), position)
            return table.row_of(self.take(names, np.array([position])), 0)
        bounds = np.cumsum([0, *(count for count, _ in self._parts)])
        number = int(np.searchsorted(bounds, position, side="right")) - 1
        with self._lock:
            columns = self._part_rows.pop(number, None) or self._read(names, self._parts[number : number + 1])
            self._part_rows[number] = columns
            sizes = [sum(column.nbytes for column in part.values()) for part in self._part_rows.values()]
            while len(self._part_rows) > 1 and sum(sizes) > _KEPT_BYTES:
                self._part_rows.popitem(last=False)
                sizes.pop(0)
        own = np.array([position - bounds[number]])
        return table.row_of(self._table(names, [columns[name].take(own) for name in names]), 0)

    def table(self) -> pa.Table:
        """The table with every column."""
        return self.select(self.schema.names)

    def _table(self, names: Sequence[str], columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
        return pa.Table.from_arrays(list(columns), schema=pa.schema([self.schema.field(name) for name in names]))

    def _packed(self, names: Sequence[str]) -> dict[str, PackedColumn]:
        """Some columns, packed; those that are not kept are read together."""
        with self._lock:
            missing = [name for name in dict.fromkeys(names) if name not in self._columns]
            found = self._read(missing, self._pieces) if missing else {}
            for name in names:
                if name in self._columns:
                    self._columns.move_to_end(name)
                    found[name] = self._columns[name]
            self._columns.update((name, found[name]) for name in missing)
            sizes = {name: column.nbytes for name, column in self._columns.items()} if missing else {}
            while sum(sizes.values()) > _KEPT_BYTES and len(sizes) > 1:
                name, _ = self._columns.popitem(last=False)
                # all columns together are then read for a single row each time
                self._is_too_large |= len(found) == len(self.schema)
                del sizes[name]
            return found

    def _read(self, names: Sequence[str], pieces: Sequence[tuple[int, Read]]) -> dict[str, PackedColumn]:
        """Columns of some pieces, packed as they come."""
        packers = {name: Packer(self.schema.field(name).type) for name in names}
        for count, read in pieces:
            for piece in _joined(self._counted(read(names), count)):
                self._measure(piece)
                for name, column in zip(names, piece.columns, strict=True):
                    packers[name].add(column.chunks)
                self._require_room(sum(packer.nbytes for packer in packers.values()))
        return {name: packer.packed() for name, packer in packers.items()}

    def _counted(self, read: Iterable[pa.Table], count: int) -> Iterator[pa.Table]:
        """Yield the tables of a piece, which have as many rows as it is said to have: a footer may state others."""
        rows = 0
        for piece in read:
            rows += len(piece)
            yield piece
            del piece
        if rows != count:
            step = "Restore the file, or remove it where it is a snapshot."
            raise IntegrityError(Problem(self._location or "table", "rows", str(count), str(rows), step))

    def _measure(self, piece: pa.Table) -> None:
        """Note the longest text of each column so far."""
        for name, column in zip(piece.column_names, piece.columns, strict=True):
            texts = [chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk for chunk in column.chunks]
            for each in texts if pa.types.is_string(self.schema.field(name).type) else ():
                longest = 0 if each.null_count == len(each) else _longest(each)
                self._longest[name] = max(longest, self._longest.get(name, 0))

    def _rows_in(self, names: Sequence[str], limit: int | None) -> int:
        """A number of rows, at least one, of which these columns have no more bytes than a limit."""
        row = sum(_OTHER_BYTES + self._longest.get(name, 0) for name in names)
        return sys.maxsize if limit is None else max(1, limit // max(1, row))

    @property
    def _limit(self) -> int | None:
        return None if self._file_bytes is None else limits.columns_in(self._file_bytes)

    def _require_room(self, nbytes: int) -> None:
        """Raise IntegrityError where columns have more bytes than those of such files may unpack to."""
        if (limit := self._limit) is not None and nbytes > limit:
            step = "Ask for fewer columns, or for some of the checkpoints."
            what = "size in memory of the columns"
            raise IntegrityError(Problem(self._location, what, f"at most {limit} bytes", str(nbytes), step))


def _joined(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield consecutive tables, small ones of one schema put together: parts may have a row each."""
    held, rows, nbytes = list[pa.Table](), 0, 0
    for piece in pieces:
        size, is_small = piece.nbytes, len(piece) <= _JOINED_ROWS
        fits = is_small and rows + len(piece) <= _JOINED_ROWS and nbytes + size <= _SMALL_BYTES
        if held and not (fits and piece.schema.equals(held[0].schema)):
            yield pa.concat_tables(held).combine_chunks()
            held, rows, nbytes = [], 0, 0
        if not is_small or size > _SMALL_BYTES:
            yield piece
            continue
        held.append(piece)
        rows, nbytes = rows + len(piece), nbytes + size
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _longest(texts: pa.Array) -> int:
    """The number of bytes of the longest text."""
    # pyarrow.compute is not imported to open a zoo
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return int(np.diff(ends).max())


def selected(table: pa.Table, names: Sequence[str]) -> Iterable[pa.Table]:
    """Columns of a table that is in memory, as a ``Read`` gives them."""
    return (table.select(names),)


def regrouped(runs: Iterable[pa.Table], counts: Sequence[int]) -> Iterator[pa.Table]:
    """Yield the rows of consecutive tables in tables of these numbers of rows; none where there are no tables."""
    left, held, rows = iter(runs), list[pa.Table](), 0
    for count in counts:
        while rows < count or not held:
            if (run := next(left, None)) is None:
                break
            held.append(run)
            rows += len(run)
            del run
        if not held:
            return
        ready = [pa.concat_tables(held)]
        rows -= count
        # neither what was yielded nor an empty slice of it is held while the next run is read
        held = [ready[0].slice(count) if rows else pa.Table.from_batches([], ready[0].schema)]
        yield ready.pop().slice(0, count)


@dataclass(frozen=True)
class Tree:
    """Parts with the rows of all of them in zoo order, and their index rows with their part's position.

    ``parts`` maps names to parts; ``rows`` is the metadata of the parts' checkpoints; ``blocks`` is the index.
    """

    parts: tuple[Part, ...]
    rows: LazyTable
    blocks: LazyTable

    @property
    def kind(self) -> str | None:
        """A key of ``ckptzoo.schema.metadata.KINDS``, or None for an empty tree."""
        return self.parts[0].facts.get("kind") if self.parts else None

    @property
    def metadata(self) -> pa.Table:
        """The rows with every column."""
        return self.rows.table()

    @property
    def index(self) -> pa.Table:
        """The index with every column."""
        return self.blocks.table()

    @property
    def outline(self) -> pa.Table:
        """The index without the digests, which make up most of its bytes."""
        return self.blocks.select([name for name in self.blocks.schema.names if name != DIGEST])


def empty_tree(kind: str = RAW) -> Tree:
    """A tree without parts, as that of a new zoo, with the columns of a kind."""
    # Schema.empty_table would import pandas
    rows, index = (pa.Table.from_batches([], schema) for schema in (table.schema_of(KINDS[kind]), INDEX_SCHEMA))
    return Tree((), LazyTable.of(rows), LazyTable.of(index))


def places_of(ids: pa.ChunkedArray, known: pa.ChunkedArray) -> NDArray[np.int64]:
    """(N,) the position of each id among the known ones, -1 where it is not among them."""
    if ids.equals(known):  # as in a variant of the whole zoo; the hash table of ten million ids would be a gigabyte
        return np.arange(len(ids), dtype=np.int64)
    positions = pc.call_function("index_in", [ids], pc.SetLookupOptions(known.combine_chunks()))
    return table.filled_with(positions, -1).astype(np.int64)

"""A tree of parts in memory: all raw parts of a zoo, or all parts of one derived thing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.format import table
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

Read = Callable[[Sequence[str]], pa.Table]
"""Names of columns, to a table of them in this order."""


class LazyTable:
    """A table of consecutive pieces whose columns are read when they are first needed.

    ``schema`` is that of the whole table; ``pieces`` are pairs of a number of rows and a reader.
    """

    def __init__(self, schema: pa.Schema, pieces: Sequence[tuple[int, Read]]) -> None:
        self.schema, self._pieces = schema, tuple(pieces)
        self._count = sum(count for count, _ in pieces)
        self._columns: dict[str, pa.ChunkedArray] = {}

    @classmethod
    def of(cls, *tables: pa.Table) -> "LazyTable":
        """Rows of tables with one schema that are in memory."""
        return cls(tables[0].schema, [(len(table), table.select) for table in tables])

    @classmethod
    def joined(cls, pieces: Sequence["LazyTable"]) -> "LazyTable":
        """The rows of others with one schema, at least one, joined."""
        return cls(pieces[0].schema, [(len(piece), piece.select) for piece in pieces])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.select([name])[name]

    def select(self, names: Sequence[str]) -> pa.Table:
        """Some columns; those that were not read before are read at once."""
        missing = [name for name in dict.fromkeys(names) if name not in self._columns]
        if missing:
            columns = pa.concat_tables([read(missing) for _, read in self._pieces]).combine_chunks()
            self._columns.update(zip(missing, columns.columns, strict=True))
        fields = [self.schema.field(name) for name in names]
        return pa.Table.from_arrays([self._columns[name] for name in names], schema=pa.schema(fields))

    def table(self) -> pa.Table:
        """The table with every column."""
        return self.select(self.schema.names)


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
    positions = pc.call_function("index_in", [ids], pc.SetLookupOptions(known.combine_chunks()))
    return positions.fill_null(-1).to_numpy().astype(np.int64)

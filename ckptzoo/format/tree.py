"""A tree of parts in memory: all raw parts of a zoo, or all parts of one derived thing."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo.format import table
from ckptzoo.format.part import Part

INDEX_SCHEMA = table.INDEX_SCHEMA.append(pa.field("part", pa.int32(), nullable=False))
"""The index of a part and, for each row, the part's position in the tree."""


@dataclass(frozen=True)
class Tree:
    """Parts with the rows of all of them in zoo order, and their index rows with their part's position."""

    parts: tuple[Part, ...]
    metadata: pa.Table
    index: pa.Table

    @property
    def kind(self) -> str | None:
        """``raw``, ``variant``, ``retracted``, or None for an empty tree."""
        return self.parts[0].facts.get("kind") if self.parts else None


def empty_tree() -> Tree:
    """A tree without parts, as that of a new zoo."""
    return Tree((), table.METADATA_SCHEMA.empty_table(), INDEX_SCHEMA.empty_table())


def places_of(ids: pa.ChunkedArray, known: pa.ChunkedArray) -> NDArray[np.int64]:
    """(N,) the place of each id among the known ones, -1 where it is not among them."""
    found = pc.call_function("index_in", [ids], pc.SetLookupOptions(known.combine_chunks()))
    return found.fill_null(-1).to_numpy().astype(np.int64)

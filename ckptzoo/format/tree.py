"""A tree of parts in memory: all raw parts of a zoo, or all parts of one derived thing."""

from dataclasses import dataclass

import pyarrow as pa

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

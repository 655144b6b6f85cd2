"""A tensor whose rows are computed when they are read: a group element acting on raw weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.checks import variant_dtype
from ckptzoo.format.header import numpy_dtype
from ckptzoo.format.shard import BLOCK_BYTES
from ckptzoo.loader.readers import TensorReader, assemble
from ckptzoo.loader.shard_index import ShardMaps
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.groups import Group, Like
from ckptzoo.schema.layout import Span
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply

PIECE_BYTES = 32 * 2**20
"""Raw rows are taken this many bytes at a time; computing adds at most a few float64 copies of them."""


class ComputedReader:
    """One tensor of a variant that stores only its group elements: ``cast(apply(g, raw))``.

    ``origins`` are (N,) int64, for each row of the variant its row of the raw tree; ``table`` has the actions on this
    tensor alone, with their groups; ``element`` holds ``<group>.perm`` and ``<group>.scale`` of the table's groups, by
    row of the variant; ``shards`` are (S, 2) int64, the first row of each shard that the variant would have, and the
    one behind its last, so that row blocks and the order of a stream are those of a stored variant.
    """

    def __init__(
        self,
        tensor: str,
        dtype: np.dtype[Any],
        raw: TensorReader,
        origins: NDArray[np.int64],
        table: Symmetry,
        element: Mapping[str, TensorReader],
        shards: NDArray[np.int64],
    ) -> None:
        self._tensor, self._raw, self._origins, self._table = tensor, raw, origins, table
        self._element, self._shards = dict(element), shards
        self.dtype, self.shape = dtype, raw.shape
        self.row_bytes = raw.row_bytes // raw.dtype.itemsize * dtype.itemsize
        self.source = f"computed from {raw.source}"

    @classmethod
    def of(
        cls,
        tensor: Tensor,
        symmetry: Symmetry,
        raw: TensorReader,
        origins: NDArray[np.int64],
        element: Callable[[str], TensorReader],
        shards: NDArray[np.int64],
    ) -> "ComputedReader":
        """Make a reader of a tensor of a zoo with this table; ``element`` gives readers of its groups' elements."""
        table = table_of_tensor(tensor.name, symmetry)
        # the identity of one checkpoint names the tensors in which elements of the table are stored
        readers = {name: element(name) for name in GroupElement.identity(table, 1).to_tensors()}
        return cls(tensor.name, numpy_dtype(variant_dtype(tensor.dtype)), raw, origins, table, readers, shards)

    @property
    def row_blocks(self) -> NDArray[np.int64]:
        """(P,) first rows of the blocks in which a stored variant would have the tensor."""
        step = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        return np.concatenate([np.arange(start, stop, step) for start, stop in self._shards.tolist()])

    def gather(
        self, rows: NDArray[np.int64], key: tuple[Any, ...] = (), *, private: ShardMaps | None = None
    ) -> NDArray[Any]:
        """Rows as one array of its own."""
        step, count = self._step, len(rows)
        if count <= step:
            return self._compute(rows)[(slice(None), *key)]
        pieces = (np.arange(start, min(start + step, count)) for start in range(0, count, step))
        return assemble(count, ((piece, self._compute(rows[piece])[(slice(None), *key)]) for piece in pieces))

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, ``PIECE_BYTES`` of raw rows at a time."""
        return (self._compute(rows[start : start + self._step]) for start in range(0, len(rows), self._step))

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks on other machines from which raw rows and group elements are read."""
        element = (span for reader in self._element.values() for span in reader.required_blocks(rows))
        return [*self._raw.required_blocks(self._origins[rows]), *element]

    @property
    def _step(self) -> int:
        """Rows of a piece."""
        return max(1, PIECE_BYTES // max(1, self._raw.row_bytes))

    def _compute(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        raw = self._raw.gather(self._origins[rows])
        # no group acts on this tensor: the variant differs in its dtype at most
        if not self._element or not len(rows):
            return raw.astype(self.dtype)
        element = GroupElement.from_tensors({name: reader.gather(rows) for name, reader in self._element.items()})
        return apply(element, {self._tensor: raw}, self._table)[self._tensor]


def table_of_tensor(tensor: str, symmetry: Symmetry) -> Symmetry:
    """The table of one tensor alone; the first of groups that are permuted together leads."""
    actions = symmetry.actions_on(tensor)
    used = {name for action in actions for name in action.groups}
    first: dict[str, str] = {}
    groups: list[Group] = []
    for group in symmetry.groups:
        if group.id in used:
            leader = symmetry.leader(group.id)
            perm = Like(first[leader.id]) if leader.id in first else leader.perm
            first.setdefault(leader.id, group.id)
            groups.append(replace(group, perm=perm))
    return Symmetry(tuple(groups), actions)

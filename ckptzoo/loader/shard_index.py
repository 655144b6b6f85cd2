"""Where every stacked tensor of a tree lies, and the maps that its arrays are views of."""

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import UnknownNameError
from ckptzoo.format.files import Files
from ckptzoo.format.shard import ShardMap
from ckptzoo.format.tree import DIGEST, Tree
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.layout import RAW, Span

MAX_MAPS = 256
"""Shards that are kept mapped at a time; arrays that are in use keep theirs."""

Maps = dict[str, ShardMap]
"""Maps of the caller's own, by the path of the file: what it writes into their arrays is seen by nobody else."""


@dataclass(frozen=True)
class TensorLocations:
    """One tensor in every shard that holds it, in zoo order.

    Parameters
    ----------
    starts, stops : (S,) int64, the first row in each shard and the one behind its last.
    shards : (S,) numbers of the shards in the directory.
    offsets : (S,) bytes from the start of each shard to its first row.
    row_blocks : (P,) int64, first row of every block of rows that has a digest.
    places : (P,) int64, where each block stands in the index.
    """

    dtype: str
    shape: tuple[int, ...]
    row_bytes: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    shards: tuple[int, ...]
    offsets: tuple[int, ...]
    row_blocks: NDArray[np.int64]
    places: NDArray[np.int64]


class ShardIndex:
    """The shards of a tree, opened when first needed."""

    def __init__(self, files: Files, tree: Tree, arch: Architecture) -> None:
        self._where = f"{files.name}/{tree.parts[0].tree if tree.parts else 'parts'}"
        self._here, self._index = files.here, tree.blocks
        index = tree.outline
        starts = np.cumsum([0, *(part.rows for part in tree.parts)], dtype=np.int64)
        whole = index["tensor"].is_null().to_numpy()
        number = np.cumsum(whole) - 1  # every row belongs to the shard whose own row came last
        parts = index["part"].to_numpy()
        base = starts[parts]
        names = index["file"].to_pylist()
        heads = np.flatnonzero(whole)
        self._paths = [f"{tree.parts[parts[at]].path}/{names[at]}" for at in heads]
        self._shards = number
        self._sizes = index["nbytes"].to_numpy()[heads]
        self._stems = [(int(parts[at]), names[at].rpartition("-")[0]) for at in heads]
        self._rows = np.diff(starts)
        self._extents = _extents(index, base, whole, number, names) if tree.parts else _none(arch)
        self._maps: OrderedDict[str, ShardMap] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": OrderedDict()}

    def extents(self, stem: str, tensor: str) -> TensorLocations:
        """Where a tensor lies; raises UnknownNameError when the stem's shards have no such tensor."""
        try:
            return self._extents[stem, tensor]
        except KeyError:
            raise UnknownNameError(self._where, "tensor", tensor, list(self.tensors(stem))) from None

    def tensors(self, stem: str) -> Iterator[str]:
        """Names of the tensors in a stem's shards."""
        return (tensor for found, tensor in self._extents if found == stem)

    def lacks(self, stem: str) -> NDArray[np.bool_]:
        """(P,) whether each of the tree's parts has rows and no shards of a stem."""
        lacking = self._rows > 0
        lacking[[part for part, found in self._stems if found == stem]] = False
        return lacking

    def map(self, shard: int, *, private: Maps | None = None) -> ShardMap:
        """The shard's map: the shared one, whose arrays are handed out read-only, or one of the caller's own."""
        path = f"{self._here}/{self._paths[shard]}"
        kept: MutableMapping[str, ShardMap] = self._maps if private is None else private
        found = kept.pop(path, None) or ShardMap(path, nbytes=int(self._sizes[shard]))
        kept[path] = found  # the one that was used last stands last
        if len(self._maps) > MAX_MAPS:
            self._maps.popitem(last=False)
        return found

    def spans(self, extents: TensorLocations, blocks: Sequence[int]) -> list[Span]:
        """Where some of a tensor's blocks lie, and their digests."""
        index = self._index.select(["offset", "nbytes", DIGEST])
        made: list[Span] = []
        for at in extents.places[np.asarray(blocks, np.int64)].tolist():
            offset, nbytes, digest = (column[at].as_py() for column in index.columns)
            made.append(Span(self._paths[self._shards[at]], offset, offset + nbytes, digest))
        return made

    def will_need(self, stem: str, row: int) -> None:
        """Ask the kernel to read one row of a stem's tensors ahead."""
        wanted: list[tuple[int, int, int]] = []
        for extents in (extents for (found, _), extents in self._extents.items() if found == stem):
            at = int(np.searchsorted(extents.starts, row, side="right")) - 1
            offset = extents.offsets[at] + (row - int(extents.starts[at])) * extents.row_bytes
            wanted.append((extents.shards[at], offset, extents.row_bytes))
        for shard, offset, nbytes in sorted(wanted):
            self.map(shard).will_need(offset, nbytes)


def _extents(
    index: Any, base: Any, whole: Any, number: Any, files: list[str]
) -> dict[tuple[str, str], TensorLocations]:
    names = index["tensor"].to_pylist()
    first = base + index["row_start"].to_numpy()
    stop = base + index["row_stop"].to_numpy()
    offset, nbytes = index["offset"].to_numpy(), index["nbytes"].to_numpy()
    dtypes, shapes = index["dtype"].to_pylist(), index["shape"].to_pylist()
    groups: dict[tuple[str, str], list[int]] = {}
    for at in np.flatnonzero(~whole).tolist():
        groups.setdefault((files[at].rpartition("-")[0], names[at]), []).append(at)
    made: dict[tuple[str, str], TensorLocations] = {}
    for key, places in groups.items():
        rows = np.array(places)
        rows = rows[np.argsort(first[rows], kind="stable")]
        heads = rows[np.flatnonzero(np.diff(number[rows], prepend=-1))]
        tails = rows[np.flatnonzero(np.diff(number[rows], append=-1))]
        at = int(rows[0])
        made[key] = TensorLocations(
            dtypes[at],
            tuple(shapes[at][1:]),
            int(nbytes[at]) // shapes[at][0],
            first[heads],
            stop[tails],
            tuple(number[heads].tolist()),
            tuple(offset[heads].tolist()),
            first[rows],
            rows,
        )
    return made


def _none(arch: Architecture) -> dict[tuple[str, str], TensorLocations]:
    """The raw tensors of a zoo without checkpoints."""
    none = np.zeros(0, np.int64)
    return {
        (RAW, tensor.name): TensorLocations(tensor.dtype, tensor.shape, tensor.nbytes, none, none, (), (), none, none)
        for tensor in arch.tensors
    }

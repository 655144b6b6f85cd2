"""Where every stacked tensor of a tree is, and the maps that its arrays are views of."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import UnknownNameError
from ckptzoo.format.files import Files
from ckptzoo.format.shard import ShardMap
from ckptzoo.format.table import numbers
from ckptzoo.format.tree import DIGEST, Tree
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.layout import RAW, Span

MAX_MAPS = 256
"""The maximum number of shards that are kept mapped; arrays in use keep their maps."""

ShardMaps = dict[str, ShardMap]
"""Maps that belong to the caller, by the path of the file: writing to their arrays affects no other reader."""


@dataclass(frozen=True)
class TensorLocations:
    """One tensor in every shard that holds it, in zoo order.

    ``starts`` and ``stops`` are (S,) int64, the first row in each shard and the one behind its last; ``shards`` are the
    (S,) numbers of the shards in the index; ``offsets`` are the (S,) bytes from the start of each shard to its first
    row; ``row_blocks`` are (P,) int64, the first row of every block of rows that has a digest; ``entries`` are (P,)
    int64, the index row of each block.
    """

    dtype: str
    shape: tuple[int, ...]
    row_bytes: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    shards: tuple[int, ...]
    offsets: tuple[int, ...]
    row_blocks: NDArray[np.int64]
    entries: NDArray[np.int64]

    def place_of(self, row: int) -> tuple[int, int]:
        """The position in ``shards`` of the one that holds a row, and the row's first byte there."""
        place = bisect_right(self._firsts, row) - 1
        return place, self.offsets[place] + (row - self._firsts[place]) * self.row_bytes

    @cached_property
    def _firsts(self) -> list[int]:
        """The items of ``starts``, among which one is found in a tenth of the time of an array."""
        return self.starts.tolist()


class ShardIndex:
    """The shards of a tree, opened when first needed.

    ``tree`` is the tree whose index is used; its digests are read only where blocks are fetched from another machine;
    ``arch`` is the zoo's architecture, which gives the tensors of a tree without parts.
    """

    def __init__(self, files: Files, tree: Tree, arch: Architecture) -> None:
        self._location = f"{files.name}/{tree.parts[0].tree if tree.parts else 'parts'}"
        self._here, self._blocks = files.here, tree.blocks
        outline = tree.outline
        bounds = np.cumsum([0, *(part.rows for part in tree.parts)], dtype=np.int64)
        names = outline["tensor"].to_pylist()
        is_shard = np.array([name is None for name in names], np.bool_)
        shard_numbers = np.cumsum(is_shard) - 1  # every row belongs to the shard whose own row came last
        parts = numbers(outline["part"])
        file_names = outline["file"].to_pylist()
        shard_rows = np.flatnonzero(is_shard)
        self._paths = [f"{tree.parts[parts[row]].path}/{file_names[row]}" for row in shard_rows]
        self._shard_numbers = shard_numbers
        self._offsets, self._nbytes = numbers(outline["offset"]), numbers(outline["nbytes"])
        self._digests: pa.ChunkedArray | None = None
        self._sizes = self._nbytes[shard_rows]
        # a shard is named <stem>-<number>.safetensors, and a stem may have hyphens of its own
        self._stems = [(int(parts[row]), file_names[row].rpartition("-")[0]) for row in shard_rows]
        self._part_rows = np.diff(bounds)
        self._locations = (
            _tensor_locations(outline, bounds[parts], is_shard, shard_numbers, file_names)
            if tree.parts
            else _without_rows(arch)
        )
        self._maps: OrderedDict[str, ShardMap] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        # a map cannot be pickled; the other process opens the files itself
        return {**self.__dict__, "_maps": OrderedDict(), "_digests": None}

    def locations(self, stem: str, tensor: str) -> TensorLocations:
        """Where a tensor is; raises UnknownNameError when the stem's shards have no such tensor."""
        try:
            return self._locations[stem, tensor]
        except KeyError:
            raise UnknownNameError(self._location, "tensor", tensor, list(self.tensors(stem))) from None

    def tensors(self, stem: str) -> Iterator[str]:
        """Names of the tensors in a stem's shards."""
        return (tensor for own, tensor in self._locations if own == stem)

    def parts_without(self, stem: str) -> NDArray[np.bool_]:
        """(P,) whether each of the tree's parts has rows and no shards of a stem."""
        lacking = self._part_rows > 0
        lacking[[part for part, own in self._stems if own == stem]] = False
        return lacking

    def map(self, shard: int, *, private: ShardMaps | None = None) -> ShardMap:
        """The shard's map: the shared one, whose arrays are handed out read-only, or one of the caller's own."""
        path = f"{self._here}/{self._paths[shard]}"
        maps: MutableMapping[str, ShardMap] = self._maps if private is None else private
        shard_map = maps.pop(path, None) or ShardMap(path, nbytes=int(self._sizes[shard]))
        maps[path] = shard_map  # reinserted, so that the map used last is the last to be dropped
        if len(self._maps) > MAX_MAPS:
            self._maps.popitem(last=False)
        return shard_map

    def spans(self, locations: TensorLocations, blocks: Sequence[int]) -> list[Span]:
        """Where some of a tensor's blocks are, and their digests."""
        digests = self._digests = self._blocks[DIGEST] if self._digests is None else self._digests
        spans: list[Span] = []
        for entry in locations.entries[np.asarray(blocks, np.int64)].tolist():
            offset, digest = int(self._offsets[entry]), digests[entry].as_py()
            stop = offset + int(self._nbytes[entry])
            spans.append(Span(self._paths[self._shard_numbers[entry]], offset, stop, digest))
        return spans

    def will_need(self, stem: str, row: int) -> None:
        """Ask the kernel to read one row of a stem's tensors ahead."""
        pieces: dict[int, list[tuple[int, int]]] = {}
        for locations in (locations for (own, _), locations in self._locations.items() if own == stem):
            place, offset = locations.place_of(row)
            pieces.setdefault(locations.shards[place], []).append((offset, locations.row_bytes))
        for shard, own in pieces.items():
            mapped = self.map(shard)
            for offset, nbytes in sorted(own):  # in file order
                mapped.will_need(offset, nbytes)


def _tensor_locations(
    outline: Any, part_starts: Any, is_shard: Any, shard_numbers: Any, files: list[str]
) -> dict[tuple[str, str], TensorLocations]:
    """The locations of every tensor of every stem, from the columns of a tree's index."""
    names = outline["tensor"].to_pylist()
    first = part_starts + numbers(outline["row_start"])
    stop = part_starts + numbers(outline["row_stop"])
    offset, nbytes = numbers(outline["offset"]), numbers(outline["nbytes"])
    dtypes, shapes = outline["dtype"].to_pylist(), outline["shape"].to_pylist()
    groups: dict[tuple[str, str], list[int]] = {}
    for entry in np.flatnonzero(~is_shard).tolist():
        groups.setdefault((files[entry].rpartition("-")[0], names[entry]), []).append(entry)
    located: dict[tuple[str, str], TensorLocations] = {}
    for key, unordered in groups.items():
        entries = np.array(unordered)
        entries = entries[np.argsort(first[entries], kind="stable")]
        heads = entries[np.flatnonzero(np.diff(shard_numbers[entries], prepend=-1))]
        tails = entries[np.flatnonzero(np.diff(shard_numbers[entries], append=-1))]
        example = int(entries[0])
        located[key] = TensorLocations(
            dtype=dtypes[example],
            shape=tuple(shapes[example][1:]),
            row_bytes=int(nbytes[example]) // shapes[example][0],
            starts=first[heads],
            stops=stop[tails],
            shards=tuple(shard_numbers[heads].tolist()),
            offsets=tuple(offset[heads].tolist()),
            row_blocks=first[entries],
            entries=entries,
        )
    return located


def _without_rows(arch: Architecture) -> dict[tuple[str, str], TensorLocations]:
    """The raw tensors of a zoo without checkpoints."""
    none = np.zeros(0, np.int64)
    return {
        (RAW, tensor.name): TensorLocations(tensor.dtype, tensor.shape, tensor.nbytes, none, none, (), (), none, none)
        for tensor in arch.tensors
    }

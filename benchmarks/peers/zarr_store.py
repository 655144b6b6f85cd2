"""zarr v3: one array a tensor, one shard an array, uncompressed chunks of whole checkpoints."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.errors import ZarrUserWarning

from benchmarks.layers_weights import Weights
from benchmarks.peers.peer import Arrays, Shapes

CHUNK_BYTES = 4 * 2**20
Handle = dict[str, Any]


@dataclass(frozen=True)
class ZarrPeer:
    """Chunks of at most 4 MiB (one checkpoint at least) are read one at a time, which is faster than ``array[:]``."""

    label: str = "zarr"
    how: str = "an array a tensor, chunks of whole checkpoints up to 4 MiB in one shard, a chunk at a time"
    store: str = "zarr"

    def write(self, folder: Path, weights: Weights) -> Iterator[int]:
        group = zarr.create_group(folder / "store.zarr", zarr_format=3)
        for tensor in weights.arch.tensors:
            shape = (weights.members, *tensor.shape)
            rows = chunk_rows(weights.members, tensor.nbytes)
            array = group.create_array(
                tensor.name,
                shape=shape,
                dtype=tensor.dtype,
                chunks=(rows, *tensor.shape),
                shards=shape,
                compressors=None,
            )
            array[:] = np.stack([weights.tensor(tensor.name, member) for member in range(weights.members)])
            yield weights.members * tensor.nbytes
        with warnings.catch_warnings(action="ignore", category=ZarrUserWarning):
            zarr.consolidate_metadata(group.store)  # it warns that version 3 does not specify this yet

    def catalogue(self, folder: Path) -> Shapes | None:
        group = zarr.open_consolidated(folder / "store.zarr", mode="r")
        return {name: array.shape for name, array in group.arrays()}

    def open(self, folder: Path, names: Sequence[str]) -> Handle:
        group = zarr.open_consolidated(folder / "store.zarr", mode="r")
        return {name: group[name] for name in names}

    def layer(self, handle: Handle, name: str) -> Arrays:
        array = handle[name]
        step = array.chunks[0]
        return (array[at : at + step] for at in range(0, array.shape[0], step))

    def checkpoint(self, handle: Handle, member: int) -> Arrays:
        return (array[member : member + 1] for array in handle.values())


def chunk_rows(members: int, row_bytes: int) -> int:
    """The most checkpoints that divide ``members`` and stay within the chunk's bytes, one at least."""
    fits = [rows for rows in range(1, members + 1) if members % rows == 0 and rows * row_bytes <= CHUNK_BYTES]
    return max(fits, default=1)

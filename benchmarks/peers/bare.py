"""The limit: np.memmap over the shards of a zoo, every offset known beforehand."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.layers_weights import Weights
from benchmarks.peers.peer import Arrays, Shapes
from benchmarks.peers.zoo import ZooPeer

_DTYPES = {"F32": "<f4", "I64": "<i8"}


@dataclass(frozen=True)
class Place:
    """One stacked tensor in one shard."""

    path: Path
    start: int
    stop: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Handle:
    """Where the tensors lie, and the shards that are mapped; a shard is mapped when it is first touched."""

    places: dict[str, list[Place]]
    maps: dict[Path, NDArray[np.uint8]] = field(default_factory=dict)

    def array(self, place: Place) -> NDArray[Any]:
        """A view of the mapped shard."""
        if place.path not in self.maps:
            self.maps[place.path] = np.memmap(place.path, np.uint8, "r").view(np.ndarray)
        return self.maps[place.path][place.start : place.stop].view(place.dtype).reshape(place.shape)


@dataclass(frozen=True)
class BarePeer:
    """What is left when nothing is checked or looked up: map each shard, touch the pages."""

    label: str = "np.memmap"
    how: str = "the limit: np.memmap of each shard of a zoo of its own when first touched, offsets known beforehand"
    store: str = "bare"

    def write(self, folder: Path, weights: Weights) -> Iterator[int]:
        return ZooPeer().write(folder, weights)

    def catalogue(self, folder: Path) -> Shapes | None:
        return None

    def open(self, folder: Path, names: Sequence[str]) -> Handle:
        handle = Handle({name: [] for name in names})
        for path in sorted((folder / "resnet18" / "parts").glob("*/raw-*.safetensors")):
            with path.open("rb") as file:
                base = 8 + int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(base - 8))
            for name in names:
                start, stop = (base + at for at in header[name]["data_offsets"])
                dtype, shape = _DTYPES[header[name]["dtype"]], tuple(header[name]["shape"])
                handle.places[name].append(Place(path, start, stop, dtype, shape))
        return handle

    def layer(self, handle: Handle, name: str) -> Arrays:
        return (handle.array(place) for place in handle.places[name])

    def checkpoint(self, handle: Handle, member: int) -> Arrays:
        for places in handle.places.values():
            row = member
            for place in places:
                if 0 <= row < place.shape[0]:
                    yield handle.array(place)[row]
                row -= place.shape[0]

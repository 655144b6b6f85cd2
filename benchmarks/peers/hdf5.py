"""HDF5: one contiguous dataset a tensor, read straight into a buffer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.layers_weights import Weights
from benchmarks.peers.peer import Arrays, Shapes

BUFFER_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Handle:
    """The file and its datasets; the file is closed when the last dataset goes."""

    file: h5py.File
    datasets: dict[str, Any]


@dataclass(frozen=True)
class Hdf5Peer:
    """``read_direct`` of at most 8 MiB (one checkpoint at least) at a time, which is faster than all at once."""

    label: str = "HDF5"
    how: str = "a contiguous dataset a tensor, read_direct into one buffer of up to 8 MiB"
    store: str = "hdf5"

    def write(self, folder: Path, weights: Weights) -> Iterator[int]:
        with h5py.File(folder / "store.h5", "w", libver="latest") as file:
            datasets = {
                tensor.name: file.create_dataset(tensor.name, (weights.members, *tensor.shape), tensor.dtype)
                for tensor in weights.arch.tensors
            }
            for member in range(weights.members):
                for name, array in weights.member(member).items():
                    datasets[name][member] = array
                yield weights.arch.nbytes

    def catalogue(self, folder: Path) -> Shapes | None:
        with h5py.File(folder / "store.h5", "r", libver="latest") as file:
            return {name: dataset.shape for name, dataset in file.items()}

    def open(self, folder: Path, names: Sequence[str]) -> Handle:
        file = h5py.File(folder / "store.h5", "r", libver="latest")
        return Handle(file, {name: file[name] for name in names})

    def layer(self, handle: Handle, name: str) -> Arrays:
        dataset = handle.datasets[name]
        count, *shape = dataset.shape
        row_bytes = dataset.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        step = min(count, max(1, BUFFER_BYTES // row_bytes))
        buffer = np.empty((step, *shape), dataset.dtype)
        for start in range(0, count, step):
            rows = min(step, count - start)
            dataset.read_direct(buffer, np.s_[start : start + rows], np.s_[:rows])
            yield buffer[:rows]

    def checkpoint(self, handle: Handle, member: int) -> Arrays:
        for dataset in handle.datasets.values():
            buffer = np.empty(dataset.shape[1:], dataset.dtype)
            dataset.read_direct(buffer, np.s_[member])
            yield buffer

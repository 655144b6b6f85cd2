"""Reads on the clock: every reader in turn, cold then warm, every byte consumed alike and outputs compared."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import turns
from benchmarks.layers_pages import evict, files_of, resident
from benchmarks.layers_weights import LAYERS
from benchmarks.peers.peer import Arrays, Peer
from ckptzoo.schema.architecture import Architecture

CONSUMED = "the exclusive or of all 32-bit words of every array as the reader hands it out (numpy.bitwise_xor.reduce)"
WARM_READS = 3
"""Warm reads after each cold one."""


@dataclass(frozen=True)
class Operation:
    """One thing to read, in the same way through every reader.

    Parameters
    ----------
    names
        the tensors that are located before the clock starts; none when opening is what is measured.
    nbytes
        bytes that are read.
    read
        what is timed, given a reader, its folder and its open handle; returns what must be equal for all.
    """

    key: str
    title: str
    nbytes: int
    names: tuple[str, ...]
    read: Callable[[Peer, Path, Any], object]


@dataclass
class Samples:
    """Seconds of every reader of one operation, and what the page cache still held before the cold reads."""

    operation: Operation
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    left: float = 0.0

    def median(self, cache: str, label: str) -> float | None:
        """Median seconds of a reader, or None where it has no such operation."""
        found = self.seconds.get((cache, label))
        return statistics.median(found) if found else None


def consume(arrays: Iterable[NDArray[Any]]) -> tuple[int, int]:
    """Touch every byte: the exclusive or of all 32-bit words, and the number of bytes."""
    words, nbytes = 0, 0
    for array in arrays:
        words ^= int(np.bitwise_xor.reduce(array.reshape(-1).view(np.uint32)))
        nbytes += array.nbytes
    return words, nbytes


def operations(arch: Architecture, members: int) -> list[Operation]:
    """One layer of three sizes, one checkpoint, every layer in turn, and opening."""
    made: list[Operation] = []
    for key, name in zip(("small", "medium", "large"), LAYERS, strict=True):
        size = arch[name].nbytes
        made.append(
            Operation(key, f"one layer of {members}, {human(size)} each", members * size, (name,), _layers((name,)))
        )
    middle = members // 2
    made.append(
        Operation(
            "checkpoint",
            f"one checkpoint, {human(arch.nbytes)}",
            arch.nbytes,
            arch.names,
            lambda peer, folder, handle: consume(peer.checkpoint(handle, middle)),
        )
    )
    whole = members * arch.nbytes
    made.append(Operation("every", f"every layer, {human(whole)}", whole, arch.names, _layers(arch.names)))
    made.append(Operation("open", "open the zoo", 0, (), lambda peer, folder, handle: peer.catalogue(folder)))
    return made


def _layers(names: tuple[str, ...]) -> Callable[[Peer, Path, Any], object]:
    def chain(peer: Peer, handle: Any) -> Arrays:
        for name in names:
            yield from peer.layer(handle, name)

    return lambda peer, folder, handle: consume(chain(peer, handle))


def measure(operation: Operation, peers: Sequence[Peer], folder: Path, repeats: int) -> Iterator[Samples]:
    """Time an operation through every reader, ``repeats`` times over, yielding what is known after each reader.

    Handles are opened again for every read, off the clock. Before each cold read the store's files are then flushed and
    dropped from the page cache; the warm reads follow it, so that each finds the pages that the one before it brought
    in. Every reader has files of its own, so that none finds what another one brought into a cache of the host.

    Raises
    ------
    ValueError
        Two readers read different things.
    """
    samples = Samples(operation)
    agreed: object = None
    for peer in turns(peers, repeats):
        store = folder / peer.store
        files = files_of(store)
        for cache in ("cold", *["warm"] * WARM_READS):
            gc.collect()
            handle = peer.open(store, operation.names) if operation.names else None
            if cache == "cold":
                evict(files)
                samples.left = max(samples.left, resident(files))
            seconds, found = _timed(operation, peer, store, handle)
            del handle
            if found is None:
                break
            agreed = found if agreed is None else agreed
            if found != agreed:
                raise ValueError(f"{peer.label}: {operation.title}: expected {agreed}, got {found}.")
            samples.seconds.setdefault((cache, peer.label), []).append(seconds)
        yield samples


def _timed(operation: Operation, peer: Peer, store: Path, handle: Any) -> tuple[float, object]:
    gc.disable()
    try:
        start = time.perf_counter()
        found = operation.read(peer, store, handle)
        return time.perf_counter() - start, found
    finally:
        gc.enable()


def human(nbytes: int) -> str:
    """Bytes for people: ``256 B``, ``147 kB``, ``9.4 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} B"

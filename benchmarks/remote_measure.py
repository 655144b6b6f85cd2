"""Reads over a link on the clock: every contender in turn, with empty caches; bytes and requests from the relay."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.figures import turns
from benchmarks.layers_measure import consume, human
from benchmarks.layers_weights import LAYERS
from benchmarks.remote_contenders import Contender, HubFiles, Ours, Place, Plain, Snapshot, Zarr, opened
from benchmarks.remote_material import MANY, Material, Piece
from benchmarks.remote_relay import Counted, Link, Relay

SLOW_SECONDS = 6.0
"""A read that took longer is not repeated."""
FREE = Link()
"""No delay, and as many bytes a second as the processes can carry."""
PLAIN, PARALLEL, OURS, VIEWS = Plain(), Plain(8), Ours(), Ours(whole=False)
SNAPSHOT, HF, TUNED, ZARR = Snapshot(), HubFiles(False), HubFiles(True), Zarr()
EVERYONE: tuple[Contender, ...] = (PLAIN, PARALLEL, OURS, VIEWS, SNAPSHOT, HF, TUNED, ZARR)
Read = Callable[[Contender, Any], object]


@dataclass(frozen=True)
class Operation:
    """One thing to read over one link, in the same way by every contender.

    Parameters
    ----------
    nbytes
        of weights; 0 where none are read.
    shards
        files that hold them in the zoo.
    read
        what is timed, given a handle; None where opening is what is timed.
    """

    key: str
    title: str
    nbytes: int
    shards: int
    link: Link
    contenders: tuple[Contender, ...]
    read: Read | None


@dataclass
class Samples:
    """Seconds of every contender of one operation, and what went over the link in each read."""

    operation: Operation
    seconds: dict[str, list[float]] = field(default_factory=dict)
    counted: dict[str, list[Counted]] = field(default_factory=dict)

    def median(self, label: str) -> float | None:
        """Median seconds of a contender, or None where it was not measured."""
        found = self.seconds.get(label)
        return statistics.median(found) if found else None

    def received(self, label: str) -> float | None:
        """Median bytes from the servers, heads of answers included."""
        found = self.counted.get(label)
        return statistics.median(counted.received for counted in found) if found else None

    def requests(self, label: str) -> float | None:
        """Median number of requests, redirected ones included."""
        found = self.counted.get(label)
        return statistics.median(counted.requests for counted in found) if found else None


def operations(material: Material, link: Link) -> Iterator[Operation]:
    """Opening, a layer of three sizes, one checkpoint, a layer over a free link, and ours of many more checkpoints."""
    weights, times = material.weights, material.times
    arch, count, many = weights.arch, weights.members, times * weights.members
    each = tuple(one for one in EVERYONE if one != VIEWS)
    small = tuple(one for one in each if one != SNAPSHOT)
    medium = tuple(one for one in small if one != HF)
    again, in_runs = Ours(MANY), Ours(MANY, whole=False)
    by = {"small": small, "medium": medium, "large": EVERYONE}
    by_many = {"small": (Plain(times=times), again), "medium": (Plain(times=times), again), "large": (in_runs,)}
    layers = [
        (key, name, f"{human(arch[name].nbytes)} of", arch[name].nbytes, len(material.layers[name]))
        for key, name in zip(by, LAYERS, strict=True)
    ]
    yield Operation("open", "open", 0, 0, link, (OURS, TUNED, ZARR), None)
    for key, name, title, nbytes, shards in layers:
        yield Operation(key, f"{title} {count}", count * nbytes, shards, link, by[key], _layer(name))
    yield Operation("checkpoint", "one checkpoint", arch.nbytes, 1, link, each, _checkpoint(count // 2))
    _, name, title, nbytes, shards = layers[-1]
    free = (PLAIN, PARALLEL, OURS, ZARR)
    yield Operation("free", f"{title} {count}, free link", count * nbytes, shards, FREE, free, _layer(name))
    yield Operation("many-open", f"open {many:,}", 0, 0, link, (again,), None)
    for key, name, title, nbytes, shards in layers:
        size, by_these = many * nbytes, by_many[key]
        yield Operation(f"many-{key}", f"{title} {many:,}", size, times * shards, link, by_these, _layer(name))


def _layer(name: str) -> Read:
    return lambda contender, handle: consume(contender.layer(handle, name))


def _checkpoint(member: int) -> Read:
    return lambda contender, handle: consume(contender.checkpoint(handle, member))


def measure(samples: Samples, place: Place, relay: Relay, repeats: int) -> Iterator[str]:
    """Time an operation by every contender, ``repeats`` times over, yielding the contender after each read.

    What a contender does to open is on no clock but that of opening; one slower than ``SLOW_SECONDS`` reads once.

    Raises
    ------
    ValueError
        Two contenders read different things.
    """
    operation, contenders = samples.operation, samples.operation.contenders
    agreed: object = None
    relay.become(operation.link)
    for contender in turns(contenders, repeats):
        if max(samples.seconds.get(contender.label, [0.0])) < SLOW_SECONDS:
            seconds, counted, found = _timed(operation, contender, place, relay)
            agreed = found if agreed is None else agreed
            if found != agreed:
                raise ValueError(f"{contender.label}: {operation.title}: expected {agreed}, got {found}.")
            samples.seconds.setdefault(contender.label, []).append(seconds)
            samples.counted.setdefault(contender.label, []).append(counted)
        yield contender.label


def relay_alone(place: Place, relay: Relay, link: Link) -> dict[str, float]:
    """What the relay carries as this link: bytes a second of one plain request, and milliseconds of one byte."""
    piece = max(
        (piece for name in LAYERS for piece in place.material.layers[name]), key=lambda piece: piece.stop - piece.start
    )
    relay.become(link)
    with opened(PLAIN, place) as handle:
        seconds = [
            sum(_clocked(PLAIN, handle, replace(piece, stop=stop)) for _ in range(3)) / 3
            for stop in (piece.start + 1, piece.stop)
        ]
    return {"byte_ms": 1e3 * seconds[0], "bytes_a_second": (piece.stop - piece.start) / seconds[1]}


def _clocked(contender: Plain, handle: Any, piece: Piece) -> float:
    start = time.perf_counter()
    for _ in contender.read(handle, (piece,)):
        pass
    return time.perf_counter() - start


def _timed(operation: Operation, contender: Contender, place: Place, relay: Relay) -> tuple[float, Counted, object]:
    gc.collect()
    if operation.read is None:
        relay.counted()
        start = time.perf_counter()
        with opened(contender, place):
            seconds = time.perf_counter() - start
            return seconds, relay.counted(), None
    with opened(contender, place) as handle:
        relay.counted()
        start = time.perf_counter()
        found = operation.read(contender, handle)
        seconds = time.perf_counter() - start
        return seconds, relay.counted(), found

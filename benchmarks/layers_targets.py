"""What the figures should be, and whether they are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.layers_measure import Samples

SMALL_READ = 1_000_000
"""Reads of fewer bytes than this are held to a time, not to a ratio: calls weigh more than bytes there."""


@dataclass(frozen=True)
class Target:
    """One figure beside its bound; it is met when it does not exceed it."""

    what: str
    figure: float
    bound: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the figure is within the bound."""
        return self.figure <= self.bound


def of_reads(samples: Iterable[Samples]) -> Iterator[Target]:
    """Layer reads against the bare pass, and one checkpoint against a safetensors file; medians throughout."""
    for found in samples:
        key, title = found.operation.key, found.operation.title
        for cache in ("warm", "cold"):
            ours, bare = found.median(cache, "ckptzoo"), found.median(cache, "np.memmap")
            if key == "checkpoint":
                file = found.median(cache, "safetensors")
                if ours and file:
                    yield Target(f"{title}, {cache}: of a safetensors file", ours / file, 1.5, "x")
            elif ours and bare:
                if cache == "warm" and found.operation.nbytes < SMALL_READ:
                    yield Target(f"{title}, warm: above the bare pass", 1e6 * (ours - bare), 200, "us")
                else:
                    bound = 1.15 if cache == "warm" else 1.25
                    yield Target(f"{title}, {cache}: of the bare pass", ours / bare, bound, "x")


def of_opening(opening: Iterable[dict[str, Any]]) -> Iterator[Target]:
    """Opening a large zoo after imports."""
    for found in opening:
        what = f"open {found['checkpoints']:,} checkpoints in {found['parts']} part{'s' * (found['parts'] > 1)}, warm"
        yield Target(what, found["warm"]["median_ms"], 50, "ms")


def of_import(found: dict[str, Any]) -> Target:
    """Importing the package in a fresh interpreter."""
    return Target("import ckptzoo", found["import_ms"], 50, "ms")


def of_streams(streams: Iterable[dict[str, Any]]) -> Iterator[Target]:
    """Peak anonymous memory of a stream, above what the interpreter held with the zoo open."""
    for found in streams:
        order = "shuffled" if found["shuffle"] else "in order"
        what = f"RssAnon of a stream of {found['streamed'] / 1e6:,.0f} MB, {order}"
        yield Target(what, found["peak_growth"] / 1e6, found["bound"] / 1e6, "MB")

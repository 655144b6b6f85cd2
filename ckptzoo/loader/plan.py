"""The order of a stream: which row stands at which position, computed from nothing but a seed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.order import derive_key, keyed_permutation

WINDOW_BYTES = 64 * 2**20
"""Rows are shuffled within a window of this many bytes, at least one page."""

Shuffle = bool | Literal["global"]
SHUFFLES = (False, True, "global")


@dataclass(frozen=True)
class Plan:
    """One epoch's order of ``count`` rows.

    Parameters
    ----------
    pages : (P + 1,) int64: the rows are in P pages, runs that lie together in one shard.
    window : pages that are shuffled together.
    shuffle : False keeps the order. True shuffles the pages, then the rows within each window of pages, so that
        memory and requests stay bounded. ``"global"`` shuffles all rows alike.

    Notes
    -----
    The order depends on these and on seed and epoch, never on batch size, workers or ranks. Memory O(P).
    """

    pages: NDArray[np.int64]
    window: int
    shuffle: Shuffle
    seed: int
    epoch: int

    @property
    def count(self) -> int:
        """Rows in the epoch."""
        return int(self.pages[-1])

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """(P,) the pages in the order in which they are visited."""
        number = len(self.pages) - 1
        key = derive_key(self.seed, self.epoch, 0)
        return np.asarray(keyed_permutation(np.arange(number), number, key), dtype=np.int64)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """(P + 1,) the position at which each visited page starts."""
        return np.concatenate([[0], np.cumsum(np.diff(self.pages)[self._order])])

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) the rows at these positions of the epoch."""
        if self.shuffle is False or not len(positions):
            return positions
        if self.shuffle == "global":
            key = derive_key(self.seed, self.epoch)
            return np.asarray(keyed_permutation(positions, self.count, key), dtype=np.int64)
        heads = self._starts[:: self.window]
        if heads[-1] != self.count:
            heads = np.append(heads, self.count)
        owner = np.searchsorted(heads, positions, side="right") - 1
        moved = np.empty_like(positions)
        for at in np.unique(owner).tolist():
            mine, start, size = owner == at, heads[at], int(heads[at + 1] - heads[at])
            key = derive_key(self.seed, self.epoch, 1, at)
            moved[mine] = start + keyed_permutation(positions[mine] - start, size, key)
        page = np.searchsorted(self._starts, moved, side="right") - 1
        return self.pages[self._order[page]] + moved - self._starts[page]


def pages_of(rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """(P + 1,) where runs of rows of one block start and end.

    Parameters
    ----------
    rows : (N,) rows of a tree, in the stream's order.
    blocks : (B,) first row of every block of the tensor whose blocks hold the fewest rows.
    """
    owner = np.searchsorted(blocks, rows, side="right")
    return np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1, [len(rows)]]).astype(np.int64)


@dataclass(frozen=True)
class Share:
    """Which batches of a stream one of several readers takes: a rank of ``world``, a worker of ``workers``.

    Round t of the stream holds ``world`` batches of ``batch_size`` rows, one a rank; the workers of a rank take its
    batches in turn, which is the order in which a DataLoader collects them.
    """

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1


Ragged = Literal["error", "keep", "drop", "pad"]
RAGGED = ("error", "keep", "drop", "pad")
"""What becomes of the last round when its rows do not make equal shares."""


def rounds(count: int, start: int, batch_size: int, share: Share, ragged: Ragged) -> list[tuple[int, int, int]]:
    """The batches of one reader as (first position, rows, position after the round).

    Positions past ``count`` (only with ``"pad"``) stand for the epoch's first rows.
    """
    whole = (count - start) // (batch_size * share.world)
    made: list[tuple[int, int, int]] = []
    for turn in range(share.worker, whole, share.workers):
        at = start + turn * batch_size * share.world
        made.append((at + share.rank * batch_size, batch_size, at + batch_size * share.world))
    at = start + whole * batch_size * share.world
    if at < count and ragged != "drop" and whole % share.workers == share.worker:
        size = batch_size if ragged == "keep" else -(-(count - at) // share.world)
        first = at + share.rank * size
        rows = size if ragged == "pad" else max(0, min(size, count - first))
        if rows:
            made.append((first, rows, count))
    return made


def is_even(left: int, batch_size: int, world: int) -> bool:
    """Whether every rank gets the same number of the rows that are left."""
    return left % (batch_size * world) % world == 0

"""A tensor of every row of a tree, wherever its values come from: what stacked tensors and streams read.

A stack whose rows lie in shards: views of their maps, or copies.

A stack whose rows lie in shards on another machine: blocks that are fetched, checked and copied from.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.shard_index import Maps, ShardIndex, TensorLocations
from ckptzoo.schema.layout import Span

COPY_BYTES = 8 * 2**20
"""Rows that come from several places are put together so many bytes at a time."""


class TensorReader(Protocol):
    """One tensor of all rows of a tree, read by row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy has it."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """In one checkpoint."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        ...

    @property
    def row_blocks(self) -> NDArray[np.int64]:
        """(P,) first row of every run of rows that is best read together."""
        ...

    @property
    def source(self) -> str:
        """Where the rows come from, in words."""
        ...

    def gather(
        self, rows: NDArray[np.int64], rest: tuple[Any, ...] = (), *, private: Maps | None = None
    ) -> NDArray[Any]:
        """Rows as one array: a view of a file where that is possible, else an array of its own.

        Parameters
        ----------
        rows : (N,) rows of the tree, in any order.
        rest : integers and slices for the tensor's own axes.
        private : maps of the caller's own, which then may write to the array; missing ones are added.
        """
        ...

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, piece by piece."""
        ...

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks on other machines from which these rows are read; none where all is on this one."""
        ...


class ConcatReader:
    """A stack whose rows come from several others.

    Parameters
    ----------
    stacks : of the same tensor, counting the same rows.
    bounds : (R + 1,) int64, first row of every run of rows, and the number of rows.
    owners : (R,) int64, which of the stacks has the run.
    """

    def __init__(self, stacks: Sequence[TensorReader], bounds: NDArray[np.int64], owners: NDArray[np.int64]) -> None:
        self._stacks, self._bounds, self._owners = tuple(stacks), bounds, owners
        self.dtype, self.shape, self.row_bytes = stacks[0].dtype, stacks[0].shape, stacks[0].row_bytes
        self.source = " and ".join(stack.source for stack in stacks)

    @property
    def row_blocks(self) -> NDArray[np.int64]:
        """(P,) the pages of every stack, in order."""
        return np.sort(np.concatenate([stack.row_blocks for stack in self._stacks]))

    def gather(
        self, rows: NDArray[np.int64], rest: tuple[Any, ...] = (), *, private: Maps | None = None
    ) -> NDArray[Any]:
        """Rows as one array, as ``TensorReader.gather``."""
        owner = self._owner(rows)
        if not len(rows) or (owner == owner[0]).all():
            return self._stacks[owner[0] if len(rows) else 0].gather(rows, rest, private=private)
        pieces = by_owner(owner, self.row_bytes)
        return assembled(len(rows), ((some, self._stacks[at].gather(rows[some], rest)) for at, some in pieces))

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, piece by piece."""
        for at, start, stop in consecutive(self._owner(rows)):
            yield from self._stacks[at].runs(rows[start:stop])

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks on other machines from which these rows are read."""
        owner = self._owner(rows)
        return [span for at in np.unique(owner) for span in self._stacks[at].needs(rows[owner == at])]

    def _owner(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._owners[self._bounds.searchsorted(rows, side="right") - 1]


def by_owner(owner: NDArray[np.int64], row_bytes: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every owner with the places it owns, ``COPY_BYTES`` at a time."""
    step = max(1, COPY_BYTES // row_bytes)
    order = np.argsort(owner, kind="stable")
    heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
    for mine in np.split(order, heads[1:]):
        for start in range(0, len(mine), step):
            yield int(owner[mine[0]]), mine[start : start + step]


def consecutive(owner: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Every run of places of one owner: the owner, the first place, and the one behind the last."""
    start = 0
    for stop in (*(np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist(), len(owner)):
        if start < stop:
            yield int(owner[start]), start, stop
        start = stop


def assembled(count: int, pieces: Iterable[tuple[NDArray[np.int64], NDArray[Any]]]) -> NDArray[Any]:
    """One array of ``count`` rows from at least one piece, each with the places of its rows."""
    out: NDArray[Any] | None = None
    for places, found in pieces:
        if out is None:
            out = np.empty((count, *found.shape[1:]), found.dtype)
        out[evenly(places)] = found
    assert out is not None
    return out


def evenly(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Rows as a slice where they are evenly spaced upwards, so that taking them copies nothing."""
    first, last, count = int(rows[0]), int(rows[-1]), len(rows)
    if count == 1:
        return slice(first, first + 1)
    step = int(rows[1]) - first
    if step > 0 and last - first == step * (count - 1) and (count == 2 or (np.diff(rows) == step).all()):
        return slice(first, last + 1, step)
    return rows


MMAP_RUN_BYTES = 2**20
"""Runs of rows of up to so many bytes are asked for at once; the kernel reads longer ones faster by itself."""


class MmapReader:
    """One tensor of a tree in the shards of one stem."""

    def __init__(self, directory: ShardIndex, extents: TensorLocations) -> None:
        self._directory, self._extents = directory, extents
        self.dtype: np.dtype[Any] = numpy_dtype(extents.dtype)
        self.shape, self.row_bytes, self.row_blocks = extents.shape, extents.row_bytes, extents.row_blocks
        self.source = f"{len(extents.shards)} shards"

    def gather(
        self, rows: NDArray[np.int64], rest: tuple[Any, ...] = (), *, private: Maps | None = None
    ) -> NDArray[Any]:
        """Rows as one array: a view where they lie evenly spaced in one shard, else a copy."""
        if not len(rows):
            return np.empty((0, *self.shape), self.dtype)[(slice(None), *rest)]
        starts = self._extents.starts
        owner = np.searchsorted(starts, rows, side="right") - 1
        if owner[0] == owner[-1] and (owner == owner[0]).all():
            at = int(owner[0])
            return self._whole(at, private=private)[(evenly(rows - starts[at]), *rest)]
        pieces = by_owner(owner, self.row_bytes)
        found = ((some, self._whole(at)[(evenly(rows[some] - starts[at]), *rest)]) for at, some in pieces)
        return assembled(len(rows), found)

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, one view for every run of rows in one shard."""
        extents = self._extents
        for at, start, stop in consecutive(extents.starts.searchsorted(rows, side="right") - 1):
            whole = self._whole(at)
            if whole.nbytes <= MMAP_RUN_BYTES:
                self._directory.map(extents.shards[at]).will_need(extents.offsets[at], whole.nbytes)
            yield whole[evenly(rows[start:stop] - extents.starts[at])]

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """None: the shards are on this machine."""
        return ()

    def _whole(self, at: int, *, private: Maps | None = None) -> NDArray[Any]:
        """The tensor's rows in one shard, all of them, as a view."""
        extents = self._extents
        mapped = self._directory.map(extents.shards[at], private=private)
        count = int(extents.stops[at] - extents.starts[at])
        array = mapped.array(extents.offsets[at], extents.dtype, (count, *extents.shape))
        array.flags.writeable = private is not None
        return array


REMOTE_RUN_BYTES = 64 * 2**20
"""Runs of rows are fetched so many bytes at a time."""


class RemoteReader:
    """One tensor of a tree in the shards of one stem, afar."""

    def __init__(self, directory: ShardIndex, extents: TensorLocations, afar: RemoteFiles) -> None:
        self._directory, self._extents, self._afar = directory, extents, afar
        self.dtype: np.dtype[Any] = numpy_dtype(extents.dtype)
        self.shape, self.row_bytes, self.row_blocks = extents.shape, extents.row_bytes, extents.row_blocks
        self.source = f"{len(extents.shards)} shards of {afar.name}"

    def gather(
        self, rows: NDArray[np.int64], rest: tuple[Any, ...] = (), *, private: Maps | None = None
    ) -> NDArray[Any]:
        """Rows as one array of its own."""
        if not len(rows):
            return np.empty((0, *self.shape), self.dtype)[(slice(None), *rest)]
        owner = self._owner(rows)
        order = np.argsort(owner, kind="stable")
        heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
        mine = np.split(order, heads[1:])
        wanted = self._directory.spans(self._extents, [int(owner[places[0]]) for places in mine])
        sizes = [span.stop - span.start for span in wanted]
        part = [at for at, places in enumerate(mine) if len(places) * self.row_bytes < sizes[at]]

        def found() -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
            for at, data in self._afar.blocks(wanted, hold=part):
                places = mine[at]
                block = np.frombuffer(data, self.dtype).reshape(-1, *self.shape)
                yield places, block[(evenly(rows[places] - self.row_blocks[owner[places[0]]]), *rest)]

        return assembled(len(rows), found())

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, ``REMOTE_RUN_BYTES`` at a time; the next run is fetched while one is used."""
        step = max(1, REMOTE_RUN_BYTES // self.row_bytes)
        with ThreadPoolExecutor(1, thread_name_prefix="ckptzoo-run") as pool:
            coming: Future[NDArray[Any]] | None = None
            try:
                for start in range(0, len(rows), step):
                    found, coming = coming, pool.submit(self.gather, rows[start : start + step])
                    if found is not None:
                        yield found.result()
                if coming is not None:
                    yield coming.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks that hold these rows."""
        return self._directory.spans(self._extents, np.unique(self._owner(rows)).tolist())

    def _owner(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.row_blocks.searchsorted(rows, side="right") - 1

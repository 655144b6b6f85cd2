"""A tensor of every row of a tree, wherever its values come from: what stacked tensors and streams read."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.shard_index import ShardIndex, ShardMaps, TensorLocations
from ckptzoo.schema.layout import Span
from ckptzoo.text import counted, shortened

COPY_BYTES = 8 * 2**20
"""Bytes of rows from several places that are assembled at a time."""
ADVISED_BYTES = 16 * 2**20
"""The kernel is asked at once for adjacent rows of up to this many bytes, which halves the time of cold reads of 2 to
16 MB; longer ones it reads ahead as fast by itself, where the disk's read-ahead is some MiB."""
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_OTHER_NAMES = {"float": "float64", "double": "float64", "single": "float32", "half": "float16"}
REMOTE_RUN_BYTES = 64 * 2**20
"""Bytes of rows on another machine that are fetched at a time."""


class TensorReader(Protocol):
    """One tensor of all rows of a tree, read by row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in numpy."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in one checkpoint."""
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
        """A description of where the rows come from."""
        ...

    def gather(
        self, rows: NDArray[np.int64], key: tuple[Any, ...] = (), *, private: ShardMaps | None = None
    ) -> NDArray[Any]:
        """Rows as one array: a view of a file where that is possible, else an array of its own.

        ``key`` holds integers and slices for the tensor's own axes; ``private`` are maps that belong to the caller, who
        may then write to the array; missing ones are added.
        """
        ...

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, piece by piece."""
        ...

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks on other machines from which these rows are read; none where everything is on this one."""
        ...


def float_dtype(dtype: Any, location: str) -> np.dtype[Any]:
    """A dtype of floating-point numbers by its name, or as numpy or torch have it."""
    name = dtype if isinstance(dtype, str) else str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype))
    name = _OTHER_NAMES.get(name := name.removeprefix("torch."), name)
    if name not in _FLOATS:
        step = "Choose one of them, or cast what was read."
        raise ZooError(Problem(location, "dtype", f"one of {', '.join(_FLOATS)}", shortened(repr(dtype), 80), step))
    return numpy_dtype(name)


class CastReader:
    """A tensor whose rows are cast when they are read.

    ``reader`` reads the tensor as it is stored and determines rows and blocks, so a stream has the same order;
    ``dtype`` is the dtype to cast to.
    """

    def __init__(self, reader: TensorReader, dtype: np.dtype[Any]) -> None:
        self._reader, self.dtype = reader, dtype
        self.shape, self.row_bytes, self.row_blocks = reader.shape, reader.row_bytes, reader.row_blocks
        self.source = f"{reader.source}, read as {dtype}"

    def gather(
        self, rows: NDArray[np.int64], key: tuple[Any, ...] = (), *, private: ShardMaps | None = None
    ) -> NDArray[Any]:
        """Rows as one array; of their own dtype as they are stored, else a copy."""
        return self._reader.gather(rows, key, private=private).astype(self.dtype, copy=False)

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, piece by piece."""
        return (piece.astype(self.dtype, copy=False) for piece in self._reader.runs(rows))

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks on other machines from which these rows are read."""
        return self._reader.required_blocks(rows)


def cast_reader(reader: TensorReader, dtype: Any, location: str) -> TensorReader:
    """The reader of a tensor in another dtype, where one is asked for and it holds floating-point numbers."""
    if dtype is None:
        return reader
    wanted = float_dtype(dtype, location)
    return reader if reader.dtype == wanted or str(reader.dtype) not in _FLOATS else CastReader(reader, wanted)


class MmapReader:
    """A tensor whose rows are in shards on this machine: views of their maps, or copies.

    ``index`` is the tree's; ``locations`` say where the tensor is in the shards of one stem.
    """

    def __init__(self, index: ShardIndex, locations: TensorLocations) -> None:
        self._index, self._locations = index, locations
        self.dtype: np.dtype[Any] = numpy_dtype(locations.dtype)
        self.shape, self.row_bytes, self.row_blocks = locations.shape, locations.row_bytes, locations.row_blocks
        self.source = counted(len(locations.shards), "shard")

    def gather(
        self, rows: NDArray[np.int64], key: tuple[Any, ...] = (), *, private: ShardMaps | None = None
    ) -> NDArray[Any]:
        """Rows as one array: a view where they are evenly spaced in one shard, else a copy."""
        if not len(rows):
            return np.empty((0, *self.shape), self.dtype)[(slice(None), *key)]
        if len(rows) == 1:  # a checkpoint's tensors are read one by one, of which there may be hundreds
            array = self._single(int(rows[0]), private)
            return array[(slice(None), *key)] if key else array
        starts = self._locations.starts
        owner = np.searchsorted(starts, rows, side="right") - 1
        # comparing the ends first spares most scattered selections the comparison of all rows
        if owner[0] == owner[-1] and (owner == owner[0]).all():
            place = int(owner[0])
            local = as_slice(rows - starts[place])
            if not key:
                self._advise(place, local)
            return self._whole(place, private=private)[(local, *key)]
        pieces = (
            (positions, self._whole(place)[(as_slice(rows[positions] - starts[place]), *key)])
            for place, positions in split_by_owner(owner, self.row_bytes)
        )
        return assemble(len(rows), pieces)

    def among(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """A read-only array that holds these rows, contiguous and aligned, and where in it each of them is.

        All of a shard's rows, as a view, where these are in one shard, else a copy of these.
        """
        owner = np.searchsorted(self._locations.starts, rows, side="right") - 1
        if len(rows) and (owner == owner[0]).all():
            whole = self._whole(int(owner[0]))
            if whole.flags.aligned and whole.flags.c_contiguous:
                return whole, rows - self._locations.starts[owner[0]]
        return np.require(self.gather(rows), requirements=["C", "A"]), np.arange(len(rows))

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, one view for every run of rows in one shard."""
        locations = self._locations
        for place, start, stop in owner_runs(locations.starts.searchsorted(rows, side="right") - 1):
            local = as_slice(rows[start:stop] - locations.starts[place])
            self._advise(place, local)
            yield self._whole(place)[local]

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """None: the shards are on this machine."""
        return ()

    def _advise(self, place: int, rows: slice | NDArray[np.int64]) -> None:
        """Ask the kernel for rows of a shard that are adjacent and not too many."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            return
        nbytes = (rows.stop - rows.start) * self.row_bytes
        if nbytes <= ADVISED_BYTES:
            locations = self._locations
            offset = locations.offsets[place] + rows.start * self.row_bytes
            self._index.map(locations.shards[place]).will_need(offset, nbytes)

    def _whole(self, place: int, *, private: ShardMaps | None = None) -> NDArray[Any]:
        """Return all of the tensor's rows in one of its shards as a view."""
        locations = self._locations
        count = int(locations.stops[place] - locations.starts[place])
        return self._view(place, locations.offsets[place], count, private)

    def _single(self, row: int, private: ShardMaps | None) -> NDArray[Any]:
        """Return one row as a view, (1, *shape)."""
        place, offset = self._locations.place_of(row)
        return self._view(place, offset, 1, private)

    def _view(self, place: int, offset: int, count: int, private: ShardMaps | None) -> NDArray[Any]:
        """Return consecutive rows of a shard as a view, the first of them at a byte of the file."""
        locations = self._locations
        mapped = self._index.map(locations.shards[place], private=private)
        array = mapped.array(offset, locations.dtype, (count, *locations.shape))
        # a map is copy-on-write, hence writable: what one reader wrote to a shared map the others would read
        array.flags.writeable = private is not None
        return array


class RemoteReader:
    """A tensor whose rows are in shards on another machine: blocks that are fetched, checked and copied from.

    ``locations`` say where the tensor is in the shards of one stem.
    """

    def __init__(self, index: ShardIndex, locations: TensorLocations, files: RemoteFiles) -> None:
        self._index, self._locations, self._files = index, locations, files
        self.dtype: np.dtype[Any] = numpy_dtype(locations.dtype)
        self.shape, self.row_bytes, self.row_blocks = locations.shape, locations.row_bytes, locations.row_blocks
        self.source = f"{counted(len(locations.shards), 'shard')} of {files.name}"

    def gather(
        self, rows: NDArray[np.int64], key: tuple[Any, ...] = (), *, private: ShardMaps | None = None
    ) -> NDArray[Any]:
        """Rows as one array: a view of a block where they are all of it, in order, else a copy."""
        if not len(rows) or not self.row_bytes:  # of tensors without elements there is nothing to fetch
            return np.empty((len(rows), *self.shape), self.dtype)[(slice(None), *key)]
        owner = self._owner(rows)
        # a stable sort leaves the rows of a block in the order asked for: a slice, where they were ascending
        order = np.argsort(owner, kind="stable")
        heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
        positions = np.split(order, heads[1:])  # for each block the positions of its rows
        spans = self._index.spans(self._locations, [int(owner[own[0]]) for own in positions])
        sizes = [span.stop - span.start for span in spans]
        # the other rows of a block that is read in part are likely to be asked for next
        partial = [number for number, own in enumerate(positions) if len(own) * self.row_bytes < sizes[number]]

        def pieces() -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
            for number, data in self._files.blocks(spans, keep=partial):
                own = positions[number]
                block = np.frombuffer(data, self.dtype).reshape(-1, *self.shape)
                yield own, block[(as_slice(rows[own] - self.row_blocks[owner[own[0]]]), *key)]

        if len(spans) == 1 and not partial and private is None:
            return next(array for _, array in pieces())
        return assemble(len(rows), pieces())

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, ``REMOTE_RUN_BYTES`` at a time; the next run is fetched while one is used."""
        step = max(1, REMOTE_RUN_BYTES // max(1, self.row_bytes))
        with ThreadPoolExecutor(1, thread_name_prefix="ckptzoo-run") as pool:
            pending: Future[NDArray[Any]] | None = None
            try:
                for start in range(0, len(rows), step):
                    ready, pending = pending, pool.submit(self.gather, rows[start : start + step])
                    if ready is not None:
                        yield ready.result()
                if pending is not None:
                    yield pending.result()
            finally:
                # a consumer that stops early does not wait for a run that it will not read
                pool.shutdown(wait=False, cancel_futures=True)

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks that hold these rows."""
        return self._index.spans(self._locations, np.unique(self._owner(rows)).tolist()) if self.row_bytes else ()

    def _owner(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) the block of each row."""
        return self.row_blocks.searchsorted(rows, side="right") - 1


class ConcatReader:
    """A tensor whose rows come from several readers.

    All ``readers`` are of the same tensor and count the same rows; ``bounds`` are (R + 1,) int64, the first row of
    every run of rows, and the number of rows; ``owners`` are (R,) int64, the number of the reader that has the run.
    """

    def __init__(self, readers: Sequence[TensorReader], bounds: NDArray[np.int64], owners: NDArray[np.int64]) -> None:
        self._readers, self._bounds, self._owners = tuple(readers), bounds, owners
        self.dtype, self.shape, self.row_bytes = readers[0].dtype, readers[0].shape, readers[0].row_bytes
        self.source = " and ".join(reader.source for reader in readers)

    @property
    def row_blocks(self) -> NDArray[np.int64]:
        """(P,) the row blocks of every reader, in order."""
        return np.sort(np.concatenate([reader.row_blocks for reader in self._readers]))

    def gather(
        self, rows: NDArray[np.int64], key: tuple[Any, ...] = (), *, private: ShardMaps | None = None
    ) -> NDArray[Any]:
        """Rows as one array, as ``TensorReader.gather``."""
        owner = self._owner(rows)
        if not len(rows) or (owner == owner[0]).all():
            return self._readers[owner[0] if len(rows) else 0].gather(rows, key, private=private)
        pieces = (
            (positions, self._readers[number].gather(rows[positions], key))
            for number, positions in split_by_owner(owner, self.row_bytes)
        )
        return assemble(len(rows), pieces)

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, piece by piece."""
        for number, start, stop in owner_runs(self._owner(rows)):
            yield from self._readers[number].runs(rows[start:stop])

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks on other machines from which these rows are read."""
        owner = self._owner(rows)
        return [
            span
            for number in np.unique(owner).tolist()
            for span in self._readers[number].required_blocks(rows[owner == number])
        ]

    def _owner(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) the reader of each row."""
        return self._owners[self._bounds.searchsorted(rows, side="right") - 1]


def split_by_owner(owner: NDArray[np.int64], row_bytes: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every owner with the positions it owns, ``COPY_BYTES`` of rows at a time."""
    step = max(1, COPY_BYTES // max(1, row_bytes))
    if bool((owner[1:] >= owner[:-1]).all()):  # as of rows in order, where millions need not be sorted
        for number, start, stop in owner_runs(owner):
            for first in range(start, stop, step):
                yield number, np.arange(first, min(first + step, stop))
        return
    order = np.argsort(owner, kind="stable")
    heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
    for own in np.split(order, heads[1:]):
        for start in range(0, len(own), step):
            yield int(owner[own[0]]), own[start : start + step]


def owner_runs(owner: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Every run of positions of one owner: the owner, the first position, and the one behind the last."""
    start = 0
    for stop in (*(np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist(), len(owner)):
        if start < stop:
            yield int(owner[start]), start, stop
        start = stop


def assemble(count: int, pieces: Iterable[tuple[NDArray[np.int64], NDArray[Any]]]) -> NDArray[Any]:
    """One array of ``count`` rows from at least one piece, each with the positions of its rows."""
    out: NDArray[Any] | None = None
    for positions, piece in pieces:
        if out is None:
            out = np.empty((count, *piece.shape[1:]), piece.dtype)
        out[as_slice(positions)] = piece
    assert out is not None
    return out


def as_slice(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Rows as a slice where they are evenly spaced upwards, so that taking them copies nothing.

    >>> as_slice(np.array([2, 4, 6])), as_slice(np.array([3, 1]))
    (slice(2, 7, 2), array([3, 1]))
    """
    first, last, count = int(rows[0]), int(rows[-1]), len(rows)
    if count == 1:
        return slice(first, first + 1)
    step = int(rows[1]) - first
    if step > 0 and last - first == step * (count - 1) and (count == 2 or (np.diff(rows) == step).all()):
        return slice(first, last + 1, step)
    return rows

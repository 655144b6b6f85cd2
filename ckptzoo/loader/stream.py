"""Batches of checkpoints, layer by layer, in an order that follows from a seed and resumes exactly.

Three things are kept apart: ``EpochPlan`` says which row comes at which position of an epoch, ``rounds`` which
positions make a reader's batches, and ``Stream`` reads them.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import Problem, StateError, ZooError
from ckptzoo.format.table import array_of, filled_with
from ckptzoo.format.tree import LazyTable
from ckptzoo.loader.permutation import derive_key, keyed_permutation
from ckptzoo.loader.readers import TensorReader
from ckptzoo.schema.documents import digest_of
from ckptzoo.schema.layout import Span
from ckptzoo.text import counted, shown_arrays

WINDOW_BYTES = 64 * 2**20
"""Rows are shuffled within a window of this many bytes, at least one block of rows."""
ROWS_AHEAD = 4096
"""The number of rows whose order is computed together where batches have fewer, to save calls of numpy."""
_ROWS_AT_ONCE = 2**20
"""The number of rows whose blocks are looked up together."""
BATCHES_AHEAD = 2
"""The number of batches of a zoo on another machine that are fetched ahead."""

Shuffle = bool | Literal["global"]
SHUFFLES = (False, True, "global")
Remainder = Literal["error", "keep", "drop", "pad"]
REMAINDERS = ("error", "keep", "drop", "pad")
"""The treatment of the last round when its rows do not make equal shares."""

State = dict[str, Any]
"""``{revision, plan, seed, epoch, position}``: the position of a stream; small, and JSON as it is."""


@dataclass(frozen=True)
class EpochPlan:
    """One epoch's order of ``count`` rows.

    The order depends on these and on seed and epoch, never on batch size, workers or ranks. Memory O(P). ``row_blocks``
    are (P + 1,) int64: the rows are in P blocks, runs that are together in one shard; ``window`` is the number of
    blocks that are shuffled together; ``shuffle=False`` keeps the order, True shuffles the blocks, then the rows within
    each window of blocks, so that memory and requests stay bounded. ``"global"`` shuffles all rows alike.
    """

    row_blocks: NDArray[np.int64]
    window: int
    shuffle: Shuffle
    seed: int
    epoch: int

    @property
    def count(self) -> int:
        """Rows in the epoch."""
        return int(self.row_blocks[-1])

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """(P,) the blocks in the order in which they are visited."""
        count = len(self.row_blocks) - 1
        # the words 0 here and 1 below keep the keys of blocks and of rows apart
        key = derive_key(self.seed, self.epoch, 0)
        return np.asarray(keyed_permutation(np.arange(count), count, key), dtype=np.int64)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """(P + 1,) the position at which each visited block starts."""
        return np.concatenate([[0], np.cumsum(np.diff(self.row_blocks)[self._order])])

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
        windows = np.searchsorted(heads, positions, side="right") - 1
        moved = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            inside, start, size = windows == window, heads[window], int(heads[window + 1] - heads[window])
            key = derive_key(self.seed, self.epoch, 1, window)
            moved[inside] = start + keyed_permutation(positions[inside] - start, size, key)
        block = np.searchsorted(self._starts, moved, side="right") - 1
        return self.row_blocks[self._order[block]] + moved - self._starts[block]


def row_blocks_of(rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """(P + 1,) where runs of rows of one block start and end.

    ``rows`` are (N,) rows of a tree, in zoo order or that of a selection; ``blocks`` are the (B,) first rows of every
    block of the tensor whose blocks hold the fewest rows.
    """
    cuts = [np.zeros(1, np.int64)]
    for start in range(0, len(rows) - 1, _ROWS_AT_ONCE):
        owner = np.searchsorted(blocks, rows[start : start + _ROWS_AT_ONCE + 1], side="right")
        cuts.append(start + np.flatnonzero(np.diff(owner)) + 1)
    return np.concatenate([*cuts, [len(rows)]]).astype(np.int64)


@dataclass(frozen=True)
class ReaderShard:
    """The batches of a stream that one reader takes: a rank of ``world_size``, a worker of ``workers``.

    Round t of the stream holds ``world_size`` batches of ``batch_size`` rows, one a rank; the workers of a rank take
    its batches in turn, which is the order in which a DataLoader collects them.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1


def rounds(
    count: int, start: int, batch_size: int, shard: ReaderShard, remainder: Remainder
) -> list[tuple[int, int, int]]:
    """The batches of one reader as (first position, rows, position after the round).

    Positions past ``count`` (only with ``"pad"``) mean the epoch's first rows.

    >>> rounds(10, 0, 2, ReaderShard(rank=1, world_size=2), "keep")
    [(2, 2, 4), (6, 2, 8)]
    """
    whole = (count - start) // (batch_size * shard.world_size)
    batches: list[tuple[int, int, int]] = []
    for turn in range(shard.worker, whole, shard.workers):
        position = start + turn * batch_size * shard.world_size
        batches.append((position + shard.rank * batch_size, batch_size, position + batch_size * shard.world_size))
    position = start + whole * batch_size * shard.world_size
    if position < count and remainder != "drop" and whole % shard.workers == shard.worker:
        size = batch_size if remainder == "keep" else -(-(count - position) // shard.world_size)
        first = position + shard.rank * size
        rows = size if remainder == "pad" else max(0, min(size, count - first))
        if rows:
            batches.append((first, rows, count))
    return batches


def is_even(left: int, batch_size: int, world_size: int) -> bool:
    """Whether every rank gets the same number of the rows that are left."""
    return left % (batch_size * world_size) % world_size == 0


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Stacked tensors of some checkpoints: ``batch["conv1.weight"]`` has shape ``(len(batch.ids), *shape)``.

    Not a Mapping, because a DataLoader that pins memory rebuilds those as plain dicts and would lose ids and state.

    Parameters
    ----------
    ids
        the checkpoints' ids, in order.
    tensors
        numpy arrays (read-only where they are views of the file), or torch tensors.
    state
        resuming from it continues right behind this batch (and, with ranks, behind its whole round).
    columns
        the metadata columns that the stream was asked for: arrays ``(len(ids),)`` of numbers, or torch tensors, and
        lists of strings and times; see ``Zoo.stream``.
    """

    ids: tuple[str, ...]
    tensors: dict[str, Any]
    state: State
    columns: dict[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        columns = f"; columns {shown_arrays(self.columns)}" if self.columns else ""
        return f"<batch of {counted(len(self), 'checkpoint')}: {shown_arrays(self.tensors)}{columns}>"

    def __getitem__(self, name: str) -> Any:
        """A tensor, or a column."""
        return self.tensors[name] if name in self.tensors else self.columns[name]

    def _ipython_key_completions_(self) -> list[str]:
        return [*self.tensors, *self.columns]

    def __iter__(self) -> Iterator[str]:
        """The names of the tensors and columns."""
        return iter([*self.tensors, *self.columns])

    def __len__(self) -> int:
        """Checkpoints in the batch."""
        return len(self.ids)

    def pin_memory(self) -> "Batch":
        """The same batch in pinned memory; a DataLoader calls it."""
        return self.with_arrays(lambda tensor: tensor.pin_memory())

    def with_arrays(self, convert: Callable[[Any], Any]) -> "Batch":
        """The same batch with every array, those of columns too, as ``convert`` makes it; lists stay.

        Parameters
        ----------
        convert
            takes an array and returns what replaces it.
        """
        tensors = {name: convert(array) for name, array in self.tensors.items()}
        columns = self.columns and {
            name: values if isinstance(values, list) else convert(values) for name, values in self.columns.items()
        }
        return Batch(self.ids, tensors, self.state, columns)


@dataclass(frozen=True)
class RowIds:
    """The ids of some rows of the raw tree, a few of them at a time.

    ``table`` is the tree's; ``rows`` are (N,) rows of it, in order.
    """

    table: LazyTable
    rows: NDArray[np.int64]

    def at(self, positions: NDArray[np.int64]) -> list[str]:
        """The ids at these positions."""
        return self.table.take(["id"], self.rows[positions])["id"].to_pylist()


@dataclass(frozen=True)
class Source:
    """The readers, rows and columns of a stream.

    ``rows`` are (N,) rows of the tree, in order; ``prefetch`` fetches blocks of a zoo on another machine ahead, and is
    None for one on this; ``columns`` are (N,) rows of the metadata that accompany the tensors.
    """

    readers: dict[str, TensorReader]
    rows: NDArray[np.int64]
    ids: RowIds
    revision: str
    location: str
    prefetch: Callable[[Iterable[Span]], None] | None = None
    columns: pa.Table | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one checkpoint's tensors."""
        return sum(reader.row_bytes for reader in self.readers.values())

    def prepare(self, rows: NDArray[np.int64]) -> None:
        """Fetch what these rows need from another machine."""
        if self.prefetch is not None:
            readers = self.readers.values()
            self.prefetch([span for reader in readers for span in reader.required_blocks(self.rows[rows])])


class Stream:
    """An iterable over batches; each complete iteration is one epoch, with its own order when shuffled.

    Made by ``Zoo.stream``. ``state_dict`` and ``load_state_dict`` save and restore the position; so does
    ``batch.state`` of the last batch that was used, which stays right when batches are prefetched. An iteration
    that is broken off makes the next one start where it did.

    Parameters
    ----------
    source
        what to read.
    batch_size, shuffle, seed, remainder
        as in ``Zoo.stream``.
    shard
        which of the batches; by default all.

    Notes
    -----
    Memory: one batch, and nothing where its rows are a view of a file. The order is a function of seed, epoch and
    position: the same for any batch size, number of workers and number of ranks. Tested in
    ``tests/laws/test_stream.py``.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int = 256,
        shuffle: Shuffle = False,
        seed: int = 0,
        remainder: Remainder = "error",
        shard: ReaderShard | None = None,
    ) -> None:
        for name, value, known in (("shuffle", shuffle, SHUFFLES), ("remainder", remainder, REMAINDERS)):
            if value not in known:
                raise ZooError(Problem(source.location, name, f"one of {known}", repr(value), "Choose one of them."))
        shard = shard or ReaderShard()
        for name, value, lowest, highest in (
            ("batch_size", batch_size, 1, None),
            ("world_size", shard.world_size, 1, None),
            ("rank", shard.rank, 0, shard.world_size - 1),
            ("seed", seed, 0, 2**64 - 1),
        ):
            # True is an instance of int
            if type(value) is not int or value < lowest or (highest is not None and value > highest):
                expected = f"an integer from {lowest}" + ("" if highest is None else f" to {highest}")
                raise ZooError(Problem(source.location, name, expected, repr(value), "Choose another."))
        self._source, self._batch_size, self._shard = source, batch_size, shard
        self._shuffle: Shuffle = shuffle
        self._remainder: Remainder = remainder
        # the tensor with the widest rows has the fewest rows in a block
        widest = max(source.readers.values(), key=lambda reader: reader.row_bytes)
        self._row_blocks = row_blocks_of(source.rows, widest.row_blocks)
        longest = int(np.diff(self._row_blocks).max(initial=1))
        self._window = max(1, WINDOW_BYTES // max(1, longest * source.row_bytes))
        self._start: State = {
            "revision": source.revision,
            "plan": digest_of([rows_digest(source.rows), list(source.readers), shuffle, self._window]),
            "seed": seed,
            "epoch": 0,
            "position": 0,
        }
        self._state = self._start
        self._columns = (
            {}
            if source.columns is None
            else {name: column_values(source.columns[name]) for name in source.columns.column_names}
        )

    @property
    def location(self) -> str:
        """The zoo's name, for messages."""
        return self._source.location

    def __len__(self) -> int:
        """Batches in the next iteration, as this reader sees it."""
        return len(self._rounds())

    def _rounds(self) -> list[tuple[int, int, int]]:
        position = self._start["position"]
        return rounds(len(self._source.rows), position, self._batch_size, self._shard, self._remainder)

    def __iter__(self) -> Iterator[Batch]:
        return (self._read(rows, state) for rows, state in self.turns())

    def turns(self) -> Iterator[tuple[NDArray[np.int64], State]]:
        """An iteration's batches before their tensors are read: the rows, as positions in the source's, and the state.

        What is on another machine has been fetched for them.
        """
        start, count, world_size = dict(self._start), len(self._source.rows), self._shard.world_size
        left = count - start["position"]
        if self._remainder == "error" and not is_even(left, self._batch_size, world_size):
            what, got = f"shares of {world_size} ranks", f"{left} rows in batches of {self._batch_size}"
            step = "Choose remainder='keep', 'drop' or 'pad'."
            raise ZooError(Problem(self._source.location, what, "equal ones", got, step))
        plan = EpochPlan(self._row_blocks, self._window, self._shuffle, start["seed"], start["epoch"])
        turns = self._rounds()

        def positions_of(turn: int) -> NDArray[np.int64]:
            first, size, _ = turns[turn]
            # only "pad" passes the end, and continues with the epoch's first rows
            return np.arange(first, first + size, dtype=np.int64) % count

        def rows_of(turn: int) -> NDArray[np.int64]:
            return plan.rows(positions_of(turn))

        def all_rows() -> Generator[NDArray[np.int64]]:
            step = max(1, ROWS_AHEAD // self._batch_size)
            for start in range(0, len(turns), step):
                some = [positions_of(turn) for turn in range(start, min(start + step, len(turns)))]
                ends = np.cumsum([len(positions) for positions in some])
                yield from np.split(plan.rows(np.concatenate(some)), ends[:-1])

        if self._source.prefetch is None:
            batches = all_rows()
        else:
            batches = prepared(range(len(turns)), rows_of, self._source.prepare)
        with closing(batches):  # where the consumer stops early, what is being fetched is cancelled
            for rows, (_, _, behind) in zip(batches, turns, strict=True):
                self._state = self._state_at(start, behind)
                yield rows, self._state
        self._start = self._state = self._state_at(start, count)

    def _state_at(self, start: State, position: int) -> State:
        """The state at a position; at the end it is the start of the next epoch."""
        left = len(self._source.rows) - position
        if left == 0 or (self._remainder == "drop" and left < self._batch_size * self._shard.world_size):
            return {**start, "epoch": start["epoch"] + 1, "position": 0}
        return {**start, "position": position}

    def _read(self, rows: NDArray[np.int64], state: State) -> Batch:
        source = self._source
        tree_rows = source.rows[rows]
        tensors = {name: reader.gather(tree_rows) for name, reader in source.readers.items()}
        ids = tuple(source.ids.at(rows))
        if not self._columns:
            return Batch(ids, tensors, state)
        columns = {
            name: values[rows] if isinstance(values, np.ndarray) else values.take(array_of(rows)).to_pylist()
            for name, values in self._columns.items()
        }
        return Batch(ids, tensors, state, columns)

    def state_dict(self) -> State:
        """The position behind the last batch that was handed out."""
        return dict(self._state)

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state, with any batch size, workers and ranks.

        Parameters
        ----------
        state
            what ``state_dict`` or a batch's ``state`` gave.

        Raises
        ------
        StateError
            The state belongs to other rows, tensors or another order than this stream's. Where the zoo has grown since,
            the message says how to open it as it was: ``ckptzoo.open(path, revision=state["revision"])``.
        """
        for name in ("revision", "plan"):
            if state.get(name) != self._start[name]:
                what, got = f"{name} of the saved state", str(state.get(name))
                step = "Open the same zoo, select and stream the same rows and tensors."
                if name == "revision":
                    step = f"Open the zoo as it was, ckptzoo.open(..., revision={got!r}), and stream the same of it."
                raise StateError(Problem(self._source.location, what, str(self._start[name]), got, step))
        position, epoch = state.get("position"), state.get("epoch")
        fits = type(position) is int and type(epoch) is int and 0 <= position < max(1, len(self._source.rows))
        if not fits or type(state.get("seed")) is not int:
            got = str({name: state.get(name) for name in ("seed", "epoch", "position")})
            expected = f"integers with a position below {len(self._source.rows)}"
            raise StateError(Problem(self._source.location, "saved state", expected, got, "Save it again."))
        self._start = self._state = {name: state[name] for name in self._start}

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of this epoch.

        Parameters
        ----------
        epoch
            its number, from 0.
        """
        if not 0 <= epoch < 2**64:
            problem = Problem(self._source.location, "epoch", "0 to 2**64 - 1", str(epoch), "Choose another.")
            raise ZooError(problem)
        self._start = self._state = {**self._start, "epoch": epoch, "position": 0}


def prepared(
    turns: Iterable[int], rows_of: Callable[[int], NDArray[np.int64]], prepare: Callable[[NDArray[np.int64]], None]
) -> Generator[NDArray[np.int64]]:
    """Yield the rows of every turn once they are prepared, while the next ``BATCHES_AHEAD`` are being prepared."""
    # not a "with": its end would wait for a run that is being fetched and that nobody reads after an error
    pool = ThreadPoolExecutor(1, thread_name_prefix="ckptzoo-ahead")
    pending: deque[tuple[NDArray[np.int64], Future[None]]] = deque()
    left = iter(turns)
    try:
        while True:
            for turn in itertools.islice(left, BATCHES_AHEAD + 1 - len(pending)):
                rows = rows_of(turn)
                pending.append((rows, pool.submit(prepare, rows)))
            if not pending:
                return
            rows, done = pending.popleft()
            done.result()
            yield rows
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def column_values(column: pa.ChunkedArray) -> NDArray[Any] | pa.Array:
    """A column as an array of numbers, with NaN where one is missing; strings and times as they are."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return column.combine_chunks()
    return filled_with(column.cast(pa.float64()) if column.null_count else column, np.nan)


def rows_digest(rows: NDArray[np.int64]) -> str:
    """The sha256 of the numbers of rows, in their order."""
    # little-endian, so that a state is the same on every machine
    return hashlib.sha256(np.ascontiguousarray(rows, "<i8").data).hexdigest()

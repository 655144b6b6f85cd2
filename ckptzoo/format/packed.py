"""Columns in little memory: nulls take none, a text that many rows have is kept once, and so is a common beginning.

Ids of ten million rows begin alike within a part, and recipes are a handful of texts: packed they take a third of the
memory, or a tenth, and a few rows are unpacked at a time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.format.table import array_of, filled_with, scalar_of
from ckptzoo.lazy_names import lazy_module

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = lazy_module("pyarrow.compute")

PACKED_ROWS = 2**16
"""Runs of fewer rows are kept as they are, which takes less time."""
RUN_ROWS = 2**17
"""The number of rows that are kept, and worked on, together."""
_RUN_BYTES = 64 * 2**20
"""The number of bytes that small pieces of a column have together."""
_ARRAY_BYTES = 2**30
"""The number of bytes of texts in an array, unless one has more: offsets of Arrow's strings end at 2 GiB."""
_CUT_BYTES = 2**20
"""The number of bytes of texts whose common beginning is cut off together."""


@dataclass(frozen=True)
class _Run:
    """Consecutive values of a column.

    ``values`` is None where all are null, and else an array of the column's type, or of texts without their common
    beginning ``prefix``, or of numbers of texts.
    """

    count: int
    kind: pa.DataType
    values: pa.Array | None
    prefix: bytes = b""

    @classmethod
    def of(cls, values: pa.Array, kind: pa.DataType) -> "_Run":
        """Pack values; texts may come as a dictionary."""
        count = len(values)
        if values.null_count == count:
            return cls(count, kind, None)
        if pa.types.is_dictionary(values.type):
            if count >= PACKED_ROWS and 2 * len(values.dictionary) <= count:
                return cls(count, kind, values)
            values = values.cast(kind)
        if count < PACKED_ROWS or not pa.types.is_string(kind) or values.null_count:
            return cls(count, kind, values)
        ends = pc.call_function("min_max", [values])
        least, most = (ends[end].as_py().encode() for end in ("min", "max"))
        prefix = least[: next((at for at, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))]
        return cls(count, kind, _without(values, len(prefix)) if prefix else values, prefix)

    @property
    def nbytes(self) -> int:
        """Bytes in memory as it is packed."""
        if self.values is None:
            return 0
        return self.values.nbytes + (self.values.dictionary.nbytes if pa.types.is_dictionary(self.values.type) else 0)

    @property
    def unpacked_bytes(self) -> int:
        """Bytes in memory once every text is in every row that has it."""
        if self.values is None:
            return 0
        if not pa.types.is_dictionary(self.values.type):
            return self.values.nbytes + len(self.prefix) * self.count
        return int(self.lengths.sum()) + 4 * self.count

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) the bytes of each text, 0 for a null."""
        if self.values is None:
            return np.zeros(self.count, np.int64)
        is_dictionary = pa.types.is_dictionary(self.values.type)
        lengths = pc.call_function("binary_length", [self.values.dictionary if is_dictionary else self.values])
        lengths = lengths.take(self.values.indices) if is_dictionary else lengths
        return filled_with(lengths, 0).astype(np.int64) + len(self.prefix)

    def slice(self, start: int, stop: int) -> pa.Array:
        """Consecutive values."""
        if self.values is None:
            return pa.nulls(stop - start, self.kind)
        return self._unpacked(self.values.slice(start, stop - start))

    def take(self, rows: NDArray[np.int64]) -> pa.Array:
        """The values at these positions."""
        return (
            pa.nulls(len(rows), self.kind) if self.values is None else self._unpacked(self.values.take(array_of(rows)))
        )

    def _unpacked(self, values: pa.Array) -> pa.Array:
        if not self.prefix:
            return values if values.type.equals(self.kind) else values.cast(self.kind)
        constants = [scalar_of(text) for text in (self.prefix, b"")]
        return pc.call_function("binary_join_element_wise", [constants[0], values, constants[1]]).cast(self.kind)


def _without(texts: pa.Array, size: int) -> pa.Array:
    """Texts without nulls as bytes, without the first ``size`` bytes of each."""
    # binary_slice of pyarrow (26) fails where an array is a slice of another one
    bounds = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    cut = bounds - size * np.arange(len(bounds), dtype=np.int32)
    rest = np.empty(cut[-1], np.uint8)
    # an index of 4 bytes for every byte that is cut off: some texts at a time
    cuts = np.searchsorted(bounds, np.arange(0, len(data), _CUT_BYTES))
    for start, stop in pairwise(np.unique(np.append(cuts, len(texts))).tolist()):
        first, last = bounds[start], bounds[stop]
        kept = np.ones(last - first, np.bool_)
        kept[(bounds[start:stop, np.newaxis] - first + np.arange(size, dtype=np.int32)).ravel()] = False
        rest[cut[start] : cut[stop]] = data[first:last][kept]
    return pa.Array.from_buffers(pa.binary(), len(texts), [None, pa.py_buffer(cut), pa.py_buffer(rest)])


class PackedColumn:
    """A column in runs of rows, each packed on its own; ``kind`` is the type of its values."""

    def __init__(self, kind: pa.DataType, runs: Sequence[_Run]) -> None:
        self._kind, self._runs = kind, tuple(runs)
        self._bounds = np.cumsum([0, *(run.count for run in self._runs)], dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes in memory as it is packed."""
        return sum(run.nbytes for run in self._runs)

    @property
    def unpacked_bytes(self) -> int:
        """Bytes in memory of the whole column as an array."""
        return sum(run.unpacked_bytes for run in self._runs)

    def array(self) -> pa.ChunkedArray:
        """The whole column."""
        return self.slice(0, int(self._bounds[-1]))

    def slice(self, start: int, stop: int) -> pa.ChunkedArray:
        """Consecutive values."""
        pieces: list[pa.Array] = []
        for run, first in zip(self._runs, self._bounds.tolist(), strict=False):
            low, high = max(start, first), min(stop, first + run.count)
            if low < high:
                pieces.append(run.slice(low - first, high - first))
        return pa.chunked_array(pieces, self._kind)

    def take(self, rows: NDArray[np.int64]) -> pa.ChunkedArray:
        """The values at these positions, in any order."""
        return pa.chunked_array([self._taken(own) for own in self._divided(rows)], self._kind)

    @cached_property
    def _longest(self) -> int:
        """The bytes of the longest text, 0 where there are none."""
        is_text = pa.types.is_string(self._kind)
        return max((int(run.lengths.max(initial=0)) for run in self._runs), default=0) if is_text else 0

    def _divided(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Positions in consecutive groups, of whose values each fits in an array."""
        if len(rows) * self._longest <= _ARRAY_BYTES:
            return [rows]
        ends = np.cumsum(np.concatenate([run.lengths for run in self._runs])[rows])
        cuts = [0]
        while cuts[-1] < len(rows):
            before = ends[cuts[-1] - 1] if cuts[-1] else 0
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, before + _ARRAY_BYTES, side="right"))))
        return np.split(rows, cuts[1:-1])

    def _taken(self, rows: NDArray[np.int64]) -> pa.Array:
        if len(self._runs) == 1:
            return self._runs[0].take(rows)
        owner = np.searchsorted(self._bounds, rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
        pieces: list[pa.Array] = []
        for own in np.split(order, heads[1:]) if len(rows) else ():
            number = int(owner[own[0]])
            pieces.append(self._runs[number].take(rows[own] - self._bounds[number]))
        if len(pieces) == 1:
            return pieces[0]
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return pa.concat_arrays(pieces).take(array_of(back)) if pieces else pa.nulls(0, self._kind)


class Packer:
    """Packs a column piece by piece; small pieces are put together first.

    ``nbytes`` are the bytes in memory of what was added, those that wait to be packed included.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._runs: list[_Run] = []
        self._waiting: list[pa.Array] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.nbytes = 0

    def add(self, pieces: Iterable[pa.Array]) -> None:
        """Append values; texts may come as dictionaries."""
        for piece in pieces:
            if len(piece) >= PACKED_ROWS:
                self._flush()
                for start in range(0, len(piece), RUN_ROWS):
                    self._pack(piece.slice(start, RUN_ROWS))
                continue
            self._waiting.append(piece if piece.type.equals(self._kind) else piece.cast(self._kind))
            nbytes = self._waiting[-1].nbytes
            self.nbytes += nbytes
            self._waiting_rows += len(piece)
            self._waiting_bytes += nbytes
            if self._waiting_rows >= RUN_ROWS or self._waiting_bytes >= _RUN_BYTES:
                self._flush()

    def packed(self) -> PackedColumn:
        """The column with everything that was added."""
        self._flush()
        return PackedColumn(self._kind, self._runs)

    def _flush(self) -> None:
        if self._waiting:
            joined = self._waiting[0] if len(self._waiting) == 1 else pa.concat_arrays(self._waiting)
            self.nbytes -= self._waiting_bytes
            self._waiting.clear()
            self._waiting_rows = self._waiting_bytes = 0
            self._pack(joined)

    def _pack(self, values: pa.Array) -> None:
        self._runs.append(_Run.of(values, self._kind))
        self.nbytes += self._runs[-1].nbytes

"""Columns in little memory: nulls take none, a text that many rows have is kept once, and so is a common beginning.

Ids of ten million rows begin alike within a part, and recipes are a handful of texts: packed they take a third of the
memory, or a tenth, and a few rows are unpacked at a time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.format.table import array_of
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
        lengths = pc.call_function("binary_length", [self.values.dictionary]).take(self.values.indices)
        return (pc.call_function("sum", [lengths.cast(pa.int64())]).as_py() or 0) + 4 * self.count

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
        constants = [pa.scalar(text, pa.binary()) for text in (self.prefix, b"")]
        return pc.call_function("binary_join_element_wise", [constants[0], values, constants[1]]).cast(self.kind)


def _without(texts: pa.Array, size: int) -> pa.Array:
    """Texts without nulls as bytes, without the first ``size`` bytes of each."""
    # binary_slice of pyarrow (26) fails where an array is a slice of another one
    bounds = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    kept = np.ones(len(data), np.bool_)
    kept[(bounds[:-1, np.newaxis] + np.arange(size, dtype=np.int32)).ravel()] = False
    cut = bounds - size * np.arange(len(bounds), dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(texts), [None, pa.py_buffer(cut), pa.py_buffer(data[kept])])


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

    def take(self, rows: NDArray[np.int64]) -> pa.Array:
        """The values at these positions, in any order."""
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
            self.nbytes += self._waiting[-1].nbytes
            is_full = sum(map(len, self._waiting)) >= RUN_ROWS
            if is_full or sum(piece.nbytes for piece in self._waiting) >= _RUN_BYTES:
                self._flush()

    def packed(self) -> PackedColumn:
        """The column with everything that was added."""
        self._flush()
        return PackedColumn(self._kind, self._runs)

    def _flush(self) -> None:
        if self._waiting:
            joined = self._waiting[0] if len(self._waiting) == 1 else pa.concat_arrays(self._waiting)
            self.nbytes -= sum(piece.nbytes for piece in self._waiting)
            self._waiting.clear()
            self._pack(joined)

    def _pack(self, values: pa.Array) -> None:
        self._runs.append(_Run.of(values, self._kind))
        self.nbytes += self._runs[-1].nbytes

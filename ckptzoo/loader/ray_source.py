"""The data source of Ray Data that ``ckptzoo.loader.ray`` makes; importing it imports Ray."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import require
from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.readers import TensorReader
from ckptzoo.loader.stream import Source
from ckptzoo.loader.zoo import Zoo

_block: Any = require("ray.data.block", "ray")
_datasource: Any = require("ray.data.datasource", "ray")
_BFLOAT16 = numpy_dtype("bfloat16")
"""A dtype that Arrow does not have."""

_BYTES = 64 * 2**20
"""The maximum number of bytes of tensors in a block, unless one checkpoint has more."""
_ID = "id"


class ZooDatasource(_datasource.Datasource):
    """A datasource of Ray; ``ckptzoo.loader.ray.ray_datasource`` makes it."""

    def __init__(self, zoo: Zoo, tensors: Sequence[str], variant: str) -> None:
        super().__init__()
        self._zoo, self._tensors, self._variant = zoo, tensors, variant
        self._projection_map: dict[str, str] | None = None

    def get_name(self) -> str:
        """The name that Ray shows."""
        return f"Zoo({self._zoo.name})"

    def supports_projection_pushdown(self) -> bool:
        """Columns that are not used are not read."""
        return True

    def supports_predicate_pushdown(self) -> bool:
        """Conditions on the metadata are applied here."""
        return True

    def apply_predicate(self, predicate_expr: Any) -> Self:
        """Return the same for the checkpoints that satisfy a condition; itself where Ray applies it."""
        condition = predicate_expr.to_pyarrow()
        # an expression of pyarrow gives no list of its columns
        if any(name in str(condition) for name in self._tensors):
            return self
        other = super().apply_predicate(predicate_expr)
        other._zoo = self._zoo.where(condition)
        return other

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all rows."""
        return self._slice(0, len(self._zoo)).size_bytes()

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """About this number of tasks, each of consecutive checkpoints."""
        count = len(self._zoo)
        cuts = np.linspace(0, count, max(1, min(parallelism, count)) + 1).astype(int).tolist()
        tasks: list[Any] = []
        for start, stop in pairwise(cuts):
            part = self._slice(start, stop)
            metadata = _block.BlockMetadata(
                num_rows=stop - start, size_bytes=part.size_bytes(), input_files=None, exec_stats=None
            )
            tasks.append(_datasource.ReadTask(part.tables, metadata, part.table(0, 0).schema, per_task_row_limit))
        return tasks

    def _slice(self, start: int, stop: int) -> "_Slice":
        metadata, wanted = self._zoo.contents.raw.rows.schema.names, self._projection_map
        columns = [name for name in metadata if wanted is None or name in wanted]
        tensors = [name for name in self._tensors if wanted is None or name in wanted]
        # blocks without a column have no rows: Ray would count none
        columns = columns or ([] if tensors else [_ID])
        source = self._zoo.take(slice(start, stop)).source(tensors, self._variant, columns)
        return _Slice(source, tuple(tensors))


@dataclass(frozen=True, eq=False)
class _Slice:
    """Checkpoints that one task reads.

    ``source`` reads the tensors ``tensors``, or all where there are none.
    """

    source: Source
    tensors: tuple[str, ...]

    @cached_property
    def readers(self) -> dict[str, TensorReader]:
        """Readers of the tensors that are wanted."""
        return {name: self.source.readers[name] for name in self.tensors}

    def size_bytes(self) -> int:
        """Bytes of all rows as Arrow has them."""
        count, columns = len(self.source.rows), self.source.columns
        return (0 if columns is None else columns.nbytes) + sum(
            count * _row_bytes(reader) for reader in self.readers.values()
        )

    def table(self, start: int, stop: int) -> pa.Table:
        """Some of these rows."""
        columns = {}
        if self.source.columns is not None:
            part = self.source.columns[start:stop]
            columns = dict(zip(part.schema.names, part.columns, strict=True))
        if self.tensors:
            self.source.prepare(np.arange(start, stop))
        rows = self.source.rows[start:stop]
        return pa.table({**columns, **{name: _column(reader.gather(rows)) for name, reader in self.readers.items()}})

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows in blocks of bounded size."""
        count = len(self.source.rows)
        step = max(1, _BYTES // max(1, sum(map(_row_bytes, self.readers.values()))))
        for start in range(0, count, step):
            yield self.table(start, min(start + step, count))


def _row_bytes(reader: TensorReader) -> int:
    """Bytes of one checkpoint's tensor; bfloat16 becomes float32."""
    return reader.row_bytes * (2 if reader.dtype == _BFLOAT16 else 1)


def _column(array: NDArray[Any]) -> pa.Array:
    """(N, *shape) as an Arrow array of N tensors; of no copy where the numbers lie one behind the other."""
    if array.dtype == _BFLOAT16:
        array = array.astype(np.float32)
    elif array.dtype == np.bool_:  # which Arrow's tensors cannot be of
        array = array.view(np.uint8)
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    shape = array.shape[1:]
    if not shape:
        return flat
    kind = pa.fixed_shape_tensor(flat.type, shape)
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type))

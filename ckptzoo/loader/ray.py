"""A zoo as a data source of Ray Data: one row a checkpoint, one tensor a column."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from ckptzoo.errors import Problem, UnknownNameError, ZooError, require
from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.stream import Source
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout

_data: Any = require("ray.data", "ray")
_block: Any = require("ray.data.block", "ray")
_datasource: Any = require("ray.data.datasource", "ray")
_extensions: Any = require("ray.data.extensions", "ray")

_BYTES = 64 * 2**20
"""Of tensors in a block, at most, or one checkpoint."""
_ID = "id"


def ray_datasource(zoo: Zoo, *names: str, variant: str = layout.RAW) -> Any:
    """A ``ray.data.Datasource`` of a zoo's checkpoints, for ``ray.data.read_datasource``.

    Its columns are those of the metadata, and one of shape ``(N, *shape)`` for every tensor. Only columns that are used
    are read, and conditions on the metadata choose checkpoints before anything else is.

    Parameters
    ----------
    zoo : on this machine or another; the workers must reach it under the same address.
    names : tensors, or layers for all their tensors; none for everything.
    variant : the gauge.

    Raises
    ------
    MissingExtraError
        Ray Data is not installed.
    UnknownNameError
        No such tensor, or no such variant.
    ZooError
        A tensor has the name of a column of the metadata.

    Notes
    -----
    bfloat16 comes as float32, which Arrow has. Rows are in zoo order within a block.

    Examples
    --------
    >>> rows = ray.data.read_datasource(ckptzoo.ray_datasource(zoo))  # doctest: +SKIP
    >>> rows.filter(expr="test_accuracy > 0.8").select_columns(["fc.weight"]).take_batch(64)  # doctest: +SKIP
    """
    tensors = tuple(zoo.source(names, variant).readers)
    if taken := [name for name in tensors if name in zoo.metadata.schema.names]:
        step = "Name the other tensors; this one can be read by zoo[...]."
        expected = "another name than a column's of the metadata"
        raise ZooError(Problem(zoo.name, f"tensor {taken[0]!r}", expected, "both", step))
    return _ZooDatasource(zoo, tensors, variant)


class _ZooDatasource(_datasource.Datasource):
    """See ``ray_datasource``."""

    def __init__(self, zoo: Zoo, tensors: Sequence[str], variant: str) -> None:
        super().__init__()
        self._zoo, self._tensors, self._variant = zoo, tensors, variant
        self._projection_map: dict[str, str] | None = None

    def get_name(self) -> str:
        """What Ray shows."""
        return f"Zoo({self._zoo.name})"

    def supports_projection_pushdown(self) -> bool:
        """Columns that are not used are not read."""
        return True

    def supports_predicate_pushdown(self) -> bool:
        """Conditions on the metadata are applied here."""
        return True

    def apply_predicate(self, predicate_expr: Any) -> Self:
        """The same of the checkpoints that satisfy a condition; itself where that is for Ray to apply."""
        try:
            chosen = self._zoo.where(predicate_expr.to_pyarrow())
        except (TypeError, ValueError, UnknownNameError):  # not one of Arrow's, or on a tensor
            return self
        other = super().apply_predicate(predicate_expr)
        other._zoo = chosen
        return other

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all rows, exact but for some bytes a block."""
        return sum(self._slice(0, len(self._zoo)).sizes().values())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """About so many tasks, each of consecutive checkpoints."""
        count = len(self._zoo)
        cuts = np.linspace(0, count, max(1, min(parallelism, count)) + 1).astype(int).tolist()
        tasks: list[Any] = []
        for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
            part = self._slice(start, stop)
            metadata = _block.BlockMetadata(
                num_rows=stop - start, size_bytes=sum(part.sizes().values()), input_files=None, exec_stats=None
            )
            tasks.append(_datasource.ReadTask(partial(_tables, part), metadata, part.table(0, 0).schema))
        return tasks

    def _slice(self, start: int, stop: int) -> "_Slice":
        metadata, wanted = self._zoo.metadata.schema.names, self._projection_map
        columns = [name for name in metadata if wanted is None or name in wanted]
        tensors = [name for name in self._tensors if wanted is None or name in wanted]
        # blocks without a column have no rows: Ray would count none
        columns = columns or ([] if tensors else [_ID])
        source = self._zoo.take(slice(start, stop)).source(tensors, self._variant, columns)
        return _Slice(source, tuple(tensors))


@dataclass(frozen=True)
class _Slice:
    """Checkpoints that one task reads.

    Parameters
    ----------
    source : reads them; of all tensors where there are none.
    tensors : those that are wanted.
    """

    source: Source
    tensors: tuple[str, ...]

    @property
    def step(self) -> int:
        """Rows of a block."""
        row_bytes = sum(self.source.readers[name].row_bytes for name in self.tensors)
        return max(1, _BYTES // max(1, row_bytes))

    def table(self, start: int, stop: int) -> pa.Table:
        """Some of these rows."""
        rows = self.source.rows[start:stop]
        columns = {} if self.source.columns is None else dict(self.source.columns[start:stop].to_pydict())
        return pa.table(columns)

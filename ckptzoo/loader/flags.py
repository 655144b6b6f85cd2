"""Which checkpoints can be used, by their rows, and by their weights where the rows do not say it."""

from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.format.table import filled_with
from ckptzoo.format.writer import finite_rows
from ckptzoo.loader.zoo import Zoo

_READ_BYTES = 64 * 2**20
"""Bytes of weights that are looked at together."""


class HasColumns(Protocol):
    """A zoo, which reads the columns that it is asked for alone, or a table."""

    def column(self, name: str, /) -> pa.ChunkedArray: ...


def usable_networks(zoo: Zoo) -> NDArray[np.bool_]:
    """(N,) the checkpoints of a zoo that are finite and did not diverge."""
    return ~flags(zoo, "diverged") & finite_networks(zoo)


def finite_networks(zoo: Zoo) -> NDArray[np.bool_]:
    """(N,) the checkpoints that are finite; weights of files that nobody has read yet are read."""
    known = zoo.column("finite")
    found, unknown = filled_with(known, True), np.flatnonzero(~filled_with(known.is_valid(), False))
    step = max(1, _READ_BYTES // max(1, zoo.arch.nbytes))
    for start in range(0, len(unknown), step):
        some = unknown[start : start + step]
        found[some] = finite_rows((np.asarray(zoo[name][some]) for name in zoo.arch.names), len(some))
    return found


def usable_rows(rows: HasColumns) -> NDArray[np.bool_]:
    """(N,) the checkpoints that are finite and did not diverge, as far as is known."""
    return ~flags(rows, "diverged") & flags(rows, "finite", missing=True)


def flags(rows: HasColumns, column: str, *, missing: bool = False) -> NDArray[np.bool_]:
    """(N,) a column of true and false, with ``missing`` where it holds nothing."""
    return filled_with(rows.column(column), missing)

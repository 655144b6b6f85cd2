"""Numbers as a card shows them, and what a column of rows holds."""

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def figure(value: float) -> str:
    """A float in four digits, an integer in full."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def between(least: float, most: float) -> str:
    """A range, or the one value that it is."""
    return figure(least) if least == most else f"{figure(least)} to {figure(most)}"


def counts(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each text stands in a column, the most frequent first; nulls are left out."""
    found = {str(item["values"].as_py()): item["counts"].as_py() for item in column.drop_null().value_counts()}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def flags(table: pa.Table, column: str, *, missing: bool = False) -> NDArray[np.bool_]:
    """(N,) a column of true and false."""
    return table[column].fill_null(missing).to_numpy().astype(np.bool_)


def sound(table: pa.Table) -> NDArray[np.bool_]:
    """(N,) the checkpoints that are finite and did not diverge, as far as is known."""
    return ~flags(table, "diverged") & flags(table, "finite", missing=True)


def mean_sd(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation (divisor n - 1) from exact sums, in any order the same."""
    mean = math.fsum(values.tolist()) / len(values)
    rest = math.fsum((value - mean) ** 2 for value in values.tolist())
    return mean, math.sqrt(rest / max(1, len(values) - 1))

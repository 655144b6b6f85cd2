"""Which checkpoints can be used, as far as their rows say."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.format.table import filled_with


def usable_rows(metadata: pa.Table) -> NDArray[np.bool_]:
    """(N,) the checkpoints that are finite and did not diverge, as far as is known."""
    return ~flags(metadata, "diverged") & flags(metadata, "finite", missing=True)


def flags(metadata: pa.Table, column: str, *, missing: bool = False) -> NDArray[np.bool_]:
    """(N,) a column of true and false, with ``missing`` where it holds nothing."""
    return filled_with(metadata[column], missing)

"""The checkpoints of a zoo that were not retracted."""

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.reader import Contents
from ckptzoo.format.tree import places_of


def standing(contents: Contents) -> NDArray[np.int64]:
    """Their rows of the raw tree, in order; ids are read only where something was retracted."""
    rows, tombs = np.arange(len(contents.raw.rows), dtype=np.int64), contents.retracted.rows
    return rows[places_of(contents.ids, tombs["id"]) < 0] if len(tombs) else rows


def left_out(contents: Contents, rows: NDArray[np.int64]) -> str | None:
    """How many of the checkpoints are not among the standing rows, in words; None where nothing was retracted."""
    count = len(contents.raw.rows)
    return (
        f"{count - len(rows)} of {count} checkpoints retracted and left out" if len(contents.retracted.rows) else None
    )

"""Some of many, without chance."""

import numpy as np
from numpy.typing import NDArray


def evenly(number: int, most: int) -> NDArray[np.int64]:
    """At most so many of the places 0 to number - 1, evenly spaced from the first to the last; ascending."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(np.int64))

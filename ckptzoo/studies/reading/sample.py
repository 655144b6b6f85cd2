"""Some of many, without chance."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")


def evenly(number: int, most: int) -> NDArray[np.int64]:
    """At most so many of the places 0 to number - 1, evenly spaced from the first to the last; ascending."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(np.int64))


def thinned(items: Sequence[_T], most: int) -> tuple[list[_T], int]:
    """At most so many of the items, evenly spaced from the first to the last, and how many are left out."""
    places = evenly(len(items), most)
    return [items[at] for at in places], len(items) - len(places)

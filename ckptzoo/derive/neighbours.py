"""Points that lie close to one another, found without looking at every pair."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def apart(points: NDArray[np.float64], width: float) -> Iterator[NDArray[np.int64]]:
    """Sets of points, so that no two in different sets are within ``width`` in every coordinate.

    Parameters
    ----------
    points : (N, D).
    width : 0 or more.

    Returns
    -------
    The places of every set of at least two, ascending.

    Notes
    -----
    The points are sorted by one coordinate after the other and cut where neighbours are further apart, until no
    coordinate cuts any more: N log N times D a round, and memory for a copy of one coordinate.
    """
    places = np.arange(len(points))
    labels = np.zeros(len(points), np.int64)
    quiet = 0
    for axis in _for_ever(points.shape[1]):
        if quiet == points.shape[1] or not len(places):
            break
        before = len(places), int(labels.max()) + 1
        values = points[places, axis]
        order = np.lexsort((values, labels))
        cut = (np.diff(labels[order]) > 0) | (np.diff(values[order]) > width)
        fresh = np.concatenate([[0], np.cumsum(cut)])
        several = np.bincount(fresh)[fresh] > 1
        places = places[order[several]]
        labels = np.unique(fresh[several], return_inverse=True)[1]
        after = len(places), int(labels.max(initial=-1)) + 1
        quiet = quiet + 1 if before == after else 0
    if len(places):
        order = np.lexsort((places, labels))
        yield from np.split(places[order], np.flatnonzero(np.diff(labels[order])) + 1)


def _for_ever(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


class Neighbours:
    """Points of which some are taken away, and those among the others that are close to one.

    Parameters
    ----------
    points : (N, D).
    width : the largest distance in any coordinate.
    """

    def __init__(self, points: NDArray[np.float64], width: float) -> None:
        axis = int(np.ptp(points, axis=0).argmax())
        self._points, self._width = points, width
        self._order = np.argsort(points[:, axis], kind="stable")
        self._values, self._line = points[self._order, axis], points[:, axis]
        self._free = np.ones(len(points), bool)

    def take(self, place: int) -> bool:
        """Take a point away; False where it is gone already."""
        there = bool(self._free[place])
        self._free[place] = False
        return there

    def near(self, place: int) -> NDArray[np.int64]:
        """Places of the points that are left and close to one, ascending; a search along one axis, then a scan."""
        value = self._line[place]
        reach = self._width + 1e-12 * (abs(value) + self._width)
        start = np.searchsorted(self._values, value - reach, side="left")
        stop = np.searchsorted(self._values, value + reach, side="right")
        found = self._order[start:stop]
        found = found[self._free[found]]
        return np.sort(found[(np.abs(self._points[found] - self._points[place]) <= self._width).all(axis=1)])

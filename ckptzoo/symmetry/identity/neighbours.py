"""Points that are close: sets that are apart from one another, and the neighbours of one."""

from collections.abc import Iterator
from itertools import cycle

import numpy as np


def apart(points: np.ndarray, width: float, labels: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Sets of points, so that no two in different sets are within ``width`` in every coordinate.

    Points (N, D) with different labels (N,) are in different sets; those of a set are ascending, and at least two. The
    points are sorted by one coordinate after the other and cut where neighbours are further apart, until no coordinate
    cuts any more: N log N times D a round, and memory for a copy of one coordinate.
    """
    places = np.arange(len(points))
    labels = np.zeros(len(points), np.int64) if labels is None else labels
    unchanged = 0
    for axis in cycle(range(points.shape[1])):
        if unchanged == points.shape[1] or not len(places):
            break
        before = len(places), len(np.unique(labels))
        values = points[places, axis]
        order = np.lexsort((values, labels))
        cut = (np.diff(labels[order]) > 0) | (np.diff(values[order]) > width)
        sets = np.concatenate([[0], np.cumsum(cut)])
        several = np.bincount(sets)[sets] > 1
        places = places[order[several]]
        labels = np.unique(sets[several], return_inverse=True)[1]
        unchanged = unchanged + 1 if before == (len(places), len(np.unique(labels))) else 0
    if len(places):
        order = np.lexsort((places, labels))
        yield from np.split(places[order], np.flatnonzero(np.diff(labels[order])) + 1)


class Neighbours:
    """Points (N, D) of which some are taken away, and those left that are within a width of one in every coordinate."""

    def __init__(self, points: np.ndarray, width: float) -> None:
        axis = int(np.ptp(points, axis=0).argmax()) if len(points) else 0
        self._points, self._width = points, width
        self._order = np.argsort(points[:, axis], kind="stable")
        self._values, self._line = points[self._order, axis], points[:, axis]
        self._free = np.ones(len(points), bool)

    def take(self, place: int) -> bool:
        """Take a point away; False where it is gone already."""
        free = bool(self._free[place])
        self._free[place] = False
        return free

    def near(self, place: int) -> np.ndarray:
        """Places of the points that are left and close to one, ascending; a search along one axis, then a scan."""
        value = self._line[place]
        reach = self._width + 1e-12 * (abs(value) + self._width)  # so that rounding leaves out no point at the edge
        start = np.searchsorted(self._values, value - reach, side="left")
        stop = np.searchsorted(self._values, value + reach, side="right")
        places = self._order[start:stop]
        places = places[self._free[places]]
        return np.sort(places[(np.abs(self._points[places] - self._points[place]) <= self._width).all(axis=1)])

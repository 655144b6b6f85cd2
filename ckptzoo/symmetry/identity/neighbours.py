"""Points that are close: sets that are apart from one another, the neighbours of one, and all close pairs."""

from collections.abc import Iterator
from itertools import cycle

import numpy as np

DIRECTIONS = 16
"""Coordinates in which pairs are looked for first."""
SAMPLE = 256
"""Points whose principal directions are taken, and whose spread says along which coordinate points are halved."""
LEAF = 256
"""The maximum of points that are compared with all those around them."""
PAIRS = 2**20
"""Pairs that are compared at a time."""
NUMBERS = 2**18
"""Coordinates of points or of pairs that are computed with at a time: what fits into a core's cache."""


def apart(points: np.ndarray, width: float, labels: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Yield sets of points, so that no two in different sets are within ``width`` in every coordinate.

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
    """Points (N, D) of which some are taken away, with queries for those left within one in every coordinate."""

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
        """Return the places of points left that are close to one, ascending: a search along one axis, then a scan."""
        value = self._line[place]
        reach = self._width + 1e-12 * (abs(value) + self._width)  # so that rounding leaves out no point at the edge
        start = np.searchsorted(self._values, value - reach, side="left")
        stop = np.searchsorted(self._values, value + reach, side="right")
        places = self._order[start:stop]
        places = places[self._free[places]]
        return np.sort(places[(np.abs(self._points[places] - self._points[place]) <= self._width).all(axis=1)])


def close_pairs(
    first: np.ndarray, second: np.ndarray, distance: float, labels: tuple[np.ndarray, np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield places and Euclidean distances of pairs of points (N, D) and (M, D) that are nearer than a distance.

    Points that are not finite are near to nothing, and those with one label are no pair; where both are the same array
    each pair comes once. No projection makes a distance larger: points are projected onto the principal directions of
    some, the first are halved along one coordinate after the other with those of the second around each half, and pairs
    are compared first in sixteen coordinates and then in all. Points are read in blocks, so that they may be in a file.
    """
    if not distance > 0 or not len(first) or not len(second):
        return
    sizes = [_sizes(side) for side in ((first,) if second is first else (first, second))]
    rows, places = np.flatnonzero(np.isfinite(sizes[0])), np.flatnonzero(np.isfinite(sizes[-1]))
    if not len(rows) or not len(places):
        return
    directions = _directions(first, rows, second, places)
    left = _projected(first, rows, directions)
    right = left if second is first else _projected(second, places, directions)
    # the rounding of projections, which are kept in float32, may not leave out a pair at the edge
    size = max(float(sizes[0][rows].max()), float(sizes[-1][places].max())) ** 0.5
    reach = distance * (1 + 1e-9) + 2.0**-20 * size
    step = max(1, NUMBERS // first.shape[1])
    for some, others in _within(left, right, reach):
        some, others = rows[some], places[others]
        keep = labels[0][some] != labels[1][others]
        if second is first:
            keep &= some < others
        some, others = some[keep], others[keep]
        for start in range(0, len(some), step):
            one, other = some[start : start + step], others[start : start + step]
            distances = np.linalg.norm(np.subtract(first[one], second[other], dtype=np.float64), axis=1)
            near = distances < distance
            yield one[near], other[near], distances[near]


def _blocks(points: np.ndarray) -> Iterator[slice]:
    """Yield slices of points whose coordinates are in memory at a time."""
    step = max(1, NUMBERS // max(1, points.shape[1]))
    return (slice(start, start + step) for start in range(0, len(points), step))


def _sizes(points: np.ndarray) -> np.ndarray:
    """Return the squared norms (N,) of points."""
    with np.errstate(all="ignore"):
        blocks = (points[block].astype(np.float64) for block in _blocks(points))
        return np.concatenate([np.einsum("ij,ij->i", block, block) for block in blocks])


def _projected(points: np.ndarray, rows: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the coordinates (rows, directions) of some points along directions, in float32."""
    with np.errstate(all="ignore"):
        found = np.concatenate([(points[block] @ directions).astype(np.float32) for block in _blocks(points)])
    return found[rows] if len(rows) < len(points) else found


def _directions(first: np.ndarray, rows: np.ndarray, second: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return orthonormal directions (D, up to 16) along which some of the points at these places are most spread."""
    sides = ((first, rows),) if second is first else ((first, rows), (second, places))
    sample = np.concatenate(
        [side[some[np.linspace(0, len(some) - 1, min(len(some), SAMPLE)).astype(np.int64)]] for side, some in sides]
    ).astype(np.float64)
    sample -= sample.mean(axis=0)
    _, vectors = np.linalg.eigh(sample @ sample.T)
    return np.linalg.qr(sample.T @ vectors[:, ::-1][:, :DIRECTIONS])[0]


def _within(left: np.ndarray, right: np.ndarray, reach: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield places of pairs, with all that are within reach of one another, and few others.

    Each half of the points on the left goes on with those on the right that are within reach of it, until it has few
    points, or is no wider than reach along any coordinate.
    """
    waiting = [(np.arange(len(left)), np.arange(len(right)))]
    while waiting:
        rows, places = waiting.pop()
        axis, span = _widest(left, rows)
        if len(rows) <= LEAF or span <= reach:
            for start in range(0, len(rows), LEAF):
                yield from _of_leaf(left, rows[start : start + LEAF], right, places, reach)
            continue
        values = left[rows, axis]
        order = np.argpartition(values, len(rows) // 2)
        line = right[places, axis]
        for half in (order[: len(rows) // 2], order[len(rows) // 2 :]):
            own = values[half]
            around = places[(line >= float(own.min()) - reach) & (line <= float(own.max()) + reach)]
            if len(around):
                waiting.append((rows[half], around))


def _widest(points: np.ndarray, rows: np.ndarray) -> tuple[int, float]:
    """Return the coordinate along which some of these points are most spread, and how far."""
    sample = points[rows[:: -(-len(rows) // SAMPLE)]]
    spans = sample.max(axis=0) - sample.min(axis=0)
    axis = int(spans.argmax())
    return axis, float(spans[axis])


def _of_leaf(
    left: np.ndarray, rows: np.ndarray, right: np.ndarray, places: np.ndarray, reach: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the pairs of some points on the left with those on the right that are within reach."""
    own = left[rows].astype(np.float64)
    low, high = own.min(axis=0) - reach, own.max(axis=0) + reach
    middle = (low + high) / 2
    own -= middle
    sizes = np.einsum("ij,ij->i", own, own)
    step = PAIRS // LEAF
    for start in range(0, len(places), step):
        some = places[start : start + step]
        others = right[some]
        inside = ((others >= low) & (others <= high)).all(axis=1)
        some, others = some[inside], others[inside] - middle
        norms = np.einsum("ij,ij->i", others, others)
        squares = sizes[:, None] + norms - 2 * own @ others.T
        # the rounding of a difference of sums
        limit = reach**2 + 1e-14 * (sizes.max() + norms.max(initial=0.0))
        found = np.nonzero(squares <= limit)
        yield rows[found[0]], some[found[1]]

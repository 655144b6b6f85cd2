"""Points that are close: sets that are apart from one another, the neighbours of one, and all close pairs."""

from collections.abc import Iterator
from itertools import cycle, product

import numpy as np

DIRECTIONS = 16
"""Coordinates in which pairs are looked for first."""
SORTED = 3
"""Coordinates by which points are sorted into cells."""
SAMPLE = 256
"""Points whose principal directions are taken."""
MOST_CELLS = 2.0**20
"""Cells along one coordinate, so that three fit into 64 bits."""
PAIRS = 2**20
"""Pairs that are compared at a time."""
NUMBERS = 2**22
"""Coordinates of pairs that are compared at a time."""


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
    some, sorted into cells as wide as the distance in three of these, and compared with those of the cells around,
    first in sixteen coordinates and then in all.
    """
    with np.errstate(all="ignore"):
        sizes = [np.einsum("ij,ij->i", side, side) for side in (first, second)]
        rows, places = (np.flatnonzero(np.isfinite(size)) for size in sizes)
        if not distance > 0 or not len(rows) or not len(places):
            return
        directions = _directions(first, rows, second, places)
        left, right = (first @ directions)[rows], (second @ directions)[places]
    # rounding of projections may not leave out a pair at the edge
    size = max(float(side[some].max()) for side, some in zip(sizes, (rows, places), strict=True)) ** 0.5
    reach = distance * (1 + 1e-9) + 1e-12 * size
    step = max(1, NUMBERS // first.shape[1])
    for some, others in _in_near_cells(left, right, reach):
        keep = labels[0][rows[some]] != labels[1][places[others]]
        if second is first:
            keep &= some < others
        for coordinates in (slice(0, SORTED), slice(0, None)):
            some, others = some[keep], others[keep]
            keep = np.square(left[some, coordinates] - right[others, coordinates]).sum(axis=1) <= reach**2
        some, others = rows[some[keep]], places[others[keep]]
        for start in range(0, len(some), step):
            one, other = some[start : start + step], others[start : start + step]
            distances = np.linalg.norm(first[one] - second[other], axis=1)
            near = distances < distance
            yield one[near], other[near], distances[near]


def _directions(first: np.ndarray, rows: np.ndarray, second: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return orthonormal directions (D, up to 16) along which some of the points at these places are most spread."""
    sides = ((first, rows), (second, places))
    sample = np.concatenate(
        [side[some[np.linspace(0, len(some) - 1, min(len(some), SAMPLE)).astype(np.int64)]] for side, some in sides]
    )
    sample -= sample.mean(axis=0)
    _, vectors = np.linalg.eigh(sample @ sample.T)
    return np.linalg.qr(sample.T @ vectors[:, ::-1][:, :DIRECTIONS])[0]


def _in_near_cells(left: np.ndarray, right: np.ndarray, width: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs of places, a million at a time, with all pairs within a width in the first three coordinates."""
    axes = min(SORTED, left.shape[1])
    low = np.minimum(left[:, :axes].min(axis=0), right[:, :axes].min(axis=0))
    spans = np.maximum(left[:, :axes].max(axis=0), right[:, :axes].max(axis=0)) - low
    widths = np.maximum(width, spans / MOST_CELLS)
    # one empty cell on each side keeps those around within their own row
    counts = (spans // widths).astype(np.int64) + 3
    strides = np.array([int(counts[axis + 1 :].prod()) for axis in range(axes)])
    keys = [(((side[:, :axes] - low) // widths).astype(np.int64) + 1) @ strides for side in (left, right)]
    rows, places = (np.argsort(key, kind="stable") for key in keys)
    ordered, wanted = keys[1][places], keys[0][rows]
    for offset in product((-1, 0, 1), repeat=axes - 1):
        around = wanted + int(np.dot(offset, strides[:-1]))
        starts, stops = np.searchsorted(ordered, around - 1), np.searchsorted(ordered, around + 1, side="right")
        ends = np.cumsum(stops - starts)
        start = 0
        while start < len(rows):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + PAIRS, side="right")))
            lengths = (stops - starts)[start:stop]
            if total := int(lengths.sum()):
                inside = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                yield np.repeat(rows[start:stop], lengths), places[np.repeat(starts[start:stop], lengths) + inside]
            start = stop

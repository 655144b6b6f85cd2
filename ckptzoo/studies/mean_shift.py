"""How many modes mean shift finds in a set of points, bandwidth by bandwidth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import require
from ckptzoo.schema.documents import Document, JsonFields

QUANTILES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Quantiles for ``sklearn.cluster.estimate_bandwidth``; 0.3 is its default."""
BANDWIDTHS = 20
"""The number of bandwidths, from just below the smallest distance to just above the largest."""
RUNS = BANDWIDTHS + len(QUANTILES)
"""Runs of mean shift for one curve."""
WIDE = 1024
"""Points with more coordinates than this are replaced by their principal components."""
# well above the rounding of distances from inner products, about 1e-7 of the largest (PointSet)
_SAME = 1e-5
"""Points closer than this fraction of the median distance count as one."""
_RANK = 1e-14
"""Eigenvalues of the Gram matrix below this fraction of the largest are rounding errors."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class BandwidthEstimate:
    """The modes that mean shift finds at a bandwidth that scikit-learn estimates.

    The bandwidth is the mean over points of the largest distance to the quantile of neighbours, None where the quantile
    of few points holds no neighbour; ``largest`` is the fraction of the points in the largest mode.
    """

    quantile: float
    bandwidth: float | None
    modes: int | None
    largest: float | None


@dataclass(frozen=True, eq=False)
class ModeCurve(JsonFields, derived=("apart_up_to", "one_from"), named={"median": "median_distance"}):
    """The number of modes of n points against the bandwidth.

    ``points`` counts all points and ``distinct`` those that differ; ``median`` is the median distance between two
    points; ``bandwidths``, ascending, and ``modes`` are (B,) each; ``estimates`` has one for each of ``QUANTILES``.
    """

    points: int
    distinct: int
    median: float
    bandwidths: Values
    modes: NDArray[np.int64]
    estimates: tuple[BandwidthEstimate, ...]

    @property
    def apart_up_to(self) -> float:
        """The largest bandwidth up to which every point that differs is a mode of its own."""
        fewer = np.flatnonzero(self.modes < self.distinct)
        return float(self.bandwidths[fewer[0] - 1])

    @property
    def one_from(self) -> float:
        """The smallest bandwidth from which on there is one mode."""
        several = np.flatnonzero(self.modes > 1)
        return float(self.bandwidths[several[-1] + 1])

    @property
    def steadiest(self) -> tuple[int, float] | None:
        """The number, from 2 to half of the points, that stays for the largest factor of the bandwidth.

        Returns the number, and the factor between the last and the first of its bandwidths; None where there is no such
        number at two bandwidths in a row.
        """
        best: tuple[int, float] | None = None
        first = 0
        for end in range(1, len(self.modes) + 1):
            if end == len(self.modes) or self.modes[end] != self.modes[first]:
                factor = float(self.bandwidths[end - 1] / self.bandwidths[first])
                if 1 < self.modes[first] <= self.distinct / 2 and factor > (best or (0, 1.0))[1]:
                    best = int(self.modes[first]), factor
                first = end
        return best

    def to_json(self) -> Document:
        steadiest = None if self.steadiest is None else dict(zip(("modes", "factor"), self.steadiest, strict=True))
        return {**super().to_json(), "steadiest": steadiest}


@dataclass(frozen=True, eq=False)
class WeightSpace(JsonFields):
    """The weights of one layer, or of all; ``curves`` has None for a variant in which all members are equal."""

    label: str
    parameters: int
    curves: dict[str, ModeCurve | None]


class PointSet:
    """Points added some coordinates at a time, in memory that does not grow with the number of coordinates.

    Up to ``WIDE`` coordinates are held as they are. Of more, the inner products of the centred points: with G = X X^T =
    V diag(l) V^T the rows of V diag(l)^(1/2) have the same distances as the rows of X. These are all principal
    components that there are, n - 1 at most, and nothing but rounding is left out: of the largest distance about 1e-7.

    ``n`` is the number of points.
    """

    def __init__(self, n: int) -> None:
        self._gram = np.zeros((n, n))
        self._columns: list[Values] = []
        self.width = 0

    def add(self, columns: Values) -> None:
        """Add coordinates (n, c) of every point, finite."""
        centred = columns - columns.mean(axis=0)
        self._gram += centred @ centred.T
        self.width += columns.shape[1]
        # of wide points the inner products are enough
        self._columns = [*self._columns, centred] if self.width <= WIDE else []

    def coordinates(self) -> Values:
        """(n, r) of points with the same distances."""
        if self.width <= WIDE:
            return np.concatenate(self._columns, axis=1)
        eigenvalues, vectors = np.linalg.eigh(self._gram)
        positive = eigenvalues > _RANK * eigenvalues[-1]  # eigh sorts them ascending
        return vectors[:, positive] * np.sqrt(eigenvalues[positive])


def mode_curve(points: Values, done: Callable[[], None]) -> ModeCurve | None:
    """Run mean shift at every bandwidth.

    Flat kernel, one seed a point, as ``sklearn.cluster.MeanShift`` does by default (Comaniciu and Meer, 2002).
    ``points`` are (n, r), finite; ``done`` is called after each run, ``RUNS`` times, whatever the points are. Returns
    None where no two points differ. Raises ``MissingExtraError`` if scikit-learn is not installed. Tested in
    ``tests/studies/test_modes.py``.
    """
    cluster: Any = require("sklearn.cluster", "stats", package="scikit-learn")
    limits: Any = require("threadpoolctl", "stats")  # scikit-learn brings it
    # one row at a time: (n, n, r) differences would not fit
    distances = np.array([np.linalg.norm(points - point, axis=1) for point in points])
    pairs = distances[np.triu_indices(len(points), 1)]
    if not (pairs > 0).any():
        for _ in range(RUNS):
            done()
        return None
    # more than half of the pairs can be copies of one point
    median = float(np.median(pairs)) or float(pairs.max())
    same = distances <= _SAME * median
    distinct = int((same.argmax(axis=1) == np.arange(len(points))).sum())
    different = pairs[pairs > _SAME * median]
    # just beyond both ends, so that the curve runs from every point for itself to a single mode
    bandwidths = np.geomspace(0.98 * different.min(), 1.02 * different.max(), BANDWIDTHS)

    def mode_sizes(bandwidth: float) -> NDArray[np.int64]:
        with limits.threadpool_limits(1):  # its small steps are slower on several threads
            # bin_seeding is off by default: every point is a seed
            labels = cluster.MeanShift(bandwidth=bandwidth).fit(points).labels_
        done()
        # no label is -1: by default (cluster_all) points within no kernel join the nearest mode
        return np.bincount(labels)

    modes = np.array([len(mode_sizes(float(bandwidth))) for bandwidth in bandwidths], np.int64)
    estimates: list[BandwidthEstimate] = []
    for quantile in QUANTILES:
        bandwidth = float(cluster.estimate_bandwidth(points, quantile=quantile))
        # scikit-learn takes int(quantile n) neighbours, at least 1; a point is its own first neighbour: then this is 0
        if bandwidth <= _SAME * median:
            estimates.append(BandwidthEstimate(quantile, None, None, None))
            done()
            continue
        sizes = mode_sizes(bandwidth)
        estimates.append(BandwidthEstimate(quantile, bandwidth, len(sizes), float(sizes.max() / len(points))))
    return ModeCurve(len(points), distinct, median, bandwidths, modes, tuple(estimates))

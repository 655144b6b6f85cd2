"""How many modes mean shift finds in a set of points, bandwidth by bandwidth."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import MissingExtraError

QUANTILES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Where ``sklearn.cluster.estimate_bandwidth`` is asked; 0.3 is its default."""
BANDWIDTHS = 20
"""So many from just below the smallest distance to just above the largest."""
RUNS = BANDWIDTHS + len(QUANTILES)
WIDE = 1024
_SAME = 1e-5
"""Points closer than this fraction of the median distance count as one."""
_RANK = 1e-14

Values = NDArray[np.float64]


@dataclass(frozen=True)
class BandwidthEstimate:
    """What mean shift finds at a bandwidth that scikit-learn estimates.

    Parameters
    ----------
    quantile : of the neighbours of each point whose mean largest distance is the bandwidth.
    bandwidth : None where a quantile of so few points holds no neighbour.
    modes : how many are found.
    largest : fraction of the points in the largest one.
    """

    quantile: float
    bandwidth: float | None
    modes: int | None
    largest: float | None


@dataclass(frozen=True, eq=False)
class Curve:
    """The number of modes of n points against the bandwidth.

    Parameters
    ----------
    points, distinct : how many points there are, and how many that differ.
    median : distance between two points.
    bandwidths, modes : (B,) each, ascending bandwidths.
    estimates : one for each of ``QUANTILES``.
    """

    points: int
    distinct: int
    median: float
    bandwidths: Values
    modes: NDArray[np.int64]
    estimates: tuple[BandwidthEstimate, ...]

    @property
    def apart(self) -> float:
        """The largest bandwidth up to which every point that differs is a mode of its own."""
        fewer = np.flatnonzero(self.modes < self.distinct)
        return float(self.bandwidths[fewer[0] - 1])

    @property
    def one(self) -> float:
        """The smallest bandwidth from which on there is a single mode."""
        several = np.flatnonzero(self.modes > 1)
        return float(self.bandwidths[several[-1] + 1])

    @property
    def steadiest(self) -> tuple[int, float] | None:
        """The number, from 2 to half of the points, that stays for the largest factor of the bandwidth.

        Returns
        -------
        The number, and the factor between the last and the first of its bandwidths; None where there is no such number
        at two bandwidths in a row.
        """
        best: tuple[int, float] | None = None
        first = 0
        for at in range(1, len(self.modes) + 1):
            if at == len(self.modes) or self.modes[at] != self.modes[first]:
                factor = float(self.bandwidths[at - 1] / self.bandwidths[first])
                if 1 < self.modes[first] <= self.distinct / 2 and factor > (best or (0, 1.0))[1]:
                    best = int(self.modes[first]), factor
                first = at
        return best

    def to_json(self) -> dict[str, Any]:
        """Every figure by name."""
        steadiest = self.steadiest
        return {
            "points": self.points,
            "distinct": self.distinct,
            "median_distance": self.median,
            "bandwidths": self.bandwidths.tolist(),
            "modes": self.modes.tolist(),
            "apart_up_to": self.apart,
            "one_from": self.one,
            "steadiest": None if steadiest is None else {"modes": steadiest[0], "factor": steadiest[1]},
            "estimates": [
                {
                    "quantile": item.quantile,
                    "bandwidth": item.bandwidth,
                    "modes": item.modes,
                    "largest": item.largest,
                }
                for item in self.estimates
            ],
        }


@dataclass(frozen=True, eq=False)
class Space:
    """The weights of one layer, or of all.

    Parameters
    ----------
    label : the layer, or all of them.
    parameters : weights of one member.
    curves : variant to what mean shift finds; None where all members have the same weights.
    """

    label: str
    parameters: int
    curves: dict[str, Curve | None]

    def to_json(self) -> dict[str, Any]:
        """Every figure by name."""
        held = {name: None if item is None else item.to_json() for name, item in self.curves.items()}
        return {"label": self.label, "parameters": self.parameters, "curves": held}


def need_sklearn() -> Any:
    """``sklearn.cluster``.

    Raises
    ------
    MissingExtraError
        scikit-learn is not installed; the error names the install command.
    """
    try:
        return import_module("sklearn.cluster")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise MissingExtraError("scikit-learn", "stats") from error


class Cloud:
    """Points that come some coordinates at a time, in memory that does not grow with their number.

    Up to ``WIDE`` coordinates are held as they are. Of more, the inner products of the centred points: with G = X X^T =
    V diag(l) V^T the rows of V diag(l)^(1/2) have the same distances as the rows of X. These are all principal
    components that there are, n - 1 at most, and nothing but rounding is left out: of the largest distance about 1e-7.

    Parameters
    ----------
    n : number of points.
    """

    def __init__(self, n: int) -> None:
        self._gram = np.zeros((n, n))
        self._held: list[Values] = []
        self.width = 0

    def add(self, piece: Values) -> None:
        """More coordinates (n, c) of every point, finite."""
        centred = piece - piece.mean(axis=0)
        self._gram += centred @ centred.T
        self.width += piece.shape[1]
        self._held = [*self._held, centred] if self.width <= WIDE else []

    def points(self) -> Values:
        """(n, r) coordinates."""
        if self.width <= WIDE:
            return np.concatenate(self._held, axis=1)
        sizes, vectors = np.linalg.eigh(self._gram)
        kept = sizes > _RANK * sizes[-1]
        return vectors[:, kept] * np.sqrt(sizes[kept])


def curve(points: Values, done: Callable[[], None]) -> Curve | None:
    """Run mean shift at every bandwidth.

    Flat kernel, one seed a point, as ``sklearn.cluster.MeanShift`` does by default (Comaniciu and Meer, 2002).

    Parameters
    ----------
    points : (n, r), finite.
    done : called after each run, ``RUNS`` times, whatever the points are.

    Returns
    -------
    None where no two points differ.

    Notes
    -----
    Known answers: ``tests/studies/test_modes.py``.
    """
    cluster = need_sklearn()
    apart = np.array([np.linalg.norm(points - point, axis=1) for point in points])
    pairs = apart[np.triu_indices(len(points), 1)]
    if not (pairs > 0).any():
        for _ in range(RUNS):
            done()
        return None
    median = float(np.median(pairs)) or float(pairs.max())
    same = apart <= _SAME * median
    distinct = int((same.argmax(axis=1) == np.arange(len(points))).sum())
    different = pairs[pairs > _SAME * median]
    bandwidths = np.geomspace(0.98 * different.min(), 1.02 * different.max(), BANDWIDTHS)

    def found(bandwidth: float) -> NDArray[np.int64]:
        with import_module("threadpoolctl").threadpool_limits(1):  # its small steps are slower on several threads
            labels = cluster.MeanShift(bandwidth=bandwidth).fit(points).labels_
        done()
        return np.bincount(labels)

    modes = np.array([len(found(float(bandwidth))) for bandwidth in bandwidths], np.int64)
    estimates: list[BandwidthEstimate] = []
    for quantile in QUANTILES:
        bandwidth = float(cluster.estimate_bandwidth(points, quantile=quantile))
        if bandwidth <= _SAME * median:
            estimates.append(BandwidthEstimate(quantile, None, None, None))
            done()
            continue
        sizes = found(bandwidth)
        estimates.append(BandwidthEstimate(quantile, bandwidth, len(sizes), float(sizes.max() / len(points))))
    return Curve(len(points), distinct, median, bandwidths, modes, tuple(estimates))

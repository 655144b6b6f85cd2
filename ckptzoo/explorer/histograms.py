"""Histograms of columns: bins that suit the values, and how many values are in none of them."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Scale = Literal["linear", "log"]

BINS = 60
"""The most bins of a histogram: twice the square root of the number of values where that is less, and 8 at least."""
_FEWEST_BINS = 8
_MAX_WHOLE = 40
"""Whole numbers in a range of at most this many get a bin each."""
_TAIL = 0.005
"""Fraction of the values at either end that may be beyond the bins, where they are far from all others."""
_FAR = 6.0
"""How many times as long the range of all values is as that of those between the tails, for these to be left out."""

_HUGE = 1e300
"""Larger values, and on a logarithmic scale their inverses, are in no bin: sums and powers of them are no floats."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of values in bins.

    Parameters
    ----------
    edges
        (B + 1,) rising; bin i holds ``edges[i] <= v < edges[i + 1]``, the last one its upper edge too. Empty where no
        value can be shown.
    counts
        (B,) int64, as ``numpy.histogram(values, edges)`` counts them.
    missing, nan, infinite
        Numbers of values that are null, NaN, and infinite.
    beyond
        Number of finite values in no bin; on a logarithmic scale those of 0 and less are among them.
    """

    edges: Values
    counts: NDArray[np.int64]
    missing: int
    nan: int
    infinite: int
    beyond: int

    def to_json(self) -> dict[str, Any]:
        """Every figure by name."""
        return {
            "edges": self.edges.tolist(),
            "counts": self.counts.tolist(),
            "missing": self.missing,
            "nan": self.nan,
            "infinite": self.infinite,
            "beyond": self.beyond,
        }


def histogram(values: Values, is_null: NDArray[np.bool_], scale: Scale = "linear") -> Histogram:
    """The histogram of a column.

    Parameters
    ----------
    values
        (N,) float64; what is under a null does not matter.
    is_null
        (N,) where there is no value.
    """
    known = values[~is_null]
    finite = known[np.isfinite(known)]
    shown = finite[np.abs(finite) < _HUGE]
    if scale == "log":
        shown = shown[shown > 1 / _HUGE]
    edges = _edges(shown, scale) if len(shown) else np.empty(0)
    counts = np.histogram(finite, edges)[0] if len(edges) else np.empty(0, np.int64)
    return Histogram(
        edges,
        counts.astype(np.int64),
        missing=int(is_null.sum()),
        nan=int(np.isnan(known).sum()),
        infinite=int(np.isinf(known).sum()),
        beyond=int(len(finite) - counts.sum()),
    )


def _edges(values: Values, scale: Scale) -> Values:
    """Edges of bins for finite values, at least one; positive ones on a logarithmic scale."""
    low, high = float(values.min()), float(values.max())
    if scale == "linear" and high - low <= _MAX_WHOLE and abs(high) < 2**50 and (values == np.floor(values)).all():
        return np.arange(low - 0.5, high + 1.0, 1.0)
    on_scale = np.log10(values) if scale == "log" else values
    ends = np.array([on_scale.min(), on_scale.max()])
    inner = np.quantile(on_scale, [_TAIL, 1 - _TAIL])
    width = inner[1] - inner[0]
    if width > 0 and ends[1] - ends[0] > _FAR * width:
        ends = np.clip(ends, inner[0] - 0.1 * width, inner[1] + 0.1 * width)
    bins = int(np.clip(2 * len(values) ** 0.5, _FEWEST_BINS, BINS))
    if ends[1] - ends[0] <= max(1e-12 * np.abs(ends).max(), 1 / _HUGE):
        half = 0.001 * np.abs(ends).max() or 0.5
        ends = np.array([ends[0] - half, ends[1] + half])
        return 10.0**ends if scale == "log" else ends
    edges = np.linspace(ends[0], ends[1], bins + 1)
    if scale == "log":
        edges = 10.0**edges
    # a logarithm and its power must not leave out the least and the largest value by rounding
    edges[0] = low if ends[0] == on_scale.min() else edges[0]
    edges[-1] = high if ends[1] == on_scale.max() else edges[-1]
    return edges

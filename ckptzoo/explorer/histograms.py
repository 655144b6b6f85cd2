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
"""The fraction of the values at either end that may be beyond the bins, where they are far from all others."""
_FAR = 6.0
"""The ratio of the range of all values to that between the tails from which on the tails are left out."""

_HUGE = 1e300
"""Larger values, and on a logarithmic scale their inverses, are in no bin: sums and powers of them are no floats."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of values in bins.

    ``edges`` (B + 1,) rise; bin i holds ``edges[i] <= v < edges[i + 1]``, the last one its upper edge too. They are
    empty where no value can be shown. ``counts`` (B,) int64 are those of ``numpy.histogram(values, edges)``.
    ``missing``, ``nan`` and ``infinite`` count the values that are null, NaN and infinite, and ``beyond`` the finite
    values in no bin, on a logarithmic scale those of 0 and less too.
    """

    edges: Values
    counts: NDArray[np.int64]
    missing: int
    nan: int
    infinite: int
    beyond: int

    def to_json(self) -> dict[str, Any]:
        return {
            "edges": self.edges.tolist(),
            "counts": self.counts.tolist(),
            "missing": self.missing,
            "nan": self.nan,
            "infinite": self.infinite,
            "beyond": self.beyond,
        }


def histogram(values: Values, is_null: NDArray[np.bool_], scale: Scale = "linear") -> Histogram:
    """Return the histogram of a column (N,) float64, whose values where ``is_null`` (N,) do not matter."""
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
    """Return edges of bins for finite values, at least one; positive ones on a logarithmic scale."""
    low, high = float(values.min()), float(values.max())
    # halves between whole numbers are exact below 2**52
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

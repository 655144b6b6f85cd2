"""The picture of masses: as trained and at the least, the excess, and the largest elements of the layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ckptzoo.studies.mass import MAX_ROWS, Largest, Masses, excess_density
from ckptzoo.studies.shared.plots import (
    DERIVED_COLOUR,
    INK,
    MUTED,
    RAW_COLOUR,
    WIDTH,
    abbreviated,
    head,
    log_axis,
    styled,
)
from ckptzoo.studies.shared.selection import thinned
from ckptzoo.text import counted

Values = NDArray[np.float64]

REACH = 4
"""Histograms end at most this number of interquartile ranges beyond the quartiles."""


@styled
def masses(
    name: str,
    before: Values,
    after: Values,
    excess: Values,
    smooth: tuple[Values, Values] | None,
    layers: Sequence[Largest],
    left_out: int,
) -> Figure:
    """Histograms of the masses and of the excess, and below them the largest elements, one row a layer.

    The arrays are (M,) each, and values that are not finite are not drawn. ``smooth`` is the excess's density, None
    where there is none; ``left_out`` counts layers that are not shown.
    """
    figure = Figure(figsize=(WIDTH, 5.0 + 0.34 * len(layers)), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[2.9, 1.0 + 0.34 * len(layers)])
    top_left, top_right, below = (figure.add_subplot(place) for place in (grid[0, 0], grid[0, 1], grid[1, :]))
    edges = _edges(np.concatenate([before, after]))
    top_left.hist(after, edges, color=DERIVED_COLOUR, alpha=0.55, edgecolor="white", linewidth=0.4)
    top_left.hist(before, edges, color=RAW_COLOUR, alpha=0.55, edgecolor="white", linewidth=0.4)
    _labels(top_left, "mass: sum of squared weights", np.concatenate([before, after]), edges)
    known = excess[np.isfinite(excess)]
    edges = _edges(known) if len(known) else [0.0, 1.0]
    top_right.hist(known, edges, color=MUTED, alpha=0.4, edgecolor="white", linewidth=0.4)
    _labels(top_right, "excess of the mass over the least (%)", known, edges)
    top_right.set_ylabel("")
    if smooth is not None:
        places, density = smooth
        # networks in a bin, as the bars have them
        heights = density * len(known) * (edges[1] - edges[0])
        top_right.plot(places, heights, color=INK, lw=1.8)
        highest = places[heights.argmax()]
        top_right.vlines(highest, 0, heights.max(), color=INK, lw=1.6, ls="--")
        top_right.set_title(f"peak of the curve at {highest:.3g} %", loc="right", fontsize=10, pad=4)
    _layers(below, layers)
    handles: list[Any] = [
        Patch(color=RAW_COLOUR, alpha=0.7, label="as trained"),
        Patch(color=DERIVED_COLOUR, alpha=0.7, label="at the least mass"),
        Line2D([], [], color=INK, marker="o", lw=1.6, ms=5, label="median and 90 % of the networks"),
    ]
    more = f"; {counted(left_out, 'more layer')} not shown" if left_out else ""
    head(figure, f"{abbreviated(name, 32)}: masses of {counted(len(before), 'network')}{more}", handles)
    return figure


def _edges(values: Values) -> list[float]:
    """Bins after Freedman and Diaconis, 10 to 60 of them."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    # a range of rounding alone has no bins
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        margin = 0.05 * abs(low) or 0.5
        return np.linspace(low - margin, high + margin, 9).tolist()
    # a few networks far out would leave a single bin to all others
    low, high = _trimmed(finite, low, high)
    quarters = np.quantile(finite, [0.25, 0.75])
    # their rule: 2 IQR n^(-1/3); an IQR of 0 has no width
    width = 2 * float(quarters[1] - quarters[0]) / len(finite) ** (1 / 3) or (high - low) / 20
    return np.linspace(low, high, int(np.clip(np.ceil((high - low) / width), 10, 60)) + 1).tolist()


def _trimmed(values: Values, low: float, high: float) -> tuple[float, float]:
    """Ends that leave out what is further beyond the quartiles than ``REACH`` times their distance."""
    first, third = np.quantile(values, [0.25, 0.75])
    reach = REACH * float(third - first) or high - low
    return max(low, float(first) - reach), min(high, float(third) + reach)


def _labels(axes: Axes, label: str, values: Values, edges: Sequence[float]) -> None:
    beyond = (values < edges[0]) | (values > edges[-1])
    if beyond.any():
        axes.set_title(f"{beyond.mean():.2%} are further out".replace("%", " %"), fontsize=10, pad=4)
    axes.set_xlabel(label)
    axes.set_ylabel("networks")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.locator_params(axis="x", nbins=6)
    axes.grid(visible=False, axis="x")


def _layers(axes: Axes, layers: Sequence[Largest]) -> None:
    """The largest elements: median and 90 % of the networks, as trained above the least mass."""
    ends: list[float] = []
    for index, item in enumerate(layers):
        for values, colour, shift in ((item.before, RAW_COLOUR, -0.16), (item.after, DERIVED_COLOUR, 0.16)):
            low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
            axes.plot([low, high], [index + shift] * 2, color=colour, lw=2.2, solid_capstyle="butt")
            axes.plot([middle], [index + shift], "o", color=colour, ms=5)
            ends += [low, high]
    axes.set_yticks(range(len(layers)), [abbreviated(item.layer, 40) for item in layers])
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    # a layer of zeros has no place on a logarithmic axis
    if min(ends) > 0:
        log_axis(axes, "x")
    axes.set_xlabel("largest absolute value of the layer's parameters")


def figures(result: Masses) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    shown, left_out = thinned(result.layers, MAX_ROWS)
    figure = masses(
        result.name, result.before, result.after, result.excess, excess_density(result.excess), shown, left_out
    )
    return {"mass.png": figure}

"""The pictures of an overview."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ckptzoo.schema import layout
from ckptzoo.studies.overview import AccuracyTrajectories, Overview, WeightPair
from ckptzoo.studies.shared.plots import (
    DERIVED_COLOUR,
    INK,
    MUTED,
    RAW_COLOUR,
    WIDTH,
    abbreviated,
    head,
    panel_title,
    step_axis,
    styled,
)
from ckptzoo.studies.shared.result import Spread
from ckptzoo.studies.shared.value_histograms import TensorHistogram
from ckptzoo.text import counted

MASSES = (0.9, 0.6, 0.3)
"""The shares of the estimated density that the contours hold."""
_GRID = 160
"""Cells along either axis of the estimate."""
_FEW = 20
"""Fewer points have no contours."""


@styled
def accuracy(name: str, accuracies: NDArray[np.float64], diverged: NDArray[np.float64]) -> Figure:
    """Histogram of the test accuracies, with their mean and spread; runs that diverged are marked."""
    good, apart = 100 * accuracies, 100 * diverged[np.isfinite(diverged)]
    spread = Spread.of(good)
    assert spread is not None
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.add_subplot()
    everything = np.concatenate([good, apart])
    edges = _edges(good, float(everything.min()), float(everything.max()))
    axes.axvspan(spread.mean - spread.sd, spread.mean + spread.sd, color=RAW_COLOUR, alpha=0.10, lw=0)
    heights, widths = np.histogram(good, edges)[0], np.diff(edges)
    axes.bar(edges[:-1], heights, widths, align="edge", color=RAW_COLOUR, edgecolor="white", linewidth=0.6)
    handles: list[Any] = [
        Line2D([], [], color=INK, lw=1.6, ls="--", label=f"mean {spread.mean:.1f} %"),
        Patch(color=RAW_COLOUR, alpha=0.25, label=f"mean ± one standard deviation ({spread.sd:.1f} points)"),
    ]
    if len(diverged):
        style: dict[str, Any] = {"color": DERIVED_COLOUR, "edgecolor": "white", "linewidth": 0.6, "hatch": "///"}
        axes.bar(edges[:-1], np.histogram(apart, edges)[0], widths, heights, align="edge", **style)
        handles.append(
            Patch(facecolor=DERIVED_COLOUR, hatch="///", edgecolor="white", label=f"{len(diverged):,} diverged")
        )
    axes.axvline(spread.mean, color=INK, lw=1.6, ls="--")
    axes.set_xlabel("test accuracy (%)")
    axes.set_ylabel("networks")
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.grid(visible=False, axis="x")
    head(figure, f"{abbreviated(name, 32)}: test accuracy of {counted(len(good) + len(diverged), 'network')}", handles)
    return figure


def _edges(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Bins after Freedman and Diaconis for these values, 8 to 80 of them from ``low`` to ``high``. Accuracies are
    multiples of one over the number of test examples: each bin holds equally many of them.
    """
    quarters = np.quantile(values, [0.25, 0.75])
    # their rule: 2 IQR n^(-1/3)
    width = 2 * float(quarters[1] - quarters[0]) / len(values) ** (1 / 3) or (high - low) / 20
    steps = np.diff(np.sort(values))
    # in percent: less than that is rounding, and no example of fewer than a million
    step = float(steps[steps > 1e-4].min(initial=np.inf))
    step = step if np.isfinite(step) else (high - low) or 1.0
    width = float(np.clip(width, (high - low) / 80, (high - low) / 8)) if high > low else step
    if step > width / 50:  # few test examples: uneven bins would be visible
        width = step * max(1, round(width / step))
    count = int(np.ceil((high - low + step / 2) / width))
    return low - step / 2 + width * np.arange(count + 1, dtype=np.float64)


@styled
def marginals(name: str, shown: int, items: Sequence[TensorHistogram], *, left_out: int = 0) -> Figure:
    """Densities of all elements of each weight tensor, raw against derived, one small panel a tensor."""
    columns = min(len(items), 3 if len(items) <= 9 else 4)
    rows = -(-len(items) // columns)
    figure = Figure(figsize=(WIDTH, 0.9 + (2.35 if rows < 4 else 1.9) * rows), layout="constrained")
    for index, item in enumerate(items):
        axes = figure.add_subplot(rows, columns, index + 1)
        for variant, colour in _coloured(item.heights):
            axes.stairs(item.heights[variant], item.edges, color=colour, fill=True, alpha=0.22, lw=0)
            axes.stairs(item.heights[variant], item.edges, color=colour, lw=1.4)
        axes.set_xlim(item.edges[0], item.edges[-1])
        axes.set_ylim(0, None)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False)
        axes.locator_params(axis="x", nbins=5 if columns < 4 else 3)
        panel_title(axes, item.tensor, columns)
        if index % columns == 0:
            axes.set_ylabel("density")
        if index + columns >= len(items):
            axes.set_xlabel("weight")
    key = _coloured(items[0].heights)
    handles = [Patch(facecolor=colour, alpha=0.7, label=_label(variant)) for variant, colour in key]
    more = f"; {counted(left_out, 'more tensor')} not shown" if left_out else ""
    head(figure, f"{abbreviated(name, 32)}: every weight of {counted(shown, 'network')}{more}", handles)
    return figure


@styled
def scatter(name: str, shown: int, pair: WeightPair) -> Figure:
    """Two incoming weights of one output neuron over all networks, raw beside derived, with density contours."""
    colours = _coloured(pair.points)
    # compressed: constrained leaves gaps around axes of equal aspect
    figure = Figure(figsize=(WIDTH, 5.2), layout="compressed")
    for index, (variant, colour) in enumerate(colours):
        _cloud(figure.add_subplot(1, len(colours), index + 1), pair, variant, colour)
    masses = ", ".join(f"{share:.0%}".replace("%", "") for share in sorted(MASSES))
    handles: list[Any] = [Line2D([], [], color=MUTED, lw=1.2, ls="--", label="both weights equal")]
    if shown >= _FEW:
        handles.append(Line2D([], [], color=MUTED, lw=1.0, label=f"{masses} % of the estimated density"))
    head(figure, f"{abbreviated(name, 32)}: two weights of one output neuron in {counted(shown, 'network')}", handles)
    return figure


@styled
def trajectories(name: str, measured: AccuracyTrajectories) -> Figure:
    """The test accuracy of every member at the steps that were kept, and the median over members."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.add_subplot()
    # many lines are fainter, so that they do not become one area
    alpha = float(np.clip(12 / len(measured.accuracies), 0.03, 0.5))
    for line in measured.accuracies:
        known = np.isfinite(line)
        axes.plot(measured.steps[known], 100 * line[known], "-", color=RAW_COLOUR, lw=1.0, alpha=alpha)
    median = 100 * np.nanmedian(measured.accuracies, axis=0)
    axes.plot(measured.steps, median, "o-", color=INK, ms=4, lw=1.6)
    step_axis(axes, measured.steps.tolist())
    axes.set_ylim(0, 100)
    axes.set_ylabel("test accuracy (%)")
    handles: list[Any] = [
        Line2D([], [], color=RAW_COLOUR, lw=1.0, alpha=0.7, label="one member"),
        Line2D([], [], color=INK, marker="o", ms=4, lw=1.6, label="median"),
    ]
    who = counted(len(measured.accuracies), "member")
    head(figure, f"{abbreviated(name, 32)}: {who} at {counted(len(measured.steps), 'step')} of the training", handles)
    return figure


def _cloud(axes: Axes, pair: WeightPair, variant: str, colour: str) -> None:
    points = pair.points[variant]
    low, high = _range(points)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.plot([low, high], [low, high], color=MUTED, lw=1.2, ls="--", zorder=3)
    heights = _smoothed(points, low, high)
    if heights is not None:
        levels = _levels(heights)
        centres = low + (np.arange(_GRID) + 0.5) * (high - low) / _GRID
        # the first axis of an array is vertical for contour, and the first coordinate here
        axes.contourf(centres, centres, heights.T, [*levels, heights.max()], colors=[colour], alpha=0.16, zorder=1)
        for level in levels[1:]:
            axes.contourf(centres, centres, heights.T, [level, heights.max()], colors=[colour], alpha=0.2, zorder=1)
        axes.contour(centres, centres, heights.T, levels, colors=colour, linewidths=1.0, zorder=4)
    axes.plot(*points.T, ".", color=colour, ms=_marker(len(points)), alpha=0.55, mec="none", zorder=2)
    axes.set_title(_label(variant))
    axes.set_xlabel(pair.names[0])
    axes.set_ylabel(pair.names[1])
    axes.locator_params(nbins=6)
    axes.set_title(f"{100 * pair.above(variant):.0f} % above the diagonal", loc="right", fontsize=10, color=MUTED)


def _range(points: NDArray[np.float64]) -> tuple[float, float]:
    """A square that holds all but the outermost points."""
    # 0.2 % of fewer points are less than one
    low, high = np.quantile(points, [0.002, 0.998]) if len(points) > 500 else (points.min(), points.max())
    margin = 0.12 * float(high - low) or 0.5
    return float(low) - margin, float(high) + margin


def _smoothed(points: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64] | None:
    """(G, G) Gaussian kernel estimate on the square, with Scott's bandwidth per axis; None for too few points."""
    spread = points.std(axis=0)
    if len(points) < _FEW or not (spread > 0).all():
        return None
    heights = np.histogram2d(*points.T, bins=_GRID, range=((low, high), (low, high)))[0]
    step = (high - low) / _GRID
    offsets = np.arange(-_GRID, _GRID + 1)
    for axis in (0, 1):
        # Scott's rule is s n^(-1 / (d + 4)), with d = 2 axes
        width = max(1.0, float(spread[axis]) * len(points) ** (-1 / 6) / step)
        kernel = np.exp(-0.5 * (offsets / width) ** 2)
        kernel /= kernel.sum()
        matrix = kernel[np.subtract.outer(np.arange(_GRID), np.arange(_GRID)) + _GRID]
        heights = np.moveaxis(np.tensordot(matrix, heights, axes=(1, axis)), 0, axis)
    return heights


def _levels(heights: NDArray[np.float64]) -> list[float]:
    """Ascending heights above which the shares ``MASSES`` of the density lie."""
    ordered = np.sort(heights.ravel())[::-1]
    mass = np.cumsum(ordered) / ordered.sum()
    # a set: matplotlib's contours need levels that increase
    return sorted({float(ordered[int(np.searchsorted(mass, share))]) for share in MASSES})


def _marker(count: int) -> float:
    return float(np.clip(90 / count**0.5, 1.2, 9))


def _coloured(variants: Iterable[str]) -> list[tuple[str, str]]:
    return list(zip(variants, (RAW_COLOUR, DERIVED_COLOUR), strict=False))


def _label(variant: str) -> str:
    return "raw, as trained" if variant == layout.RAW else variant


def figures(result: Overview) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    name, shown = result.inventory.name, result.shown
    drawn: dict[str, Figure] = {}
    if len(result.accuracies):
        drawn["accuracy.png"] = accuracy(name, result.accuracies, result.diverged)
    if result.marginals:
        drawn["marginals.png"] = marginals(name, shown, result.marginals, left_out=len(result.left_out))
    if result.pair is not None:
        drawn["scatter.png"] = scatter(name, shown, result.pair)
    if result.trajectories is not None:
        drawn["trajectories.png"] = trajectories(name, result.trajectories)
    return drawn

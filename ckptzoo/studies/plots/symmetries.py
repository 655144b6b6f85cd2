"""The pictures of a study of symmetries: margins, scales, and transpositions against random orders."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ckptzoo.studies.gauge_distance import OrderDistance, Scaling
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
from ckptzoo.studies.symmetries import Symmetries
from ckptzoo.text import counted

MAX_ROWS = 24
"""More groups than this are thinned out evenly."""


@styled
def margins(name: str, values: NDArray[np.float64]) -> Figure:
    """Histogram of the smallest gap between neighbouring keys of each checkpoint, on a logarithmic axis. ``name`` is
    the zoo's and the variant's; ``values`` are (M,) finite margins; those of 0 are ties, which the key counts.
    """
    above = values[values > 0]
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.add_subplot()
    handles: list[Any] = []
    if len(above):
        # edges at quarters of a decade
        low, high = np.floor(4 * np.log10(above.min())) / 4, np.ceil(4 * np.log10(above.max())) / 4
        low, high = (low, high) if high > low else (low - 0.25, high + 0.25)
        count = int(np.clip(round(2 * len(above) ** 0.5), 8, 80))
        axes.hist(above, np.logspace(low, high, count + 1), color=RAW_COLOUR, edgecolor="white", linewidth=0.6)
        log_axis(axes, "x")
        middle = float(np.median(above))
        axes.axvline(middle, color=INK, lw=1.6, ls="--")
        handles.append(Line2D([], [], color=INK, lw=1.6, ls="--", label=f"median {middle:.2g}"))
    if len(above) < len(values):
        tied = counted(len(values) - len(above), "checkpoint")
        handles.append(Patch(color=DERIVED_COLOUR, label=f"{tied} with ties, margin 0, not drawn"))
    axes.set_xlabel("smallest gap between the keys of neighbouring channels")
    axes.set_ylabel("checkpoints")
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.grid(visible=False, axis="x")
    head(figure, f"{abbreviated(name, 40)}: margins of {counted(len(values), 'checkpoint')}", handles)
    return figure


@styled
def scales(name: str, shown: int, items: Sequence[Scaling]) -> Figure:
    """The scales that bring each group into the gauge, as quantiles on a logarithmic axis, one row a group."""
    rows, left_out = thinned(items, MAX_ROWS)
    figure, axes = _rows([item.group for item in rows])
    for index, item in enumerate(rows):
        assert item.quantiles is not None
        low, first, middle, third, high = item.quantiles
        axes.plot([low, high], [index, index], color=RAW_COLOUR, lw=1.6, solid_capstyle="butt")
        axes.plot([first, third], [index, index], color=RAW_COLOUR, lw=8, alpha=0.45, solid_capstyle="butt")
        axes.plot([middle], [index], "o", color=RAW_COLOUR, ms=5)
    axes.axvline(1, color=MUTED, lw=1.2, ls="--", zorder=1)
    log_axis(axes, "x")
    axes.set_xlabel("scale from raw to the gauge; 1 leaves a channel as it is")
    handles = [
        Line2D([], [], color=RAW_COLOUR, marker="o", ls="", label="median"),
        Line2D([], [], color=RAW_COLOUR, lw=8, alpha=0.45, label="half of the channels"),
        Line2D([], [], color=RAW_COLOUR, lw=1.6, label="90 % of the channels"),
    ]
    head(figure, _title(name, "scales", shown, left_out), handles)
    return figure


@styled
def transpositions(name: str, shown: int, items: Sequence[OrderDistance]) -> Figure:
    """Transpositions from raw to the gauge over the most that there can be, against random orders, one row an order."""
    rows, left_out = thinned(items, MAX_ROWS)
    figure, axes = _rows([f"{item.label} ({item.n:,})" for item in rows])
    for index, item in enumerate(rows):
        limit = item.n - 1  # transpositions of a single cycle, the most that there can be
        mean, sd = item.transpositions.mean / limit, item.transpositions.sd / limit
        axes.errorbar(mean, index, xerr=sd, fmt="o", color=RAW_COLOUR, ms=6, lw=1.6, capsize=3, zorder=3)
        random = item.random_transpositions / limit
        axes.plot([random, random], [index - 0.32, index + 0.32], color=DERIVED_COLOUR, lw=2.4, zorder=4)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("transpositions from the raw order to the gauge's, over n - 1")
    handles = [
        Line2D([], [], color=RAW_COLOUR, marker="o", lw=1.6, label="mean and standard deviation over checkpoints"),
        Line2D([], [], color=DERIVED_COLOUR, lw=2.4, label="mean of random orders"),
    ]
    head(figure, _title(name, "orders", shown, left_out), handles)
    return figure


def _title(name: str, what: str, shown: int, left_out: int) -> str:
    more = f"; {left_out:,} more not shown" if left_out else ""
    return f"{abbreviated(name, 40)}: {what} of {counted(shown, 'checkpoint')}{more}"


def _rows(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with a row for each label, the first one on top."""
    figure = Figure(figsize=(WIDTH, 1.8 + 0.34 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(labels)), [abbreviated(label, 40) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return figure, axes


def figures(result: Symmetries) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    title = f"{result.name}, {result.variant}"
    drawn: dict[str, Figure] = {}
    if len(result.margins):
        drawn["margins.png"] = margins(title, result.margins)
    if scaled := [item for item in result.scalings if item.quantiles is not None]:
        drawn["scales.png"] = scales(title, result.gauged, scaled)
    if result.moves:
        drawn["transpositions.png"] = transpositions(title, result.gauged, result.moves)
    return drawn

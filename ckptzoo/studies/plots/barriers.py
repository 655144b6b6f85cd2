"""The pictures of loss barriers: losses along the lines, barriers against distances, and barriers against the width."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ckptzoo.studies.barriers import BarrierStudy, Lines, ZooBarriers
from ckptzoo.studies.shared.plots import WIDTH, abbreviated, head, log_axis, panel_title, styled
from ckptzoo.studies.shared.selection import thinned
from ckptzoo.text import counted

MAX_ZOOS = 6
"""More zoos than this are thinned out evenly."""
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, one a way."""
_MARKERS = "osD^vP*"
_WIDE = 4
"""Distances that differ by more than this factor are shown on a logarithmic axis."""
_LEAST = 1e-3
"""Nats; lower means, and lower ends of errors, are shown here, because the axis is logarithmic."""


@styled
def curves(zoos: Sequence["ZooBarriers"]) -> Figure:
    """A row a zoo: the mean loss at each point with the middle half of the pairs, and barriers against distances."""
    shown, left_out = thinned(zoos, MAX_ZOOS)
    figure = Figure(figsize=(WIDTH, 1.3 + 3.3 * len(shown)), layout="constrained")
    panels: Any = figure.subplots(len(shown), 2, squeeze=False)
    ways = list(dict.fromkeys(way for zoo in shown for way in zoo.lines))
    for (left, right), zoo in zip(panels, shown, strict=True):
        for way, lines in zoo.lines.items():
            colour = _COLOURS[ways.index(way) % len(_COLOURS)]
            _curve(left, lines, colour)
            heights = np.maximum(lines.barriers.height, 0)
            right.plot(lines.distances, heights, ".", color=colour, ms=7, mew=0, alpha=0.7)
        left.set_title(f"{abbreviated(zoo.name, 30)}: {counted(len(zoo.pairs), 'pair')}", fontsize=11, pad=4)
        left.set_ylabel(f"loss on {abbreviated(zoo.set, 20)} (nats)")
        left.set_xlim(0, 1)
        distances = np.concatenate([lines.distances for lines in zoo.lines.values()])
        # equal networks have distance 0, and no logarithm
        if 0 < _WIDE * distances.min() < distances.max():
            log_axis(right, "x")
        right.set_ylabel("barrier (nats)")
        right.set_ylim(bottom=0)
    panels[-1][0].set_xlabel("from the first network (0) to the second (1)")
    panels[-1][1].set_xlabel("Euclidean distance of the weights")
    handles = [
        Line2D([], [], color=_COLOURS[number % len(_COLOURS)], lw=2, label=way) for number, way in enumerate(ways)
    ]
    more = f"; {counted(left_out, 'more zoo')} not shown" if left_out else ""
    head(
        figure,
        f"loss on lines between networks, mean and middle half of the pairs{more}",
        handles,
        columns=_columns(handles),
    )
    return figure


def has_widths(zoos: Sequence["ZooBarriers"], kind: str) -> bool:
    """Whether there are networks of this kind of several widths."""
    return len({zoo.width for zoo in zoos if zoo.kind == kind}) > 1


@styled
def widths(zoos: Sequence["ZooBarriers"]) -> Figure:
    """Mean barriers against the width, a panel for each kind of network that has several widths."""
    kinds = list(dict.fromkeys(zoo.kind for zoo in zoos))
    shown, _ = thinned([kind for kind in kinds if has_widths(zoos, kind)], MAX_ZOOS)
    left_out = len(kinds) - len(shown)
    columns = min(len(shown), 2 if len(shown) in (2, 4) else 3)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, 1.3 + 3.4 * rows), layout="constrained")
    panels: Any = figure.subplots(rows, columns, squeeze=False, sharey=True)
    ways = list(dict.fromkeys(way for zoo in zoos for way in zoo.lines))
    for axes in panels.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, kind in zip(panels.flat, shown, strict=False):
        of_kind = sorted((zoo for zoo in zoos if zoo.kind == kind), key=lambda zoo: zoo.width)
        for number, way in enumerate(ways):
            points = [(zoo.width, zoo.lines[way].barriers.height) for zoo in of_kind if way in zoo.lines]
            if points:
                means = np.array([max(float(np.mean(heights)), _LEAST) for _, heights in points])
                errors = np.array([_standard_error(heights) for _, heights in points])
                look: Any = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
                axes.errorbar(
                    [width for width, _ in points],
                    means,
                    # lower ends stay on the logarithmic axis
                    [np.minimum(errors, means - _LEAST), errors],
                    ms=5,
                    lw=1.4,
                    capsize=2,
                    **look,
                )
        axes.set_xscale("log", base=2)
        log_axis(axes, "y")
        ticks = sorted({zoo.width for zoo in of_kind})
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
        axes.xaxis.set_minor_locator(NullLocator())
        panel_title(axes, kind, columns)
        axes.set_xlabel("width")
    # one decade at least: all barriers may be as low as the axis shows them
    bottom, top = panels[0, 0].get_ylim()
    panels[0, 0].set_ylim(bottom / 1.2, max(top, 10 * bottom))
    for row in panels:
        row[0].set_ylabel("barrier (nats)")
    handles = [
        Line2D([], [], color=_COLOURS[number % len(_COLOURS)], marker=_MARKERS[number % len(_MARKERS)], ms=5, label=way)
        for number, way in enumerate(ways)
    ]
    more = f"; {counted(left_out, 'more kind')} not shown" if left_out else ""
    head(figure, f"barriers against the width, mean ± standard error{more}", handles, columns=_columns(handles))
    return figure


def _columns(handles: Sequence[Line2D]) -> int:
    """The number of columns of the key: four ways, as by default, fit on one line."""
    return 4 if len(handles) == 4 else 3


def _standard_error(values: Any) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def _curve(axes: Axes, lines: Lines, colour: str) -> None:
    axes.plot(lines.points, lines.losses.mean(0), color=colour, lw=1.8)
    low, high = np.quantile(lines.losses, [0.25, 0.75], axis=0)
    axes.fill_between(lines.points, low, high, color=colour, alpha=0.12, lw=0)


def figures(result: BarrierStudy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    drawn = {"barriers.png": curves(result.zoos)}
    if any(has_widths(result.zoos, zoo.kind) for zoo in result.zoos):
        drawn["widths.png"] = widths(result.zoos)
    return drawn

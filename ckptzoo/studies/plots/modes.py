"""The picture of modes: how many mean shift finds, against the bandwidth."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.mean_shift import ModeCurve, WeightSpace
from ckptzoo.studies.modes import Modes
from ckptzoo.studies.shared.plots import (
    DERIVED_COLOUR,
    MUTED,
    RAW_COLOUR,
    WIDTH,
    abbreviated,
    head,
    log_axis,
    panel_title,
    styled,
)
from ckptzoo.text import counted

DEFAULT = 0.3
"""The quantile of ``sklearn.cluster.estimate_bandwidth`` unless another is given."""


@styled
def curves(name: str, members: int, spaces: Sequence[WeightSpace]) -> Figure:
    """The number of modes against the bandwidth in median distances, raw and derived, one panel a layer. Points are the
    bandwidths that scikit-learn estimates, the large one that of its default quantile.
    """
    columns = min(len(spaces), 2 if len(spaces) in (2, 4) else 3)
    rows = -(-len(spaces) // columns)
    figure = Figure(figsize=(WIDTH, 1.2 + (2.5 if rows < 3 else 2.1) * rows), layout="constrained")
    ends = [
        float(value / item.median)
        for space in spaces
        for item in space.curves.values()
        if item is not None
        for value in item.bandwidths[[0, -1]]
    ] or [0.5, 2.0]
    for index, space in enumerate(spaces):
        axes = figure.add_subplot(rows, columns, index + 1)
        panel_title(axes, f"{space.label}: {counted(space.parameters, 'weight')}", columns)
        for (_, curve), colour in zip(space.curves.items(), (RAW_COLOUR, DERIVED_COLOUR), strict=False):
            if curve is None:
                axes.axhline(1, color=colour, lw=1.6)
            else:
                _curve(axes, curve, colour)
        _axes(axes, members, min(ends), max(ends))
        if index % columns == 0:
            axes.set_ylabel("modes")
        if index + columns >= len(spaces):
            axes.set_xlabel("bandwidth / median distance")
    names = list(spaces[0].curves)
    handles: list[Any] = [
        Line2D([], [], color=colour, lw=1.6, label="raw, as trained" if variant == "raw" else variant)
        for variant, colour in zip(names, (RAW_COLOUR, DERIVED_COLOUR), strict=False)
    ]
    handles.append(Line2D([], [], color=MUTED, marker="o", ls="", ms=4, label="scikit-learn's estimates"))
    handles.append(Line2D([], [], color=MUTED, marker="o", ls="", ms=8, mfc="none", mew=1.6, label="its default"))
    head(figure, f"{abbreviated(name, 32)}: modes by mean shift in {counted(members, 'member')}", handles)
    return figure


def _curve(axes: Axes, curve: ModeCurve, colour: str) -> None:
    axes.plot(curve.bandwidths / curve.median, curve.modes, "-", color=colour, lw=1.6, zorder=2)
    for item in curve.estimates:
        if item.bandwidth is None or item.modes is None:
            continue
        place = item.bandwidth / curve.median, item.modes
        axes.plot(*place, "o", color=colour, ms=4, zorder=3)
        if item.quantile == DEFAULT:
            axes.plot(*place, "o", color=colour, ms=8, mfc="none", mew=1.6, zorder=3)


def _axes(axes: Axes, members: int, low: float, high: float) -> None:
    log_axis(axes, "x")
    log_axis(axes, "y")
    # curves at 1 and at all members are off the frame
    axes.set_ylim(0.8, 1.4 * members)
    margin = (high / low) ** 0.04
    axes.set_xlim(low / margin, high * margin)


def figures(result: Modes) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"modes.png": curves(result.name, result.members, result.spaces)}

"""The picture of kept steps against the last one: transpositions, distances and barriers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ckptzoo.studies.shared.plots import DERIVED_COLOUR, INK, RAW_COLOUR, WIDTH, abbreviated, head, step_axis, styled
from ckptzoo.studies.steps import Steps
from ckptzoo.text import counted

_LOOKS = ((RAW_COLOUR, "o", 3.6, 1.2), (DERIVED_COLOUR, "s", 6.0, 1.8))
"""Colour, marker, its size and the width of lines of each way: the second is seen behind the first."""


@styled
def steps(result: Steps) -> Figure:
    """Means with deviations over the members, against the earlier step."""
    count = 3 if result.barriers else 2
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    panels: Any = figure.subplots(1, count)
    _against(panels[0], result, result.found, INK, "o", 4.0, 1.4)
    panels[0].set_ylabel("transpositions to the last step")
    for axes, by_way in zip(panels[1:], (result.distances, result.barriers), strict=False):
        for values, look in reversed(list(zip(by_way.values(), _LOOKS, strict=True))):
            _against(axes, result, values, *look)
    panels[1].set_ylabel("Euclidean distance to the last step")
    if result.barriers:
        panels[2].set_ylabel(f"barrier on {abbreviated(str(result.set), 20)} (nats)")
    for axes in panels:
        if any(step > 0 for step in result.steps):
            step_axis(axes, result.steps)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=axes is panels[0]))
    # without any transposition the axis still reaches to 1
    panels[0].set_ylim(top=max(1.05, panels[0].get_ylim()[1]))
    handles = [
        Line2D([], [], color=colour, marker=marker, ms=size, mfc="white", lw=width, label=way)
        for way, (colour, marker, size, width) in zip(result.distances, _LOOKS, strict=True)
    ]
    title = f"{abbreviated(result.name, 32)}: kept steps of {counted(result.members, 'member')} against the last"
    head(figure, f"{title}, mean ± deviation", handles)
    return figure


def _against(
    axes: Axes, result: Steps, values: NDArray[Any], colour: str, marker: str, size: float, width: float
) -> None:
    spreads = [(step, result.at(values, step)) for step in result.steps]
    shown = [(step, item) for step, item in spreads if item is not None]
    means, errors = ([getattr(item, name) for _, item in shown] for name in ("mean", "sd"))
    places = np.array([step for step, _ in shown])
    # bars of many steps and two ways would cover one another; none of what is drawn is below 0
    low, high = np.maximum(0, np.subtract(means, errors)), np.add(means, errors)
    axes.fill_between(places, low, high, color=colour, alpha=0.15, lw=0)
    # markers at 0 are whole, and before the axis
    axes.plot(places, means, color=colour, marker=marker, ms=size, mfc="white", lw=width, clip_on=False, zorder=3)


def figures(result: Steps) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"steps.png": steps(result)}

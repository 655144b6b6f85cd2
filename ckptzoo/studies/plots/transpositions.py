"""The picture of planted permutations: what is found after training, distances, barriers, lines between networks."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ckptzoo.studies.shared.plots import DERIVED_COLOUR, INK, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.studies.transpositions import Transpositions
from ckptzoo.text import counted

_STYLES = ((RAW_COLOUR, "o", 4.5), (DERIVED_COLOUR, "s", 8.0), ("#009E73", "^", 4.5))
"""Colour, marker and its size of each way; the last two are often at one place, and the third colour is a green."""
_CURVES = 8
"""The most numbers of transpositions that are drawn along lines."""
_LABEL_HEIGHT = 0.045
"""The height of a label at the end of a curve, as a share of the axis."""


@styled
def planted(result: Transpositions) -> Figure:
    """Found numbers, distances and barriers against the planted number, and numbers along the line between networks."""
    figure = Figure(figsize=(WIDTH, 7.4), layout="constrained")
    panels: Any = figure.subplots(2, 2)
    (count, distance), (barrier, along) = panels
    ends = [min(result.numbers), max(result.numbers)]
    count.plot(ends, ends, color=MUTED, lw=1, ls=":")
    _against(count, result, result.found, INK, "o", 4.5)
    count.set_ylabel("transpositions found")
    for axes, values_by_way in ((distance, result.distances), (barrier, result.barriers)):
        for values, (colour, marker, size) in zip(values_by_way.values(), _STYLES, strict=False):
            _against(axes, result, values, colour, marker, size)
        axes.set_ylim(bottom=0)
    distance.set_ylabel("Euclidean distance of the weights")
    for axes in (count, distance, barrier):
        axes.set_xlabel("transpositions planted")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in (count, along):
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    if result.barriers:
        barrier.set_ylabel(f"barrier on {abbreviated(result.set or '', 20)} (nats)")
    else:
        barrier.set_axis_off()
    _along(along, result)
    handles = [
        Line2D([], [], color=colour, marker=marker, ms=size, mfc="white", label=way)
        for way, (colour, marker, size) in zip(result.distances, _STYLES, strict=False)
    ]
    pairs = counted(len(result.planted), "pair")
    head(figure, f"{abbreviated(result.name, 32)}: permutations planted in {pairs}, mean ± deviation", handles)
    return figure


def _against(axes: Axes, result: Transpositions, values: NDArray[Any], colour: str, marker: str, size: float) -> None:
    of = [values[result.planted == number] for number in result.numbers]
    means = [float(item.mean()) for item in of]
    spreads = [float(item.std(ddof=1)) if len(item) > 1 else 0.0 for item in of]
    axes.errorbar(result.numbers, means, spreads, color=colour, marker=marker, ms=size, mfc="white", lw=1.4, capsize=2)


def _along(axes: Axes, result: Transpositions) -> None:
    """Mean numbers from the reference to the member, a curve a planted number, darker the more."""
    numbers = result.numbers
    shown = [numbers[place] for place in np.unique(np.linspace(0, len(numbers) - 1, _CURVES).round().astype(int))]
    # the lightest colours of the map are hard to see on white
    colours = matplotlib.colormaps["viridis_r"](np.linspace(0.15, 1, len(shown)))
    above = -1.0
    for number, colour in zip(shown, colours, strict=True):
        means = result.along[result.planted == number].mean(0)
        axes.plot(result.points, means, color=colour, lw=1.6)
        # labels of curves that end closer together would overlap
        if means[-1] >= above:
            axes.annotate(f"{number:,}", (1, means[-1]), (4, 0), textcoords="offset points", va="center", fontsize=9)
            above = means[-1] + _LABEL_HEIGHT * result.along.max()
    # the labels are right of 1
    axes.set_xlim(0, 1.08)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlabel("from the reference (0) to the member (1)")
    axes.set_ylabel("transpositions to the reference")


def figures(result: Transpositions) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"transpositions.png": planted(result)}

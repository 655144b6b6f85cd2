"""The picture of how two checkpoints differ: relative differences and angles by layer, as they are and aligned."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.differences import DifferenceStudy
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.studies.shared.selection import thinned

_MAX_LAYERS = 40
"""Layers with a line of their own; of more, evenly spaced ones are drawn."""


@styled
def by_layer(study: DifferenceStudy) -> Figure:
    """Two panels with a row a layer."""
    places, left_out = thinned(range(len(study.layers)), _MAX_LAYERS)
    figure = Figure(figsize=(WIDTH, 1.8 + 0.3 * len(places)), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    ways = [("as they are", study.layers, RAW_COLOUR)]
    if study.aligned:
        ways.append(("aligned", study.aligned, DERIVED_COLOUR))
    rows = np.arange(len(places))
    for axes, name in zip(panels, ("relative", "angle"), strict=True):
        for _, lines, colour in ways:
            values = np.array([getattr(lines[place], name) for place in places], np.float64)
            # NaN is left out, while an infinite ratio would leave no place for the others
            values[~np.isfinite(values)] = np.nan
            axes.plot(values, rows, "o", color=colour, ms=6, mew=0, clip_on=False)
        # with 0, so that the margin is a share of the whole axis
        axes.update_datalim([(0, 0)])
        axes.autoscale_view()
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(rows, [abbreviated(study.layers[place].layer, 32) for place in places])
    panels[0].invert_yaxis()
    panels[0].set_xlabel("norm of the difference / norm of the first")
    panels[1].set_xlabel("angle (degrees)")
    handles: list[Any] = [Line2D([], [], color=colour, marker="o", ls="", label=way) for way, _, colour in ways]
    more = f", {left_out:,} layers not drawn" if left_out else ""
    first, second = (abbreviated(name, 32) for name in study.names)
    head(figure, f"{first} and {second}{more}", handles)
    return figure


def figures(result: DifferenceStudy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"differences.png": by_layer(result)}

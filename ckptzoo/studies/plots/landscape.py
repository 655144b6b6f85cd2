"""The picture of the loss around members: largest eigenvalues, traces against losses, and losses between members."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from ckptzoo.studies.landscape import LandscapeStudy
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.text import counted

BINS = 40
"""The number of bins of the histogram."""


@styled
def panels(result: LandscapeStudy) -> Figure:
    """A histogram of the largest eigenvalues, traces against losses, and mean losses on lines and curves."""
    count = 2 + bool(result.joined)
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes: Any = figure.subplots(1, count)
    low, high = float(result.tops.min()), float(result.tops.max())
    # permuted copies have one value, but for rounding
    room = max(high - low, 1e-3 * abs(high), 1e-9)
    axes[0].hist(result.tops, np.linspace(low - 0.02 * room, high + 0.02 * room, BINS + 1), color=RAW_COLOUR, alpha=0.8)
    axes[0].set_xlabel("largest eigenvalue of the Hessian")
    axes[0].set_ylabel("members")
    axes[1].plot(result.losses, result.traces, ".", color=RAW_COLOUR, ms=4, mew=0, alpha=0.5)
    axes[1].set_xlabel("loss (nats)")
    axes[1].set_ylabel("trace of the Hessian")
    handles: list[Any] = []
    for (way, joined), colour in zip(result.joined.items(), (RAW_COLOUR, DERIVED_COLOUR), strict=False):
        for name, losses, style in (("line", joined.line, "--"), ("curve", joined.curve, "-")):
            points = np.linspace(0, 1, losses.shape[1])
            axes[2].plot(points, losses.mean(0), style, color=colour, lw=1.8)
            handles.append(Line2D([], [], color=colour, ls=style, lw=1.8, label=f"{name}, {way}"))
    if result.joined:
        axes[2].set_xlabel("from first to second member")
        axes[2].set_ylabel("mean loss (nats)")
        axes[2].set_yscale("log")
        axes[2].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[2].yaxis.set_major_formatter("{x:g}")
        axes[2].yaxis.set_minor_formatter("")
    where = f"{abbreviated(result.name, 32)} on {abbreviated(result.set, 22)}"
    said = f"{where}: the loss around {counted(result.members, 'member')}"
    pairs = f" and between {counted(len(result.pairs), 'pair')}" if result.joined else ""
    head(figure, f"{said}{pairs}", handles, columns=2)
    return figure


def figures(result: LandscapeStudy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"landscape.png": panels(result)}

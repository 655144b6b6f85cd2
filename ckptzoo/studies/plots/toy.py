"""The picture of two last-layer weights, with symmetries removed step by step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.shared.plots import INK, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.studies.toy import Toy, ToyPanel
from ckptzoo.text import counted

MASSES = (0.9, 0.6, 0.3)
"""The shares of the estimated density that the contours hold."""
MAX_POINTS = 1000
"""More networks than this are shown by their density alone."""
MAX_MARKED = 6
"""How many of the highest shares are written beside their modes."""


@styled
def panels(name: str, members: int, tensor: str, norm: float, items: Sequence[ToyPanel]) -> Figure:
    """Densities of the two weights, one panel a step, each with its modes and their shares of the mass. ``tensor`` is
    the tensor's name; ``norm`` is the value to which incoming norms were set.
    """
    figure = Figure(figsize=(WIDTH, 4.0), layout="compressed")
    titles = ["as trained", f"incoming norms set to {norm:g}", "and the smaller first"]
    for index, (item, title) in enumerate(zip(items, titles, strict=True)):
        axes = figure.add_subplot(1, len(items), index + 1)
        axes.set_title(title, fontsize=11, pad=4)
        _panel(axes, item)
        axes.set_xlabel("first weight")
        if index == 0:
            axes.set_ylabel("second weight")
    handles: list[Any] = [Line2D([], [], color=MUTED, lw=1.2, ls="--", label="both weights equal")]
    if any(item.density.heights is not None for item in items):
        masses = ", ".join(f"{100 * share:.0f}" for share in sorted(MASSES))
        handles.append(Line2D([], [], color=INK, lw=0.8, label=f"{masses} % of the networks"))
        handles.append(Line2D([], [], color=INK, marker="+", ls="", label="modes and their shares"))
    title = f"{abbreviated(name, 32)}: {abbreviated(tensor, 32)} of {counted(members, 'network')}"
    head(figure, title, handles)
    return figure


def _panel(axes: Axes, item: ToyPanel) -> None:
    estimate = item.density
    low, high = estimate.low, estimate.high
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.locator_params(nbins=5)
    if estimate.heights is not None:
        colours = LinearSegmentedColormap.from_list("mass", ["white", RAW_COLOUR, "#00304D"])
        # the root, so that low densities are visible beside the peaks
        shade = np.sqrt(estimate.heights.T / estimate.heights.max())
        axes.imshow(shade, cmap=colours, origin="lower", extent=(low, high, low, high), vmin=0, vmax=1, zorder=1)
        # transposed: the first axis of an array is vertical for imshow and contour, and the first weight here
        levels = estimate.levels(MASSES)
        axes.contour(
            estimate.centres, estimate.centres, estimate.heights.T, levels, colors=INK, linewidths=0.7, zorder=3
        )
    if len(item.points) <= MAX_POINTS:
        size = float(np.clip(60 / len(item.points) ** 0.5, 1.5, 8))
        axes.plot(*item.points.T, ".", color=INK, ms=size, alpha=0.5, mec="none", zorder=2)
    axes.plot([low, high], [low, high], color=MUTED, lw=1.2, ls="--", zorder=4)
    marked = estimate.peaks[:MAX_MARKED]
    middle = np.mean([peak.place for peak in marked], axis=0) if len(marked) > 1 else np.full(2, low)
    for peak in marked:
        axes.plot(*peak.place, "+", color="white", ms=7, mew=2.6, zorder=5)
        axes.plot(*peak.place, "+", color=INK, ms=6, mew=1.2, zorder=6)
        # away from the middle of all peaks, so that the labels do not meet
        away = np.array(peak.place) - middle
        away /= np.hypot(*away) or 1
        axes.annotate(
            f"{100 * peak.share:.0f} %",
            peak.place,
            (24 * away[0], 20 * away[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=9,
            bbox={"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.75},
            zorder=7,
        )


def figures(result: Toy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"toy.png": panels(result.name, result.members, result.tensor, result.norm, result.panels)}

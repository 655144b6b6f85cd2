"""The picture of a comparison of two sets of checkpoints: twenty estimates a layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ckptzoo.studies.discrepancy import ComparedSet, Discrepancy, LayerDiscrepancy
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, INK, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.studies.shared.selection import thinned
from ckptzoo.text import counted

MAX_ROWS = 80
"""More layers than this are thinned out evenly."""
KERNELS = (("Laplace kernels", RAW_COLOUR, -0.17), ("Gaussian kernels", DERIVED_COLOUR, 0.17))
BAND = (0.05, 0.95)
"""Quantiles of the medians after exchanges."""


@styled
def discrepancies(
    sides: tuple[ComparedSet, ComparedSet],
    measured: Sequence[LayerDiscrepancy],
    average: float,
    chance: tuple[int, float] | None,
) -> Figure:
    """A row a layer, the first on top: ten dots of Laplace and ten of Gaussian kernels, their median, and chance.

    ``average`` is over layers, of the medians; ``chance`` says how many exchanges there were, and the average's
    p-value; None where there were none.
    """
    layers, left_out = thinned(measured, MAX_ROWS)
    figure = Figure(figsize=(WIDTH, 2.3 + (0.42 if len(layers) <= 24 else 0.26) * len(layers)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color=MUTED, lw=1.0, zorder=1)
    size = 4.5 if len(layers) <= 24 else 3.2
    for index, item in enumerate(layers):
        if item.null is not None:
            low, high = 100 * np.quantile(item.null, BAND)
            axes.add_patch(Rectangle((low, index - 0.4), high - low, 0.8, color="#D9D9D9", lw=0, zorder=2))
        # the first half of the estimates are those of Laplace kernels
        for (_, colour, shift), values in zip(KERNELS, np.split(100 * item.mmd2, 2), strict=True):
            axes.plot([values.min(), values.max()], [index + shift] * 2, color=colour, lw=1.0, alpha=0.45, zorder=3)
            axes.plot(values, [index + shift] * len(values), "o", color=colour, ms=size, alpha=0.75, mew=0, zorder=4)
        axes.plot(
            [100 * item.median] * 2, [index - 0.4, index + 0.4], color=INK, lw=2.0, solid_capstyle="butt", zorder=5
        )
    axes.set_yticks(range(len(layers)), [abbreviated(item.name, 36) for item in layers])
    if len(layers) > 24:
        axes.tick_params(axis="y", labelsize=8.5)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("100 MMD²; 0 is expected of equal distributions")
    handles: list[Any] = [
        Line2D([], [], color=colour, marker="o", ls="", ms=5, label=label) for label, colour, _ in KERNELS
    ]
    handles.append(Line2D([], [], color=INK, marker="|", ls="", ms=11, mew=2.0, label="median of the twenty"))
    words = f"100 MMD², average over layers: {100 * average:.2f}"
    if chance is not None:
        exchanges, p = chance
        words += f", p = {p:.2g}"
        label = f"medians of 90 % of {counted(exchanges, 'exchange')} of checkpoints"
        handles.append(Patch(color="#D9D9D9", label=label))
    if left_out:
        words += f"; {left_out:,} more layers not shown"
    names = [_named(side) for side in sides]
    apart = " against " if sum(map(len, names)) < 60 else "\nagainst "
    head(figure, f"{apart.join(names)}\n{words}", handles)
    return figure


def _named(side: ComparedSet) -> str:
    return f"{side.checkpoints:,} x {abbreviated(side.name, 40)} {abbreviated(side.variant, 16)}"


def figures(result: Discrepancy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    chance = (result.permutations, result.p) if result.p is not None else None
    return {"mmd.png": discrepancies((result.x, result.y), result.layers, result.median, chance)}

"""The picture of novelty: distances to the nearest member, of generated checkpoints, members and noisy copies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ckptzoo.studies.novelty import Novelty
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, log_axis, styled
from ckptzoo.text import counted

BINS = 60
"""The number of bins of the histograms."""


@styled
def distances(result: Novelty) -> Figure:
    """Histograms over the logarithm of the distance, with the medians of noisy copies."""
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    axes: Any = figure.subplots()
    generated = np.array([item.distance for item in result.generated])
    medians = {noise: float(np.median(values)) for noise, values in result.noisy.items()}
    every = np.concatenate([generated, result.between, list(medians.values())])
    positive = every[every > 0]
    low, high = (float(positive.min()) / 2, 2 * float(positive.max())) if len(positive) else (0.5, 2.0)
    edges = np.geomspace(low, high, BINS + 1)
    handles: list[Any] = []
    named = (
        (f"members, to another origin: {len(result.between):,}", result.between, RAW_COLOUR),
        (f"{abbreviated(result.name, 24)}: {counted(len(generated), 'checkpoint')}", generated, DERIVED_COLOUR),
    )
    for label, values, colour in named:
        # distances of 0 are in the leftmost bin, as a logarithmic axis has no 0
        counts = np.histogram(np.maximum(values, low), edges)[0] / max(1, len(values))
        axes.stairs(counts, edges, color=colour, fill=True, alpha=0.6, lw=0)
        handles.append(Patch(color=colour, alpha=0.6, label=label))
    for noise, median in medians.items():
        axes.axvline(max(median, low), color=MUTED, ls="--", lw=1.2)
        axes.annotate(
            f"noise {noise:g}", (max(median, low), 0.97), xycoords=("data", "axes fraction"), rotation=90,
            ha="right", va="top", fontsize=9, color=MUTED,
        )  # fmt: skip
    handles.append(Line2D([], [], color=MUTED, ls="--", lw=1.2, label="noisy copies"))
    log_axis(axes, "x")
    axes.set_xlim(low, high)
    where = "" if result.gauge is None else f", in {result.gauge}"
    axes.set_xlabel(f"{result.distance} to the nearest of {abbreviated(result.zoo, 24)}{where}")
    axes.set_ylabel("share of the checkpoints")
    copied = f"{result.copies:,} of {len(generated):,} are copies, or nearly"
    head(figure, f"{abbreviated(result.name, 32)}: {copied}", handles)
    return figure


def figures(result: Novelty) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"novelty.png": distances(result)}

"""The picture of compact posteriors: deviations before and after alignment, pruning, and merging."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.compact import CompactStudy
from ckptzoo.studies.shared.plots import MUTED, WIDTH, abbreviated, head, log_axis, panel_title, styled
from ckptzoo.text import counted

_COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7")
_STYLES = ("-", "--", ":")
_RARE = 0.1
"""Percent of the weights: bins with less at either end are not shown."""


@styled
def gaussians(study: CompactStudy) -> Figure:
    """Histograms of sigma; accuracies of pruned means; accuracies of means of several samples."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    left, middle, right = (figure.add_subplot(1, 3, place) for place in (1, 2, 3))
    right.sharey(middle)
    bins, colours = study.bins, dict(zip(study.gaussians, _COLOURS, strict=False))
    shares = {name: 100 * item.sigma / item.sigma.sum() for name, item in study.gaussians.items()}
    # a few weights far out would leave a fraction of the axis to all others
    shown = np.flatnonzero(np.max(list(shares.values()), 0) >= _RARE)
    for name, values in shares.items():
        left.stairs(values, 10**bins, color=colours[name], lw=1.6)
        left.stairs(values, 10**bins, color=colours[name], fill=True, alpha=0.12, lw=0)
    left.set_xlim(10 ** bins[max(0, shown[0] - 1)], 10 ** bins[min(len(bins) - 1, shown[-1] + 2)])
    log_axis(left, "x")
    left.set_ylim(bottom=0)
    panel_title(left, "spread of each weight", 3)
    left.set_xlabel("standard deviation sigma")
    left.set_ylabel("share of the weights (%)")
    rules = list(next(iter(study.gaussians.values())).pruned)
    for name, item in study.gaussians.items():
        for style, accuracies in zip(_STYLES, item.pruned.values(), strict=False):
            middle.plot(100 * np.array(study.kept), 100 * np.array(accuracies), style, color=colours[name], lw=1.4)
    # from all weights to few
    middle.invert_xaxis()
    panel_title(middle, "pruned means", 3)
    middle.set_xlabel("weights kept (%)")
    middle.set_ylabel(f"accuracy on {abbreviated(study.set, 18)} (%)")
    # as sampled, and aligned with all others
    for number, name in enumerate(list(study.gaussians)[:3:2]):
        accuracies = [100 * pair[number] for pair in study.merged.values()]
        right.plot(list(study.merged), accuracies, "o-", color=colours[name], ms=4, lw=1.4)
    right.axhline(100 * study.members.accuracy, color=MUTED, lw=1.2, ls=":")
    log_axis(right, "x")
    panel_title(right, "means of several samples", 3)
    right.set_xlabel("samples in the mean")
    right.tick_params(labelleft=False)
    handles: list[Any] = [Line2D([], [], color=colours[name], lw=2, label=name) for name in study.gaussians]
    handles += [
        Line2D([], [], color=MUTED, ls=style, label=f"kept: {rule}")
        for style, rule in zip(_STYLES, rules, strict=False)
    ]
    title = f"{abbreviated(study.name, 32)}: Gaussians of {counted(study.samples, 'sample')}"
    head(figure, f"{title}; all together {100 * study.members.accuracy:.1f} % (dotted, right)", handles)
    return figure


def figures(result: CompactStudy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"compact.png": gaussians(result)}

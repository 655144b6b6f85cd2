"""The picture of compact posteriors: deviations before and after alignment, pruning, and merging."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.compact import CompactStudy
from ckptzoo.studies.shared.plots import MUTED, WIDTH, abbreviated, head, styled
from ckptzoo.text import counted

_COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7")
_STYLES = ("-", "--", ":")


@styled
def gaussians(study: CompactStudy) -> Figure:
    """Histograms of log10 sigma; accuracies of pruned means; accuracies of means of several samples."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    bins, colours = study.bins, dict(zip(study.gaussians, _COLOURS, strict=False))
    centres = (bins[:-1] + bins[1:]) / 2
    shown = np.flatnonzero(np.sum([item.sigma for item in study.gaussians.values()], 0))
    for name, item in study.gaussians.items():
        left.step(centres, item.sigma / item.sigma.sum(), where="mid", color=colours[name], lw=1.4)
    if len(shown):
        left.set_xlim(bins[max(0, shown[0] - 2)], bins[min(len(bins) - 1, shown[-1] + 3)])
    left.set_ylim(bottom=0)
    left.set_title("standard deviations of the weights", fontsize=11, pad=4)
    left.set_xlabel("log10 of sigma")
    left.set_ylabel("share of the weights")
    rules = list(next(iter(study.gaussians.values())).pruned)
    for name, item in study.gaussians.items():
        for style, accuracies in zip(_STYLES, item.pruned.values(), strict=False):
            middle.plot(study.kept, 100 * np.array(accuracies), style, color=colours[name], lw=1.4)
    # from all weights to few
    middle.invert_xaxis()
    middle.set_title("pruned means", fontsize=11, pad=4)
    middle.set_xlabel("weights kept")
    middle.set_ylabel(f"accuracy on {abbreviated(study.set, 18)} (%)")
    # as sampled, and aligned with all others
    for number, name in enumerate(list(study.gaussians)[:3:2]):
        accuracies = [100 * pair[number] for pair in study.merged.values()]
        right.plot(list(study.merged), accuracies, "o-", color=colours[name], ms=4, lw=1.4)
    right.axhline(100 * study.members.accuracy, color=MUTED, lw=1.2, ls=":")
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:g}")
    right.set_title("means of several samples", fontsize=11, pad=4)
    right.set_xlabel("samples")
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

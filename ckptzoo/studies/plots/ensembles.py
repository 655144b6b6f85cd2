"""The pictures of ensembles: figures against the size, and the members' accuracies beside the ensembles'."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ckptzoo.studies.ensembles import OTHER, OWN, Ensembles
from ckptzoo.studies.shared.plots import (
    DERIVED_COLOUR,
    INK,
    MUTED,
    RAW_COLOUR,
    WIDTH,
    abbreviated,
    head,
    log_axis,
    panel_title,
    styled,
)
from ckptzoo.studies.shared.result import Spread
from ckptzoo.studies.shared.selection import thinned
from ckptzoo.text import counted

Values = NDArray[np.float64]
Curve = Mapping[int, Spread]
"""Size to a figure."""
MAX_SETS = 4
"""More other sets than this are thinned out evenly."""
_DASHES = ("--", ":", "-.")


@styled
def curves(name: str, set: str, figures: Mapping[str, Curve], references: Mapping[str, float]) -> Figure:
    """Accuracy, NLL, Brier score and ECE against the size, mean and one standard deviation over ensembles."""
    figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
    panels = {"accuracy": "accuracy (%)", "nll": "NLL (nats)", "brier": "Brier score", "ece": "ECE (%)"}
    for index, (kind, label) in enumerate(panels.items()):
        axes = figure.add_subplot(2, 2, index + 1)
        _curve(axes, figures[kind], RAW_COLOUR, 100 if label.endswith("(%)") else 1)
        if kind == "accuracy":
            for value, style in zip(references.values(), cycle(_DASHES), strict=False):
                axes.axhline(100 * value, color=INK, lw=1.4, ls=style)
        axes.set_title(label, fontsize=11, pad=4)
        _axes(axes, max(figures[kind]), last=index > 1)
    handles: list[Any] = [
        Line2D([], [], color=RAW_COLOUR, marker="o", ms=4, lw=1.6, label="mean over ensembles"),
        Patch(color=RAW_COLOUR, alpha=0.2, label="± one standard deviation"),
        *_references(references, INK),
    ]
    head(figure, f"{abbreviated(name, 32)}: ensembles on {abbreviated(set, 24)}", _by_rows(handles))
    return figure


@styled
def detection(name: str, set: str, others: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """AUROC and FPR95 of each other set against the size, by doubt and by mutual information."""
    shown, left = thinned(list(others), MAX_SETS)
    figure = Figure(figsize=(WIDTH, 1.3 + 2.5 * len(shown)), layout="constrained")
    for row, other in enumerate(shown):
        for column, (kind, label) in enumerate((("auroc", "AUROC"), ("fpr95", "FPR at 95 % TPR"))):
            axes = figure.add_subplot(len(shown), 2, 2 * row + column + 1)
            _curve(axes, others[other][kind], RAW_COLOUR, 100)
            _curve(axes, others[other][f"information_{kind}"], DERIVED_COLOUR, 100)
            panel_title(axes, f"{abbreviated(other, 24)}: {label} (%)", 2)
            _axes(axes, max(others[other][kind]), last=row + 1 == len(shown))
    handles: list[Any] = [
        Line2D([], [], color=RAW_COLOUR, marker="o", ms=4, lw=1.6, label="by 1 - largest probability"),
        Line2D([], [], color=DERIVED_COLOUR, marker="o", ms=4, lw=1.6, label="by mutual information"),
        Patch(color=MUTED, alpha=0.3, label="± one standard deviation"),
    ]
    more = f"; {counted(left, 'more set')} not shown" if left else ""
    title = f"{abbreviated(name, 32)}: other inputs distinguished from {abbreviated(set, 24)}{more}"
    head(figure, title, handles)
    return figure


@styled
def members(
    name: str,
    set: str,
    inputs: int,
    accuracies: Values,
    diverged: NDArray[np.bool_],
    ensembles: Curve,
    references: Mapping[str, float],
) -> Figure:
    """Histogram of the members' accuracies, those that diverged hatched, with lines at those of ensembles."""
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    axes = figure.add_subplot()
    good, apart = 100 * accuracies[~diverged], 100 * accuracies[diverged]
    edges = _edges(100 * accuracies, 100 / inputs)
    heights, widths = np.histogram(good, edges)[0], np.diff(edges)
    style: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 0.6}
    axes.bar(edges[:-1], heights, widths, color=RAW_COLOUR, **style)
    handles: list[Any] = [Patch(color=RAW_COLOUR, label=counted(len(accuracies), "single member"))]
    if len(apart):
        axes.bar(edges[:-1], np.histogram(apart, edges)[0], widths, heights, color=DERIVED_COLOUR, hatch="///", **style)
        label = f"{len(apart):,} of them diverged"
        handles.append(Patch(facecolor=DERIVED_COLOUR, hatch="///", edgecolor="white", label=label))
    lines: dict[int, tuple[str, Any, str]] = {
        1: (MUTED, "-", "their mean"),
        10: (INK, (0, (1, 1)), "10 together"),
        len(accuracies): (INK, "-", f"all {len(accuracies):,} together"),
    }
    for size, (colour, dash, label) in lines.items():
        if size in ensembles:
            value = 100 * ensembles[size].mean
            axes.axvline(value, color=colour, lw=1.8, ls=dash)
            handles.append(Line2D([], [], color=colour, lw=1.8, ls=dash, label=f"{label}: {value:.2f} %"))
    for value, dash in zip(references.values(), cycle(_DASHES), strict=False):
        axes.axvline(100 * value, color=DERIVED_COLOUR, lw=1.8, ls=dash)
    handles += _references(references, DERIVED_COLOUR)
    axes.set_xlabel(f"accuracy on {abbreviated(set, 32)} (%)")
    axes.set_ylabel("members")
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.grid(visible=False, axis="x")
    head(figure, f"{abbreviated(name, 32)}: members and ensembles on {abbreviated(set, 24)}", _by_rows(handles))
    return figure


def _curve(axes: Axes, spreads: Curve, colour: str, scale: float) -> None:
    sizes = np.array(list(spreads), np.float64)
    means = scale * np.array([spread.mean for spread in spreads.values()])
    axes.plot(sizes, means, "o-", color=colour, ms=4, lw=1.6, zorder=3)
    known = np.array([spread.count > 1 for spread in spreads.values()], np.bool_)
    sd = scale * np.array([spread.sd for spread in spreads.values()])
    # a band reaches from one size to the next; a single size has none, and gets a bar
    if known.sum() > 1:
        band = (means - sd)[known], (means + sd)[known]
        axes.fill_between(sizes[known], *band, color=colour, alpha=0.2, lw=0, zorder=2)
    else:
        axes.errorbar(sizes[known], means[known], sd[known], color=colour, alpha=0.4, lw=6, ls="", zorder=2)


def _axes(axes: Axes, largest: int, *, last: bool) -> None:
    log_axis(axes, "x")
    # on a logarithmic axis a power is a share of the length
    margin = largest**0.05
    axes.set_xlim(1 / margin, largest * largest**0.09)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if last:
        axes.set_xlabel("members in the ensemble")


def _by_rows(handles: list[Any]) -> list[Any]:
    """In the order in which a key of three columns, filled one after the other, reads along its rows."""
    return [handle for column in range(3) for handle in handles[column::3]]


def _edges(values: Values, step: float) -> Values:
    """At most 60 bins; each holds equally many of the possible accuracies, the multiples of ``step``."""
    # edges between multiples of the step: a bin that is no multiple wide would hold uneven numbers of accuracies
    low, high = float(values.min()), float(values.max())
    bins = int(np.clip(4 * len(values) ** 0.5, 8, 60))
    width = step * max(1, int(np.ceil((high - low + step) / (step * bins))))
    # less than rounding, so that a range of whole bins gets no empty one
    count = int(np.ceil((high - low + step) / width - 1e-9))
    return low - step / 2 + width * np.arange(count + 1, dtype=np.float64)


def _references(references: Mapping[str, float], colour: str) -> list[Any]:
    return [
        Line2D([], [], color=colour, lw=1.4, ls=style, label=f"{abbreviated(name, 24)}: {100 * value:g} %")
        for (name, value), style in zip(references.items(), cycle(_DASHES), strict=False)
    ]


def figures(result: Ensembles) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    name, scored, lines = result.name, result.set, result.references
    own = {kind: result.figure(kind, scored) for kind in OWN}
    others = {other: {kind: result.figure(kind, other) for kind in OTHER} for other in result.ood}
    drawn = {
        "ensembles.png": curves(name, scored, own, lines),
        "members.png": members(name, scored, result.inputs, result.accuracies, result.diverged, own["accuracy"], lines),
    }
    return {**drawn, "detection.png": detection(name, scored, others)} if others else drawn

"""The picture of approximate posteriors: how near each comes to the target, against what it is good for."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.posteriors import MethodResult, Posteriors
from ckptzoo.studies.shared.plots import INK, MUTED, WIDTH, abbreviated, head, styled

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
"""Okabe and Ito's, without black and yellow, and a purple; one a method."""
_MARKERS = "oDs^vPX"
_PANELS = {
    "acc": "accuracy (%)",
    "ece": "calibration error ECE (%)",
    "aupr": "OOD AUPR (%)",
    "oodmi": "OOD mutual information (nats / 100)",
}
DISTANCE = "canonical_median"


@styled
def posteriors(name: str, scored: str, entries: Sequence[MethodResult]) -> Figure:
    """One panel a figure, distance to the target along x; open marks are one mode, filled ones several."""
    panels = {key: label for key, label in _PANELS.items() if any(key in entry.figures for entry in entries)}
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(WIDTH, 0.9 + 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False, sharex=True)
    methods = list(dict.fromkeys(entry.label for entry in entries))
    styles = {
        method: (_COLOURS[row % len(_COLOURS)], _MARKERS[row % len(_MARKERS)]) for row, method in enumerate(methods)
    }
    for axes, (key, label) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, key, label, entries, styles)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("distance to the target: 100 MMD², symmetries removed", fontsize=11)
    handles: list[Any] = [
        Line2D([], [], color=colour, marker=marker, ls="", ms=7, label=method)
        for method, (colour, marker) in styles.items()
    ]
    handles += [
        Line2D([], [], color=INK, marker="o", mfc="white", ls="", ms=7, label="one mode"),
        Line2D([], [], color=INK, marker="o", ls="", ms=7, label="several modes"),
    ]
    head(figure, f"{abbreviated(name, 32)}: approximate posteriors on {abbreviated(scored, 32)}", handles)
    return figure


def _panel(
    axes: Axes, key: str, label: str, entries: Sequence[MethodResult], styles: dict[str, tuple[str, str]]
) -> None:
    for method, (colour, marker) in styles.items():
        points = [
            (entry, entry.figures[DISTANCE], entry.figures[key])
            for entry in entries
            if entry.label == method and DISTANCE in entry.figures and key in entry.figures
        ]
        # from one mode to several: what more modes change
        axes.plot([x.mean for _, x, _ in points], [y.mean for _, _, y in points], color=colour, lw=1, alpha=0.5)
        for entry, x, y in points:
            axes.errorbar(
                x.mean,
                y.mean,
                xerr=x.sd,
                yerr=y.sd,
                color=colour,
                marker=marker,
                mfc="white" if entry.modes == "one" else colour,
                ms=7,
                lw=1,
                ls="",
            )
    axes.set_ylabel(label)
    # unbiased estimates of equal distributions are on both sides of 0
    axes.axvline(0, color=MUTED, lw=0.8)


def figures(result: Posteriors) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"posteriors.png": posteriors(result.target, result.set, result.entries)}

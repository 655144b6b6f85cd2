"""The picture of how well weights tell a figure: R2 of each kind of features, raw and in a gauge, by split."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.predict_accuracy import PredictAccuracy
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.text import counted

_LEAST = -0.5
"""Where the axis ends; scores below it are drawn there, with an arrow and their number."""


@styled
def predict_accuracy(result: PredictAccuracy) -> Figure:
    """A line for each kind of features and regressor: filled by member, hollow by checkpoint."""
    figure = Figure(figsize=(WIDTH, 1.5 + 0.55 * len(result.kinds)), layout="constrained")
    axes: Any = figure.subplots()
    colours = dict(zip(result.variants, (RAW_COLOUR, DERIVED_COLOUR), strict=False))
    shifts = dict(zip(result.variants, (-0.16, 0.16), strict=False))
    # those by member last, so that they are seen
    for score in sorted(result.scores, key=lambda item: item.by_member):
        colour = colours[score.variant]
        place = result.kinds.index((score.features, score.regressor)) + shifts[score.variant]
        filled = colour if score.by_member else "white"
        if score.r2.mean < _LEAST:
            axes.plot(_LEAST, place, marker="<", ms=7, mfc=filled, mec=colour, clip_on=False, zorder=3)
            axes.text(_LEAST + 0.03, place, f"{score.r2.mean:.2f}", color=colour, va="center", fontsize=8)
            continue
        axes.errorbar(score.r2.mean, place, xerr=score.r2.sd, fmt="none", ecolor=colour, elinewidth=1.2)
        axes.plot(score.r2.mean, place, marker="o", ms=6, mfc=filled, mec=colour, zorder=3)
    axes.set_yticks(range(len(result.kinds)), [f"{features}, {regressor}" for features, regressor in result.kinds])
    axes.set_ylim(len(result.kinds) - 0.5, -0.5)
    # R2 has no lower bound, so that one bad score would take the whole axis
    axes.set_xlim(_LEAST, 1.02)
    axes.axvline(0, color="0.8", lw=0.8, zorder=0)
    axes.set_xlabel("R² on held-out networks")
    handles = [Line2D([], [], color=colour, marker="o", lw=0, label=name) for name, colour in colours.items()]
    if not all(score.by_member for score in result.scores):
        handles.append(
            Line2D([], [], color="0.3", marker="o", mfc="white", lw=0, label="split by checkpoint: too good")
        )
    title = f"{abbreviated(result.name, 32)}: {result.target} told from weights, {counted(result.splits, 'split')}"
    head(figure, f"{title}, mean ± deviation", handles)
    return figure


def figures(result: PredictAccuracy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"predict-accuracy.png": predict_accuracy(result)}

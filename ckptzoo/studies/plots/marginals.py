"""The pictures of a study of marginals: densities, p-values of equal marginals, and explained variance."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from ckptzoo.schema import layout
from ckptzoo.studies.equal_marginals import PairTests
from ckptzoo.studies.marginals import Marginals
from ckptzoo.studies.plots import overview
from ckptzoo.studies.principal_components import LayerComponents
from ckptzoo.studies.shared.plots import (
    DERIVED_COLOUR,
    MUTED,
    RAW_COLOUR,
    WIDTH,
    abbreviated,
    head,
    log_axis,
    panel_title,
    styled,
)
from ckptzoo.studies.shared.selection import thinned
from ckptzoo.studies.shared.value_histograms import TensorHistogram
from ckptzoo.text import counted

MAX_PANELS = 24
_BAND = 1.3581
"""Over the square root of their number: the distance from the diagonal below which the distribution function of
uniform numbers stays with probability 95 % (Kolmogorov's distribution, for many numbers)."""


def densities(name: str, members: int, items: Sequence[TensorHistogram]) -> Figure:
    """Densities of all elements of each tensor, raw against derived, one small panel a tensor; of more than
    ``MAX_PANELS`` tensors those of weights, without biases and what else has one axis.
    """
    weights = [item for item in items if len(item.shape) > 1]
    shown, _ = thinned(items if len(items) <= MAX_PANELS or not weights else weights, MAX_PANELS)
    return overview.marginals(name, members, shown, left_out=len(items) - len(shown))


@styled
def p_values(name: str, members: int, kinds: Mapping[str, Sequence[PairTests]]) -> Figure:
    """For every p the share of pairs whose p-value is at most that, one panel a kind of pairs."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    colours: list[tuple[str, str]] = []
    for index, (kind, items) in enumerate(kinds.items()):
        # a single panel is as large as one of two: its axes are square
        axes = figure.add_subplot(1, max(2, len(kinds)), index + 1)
        joined = PairTests.join(list(items))
        band = _BAND / joined.pairs**0.5
        grid = np.array([0.0, 1.0])
        axes.fill_between(grid, grid - band, grid + band, color=MUTED, alpha=0.15, lw=0)
        axes.plot(grid, grid, color=MUTED, lw=1.2, ls="--")
        colours = list(zip(joined.p, (RAW_COLOUR, DERIVED_COLOUR), strict=True))
        for variant, colour in colours:
            for item in thinned(items, MAX_PANELS)[0] if len(items) > 1 else ():
                _steps(axes, item.p[variant], color=colour, lw=0.7, alpha=0.35)
            _steps(axes, joined.p[variant], color=colour, lw=2.2)
        axes.set_xlim(-0.012, 1)
        axes.set_ylim(0, 1.01)
        axes.set_aspect("equal")
        axes.set_title(kind)
        axes.set_title(counted(joined.pairs, "pair"), loc="right", fontsize=10, color=MUTED)
        axes.set_xlabel("p-value of equal marginals")
        axes.set_ylabel("share of pairs at or below it" if index == 0 else "")
    handles: list[Any] = [Line2D([], [], color=colour, lw=2.2, label=_label(variant)) for variant, colour in colours]
    handles += [
        Line2D([], [], color=MUTED, lw=0.7, label="single tensors"),
        Line2D([], [], color=MUTED, lw=1.2, ls="--", label="uniform: equal marginals"),
        Patch(color=MUTED, alpha=0.15, lw=0, label="95 % of uniform samples"),
    ]
    head(figure, f"{abbreviated(name, 40)}: pairs of positions in {counted(members, 'network')}", handles)
    return figure


@styled
def components(name: str, members: int, items: Sequence[LayerComponents]) -> Figure:
    """The share of variance that the first components hold, raw against derived, one small panel a layer."""
    shown, left_out = thinned(items, MAX_PANELS)
    columns = min(len(shown), 3 if len(shown) <= 9 else 4)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, 1.0 + (2.6 if rows < 4 else 2.0) * rows), layout="constrained")
    colours: list[tuple[str, str]] = []
    for index, item in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        colours = list(zip(item.components, (RAW_COLOUR, DERIVED_COLOUR), strict=True))
        for variant, colour in colours:
            shares = item.components[variant].cumulative
            few = ".-" if len(shares) < 30 else "-"
            axes.plot(np.arange(1, len(shares) + 1), shares, few, color=colour, lw=1.8, ms=5)
        axes.axhline(0.9, color=MUTED, lw=1.0, ls="--", zorder=1)
        axes.set_ylim(0, 1.02)
        _numbers(axes, max(len(each.variances) for each in item.components.values()))
        panel_title(axes, item.layer, columns)
        if index % columns == 0:
            axes.set_ylabel("share of variance")
        else:
            axes.set_yticklabels([])
        if index + columns >= len(shown):
            axes.set_xlabel("components")
    handles: list[Any] = [Line2D([], [], color=colour, lw=1.8, label=_label(variant)) for variant, colour in colours]
    handles.append(Line2D([], [], color=MUTED, lw=1.0, ls="--", label="90 %"))
    more = f"; {counted(left_out, 'more layer')} not shown" if left_out else ""
    head(figure, f"{abbreviated(name, 40)}: principal components of {counted(members, 'network')}{more}", handles)
    return figure


def _steps(axes: Axes, p: NDArray[np.float64], **style: Any) -> None:
    """The empirical distribution, from 0 to 1."""
    x = np.concatenate([[0], np.sort(p), [1]])
    y = np.concatenate([[0], np.arange(1, len(p) + 1) / len(p), [1]])
    # post: the distribution jumps at each value and stays until the next
    axes.step(x, y, where="post", **style)


def _numbers(axes: Axes, limit: int) -> None:
    """A logarithmic axis of the numbers 1 to ``limit``."""
    log_axis(axes, "x")
    axes.set_xlim(0.9, max(2, limit) * 1.1)


def _label(variant: str) -> str:
    return "raw, as trained" if variant == layout.RAW else variant


def figures(result: Marginals) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    title = f"{result.name}, {result.variant}"
    drawn = [item.histogram for item in result.tensors]
    drawn = {"marginals.png": densities(result.name, result.members, drawn)}
    kinds = {
        "within one orbit": [item.within for item in result.tensors if item.within.pairs],
        "across orbits": [item.across for item in result.tensors if item.across.pairs],
    }
    if kinds := {kind: tests for kind, tests in kinds.items() if tests}:
        drawn["pvalues.png"] = p_values(title, result.members, kinds)
    varying = [item for item in result.layers if any(each.total > 0 for each in item.components.values())]
    if varying:
        drawn["components.png"] = components(title, result.members, varying)
    return drawn

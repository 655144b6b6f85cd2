"""The picture of functional collapse: how far pairs of members differ on two sets, and the one against the other."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from numpy.typing import NDArray

from ckptzoo.studies.collapse import Collapse
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.text import counted

Values = NDArray[np.float64]
_NARROWEST = 1e-4
"""The minimum of nats between the ends of an axis: equal members differ by nothing."""
_HEXAGONS = 45
"""The number of hexagons of the density, from left to right."""
_MANY = 1000
"""The number of pairs from which a density is drawn instead of points."""


@styled
def pairs(name: str, members: int, information: Mapping[str, Values], correlation: float | None) -> Figure:
    """Histograms of the mutual information of all pairs on two sets, and both together: points, or the density of many.

    ``information`` is on the own set and on the other one, (P,) each, in nats; ``correlation`` is Pearson's; None where
    there is none.
    """
    (own, inside), (other, outside) = information.items()
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    handles: list[Any] = []
    for label, values, colour in ((own, inside, RAW_COLOUR), (other, outside, DERIVED_COLOUR)):
        low, high = _ends(values)
        bins = int(np.clip(2 * len(values) ** 0.5, 10, 60))
        left.hist(values, bins=bins, range=(low, high), density=True, color=colour, alpha=0.75, lw=0)
        spread = f"{values.mean():.3f} ± {values.std(ddof=1 if len(values) > 1 else 0):.3f}"
        handles.append(Patch(color=colour, alpha=0.75, label=f"{abbreviated(label, 22)}: {spread} nats"))
    left.set_title("all pairs", fontsize=11, pad=4)
    left.set_xlabel("mutual information of a pair (nats)")
    left.set_ylabel("density (1 / nat)")
    left.set_xlim(left=0)
    if len(inside) < _MANY:
        right.plot(inside, outside, ".", color=RAW_COLOUR, ms=6, mew=0, alpha=0.6)
    else:
        extent = (*_ends(inside), *_ends(outside))
        # white is left to where there is no pair
        shades = LinearSegmentedColormap.from_list("pairs", ["#CFE3F1", RAW_COLOUR, "#00263B"])
        hexagons = right.hexbin(
            inside, outside, gridsize=_HEXAGONS, extent=extent, bins="log", mincnt=1, cmap=shades, lw=0
        )
        ticks = LogLocator(subs=(1, 2, 5))
        bar = figure.colorbar(hexagons, ax=right, label="pairs in a hexagon", pad=0.02, ticks=ticks)
        bar.formatter = FuncFormatter(lambda value, _: f"{value:,.0f}")
        bar.minorticks_off()
    related = "no correlation" if correlation is None else f"r = {correlation:.2f}"
    right.set_title(f"both together, {related}", fontsize=11, pad=4)
    right.set_xlabel(f"on {abbreviated(own, 28)} (nats)")
    right.set_ylabel(f"on {abbreviated(other, 28)} (nats)")
    for axis in (left.xaxis, right.xaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(5))
    head(figure, f"{abbreviated(name, 32)}: {counted(len(inside), 'pair')} of {counted(members, 'member')}", handles)
    return figure


def _ends(values: Values) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if high - low >= _NARROWEST:
        return low, high
    return max(0.0, (low + high - _NARROWEST) / 2), (low + high + _NARROWEST) / 2


def figures(result: Collapse) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    pearson = result.correlations.get("pearson")
    sides = {result.set: result.information, result.ood: result.ood_information}
    return {"collapse.png": pairs(result.name, result.members, sides, None if pearson is None else pearson.value)}

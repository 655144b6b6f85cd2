"""The picture of how orders move during training."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.order_movement import Movement
from ckptzoo.studies.permutations import Permutations
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, step_axis, styled
from ckptzoo.studies.shared.selection import thinned
from ckptzoo.symmetry.transpositions import random_transpositions
from ckptzoo.text import counted

MAX_ORDERS = 4
"""More orders than this are thinned out evenly."""
NORMAL_COLOUR = "#009E73"
"""Okabe and Ito's bluish green."""

Series = Mapping[str, Sequence[Movement]]
"""A map of comparisons, such as ``from the first``, to the movements in ascending steps."""


@styled
def orders(name: str, members: int, movements: Mapping[str, Series]) -> Figure:
    """Tau and transpositions against the step, with what keys that move give: two rows of panels an order. ``name`` is
    the zoo's and the variant's; ``movements`` maps each ordered quantity to its series, one column each.
    """
    shown, left_out = thinned(list(movements), MAX_ORDERS)
    columns = max(len(movements[label]) for label in shown)
    figure = Figure(figsize=(WIDTH, 0.9 + 3.7 * len(shown)), layout="constrained")
    grid = figure.add_gridspec(2 * len(shown), columns, height_ratios=[1.5, 1] * len(shown))
    for row, label in enumerate(shown):
        for column, (what, items) in enumerate(movements[label].items()):
            above = figure.add_subplot(grid[2 * row, column])
            below = figure.add_subplot(grid[2 * row + 1, column], sharex=above)
            above.set_title(what, fontsize=11, pad=4)
            above.tick_params(labelbottom=False)
            if not column:
                above.set_ylabel("Kendall's tau")
                below.set_ylabel("transpositions")
                above.set_title(f"{abbreviated(label, 40)}, n = {items[0].n:,}\n{what}", fontsize=11, pad=4)
            steps = [item.first if what.startswith("to the last") else item.second for item in items]
            _taus(above, steps, items)
            _transpositions(below, steps, items)
            step_axis(below, [step for item in items for step in (item.first, item.second)])
    more = f"; {left_out:,} more orders not shown" if left_out else ""
    title = f"{abbreviated(name, 40)}: order of the neurons of {counted(members, 'member')}{more}"
    head(figure, title, _key())
    return figure


def _taus(axes: Axes, steps: Sequence[int], items: Sequence[Movement]) -> None:
    axes.axhline(0, color=MUTED, lw=1.2, ls=":")
    axes.plot(steps, [item.noise for item in items], color=DERIVED_COLOUR, lw=1.6, ls="--", marker="s", ms=3)
    axes.plot(steps, [item.normal for item in items], color=NORMAL_COLOUR, lw=1.6, ls="-.", marker="^", ms=3)
    errors = [item.tau_se or 0.0 for item in items]
    axes.errorbar(steps, [item.tau for item in items], errors, fmt="o-", color=RAW_COLOUR, ms=4, lw=1.4, capsize=2)
    # orders can be less alike than by chance: tau may be below 0
    axes.set_ylim(min(-0.08, *(item.tau - 0.1 for item in items)), 1.06)


def _transpositions(axes: Axes, steps: Sequence[int], items: Sequence[Movement]) -> None:
    random = random_transpositions(items[0].n)
    axes.axhline(random, color=MUTED, lw=1.2, ls=":")
    errors = [item.transpositions_se or 0.0 for item in items]
    means = [item.transpositions for item in items]
    axes.errorbar(steps, means, errors, fmt="o-", color=RAW_COLOUR, ms=4, lw=1.4, capsize=2)
    axes.set_ylim(0, 1.15 * max(random, *means))


def _key() -> list[Any]:
    return [
        Line2D([], [], color=RAW_COLOUR, marker="o", ms=4, lw=1.4, label="measured ± standard error"),
        Line2D([], [], color=DERIVED_COLOUR, marker="s", ms=3, ls="--", label="keys moved so far by noise"),
        Line2D([], [], color=NORMAL_COLOUR, marker="^", ms=3, ls="-.", label="normal keys so correlated"),
        Line2D([], [], color=MUTED, ls=":", label="random orders"),
    ]


def figures(result: Permutations) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    movements = {label: result.of(label) for label in result.labels}
    key = result.variant if result.key == "gauge" else "by largest weight"
    return {"permutations.png": orders(f"{result.name}, {key}", result.members, movements)}

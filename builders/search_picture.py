"""The picture of a search: parameters and accuracy of every network, and the front of those that none surpasses."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from builders.search_trials import TrainedNetwork
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, INK, MUTED, RAW_COLOUR, WIDTH, head, log_axis, styled


@styled
def pareto(
    title: str,
    networks: Sequence[TrainedNetwork],
    front: Sequence[TrainedNetwork],
    best: TrainedNetwork,
    published: TrainedNetwork | None,
) -> Figure:
    """Draw every network as a point, the front (by rising parameters) as stairs, the best and OptuNet as marks;
    ``published`` is None where OptuNet was not trained.
    """
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*_columns(networks), "o", color=MUTED, alpha=0.55, ms=5, mec="none")
    axes.plot(*_columns(front), "o-", color=RAW_COLOUR, ms=6, lw=1.4, drawstyle="steps-post")
    axes.plot(*_columns([best]), "o", color=DERIVED_COLOUR, ms=10)
    handles = [
        Line2D([], [], color=MUTED, marker="o", ls="", alpha=0.55, label=f"{len(networks):,} networks"),
        Line2D([], [], color=RAW_COLOUR, marker="o", label=f"Pareto front ({len(front):,})"),
        Line2D([], [], color=DERIVED_COLOUR, marker="o", ms=9, ls="", label=f"best, {best.parameters:,} parameters"),
    ]
    if published is not None:
        axes.plot(*_columns([published]), "D", color="none", mec=INK, ms=11, mew=1.6)
        label = f"OptuNet, {published.parameters:,} parameters"
        handles.append(Line2D([], [], color="none", marker="D", mec=INK, ms=9, mew=1.6, label=label))
    log_axis(axes, "x")
    axes.set_xlabel("parameters")
    axes.set_ylabel("mean test accuracy of the members (%)")
    head(figure, title, handles)
    return figure


def _columns(networks: Sequence[TrainedNetwork]) -> tuple[list[int], list[float]]:
    return [network.parameters for network in networks], [100 * network.accuracy for network in networks]

"""The picture of all pairs: histograms of their distances, and barriers of the nearest and of random ones."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ckptzoo.studies.pairs import PairStudy
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, styled

_NEAR_COLOUR = "#009E73"


@styled
def distances(study: PairStudy) -> Figure:
    """Histograms of the distances of all pairs; barriers against distances where they were measured."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    panels: Any = figure.subplots(1, 2 if study.barriers else 1, squeeze=False)
    left = panels[0, 0]
    for counts, colour in ((study.sampled, RAW_COLOUR), (study.least, DERIVED_COLOUR)):
        left.stairs(counts / counts.sum(), study.edges, color=colour, fill=True, alpha=0.7, lw=0)
    farthest = study.nearest[-1][2]
    left.axvline(farthest, color=_NEAR_COLOUR, lw=1.4, ls="--")
    left.set_xlim(0, 1.05 * study.edges[-1])
    left.set_xlabel("distance of a pair")
    left.set_ylabel("share of the pairs")
    handles: list[Any] = [
        Patch(color=RAW_COLOUR, alpha=0.7, label="as they are"),
        Patch(color=DERIVED_COLOUR, alpha=0.7, label="modulo permutations"),
        Line2D([], [], color=_NEAR_COLOUR, ls="--", label=f"the {len(study.nearest):,} nearest are left of it"),
    ]
    if study.barriers:
        right = panels[0, 1]
        colours = {"random": MUTED, "nearest": _NEAR_COLOUR}
        for name, colour in colours.items():
            if name not in study.barriers:
                continue
            # dots at 0 are drawn whole
            look: Any = {"color": colour, "ms": 7, "mew": 0, "alpha": 0.7, "clip_on": False}
            right.plot(study.barrier_distances[name], study.barriers[name], ".", **look)
            handles.append(Line2D([], [], color=colour, marker=".", ls="", ms=9, label=f"{name} pairs"))
        # with 0, so that the margin is a share of the whole axis
        right.update_datalim([(0, 0)])
        right.autoscale_view()
        right.set_xlim(left=0)
        right.set_ylim(bottom=0)
        right.set_xlabel("distance modulo permutations")
        right.set_ylabel(f"barrier on {abbreviated(str(study.set), 20)} (nats)")
    for axes in panels.flat:
        axes.xaxis.set_major_locator(MaxNLocator(6))
    where = "as trained" if study.gauge is None else f"in {study.gauge}"
    head(figure, f"{abbreviated(study.name, 32)}: all pairs of {study.members:,} members, {where}", handles)
    return figure


def figures(result: PairStudy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"pairs.png": distances(result)}

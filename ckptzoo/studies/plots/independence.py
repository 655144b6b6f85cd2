"""The picture of tests for independence: p-values against those of independent pairs, and the excess of similarity."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.independence import IndependenceStudy
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, styled
from ckptzoo.text import counted

BINS = 40
"""The number of bins of the histograms."""


@styled
def tests(result: IndependenceStudy) -> Figure:
    """The share of p-values up to each number, and histograms of the excess."""
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    kinds = [("different origins", result.different, RAW_COLOUR)]
    if result.same is not None:
        kinds.append(("one origin, first and last", result.same, DERIVED_COLOUR))
    every = np.concatenate([tested.excess for _, tested, _ in kinds])
    edges = np.linspace(min(-3.0, float(every.min())), max(3.0, float(every.max())), BINS + 1)
    handles: list[Any] = []
    for name, tested, colour in kinds:
        p = np.sort(tested.p)
        panels[0].step([0, *p, 1], [0, *np.arange(1, len(p) + 1) / len(p), 1], where="post", color=colour, lw=1.8)
        counts = np.histogram(tested.excess, edges)[0] / len(p)
        panels[1].stairs(counts, edges, color=colour, fill=True, alpha=0.6, lw=0)
        handles.append(Line2D([], [], color=colour, lw=1.8, label=f"{name}: {counted(len(p), 'pair')}"))
    panels[0].plot([0, 1], [0, 1], color=MUTED, ls="--", lw=1.2)
    handles.append(Line2D([], [], color=MUTED, ls="--", lw=1.2, label="independent"))
    panels[0].set_xlabel("p-value")
    panels[0].set_ylabel("share of the pairs up to it")
    panels[0].set_xlim(0, 1)
    panels[0].set_ylim(0, 1)
    panels[1].set_xlabel("similarity of neurons (standard deviations)")
    panels[1].set_ylabel("share of the pairs")
    head(figure, f"{abbreviated(result.name, 32)}: were pairs trained from independent weights?", handles)
    return figure


def figures(result: IndependenceStudy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"independence.png": tests(result)}

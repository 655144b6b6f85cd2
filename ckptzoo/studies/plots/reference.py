"""The picture of a reference posterior: R-hat of its chains, and how near other methods come to it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ckptzoo.studies.reference import LARGEST_R_HAT, Criterion, Nearness, ReferenceStudy
from ckptzoo.studies.shared.plots import DERIVED_COLOUR, INK, MUTED, RAW_COLOUR, WIDTH, abbreviated, head, styled

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
"""Okabe and Ito's, without black and yellow, and a purple; one a method."""
_MARKERS = "oDs^vPXp"
_PANELS = (("variation", "agreement"), ("canonical", "variation"))
_LABELS = {
    "variation": "total variation (%)",
    "agreement": "same class (% of inputs)",
    "canonical": "100 MMD² of canonical weights",
}


@styled
def reference(result: ReferenceStudy) -> Figure:
    """R-hat of all numbers, and two panels of nearness where there are samples; open marks are one mode."""
    count = 1 + len(_PANELS) * bool(result.entries)
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes: Any = figure.subplots(1, count, squeeze=False)[0]
    handles = _r_hats(axes[0], result.criteria)
    labels = list(dict.fromkeys(entry.label for entry in result.entries))
    # the first setting is enough where no two have it in common
    short = {label: " ".join(label.split()[:2]) for label in labels}
    counts = Counter(short.values())
    names = {label: short[label] if counts[short[label]] == 1 else label for label in labels}
    styles = {
        label: (_COLOURS[(row - 1) % len(_COLOURS)], _MARKERS[row % len(_MARKERS)]) if row else (INK, "*")
        for row, label in enumerate(labels)
    }
    for panel, (x, y) in zip(axes[1:], _PANELS, strict=False):
        _nearness(panel, x, y, result.entries, styles)
    handles += [
        Line2D([], [], color=colour, marker=marker, ls="", ms=7, label=abbreviated(names[label], 28))
        for label, (colour, marker) in styles.items()
    ]
    head(figure, f"{abbreviated(result.name, 40)}: {result.chains} chains of {result.draws:,} draws", handles)
    return figure


def _r_hats(axes: Axes, criteria: Sequence[Criterion]) -> list[Any]:
    """Draw the share of numbers up to each R-hat."""
    handles: list[Any] = []
    for item, colour in zip(criteria, (RAW_COLOUR, DERIVED_COLOUR), strict=True):
        shares = [row / item.numbers for row in range(1, item.numbers + 1)]
        axes.step([item.r_hats[0], *item.r_hats], [0, *shares], where="post", color=colour, lw=1.8)
        handles.append(Line2D([], [], color=colour, lw=1.8, label=f"R-hat of {item.numbers:,} {item.of}"))
    axes.axvline(LARGEST_R_HAT, color=MUTED, ls="--", lw=1.2)
    axes.set_xlabel("R-hat")
    axes.set_ylabel("share of the numbers up to it")
    axes.set_ylim(0, 1)
    return handles


def _nearness(axes: Axes, x: str, y: str, entries: Sequence[Nearness], styles: Mapping[str, tuple[str, str]]) -> None:
    for entry in entries:
        colour, marker = styles[entry.label]
        across, up = entry.figures[x], entry.figures[y]
        face = "white" if entry.modes == "one" else colour
        style: dict[str, Any] = {"color": colour, "marker": marker, "mfc": face, "ms": 8, "lw": 1, "ls": ""}
        axes.errorbar(across.mean, up.mean, xerr=across.sd, yerr=up.sd, **style)
    axes.set_xlabel(_LABELS[x])
    axes.set_ylabel(_LABELS[y])


def figures(result: ReferenceStudy) -> Mapping[str, Figure]:
    """The pictures of a result, by file name."""
    return {"reference.png": reference(result)}

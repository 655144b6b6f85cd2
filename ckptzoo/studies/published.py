"""Figures that papers print, to be shown beside one's own, and which of them cannot be as they are printed."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_PAPER = "arxiv-2310.08287"
"""Tables 1 and 2, as printed; where both have a figure and they differ, that of Table 2 with its three statistics."""


@dataclass(frozen=True)
class PublishedFigure:
    """A figure of a table. ``read_as`` is the number to compare with: the printed one, another where ``doubt`` says
    which, or None where none is known; ``doubt`` says why the printed one cannot be right, and is empty where it can.
    """

    printed: float
    read_as: float | None
    doubt: str = ""


_OTHER_SETS = {"mnist": "fashion-mnist", "cifar100": "svhn", "tinyimagenet": "textures"}
"""The out-of-distribution set of the paper for networks of each data set."""
OUT_OF_DISTRIBUTION = ("aupr", "fpr95", "oodmi")
"""Figures that need an out-of-distribution set."""


def published_architecture(architecture: str) -> str:
    """The architecture whose figures can be shown beside one's own: of a ResNet-18 of any width that of width 64.

    Examples
    --------
    >>> published_architecture("resnet18-8-100"), published_architecture("optunet")
    ('resnet18-100', 'optunet')
    """
    matched = re.fullmatch(r"resnet18-\d+-(\d+)", architecture)
    return architecture if matched is None else f"resnet18-{matched[1]}"


@cache
def posterior_figures(dataset: str, architecture: str) -> dict[tuple[str, str], dict[str, PublishedFigure]]:
    """The figures of arXiv 2310.08287 for a data set and an architecture; none where the paper has no such.

    The result is ``{(method, modes): {figure: PublishedFigure}}`` with modes ``one`` and ``multi``. Figures:
    ``mmd_median``, ``mmd_mean``, ``mmd_max``, and ``ns_...`` with symmetries removed, in hundredths; ``acc``, ``ece``,
    ``brier``, ``aupr``, ``fpr95`` in percent; ``idmi``, ``oodmi`` in hundredths of a nat.

    Examples
    --------
    >>> figure = posterior_figures("mnist", "optunet")["swag", "one"]["brier"]
    >>> figure.printed, figure.read_as
    (4.9, 17.7)
    """
    doubts = {
        (row["method"], row["modes"], row["figure"]): (float(row["read_as"]) if row["read_as"] else None, row["reason"])
        for row in _rows(f"{_PAPER}-doubts.csv")
        if (row["dataset"], row["architecture"]) == (dataset, architecture)
    }
    keys = {"dataset", "architecture", "modes", "method"}
    by_method: dict[tuple[str, str], dict[str, PublishedFigure]] = {}
    for row in _rows(f"{_PAPER}.csv"):
        if (row["dataset"], row["architecture"]) == (dataset, architecture):
            figures: dict[str, PublishedFigure] = {}
            for name in row.keys() - keys:
                if row[name]:
                    printed = float(row[name])
                    figures[name] = PublishedFigure(
                        printed, *doubts.get((row["method"], row["modes"], name), (printed, ""))
                    )
            by_method[row["method"], row["modes"]] = figures
    return by_method


def comparable_figures(
    dataset: str, architecture: str, ood: str | None
) -> dict[tuple[str, str], dict[str, PublishedFigure]]:
    """The figures of ``posterior_figures``, without those of an out-of-distribution set where ``ood`` is no images of
    the paper's, and with those of width 64 for ResNet-18s of any.

    Examples
    --------
    >>> [
    ...     "aupr" in comparable_figures("cifar100", "resnet18-8-100", ood)["swag", "one"]
    ...     for ood in ("svhn/test-2000", "fashion-mnist-3x32x32/test", None)
    ... ]
    [True, False, False]
    """
    by_method = posterior_figures(dataset, published_architecture(architecture))
    if ood is not None and _OTHER_SETS.get(dataset) == ood.partition("/")[0]:
        return by_method
    return {
        key: {name: item for name, item in figures.items() if name not in OUT_OF_DISTRIBUTION}
        for key, figures in by_method.items()
    }


def _rows(name: str) -> Sequence[dict[str, str]]:
    text = files("ckptzoo.studies").joinpath("tables", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))

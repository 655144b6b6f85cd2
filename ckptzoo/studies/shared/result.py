"""The base of all studies' results: how they are printed, drawn and written as JSON.

Also what several results show: the spread of a set of figures, and the number of permutations of a symmetry table.
Importing this imports no matplotlib.
"""

import importlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console, Group, RenderableType

from ckptzoo.console import PrintedResult
from ckptzoo.errors import require
from ckptzoo.format import durable
from ckptzoo.schema.documents import JsonFields, canonical, json_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ckptzoo.symmetry.counts import Counts

MAX_DIGITS = 15
"""Numbers of permutations with more digits are shown as a power of ten: JSON readers take numbers for float64, which
holds 15 digits exactly."""


class StudyResult(PrintedResult, JsonFields):
    """The result of a study. A subclass is a frozen dataclass and states its lines; its fields are its JSON.

    Its pictures are those that ``figures`` of the module of the same name in ``ckptzoo.studies.plots`` draws of it.
    """

    file: ClassVar[str]
    """Name of the JSON file, such as ``mass.json``."""

    @abstractmethod
    def _lines(self) -> Iterable[RenderableType]:
        """Facts, tables and words, in the order in which they are printed."""

    def print(self, console: Console | None = None) -> None:
        """Print facts, tables and what they say on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        # names of zoos and tensors may hold square brackets, which are markup for rich
        (console or Console()).print(Group(*self._lines()), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write the pictures that the class names, and a JSON file of ``to_json`` beside them; returns their paths.

        Equal results give equal bytes at equal versions of matplotlib.

        Parameters
        ----------
        folder
            made where it is missing; files of these names are replaced.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        require("matplotlib", "plot")
        from ckptzoo.studies.shared.plots import png

        target = Path(folder)
        # the module of the pictures imports matplotlib and the study, which imports neither
        module = importlib.import_module(f"ckptzoo.studies.plots.{type(self).__module__.rpartition('.')[2]}")
        figures: Mapping[str, Figure] = module.figures(self)
        target.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            durable.write_file(target / name, png(figure))
        durable.write_file(target / self.file, canonical(self.to_json()) + b"\n")
        return [target / name for name in (*figures, self.file)]


@dataclass(frozen=True)
class Spread(JsonFields):
    """Count, mean, deviation (divisor n - 1; 0 for a single figure) and three order statistics of some figures."""

    count: int
    mean: float
    sd: float
    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: ArrayLike) -> "Spread | None":
        """The spread of the finite ones among these; None where there are none.

        >>> Spread.of([1.0, 3.0, float("nan")])
        Spread(count=2, mean=2.0, sd=1.4142135623730951, least=1.0, median=2.0, most=3.0)
        """
        finite = np.asarray(values, np.float64)
        finite = finite[np.isfinite(finite)]
        if not len(finite):
            return None
        sd = float(finite.std(ddof=1)) if len(finite) > 1 else 0.0
        # numpy.median imports numpy.ma, which takes longer than everything else here
        middle = np.sort(finite)[[(len(finite) - 1) // 2, len(finite) // 2]]
        median = float(middle.mean())
        return cls(len(finite), float(finite.mean()), sd, float(finite.min()), median, float(finite.max()))


def mean_and_sd(spread: Spread | None, digits: int) -> str:
    """The mean and its standard deviation, with a dash for what there is not.

    >>> mean_and_sd(Spread.of([1.0, 3.0]), 1), mean_and_sd(Spread.of([1.0]), 1), mean_and_sd(Spread.of([]), 1)
    ('2.0 ± 1.4', '1.0 ± -', '-')
    """
    if spread is None:
        return "-"
    sd = f"{spread.sd:.{digits}f}" if spread.count > 1 else "-"
    return f"{spread.mean:.{digits}f} ± {sd}"


def counts_json(counts: "Counts") -> dict[str, Any]:
    """The counts by name; ``permutations`` is None where they have more than ``MAX_DIGITS`` digits."""
    exact = counts.log10_permutations < MAX_DIGITS
    return {**json_value(counts), "permutations": counts.permutations if exact else None}


def permutations_text(counts: "Counts") -> str:
    """The number of permutations: ``28,800``, or ``10^27.31`` where it has more than ``MAX_DIGITS`` digits."""
    exact = counts.log10_permutations < MAX_DIGITS
    return f"{counts.permutations:,}" if exact else f"10^{counts.log10_permutations:.2f}"

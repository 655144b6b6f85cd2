"""What a comparison of two sets of checkpoints found: estimates a layer, their average, p-values."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.table import Table

from ckptzoo.measure.mmd import p_value
from ckptzoo.studies.discrepancy.measured import Measured, Side, Values
from ckptzoo.studies.shown.drawn import need_matplotlib, write
from ckptzoo.studies.shown.tables import facts
from ckptzoo.words import counted, printable


@dataclass(frozen=True, eq=False)
class Discrepancy:
    """The squared maximum mean discrepancy between two sets of checkpoints.

    Parameters
    ----------
    x, y : the sets.
    rule : of the bandwidths: ``paper``, ``fixed`` or ``given``.
    permutations, seed : of the exchanges behind the p-values.
    shared : members of one zoo that are in both sets.
    layers, tensors : in the architecture's order; tensors have p-values only where they are a layer alone.
    left_out : tensors that do not count: buffers, and parameters that are not of floating point.
    """

    x: Side
    y: Side
    architecture: str
    rule: str
    permutations: int
    seed: int
    shared: int
    layers: tuple[Measured, ...]
    tensors: tuple[Measured, ...]
    left_out: tuple[str, ...]

    @property
    def weights(self) -> Values:
        """(L,) the layers' shares of the parameters."""
        sizes = np.array([item.parameters for item in self.layers], np.float64)
        return sizes / sizes.sum()

    @property
    def median(self) -> float:
        """Average over layers of the medians, weighted by their parameters."""
        return float(self.weights @ [item.median for item in self.layers])

    @property
    def mean(self) -> float:
        """Average over layers of the means."""
        return float(self.weights @ [item.mean for item in self.layers])

    @property
    def most(self) -> float:
        """Average over layers of the largest."""
        return float(self.weights @ [item.most for item in self.layers])

    @property
    def null(self) -> Values | None:
        """(B,) the average of the medians after exchanges of checkpoints; None where there were none."""
        nulls = [item.null for item in self.layers if item.null is not None]
        return self.weights @ np.stack(nulls) if nulls else None

    @property
    def p(self) -> float | None:
        """The p-value of the average of the medians; None without exchanges."""
        null = self.null
        return None if null is None else p_value(self.median, null)

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the exchanges themselves."""
        return {
            "x": asdict(self.x),
            "y": asdict(self.y),
            "architecture": self.architecture,
            "bandwidths": self.rule,
            "permutations": self.permutations,
            "seed": self.seed,
            "shared": self.shared,
            "parameters": sum(item.parameters for item in self.layers),
            "median": self.median,
            "mean": self.mean,
            "max": self.most,
            "p": self.p,
            "layers": [item.to_json() for item in self.layers],
            "tensors": [item.to_json() for item in self.tensors],
            "left_out": list(self.left_out),
        }

    def print(self, console: Console | None = None) -> None:
        """Print facts and a table of the layers on a rich console, by default the standard output."""
        told = facts(self._facts())
        tested = self.permutations > 0
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("layer", overflow="fold")
        for name in ("parameters", "median", "mean", "max", *(["p"] if tested else [])):
            table.add_column(name, justify="right", no_wrap=True)
        total = sum(item.parameters for item in self.layers)
        for item in self.layers:
            table.add_row(printable(item.name), f"{item.parameters:,}", *_figures(item))
        table.add_row("weighted average", f"{total:,}", *_figures(self), style="bold")
        title = "\n100 MMD²: median, mean and largest of twenty kernels"
        (console or Console()).print(Group(told, title, table), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``mmd.png`` and ``mmd.json``.

        Equal results give equal bytes at equal versions of matplotlib.

        Parameters
        ----------
        folder : made where it is missing; files of these names are replaced.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        need_matplotlib()
        from ckptzoo.studies.discrepancy.pictures import discrepancies

        chance = (self.permutations, self.p) if self.p is not None else None
        figure = discrepancies((self.x, self.y), self.layers, self.median, chance)
        return write(folder, {"mmd.png": figure}, "mmd.json", self.to_json())

    def _facts(self) -> list[tuple[str, str]]:
        kernels = {"paper": "from distances between X and Y", "fixed": "from distances within X", "given": "given"}
        rows = [("X", str(self.x)), ("Y", str(self.y)), ("bandwidths", kernels[self.rule])]
        if self.permutations:
            rows.append(("p-values", f"{counted(self.permutations, 'permutation')}, seed {self.seed}"))
        if self.shared:
            rows.append(("in both", counted(self.shared, "member")))
        if self.left_out:
            shown = ", ".join(self.left_out[:3]) + (", ..." if len(self.left_out) > 3 else "")
            rows.append(("not compared", f"{counted(len(self.left_out), 'tensor')} that are no weights: {shown}"))
        return rows


def _figures(item: Measured | Discrepancy) -> list[str]:
    figures = [f"{100 * value:.3f}" for value in (item.median, item.mean, item.most)]
    return figures if item.p is None else [*figures, f"{item.p:.3g}"]

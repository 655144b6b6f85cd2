"""How far are trained networks from the least mass that rescaling their neurons can reach?

The largest elements of layers, and quantiles of figures of which some may not be finite.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group

from ckptzoo import archs
from ckptzoo.console import columns, facts
from ckptzoo.errors import ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.studies.inventory import sound
from ckptzoo.studies.shared.report import need_matplotlib, write
from ckptzoo.studies.shared.weights import own_table, parameter_names, thinned
from ckptzoo.symmetry import min_mass
from ckptzoo.text import Progress, counted, printable

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Largest:
    """The largest absolute value in the parameters of one layer: (M,) as trained and at the least mass."""

    layer: str
    before: Values
    after: Values

    def to_json(self) -> dict[str, Any]:
        """Quantiles over the networks."""
        return {"layer": self.layer, "before": quantiles(self.before), "after": quantiles(self.after)}


def largest_of(tensor: NDArray[np.generic]) -> Values:
    """(K,) largest absolute values of a stacked tensor."""
    flat = tensor.reshape(len(tensor), -1)
    return np.maximum(flat.max(axis=1), -flat.min(axis=1)).astype(np.float64)


def quantiles(values: Values) -> dict[str, float] | None:
    """Quantiles and extremes of the finite ones by name; None where there are none."""
    found = values[np.isfinite(values)]
    if not len(found):
        return None
    shares = (0.0, *QUANTILES, 1.0)
    names = ("least", *map(str, QUANTILES), "most")
    return dict(zip(names, np.quantile(found, shares).tolist(), strict=True))


BATCH_BYTES = 64 * 2**20
"""Raw weights that are solved for at a time, as far as whole checkpoints allow."""
FEW = 20
"""Fewer networks have no peak."""
TIGHT = 1e-10
"""A gap above this is told."""
MAX_ROWS = 24
"""More layers than this are thinned out evenly where they are printed or drawn."""
PAPER = (
    "arXiv 2310.08287, figure 2, OptuNets on MNIST: masses mostly between 120 and 240, an excess that peaks near 30 % "
    "and reaches 60 %"
)

_SHARES = ("least", *(f"{100 * share:g} %" for share in QUANTILES), "most")


@dataclass(frozen=True, eq=False)
class Masses:
    """Masses of M networks as trained and at the least mass that scales reach.

    Parameters
    ----------
    formulation : what scales may do where there are BatchNorms; see ``ckptzoo.symmetry.min_mass``.
    registered : the name of the architecture in ``ckptzoo.archs``; None where it has none.
    members : M, networks that are finite, there and at the least mass, and did not diverge; each at its last step.
    left_out : the others.
    before, after : (M,) sums of squared weights, biases apart, of what lies on a path from input to output.
    gap : (M,) certified: the least mass there is lies at most so far below ``after``, relative to it.
    worst : the network with the largest gap.
    degenerate : (M,) channels that no path joins to input and output; they have no least mass.
    layers : largest elements, from input to output.
    """

    name: str
    architecture: str
    registered: str | None
    formulation: str
    members: int
    left_out: int
    before: Values
    after: Values
    gap: Values
    worst: str
    degenerate: NDArray[np.int64]
    layers: tuple[Largest, ...]

    @property
    def excess(self) -> Values:
        """(M,) 100 (before - after) / after, in percent; NaN where the least mass is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = 100 * (self.before - self.after) / self.after
        return np.where(self.after > 0, found, np.nan)

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without those of each network."""
        excess = self.excess
        return {
            "name": self.name,
            "architecture": self.architecture,
            "formulation": self.formulation,
            "members": self.members,
            "left_out": self.left_out,
            "mass_before": quantiles(self.before),
            "mass_after": quantiles(self.after),
            "excess_percent": quantiles(excess),
            "excess_peak_percent": peak(excess),
            "gap": {"worst": float(self.gap.max()), "id": self.worst, "not_certified": int((self.gap > TIGHT).sum())},
            "degenerate": {"channels": int(self.degenerate.sum()), "members": int((self.degenerate > 0).sum())},
            "largest": [item.to_json() for item in self.layers],
            "paper": PAPER if self.registered == "optunet" else None,
        }

    def print(self, console: Console | None = None) -> None:
        """Print facts and tables on a rich console, by default the standard output."""
        told = facts(self._facts())
        masses = columns("over networks", *_SHARES)
        excess = self.excess
        rows = {"mass as trained": self.before, "least mass": self.after, "excess (%)": excess}
        for name, values in rows.items():
            masses.add_row(name, *_figures(values))
        shown, left = thinned(self.layers, MAX_ROWS)
        largest = columns("largest element", *_SHARES)
        for item in shown:
            largest.add_row(f"{printable(item.layer)}, as trained", *_figures(item.before))
            largest.add_row("  at the least mass", *_figures(item.after))
        found = peak(excess)
        words = [] if found is None else [f"The excess peaks at {found:.3g} %."]
        words += [f"{PAPER}."] * (self.registered == "optunet")
        more = [f"{counted(left, 'more layer')} not shown"] * (left > 0)
        lines = ["", masses, *[""] * bool(words), *words, "", largest, *more]
        (console or Console()).print(Group(told, *lines), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``mass.png`` and ``mass.json``.

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
        from ckptzoo.studies.plots import mass as pictures

        shown, left = thinned(self.layers, MAX_ROWS)
        figure = pictures.masses(self.name, self.before, self.after, self.excess, peak(self.excess), shown, left)
        return write(folder, {"mass.png": figure}, "mass.json", self.to_json())

    def _facts(self) -> list[tuple[str, str]]:
        rows = [
            ("zoo", f"{self.name}: {counted(self.members, 'network')} of {self.architecture}"),
            ("formulation", self.formulation),
            ("certified", f"least masses to {self.gap.max():.1e} of themselves, the worst in {self.worst}"),
        ]
        if loose := int((self.gap > TIGHT).sum()):
            rows.append(("not certified", f"{counted(loose, 'network')}, with a gap above {TIGHT:g}"))
        if channels := int(self.degenerate.sum()):
            where = counted(int((self.degenerate > 0).sum()), "network")
            told = "on no path from input to output: not counted in masses, at unit norm in largest elements"
            rows.append(("degenerate", f"{counted(channels, 'channel')} in {where}, {told}"))
        else:
            rows.append(("degenerate", "no channel"))
        if empty := int((~np.isfinite(self.excess)).sum()):
            rows.append(("no excess", f"{counted(empty, 'network')} in which no path is left, and no mass"))
        if self.left_out:
            rows.append(("left out", f"{counted(self.left_out, 'checkpoint')}, diverged or not finite"))
        return rows


def mass(zoo: Zoo, *, formulation: str = "pinned", progress: Progress | None = None) -> Masses:
    r"""Compare the masses of trained networks with the least that rescaling their hidden channels can reach.

    After arXiv 2310.08287, figure 2. The mass of a network is the sum of its squared weights, biases apart, which is
    what L2 regularisation presses on; scales s of the hidden channels leave the function as it is and change the mass.
    The excess is

    .. math:: 100 \; \frac{m - \min_s m(s)}{\min_s m(s)}

    in percent: 0 where training has balanced every channel, its incoming against its outgoing mass.

    Parameters
    ----------
    zoo : what ``ckptzoo.open`` gives, or a selection of it. Each member's last step counts.
    formulation : as in ``ckptzoo.symmetry.min_mass``.
    progress : called with the bytes of raw weights solved for and those in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table.
    UnknownNameError
        No such formulation.
    ZooError
        No network is finite and did not diverge.

    Notes
    -----
    One pass over the raw weights, in batches of 64 MB and a few copies of them, plus two figures a network and layer.
    Known answers: ``tests/studies/test_mass.py``; laws of the optimum: ``tests/laws/test_mass.py``.
    """
    symmetry = own_table(zoo)
    last = zoo.last_steps()
    good = last.take(sound(last.metadata))
    if not len(good):
        raise ZooError(
            f"{zoo.name}: networks: expected at least one that is finite and did not diverge, got none of {len(last)}. "
            "Select others."
        )
    names = set(parameter_names(zoo.arch))
    layers = {layer: [name for name in tensors if name in names] for layer, tensors in zoo.layers.items()}
    layers = {layer: tensors for layer, tensors in layers.items() if tensors}
    count, each = len(good), max(1, zoo.arch.nbytes)
    before, after, gap = np.empty((3, count))
    degenerate = np.empty(count, np.int64)
    largest = np.empty((2, len(layers), count))
    at = 0
    for batch in good.stream(batch_size=max(1, BATCH_BYTES // each)):
        rows = slice(at, at + len(batch.ids))
        weights = {name: batch[name] for name in zoo.arch.names}
        made = min_mass(weights, symmetry, formulation=formulation)
        before[rows], after[rows], gap[rows] = made.mass_before, made.mass_after, made.gap
        degenerate[rows] = made.degenerate
        for place, tensors in enumerate(layers.values()):
            for side, held in enumerate((weights, made.weights)):
                largest[side, place, rows] = np.max([largest_of(held[name]) for name in tensors], axis=0)
        at = rows.stop
        if progress is not None:
            progress(at * each, count * each)
    solved = np.flatnonzero(np.isfinite(before + after + gap))
    if not len(solved):
        raise ZooError(
            f"{zoo.name}: networks: expected one whose weights stay finite at the least mass, got none of {count}. "
            "Select others."
        )
    return Masses(
        name=zoo.name,
        architecture=zoo.arch.name,
        registered=zoo.arch.forward if archs.known(zoo.arch.forward) else None,
        formulation=formulation,
        members=len(solved),
        left_out=len(last) - len(solved),
        before=before[solved],
        after=after[solved],
        gap=gap[solved],
        worst=good.ids[int(solved[gap[solved].argmax()])],
        degenerate=degenerate[solved],
        layers=tuple(Largest(layer, *largest[:, place, solved]) for place, layer in enumerate(layers)),
    )


def peak(values: Values) -> float | None:
    """Where the density of figures of 0 or more is highest; None for fewer than ``FEW`` finite ones or equal ones.

    The density is a Gaussian kernel estimate with Silverman's bandwidth h = 0.9 min(sd, IQR / 1.34) n^(-1/5), mirrored
    at 0, on a grid of h / 10 or of 2,000 cells; the figures beyond the 1st and 99th percentile by more than h are not
    looked at.
    """
    found = values[np.isfinite(values)]
    if len(found) < FEW:
        return None
    low, first, third, high = np.quantile(found, [0.01, 0.25, 0.75, 0.99])
    width = 0.9 * (min(float(found.std()), float(third - first) / 1.34) or float(found.std())) * len(found) ** -0.2
    if not width:
        return None
    cells = int(np.clip(10 * (high - low) / width, 10, 2000))
    counts, edges = np.histogram(found, cells, (max(0.0, float(low) - width), float(high) + width))
    centres = (edges[:-1] + edges[1:]) / 2
    apart = np.abs(np.subtract.outer(centres, np.concatenate([centres, -centres])))
    heights = np.exp(-0.5 * (apart / width) ** 2) @ np.concatenate([counts, counts])
    return float(centres[heights.argmax()])


def _figures(values: Values) -> list[str]:
    found = quantiles(values)
    return ["-"] * (len(QUANTILES) + 2) if found is None else [f"{value:.4g}" for value in found.values()]

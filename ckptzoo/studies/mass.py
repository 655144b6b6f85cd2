"""How far are trained networks from the least mass that rescaling their neurons can reach?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType

from ckptzoo import archs
from ckptzoo.arguments import Size, checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, ZooError, require
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import JsonFields
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.shared.selection import evenly, own_table, parameters_by_layer, thinned
from ckptzoo.symmetry import min_mass
from ckptzoo.text import Progress, counted, printable

BATCH_BYTES = 64 * 2**20
"""Raw weights that are solved for at a time, as far as whole checkpoints allow."""
FEW = 20
"""The minimum number of networks for a peak."""
TIGHT = 1e-10
"""A least mass whose gap is above this is reported as not certified."""
MAX_ROWS = 24
"""More layers than this are thinned out evenly where they are printed or drawn."""
PAPER = (
    "arXiv 2310.08287, figure 2, OptuNets on MNIST: masses mostly between 120 and 240, an excess that peaks near 30% "
    "and reaches 60%"
)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_COLUMNS = ("least", *(f"{100 * share:g}%" for share in QUANTILES), "most")

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Largest:
    """The largest absolute value in the parameters of one layer: (M,) as trained and at the least mass."""

    layer: str
    before: Values
    after: Values

    def to_json(self) -> dict[str, Any]:
        return {"layer": self.layer, "before": quantiles(self.before), "after": quantiles(self.after)}


@dataclass(frozen=True)
class ConvexCheck(JsonFields, derived=("difference",)):
    """The least mass of one network as both solvers found it, each with the certified bound of its excess.

    ``mass`` and ``gap`` are from ``ckptzoo.symmetry.min_mass``, ``convex_mass`` and ``convex_gap`` from cvxpy with
    Clarabel, ``engine="cvxpy"``.
    """

    id: str
    mass: float
    gap: float
    convex_mass: float
    convex_gap: float

    @property
    def difference(self) -> float:
        """By how much cvxpy's mass is above the other, relative to it."""
        return (self.convex_mass - self.mass) / self.mass


@dataclass(frozen=True, eq=False)
class Masses(StudyResult):
    """Masses of M networks as trained and at the least mass that scales reach; drawn as ``mass.png``.

    ``formulation`` says what scales may do where there are BatchNorms; see ``ckptzoo.symmetry.min_mass``.
    ``registered`` is the architecture's name in ``ckptzoo.archs``, None where it has none. The ``members`` are finite,
    as trained and at the least mass, and did not diverge. ``before`` and ``after`` are (M,) sums of squared weights,
    biases apart, of what is on a path from input to output; the least mass is certified to be below ``after`` by at
    most the (M,) ``gap``, relative to it, which is largest in the network ``worst``. ``degenerate`` are (M,) numbers of
    channels that no path joins to input and output; they have no least mass. ``convex`` are the networks that cvxpy
    solved too.
    """

    file: ClassVar[str] = "mass.json"

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
    convex: tuple[ConvexCheck, ...] = ()

    @property
    def excess(self) -> Values:
        """(M,) 100 (before - after) / after, in percent; NaN where the least mass is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = 100 * (self.before - self.after) / self.after
        return np.where(self.after > 0, excess, np.nan)

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
            "convex": [item.to_json() for item in self.convex],
            "paper": self._paper,
        }

    @property
    def _paper(self) -> str | None:
        """The paper's result, for the architecture that it studied."""
        return PAPER if self.registered == "optunet" else None

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        yield ""
        masses = columns("over networks", *_COLUMNS)
        excess = self.excess
        for name, values in (("mass as trained", self.before), ("least mass", self.after), ("excess (%)", excess)):
            masses.add_row(name, *_figures(values))
        yield masses
        excess_peak = peak(excess)
        if excess_peak is not None or self._paper is not None:
            yield ""
        if excess_peak is not None:
            yield f"The excess peaks at {excess_peak:.3g}%."
        if self._paper is not None:
            yield f"{self._paper}."
        yield ""
        shown, left_out = thinned(self.layers, MAX_ROWS)
        largest = columns("largest element", *_COLUMNS)
        for layer in shown:
            largest.add_row(f"{printable(layer.layer)}, as trained", *_figures(layer.before))
            largest.add_row("  at the least mass", *_figures(layer.after))
        yield largest
        if left_out:
            yield f"{counted(left_out, 'more layer')} not shown"
        if self.convex:
            yield ""
            both = columns("solved by cvxpy too", "least mass", "gap", "cvxpy's", "gap", "difference")
            for item in self.convex:
                masses_and_gaps = (f"{item.mass:.9g}", f"{item.gap:.1e}", f"{item.convex_mass:.9g}")
                both.add_row(printable(item.id), *masses_and_gaps, f"{item.convex_gap:.1e}", f"{item.difference:.1e}")
            yield both

    def _facts(self) -> list[tuple[str, str]]:
        rows = [
            ("zoo", f"{self.name}: {counted(self.members, 'network')} of {self.architecture}"),
            ("formulation", self.formulation),
            ("certified", f"least masses to {self.gap.max():.1e} of themselves, the worst in {self.worst}"),
        ]
        if loose := int((self.gap > TIGHT).sum()):
            rows.append(("not certified", f"{counted(loose, 'network')}, with a gap above {TIGHT:g}"))
        if channels := int(self.degenerate.sum()):
            networks = counted(int((self.degenerate > 0).sum()), "network")
            meaning = "on no path from input to output: not counted in masses, at unit norm in largest elements"
            rows.append(("degenerate", f"{counted(channels, 'channel')} in {networks}, {meaning}"))
        else:
            rows.append(("degenerate", "no channel"))
        if empty := int((~np.isfinite(self.excess)).sum()):
            rows.append(("no excess", f"{counted(empty, 'network')} in which no path is left, and no mass"))
        if self.left_out:
            rows.append(("left out", f"{counted(self.left_out, 'checkpoint')}, diverged or not finite"))
        return rows


@checked
def mass(zoo: Zoo, *, formulation: str = "pinned", convex: Size = 0, progress: Progress | None = None) -> Masses:
    r"""Compare the masses of trained networks with the least that rescaling their hidden channels can reach.

    After arXiv 2310.08287, figure 2. The mass of a network is the sum of its squared weights, biases apart, which is
    what L2 regularisation presses on; scales s of the hidden channels leave the function as it is and change the mass.
    The excess is

    .. math:: 100 \; \frac{m - \min_s m(s)}{\min_s m(s)}

    in percent: 0 where training has balanced every channel, its incoming against its outgoing mass.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it. Each member's last step counts.
    formulation
        as in ``ckptzoo.symmetry.min_mass``.
    convex
        how many networks, spread evenly over the zoo, are also solved by cvxpy, with Clarabel: an independent check.
    progress
        called with the bytes of raw weights solved for and those in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table.
    UnknownNameError
        No such formulation.
    ZooError
        No network is finite and did not diverge.
    MissingExtraError
        ``convex`` without cvxpy.

    Notes
    -----
    One pass over the raw weights, in batches of 64 MB and a few copies of them, plus two figures a network and layer.
    Tested in ``tests/studies/test_mass.py`` (known answers) and ``tests/laws/test_mass.py`` (the optimum).

    Examples
    --------
    >>> from ckptzoo.studies.mass import mass
    >>> found = mass(ckptzoo.open("cards/mnist-optunet"))
    >>> bool((found.after <= found.before).all()), round(float(np.median(found.excess)), 1)
    (True, 25.9)
    """
    if convex:
        require("cvxpy", "convex")
    symmetry = own_table(zoo)
    last = zoo.last_steps()
    usable = last.take(usable_networks(last))
    if not len(usable):
        expected, got = "at least one that is finite and did not diverge", f"none of {len(last)}"
        raise ZooError(Problem(zoo.name, "networks", expected, got, "Select others."))
    layers = parameters_by_layer(zoo.arch)
    before, after, gap = np.empty((3, len(usable)))
    degenerate = np.empty(len(usable), np.int64)
    largest = np.empty((2, len(layers), len(usable)))
    done = 0
    for batch in usable.batches(max_bytes=BATCH_BYTES):
        rows = slice(done, done + len(batch.ids))
        weights = {name: batch[name] for name in zoo.arch.names}
        least = min_mass(weights, symmetry, formulation=formulation)
        before[rows], after[rows], gap[rows] = least.mass_before, least.mass_after, least.gap
        degenerate[rows] = least.degenerate
        for index, tensors in enumerate(layers.values()):
            for side, tensor_of in enumerate((weights, least.weights)):
                largest[side, index, rows] = np.max([largest_of(tensor_of[name]) for name in tensors], axis=0)
        done = rows.stop
        if progress is not None:
            progress(done * zoo.arch.nbytes, len(usable) * zoo.arch.nbytes)
    # weights that are finite in their dtype can leave its range when they are rescaled
    solved = np.flatnonzero(np.isfinite(before + after + gap))
    if not len(solved):
        expected, got = "one whose weights stay finite at the least mass", f"none of {len(usable)}"
        raise ZooError(Problem(zoo.name, "networks", expected, got, "Select others."))
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
        worst=usable.ids[int(solved[gap[solved].argmax()])],
        degenerate=degenerate[solved],
        layers=tuple(Largest(layer, *largest[:, index, solved]) for index, layer in enumerate(layers)),
        convex=_convex_checks(usable.take(solved), after[solved], gap[solved], symmetry, formulation, convex),
    )


def _convex_checks(
    zoo: Zoo, mass: Values, gap: Values, symmetry: Symmetry, formulation: str, count: int
) -> tuple[ConvexCheck, ...]:
    """Solve ``count`` networks, evenly spaced, by cvxpy too; masses and gaps are (M,)."""
    if not count:
        return ()
    places = evenly(len(zoo), count)
    chosen = zoo.take(places)
    weights = {name: chosen[name][:] for name in zoo.arch.names}
    least = min_mass(weights, symmetry, formulation=formulation, engine="cvxpy")
    figures = np.stack([mass[places], gap[places], least.mass_after, least.gap], 1).tolist()
    return tuple(ConvexCheck(id, *row) for id, row in zip(chosen.ids, figures, strict=True))


def peak(values: Values) -> float | None:
    """Where the density of figures of 0 or more is highest; None where there is no density."""
    found = excess_density(values)
    return None if found is None else float(found[0][found[1].argmax()])


def excess_density(values: Values) -> tuple[Values, Values] | None:
    """Places and the density there, of figures of 0 or more; None for fewer than ``FEW`` finite ones or equal ones.

    The density is a Gaussian kernel estimate with Silverman's bandwidth h = 0.9 min(sd, IQR / 1.34) n^(-1/5), mirrored
    at 0, on a grid of h / 10 or of 2,000 cells; the figures beyond the 1st and 99th percentile by more than h are not
    looked at.
    """
    finite = values[np.isfinite(values)]
    if len(finite) < FEW:
        return None
    low, first, third, high = np.quantile(finite, [0.01, 0.25, 0.75, 0.99])
    # figures that differ by less differ by rounding
    rounding = 1e-12 * abs(high)
    # 1.34: the interquartile range of a standard normal, so that outliers do not widen the kernel
    sd, iqr = float(finite.std()), float(third - first)
    width = 0.9 * (min(sd, iqr / 1.34) if iqr > rounding else sd) * len(finite) ** -0.2
    if width <= rounding:
        return None
    cells = int(np.clip(10 * (high - low) / width, 10, 2000))
    counts, edges = np.histogram(finite, cells, (max(0.0, float(low) - width), float(high) + width))
    centres = (edges[:-1] + edges[1:]) / 2
    # the mirror image of every bin: a kernel near 0 loses nothing to the negative side
    distances = np.abs(np.subtract.outer(centres, np.concatenate([centres, -centres])))
    heights = np.exp(-0.5 * (distances / width) ** 2) @ np.concatenate([counts, counts])
    return centres, heights / (len(finite) * width * np.sqrt(2 * np.pi))


def _figures(values: Values) -> list[str]:
    known = quantiles(values)
    return ["-"] * len(_COLUMNS) if known is None else [f"{value:.4g}" for value in known.values()]


def largest_of(tensor: NDArray[np.generic]) -> Values:
    """The largest absolute values of each layer."""
    flat = tensor.reshape(len(tensor), -1)
    # without a copy of all absolute values
    return np.maximum(flat.max(axis=1), -flat.min(axis=1)).astype(np.float64)


def quantiles(values: Values) -> dict[str, float] | None:
    """Quantiles and extremes of the finite ones by name; None where there are none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    shares = (0.0, *QUANTILES, 1.0)
    names = ("least", *map(str, QUANTILES), "most")
    return dict(zip(names, np.quantile(finite, shares).tolist(), strict=True))

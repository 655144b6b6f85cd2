"""How many modes does the posterior have? What symmetry alone makes of one, and what mean shift finds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, ZooError, require
from ckptzoo.loader.flags import usable_rows
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document
from ckptzoo.studies.mean_shift import QUANTILES, RUNS, ModeCurve, PointSet, WeightSpace, mode_curve
from ckptzoo.studies.shared.result import StudyResult, counts_json, permutations_text
from ckptzoo.studies.shared.selection import evenly, parameter_names, parameters_by_layer, table_of
from ckptzoo.symmetry.counts import Counts, count
from ckptzoo.text import Progress, counted, printable

MAX_MEMBERS = 200
"""The maximum number of members; more are thinned out evenly, as each run of mean shift starts from every one."""
MAX_LAYERS = 11
"""More layers than this are thinned out evenly."""
MAX_BYTES = 256 * 2**20
"""Fewer members are taken where the largest tensor of ``MAX_MEMBERS`` takes more."""
ENOUGH = 14
"""The minimum number of members for the steadiest number of modes: fewer leave less than six to choose from."""
ALL = "all layers"
"""Label of the space of all parameters together."""
_COLUMNS = 2**16
"""The number of columns of a tensor that are converted to float64 at a time."""


@dataclass(frozen=True, eq=False)
class Modes(StudyResult):
    """How many modes there are by symmetry, and how many mean shift finds; drawn as ``modes.png``.

    ``counts`` has the permutations and degrees of freedom of the symmetry table; ``usable`` counts the members to
    choose from, each at its last step, and ``left_out`` checkpoints that diverged, are not finite or not in the gauge;
    ``layers`` counts the layers with parameters; ``spaces`` has at most ``MAX_LAYERS`` of them, then all layers
    together.
    """

    file: ClassVar[str] = "modes.json"

    name: str
    variant: str
    architecture: str
    parameters: int
    counts: Counts
    members: int
    usable: int
    left_out: int
    layers: int
    spaces: tuple[WeightSpace, ...]

    def to_json(self) -> Document:
        return {**super().to_json(), "counts": counts_json(self.counts)}

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        yield ""
        yield (
            "0.05 to 0.5: modes by mean shift at the bandwidths that scikit-learn estimates from these quantiles "
            "(0.3 is its default). apart: the bandwidth, in median distances between two members, up to which each is "
            "a mode of its own. one: from which there is a single mode. steadiest: the number from 2 to half the "
            "members that stays for the largest factor of the bandwidth."
        )
        yield ""
        yield self._table()
        yield ""
        yield from self._conclusions()

    def _facts(self) -> list[tuple[str, str]]:
        counts = self.counts
        signs = f" times 2^{counts.signs} by signs" if counts.signs else ""
        sample = f" of {self.usable:,}, evenly spaced" if self.members < self.usable else ""
        rows = [
            ("zoo", f"{self.name}: {counted(self.members, 'member')}{sample}, of {self.architecture}"),
            ("by symmetry", f"each mode is {permutations_text(counts)} modes by permutations{signs}"),
        ]
        if counts.scaling_train:
            share = f"{counts.scaling_train / self.parameters:.2%} of the parameters"
            rows.append(("by scales", f"and each is a set of {counted(counts.scaling_train, 'dimension')} ({share})"))
        if self.left_out:
            rows.append(
                ("left out", f"{counted(self.left_out, 'checkpoint')}: diverged, not finite or not in the gauge")
            )
        if self.layers > MAX_LAYERS:
            rows.append(("layers", f"{len(self.spaces) - 1} of {self.layers}, evenly spaced"))
        return rows

    def _table(self) -> Table:
        table = columns("layer")
        table.add_column("variant", no_wrap=True)
        for name in (*(f"{quantile:g}" for quantile in QUANTILES), "apart", "one", "steadiest"):
            table.add_column(name, justify="right", no_wrap=True)
        for space in self.spaces:
            label = f"{printable(space.label)} ({space.parameters:,})"
            for variant, curve in space.curves.items():
                table.add_row(label, printable(variant), *_cells(curve))
                label = ""
        return table

    def _conclusions(self) -> Iterator[str]:
        known = [
            (curve, space.label, variant)
            for space in self.spaces
            for variant, curve in space.curves.items()
            # two points are two modes or one: no number is between
            if curve is not None and curve.distinct > 2
        ]
        if not known:
            yield "Fewer than three members differ: their modes say nothing."
            return
        factors = [curve.one_from / curve.apart_up_to for curve, _, _ in known]
        low, high = _short(min(factors)), _short(max(factors))
        between = low if low == high else f"{low} to {high}"
        yield f"From one mode a member to a single one the bandwidth grows {between} times."
        if self.members < ENOUGH:
            yield f"Which number is steady is not resolved with {self.members} members; that takes {ENOUGH} or more."
            return
        steady = [(number, label, variant) for curve, label, variant in known if (number := curve.steadiest)]
        if steady:
            (number, factor), label, variant = max(steady, key=lambda item: item[0][1])
            space = f"{printable(label)}, {printable(variant)}"
            yield f"The steadiest number of all is {number:,} in {space}: for a factor of {_short(factor)}."


@checked
def modes(zoo: Zoo, variant: str = "canonical", *, progress: Progress | None = None) -> Modes:
    """Count modes: those that symmetry makes of one, and those that mean shift finds in raw and in derived weights.

    After arXiv 2310.08287, where mean shift on the weights is tried as an estimate of the number of modes. What it
    finds is a number for every bandwidth: each member is a mode of its own below the smallest distance between two, and
    all are one above the largest. A number that were the data's and not the bandwidth's would stay where the bandwidth
    changes by a large factor.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it. Each member's last step counts.
    variant
        a variant that was derived.
    progress
        called with the runs of mean shift done and those in all.

    Raises
    ------
    MissingExtraError
        scikit-learn is not installed.
    SymmetryError
        The zoo has no symmetry table.
    ZooError
        No member is usable, or the variant is missing or lacks some of them.

    Notes
    -----
    At most ``MAX_MEMBERS`` members, evenly spaced in the zoo's order, fewer where the largest tensor would take
    more than ``MAX_BYTES``; at most ``MAX_LAYERS`` layers. Their parameters are read once raw and once derived; of
    layers wider than ``ckptzoo.studies.mean_shift.WIDE`` all principal components are taken. Tested in
    ``tests/studies/test_modes.py``.

    Examples
    --------
    >>> from ckptzoo.studies.modes import modes
    >>> found = modes(ckptzoo.open("cards/mnist-optunet").where("seed < 6"))
    >>> found.members, found.counts.permutations, [space.label for space in found.spaces]
    (6, 28800, ['conv1', 'conv2', 'fc', 'all layers'])
    """
    require("sklearn.cluster", "stats", package="scikit-learn")
    symmetry = table_of(zoo, variant)
    last = zoo.last_steps()
    usable = last.take(usable_rows(last) & last.variant_metadata(variant)["gauged"].to_numpy())
    if not len(usable):
        expected = f"at least one that is finite, did not diverge and is in {variant}"
        raise ZooError(Problem(zoo.name, "members", expected, f"none of {len(last)}", "Select others."))
    names = parameter_names(zoo.arch)
    row_bytes = max(zoo[name, kind].nbytes // len(zoo) for name in names for kind in (layout.RAW, variant))
    # two at least: one point has no distances
    limit = int(np.clip(MAX_BYTES // row_bytes, 2, MAX_MEMBERS))
    chosen = usable.take(evenly(len(usable), limit))
    return Modes(
        name=zoo.name,
        variant=variant,
        architecture=zoo.arch.name,
        parameters=zoo.arch.parameters,
        counts=count(symmetry),
        members=len(chosen),
        usable=len(usable),
        left_out=len(last) - len(usable),
        layers=len(parameters_by_layer(zoo.arch)),
        spaces=_spaces(chosen, variant, progress),
    )


def _spaces(zoo: Zoo, variant: str, progress: Progress | None) -> tuple[WeightSpace, ...]:
    layers = parameters_by_layer(zoo.arch)
    shown = [list(layers)[index] for index in evenly(len(layers), MAX_LAYERS)]
    variants = (layout.RAW, variant)
    total, runs = (len(shown) + 1) * len(variants) * RUNS, 0

    def done() -> None:
        nonlocal runs
        runs += 1
        if progress is not None:
            progress(runs, total)

    curves: dict[str, dict[str, ModeCurve | None]] = {label: {} for label in (*shown, ALL)}
    for kind in variants:
        whole = PointSet(len(zoo))
        for layer, names in layers.items():
            points = PointSet(len(zoo))
            for coordinates in _coordinates(zoo, names, kind):
                points.add(coordinates)
                whole.add(coordinates)
            if layer in shown:
                curves[layer][kind] = mode_curve(points.coordinates(), done)
        curves[ALL][kind] = mode_curve(whole.coordinates(), done)
    sizes = {
        label: sum(zoo.arch[name].size for name in layers.get(label, parameter_names(zoo.arch))) for label in curves
    }
    return tuple(WeightSpace(label, sizes[label], of_variant) for label, of_variant in curves.items())


def _coordinates(zoo: Zoo, names: list[str], variant: str) -> Iterator[NDArray[np.float64]]:
    """These tensors of all checkpoints, (n, c), some columns at a time."""
    for name in names:
        flat = np.asarray(zoo[name, variant]).reshape(len(zoo), -1)
        for start in range(0, flat.shape[1], _COLUMNS):
            yield flat[:, start : start + _COLUMNS].astype(np.float64)


def _cells(curve: ModeCurve | None) -> list[str]:
    if curve is None:
        return ["1"] * len(QUANTILES) + ["-"] * 3
    modes = ["-" if item.modes is None else f"{item.modes:,}" for item in curve.estimates]
    steadiest = curve.steadiest
    steady = "-" if steadiest is None else f"{steadiest[0]:,} (x{_short(steadiest[1])})"
    return [*modes, _short(curve.apart_up_to / curve.median), _short(curve.one_from / curve.median), steady]


def _short(value: float) -> str:
    """Two digits, or all of a larger number's."""
    # .2g would write 99.5 as 1e+02
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"

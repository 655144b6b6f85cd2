"""How many modes does the posterior have? What symmetry alone makes of one, and what mean shift finds."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table

from ckptzoo.console import facts
from ckptzoo.errors import ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.studies.inventory import sound
from ckptzoo.studies.mean_shift import QUANTILES, RUNS, Cloud, Curve, Space, curve, need_sklearn
from ckptzoo.studies.shared.report import need_matplotlib, write
from ckptzoo.studies.shared.weights import evenly, parameter_names, table_of
from ckptzoo.symmetry.counts import Counts, count
from ckptzoo.text import Progress, counted, printable

MAX_MEMBERS = 200
MAX_LAYERS = 11
"""More layers than this are thinned out evenly."""
MAX_BYTES = 256 * 2**20
"""Fewer members are taken where so many of the largest tensor take more."""
ALL = "all layers"
_COLUMNS = 2**16
_EXACT = 15
"""Counts of up to so many digits are shown as they are, larger ones as a power of ten."""


@dataclass(frozen=True, eq=False)
class Modes:
    """How many modes there are by symmetry, and how many mean shift finds.

    Parameters
    ----------
    counts : permutations and degrees of freedom of the symmetry table.
    members : those whose weights are studied.
    usable : members to choose from, each at its last step.
    left_out : checkpoints that diverged, are not finite or not in the gauge.
    layers : layers with parameters; ``spaces`` has at most ``MAX_LAYERS`` of them, then all layers together.
    """

    name: str
    variant: str
    architecture: str
    parameters: int
    counts: Counts
    members: int
    usable: int
    left_out: int
    layers: int
    spaces: tuple[Space, ...]

    def to_json(self) -> dict[str, Any]:
        """Every figure by name."""
        few = self.counts.log10_permutations < _EXACT
        names = ("name", "variant", "architecture", "parameters", "members", "usable", "left_out", "layers")
        return {
            **{name: getattr(self, name) for name in names},
            "counts": {**asdict(self.counts), "permutations": self.counts.permutations if few else None},
            "spaces": [space.to_json() for space in self.spaces],
        }

    def print(self, console: Console | None = None) -> None:
        """Print facts, a table and what it says on a rich console, by default the standard output."""
        told = facts(self._facts())
        words = (
            "0.05 to 0.5: modes by mean shift at the bandwidths that scikit-learn estimates from these quantiles "
            "(0.3 is its default). apart: the bandwidth, in median distances between two members, up to which each is "
            "a mode of its own. one: from which there is a single mode. steadiest: the number from 2 to half the "
            "members that stays for the largest factor of the bandwidth."
        )
        shown = Group(told, "", words, "", self._table(), *self._reading())
        (console or Console()).print(shown, markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``modes.png`` and ``modes.json``.

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
        from ckptzoo.studies.plots import modes as pictures

        figure = pictures.curves(self.name, self.members, self.spaces)
        return write(folder, {"modes.png": figure}, "modes.json", self.to_json())

    def _facts(self) -> list[tuple[str, str]]:
        counts = self.counts
        short = counts.log10_permutations < _EXACT
        permutations = f"{counts.permutations:,}" if short else f"10^{counts.log10_permutations:.2f}"
        signs = f" times 2^{counts.signs} by signs" if counts.signs else ""
        sample = f" of {self.usable:,}, evenly spaced" if self.members < self.usable else ""
        rows = [
            ("zoo", f"{self.name}: {counted(self.members, 'member')}{sample}, of {self.architecture}"),
            ("by symmetry", f"each mode is {permutations} modes by permutations{signs}"),
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
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("layer", overflow="fold")
        table.add_column("variant", no_wrap=True)
        for name in (*(f"{quantile:g}" for quantile in QUANTILES), "apart", "one", "steadiest"):
            table.add_column(name, justify="right", no_wrap=True)
        for space in self.spaces:
            label = f"{printable(space.label)} ({space.parameters:,})"
            for variant, found in space.curves.items():
                table.add_row(label, printable(variant), *_figures(found))
                label = ""
        return table

    def _reading(self) -> list[str]:
        """What the table says."""
        known = [
            (item, space.label, variant)
            for space in self.spaces
            for variant, item in space.curves.items()
            if item is not None and item.distinct > 2
        ]
        if not known:
            return ["", "Fewer than three members differ: their modes say nothing."]
        factors = [item.one / item.apart for item, _, _ in known]
        low, high = _short(min(factors)), _short(max(factors))
        between = low if low == high else f"{low} to {high}"
        lines = ["", f"From one mode a member to a single one the bandwidth grows {between} times."]
        steady = [(found, label, variant) for item, label, variant in known if (found := item.steadiest)]
        if steady:
            (number, factor), label, variant = max(steady, key=lambda item: item[0][1])
            where = f"{printable(label)}, {printable(variant)}"
            lines.append(f"The steadiest number of all is {number:,} in {where}: for a factor of {_short(factor)}.")
        return lines


def modes(zoo: Zoo, variant: str = "canonical", *, progress: Progress | None = None) -> Modes:
    """Count modes: those that symmetry makes of one, and those that mean shift finds in raw and in derived weights.

    After arXiv 2310.08287, where mean shift on the weights is tried as an estimate of the number of modes. What it
    finds is a number for every bandwidth: each member is a mode of its own below the smallest distance between two, and
    all are one above the largest. A number that were the data's and not the bandwidth's would stay where the bandwidth
    changes by a large factor.

    Parameters
    ----------
    zoo : what ``ckptzoo.open`` gives, or a selection of it. Each member's last step counts.
    variant : a variant that was derived.
    progress : called with the runs of mean shift done and those in all.

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
    At most ``MAX_MEMBERS`` members, evenly spaced in the zoo's order, fewer where so many of the largest tensor take
    more than ``MAX_BYTES``; at most ``MAX_LAYERS`` layers. Their parameters are read once raw and once derived; of
    layers wider than ``ckptzoo.studies.mean_shift.WIDE`` all principal components are taken. Known answers:
    ``tests/studies/test_modes.py``.
    """
    need_sklearn()
    symmetry = table_of(zoo, variant)
    last = zoo.last_steps()
    usable = last.take(sound(last.metadata) & last.variant_metadata(variant)["gauged"].to_numpy())
    if not len(usable):
        raise ZooError(
            f"{zoo.name}: members: expected at least one that is finite, did not diverge and is in {variant}, got none "
            f"of {len(last)}. Select others."
        )
    names = parameter_names(zoo.arch)
    each = max(zoo[name, kind].nbytes // len(zoo) for name in names for kind in (layout.RAW, variant))
    most = int(np.clip(MAX_BYTES // each, 2, MAX_MEMBERS))
    chosen = usable.take(evenly(len(usable), most))
    return Modes(
        name=zoo.name,
        variant=variant,
        architecture=zoo.arch.name,
        parameters=zoo.arch.parameters,
        counts=count(symmetry),
        members=len(chosen),
        usable=len(usable),
        left_out=len(last) - len(usable),
        layers=len(_layers(zoo)),
        spaces=_spaces(chosen, variant, progress),
    )


def _spaces(zoo: Zoo, variant: str, progress: Progress | None) -> tuple[Space, ...]:
    layers = _layers(zoo)
    shown = [list(layers)[at] for at in evenly(len(layers), MAX_LAYERS)]
    kinds = (layout.RAW, variant)
    total, runs = (len(shown) + 1) * len(kinds) * RUNS, 0

    def done() -> None:
        nonlocal runs
        runs += 1
        if progress is not None:
            progress(runs, total)

    curves: dict[str, dict[str, Curve | None]] = {label: {} for label in (*shown, ALL)}
    for kind in kinds:
        whole = Cloud(len(zoo))
        for layer, names in layers.items():
            cloud = Cloud(len(zoo))
            for piece in _pieces(zoo, names, kind):
                cloud.add(piece)
                whole.add(piece)
            if layer in shown:
                curves[layer][kind] = curve(cloud.points(), done)
        curves[ALL][kind] = curve(whole.points(), done)
    sizes = {
        label: sum(zoo.arch[name].size for name in layers.get(label, parameter_names(zoo.arch))) for label in curves
    }
    return tuple(Space(label, sizes[label], held) for label, held in curves.items())


def _layers(zoo: Zoo) -> dict[str, list[str]]:
    """Layer to its floating-point parameters; layers without any are left out."""
    names = set(parameter_names(zoo.arch))
    held = {layer: [name for name in tensors if name in names] for layer, tensors in zoo.layers.items()}
    return {layer: tensors for layer, tensors in held.items() if tensors}


def _pieces(zoo: Zoo, names: list[str], variant: str) -> Iterator[NDArray[np.float64]]:
    """Some columns at a time of these tensors, (n, c)."""
    for name in names:
        flat = np.asarray(zoo[name, variant]).reshape(len(zoo), -1)
        for start in range(0, flat.shape[1], _COLUMNS):
            yield flat[:, start : start + _COLUMNS].astype(np.float64)


def _figures(found: Curve | None) -> list[str]:
    if found is None:
        return ["1"] * len(QUANTILES) + ["-"] * 3
    at = ["-" if item.modes is None else f"{item.modes:,}" for item in found.estimates]
    steadiest = found.steadiest
    steady = "-" if steadiest is None else f"{steadiest[0]:,} (x{_short(steadiest[1])})"
    return [*at, _short(found.apart / found.median), _short(found.one / found.median), steady]


def _short(value: float) -> str:
    """Two digits, or all of a larger number's."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"

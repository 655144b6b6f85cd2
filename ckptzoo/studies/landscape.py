"""How sharp are the minima of a zoo, and are they connected?"""

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import archs, symmetry
from ckptzoo.arguments import NETWORK, Seed, Size, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.checks import import_with_torch
from ckptzoo.derive.independence import random_pairs
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.table import filled_with
from ckptzoo.loader.flags import usable_rows
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.cka import linear_cka
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.shared.networks import ALIGNED, RAW, evaluator_of, pairs_at_once, read_networks
from ckptzoo.studies.shared.result import Spread, StudyResult, mean_and_sd
from ckptzoo.text import Progress, counted, counter, printable

POINTS = 21
"""Points of a line or a curve, with its ends."""
RATE = 0.1
"""The learning rate of curves, whose gradients have a norm of at most 1."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Joined(JsonFields):
    """Losses (P, T) at the points of P lines and of P curves with the same ends, in nats."""

    line: Values
    curve: Values

    @property
    def highest(self) -> tuple[Values, Values, Values]:
        """(P,) the largest losses of the ends, of the lines and of the curves."""
        return self.line[:, [0, -1]].max(1), self.line.max(1), self.curve.max(1)

    def to_json(self) -> Document:
        spreads = (Spread.of(values) for values in self.highest)
        named = zip(("ends", "line", "curve"), spreads, strict=True)
        return {name: None if spread is None else spread.to_json() for name, spread in named}


@dataclass(frozen=True, eq=False)
class LandscapeStudy(StudyResult, derived=("correlations",)):
    """Stored figures of members and measurements of pairs, drawn as ``landscape.png``.

    ``members`` have figures on the inputs ``set``: ``losses``, ``traces`` and ``tops`` are (M,), ``trace_errors`` and
    ``top_errors`` too, NaN where a figure is exact. ``pairs`` are ids, ``cka`` (P,) the alignment of their last
    features, and ``joined`` maps ways to their lines and curves; it is empty where none were asked for. Curves are
    trained on half of the ``inputs`` and scored on the others.
    """

    file: ClassVar[str] = "landscape.json"

    name: str
    set: str
    members: int
    without: int
    losses: Values
    traces: Values
    trace_errors: Values
    tops: Values
    top_errors: Values
    pairs: tuple[tuple[str, str], ...]
    cka: Values
    joined: dict[str, Joined]
    inputs: int
    curve_steps: int
    seed: int

    @property
    def correlations(self) -> dict[str, float]:
        """Spearman's correlations of the loss with the trace and with the largest eigenvalue."""
        found = {"trace": self.traces, "largest eigenvalue": self.tops}
        return {name: _rank_correlation(self.losses, values) for name, values in found.items()}

    def to_json(self) -> Document:
        spreads = {name: Spread.of(getattr(self, name)) for name in ("losses", "traces", "tops", "cka")}
        said = {name: None if spread is None else spread.to_json() for name, spread in spreads.items()}
        errors = {name: _largest(getattr(self, name)) for name in ("trace_errors", "top_errors")}
        return {**super().to_json(), **said, **errors}

    def _lines(self) -> Iterator[RenderableType]:
        lacking = f"; {counted(self.without, 'member')} without figures" if self.without else ""
        yield facts(
            [
                ("zoo", f"{self.name}: {counted(self.members, 'member')}{lacking}"),
                ("loss", f"mean cross-entropy on {self.set}"),
            ]
        )
        yield ""
        yield _figures_table(self)
        for name, value in self.correlations.items():
            if np.isfinite(value):
                yield f"rank correlation of loss and {name} {value:.2f}"
        yield "Rescaled networks compute the same with other Hessians: compare members of one recipe, or of one gauge."
        if self.pairs:
            yield ""
            yield f"debiased linear CKA of last features: {mean_and_sd(Spread.of(self.cka), 3)} over {self._said_pairs}"
        if self.joined:
            yield ""
            yield f"largest losses between members, in nats; curves of {counted(self.curve_steps, 'step')}"
            yield _joined_table(self)

    @property
    def _said_pairs(self) -> str:
        return f"{counted(len(self.pairs), 'pair')}, on {counted(self.inputs, 'input')}"


@checked
def landscape(
    zoo: Zoo,
    labelled: Labelled | None = None,
    *,
    set: str | None = None,
    pairs: Size = 8,
    curve_steps: Size = 500,
    module: NETWORK | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> LandscapeStudy:
    """Compare stored figures of the loss around members, and join pairs of members by curves.

    Traces and largest eigenvalues of Hessians are those that ``ckptzoo.derive.landscape`` stored. Of pairs: the
    debiased linear CKA of the inputs of the last layer (arXiv 1905.00414), and the largest loss on the straight line
    and on a quadratic Bezier curve (arXiv 1802.10026), whose middle point is trained on half of the inputs; the other
    half is scored. The second network is taken as trained, and aligned with the first by its weights where a table of
    symmetries is known.

    Parameters
    ----------
    zoo
        members count at their last step, the usable ones.
    labelled
        what pairs are scored on; needed where there are any.
    set
        the inputs of the stored figures; by default the only ones.
    pairs
        of different members, at random: disjoint ones where there are enough members.
    curve_steps
        of the training of a curve; 0 leaves curves and lines out.
    module
        the network as a torch module, where its forward function is not in ``ckptzoo.archs``.
    seed
        of pairs, inputs and training.
    progress
        called with the steps done, and all of them.

    Raises
    ------
    UnknownNameError
        Nothing was measured on such a set.
    ZooError
        No member has figures, the zoo holds Gaussians, there are no labelled inputs for the pairs, or the network has
        BatchNorm, whose statistics would have to follow a curve.
    MissingExtraError
        torch is not installed.

    Notes
    -----
    Time: for each pair and step of a curve a gradient for 128 inputs. Tested in tests/studies/test_landscape.py.
    """
    usable = zoo.last_steps()
    usable = usable.take(usable_rows(usable))
    rows = usable.landscape(set)
    columns_of = {name: filled_with(rows[name], np.nan) for name in rows.column_names[1:]}
    known = np.flatnonzero(np.isfinite(columns_of["hessian_top"]))
    if not len(known):
        step = f"Run ckptzoo landscape {quote(str(zoo.contents.files.here or 'FOLDER'))}."
        raise ZooError(Problem(zoo.name, "members with figures", "at least one that is finite", "none", step))
    members = usable.take(known)
    joining = None
    if pairs and len(members) > 1:
        joining = _Joining(members, labelled, pairs, curve_steps, module, seed)
    advance = counter(joining.steps if joining else 1, progress)
    joined, cka = joining.measure(advance) if joining else ({}, np.empty(0))
    ids = members.ids
    figures = [columns_of[name][known] for name in rows.column_names[1:]]
    return LandscapeStudy(
        name=zoo.name,
        set=set or zoo.landscapes[0],
        members=len(members),
        without=len(usable) - len(members),
        losses=figures[0],
        traces=figures[1],
        trace_errors=figures[2],
        tops=figures[3],
        top_errors=figures[4],
        pairs=tuple((ids[one], ids[other]) for one, other in joining.pairs.tolist()) if joining else (),
        cka=cka,
        joined=joined,
        inputs=len(joining.labelled.inputs) if joining else 0,
        curve_steps=curve_steps,
        seed=seed,
    )


class _Joining:
    """The measurements of pairs; it refuses impossible ones before anything is measured."""

    def __init__(
        self, zoo: Zoo, labelled: Labelled | None, pairs: int, curve_steps: int, module: Any, seed: int
    ) -> None:
        if labelled is None:
            step = "Name them with --set and --data, or --inputs FILE.npz; or leave pairs out with --pairs 0."
            raise ZooError(Problem(zoo.name, "labelled inputs for pairs", "some", "none", step))
        self.labelled, self._zoo, self._module, self._seed = labelled, zoo, module, seed
        pair_rng, input_rng = (np.random.default_rng([seed, number]) for number in range(2))
        self.pairs = random_pairs(len(zoo), pairs, 2 * pairs <= len(zoo), pair_rng)
        self._curve_steps = curve_steps
        order = input_rng.permutation(len(labelled.inputs))
        half = len(order) // 2
        if not half:
            step = "Pass more inputs."
            raise ZooError(Problem(zoo.name, "inputs", "2 or more, of which half are scored", f"{len(order)}", step))
        self._training, scored = (
            Labelled(labelled.set, labelled.inputs[rows], labelled.targets[rows], labelled.statistics)
            for rows in (np.sort(order[:half]), np.sort(order[half:]))
        )
        self._evaluator = evaluator_of(zoo, scored, module)
        self._table = _table_of(zoo)

    @property
    def steps(self) -> int:
        """Steps of all trainings, and one for each batch of pairs."""
        ways = 1 + (self._table is not None)
        batches = -(-len(self.pairs) // pairs_at_once(self._zoo.arch))
        return batches * (1 + ways * self._curve_steps)

    def measure(self, advance: Any) -> tuple[dict[str, Joined], Values]:
        """Lines and curves by way, and the (P,) alignments of last features."""
        parts: dict[str, list[Joined]] = {}
        cka: list[float] = []
        size = pairs_at_once(self._zoo.arch)
        for start in range(0, len(self.pairs), size):
            some = self.pairs[start : start + size]
            first, second = (read_networks(self._zoo, some[:, side]) for side in range(2))
            cka += self._alignments(first, second)
            advance()
            if not self._curve_steps:
                continue
            ways = {RAW: second}
            if self._table is not None:
                ways[ALIGNED] = symmetry.align(second, first, self._table).weights
            for way, other in ways.items():
                parts.setdefault(way, []).append(self._joined(first, other, advance))
        joined = {
            way: Joined(*(np.concatenate([getattr(one, name) for one in found]) for name in ("line", "curve")))
            for way, found in parts.items()
        }
        return joined, np.array(cka)

    def _alignments(self, first: Any, second: Any) -> list[float]:
        read = import_with_torch("last_layer").last_features
        inputs = np.ascontiguousarray(self.labelled.inputs, np.float32)
        sides = (read(self._zoo.arch, side, inputs, self._module) for side in (first, second))
        return [linear_cka(one, other) for one, other in zip(*sides, strict=True)]

    def _joined(self, first: Any, second: Any, advance: Any) -> Joined:
        curves, evaluation = import_with_torch("curves"), import_with_torch("evaluation")
        points = np.linspace(0, 1, POINTS)
        middle = curves.middle_points(
            self._zoo.arch,
            first,
            second,
            self._training,
            steps=self._curve_steps,
            rate=RATE,
            seed=self._seed,
            module=self._module,
            advance=advance,
        )
        line = evaluation.along_lines(self._evaluator, first, second, points)
        corners = {name: np.stack([first[name], middle[name], second[name]], 1) for name in first}
        shares = curves.shares(points)
        count = len(next(iter(first.values())))
        curve = evaluation.combined(self._evaluator, corners, np.broadcast_to(shares, (count, *shares.shape)))
        return Joined(line.loss, curve.loss)


def _table_of(zoo: Zoo) -> Symmetry | None:
    """The zoo's table of symmetries, or its architecture's; None where there is none."""
    if zoo.symmetry is not None:
        return zoo.symmetry
    return archs.symmetry(zoo.arch.forward) if archs.known(zoo.arch.forward) else None


def _rank_correlation(one: Values, other: Values) -> float:
    """Spearman's correlation; NaN where there are fewer than three, or all are equal."""
    if len(one) < 3 or not one.std() or not other.std():
        return float("nan")
    # Spearman's correlation is Pearson's of the ranks, which argsort of argsort are
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _largest(values: Values) -> float | None:
    """The largest of some figures; None where there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None


def _figures_table(found: LandscapeStudy) -> Table:
    table = columns("figure", "mean", "median", "least", "most", "error, at most")
    for name, values, errors in (
        ("loss", found.losses, np.empty(0)),
        ("trace of the Hessian", found.traces, found.trace_errors),
        ("largest eigenvalue", found.tops, found.top_errors),
    ):
        spread = Spread.of(values)
        assert spread is not None  # of one finite member at least
        error = _largest(errors)
        said = "exact" if error is None and name != "loss" else "" if error is None else f"{error:.2g}"
        shown = (f"{number:,.4g}" for number in (spread.median, spread.least, spread.most))
        table.add_row(name, f"{spread.mean:,.4g} ± {spread.sd:.2g}", *shown, said)
    return table


def _joined_table(found: LandscapeStudy) -> Table:
    table = columns("way", "ends", "line", "curve")
    for way, joined in found.joined.items():
        table.add_row(printable(way), *(mean_and_sd(Spread.of(values), 3) for values in joined.highest))
    return table

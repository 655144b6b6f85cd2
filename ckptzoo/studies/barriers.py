"""How high are the barriers between independently trained networks, as they are and aligned?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import archs, symmetry
from ckptzoo.arguments import NETWORK, Count, Seed, Size, Within, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.checks import import_with_torch
from ckptzoo.derive.draws import base_architecture
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.barriers import Barriers
from ckptzoo.measure.barriers import barriers as barriers_of
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.studies.least_barrier import least_midpoints
from ckptzoo.studies.shared.networks import ALIGNED, RAW, Weights, distances, pairs_at_once, read_networks
from ckptzoo.studies.shared.result import Spread, StudyResult, mean_and_sd
from ckptzoo.studies.shared.selection import own_table, usable_members
from ckptzoo.symmetry import GAUGES, gauge_named
from ckptzoo.text import Progress, counted, counter, printable

BY_ACTIVATIONS = "aligned by activations"
LEAST = "least of all permutations"
"""Ways of joining two networks besides those of all studies; the others are named after gauges and variants."""
LEAST_PAIRS = 8
"""The number of pairs needed for a correlation."""
SIMPLEX_POINTS = 16
"""Points of a simplex besides its centre, uniform on it."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lines:
    """Scores on the lines between P pairs, in one way. ``points`` are (T,) from 0 to 1; ``losses`` and ``accuracies``
    are (P, T); ``distances`` are (P,) between the weights of both networks, for Gaussians the 2-Wasserstein distance.
    """

    points: Values
    losses: Values
    accuracies: Values
    distances: Values

    @property
    def barriers(self) -> Barriers:
        """Barriers of the loss."""
        return barriers_of(self.losses, self.points)

    @property
    def accuracy_barriers(self) -> Barriers:
        """Barriers of the accuracy: its fall below the line between both ends."""
        return barriers_of(-self.accuracies, self.points)

    def to_json(self) -> dict[str, Any]:
        """Spreads over the pairs, and means at every point."""
        barriers, falls = self.barriers, self.accuracy_barriers
        spreads = {
            "barrier": barriers.height,
            "middle": barriers.middle,
            "accuracy": falls.height,
            "distance": self.distances,
        }
        return {
            **{name: _spread(values) for name, values in spreads.items()},
            "losses": _means(self.losses),
            "accuracies": _means(self.accuracies),
        }


@dataclass(frozen=True, eq=False)
class Simplices:
    """Scores on simplices of k networks each.

    ``corners`` are (S, k) losses of the networks; ``centre`` has the (S,) losses of their means, ``points`` the (S,
    ``SIMPLEX_POINTS``) of points drawn uniformly, and ``shares`` the (S, ``SIMPLEX_POINTS``, k) weights of these.
    """

    corners: Values
    centre: Values
    points: Values
    shares: Values

    @property
    def centre_rise(self) -> Values:
        """(S,) of the loss at the centre above the mean of the corners'."""
        return self.centre - self.corners.mean(1)

    @property
    def greatest_rise(self) -> Values:
        """(S,) the largest rise above the plane through the corners, of all points."""
        rises = self.points - np.einsum("spk,sk->sp", self.shares, self.corners)
        return np.maximum(rises.max(1), self.centre_rise)

    def to_json(self) -> dict[str, Any]:
        return {"centre": _spread(self.centre_rise), "greatest": _spread(self.greatest_rise)}


@dataclass(frozen=True, eq=False)
class ZooBarriers(JsonFields, derived=("rank_correlation",)):
    """The barriers within one zoo.

    ``kind`` is the recipe, or the method with what sets its posterior. ``width`` counts the channels of the largest
    group of the symmetry table, and ``widths`` has the different numbers of all groups, in their order. ``usable``
    counts the members that are finite and did not diverge, at their last step. ``pairs`` are ids; the first
    ``least_pairs`` of them have lines in the way ``least of all permutations``. ``simplices`` maps ways, and is empty
    where none were asked for.
    """

    name: str
    kind: str
    width: int
    set: str
    inputs: int
    members: int
    usable: int
    pairs: tuple[tuple[str, str], ...]
    lines: dict[str, Lines]
    simplices: dict[str, Simplices]
    least_pairs: int = 0
    widths: tuple[int, ...] = ()

    @property
    def rank_correlation(self) -> dict[str, float]:
        """Map ways to Spearman's correlation of barrier and distance, where there are ``LEAST_PAIRS`` pairs."""
        by_way: dict[str, float] = {}
        for way, lines in self.lines.items():
            height, distance = lines.barriers.height, lines.distances
            # figures without spread would give 0 / 0
            if len(height) >= LEAST_PAIRS and np.isfinite(height).all() and height.std() and distance.std():
                # Spearman's correlation is Pearson's of the ranks, which argsort of argsort are
                ranks = [np.argsort(np.argsort(values)) for values in (height, distance)]
                by_way[way] = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
        return by_way

    @property
    def said_widths(self) -> str:
        """The numbers of channels as they are printed: ``widths 16, 12``; of many the least and the largest."""
        if len(self.widths) < 2:
            return f"width {self.width:,}"
        some = ", ".join(f"{width:,}" for width in self.widths)
        return f"widths {some if len(self.widths) <= 4 else f'{min(self.widths):,} to {self.width:,}'}"

    def to_json(self) -> Document:
        return {**super().to_json(), "pairs": len(self.pairs)}


@dataclass(frozen=True, eq=False)
class BarrierStudy(StudyResult):
    """Barriers of zoos, drawn as ``barriers.png``, and of several widths as ``widths.png``. ``draws`` is the number of
    draws of a Gaussian for one prediction.
    """

    file: ClassVar[str] = "barriers.json"

    zoos: tuple[ZooBarriers, ...]
    draws: int
    seed: int

    def _lines(self) -> Iterator[RenderableType]:
        for zoo in self.zoos:
            yield facts(self._facts(zoo))
            yield ""
            yield "barriers of the loss in nats, and of the accuracy in points of a hundred"
            yield _lines_table(zoo)
            if zoo.simplices:
                yield ""
                yield "simplices: rises of the loss above the plane through the corners, in nats"
                yield _simplices_table(zoo)
            for way, value in zoo.rank_correlation.items():
                yield f"{way}: rank correlation of barrier and distance {value:.2f}"
            yield ""
        yield (
            "A barrier is the largest rise of the loss on the line between both networks above the line between their "
            "losses (arXiv 2110.06296)."
        )

    def _facts(self, zoo: ZooBarriers) -> list[tuple[str, str]]:
        left_out = zoo.members - zoo.usable
        unusable = f"; {left_out:,} not finite or diverged and left out" if left_out else ""
        rows = [
            ("zoo", f"{zoo.name}: {counted(zoo.usable, 'member')}{unusable}; {zoo.kind}, {zoo.said_widths}"),
            ("pairs", f"{len(zoo.pairs):,}, on {zoo.set}: {counted(zoo.inputs, 'input')}"),
        ]
        if self.draws > 1 and "Gaussian" in zoo.kind:
            rows.append(("likelihoods", f"means over {counted(self.draws, 'draw')}, the same noise at every point"))
        return rows


@checked
def barriers(
    zoos: Sequence[tuple[Zoo, Labelled]],
    *,
    pairs: Count = 16,
    points: Annotated[int, Within(3, 2**31 - 1)] = 11,
    gauges: Sequence[GaugeName] = ("unit-norm", "min-mass"),
    variants: Sequence[str] = (),
    draws: Count = 16,
    simplex: Size = 0,
    least: Size = 0,
    recorded: Size = 0,
    module: NETWORK | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> BarrierStudy:
    """Measure losses on the lines between members: as trained, aligned, and aligned in gauges.

    After arXiv 2310.10171, figures 1 to 4, and arXiv 2209.04836, section 5. In each pair the second network is aligned
    with the first by weights (``ckptzoo.symmetry.align``); Gaussians by the 2-Wasserstein distance, and on the line of
    means and deviations, which is the geodesic.

    Parameters
    ----------
    zoos
        each with what its networks are scored on; members count at their last step, the usable ones.
    pairs
        of different members, at random: disjoint ones where there are enough members.
    points
        on a line, both ends counted.
    gauges
        names in ``ckptzoo.symmetry.GAUGES``: pairs are aligned and joined there; those that do nothing to a network are
        left out.
    variants
        names of stored variants, such as ``aligned-best``, whose weights are joined too.
    draws
        of a Gaussian, for a prediction.
    simplex
        members of a simplex; 0 for none. There are as many simplices as disjoint groups, at most ``pairs``.
    least
        for so many pairs of OptuNets also the permutation with the least loss halfway, of all.
    recorded
        also align networks by their activations on the first ``recorded`` inputs; 0 for not. Gaussians are aligned by
        weights alone.
    module
        the network as a torch module, for the zoos whose forward function is not in ``ckptzoo.archs``, or for all where
        there are no such; these are of one architecture.
    seed
        of pairs, draws and points.
    progress
        called with the pairs and ways done, and all of them.

    Raises
    ------
    UnknownNameError
        No such gauge or variant.
    ZooError
        There are fewer than two usable members, ``least`` was asked for other networks than OptuNet, or the module
        would be that of several architectures.
    SymmetryError
        No table of symmetries is known.

    Notes
    -----
    Time: that of T evaluations a pair and way, and of the alignment. Memory: pairs of 64 MiB with copies.
    Tested in tests/studies/test_barriers.py.

    Examples
    --------
    On images of handwritten digits, scaled as in the networks' training:

    >>> from ckptzoo.derive.labelled import Labelled
    >>> from ckptzoo.image_sets import find
    >>> from ckptzoo.studies.barriers import barriers
    >>> digits = find("digits/test-100")
    >>> labelled = Labelled("digits/test-100", digits.normalized((0.1307,), (0.3081,)), digits.labels)
    >>> found = barriers([(ckptzoo.open("zoos/few"), labelled)], pairs=4, points=5, gauges=["unit-norm"])
    >>> list(found.zoos[0].lines)
    ['as trained', 'aligned', 'aligned, unit-norm']
    >>> round(float(found.zoos[0].lines["as trained"].barriers.height.mean()), 1)
    1.2
    """
    for gauge in gauges:
        gauge_named(gauge, "barriers")
    if simplex == 1:  # without simplices there are 0 members in one
        raise ZooError(Problem("barriers", "simplex", "2 or more", "1", "Correct it."))
    own = _zoos_of_module([zoo for zoo, _ in zoos], module)
    plans = [
        _ZooPlan(zoo, labelled, pairs, gauges, variants, simplex, least, recorded, module if is_own else None, seed)
        for (zoo, labelled), is_own in zip(zoos, own, strict=True)
    ]
    advance = counter(sum(plan.steps for plan in plans), progress)
    measured = [plan.measure(np.linspace(0, 1, points), draws, seed, advance) for plan in plans]
    return BarrierStudy(tuple(measured), draws, seed)


def _zoos_of_module(zoos: Sequence[Zoo], module: Any) -> list[bool]:
    """Whether the module computes each zoo's networks: those of unknown forward functions, or all if none is."""
    if module is None:
        return [False] * len(zoos)
    unknown = [not archs.known(zoo.arch.forward) for zoo in zoos]
    own = unknown if any(unknown) else [True] * len(zoos)
    kinds = {zoo.arch.tensors: zoo.name for zoo, is_own in zip(zoos, own, strict=True) if is_own}
    if len(kinds) > 1:
        step = "Name zoos of one of them at a time." if any(unknown) else "Leave it out: ckptzoo.archs has theirs."
        got = f"other tensors in {' than in '.join(list(kinds.values())[:2])}"
        raise ZooError(Problem("barriers", "zoos of the module", "one architecture", got, step))
    return own


class _ZooPlan:
    """The measurements of one zoo; it refuses impossible ones before anything is measured."""

    def __init__(
        self,
        zoo: Zoo,
        labelled: Labelled,
        pairs: int,
        gauges: Sequence[GaugeName],
        variants: Sequence[str],
        simplex: int,
        least: int,
        recorded: int,
        module: Any,
        seed: int,
    ) -> None:
        self.zoo, self.members, self.labelled = usable_members(zoo, max(2, simplex)), len(zoo.last_steps()), labelled
        for variant in variants:
            if variant not in zoo.variants:
                raise UnknownNameError(zoo.name, "variant", variant, zoo.variants)
        self.table = own_table(zoo)
        resized = any(group.resizes for group in self.table.groups)
        # gauges of scales alone repeat the weights as trained where no group is resized
        self.gauges: list[GaugeName] = [
            gauge for gauge in gauges if resized or "permutations" in GAUGES[gauge].collapses
        ]
        self.variants, self.simplex = list(variants), simplex
        self.is_gaussian = archs.base_of(zoo.arch.forward) is not None
        self.arch = base_architecture(zoo) if self.is_gaussian else zoo.arch
        if least and self.arch.forward != "optunet":
            step = "Leave it out: others have too many permutations."
            raise ZooError(Problem(zoo.name, "least barrier", "OptuNets", str(self.arch.forward), step))
        self.module = module
        self.evaluator = import_with_torch("evaluation").Evaluator(self.arch, labelled, module=module)
        # the activations of a Gaussian depend on the draw: it is aligned by its means and deviations alone
        self.recorded = 0 if self.is_gaussian else recorded
        # one generator each for pairs, simplices and points, so that the number of one changes none of the others
        self.pairs = _pairs(len(self.zoo), pairs, np.random.default_rng([seed, 0]))
        self.least = min(least, len(self.pairs))
        groups = min(pairs, len(self.zoo) // simplex) if simplex else 0
        order = np.random.default_rng([seed, 1]).permutation(len(self.zoo))
        self.groups = order[: groups * simplex].reshape(groups, simplex) if groups else order[:0].reshape(0, 1)

    @property
    def steps(self) -> int:
        """The number of pairs and simplices, over all ways, and of searches."""
        ways = 2 + bool(self.recorded) + len(self.gauges) + len(self.variants)
        return len(self.pairs) * ways + 2 * len(self.groups) + self.least

    def measure(self, points: Values, draws: int, seed: int, advance: Any) -> ZooBarriers:
        evaluation = import_with_torch("evaluation")
        given, evaluator = self.labelled, self.evaluator
        # one noise for all networks and points: losses differ by means and deviations and not by the draw
        noise = evaluation.standard_noise(self.arch, draws, seed) if self.is_gaussian else None
        parts: dict[str, list[Lines]] = {}

        def add(way: str, first: Weights, second: Weights) -> None:
            scores = evaluation.along_lines(evaluator, first, second, points, noise)
            lines = Lines(points, scores.loss, scores.accuracy, distances(self.zoo.arch, first, second))
            parts.setdefault(way, []).append(lines)
            advance(len(scores.loss))

        size = pairs_at_once(self.zoo.arch)
        for start in range(0, len(self.pairs), size):
            some = self.pairs[start : start + size]
            first, second = read_networks(self.zoo, some[:, 0]), read_networks(self.zoo, some[:, 1])
            add(RAW, first, second)
            aligned = symmetry.align(second, first, self.table)
            add(ALIGNED, first, aligned.weights)
            if self.recorded:
                add(BY_ACTIVATIONS, first, self._by_activations(first, second))
            for gauge in self.gauges:
                aligned = symmetry.align(second, first, self.table, gauge=gauge)
                # counters of BatchNorm are in no gauge
                add(f"{ALIGNED}, {gauge}", {**first, **aligned.reference}, aligned.weights)
            for variant in self.variants:
                add(variant, read_networks(self.zoo, some[:, 0], variant), read_networks(self.zoo, some[:, 1], variant))
            # the first pairs of the study are searched: those of them that are in this batch
            for pair in range(min(self.least, start + len(some)) - start):
                one, other = (
                    {name: array[pair : pair + 1] for name, array in item.items()} for item in (first, second)
                )
                element = least_midpoints(evaluator, one, other, self.table, given.targets)
                add(LEAST, one, symmetry.apply(element, other, self.table))
        simplices = {way: self._simplices(evaluation, noise, way, seed, advance) for way in (RAW, ALIGNED)}
        ids = self.zoo.ids
        return ZooBarriers(
            name=self.zoo.name,
            kind=self._kind(),
            width=max((group.n for group in self.table.groups), default=0),
            widths=tuple(dict.fromkeys(group.n for group in self.table.groups)),
            set=given.set,
            inputs=len(given.inputs),
            members=self.members,
            usable=len(self.zoo),
            pairs=tuple((ids[one], ids[other]) for one, other in self.pairs),
            lines={way: _joined(points, lines) for way, lines in parts.items()},
            simplices=simplices if len(self.groups) else {},
            least_pairs=self.least,
        )

    def _by_activations(self, first: Weights, second: Weights) -> dict[str, NDArray[Any]]:
        """The second networks of pairs, each aligned with the first by activations on the inputs."""
        recording, inputs = import_with_torch("activations"), self.labelled.inputs[: self.recorded]
        aligned_weights: list[dict[str, NDArray[Any]]] = []
        for pair in range(len(next(iter(first.values())))):
            one, other = ({name: array[[pair]] for name, array in item.items()} for item in (first, second))
            reference = {name: array[0] for name, array in one.items()}
            products = recording.ActivationProducts(self.arch, self.table, reference, inputs, self.module).products(
                other
            )
            aligned = symmetry.align(other, reference, self.table, method="activations", activations=products)
            aligned_weights.append(aligned.weights)
        return {name: np.concatenate([weights[name] for weights in aligned_weights]) for name in first}

    def _simplices(self, evaluation: Any, noise: Any, way: str, seed: int, advance: Any) -> Simplices:
        rng, k = np.random.default_rng([seed, 2]), self.groups.shape[1]
        evaluated: list[tuple[Values, Values]] = []
        for group in self.groups:
            weights = read_networks(self.zoo, group)
            if way == ALIGNED:
                element = symmetry.barycentre(lambda weights=weights: [weights], self.table).element
                weights = symmetry.apply(element, weights, self.table)
            # Dirichlet's distribution with parameters of 1 is the uniform one on the simplex
            shares = np.concatenate([np.eye(k), np.full((1, k), 1 / k), rng.dirichlet(np.ones(k), SIMPLEX_POINTS)])
            corners = {name: array[None] for name, array in weights.items()}
            evaluated.append(
                (evaluation.combined(self.evaluator, corners, shares[None], noise).loss[0], shares[k + 1 :])
            )
            advance()
        losses = np.array([loss for loss, _ in evaluated]).reshape(len(evaluated), k + 1 + SIMPLEX_POINTS)
        shares = np.array([share for _, share in evaluated]).reshape(len(evaluated), SIMPLEX_POINTS, k)
        return Simplices(losses[:, :k], losses[:, k], losses[:, k + 1 :], shares)

    def _kind(self) -> str:
        rows = self.zoo.metadata.select(["recipe", "method", "extra"]).slice(0, 1).to_pylist()
        settings = (parse_extra(rows[0]["extra"]) or {}).get("settings") or {}
        said = [f"{name} {settings[name]:g}" for name in ("prior", "temperature") if name in settings]
        origin = rows[0]["method"] or rows[0]["recipe"] or "networks"
        return ", ".join([f"Gaussians ({origin})" if self.is_gaussian else origin, *said])


def _pairs(members: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(P, 2) different members: disjoint pairs where there are enough, else different ones; at most all."""
    # pairs that share no member are independent of one another
    if 2 * count <= members:
        return rng.permutation(members)[: 2 * count].reshape(count, 2)
    # rejection, because the list of all pairs of many members is long
    count, seen = min(count, members * (members - 1) // 2), dict[tuple[int, int], None]()
    while len(seen) < count:
        first, second = sorted(rng.choice(members, 2, replace=False).tolist())
        seen[first, second] = None
    return np.array(list(seen), np.int64)


def _joined(points: Values, parts: Sequence[Lines]) -> Lines:
    names = ("losses", "accuracies", "distances")
    return Lines(points, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _spread(values: Values) -> dict[str, Any] | None:
    spread = Spread.of(values)
    return None if spread is None else spread.to_json()


def _means(values: Values) -> list[float | None]:
    means = values.mean(0)
    # JSON has neither infinities nor NaN (RFC 8259, section 6)
    return [float(value) if np.isfinite(value) else None for value in means]


def _lines_table(zoo: ZooBarriers) -> Table:
    table = columns("way", "barrier", "median", "halfway", "accuracy", "distance")
    for way, lines in zoo.lines.items():
        barriers, falls = lines.barriers, lines.accuracy_barriers
        height = Spread.of(barriers.height)
        name = f"{way} ({counted(zoo.least_pairs, 'pair')})" if way == LEAST else way
        table.add_row(
            printable(name),
            mean_and_sd(height, 3),
            "-" if height is None else f"{height.median:.3f}",
            mean_and_sd(Spread.of(barriers.middle), 3),
            mean_and_sd(Spread.of(100 * falls.height), 1),
            mean_and_sd(Spread.of(lines.distances), 2),
        )
    return table


def _simplices_table(zoo: ZooBarriers) -> Table:
    table = columns("way", "simplices", "centre", "greatest")
    for way, item in zoo.simplices.items():
        size = f"{len(item.centre):,} of {item.corners.shape[1]}"
        rises = [mean_and_sd(Spread.of(values), 3) for values in (item.centre_rise, item.greatest_rise)]
        table.add_row(printable(way), size, *rises)
    return table

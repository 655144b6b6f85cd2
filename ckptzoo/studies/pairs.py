"""How far apart are all pairs of members modulo permutations, and are the nearest connected?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import symmetry
from ckptzoo.arguments import NETWORK, Count, Seed, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import require
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import Document, json_value
from ckptzoo.schema.layout import GaugeName
from ckptzoo.studies.shared.networks import evaluator_of, line_barriers, pairs_at_once
from ckptzoo.studies.shared.result import Spread, StudyResult, mean_and_sd
from ckptzoo.studies.shared.selection import evenly, own_table, parameter_names, usable_members
from ckptzoo.symmetry import gauge_named
from ckptzoo.text import Progress, counted, counter, printable

MAX_MEMBERS = 4096
"""The maximum number of members; more are thinned out evenly, as the distances of all pairs take 8 bytes each."""
BINS = 120
"""The number of bins of the histograms of distances."""
POINTS = 11
"""The number of points of a line, with its ends."""
SHOWN = 10
"""The number of nearest pairs that are printed."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PairStudy(StudyResult, without=("barrier_distances",)):
    """Distances of all pairs, and barriers of the nearest and of random ones; drawn as ``pairs.png``.

    The study has ``members`` of ``usable`` ones. ``sampled`` and ``least`` are (BINS,) numbers of pairs by their
    distance as they are, and modulo permutations, between the (BINS + 1,) ``edges``; ``distances`` are the spreads of
    both. ``nearest`` has ids of both members and the distance, in ascending order; ``neighbours`` are (members,)
    distances of each to its nearest one; ``components`` are sizes of the connected parts that the nearest pairs make,
    the largest first. ``barriers`` maps ``nearest`` and ``random`` to the barriers of these pairs, in nats, and
    ``barrier_distances`` to their distances; there are no random ones where the nearest are all.
    """

    file: ClassVar[str] = "pairs.json"

    name: str
    gauge: str | None
    members: int
    usable: int
    edges: Values
    sampled: NDArray[np.int64]
    least: NDArray[np.int64]
    distances: tuple[Spread, Spread]
    nearest: tuple[tuple[str, str, float], ...]
    neighbours: Values
    components: tuple[int, ...]
    set: str | None
    barriers: dict[str, Values]
    barrier_distances: dict[str, Values]
    seed: int

    def to_json(self) -> Document:
        sampled, least = self.distances
        return {
            **super().to_json(),
            "distances": {"sampled": sampled.to_json(), "least": least.to_json()},
            "neighbours": json_value(Spread.of(self.neighbours)),
            "barriers": {name: json_value(Spread.of(values)) for name, values in self.barriers.items()},
        }

    def _lines(self) -> Iterator[RenderableType]:
        sample = f" of {self.usable:,}, evenly spaced" if self.members < self.usable else ""
        where = "as trained" if self.gauge is None else f"in {self.gauge}"
        yield facts(
            [
                ("zoo", f"{self.name}: {counted(self.members, 'member')}{sample}, {where}"),
                ("pairs", f"{self.members * (self.members - 1) // 2:,}"),
            ]
        )
        yield ""
        yield self._distances_table()
        yield ""
        nearest = f"{len(self.nearest):,} nearest pairs link" if len(self.nearest) > 1 else "nearest pair links"
        linked, most = sum(self.components), max(self.components, default=0)
        yield (
            f"The {nearest} {counted(linked, 'member')} in "
            f"{counted(len(self.components), 'group')}, the largest of {most:,}."
        )
        yield self._nearest_table()
        if self.barriers:
            yield ""
            yield f"barriers of aligned pairs on {self.set}, in nats"
            yield self._barriers_table()

    def _distances_table(self) -> Table:
        table = columns("distance", "mean ± sd", "least", "median", "most")
        neighbours = Spread.of(self.neighbours)
        names = ("as they are", "modulo permutations", "to the nearest member")
        for name, spread in zip(names, (*self.distances, neighbours), strict=True):
            if spread is not None:
                ends = [f"{value:.3f}" for value in (spread.least, spread.median, spread.most)]
                table.add_row(name, mean_and_sd(spread, 3), *ends)
        return table

    def _nearest_table(self) -> Table:
        table = columns("nearest", "and", "distance")
        for first, second, distance in self.nearest[:SHOWN]:
            table.add_row(printable(first), printable(second), f"{distance:.3f}")
        return table

    def _barriers_table(self) -> Table:
        table = columns("pairs", "number", "mean ± sd", "median", "most")
        for name, values in self.barriers.items():
            spread = Spread.of(values)
            if spread is not None:
                cells = mean_and_sd(spread, 3), f"{spread.median:.3f}", f"{spread.most:.3f}"
                table.add_row(name, f"{spread.count:,}", *cells)
        return table


@checked
def pairs(
    zoo: Zoo,
    labelled: Labelled | None = None,
    *,
    gauge: GaugeName | None = None,
    nearest: Count = 100,
    module: NETWORK | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> PairStudy:
    """Measure distances of all pairs of members modulo permutations, and barriers of the nearest and of random ones.

    Distances are exact: ``ckptzoo.symmetry.pair_distances``.

    Parameters
    ----------
    zoo
        whose usable members count at their last step.
    labelled
        inputs for barriers; None for distances alone.
    gauge
        a name in ``ckptzoo.symmetry.GAUGES``, in which distances and lines are; by default as trained.
    nearest
        pairs whose barriers are measured, beside as many random ones, unless the nearest are all pairs.
    module
        the network as a torch module, for architectures that are not in ``ckptzoo.archs``.
    seed
        of the random pairs.
    progress
        called with the pairs that were joined by lines, and all of them.

    Raises
    ------
    UnknownNameError
        No such gauge.
    ZooError
        There are fewer than three usable members, or barriers of Gaussians were asked for.
    SymmetryError
        No table is known, or distances would not be exact, as of networks with two hidden layers.

    Notes
    -----
    At most ``MAX_MEMBERS`` members, whose weights are in memory. 2,048 OptuNets: 3 s, and 20 s for 200 barriers on
    10,000 images, on two cores. Tested in tests/studies/test_pairs.py.

    Examples
    --------
    >>> from ckptzoo.studies.pairs import pairs
    >>> found = pairs(ckptzoo.open("cards/mnist-optunet").where("seed < 128"))
    >>> [round(spread.mean, 1) for spread in found.distances]
    [18.3, 15.6]
    """
    if gauge is not None:
        gauge_named(gauge, "pairs")
    evaluator = None if labelled is None else evaluator_of(zoo, labelled, module)
    usable = usable_members(zoo, 3)
    chosen, table = usable.take(evenly(len(usable), MAX_MEMBERS)), own_table(usable)
    weights: dict[str, NDArray[Any]] = {name: np.asarray(chosen[name][:]) for name in chosen.arch.names}
    if gauge is not None:
        weights = symmetry.canonicalize(weights, table, gauge=gauge).weights
    least = symmetry.pair_distances(weights, table)
    rows, columns_ = np.triu_indices(len(chosen), 1)
    between, sampled = least[rows, columns_], _distances(weights, chosen)[rows, columns_]
    # stable: of equal distances the first pairs are taken on every machine
    order = np.argsort(between, kind="stable")[:nearest]
    near = np.stack([rows[order], columns_[order]], 1)
    top = float(max(between.max(), sampled.max()))
    # members that are all equal have no range
    edges = np.linspace(0, top if top > 0 else 1, BINS + 1)
    some = {"nearest": near}
    # random pairs differ from the nearest only where these are not all
    if len(order) < len(rows):
        others = np.random.default_rng([seed, 0]).choice(len(rows), len(order), replace=False)
        some["random"] = np.stack([rows[others], columns_[others]], 1)
    heights: dict[str, Values] = {}
    if evaluator is not None:
        size = pairs_at_once(chosen.arch)
        advance, points = counter(sum(map(len, some.values())), progress), np.linspace(0, 1, POINTS)
        for name, places in some.items():
            measured: list[Values] = []
            for start in range(0, len(places), size):
                part = places[start : start + size]
                first, second = ({key: array[part[:, side]] for key, array in weights.items()} for side in (0, 1))
                aligned = symmetry.align(second, first, table).weights
                measured.append(line_barriers(evaluator, first, aligned, points))
                advance(len(part))
            heights[name] = np.concatenate(measured)
    ids = chosen.ids
    all_sampled, all_least = Spread.of(sampled), Spread.of(between)
    assert all_sampled is not None and all_least is not None
    return PairStudy(
        name=zoo.name,
        gauge=gauge,
        members=len(chosen),
        usable=len(usable),
        edges=edges,
        sampled=np.histogram(sampled, edges)[0],
        least=np.histogram(between, edges)[0],
        distances=(all_sampled, all_least),
        nearest=tuple((ids[one], ids[other], float(least[one, other])) for one, other in near),
        # no member is its own neighbour
        neighbours=np.where(np.eye(len(chosen), dtype=bool), np.inf, least).min(1),
        components=_components(near, len(chosen)),
        set=None if labelled is None else labelled.set,
        barriers=heights,
        barrier_distances={name: least[places[:, 0], places[:, 1]] for name, places in some.items() if name in heights},
        seed=seed,
    )


def _distances(weights: dict[str, NDArray[Any]], zoo: Zoo) -> Values:
    """(K, K) distances of the weights as they are, over the tensors that ``pair_distances`` compares."""
    flat = np.concatenate(
        [weights[name].reshape(len(zoo), -1).astype(np.float64) for name in parameter_names(zoo.arch)], axis=1
    )
    # |a - b|^2 = |a|^2 + |b|^2 - 2 a b needs no (K, K, d) differences; rounding can bring it below 0
    squares = np.square(flat).sum(1)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * flat @ flat.T, 0))


def _components(pairs: NDArray[np.int64], members: int) -> tuple[int, ...]:
    """Sizes of the connected parts of a graph, the largest first; of two members and more."""
    csgraph = require("scipy.sparse.csgraph", "stats", package="scipy")
    graph = np.zeros((members, members), bool)
    graph[pairs[:, 0], pairs[:, 1]] = True
    sizes = np.bincount(csgraph.connected_components(graph, directed=False)[1])
    return tuple(np.sort(sizes[sizes > 1])[::-1].tolist())

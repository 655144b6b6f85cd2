"""Are generated checkpoints new, or copies of members of a zoo?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import archs, symmetry
from ckptzoo.arguments import Seed, Within, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.near_copies import LEAST_MEMBERS, origins
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import Problem, SymmetryError, ZooError
from ckptzoo.format.table import filled_with
from ckptzoo.loader.flags import finite_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.permutation_tests import holm
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.shared.networks import pairs_at_once
from ckptzoo.studies.shared.result import Spread, StudyResult, mean_and_sd
from ckptzoo.studies.shared.selection import evenly
from ckptzoo.symmetry.alignment.align import comparable
from ckptzoo.symmetry.alignment.pairs import aligned_distances, alone_groups, distances_between
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.identity.index import Index
from ckptzoo.symmetry.identity.invariants import invariants
from ckptzoo.text import Progress, counted, counter, printable

GAUGE = "unit-norm"
"""The gauge in which distances are, so that scales do not count."""
LEVEL = 0.01
"""The level of the verdict, over all generated checkpoints together."""
CANDIDATES = 4
"""Members that each checkpoint is aligned with: of all the nearest, where distances are exact, else of sketches."""
MAX_PAIRS, MAX_BYTES = 2**25, 2**29
"""Pairs of a generated checkpoint and a member, and bytes of members, up to which all pairs are measured."""
NOISES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Noise of copies beside which distances are shown, as shares of the standard deviation of each tensor."""
NOISY = 64
"""The number of members of which noisy copies are made."""
TAIL, MIN_TAIL = 0.1, 8
"""The share of the distances between members, and the least number of them, from which smaller ones are extrapolated.
"""
COPIES = 0.1
"""Members nearer to another than this share of the median are copies themselves, and say nothing of independent ones.
"""
SHOWN = 10
"""The number of nearest checkpoints that are printed."""

Values = NDArray[np.float64]
Rows = NDArray[np.int64]
Weights = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Nearest(JsonFields):
    """A generated checkpoint and the member that is nearest to it.

    ``p`` is the share of members that are as near to another one, ``tail`` the p-value that the distances between
    members extrapolate to, adjusted by Holm, and ``noise`` the noise of a copy at this distance. ``verdict`` is
    ``copy`` where both are one network up to rounding, ``near copy`` where ``tail`` is at most ``LEVEL``, else ``new``.
    """

    id: str
    member: str
    distance: float
    p: float
    tail: float
    noise: float
    verdict: str


@dataclass(frozen=True, eq=False)
class Novelty(StudyResult, derived=("copies", "near")):
    """Distances of generated checkpoints to the nearest members; drawn as ``novelty.png``.

    ``exact`` says whether distances are least over all permutations and signs, or upper bounds. ``generated`` has the
    checkpoints in their order; ``skipped`` are ids of those that are not finite. ``between`` are the (M,) distances of
    some members, one of an origin, to the nearest of another origin; ``noisy`` maps noise to distances of copies.
    ``exponent`` is that of the smallest distances between members, with which they are extrapolated.
    """

    file: ClassVar[str] = "novelty.json"

    name: str
    zoo: str
    members: int
    exact: bool
    gauge: str | None
    generated: tuple[Nearest, ...]
    skipped: tuple[str, ...]
    between: Values
    noisy: dict[float, Values]
    exponent: float
    seed: int

    @property
    def copies(self) -> int:
        """How many generated checkpoints are copies, or nearly."""
        return sum(item.verdict != "new" for item in self.generated)

    @property
    def near(self) -> int:
        """How many are nearer to a member than all but a share of ``LEVEL`` of the members are to others."""
        return sum(item.p <= LEVEL for item in self.generated)

    @property
    def distance(self) -> str:
        """The name of what was measured: a distance, or an upper bound of one."""
        return "distance" if self.exact else "upper bound of the distance"

    def to_json(self) -> Document:
        noisy = {f"{noise:g}": Spread.of(values) for noise, values in self.noisy.items()}
        return {**super().to_json(), "noisy": {name: item and item.to_json() for name, item in noisy.items()}}

    def _lines(self) -> Iterator[RenderableType]:
        where = "as trained" if self.gauge is None else f"in {self.gauge}"
        kind = "exact: least over all permutations" if self.exact else "upper bounds: of those permutations found"
        yield facts(
            [
                ("generated", f"{self.name}: {counted(len(self.generated), 'checkpoint')}"),
                ("zoo", f"{self.zoo}: {counted(self.members, 'checkpoint')}"),
                ("distances", f"{where}, {kind}"),
            ]
        )
        yield ""
        yield self._distances_table()
        yield ""
        verdicts = [item.verdict for item in self.generated]
        said = ", ".join(f"{verdicts.count(name):,} {words}" for name, words in _SAID.items() if name in verdicts)
        yield f"{said}, of {len(verdicts):,}." if said else "Nothing was compared."
        expected = f"about {LEVEL * len(verdicts):.3g} to expect of independent ones"
        yield f"{self.near:,} are nearer than {100 * (1 - LEVEL):g} % of the members are to others, {expected}."
        if self.skipped:
            yield f"{len(self.skipped):,} that are not finite were left out."
        yield self._nearest_table()

    def _distances_table(self) -> Table:
        table = columns(f"{self.distance} to the nearest member", "number", "mean ± sd", "least", "median", "most")
        named = {
            "generated": [item.distance for item in self.generated],
            "members, of another origin": self.between,
            **{f"copies with noise {noise:g}": values for noise, values in self.noisy.items()},
        }
        for name, values in named.items():
            if (spread := Spread.of(values)) is not None:
                ends = [f"{value:.3g}" for value in (spread.least, spread.median, spread.most)]
                table.add_row(name, f"{spread.count:,}", mean_and_sd(spread, 3), *ends)
        return table

    def _nearest_table(self) -> Table:
        table = columns("nearest", "to", self.distance, "p", "extrapolated p", "as noise", "verdict")
        for item in sorted(self.generated, key=lambda item: (item.distance, item.id))[:SHOWN]:
            figures = (f"{value:.2g}" for value in (item.distance, item.p, item.tail, item.noise))
            table.add_row(printable(item.id), printable(item.member), *figures, item.verdict)
        return table


_SAID = {"copy": "copies", "near copy": "near copies", "new": "new"}


@checked
def novelty(
    generated: Zoo,
    zoo: Zoo,
    *,
    members: Annotated[int, Within(LEAST_MEMBERS, 2**20)] = 512,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Novelty:
    r"""Measure how far generated checkpoints are from the nearest members of a zoo, modulo the zoo's symmetries.

    Generators of weights replicate and interpolate what they were trained on (arXiv 2506.07998). Beside the distances
    are those of members to the nearest of another origin, and those of copies with noise. The p-value is the share of
    members that are as near to another one; what is nearer than any has an extrapolated one,

    .. math:: P(d) = \frac{r}{M} \left( \frac{d}{x_{r+1}} \right)^k

    from the r smallest of the M distances x between members, with the lower end of the 95 % interval of Hill's
    estimator of k. A checkpoint whose extrapolated p-value is at most ``LEVEL``, adjusted by Holm, is a near copy, and
    one that agrees with its nearest member up to rounding, as in ``ckptzoo.derive.dedupe``, a copy.

    Parameters
    ----------
    generated
        checkpoints of the zoo's architecture; they may be stored in another precision.
    zoo
        of ``LEAST_MEMBERS`` independent members or more, as a rule what the generator was trained on.
    members
        the greatest number of members whose distances to others are measured.
    seed
        of the noise.
    progress
        called with the checkpoints compared, and all of them.

    Raises
    ------
    ZooError
        The tensors are not the zoo's, the checkpoints are Gaussians, or there are too few members that are no copies
        of one another.
    SymmetryError
        No symmetry table is known.
    MissingExtraError
        scipy is not installed, and a group has more than 5 channels.

    Notes
    -----
    Distances are exact where ``ckptzoo.symmetry.align`` is, as for OptuNet and perceptrons with one hidden layer, and
    there are up to ``MAX_PAIRS`` pairs: 5 µs each. Elsewhere each checkpoint is aligned with the ``CANDIDATES`` members
    whose sketches are nearest, and distances are upper bounds. Tested in tests/studies/test_novelty.py.

    Examples
    --------
    >>> from ckptzoo.studies.novelty import novelty
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> found = novelty(zoo.where("seed < 4"), zoo.where("seed < 300"), members=100)
    >>> found.copies, found.exact
    (4, True)
    """
    table = _check(generated, zoo)
    # in the order of ids, so that nothing depends on the zoo's own
    pool, asked = zoo.take(finite_networks(zoo)).sorted("id"), generated.take(finite_networks(generated))
    comparison = _Comparison(pool, table, asked)
    chosen = comparison.independent(members)
    noisy_rows = chosen[evenly(len(chosen), NOISY)]
    advance = counter(len(asked) + len(chosen) + len(NOISES) * len(noisy_rows), progress)
    nearest, between = comparison.nearest(pool, chosen, advance, apart=True)
    noisy = {noise: comparison.noisy(noisy_rows, noise, seed, advance) for noise in NOISES}
    # left out before the median is taken, which is theirs where half of the members are there twice; rounding is less
    # than the greatest noise
    twins = comparison.same(pool.take(chosen), nearest, between <= noisy[NOISES[-1]].max())
    independent = _independent(between[~twins], zoo.name)
    rows, distances = comparison.nearest(asked, np.arange(len(asked)), advance)
    same = comparison.same(asked, rows, distances <= COPIES * np.median(independent))
    tail, exponent = _extrapolated(distances, independent)
    adjusted = holm(tail)
    levels = np.array([float(np.median(values)) for values in noisy.values()])
    ids, names = asked.ids, pool.ids
    return Novelty(
        name=generated.name,
        zoo=zoo.name,
        members=len(pool),
        exact=comparison.exact,
        gauge=comparison.gauge,
        generated=tuple(
            Nearest(
                id=ids[at],
                member=names[rows[at]],
                distance=float(distances[at]),
                p=float((1 + (independent <= distances[at]).sum()) / (1 + len(independent))),
                tail=float(adjusted[at]),
                noise=_noise(distances[at], levels),
                verdict="copy" if same[at] else "near copy" if adjusted[at] <= LEVEL else "new",
            )
            for at in range(len(asked))
        ),
        skipped=tuple(sorted(set(generated.ids) - set(ids))),
        between=between,
        noisy=noisy,
        exponent=exponent,
        seed=seed,
    )


def _check(generated: Zoo, zoo: Zoo) -> Symmetry:
    """Return the zoo's symmetry table; refuse other tensors and Gaussians."""
    for one in (generated, zoo):
        if (base := archs.base_of(one.arch.forward)) is not None:
            step = "Draw networks from them with ckptzoo.derive.draws, and compare those."
            raise ZooError(Problem(one.name, "checkpoints", f"networks {base}", "Gaussians over their weights", step))
    shapes, expected = ({tensor.name: tensor.shape for tensor in one.arch.tensors} for one in (generated, zoo))
    if shapes != expected:
        other = next(name for name in sorted({**shapes, **expected}) if shapes.get(name) != expected.get(name))
        wanted, got = (str(some.get(other, "none")) for some in (expected, shapes))
        step = "Compare with a zoo of the generated network."
        raise ZooError(Problem(generated.name, f"tensor {other!r}", f"{wanted}, as in {zoo.name}", got, step))
    return symmetry_of(zoo.contents)


def _independent(between: Values, location: str) -> Values:
    """Return those of some distances between members that are not of near copies; ZooError where they are too few."""
    found = between[between > COPIES * np.median(between)] if len(between) else between
    if len(found) < LEAST_MEMBERS:
        step = "Compare with a zoo that has each network once; ckptzoo dedupe finds copies."
        what, expected = "members whose nearest is no copy of them", f"{LEAST_MEMBERS} or more"
        raise ZooError(Problem(location, what, expected, str(len(found)), step))
    return found


class _Comparison:
    """Distances of checkpoints to the nearest members of a zoo, which are in the order of their ids."""

    def __init__(self, pool: Zoo, table: Symmetry, asked: Zoo) -> None:
        self._pool, self._table, self._names = pool, table, pool.arch.names
        self._origins = origins(pool)
        # matrices are found by alignment itself, in balanced blocks
        self.gauge: GaugeName | None = None if table.has_matrices else GAUGE
        self.exact = len(asked) * len(pool) <= MAX_PAIRS and len(pool) * pool.arch.nbytes <= MAX_BYTES
        some = self._raw(pool, np.zeros(min(1, len(pool)), np.int64))
        try:
            alone_groups(table, comparable(some, table))
        except SymmetryError:
            self.exact = False
        self._index = Index(table, (zoo[name].dtype for zoo in (pool, asked) for name in self._names))
        every = np.arange(len(pool))
        self._all = self._in_gauge(self._raw(pool, every), np.float32) if self.exact else {}
        self._sketches = np.empty((0, self._index.features)) if self.exact else self._sketched(pool, every)

    def independent(self, limit: int) -> Rows:
        """Return the last checkpoint of each origin, of at most ``limit`` origins.

        Raises ``ZooError`` where there are too few.
        """
        _, label = np.unique(self._origins, return_inverse=True)
        steps, draws = (filled_with(self._pool.column(name), -1) for name in ("step", "draw"))
        # lexsort sorts by its last key first
        order = np.lexsort((np.arange(len(label)), draws, steps, label.reshape(-1)))
        ends = np.flatnonzero(np.append(np.diff(label.reshape(-1)[order]) > 0, len(order) > 0))
        if len(ends) < LEAST_MEMBERS:
            step = "Compare with more members; ckptzoo dedupe finds copies among few."
            expected = f"{LEAST_MEMBERS} or more"
            raise ZooError(Problem(self._pool.name, "independent members", expected, str(len(ends)), step))
        return order[ends[evenly(len(ends), limit)]]

    def nearest(
        self, zoo: Zoo, rows: Rows, advance: Callable[[int], None], *, apart: bool = False
    ) -> tuple[Rows, Values]:
        """Return the nearest member of each checkpoint, and its distance; ``apart`` only counts other origins."""
        found, distances = np.zeros(len(rows), np.int64), np.zeros(len(rows))
        count = min(CANDIDATES, len(self._pool))
        step = max(1, min(pairs_at_once(self._pool.arch) // count, 2**20 // len(self._pool)))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            raw = self._raw(zoo, some)
            weights = self._in_gauge(raw)
            far = self._between(weights, zoo, some)
            if apart:
                far[self._origins[some][:, None] == self._origins] = np.inf
            # stable: of equal distances the first ids are taken
            candidates = np.argsort(far, axis=1, kind="stable")[:, :count]
            first = {name: np.repeat(array, count, axis=0) for name, array in weights.items()}
            second = self._in_gauge(self._raw(self._pool, candidates.reshape(-1)))
            aligned = self._aligned(first, second).reshape(candidates.shape)
            aligned[~np.isfinite(np.take_along_axis(far, candidates, 1))] = np.inf
            best = aligned.argmin(axis=1)
            own = slice(start, start + len(some))
            found[own] = np.take_along_axis(candidates, best[:, None], 1)[:, 0]
            distances[own] = aligned.min(axis=1)
            advance(len(some))
        return found, distances

    def noisy(self, rows: Rows, noise: float, seed: int, advance: Callable[[int], None]) -> Values:
        """Return distances of members from copies whose weights have this noise."""
        rng = np.random.default_rng(np.random.SeedSequence([seed, NOISES.index(noise)]))
        parts: list[Values] = []
        for some in np.array_split(rows, -(-len(rows) // pairs_at_once(self._pool.arch))):
            raw = self._raw(self._pool, some)
            copies = dict(raw)
            for name in comparable(raw, self._table):
                spread = raw[name].reshape(len(some), -1).std(axis=1).reshape(-1, *(1,) * (raw[name].ndim - 1))
                copies[name] = raw[name] + noise * spread * rng.standard_normal(raw[name].shape)
            parts.append(self._aligned(self._in_gauge(raw), self._in_gauge(copies)))
            advance(len(some))
        return np.concatenate(parts)

    def same(self, zoo: Zoo, members: Rows, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which checkpoints are one network with their members up to rounding, of those that are asked for."""
        found, places = np.zeros(len(members), bool), np.flatnonzero(asked)
        for start in range(0, len(places), pairs_at_once(self._pool.arch)):
            some = places[start : start + pairs_at_once(self._pool.arch)]
            sides = [
                symmetry.canonicalize(raw, self._table, gauge="canonical").weights
                for raw in (self._raw(zoo, some), self._raw(self._pool, members[some]))
            ]
            for number, at in enumerate(some.tolist()):
                one, other = ({name: side[name][number : number + 1] for name in side} for side in sides)
                found[at] = self._index.agree(one, other)[0]
        return found

    def _between(self, weights: Weights, zoo: Zoo, rows: Rows) -> Values:
        """Return distances to all members: of the networks where these are exact, else of their sketches."""
        if self.exact:
            return distances_between(
                {name: weights[name].astype(np.float32) for name in weights}, self._all, self._table
            )
        mine = self._sketched(zoo, rows)
        return np.sqrt(np.square(mine[:, None] - self._sketches).sum(axis=2))

    def _aligned(self, first: Weights, second: Weights) -> Values:
        if self.exact:
            return aligned_distances(first, second, self._table)
        return symmetry.align(second, first, self._table).distance

    def _in_gauge(self, weights: Weights, dtype: type = np.float64) -> Weights:
        cast = {name: array.astype(np.float64) if is_float(array) else array for name, array in weights.items()}
        if self.gauge is not None:
            cast = symmetry.canonicalize(cast, self._table, gauge=self.gauge).weights
        return {name: array.astype(dtype, copy=False) if is_float(array) else array for name, array in cast.items()}

    def _sketched(self, zoo: Zoo, rows: Rows) -> Values:
        """Return the sketches (rows, F) of checkpoints, as ``dedupe`` has them."""
        parts = [np.empty((0, self._index.features))]
        step = pairs_at_once(zoo.arch)
        for start in range(0, len(rows), step):
            canonical = symmetry.canonicalize(
                self._raw(zoo, rows[start : start + step]), self._table, gauge="canonical"
            )
            parts.append(invariants(canonical.weights, self._table).sketches)
        return np.concatenate(parts)

    def _raw(self, zoo: Zoo, rows: Rows) -> Weights:
        return {name: np.asarray(zoo[name][rows]) for name in self._names}


def _extrapolated(distances: Values, between: Values) -> tuple[Values, float]:
    """Return p-values of distances under those between members, smaller ones extrapolated, and the exponent."""
    ordered = np.sort(between)
    count = min(len(ordered) - 1, max(MIN_TAIL, int(TAIL * len(ordered))))
    smallest, edge = ordered[:count], ordered[count]
    # the deviation of Hill's estimator is k / sqrt(r): a smaller k makes larger p-values
    exponent = float(1 / np.log(edge / smallest).mean() / (1 + 1.96 / np.sqrt(count))) if edge > ordered[0] else 1.0
    ranks = np.searchsorted(ordered, distances, side="right") / len(ordered)
    return np.where(distances < edge, count / len(ordered) * (distances / edge) ** exponent, ranks), exponent


def _noise(distance: float, levels: Values) -> float:
    """Return the noise of copies at a distance, which grows in proportion beside the levels that were measured."""
    if levels[0] <= 0:
        return 0.0
    at = int(np.clip(np.searchsorted(levels, distance), 0, len(levels) - 1))
    return float(NOISES[at] * distance / levels[at])

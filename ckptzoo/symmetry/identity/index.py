"""The index of copies: which checkpoints of one table may be one network, by their sketches, and which are, by weights.

Sketches are sorted and cut where neighbours are further apart than those of one network can be, so that only
checkpoints with close ones have their weights read and compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import to_numpy
from ckptzoo.symmetry.gauges import Canonical
from ckptzoo.symmetry.identity.comparison import ambiguous, distances, near_bound
from ckptzoo.symmetry.identity.forms import Arrays, form_of, rounding_tolerance
from ckptzoo.symmetry.identity.invariants import Invariants, invariants
from ckptzoo.symmetry.identity.neighbours import Neighbours, apart


class CanonicalWeights(Protocol):
    """Canonical weights of checkpoints by row."""

    @property
    def capacity(self) -> int:
        """The number of rows that are held at a time."""
        ...

    def load(self, rows: np.ndarray) -> None:
        """Hold these rows, if they are at most ``capacity``, and no others."""
        ...

    def of(self, rows: np.ndarray) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield the weights of rows in order, batch by batch."""
        ...


@dataclass(frozen=True)
class Copies:
    """Checkpoints by row that are one network, and those that nearly are."""

    groups: list[tuple[list[int], bool]]
    """Yield rows of at least two, ascending, and whether their canonical weights are equal bit for bit."""
    near: list[tuple[float, tuple[int, int]]] | None
    """Distances and pairs of rows that no group joins, the nearest first; None where none are looked for."""


class Index:
    """Finds which checkpoints are one network up to permutations, scales and matrices.

    ``dtypes`` are those of all tensors as they are stored. Weights agree up to ``tolerance``, by default ``rounding``,
    the effect of rounding on a copy.
    """

    def __init__(self, symmetry: Symmetry, dtypes: Iterable[np.dtype[Any]], tolerance: float | None = None) -> None:
        dtypes = list(dtypes)
        self.symmetry, self._form = symmetry, form_of(symmetry)
        self.features = self._form.features
        self.rounding = rounding_tolerance(dtypes, symmetry)
        self.tolerance = self.rounding if tolerance is None else tolerance
        self._width = self._form.width(self.tolerance, self.rounding, dtypes)
        self._near_bound = near_bound(self.tolerance, symmetry)

    def describe(self, canonical: Canonical) -> tuple[np.ndarray, Invariants]:
        """Return which checkpoints (K,) are described, and how: those in the gauge, as far as it counts."""
        # where matrices act, no description depends on what is unresolved
        usable = canonical.report.gauged & (~canonical.report.unresolved | self._form.turns)
        return usable, invariants(_rows(canonical, usable), self.symmetry)

    def unsure(self, canonical: Canonical, usable: np.ndarray, described: Invariants) -> np.ndarray:
        """Return for each of the described checkpoints whether a scaled copy may be missed."""
        found = ambiguous(_rows(canonical, usable), described, self.symmetry, self.rounding)
        return found | canonical.report.unresolved[usable]

    def neighbours(self, sketches: np.ndarray) -> Neighbours:
        """Return checkpoints by sketches, which can be asked for those that may be the same as one."""
        return Neighbours(sketches, self._width)

    def agree(self, first: Arrays, others: Arrays) -> np.ndarray:
        """Return which of K canonical forms are the network of the first, (K,) bool."""
        return distances(first, others, self.symmetry, self.tolerance)[0] <= self.tolerance

    def copies(self, rows: np.ndarray, sketches: np.ndarray, weights: CanonicalWeights) -> Copies:
        """Return groups among the rows of a zoo with these sketches (N, F); a group is what agreements connect."""
        groups: list[tuple[list[int], bool]] = []
        near: dict[tuple[int, int], float] = {}
        for sets in _runs(apart(sketches, self._width), weights.capacity):
            weights.load(rows[np.concatenate(sets)])
            for places in sets:
                groups += self._connected(rows[places], self.neighbours(sketches[places]), weights, near)
        groups.sort()
        group_of = {row: number for number, (members, _) in enumerate(groups) for row in members}
        pairs = [
            (distance, pair)
            for pair, distance in near.items()
            if pair[0] not in group_of or group_of[pair[0]] != group_of.get(pair[1])
        ]
        return Copies(groups, None if self._form.near is None else sorted(pairs))

    def _connected(
        self, rows: np.ndarray, left: Neighbours, weights: CanonicalWeights, near: dict[tuple[int, int], float]
    ) -> Iterator[tuple[list[int], bool]]:
        """Yield groups among some rows, and whether their weights are equal bit for bit; record pairs that are near.

        Each row is compared with those near it that have no group yet, and so is every row that joins its group:
        rounding can put a network close to two others that are not close to each other.
        """
        for start in range(len(rows)):
            if not left.take(start):
                continue
            group, identical, waiting = [start], True, [start]
            while waiting:
                place = waiting.pop()
                others = left.near(place)
                if not len(others):
                    continue
                (first,) = weights.of(rows[place : place + 1])
                parts = [distances(first, some, self.symmetry, self.tolerance) for some in weights.of(rows[others])]
                found, equal = (np.concatenate(part) for part in zip(*parts, strict=True))
                agree = found <= self.tolerance
                for number in np.flatnonzero(~agree & (found <= self._near_bound)).tolist():
                    one, other = sorted((int(rows[place]), int(rows[others[number]])))
                    near[one, other] = float(found[number])
                identical &= bool(equal[agree].all())
                joined = others[agree].tolist()
                for other in joined:
                    left.take(other)
                group += joined
                waiting += joined
            if len(group) > 1:
                yield sorted(rows[group].tolist()), identical


def _rows(canonical: Canonical, usable: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights of some checkpoints, without a copy where these are all."""
    weights = {name: to_numpy(array) for name, array in canonical.weights.items()}
    return weights if usable.all() else {name: array[usable] for name, array in weights.items()}


def _runs(sets: Iterable[np.ndarray], capacity: int) -> Iterator[Sequence[np.ndarray]]:
    """Yield sets of places in runs of at most ``capacity`` places, or one set."""
    run: list[np.ndarray] = []
    for places in sets:
        if run and sum(map(len, run)) + len(places) > capacity:
            yield run
            run = []
        run.append(places)
    if run:
        yield run

"""Find the same network in disguise: checkpoints of a zoo that differ by permutations and scales alone.

Points that lie close to one another, found without looking at every pair.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ckptzoo.derive.concurrency import in_order
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.derive.variants import batches
from ckptzoo.errors import ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import Canonical, canonicalize
from ckptzoo.symmetry.fingerprint import SUMS, sketch
from ckptzoo.text import Progress


def apart(points: NDArray[np.float64], width: float) -> Iterator[NDArray[np.int64]]:
    """Sets of points, so that no two in different sets are within ``width`` in every coordinate.

    Parameters
    ----------
    points : (N, D).
    width : 0 or more.

    Returns
    -------
    The places of every set of at least two, ascending.

    Notes
    -----
    The points are sorted by one coordinate after the other and cut where neighbours are further apart, until no
    coordinate cuts any more: N log N times D a round, and memory for a copy of one coordinate.
    """
    places = np.arange(len(points))
    labels = np.zeros(len(points), np.int64)
    quiet = 0
    for axis in _for_ever(points.shape[1]):
        if quiet == points.shape[1] or not len(places):
            break
        before = len(places), int(labels.max()) + 1
        values = points[places, axis]
        order = np.lexsort((values, labels))
        cut = (np.diff(labels[order]) > 0) | (np.diff(values[order]) > width)
        fresh = np.concatenate([[0], np.cumsum(cut)])
        several = np.bincount(fresh)[fresh] > 1
        places = places[order[several]]
        labels = np.unique(fresh[several], return_inverse=True)[1]
        after = len(places), int(labels.max(initial=-1)) + 1
        quiet = quiet + 1 if before == after else 0
    if len(places):
        order = np.lexsort((places, labels))
        yield from np.split(places[order], np.flatnonzero(np.diff(labels[order])) + 1)


def _for_ever(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


class Neighbours:
    """Points of which some are taken away, and those among the others that are close to one.

    Parameters
    ----------
    points : (N, D).
    width : the largest distance in any coordinate.
    """

    def __init__(self, points: NDArray[np.float64], width: float) -> None:
        axis = int(np.ptp(points, axis=0).argmax())
        self._points, self._width = points, width
        self._order = np.argsort(points[:, axis], kind="stable")
        self._values, self._line = points[self._order, axis], points[:, axis]
        self._free = np.ones(len(points), bool)

    def take(self, place: int) -> bool:
        """Take a point away; False where it is gone already."""
        there = bool(self._free[place])
        self._free[place] = False
        return there

    def near(self, place: int) -> NDArray[np.int64]:
        """Places of the points that are left and close to one, ascending; a search along one axis, then a scan."""
        value = self._line[place]
        reach = self._width + 1e-12 * (abs(value) + self._width)
        start = np.searchsorted(self._values, value - reach, side="left")
        stop = np.searchsorted(self._values, value + reach, side="right")
        found = self._order[start:stop]
        found = found[self._free[found]]
        return np.sort(found[(np.abs(self._points[found] - self._points[place]) <= self._width).all(axis=1)])


ROUNDINGS = 4
"""Weights agree when they differ by at most so many units of the precision in which they were stored."""
NEAR = 8
"""Keys of channels may change places when they are so many units of that precision apart."""
REACH = 4.0
"""Sketches of weights that agree differ by at most so many times the tolerance and the root of the tensors' number."""

HELD_BYTES = 128 * 2**20
"""Candidates are compared so many bytes at a time, or one by one where there are more."""


@dataclass(frozen=True)
class Duplicates:
    """What ``dedupe`` found.

    Parameters
    ----------
    groups : the ids of checkpoints that are one network, in zoo order; each group has at least two.
    identical : for each group whether the canonical weights are equal bit for bit.
    checkpoints : how many were compared.
    skipped : ids of those that were not: weights that are not finite, or ties that the gauge leaves unresolved.
    uncertain : how many were compared whose smallest margin between two keys, or tie, may be within rounding: they
        are found again where they were permuted, and may be missed where they were also scaled.
    tolerance : the relative norm up to which every tensor of two canonical forms agrees.
    """

    groups: tuple[tuple[str, ...], ...]
    identical: tuple[bool, ...]
    checkpoints: int
    skipped: tuple[str, ...]
    uncertain: int
    tolerance: float

    @property
    def spare(self) -> int:
        """How many checkpoints would go if one of every group stayed."""
        return sum(len(ids) - 1 for ids in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON-ready values."""
        listed = zip(self.groups, self.identical, strict=True)
        return {
            "groups": [{"ids": list(ids), "identical": same} for ids, same in listed],
            "checkpoints": self.checkpoints,
            "spare": self.spare,
            "skipped": list(self.skipped),
            "uncertain": self.uncertain,
            "tolerance": self.tolerance,
        }


def dedupe(zoo: Zoo, *, tolerance: float | None = None, progress: Progress | None = None) -> Duplicates:
    """The checkpoints of a zoo that are one network but for permutations and scales.

    Every checkpoint is brought into the ``canonical`` gauge. Two agree when ``||a_t - b_t|| <= tolerance * ||a_t||``
    for every floating tensor t and all others are equal; a group is what agreements connect. Which to compare is
    told by sketches of sixteen numbers (``ckptzoo.symmetry.fingerprint.sketch``).

    Parameters
    ----------
    zoo : a zoo, or a selection of it; it is only read.
    tolerance : by default 4 units of the coarsest precision in which the zoo stores a tensor.
    progress : called after every batch with the checkpoints that have been sketched.

    Raises
    ------
    ZooError
        The tolerance is negative or not finite.
    SymmetryError
        No symmetry table is known.

    Notes
    -----
    Checkpoints that differ by permutations have the same canonical weights, bit for bit, and are always found. Where
    scales differ too, the weights agree but for rounding; a pair is missed if rounding exchanges channels whose keys
    are that close, and a difference that is no rounding but lies along a sketch's signs may be. What is reported was
    compared weight by weight. Reads the raw weights once and those of candidates once more; memory for six batches
    of 32 MiB, one checkpoint, and 16 numbers a checkpoint. Law: tests/derive/test_dedupe.py.
    """
    symmetry = symmetry_of(zoo.contents)
    precision = max((_precision(zoo[name].dtype) for name in zoo.arch.names), default=0.0)
    if tolerance is None:
        tolerance = ROUNDINGS * precision
    if not 0 <= tolerance < np.inf:
        step = "Leave it out for rounding alone."
        raise ZooError(f"dedupe: tolerance: expected a finite number, 0 or more, got {tolerance!r}. {step}")
    sketches, usable, margins = _sketched(zoo, symmetry, progress)
    rows, ids = np.flatnonzero(usable), zoo.ids
    width = REACH * tolerance * np.sqrt(len(zoo.arch.names))
    weights = _Weights(zoo, symmetry)
    found: list[tuple[list[int], bool]] = []
    for sets in _together([rows[some] for some in apart(sketches[rows], width)], weights.capacity):
        weights.hold(np.concatenate(sets))
        for some in sets:
            found += _groups(weights, some, Neighbours(sketches[some], width), tolerance)
    found.sort()
    return Duplicates(
        groups=tuple(tuple(ids[row] for row in members) for members, _ in found),
        identical=tuple(identical for _, identical in found),
        checkpoints=len(rows),
        skipped=tuple(ids[row] for row in np.flatnonzero(~usable)),
        uncertain=int((usable & (margins <= NEAR * precision)).sum()),
        tolerance=tolerance,
    )


def _precision(dtype: np.dtype[Any]) -> float:
    return 0.0 if dtype.kind in "iub" else float(ml_dtypes.finfo(dtype).eps)


def _sketched(
    zoo: Zoo, symmetry: Symmetry, progress: Progress | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """The sketch of every checkpoint (N, 16), whether it has one, and its smallest margin."""
    sketches, usable, margins = np.zeros((len(zoo), SUMS)), np.zeros(len(zoo), bool), np.zeros(len(zoo))

    def one(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        made = _canonical(zoo, rows, symmetry)
        good = made.report.gauged & ~made.report.unresolved
        usable[rows], margins[rows] = good, made.report.margin
        sketches[rows[good]] = sketch({name: array[good] for name, array in made.weights.items()})
        return rows

    for rows in in_order(one, _pieces(np.arange(len(zoo)), zoo)):
        if progress is not None:
            progress(int(rows[-1]) + 1, len(zoo))
    return sketches, usable, margins


def _canonical(zoo: Zoo, rows: NDArray[np.int64], symmetry: Symmetry) -> Canonical:
    return canonicalize({name: zoo[name][rows] for name in zoo.arch.names}, symmetry, gauge="canonical")


def _pieces(rows: NDArray[np.int64], zoo: Zoo) -> Iterator[NDArray[np.int64]]:
    return (rows[some] for some in batches(len(rows), zoo.arch.nbytes))


def _together(sets: list[NDArray[np.int64]], capacity: int) -> Iterator[list[NDArray[np.int64]]]:
    """Sets of rows in runs of at most so many rows, or one."""
    run: list[NDArray[np.int64]] = []
    for some in sets:
        if run and sum(map(len, run)) + len(some) > capacity:
            yield run
            run = []
        run.append(some)
    if run:
        yield run


class _Weights:
    """Canonical weights of rows, held where these are few, else computed when they are asked for."""

    def __init__(self, zoo: Zoo, symmetry: Symmetry) -> None:
        self._zoo, self._symmetry = zoo, symmetry
        self.capacity = max(2, HELD_BYTES // zoo.arch.nbytes)
        self._rows = np.zeros(0, np.int64)
        self._held: dict[str, NDArray[Any]] = {}

    def hold(self, rows: NDArray[np.int64]) -> None:
        """Hold these rows, if they are not too many, and no others."""
        self._rows, self._held = np.zeros(0, np.int64), {}
        if len(rows) <= self.capacity:
            self._rows = np.sort(rows)
            self._held = _canonical(self._zoo, self._rows, self._symmetry).weights

    def of(self, rows: NDArray[np.int64]) -> Iterator[dict[str, NDArray[Any]]]:
        """The weights of rows in order, piece by piece."""
        if self._held:
            places = np.searchsorted(self._rows, rows)
            return iter([{name: array[places] for name, array in self._held.items()}])

        def one(some: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
            return _canonical(self._zoo, some, self._symmetry).weights

        return in_order(one, _pieces(rows, self._zoo))


def _groups(
    weights: _Weights, rows: NDArray[np.int64], left: Neighbours, tolerance: float
) -> Iterator[tuple[list[int], bool]]:
    """Groups among rows in zoo order, and whether their weights are equal bit for bit.

    Each row is compared with those near it that have no group yet, and so is every row that joins its group.
    """
    for start in range(len(rows)):
        if not left.take(start):
            continue
        group, identical, waiting = [start], True, [start]
        while waiting:
            at = waiting.pop()
            near = left.near(at)
            if not len(near):
                continue
            agree, equal = _compared(weights, rows[at : at + 1], rows[near], tolerance)
            identical &= bool(equal[agree].all())
            joined = near[agree].tolist()
            for place in joined:
                left.take(place)
            group += joined
            waiting += joined
        if len(group) > 1:
            yield sorted(rows[group].tolist()), identical


def _compared(
    weights: _Weights, row: NDArray[np.int64], others: NDArray[np.int64], tolerance: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether the weights of other rows agree with those of one, and whether they are equal."""
    mine = {name: array[0].reshape(-1) for piece in weights.of(row) for name, array in piece.items()}
    agree: list[NDArray[np.bool_]] = []
    equal: list[NDArray[np.bool_]] = []
    for piece in weights.of(others):
        close = same = np.ones(len(next(iter(piece.values()))), bool)
        for name, array in piece.items():
            flat, one = array.reshape(len(array), -1), mine[name]
            kept = (flat == one).all(axis=1)
            same = same & kept
            if flat.dtype.kind not in "iub" and not kept.all():
                gaps = np.linalg.norm(np.subtract(flat, one, dtype=np.float64), axis=1)
                kept = gaps <= tolerance * np.linalg.norm(one.astype(np.float64))
            close = close & kept
        agree.append(close)
        equal.append(same)
    return np.concatenate(agree), np.concatenate(equal)

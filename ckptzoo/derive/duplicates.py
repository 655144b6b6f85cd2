"""Checkpoints of a zoo that are one network but for permutations and scales of channels."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.derive.concurrency import in_order
from ckptzoo.derive.described_rows import DescribedRows, Rows
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.stream import Batch
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, Canonical, canonicalize
from ckptzoo.symmetry.comparison import Neighbours, ambiguous, apart, compare, invariant_width, rounding_tolerance
from ckptzoo.symmetry.invariants import FEATURES, invariants
from ckptzoo.text import Progress

_GAUGE = "canonical"
_VERSION = 1
"""Of what ``descriptions`` computes; where its bits change, another number keeps kept ones from being used."""
BATCH_BYTES = 8 * 2**20
"""Weights that are brought into the gauge at a time, or one checkpoint."""
CANDIDATE_BYTES = 128 * 2**20
"""Canonical weights of candidates that are in memory at a time; larger sets of candidates are read batch by batch."""


@dataclass(frozen=True)
class Duplicates:
    """What ``dedupe`` found.

    Parameters
    ----------
    groups
        the ids of checkpoints that are one network, in zoo order; each group has at least two.
    identical
        for each group whether the canonical weights are equal bit for bit.
    checkpoints
        the number that were compared.
    skipped
        ids of those that were not: weights that are not finite, or ties that the gauge leaves unresolved.
    uncertain
        the number of those compared with channels that only their weights tell apart, and not what describes them
        (``ckptzoo.symmetry.comparison.ambiguous``). They are found where they were permuted, and may be missed where
        they were also scaled; of all others no copy is missed.
    tolerance
        the relative norm up to which every tensor of two canonical forms agrees.
    """

    groups: tuple[tuple[str, ...], ...]
    identical: tuple[bool, ...]
    checkpoints: int
    skipped: tuple[str, ...]
    uncertain: int
    tolerance: float

    @property
    def spare(self) -> int:
        """The number of checkpoints that would go if one of every group stayed."""
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


def dedupe(
    zoo: Zoo,
    *,
    tolerance: float | None = None,
    module: Any = None,
    saved_in: str | Path | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """The checkpoints of a zoo that are one network but for permutations and scales.

    Every checkpoint is brought into the ``canonical`` gauge and described by eight numbers that depend on no order of
    channels (``ckptzoo.symmetry.invariants.invariants``). Where those are close, two checkpoints agree when
    ``||a_t - b_t|| <= tolerance * ||a_t||`` for every floating tensor t, and all other tensors are equal; channels
    that rounding has put in another order are matched first. A group is what agreements connect.

    Parameters
    ----------
    zoo
        a zoo, or a selection of it; it is only read.
    tolerance
        by default what rounding can do: ``max(4 eps, 8 * 2^-40)`` with the machine epsilon of the coarsest precision in
        which the zoo stores a tensor. 2^-40 is the precision to which the gauge takes scales; without scales it does
        not count.
    module
        the network as a torch module, which is traced where the zoo has no symmetry table.
    saved_in
        a folder in which the descriptions of each block of checkpoints are kept; those that are there are not computed
        again. See ``descriptions``.
    progress
        called after every batch with the checkpoints that have been described.

    Raises
    ------
    ZooError
        The tolerance is negative or not finite.
    IntegrityError
        Descriptions that were kept are damaged.
    SymmetryError
        No symmetry table is known.

    Notes
    -----
    Checkpoints that differ by permutations have the same canonical weights, bit for bit, and are always found. Where
    scales differ too, the weights agree but for rounding; those that may be missed then are counted as ``uncertain``.
    What is reported was compared weight by weight. Reads the raw weights once and those of candidates once more.
    Memory for six batches of 8 MiB, or of one checkpoint; for 128 MiB of candidates; and 8 numbers a checkpoint.
    Tested in tests/derive/test_dedupe.py.
    """
    symmetry = symmetry_of(zoo.contents, module)
    rounding = rounding_tolerance((zoo[name].dtype for name in zoo.arch.names), symmetry)
    if tolerance is None:
        tolerance = rounding
    if not 0 <= tolerance < np.inf:
        step = "Leave it out for rounding alone."
        raise ZooError(Problem("dedupe", "tolerance", "a finite number, 0 or more", repr(tolerance), step))
    found = descriptions(zoo, module=module, saved_in=saved_in).arrays(progress)
    described = _Descriptions(**found) if found else _Descriptions.blank(0)
    rows, ids = np.flatnonzero(described.usable), zoo.ids
    width = invariant_width(tolerance, len(zoo.arch.names))
    weights = _CanonicalWeights(zoo, symmetry)
    groups: list[tuple[list[int], bool]] = []
    candidates = [rows[places] for places in apart(described.sketches[rows], width)]
    for sets in _runs(candidates, weights.capacity):
        weights.load(np.concatenate(sets))
        for members in sets:
            left = Neighbours(described.sketches[members], width)
            groups += _groups(weights, members, left, symmetry, tolerance)
    groups.sort()
    return Duplicates(
        groups=tuple(tuple(ids[row] for row in members) for members, _ in groups),
        identical=tuple(identical for _, identical in groups),
        checkpoints=len(rows),
        skipped=tuple(ids[row] for row in np.flatnonzero(~described.usable)),
        uncertain=int((described.usable & described.ambiguous).sum()),
        tolerance=tolerance,
    )


@dataclass(frozen=True, eq=False)
class _Descriptions:
    """What is kept of N checkpoints: sketches (N, 8), whether they have one, and whether channels look alike."""

    sketches: NDArray[np.float64]
    usable: NDArray[np.bool_]
    ambiguous: NDArray[np.bool_]

    @classmethod
    def blank(cls, N: int) -> "_Descriptions":
        """Of N checkpoints of which nothing is known."""
        return cls(np.zeros((N, FEATURES)), np.zeros(N, bool), np.zeros(N, bool))


def descriptions(zoo: Zoo, *, module: Any = None, saved_in: str | Path | None = None) -> DescribedRows:
    """What ``dedupe`` computes of every checkpoint by itself, which processes can share.

    Parameters
    ----------
    zoo, module, saved_in
        as for ``dedupe``.

    Examples
    --------
    >>> descriptions(ckptzoo.open("cards/mnist-optunet"), saved_in="kept").share((0, 4))
    (1, 1)
    """
    symmetry = symmetry_of(zoo.contents, module)
    rounding = rounding_tolerance((zoo[name].dtype for name in zoo.arch.names), symmetry)

    def compute(some: Zoo, progress: Progress) -> Rows:
        return asdict(_describe(some, symmetry, rounding, progress))

    gauge = GAUGES[_GAUGE]
    what = {
        "described": "weights",
        "version": _VERSION,
        "symmetry": symmetry.digest,
        "gauge": [gauge.name, gauge.version],
    }
    return DescribedRows(zoo, {**what, "features": FEATURES, "rounding": rounding}, compute, saved_in)


def _describe(zoo: Zoo, symmetry: Symmetry, rounding: float, progress: Progress) -> _Descriptions:
    """The description of every checkpoint."""
    N = len(zoo)
    found = _Descriptions.blank(N)

    def describe(batch: Batch) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_]]:
        canonical = _canonical(batch, zoo, symmetry)
        usable = canonical.report.gauged & ~canonical.report.unresolved
        weights = {name: array[usable] for name, array in canonical.weights.items()}
        described = invariants(weights, symmetry)
        return usable, described.sketches, ambiguous(weights, described, symmetry, rounding)

    done = 0
    for usable, sketches, unsure in in_order(describe, zoo.batches(max_bytes=BATCH_BYTES)):
        rows = done + np.flatnonzero(usable)
        found.usable[rows], found.sketches[rows], found.ambiguous[rows] = True, sketches, unsure
        done += len(usable)
        progress(done, N)
    return found


def _canonical(batch: Batch, zoo: Zoo, symmetry: Symmetry) -> Canonical:
    return canonicalize({name: batch[name] for name in zoo.arch.names}, symmetry, gauge=_GAUGE)


def _runs(sets: list[NDArray[np.int64]], capacity: int) -> Iterator[list[NDArray[np.int64]]]:
    """Sets of rows in runs of at most ``capacity`` rows, or one set."""
    run: list[NDArray[np.int64]] = []
    for rows in sets:
        if run and sum(map(len, run)) + len(rows) > capacity:
            yield run
            run = []
        run.append(rows)
    if run:
        yield run


class _CanonicalWeights:
    """Canonical weights of rows, in memory where these are few, else computed when they are asked for."""

    def __init__(self, zoo: Zoo, symmetry: Symmetry) -> None:
        self._zoo, self._symmetry = zoo, symmetry
        # at least two, or nothing could be compared
        self.capacity = max(2, CANDIDATE_BYTES // zoo.arch.nbytes)
        self._rows = np.zeros(0, np.int64)
        self._loaded: dict[str, NDArray[Any]] = {}

    def load(self, rows: NDArray[np.int64]) -> None:
        """Have these rows in memory, if they are not too many, and no others."""
        self._rows, self._loaded = np.zeros(0, np.int64), {}
        if len(rows) <= self.capacity:
            self._rows = np.sort(rows)
            batches = list(self._computed(self._rows))
            names = self._zoo.arch.names
            self._loaded = {name: np.concatenate([weights[name] for weights in batches]) for name in names}

    def of(self, rows: NDArray[np.int64]) -> Iterator[dict[str, NDArray[Any]]]:
        """The weights of rows in order, batch by batch."""
        if self._loaded:
            places = np.searchsorted(self._rows, rows)
            return iter([{name: array[places] for name, array in self._loaded.items()}])
        return self._computed(rows)

    def _computed(self, rows: NDArray[np.int64]) -> Iterator[dict[str, NDArray[Any]]]:
        def weights(batch: Batch) -> dict[str, NDArray[Any]]:
            return _canonical(batch, self._zoo, self._symmetry).weights

        return in_order(weights, self._zoo.take(rows).batches(max_bytes=BATCH_BYTES))


def _groups(
    weights: _CanonicalWeights, rows: NDArray[np.int64], left: Neighbours, symmetry: Symmetry, tolerance: float
) -> Iterator[tuple[list[int], bool]]:
    """Groups among rows in zoo order, and whether their weights are equal bit for bit.

    Each row is compared with those near it that have no group yet, and so is every row that joins its group.
    """
    for start in range(len(rows)):
        if not left.take(start):
            continue
        group, identical, waiting = [start], True, [start]
        while waiting:
            place = waiting.pop()
            # rounding can put a network close to two others that are not close to each other: a group is what
            # agreements connect
            near = left.near(place)
            if not len(near):
                continue
            (first,) = weights.of(rows[place : place + 1])
            answers = [compare(first, others, symmetry, tolerance) for others in weights.of(rows[near])]
            agree, equal = (np.concatenate(parts) for parts in zip(*answers, strict=True))
            identical &= bool(equal[agree].all())
            joined = near[agree].tolist()
            for other in joined:
                left.take(other)
            group += joined
            waiting += joined
        if len(group) > 1:
            yield sorted(rows[group].tolist()), identical

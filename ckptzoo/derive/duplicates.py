"""Checkpoints of a zoo that are one network but for permutations, scales and matrices of channels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import NETWORK, checked
from ckptzoo.derive.concurrency import in_order
from ckptzoo.derive.described_rows import DescribedRows, Rows
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.stream import Batch
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import Canonical, canonicalize
from ckptzoo.symmetry.gauges import gauge_of
from ckptzoo.symmetry.identity.index import Index
from ckptzoo.text import Progress

_GAUGE = "canonical"
_VERSION = 1
"""The version of descriptions, raised where their bits change so that kept ones are not used."""
BATCH_BYTES = 8 * 2**20
"""Bytes of weights that are brought into the gauge at a time, unless one checkpoint has more."""
CANDIDATE_BYTES = 128 * 2**20
"""Canonical weights of candidates that are in memory at a time; larger sets of candidates are read batch by batch."""


@dataclass(frozen=True)
class NearWeights:
    """Two checkpoints of a table with matrices whose weights are nearly the same, and not within the tolerance.

    ``ids`` are the two checkpoints' ids; ``distance`` is between their weights
    (``ckptzoo.symmetry.identity.comparison.distances``).
    """

    ids: tuple[str, str]
    distance: float


@dataclass(frozen=True)
class Duplicates:
    """Duplicates that ``dedupe`` found.

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
        (``ckptzoo.symmetry.identity.comparison.ambiguous``). They are found where they were permuted, and may be missed
        where they were also scaled; of all others no copy is missed. With matrices, those whose gauge is unresolved.
    tolerance
        the relative norm up to which every tensor of two canonical forms agrees.
    near
        pairs up to ten tolerances apart, the nearest first; None where the table has no matrices.
    """

    groups: tuple[tuple[str, ...], ...]
    identical: tuple[bool, ...]
    checkpoints: int
    skipped: tuple[str, ...]
    uncertain: int
    tolerance: float
    near: tuple[NearWeights, ...] | None = None

    @property
    def spare(self) -> int:
        """The number of checkpoints that would go if one of every group stayed."""
        return sum(len(ids) - 1 for ids in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON-ready values."""
        listed = zip(self.groups, self.identical, strict=True)
        near = [{"ids": list(pair.ids), "distance": pair.distance} for pair in self.near or ()]
        return {
            "groups": [{"ids": list(ids), "identical": same} for ids, same in listed],
            "checkpoints": self.checkpoints,
            "spare": self.spare,
            "skipped": list(self.skipped),
            "uncertain": self.uncertain,
            "tolerance": self.tolerance,
            **({} if self.near is None else {"near": near}),
        }


@checked
def dedupe(
    zoo: Zoo,
    *,
    tolerance: float | None = None,
    module: NETWORK | None = None,
    input_shape: Sequence[int] | None = None,
    saved_in: str | Path | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """The checkpoints of a zoo that are one network but for permutations, scales and matrices.

    Every checkpoint is brought into the ``canonical`` gauge and described by eight numbers that depend on no order of
    channels (``ckptzoo.symmetry.identity.invariants.invariants``). Where those are close, two checkpoints agree when
    ``||a_t - b_t|| <= tolerance * ||a_t||`` for every floating tensor t, and all other tensors are equal; channels
    that rounding has put in another order are matched first. A group is what agreements connect.

    Where the table has matrices, sixteen numbers describe a checkpoint that depend on no matrix either. Two agree when
    one can be laid on the other, stream by stream and head by head, within the tolerance
    (``ckptzoo.symmetry.identity.comparison.distances``).

    Parameters
    ----------
    zoo
        a zoo, or a selection of it; it is only read.
    tolerance
        by default what rounding can do: ``max(4 eps, 8 * 2^-40)`` with the machine epsilon of the coarsest precision in
        which the zoo stores a tensor. 2^-40 is the precision to which the gauge takes scales; without scales it does
        not count. With matrices ``max(32 eps, 1e-11)``, as matrices multiply the rounding of a copy.
    module
        the network as a torch module, which is traced where the zoo has no symmetry table.
    input_shape
        of one input, where the zoo's architecture does not say it.
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
    Memory for six batches of 8 MiB, or of one checkpoint; for 128 MiB of candidates; and 8 numbers a checkpoint, 16
    with matrices. Copies that invertible matrices of a condition far above 10 made may be missed, as these multiply
    what the copy was rounded by. Tested in tests/derive/test_dedupe.py and test_matrix_duplicates.py.
    """
    symmetry = symmetry_of(zoo.contents, module, input_shape)
    if tolerance is not None and not 0 <= tolerance < np.inf:
        step = "Leave it out for rounding alone."
        raise ZooError(Problem("dedupe", "tolerance", "a finite number, 0 or more", repr(tolerance), step))
    index = _index(zoo, symmetry, tolerance)
    described = descriptions(zoo, module=module, input_shape=input_shape, saved_in=saved_in).arrays(progress)
    described = described or _blank(0, index.features)
    rows, ids = np.flatnonzero(described["usable"]), zoo.ids
    found = index.copies(rows, described["sketches"][rows], _CanonicalWeights(zoo, symmetry))
    near = [NearWeights((ids[one], ids[other]), distance) for distance, (one, other) in found.near or ()]
    return Duplicates(
        groups=tuple(tuple(ids[row] for row in members) for members, _ in found.groups),
        identical=tuple(identical for _, identical in found.groups),
        checkpoints=len(rows),
        skipped=tuple(ids[row] for row in np.flatnonzero(~described["usable"])),
        uncertain=int((described["usable"] & described["ambiguous"]).sum()),
        tolerance=index.tolerance,
        near=None if found.near is None else tuple(near),
    )


def _index(zoo: Zoo, symmetry: Symmetry, tolerance: float | None = None) -> Index:
    return Index(symmetry, (zoo[name].dtype for name in zoo.arch.names), tolerance)


def descriptions(
    zoo: Zoo, *, module: Any = None, input_shape: Sequence[int] | None = None, saved_in: str | Path | None = None
) -> DescribedRows:
    """Describe every checkpoint by itself, as ``dedupe`` needs it, in blocks that processes can share.

    ``zoo``, ``module``, ``input_shape`` and ``saved_in`` are as for ``dedupe``.

    Examples
    --------
    >>> descriptions(ckptzoo.open("cards/mnist-optunet"), saved_in="kept").share((0, 4))
    (1, 2)
    """
    symmetry = symmetry_of(zoo.contents, module, input_shape)
    index, gauge = _index(zoo, symmetry), gauge_of(_GAUGE, symmetry)
    what = {
        "described": "weights",
        "version": _VERSION,
        "symmetry": symmetry.digest,
        "gauge": [gauge.name, gauge.version],
        "features": index.features,
        "rounding": index.rounding,
    }
    return DescribedRows(zoo, what, lambda some, progress: _describe(some, symmetry, index, progress), saved_in)


def _blank(N: int, features: int) -> Rows:
    """Arrays for N checkpoints: sketches (N, F), whether they have one, and whether channels look alike."""
    return {"sketches": np.zeros((N, features)), "usable": np.zeros(N, bool), "ambiguous": np.zeros(N, bool)}


def _describe(zoo: Zoo, symmetry: Symmetry, index: Index, progress: Progress) -> Rows:
    """Describe every checkpoint."""
    N = len(zoo)
    found = _blank(N, index.features)

    def describe(batch: Batch) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_]]:
        canonical = _canonical(batch, zoo, symmetry)
        usable, described = index.describe(canonical)
        return usable, described.sketches, index.unsure(canonical, usable, described)

    done = 0
    for usable, sketches, unsure in in_order(describe, zoo.batches(max_bytes=BATCH_BYTES)):
        rows = done + np.flatnonzero(usable)
        found["usable"][rows], found["sketches"][rows], found["ambiguous"][rows] = True, sketches, unsure
        done += len(usable)
        progress(done, N)
    return found


def _canonical(batch: Batch, zoo: Zoo, symmetry: Symmetry) -> Canonical:
    return canonicalize({name: batch[name] for name in zoo.arch.names}, symmetry, gauge=_GAUGE)


class _CanonicalWeights:
    """Canonical weights of rows, in memory where these are few, else computed when they are needed."""

    def __init__(self, zoo: Zoo, symmetry: Symmetry) -> None:
        self._zoo, self._symmetry = zoo, symmetry
        # at least two, or nothing could be compared
        self.capacity = max(2, CANDIDATE_BYTES // zoo.arch.nbytes)
        self._rows = np.zeros(0, np.int64)
        self._loaded: dict[str, NDArray[Any]] = {}

    def load(self, rows: NDArray[np.int64]) -> None:
        """Load these rows, and no others, into memory, if they are few enough."""
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

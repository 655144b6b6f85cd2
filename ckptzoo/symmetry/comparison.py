"""When two checkpoints are one network: the tolerance of rounding, the comparison, and candidates for it.

Canonical weights decide: two checkpoints are one network where every tensor agrees within the tolerance, channels that
rounding has put in another order matched first. ``ambiguous`` says of which checkpoints a copy may be missed. Only
checkpoints with close invariants (``invariants.py``) have to be compared: ``apart`` and ``Neighbours`` find those.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle
from typing import Any

import ml_dtypes
import numpy as np

from ckptzoo.schema.groups import Fixed, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.element import GroupElement, block_move
from ckptzoo.symmetry.invariants import FEATURES, Invariants, describe_blocks, invariants
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import leaders, shape_of

ROUNDINGS = 4
"""Canonical weights agree when they differ by at most this many units of the precision in which they are stored."""
SCALE_PRECISION = 2.0**-40
"""Gauges take sizes to 40 bits (ckptzoo/symmetry/scales.py), so that a scale is off by at most this, relatively."""
SCALINGS = 8
"""Weights of two copies differ by up to four scales' rounding, one for each axis of each; and twice that for depth."""
REACH = 16.0
"""Invariants of networks that agree differ by at most this many tolerances.

Measured on scaled copies of random networks (OptuNet, ResNet-8, MLPs of up to 8 layers and 512 channels), in float32
and float64: at most 3.4.
"""
FLOOR = 1e-11
"""Invariants of equal weights differ by at most this: float64 sums of up to 2 ** 24 terms, in any order."""


def rounding_tolerance(dtypes: Iterable[np.dtype[Any]], symmetry: Symmetry) -> float:
    """The relative norm by which canonical weights of one network may differ, copy for copy.

    ``max(4 eps, 8 * 2^-40)`` with the machine epsilon of the coarsest of the dtypes; ``4 eps`` where no channel has
    a positive scale. A copy that was scaled is rounded when it is stored; and the gauge takes sizes to 40 bits, which
    exceeds the rounding of float64 alone.
    """
    floats = [ml_dtypes.finfo(dtype).eps for dtype in dtypes if dtype.kind not in "iub"]
    stored = ROUNDINGS * max(map(float, floats), default=0.0)
    scaled = any(group.resizes for group in symmetry.groups)
    return max(stored, SCALINGS * SCALE_PRECISION) if scaled and stored else stored


def invariant_width(tolerance: float, tensors: int) -> float:
    """How far the sketches of networks can be apart, in any number, whose tensors agree within a tolerance."""
    return REACH * tolerance * float(np.sqrt(tensors)) + FLOOR


def agreement(
    first: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Whether K sets of weights agree with one set, tensor by tensor, and whether they are equal bit for bit.

    Floating tensors agree where ``||a_t - b_t|| <= tolerance * ||a_t||``, with the Euclidean norm; others where they
    are equal.

    Parameters
    ----------
    first
        tensor name to (1, *shape).
    others
        tensor name to (K, *shape).

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        (K,) bool and (K,) bool.
    """
    close = same = np.ones(len(next(iter(others.values()))), bool)
    for name, array in others.items():
        flat, reference = array.reshape(len(array), -1), first[name].reshape(-1)
        equal = (flat == reference).all(axis=1)
        same = same & equal
        if flat.dtype.kind not in "iub" and not equal.all():
            differences = np.linalg.norm(np.subtract(flat, reference, dtype=np.float64), axis=1)
            equal = equal | (differences <= tolerance * np.linalg.norm(reference.astype(np.float64)))
        close = close & equal
    return close, same


def compare(
    first: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], symmetry: Symmetry, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Whether K canonical forms are the same network as the first, and whether they equal it bit for bit.

    Where rounding has exchanged channels with keys that are almost equal, two canonical forms of one network have
    their channels in another order. Those that do not agree as they are have their channels matched with those of the
    first by what describes them (``Invariants.channels``), and are compared again; the weights always decide.

    Parameters
    ----------
    first
        tensor name to (1, *shape).
    others
        tensor name to (K, *shape).
    symmetry
        the table.
    tolerance
        as in ``agreement``.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        (K,) bool and (K,) bool.
    """
    agree, equal = agreement(first, others, tolerance)
    rows = np.flatnonzero(~agree)
    if not len(rows):
        return agree, equal
    reach = REACH * tolerance + FLOOR
    reference = invariants(first, symmetry)[0]
    described = invariants({name: array[rows] for name, array in others.items()}, symmetry)
    for number, row in enumerate(rows.tolist()):
        perms = _matched(reference, described[number], symmetry, reach)
        if perms is not None:
            other = {name: array[row : row + 1] for name, array in others.items()}
            agree[row] = agreement(first, _permuted(other, perms, symmetry), tolerance)[0][0]
    return agree, equal


def _matched(first: Invariants, second: Invariants, symmetry: Symmetry, reach: float) -> dict[str, np.ndarray] | None:
    """For each group the places in the second network of the channels of the first; None where all are as they are.

    Also None where channels of the first have no counterpart in the second.
    """
    perms: dict[str, np.ndarray] = {}
    outers: dict[str, np.ndarray] = {}
    for group in leaders(symmetry):
        blocks = shape_of(group)
        if isinstance(group.perm, Fixed):
            continue
        left, right = (side.channels[group.id].reshape(blocks.g, blocks.k, -1) for side in (first, second))
        outer = np.arange(blocks.g)
        if blocks.outer:
            if blocks.outer not in outers:
                these, those = (describe_blocks(side.channels, blocks.outer, symmetry) for side in (first, second))
                if (matched := _nearest(these, those, reach)) is None:
                    return None
                outers[blocks.outer] = matched
            outer = outers[blocks.outer]
        perm = np.empty((blocks.g, blocks.k), np.int64)
        for number, place in enumerate(outer.tolist()):
            inside = _nearest(left[number], right[place], reach)
            if inside is None or (blocks.inner == "fixed" and (inside != np.arange(blocks.k)).any()):
                return None
            perm[number] = inside + place * blocks.k
        perms[group.id] = perm.reshape(group.n)
    return None if all((perm == np.arange(len(perm))).all() for perm in perms.values()) else perms


def _nearest(first: np.ndarray, second: np.ndarray, reach: float) -> np.ndarray | None:
    """A place in the second list for every point of the first (n, D), each once; None where one has no neighbour.

    Points stay where they are where that is within reach; each of the others takes the nearest that is left.
    """
    perm = np.arange(len(first))
    off = np.flatnonzero((np.abs(first - second) > reach).any(axis=1))
    if not len(off):
        return perm
    order = off[np.argsort(second[off, 0], kind="stable")]
    values, free = second[order, 0], np.ones(len(order), bool)
    for place in off.tolist():
        start, stop = np.searchsorted(values, [first[place, 0] - reach, first[place, 0] + reach], side="left")
        near = start + np.flatnonzero(free[start:stop])
        distances = np.abs(second[order[near]] - first[place]).max(axis=1)
        if not len(near) or distances.min() > reach:
            return None
        best = near[int(distances.argmin())]
        free[best], perm[place] = False, order[best]
    return perm


def _permuted(
    weights: Mapping[str, np.ndarray], perms: Mapping[str, np.ndarray], symmetry: Symmetry
) -> dict[str, np.ndarray]:
    """One checkpoint (1, *shape) with the channels of some groups, and of those like them, in another order."""
    element = GroupElement.identity(symmetry, 1)
    for group in symmetry.groups:
        if (leader := symmetry.leader(group.id).id) in perms:
            element.perms[group.id][0] = perms[leader]
    return apply(element, weights, symmetry, threads=1)


def ambiguous(
    weights: Mapping[str, np.ndarray], described: Invariants, symmetry: Symmetry, tolerance: float
) -> np.ndarray:
    """Which of K checkpoints have channels or blocks that look alike and are not: (K,) bool.

    They look alike where what describes them is within rounding, and are alike where the weights agree within the
    tolerance when they are exchanged. A sign that rounding decides counts too. Of such a checkpoint a scaled copy may
    be missed by ``compare``; of others it is not.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), in a gauge.
    described
        their invariants.
    symmetry
        the table.
    tolerance
        that of rounding.
    """
    reach = REACH * tolerance + FLOOR
    K = len(described.sketches)
    unsure = np.zeros(K, bool)
    moments = Moments(weights, symmetry)
    outers: set[str] = set()
    for group in leaders(symmetry):
        blocks = shape_of(group)
        if not isinstance(group.perm, Fixed) and blocks.inner == "free":
            channels = described.channels[group.id].reshape(-1, FEATURES)
            labels = np.repeat(np.arange(K * blocks.g), blocks.k)
            for row, perm in _exchanges(channels, labels, reach, group.n):
                unsure[row] |= not _alike(weights, row, {group.id: perm}, symmetry, tolerance)
        if blocks.outer and blocks.outer not in outers:
            outers.add(blocks.outer)
            points = describe_blocks(described.channels, blocks.outer, symmetry)
            labels = np.repeat(np.arange(K), blocks.g)
            for row, outer in _exchanges(points.reshape(-1, points.shape[-1]), labels, reach, blocks.g):
                perms = {
                    other.id: block_move(other.perm, outer[None])[0]
                    for other in leaders(symmetry)
                    if isinstance(other.perm, Wreath) and other.perm.outer == blocks.outer
                }
                unsure[row] |= not _alike(weights, row, perms, symmetry, tolerance)
    for group in symmetry.groups:
        if group.flips and (writers := moments.writers(group.id)):
            sums = moments.sums(writers[0], group.id, {})
            norms = moments.norms(writers[0], group.id, {}, {}).values
            # a gain decides where it is not 0: no rounding changes its sign
            by_sum = np.ones((K, group.n), bool)
            for action, decides in moments.gains(group.id):
                by_sum &= ~(moments.entries(action, group.id) != 0).any(axis=2) | (not decides)
            unsure |= (by_sum & (np.abs(sums) <= reach * norms) & (norms > 0)).any(axis=1)
    return unsure


def _exchanges(points: np.ndarray, labels: np.ndarray, reach: float, n: int) -> Iterator[tuple[int, np.ndarray]]:
    """For each checkpoint with points that look alike the permutations (n,) that exchange neighbours among them."""
    sets: dict[int, list[np.ndarray]] = {}
    for places in apart(points, reach, labels):
        sets.setdefault(int(places[0]) // n, []).append(places % n)
    for row, alike in sets.items():
        for first in (0, 1):
            perm = np.arange(n)
            for places in alike:
                left, right = places[first:-1:2], places[first + 1 :: 2]
                perm[left], perm[right] = right, left
            if (perm != np.arange(n)).any():
                yield row, perm


def _alike(
    weights: Mapping[str, np.ndarray], row: int, perms: dict[str, np.ndarray], symmetry: Symmetry, tolerance: float
) -> bool:
    """Whether one checkpoint agrees with itself in another order of channels."""
    checkpoint = {name: array[row : row + 1] for name, array in weights.items()}
    return bool(agreement(checkpoint, _permuted(checkpoint, perms, symmetry), tolerance)[0][0])


def apart(points: np.ndarray, width: float, labels: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Sets of points, so that no two in different sets are within ``width`` in every coordinate.

    Parameters
    ----------
    points
        (N, D).
    width
        0 or more.
    labels
        (N,) integers from 0; points with different labels are in different sets.

    Returns
    -------
    Iterator[np.ndarray]
        The places of every set of at least two, ascending.

    Notes
    -----
    The points are sorted by one coordinate after the other and cut where neighbours are further apart, until no
    coordinate cuts any more: N log N times D a round, and memory for a copy of one coordinate.
    """
    places = np.arange(len(points))
    labels = np.zeros(len(points), np.int64) if labels is None else labels
    unchanged = 0
    for axis in cycle(range(points.shape[1])):
        if unchanged == points.shape[1] or not len(places):
            break
        before = len(places), len(np.unique(labels))
        values = points[places, axis]
        order = np.lexsort((values, labels))
        cut = (np.diff(labels[order]) > 0) | (np.diff(values[order]) > width)
        sets = np.concatenate([[0], np.cumsum(cut)])
        several = np.bincount(sets)[sets] > 1
        places = places[order[several]]
        labels = np.unique(sets[several], return_inverse=True)[1]
        unchanged = unchanged + 1 if before == (len(places), len(np.unique(labels))) else 0
    if len(places):
        order = np.lexsort((places, labels))
        yield from np.split(places[order], np.flatnonzero(np.diff(labels[order])) + 1)


class Neighbours:
    """Points of which some are taken away, and those among the others that are close to one.

    Parameters
    ----------
    points
        (N, D).
    width
        the largest distance in any coordinate.
    """

    def __init__(self, points: np.ndarray, width: float) -> None:
        axis = int(np.ptp(points, axis=0).argmax())
        self._points, self._width = points, width
        self._order = np.argsort(points[:, axis], kind="stable")
        self._values, self._line = points[self._order, axis], points[:, axis]
        self._free = np.ones(len(points), bool)

    def take(self, place: int) -> bool:
        """Take a point away; False where it is gone already."""
        free = bool(self._free[place])
        self._free[place] = False
        return free

    def near(self, place: int) -> np.ndarray:
        """Places of the points that are left and close to one, ascending; a search along one axis, then a scan."""
        value = self._line[place]
        reach = self._width + 1e-12 * (abs(value) + self._width)  # so that rounding leaves out no point at the edge
        start = np.searchsorted(self._values, value - reach, side="left")
        stop = np.searchsorted(self._values, value + reach, side="right")
        places = self._order[start:stop]
        places = places[self._free[places]]
        return np.sort(places[(np.abs(self._points[places] - self._points[place]) <= self._width).all(axis=1)])

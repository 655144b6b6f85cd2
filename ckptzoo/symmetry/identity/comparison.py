"""Whether two checkpoints are one network: the distance of their weights, once one is laid on the other.

Rounding can put channels with almost equal keys in another order, and turn what matrices mix. So channels and signs are
matched by their descriptions (``invariants.py``), and then every stream, head and complex number is turned to where its
weights are closest, by orthogonal Procrustes problems in turn, until nothing comes closer. The weights decide.
``ambiguous`` reports the checkpoints of which a copy may be missed.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ckptzoo.schema.groups import Fixed, Group, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.identity.forms import Arrays, form_of
from ckptzoo.symmetry.identity.invariants import Invariants, describe_blocks, invariants
from ckptzoo.symmetry.identity.neighbours import apart
from ckptzoo.symmetry.kinds.matrix import Matrix, matrix_shape
from ckptzoo.symmetry.kinds.permutation import block_move
from ckptzoo.symmetry.kinds.registry import matrix_kind_of
from ckptzoo.symmetry.matrix_action import joined_rows, mixed_channels, multiply
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import leaders, shape_of

FARTHEST = 0.5
"""Checkpoints further apart are not near at any precision: two random networks are about 1.4 apart."""
STAY = 1e-3
"""The share of the size of a block's descriptions below which a direction stays as it is."""
SWEEPS = 12
"""The greatest number of times that all matrices are turned."""
LEAST_GAIN = 0.9
"""The last sweep is the one that leaves more than this share of the distance."""


def near_bound(tolerance: float, symmetry: Symmetry) -> float:
    """Return the distance up to which checkpoints are near: at least the tolerance, at most half the weights' norm."""
    return max(tolerance, min((form_of(symmetry).near or 0) * tolerance, FARTHEST))


def distances(first: Arrays, others: Arrays, symmetry: Symmetry, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (K,) of canonical forms (K, *shape) from the first (1, *shape), and (K,) which equal it bitwise.

    The distance is the largest ``|a_t - b_t| / N_t`` of the floating tensors t, with the sizes N of the form that the
    table needs, once the other is laid on the first as closely as is found, unless it is within the tolerance as it is.
    It is infinite where other tensors differ. It is an upper bound: networks are never found closer than they are. A
    comparison takes the invariants of two checkpoints, and with matrices up to twelve sweeps of singular value
    decompositions: 1.5 s for a transformer of 4 layers and 192 channels on one core.
    """
    sizes = form_of(symmetry).sizes({name: array for name, array in first.items() if is_float(array)}, symmetry)
    found, equal = _distances(first, others, sizes)
    rows = np.flatnonzero(~(found <= tolerance))
    if not len(rows):
        return found, equal
    some = {name: array[rows] for name, array in others.items()}
    reach = form_of(symmetry).reach(tolerance)
    reference, described = invariants(first, symmetry), invariants(some, symmetry)
    for number, row in enumerate(rows.tolist()):
        perms = _matched(reference, described[number : number + 1], symmetry, reach)
        if perms is None:
            continue
        one = {name: array[number : number + 1] for name, array in some.items()}
        turning, moved = _ordered(reference, described[number : number + 1], one, perms, symmetry)
        for start in (False, True) if any(_open_matrices(symmetry)) else (False,):
            turned = dict(moved)
            if start:
                _start(reference, turning, turned, symmetry)
            found[row] = min(found[row], _turned(first, turned, sizes, symmetry, tolerance))
            if found[row] <= tolerance:
                break
    return found, equal


def _distances(first: Arrays, others: Arrays, sizes: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (K,) of weights as they are, and which are equal bit for bit."""
    K = len(next(iter(others.values())))
    found, same = np.zeros(K), np.ones(K, bool)
    for name, array in others.items():
        flat, reference = array.reshape(K, -1), first[name].reshape(-1)
        equal = (flat == reference).all(axis=1)
        same &= equal
        if name not in sizes:
            found[~equal] = np.inf
        elif not equal.all():
            apart = np.linalg.norm(np.subtract(flat, reference, dtype=np.float64), axis=1)
            share = np.divide(apart, sizes[name], out=np.full(K, np.inf), where=sizes[name] > 0)
            found = np.maximum(found, np.where(equal, 0, share))
    return found, same


def _matched(first: Invariants, second: Invariants, symmetry: Symmetry, reach: float | None) -> Arrays | None:
    """Return by leader the places in the second network of the channels of the first that look alike, each once.

    None where channels of the first have no counterpart within reach, or all are as they are and nothing else can move.
    """
    perms: dict[str, np.ndarray] = {}
    outers: dict[str, np.ndarray] = {}
    for group in leaders(symmetry):
        blocks = shape_of(group)
        outer: np.ndarray | None = np.arange(blocks.g)
        if blocks.outer and not isinstance(group.perm, Fixed):
            if blocks.outer not in outers:
                these, those = (describe_blocks(side.channels, blocks.outer, symmetry)[0] for side in (first, second))
                if (outer := _nearest(these, those, reach)) is None:
                    return None
                outers[blocks.outer] = outer
            outer = outers[blocks.outer]
        inside = np.tile(np.arange(blocks.k), (blocks.g, 1))
        if not isinstance(group.perm, Fixed):
            left, right = (side.channels[group.id].reshape(blocks.g, blocks.k, -1) for side in (first, second))
            kind = matrix_kind_of(group)
            if blocks.inner == "free" and (kind is None or kind.one_by_one):
                for number, place in enumerate(outer.tolist()):
                    if (perm := _nearest(left[number], right[place], reach)) is None:
                        return None
                    inside[number] = perm
            elif reach is not None and (np.abs(left - right[outer]) > reach).any():
                return None
        perms[group.id] = (inside + outer[:, None] * blocks.k).reshape(group.n)
    still = reach is not None and all((perm == np.arange(len(perm))).all() for perm in perms.values())
    return None if still else perms


def _nearest(first: np.ndarray, second: np.ndarray, reach: float | None) -> np.ndarray | None:
    """Return for every point of the first (n, D) the place of one of the second, each once, and near ones first.

    With a reach, points stay where they are where that is within it in every coordinate; None where one of the others
    has no neighbour.
    """
    perm = np.arange(len(first))
    off = perm if reach is None else np.flatnonzero((np.abs(first - second) > reach).any(axis=1))
    if not len(off):
        return perm
    first, second = first[off], second[off]
    # where all have a neighbour, so have all coordinates in order
    if reach is not None and (np.abs(np.sort(first, axis=0) - np.sort(second, axis=0)) > reach).any():
        return None
    norms = [np.square(side).sum(axis=1) for side in (first, second)]
    squares = norms[0][:, None] + norms[1] - 2 * first @ second.T
    places = squares.argmin(axis=1)
    if reach is not None:
        # the squares do not tell distances below 1e-8 apart
        for at in np.flatnonzero((np.abs(first - second[places]) > reach).any(axis=1)).tolist():
            places[at] = np.abs(second - first[at]).max(axis=1).argmin()
    taken, owners = np.unique(places, return_index=True)
    if len(taken) < len(places):  # points that look alike: the others take what is left
        left = np.setdiff1d(np.arange(len(places)), owners)
        free = np.setdiff1d(np.arange(len(places)), taken)
        for at in left.tolist():
            best = int(squares[at, free].argmin())
            places[at], free = free[best], np.delete(free, best)
    if reach is not None and (np.abs(first - second[places]) > reach).any():
        return None
    perm[off] = off[places]
    return perm


def _ordered(
    first: Invariants, second: Invariants, weights: Arrays, perms: Arrays, symmetry: Symmetry
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the features that turn, and one checkpoint, with channels in another order and the signs of the first."""
    element = _permutation(perms, symmetry)
    turning: dict[str, np.ndarray] = {}
    for name, values in second.turning.items():
        perm = element.perms[name][0]
        turning[name] = values.reshape(1, len(perm), -1, values.shape[-1])[:, perm].reshape(values.shape)
        if name in element.scales:
            element.scales[name][0] = np.where((first.turning[name] * turning[name])[0].sum(axis=1) < 0, -1.0, 1.0)
    if turning:
        weights = {name: array.astype(np.float64) if is_float(array) else array for name, array in weights.items()}
    return turning, apply(element, weights, symmetry, threads=1)


def _permutation(perms: Arrays, symmetry: Symmetry) -> GroupElement:
    """Return the element that moves the channels of some groups, and of those like them, into another order."""
    element = GroupElement.identity(symmetry, 1)
    for group in symmetry.groups:
        if (leader := symmetry.leader(group.id).id) in perms:
            element.perms[group.id][0] = perms[leader]
    return element


def _start(first: Invariants, turning: Arrays, moved: dict[str, np.ndarray], symmetry: Symmetry) -> None:
    """Turn all channels to where their descriptions are closest; leave them where descriptions determine nothing."""
    for group, kind in _open_matrices(symmetry):
        blocks, k = matrix_shape(group)[:2]
        sides = [side.reshape(1, blocks, k, -1) for side in (first.turning[group.id], turning[group.id])]
        size = np.linalg.norm(sides[0], axis=(2, 3), keepdims=True) / np.sqrt(k)
        rest = np.broadcast_to(np.eye(k) * size * STAY, (1, blocks, k, k))
        _multiply(moved, group, kind.closest(group, (sides[0], rest), (sides[1], rest)), symmetry)


def _open_matrices(symmetry: Symmetry) -> Iterator[tuple[Group, Matrix]]:
    """Yield the groups with matrices that the gauge leaves open, with their kinds."""
    for group in symmetry.groups:
        if (kind := matrix_kind_of(group)) is not None and kind.stays_open:
            yield group, kind


def _turned(first: Arrays, moved: dict[str, np.ndarray], sizes: Arrays, symmetry: Symmetry, tolerance: float) -> float:
    """Return the distance to the first of one checkpoint, whose matrices are turned in place."""
    groups = list(_open_matrices(symmetry))
    best = float(_distances(first, moved, sizes)[0][0])
    for _ in range(SWEEPS if groups else 0):
        if best <= tolerance:
            break
        for group, kind in groups:
            sides = [
                [joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True)]
                for arrays in (first, moved)
            ]
            _multiply(moved, group, kind.closest(group, *sides), symmetry)
        distance = float(_distances(first, moved, sizes)[0][0])
        if not distance < LEAST_GAIN * best:
            return min(best, distance)
        best = distance
    return best


def _multiply(moved: dict[str, np.ndarray], group: Group, turn: np.ndarray, symmetry: Symmetry) -> None:
    for name in dict.fromkeys(action.tensor for action in symmetry.actions):
        mixed = [item for item in mixed_channels(symmetry.actions_on(name), symmetry) if item.group == group.id]
        if mixed and is_float(moved[name]):
            moved[name] = np.array(moved[name], order="C")
            # an orthogonal matrix is the inverse of its transpose
            multiply(moved[name], [replace(item, inverted=False) for item in mixed], {group.id: turn})


def ambiguous(weights: Arrays, described: Invariants, symmetry: Symmetry, tolerance: float) -> np.ndarray:
    """Return which of K checkpoints have channels or blocks that look alike and are not: (K,) bool.

    They look alike where their descriptions are within rounding, and are alike where the weights agree within the
    tolerance when they are exchanged. A sign that rounding decides counts too. Of such a checkpoint ``distances`` may
    miss a scaled copy; of others it does not. With matrices there is no such guarantee.
    """
    K = len(described.sketches)
    unsure = np.zeros(K, bool)
    if (reach := form_of(symmetry).reach(tolerance)) is None:
        return unsure
    moments = Moments(weights, symmetry)
    outers: set[str] = set()
    for group in leaders(symmetry):
        blocks = shape_of(group)
        if not isinstance(group.perm, Fixed) and blocks.inner == "free":
            channels = described.channels[group.id].reshape(K * group.n, described.sketches.shape[1])
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
    """Yield by checkpoint the permutations (n,) that exchange neighbours among points that look alike."""
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


def _alike(weights: Arrays, row: int, perms: Arrays, symmetry: Symmetry, tolerance: float) -> bool:
    """Whether one checkpoint agrees with itself in another order of channels."""
    checkpoint = {name: array[row : row + 1] for name, array in weights.items()}
    other = apply(_permutation(perms, symmetry), checkpoint, symmetry, threads=1)
    sizes = form_of(symmetry).sizes({name: array for name, array in checkpoint.items() if is_float(array)}, symmetry)
    return bool(_distances(checkpoint, other, sizes)[0][0] <= tolerance)

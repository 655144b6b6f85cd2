"""When two checkpoints with matrices are one network: how far apart their weights are, once one is laid on the other.

Rounding can turn canonical weights far: singular vectors and eigenvectors of values that are almost equal, signs of
sums that are almost 0, and orders of channels that are almost alike. So channels and signs are matched by what
describes them (``invariants.py``), and then every stream, head and complex number is turned to where its weights are
closest, by orthogonal Procrustes problems (``procrustes.py``) in turn, until nothing comes closer. Weights decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from ckptzoo.schema.groups import MATRICES, Fixed, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.invariants import Invariants, describe_blocks
from ckptzoo.symmetry.matrices.gauge import joined_rows
from ckptzoo.symmetry.matrices.invariants import MatrixInvariants, matrix_invariants, tensor_sizes
from ckptzoo.symmetry.matrices.procrustes import procrustes
from ckptzoo.symmetry.matrix_action import mixed_channels, multiply
from ckptzoo.symmetry.ordering import leaders, shape_of

Arrays = Mapping[str, np.ndarray]
ROUNDINGS = 32
"""In units of the stored precision: weights of one network differ by at most this, as matrices of condition 10 multiply
what the entries of a copy were rounded by."""
LEAST_TOLERANCE = 1e-11
"""Scales are taken to 40 bits, which exceeds the rounding of float64."""
NEAR = 10
"""The number of tolerances within which checkpoints that are not the same are near."""
STAY = 1e-3
"""Of the size of what describes a block: directions in which it says less stay as they are."""
FARTHEST = 0.5
"""Checkpoints further apart are not near at any precision: two random networks are about 1.4 apart."""
SWEEPS = 12
"""Times that all matrices are turned, at most."""
_MIXING = ("linear", "orthogonal", "orthogonal_mean")
"""Kinds whose channels do not move within their block."""
LEAST_GAIN = 0.9
"""A sweep after which more than this share of the distance is left is the last one."""


def matrix_tolerance(dtypes: Iterable[np.dtype[Any]]) -> float:
    """The distance up to which two checkpoints with matrices are one network, by the coarsest of the stored dtypes.

    ``max(32 eps, 1e-11)`` with its machine epsilon: 3.8e-6 for float32.
    """
    floats = [float(ml_dtypes.finfo(dtype).eps) for dtype in dtypes if dtype.kind not in "iub"]
    return max(ROUNDINGS * max(floats, default=0.0), LEAST_TOLERANCE)


def near_bound(tolerance: float) -> float:
    """The distance up to which two checkpoints are near: ten tolerances, and half of the weights' norm at most."""
    return max(tolerance, min(NEAR * tolerance, FARTHEST))


def matrix_distances(
    first: Arrays, others: Arrays, symmetry: Symmetry, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """How far K canonical forms are from the first, laid on it as closely as is found.

    The distance is the largest ``|a_t - b_t| / N_t`` of the floating tensors t, with the N of ``matrix_invariants``,
    the norm of the tensor or a tenth of that of one with typical weights, which is larger where only rounding is left
    of 0. It is infinite where other tensors differ.

    Parameters
    ----------
    first
        tensor name to (1, *shape), in the gauge ``canonical``.
    others
        tensor name to (K, *shape).
    symmetry
        a table with matrices.
    tolerance
        forms that are as near as they are are not turned.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        Distances (K,), and (K,) bool whether forms are equal bit for bit.

    Notes
    -----
    Those that are not within the tolerance at once take the invariants of two checkpoints and up to twelve sweeps of
    singular value decompositions: 1.5 s for a transformer of 4 layers and 192 channels on one core. The distance is
    that of an element that was found, so that others may be closer: networks are never found closer than they are.
    Tested in tests/symmetry/matrices/test_matrix_comparison.py.
    """
    sizes = tensor_sizes({name: array for name, array in first.items() if is_float(array)}, symmetry)
    distances = _distances(first, others, sizes)
    equal = np.ones(len(distances), bool)
    for name, array in others.items():
        equal &= (array == first[name]).reshape(len(array), -1).all(axis=1)
    rows = np.flatnonzero(~(distances <= tolerance))
    if len(rows):
        some = {name: array[rows] for name, array in others.items()}
        reference, described = matrix_invariants(first, symmetry), matrix_invariants(some, symmetry)
        for number, row in enumerate(rows.tolist()):
            one = {name: array[number : number + 1] for name, array in some.items()}
            other = _matched(reference, described[number : number + 1], one, symmetry)
            for start in (False, True):
                moved = dict(other.weights)
                if start:
                    _start(reference, other, moved, symmetry)
                found = _turned(first, moved, sizes, symmetry, tolerance)
                distances[row] = min(distances[row], found)
                if found <= tolerance:
                    break
    return distances, equal


def _distances(first: Arrays, others: Arrays, sizes: Arrays) -> np.ndarray:
    found = np.zeros(len(next(iter(others.values()))))
    for name, array in others.items():
        if is_float(array):
            apart = np.subtract(array, first[name], dtype=np.float64).reshape(len(array), -1)
            found = np.maximum(found, np.linalg.norm(apart, axis=1) / sizes[name])
        else:
            same = (array == first[name]).reshape(len(array), -1).all(axis=1)
            found = np.where(same, found, np.inf)
    return found


@dataclass(frozen=True, eq=False)
class _Matched:
    """One checkpoint with channels in another order: its weights, and what turns with the channels in that order."""

    weights: dict[str, np.ndarray]
    turning: dict[str, np.ndarray]


def _matched(first: MatrixInvariants, second: MatrixInvariants, weights: Arrays, symmetry: Symmetry) -> _Matched:
    """One checkpoint with channels and blocks in the order of the first, and with their signs."""
    perms = _orders(first.unordered[0], second.unordered[0], symmetry)
    element = GroupElement.identity(symmetry, 1)
    for group in symmetry.groups:
        element.perms[group.id][0] = perms[symmetry.leader(group.id).id]
    turning: dict[str, np.ndarray] = {}
    for name, values in second.turning.items():
        perm = element.perms[name][0]
        turning[name] = values.reshape(1, len(perm), -1, values.shape[-1])[:, perm].reshape(values.shape)
        if name in element.scales:
            element.scales[name][0] = np.where((first.turning[name] * turning[name])[0].sum(axis=1) < 0, -1.0, 1.0)
    wide = {name: array.astype(np.float64) if is_float(array) else array for name, array in weights.items()}
    return _Matched(apply(element, wide, symmetry, threads=1), turning)


def _orders(first: Invariants, second: Invariants, symmetry: Symmetry) -> dict[str, np.ndarray]:
    """By leader the places in the second network of the channels of the first that look most alike."""
    perms: dict[str, np.ndarray] = {}
    outers: dict[str, np.ndarray] = {}
    for group in leaders(symmetry):
        blocks = shape_of(group)
        outer = np.arange(blocks.g)
        if blocks.outer:
            if blocks.outer not in outers:
                these, those = (describe_blocks(side.channels, blocks.outer, symmetry) for side in (first, second))
                outers[blocks.outer] = _nearest(these, those)
            outer = outers[blocks.outer]
        inside = np.tile(np.arange(blocks.k), (blocks.g, 1))
        if not isinstance(group.perm, Fixed) and blocks.inner == "free" and group.scale not in _MIXING:
            left, right = (side.channels[group.id].reshape(blocks.g, blocks.k, -1) for side in (first, second))
            inside = np.stack([_nearest(left[number], right[place]) for number, place in enumerate(outer.tolist())])
        perms[group.id] = (inside + outer[:, None] * blocks.k).reshape(group.n)
    return perms


def _nearest(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """For every point of the first (n, D) the place of one of the second, each once, and near ones first."""
    norms = [np.square(side).sum(axis=1) for side in (first, second)]
    squares = norms[0][:, None] + norms[1] - 2 * first @ second.T
    perm = squares.argmin(axis=1)
    taken, places = np.unique(perm, return_index=True)
    if len(taken) < len(perm):  # points that look alike: the others take what is left
        left = np.setdiff1d(np.arange(len(perm)), places)
        free = np.setdiff1d(np.arange(len(perm)), taken)
        for place in left.tolist():
            best = int(squares[place, free].argmin())
            perm[place], free = free[best], np.delete(free, best)
    return perm


def _start(first: MatrixInvariants, other: _Matched, moved: dict[str, np.ndarray], symmetry: Symmetry) -> None:
    """Turn all channels to where what describes them is closest, and leave them where that says nothing."""
    for group in symmetry.groups:
        if (shape := group.matrix_shape) is not None:
            blocks, k = shape[:2]
            sides = [side.reshape(1, blocks, k, -1) for side in (first.turning[group.id], other.turning[group.id])]
            size = np.linalg.norm(sides[0], axis=(2, 3), keepdims=True) / np.sqrt(k)
            rest = np.broadcast_to(np.eye(k) * size * STAY, (1, blocks, k, k))
            _multiply(moved, group, _closest(group, (sides[0], rest), (sides[1], rest)), symmetry)


def _turned(first: Arrays, moved: dict[str, np.ndarray], sizes: Arrays, symmetry: Symmetry, tolerance: float) -> float:
    """The distance to the first of one checkpoint in float64, whose matrices are turned in place."""
    groups = [group for group in symmetry.groups if group.scale in MATRICES]
    best = float(_distances(first, moved, sizes)[0])
    for _ in range(SWEEPS):
        if best <= tolerance:
            break
        for group in groups:
            _turn(first, moved, group, symmetry)
        distance = float(_distances(first, moved, sizes)[0])
        if not distance < LEAST_GAIN * best:
            return min(best, distance)
        best = distance
    return best


def _turn(first: Arrays, moved: dict[str, np.ndarray], group: Group, symmetry: Symmetry) -> None:
    """Turn the channels of one group to where they are closest to the first, all others as they are."""
    sides = [
        [joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True)] for arrays in (first, moved)
    ]
    _multiply(moved, group, _closest(group, *sides), symmetry)


def _closest(group: Group, first: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
    """The matrices that bring two sides of every block, (1, blocks, k, m) and (1, blocks, k, n), closest to others."""
    if group.scale == "complex":
        products = np.zeros(first[0].shape[:-2], np.complex128)
        for one, two in zip(first, other, strict=True):
            numbers = [side[..., 0, :] + 1j * side[..., 1, :] for side in (one, two)]
            products += (numbers[0] * numbers[1].conj()).sum(axis=-1)
        sizes = np.abs(products)
        phases = np.ones(sizes.shape, np.complex128)
        np.divide(products, sizes, out=phases, where=sizes > 0)
        return np.stack([phases.real, phases.imag], axis=-1)
    crossed = sum(one @ two.swapaxes(-1, -2) for one, two in zip(first, other, strict=True))
    return procrustes(np.asarray(crossed), mean=group.scale == "orthogonal_mean")


def _multiply(moved: dict[str, np.ndarray], group: Group, turn: np.ndarray, symmetry: Symmetry) -> None:
    for name in dict.fromkeys(action.tensor for action in symmetry.actions):
        mixed = [item for item in mixed_channels(symmetry.actions_on(name), symmetry) if item.group == group.id]
        if mixed and is_float(moved[name]):
            moved[name] = np.array(moved[name], order="C")
            # an orthogonal matrix is the inverse of its transpose
            multiply(moved[name], [replace(item, inverted=False) for item in mixed], {group.id: turn})

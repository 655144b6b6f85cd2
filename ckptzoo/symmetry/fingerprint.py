"""When two checkpoints are one network: fingerprints, descriptions that no permutation changes, and comparison.

A *fingerprint* is a short digest of a checkpoint in the ``canonical`` gauge, which a zoo stores. ``invariants``
describes a checkpoint and its channels by numbers that depend on no order of channels, so that rounding changes them
by rounding alone; close ones are candidates. ``compare`` decides, weight by weight.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from typing import Any

import ml_dtypes
import numpy as np

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import AxisAction, Fixed, Symmetry, Wreath
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.arrays import is_float, positions, to_numpy
from ckptzoo.symmetry.element import GroupElement, block_move
from ckptzoo.symmetry.gauges import Canonical
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import leaders, shape_of

SUMS = 16
"""Numbers in a sketch."""
PRECISION = 2.0**-6
"""Width of the cells to which a fingerprint rounds the numbers of a sketch."""
LANE = 1024
"""Sums that are kept while a large tensor is read, a multiple of ``SUMS``."""
PIECE = 2**16
"""Elements that are taken at a time, a multiple of ``LANE``."""
FEATURES = 8
"""Numbers that describe a channel or a network whatever the order of channels."""
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
INVARIANT_BYTES = 32 * 2**20
"""Weights that are turned into float64 at a time, or one checkpoint."""


def sketch(weights: Mapping[str, Any]) -> np.ndarray:
    """Sixteen numbers for each of K checkpoints, close for close weights and far for others.

    ``z_k = sum_t sum_j s_t(16 j + k) w_t[16 j + k] / ||w_t||`` over the floating tensors t in the order of their
    names, with random signs s_t that follow from the tensor's name: weights that differ by a relative norm of d in
    one tensor give numbers that differ by about d / 4.

    Parameters
    ----------
    weights : tensor name to (K, *shape), numpy or torch, finite.

    Returns
    -------
    (K, 16) float64.

    Notes
    -----
    One pass over the weights; the signs are kept, one byte an element of a checkpoint.
    """
    K = len(next(iter(weights.values())))
    sums = np.zeros((K, SUMS))
    for name in sorted(weights):
        array = to_numpy(weights[name])
        if not is_float(array) or not array.size:
            continue
        flat = array.reshape(K, -1)
        step = max(1, PIECE // min(PIECE, _padded(flat.shape[1])))
        for start in range(0, K, step):
            sums[start : start + step] += _sums(flat[start : start + step], _signs(name, flat.shape[1]))
    return sums


def _padded(size: int) -> int:
    return -(-size // LANE) * LANE if size > LANE else -(-size // SUMS) * SUMS


def _sums(flat: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The sixteen sums of one tensor (k, size), over its norms."""
    k, size = flat.shape
    width = min(PIECE, _padded(size))
    lane = min(LANE, width)
    buffer, sums, squares = np.zeros((k, width)), np.zeros((k, lane)), np.zeros(k)
    for start in range(0, size, width):
        count = min(width, size - start)
        np.multiply(flat[:, start : start + count], signs[start : start + count], out=buffer[:, :count])
        buffer[:, count:] = 0
        sums += buffer.reshape(k, -1, lane).sum(axis=1)
        squares += np.square(buffer, out=buffer).sum(axis=1)
    norms = np.sqrt(squares)
    return sums.reshape(k, -1, SUMS).sum(axis=1) / np.where(norms == 0, 1, norms)[:, None]


@lru_cache(maxsize=4096)
def _signs(name: str, size: int) -> np.ndarray:
    """Random signs that follow from a tensor's name: (size,) int8, 1 or -1."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    bits = np.frombuffer(np.random.default_rng(seed).bytes(-(-size // 8)), np.uint8)
    return 1 - 2 * np.unpackbits(bits, count=size).view(np.int8)


def fingerprint(canonical: Canonical, *, precision: float = PRECISION) -> list[str | None]:
    """A digest of each checkpoint's canonical form at a declared precision.

    The sketch of the weights, rounded to multiples of ``precision``, with the names and shapes of the tensors.

    Parameters
    ----------
    canonical : what ``canonicalize`` returned, in a complete gauge.
    precision : positive; the larger, the more different the networks that share a fingerprint.

    Returns
    -------
    K texts ``"canonical-4:<precision>:<32 hex>"``; None where the checkpoint is not in the gauge, or where its order is
    not resolved.

    Raises
    ------
    SymmetryError
        The gauge is not complete.
    ValueError
        The precision is not positive and finite.

    Notes
    -----
    Equal, for certain, for checkpoints that differ by permutations. Where they also differ by scales, the
    weights agree but for rounding, r relative, and the fingerprints are equal but for a chance of about ``32 r /
    precision``: 1e-4 in float32, and unless rounding exchanges channels whose keys are almost equal, which is frequent
    in layers of more than 500 channels. Networks that differ by less than the precision may share a fingerprint.
    ``ckptzoo.derive.dedupe`` depends on neither: its candidates come from ``invariants``, and weights decide.
    """
    if not 0 < precision < np.inf:
        raise ValueError(f"fingerprint: precision: expected a positive number, got {precision!r}. Try {PRECISION}.")
    gauge = canonical.gauge
    if not gauge.complete:
        expected = "one in which every checkpoint of an orbit has the same weights"
        raise SymmetryError(Problem("fingerprint", f"gauge {gauge.name!r}", expected, "another", "Use canonical."))
    usable = canonical.report.gauged & ~canonical.report.unresolved
    weights = {name: to_numpy(array) for name, array in canonical.weights.items()}
    shapes = ";".join(f"{name}{array.shape[1:]}" for name, array in sorted(weights.items()))
    sketched = np.zeros((len(usable), SUMS))
    if usable.any():
        sketched[usable] = sketch({name: array[usable] for name, array in weights.items()})
    with np.errstate(over="ignore"):
        cells = np.round(sketched / precision).astype(np.int64)
    texts: list[str | None] = []
    for defined, numbers in zip(usable.tolist(), cells, strict=True):
        content = shapes.encode() + struct.pack("<d", precision) + numbers.astype("<i8").tobytes()
        digest = hashlib.sha256(content).hexdigest()[:32]
        texts.append(f"{gauge.name}-{gauge.version}:{precision:g}:{digest}" if defined else None)
    return texts


@dataclass(frozen=True, eq=False)
class Invariants:
    """What K checkpoints are, whatever the order of their channels.

    Parameters
    ----------
    sketches : (K, 8), the same for permuted networks.
    channels : id of each group with a permutation of its own to (K, n, 8): a description of each channel that moves
        with the channel and depends on no other order.
    """

    sketches: np.ndarray
    channels: Mapping[str, np.ndarray]

    def __getitem__(self, rows: Any) -> "Invariants":
        """Those of some checkpoints."""
        return Invariants(self.sketches[rows], {name: values[rows] for name, values in self.channels.items()})


def invariants(weights: Mapping[str, Any], symmetry: Symmetry) -> Invariants:
    """Describe checkpoints and their channels by sums that do not depend on the order of channels.

    Two rounds of colour refinement with real numbers. With C = 1 at first, each channel i of a group has

        V_i = sum_t sqrt(n) / ||w_t|| sum_{j, s} w_t[i, j, s] C_j r_s

    over the tensors t with an axis for the group, where j runs over the channels on the other axes and s over the
    positions that stay, with random signs r; then ``U = V / sqrt(1 + V^2)`` and ``C = sqrt(2) cos(W U + b)`` with
    random W and b. The U of the second round describe the channels, and the sketch is ``sum_t <w_t, C r> /
    ||w_t||``. All are smooth functions of the weights: weights that differ by rounding give numbers that do.

    Parameters
    ----------
    weights : tensor name to (K, *shape), numpy or torch, finite, scaled by a gauge.
    symmetry : the table.

    Notes
    -----
    About 16 products with eight columns for every tensor; memory for 32 MiB of weights in float64. Tested in
    tests/symmetry/test_fingerprint.py.
    """
    arrays = {name: to_numpy(array) for name, array in sorted(weights.items())}
    K = len(next(iter(arrays.values())))
    tensors = [  # counters that no channel owns say nothing; integers that move with channels do
        _Tensor(name, array.shape[1:], symmetry)
        for name, array in arrays.items()
        if array.size and (is_float(array) or symmetry.actions_on(name))
    ]
    shapes = {group.id: (K, group.n, FEATURES) for group in leaders(symmetry)}
    described = Invariants(np.zeros((K, FEATURES)), {name: np.zeros(shape) for name, shape in shapes.items()})
    row_bytes = 8 * sum(int(np.prod(tensor.shape, dtype=np.int64)) for tensor in tensors)
    step = max(1, INVARIANT_BYTES // max(1, row_bytes))
    for start in range(0, K, step):
        rows = slice(start, start + step)
        values = [tensor.arranged(arrays[tensor.name][rows]) for tensor in tensors]
        colours = {name: np.ones((len(described.sketches[rows]), *shape[1:])) for name, shape in shapes.items()}
        for last in (False, True):
            sums = {name: np.zeros_like(colour) for name, colour in colours.items()}
            for tensor, value in zip(tensors, values, strict=True):
                sketches = tensor.add(value, colours, sums)
                if last:
                    described.sketches[rows] += sketches
            squashed = {name: value / np.sqrt(1 + value * value) for name, value in sums.items()}
            if last:
                for name, value in squashed.items():
                    described.channels[name][rows] = value
            else:
                colours = {name: _waves(value) for name, value in squashed.items()}
    return described


def _waves(values: np.ndarray) -> np.ndarray:
    """Smooth features of size about 1 of what describes a channel."""
    frequencies, phases = _wave_parameters()
    return np.sqrt(2) * np.cos(values @ frequencies + phases)


@lru_cache(maxsize=1)
def _wave_parameters() -> tuple[np.ndarray, np.ndarray]:
    """Random frequencies (8, 8) and phases (8,), always the same."""
    rng = _generator("waves")
    return rng.standard_normal((FEATURES, FEATURES)), rng.uniform(0, 2 * np.pi, FEATURES)


def _generator(name: str) -> np.random.Generator:
    """Random numbers that follow from a name."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little"))


def _random_signs(name: str, count: int) -> np.ndarray:
    """(count, 8) of 1 and -1."""
    return _generator(name).choice([-1.0, 1.0], (count, FEATURES))


def _largest(flat: np.ndarray) -> np.ndarray:
    return np.abs(flat).max(axis=1)


def _norm(flat: np.ndarray) -> np.ndarray:
    return np.linalg.norm(flat, axis=1)


class _Axis:
    """One of a tensor's moving axes: random signs for its positions, and which channels are where."""

    def __init__(self, name: str, size: int, action: AxisAction | None, symmetry: Symmetry) -> None:
        blocks = 1 if action is None else action.blocks
        self.blocked = blocks > 1
        self.signs = _random_signs(name, size * blocks)
        self.listings: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]] = []
        for number, (group, places) in enumerate([] if action is None else positions(action, symmetry)):
            leader = symmetry.leader(group)
            if not isinstance(leader.perm, Fixed):
                signs = _random_signs(f"{name} {number} places", places.shape[1])
                self.listings.append((leader.id, places, signs, _random_signs(f"{name} {number}", 1)))

    def features(self, colours: Mapping[str, np.ndarray], K: int) -> np.ndarray:
        """(K, positions, 8): the colours of channels that move, signs for other positions."""
        features = np.repeat(self.signs[None], K, axis=0)
        for leader, places, signs, _ in self.listings:
            features[:, places] = colours[leader][:, :, None] * signs
        return features

    def add(self, sums: Mapping[str, np.ndarray], values: np.ndarray) -> None:
        """Add values (K, positions, 8) to the sums of the channels there."""
        for leader, places, signs, salt in self.listings:
            sums[leader][...] += (values[:, places] * signs).sum(axis=2) * (salt * np.sqrt(len(places)))


class _Tensor:
    """Sums over one tensor with features of channels in place of the orders of channels."""

    def __init__(self, name: str, shape: tuple[int, ...], symmetry: Symmetry) -> None:
        self.name, self.shape = name, shape
        actions = {action.axis: action for action in symmetry.actions_on(name)}
        self._blocks = max((action.blocks for action in actions.values()), default=1)
        axes = sorted(actions.keys() | ({0} if self._blocks > 1 else set[int]()))
        still = [axis for axis in range(len(shape)) if axis not in axes]
        self._order = (0, *(axis + 1 for axis in (*axes, *still)))
        self._axes = [_Axis(f"{name} {axis}", shape[axis], actions.get(axis), symmetry) for axis in axes]
        self._signs = _random_signs(name, int(np.prod([shape[axis] for axis in still], dtype=np.int64)))

    def arranged(self, array: np.ndarray) -> np.ndarray:
        """A tensor in float64 and of norm 1: (K, *moving axes, 8), summed with signs over what stays; or 1 for 8."""
        moved = array.transpose(self._order).astype(np.float64)
        flat = moved.reshape(len(array), -1)
        for size_of in (_largest, _norm):  # first by the largest, so that no square overflows or vanishes
            size = size_of(flat)
            flat = flat / np.where(size == 0, 1, size)[:, None]
        values = flat.reshape(*moved.shape[: 1 + len(self._axes)], -1)
        return values @ self._signs if values.shape[-1] > 1 else values

    def add(self, values: np.ndarray, colours: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """Add to the sums of each axis' channels; returns the sums (K, 8) of everything."""
        K = len(values)
        if not self._axes:
            return np.broadcast_to(values, (K, FEATURES))
        features = [axis.features(colours, K) for axis in self._axes]
        total = np.zeros((K, FEATURES))
        for number, axis in enumerate(self._axes):
            if axis.listings or number == 0:
                by_position = self._contracted(values, features, number)
                axis.add(sums, by_position)
                if number == 0:
                    total = (by_position * features[0]).sum(axis=1)
        return total

    def _contracted(self, values: np.ndarray, features: list[np.ndarray], number: int) -> np.ndarray:
        """Sums (K, positions, 8) over all axes but one, each position times its features."""
        K, blocks = len(values), self._blocks
        split = values.reshape(K, blocks, values.shape[1] // blocks, *values.shape[2:])
        shaped: list[np.ndarray] = []
        for place, (axis, feature) in enumerate(zip(self._axes, features, strict=True)):
            whole = place > 0 and not axis.blocked
            shaped.append(feature[:, None] if whole else feature.reshape(K, blocks, -1, FEATURES))
        if len(features) == 2 and values.shape[-1] == 1:  # the matrices of linear layers: as fast as BLAS
            matrix = split[..., 0] if number == 0 else split[..., 0].swapaxes(2, 3)
            contracted = matrix @ shaped[1 - number]
        else:
            letters = "abcdefgh"[: len(features)]
            inputs, arguments = [f"xy{letters}z"], [np.broadcast_to(split, (*split.shape[:-1], FEATURES))]
            for place, feature in enumerate(shaped):
                if place != number:
                    inputs.append(f"xy{letters[place]}z")
                    arguments.append(np.broadcast_to(feature, (K, blocks, *feature.shape[2:])))
            contracted = np.einsum(f"{','.join(inputs)}->xy{letters[number]}z", *arguments)
        if number > 0 and not self._axes[number].blocked:
            return contracted.sum(axis=1)
        return contracted.reshape(K, -1, FEATURES)


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
    first : tensor name to (1, *shape).
    others : tensor name to (K, *shape).

    Returns
    -------
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
    first : tensor name to (1, *shape).
    others : tensor name to (K, *shape).
    symmetry : the table.
    tolerance : as in ``agreement``.

    Returns
    -------
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
                these, those = (_of_blocks(side.channels, blocks.outer, symmetry) for side in (first, second))
                if (matched := _nearest(these, those, reach)) is None:
                    return None
                outers[blocks.outer] = matched
            outer = outers[blocks.outer]
        perm = np.empty((blocks.g, blocks.k), np.int64)
        for number, place in enumerate(outer.tolist()):
            if (inside := _nearest(left[number], right[place], reach)) is None:
                return None
            perm[number] = inside + place * blocks.k
        perms[group.id] = perm.reshape(group.n)
    return None if all((perm == np.arange(len(perm))).all() for perm in perms.values()) else perms


def _of_blocks(channels: Mapping[str, np.ndarray], outer: str, symmetry: Symmetry) -> np.ndarray:
    """What describes the blocks of a block permutation (..., g, features), from their channels in all groups."""
    means: list[np.ndarray] = []
    for group in leaders(symmetry):
        if isinstance(group.perm, Wreath) and group.perm.outer == outer:
            values = channels[group.id]
            waves = _waves(values).reshape(*values.shape[:-2], group.perm.g, group.perm.k, FEATURES)
            means.append(waves.mean(axis=-2))
    return np.concatenate(means, axis=-1)


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
    weights : tensor name to (K, *shape), in a gauge.
    described : their invariants.
    symmetry : the table.
    tolerance : that of rounding.
    """
    reach = REACH * tolerance + FLOOR
    K = len(described.sketches)
    unsure = np.zeros(K, bool)
    moments = Moments(weights, symmetry)
    outers: set[str] = set()
    for group in leaders(symmetry):
        blocks = shape_of(group)
        if not isinstance(group.perm, Fixed):
            channels = described.channels[group.id].reshape(-1, FEATURES)
            labels = np.repeat(np.arange(K * blocks.g), blocks.k)
            for row, perm in _exchanges(channels, labels, reach, group.n):
                unsure[row] |= not _alike(weights, row, {group.id: perm}, symmetry, tolerance)
        if blocks.outer and blocks.outer not in outers:
            outers.add(blocks.outer)
            points = _of_blocks(described.channels, blocks.outer, symmetry)
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
            # a gain has the sign that it was trained to, as no rounding changes the sign of a number that is not 0
            by_sum = np.ones((K, group.n), bool)
            for action in moments.gains(group.id):
                by_sum &= (moments.entries(action, group.id) == 0).all(axis=2)
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
    points : (N, D).
    width : 0 or more.
    labels : (N,) integers from 0; points with different labels are in different sets.

    Returns
    -------
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
    points : (N, D).
    width : the largest distance in any coordinate.
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

r"""Invariants of checkpoints whose tables have matrices: numbers that no element of the group changes.

In the gauge ``canonical`` scales have size 1 and blocks of matrices are balanced, so that two networks of one orbit
differ by permutations, signs and orthogonal matrices alone, whatever decided the order of singular values. Channels
that those mix have features that are mixed with them: with ``V = sum w C`` over the weights w of a channel and the
features C of the channels on the other axes, an orthogonal matrix R on the channel gives R V, and

.. math:: C' = \sqrt 2 V (1 + |V|^2 / k)^{-1/2} M

with a fixed matrix M on the features, and the norm of a block of k channels, gives R C'. Signs are such blocks of one
channel, complex numbers of two. Of invertible matrices what is written is read with the features that come from what is
read, and the other way round: these products need no inverse, so that blocks of low rank have smooth invariants too.
Other channels have features as in ckptzoo/symmetry/invariants.py.

Every number is smooth in the weights, as no order is: the singular values and eigenvalues enter by products alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ckptzoo.schema.groups import MATRICES, AxisAction, Fixed, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import Listing, is_float, listings, to_numpy
from ckptzoo.symmetry.invariants import (
    INVARIANT_BYTES,
    Inside,
    Invariants,
    ListedChannels,
    TensorSums,
    generator,
    listed_channels,
    random_signs,
    waves,
)
from ckptzoo.symmetry.matrix_action import matrices_of, mixed_channels
from ckptzoo.symmetry.ordering import leaders

FEATURES = 16
"""Numbers in a sketch, and features of a channel."""
SMALL = 0.1
"""Of the typical size of a weight: tensors far below it count by their size, as what is left of 0 by rounding does."""
SLOPE = 4
"""Descriptions are divided by it before they become features, so that no round multiplies rounding by more than 2."""
SPREAD = 8
"""Sketches are divided by it, so that rounding to float16 at condition 10 stays below the bound of ``BOUNDS``."""
BOUNDS = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}
"""By the dtype in which weights are stored, how far the sketches of one network are apart at most.

Measured on elements with matrices of condition 10 (tests/symmetry/matrices/test_matrix_invariants.py).
"""


@dataclass(frozen=True, eq=False)
class MatrixInvariants:
    """What K checkpoints are, whatever their order of channels and their matrices.

    Parameters
    ----------
    unordered
        sketches (K, 16), and a description of each channel that moves with it; all channels of a block that a matrix
        mixes have the same one.
    turning
        id of each group with signs or matrices to (K, n, 16), a description of each channel that takes its sign, or
        that matrices mix as they do the channels; (K, 2 n, 16) for real and imaginary parts of complex numbers, and
        (K, n, 32) for invertible matrices, which are balanced.
    """

    unordered: Invariants
    turning: Mapping[str, np.ndarray]

    def __getitem__(self, rows: Any) -> "MatrixInvariants":
        """Those of some checkpoints."""
        return MatrixInvariants(self.unordered[rows], {name: values[rows] for name, values in self.turning.items()})


def sketch_bound(dtypes: Iterable[np.dtype[Any]]) -> float:
    """How far sketches of one network are apart at most, in any number, by the coarsest of the stored dtypes."""
    return max((BOUNDS.get(dtype.name, 0.0) for dtype in dtypes), default=0.0)


def matrix_invariants(weights: Mapping[str, Any], symmetry: Symmetry) -> MatrixInvariants:
    """Describe checkpoints by sums that depend on no order of channels, no sign and no orthogonal matrix.

    The sketch is ``sum_t (<w_t, C> / N_t + r_t log N_t) / (8 sqrt(T))`` over T tensors, ``N_t^2 = |w_t|^2 + m^2``,
    with random signs r, and m a tenth of the size that the tensor would have with typical weights.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), numpy or torch, finite, in the gauge ``canonical``.
    symmetry
        a table with matrices.

    Notes
    -----
    About as many products with 16 columns for every tensor as there are layers between a channel and one that nothing
    moves, three in a transformer. Memory for 32 MiB of weights in float64, and 16 numbers a channel. Tested in
    tests/symmetry/matrices/test_matrix_invariants.py.
    """
    arrays = {name: to_numpy(array) for name, array in sorted(weights.items())}
    K = len(next(iter(arrays.values())))
    names = [name for name, array in arrays.items() if array.size and (is_float(array) or symmetry.actions_on(name))]
    tensors = [TensorSums(name, arrays[name].shape[1:], symmetry, _listed, FEATURES) for name in names]
    features = _Features(symmetry)
    sketches = np.zeros((K, FEATURES))
    described: dict[str, list[np.ndarray]] = {}
    turning: dict[str, list[np.ndarray]] = {}
    row_bytes = 8 * sum(int(np.prod(tensor.shape, dtype=np.int64)) for tensor in tensors)
    step = max(1, INVARIANT_BYTES // max(1, row_bytes))
    rounds = _rounds(tensors, symmetry)
    for start in range(0, max(K, 1), step):
        rows = slice(start, start + step)
        some = {tensor.name: _unsigned(arrays[tensor.name][rows], tensor.name, symmetry) for tensor in tensors}
        sizes = tensor_sizes(some, symmetry)
        values = [tensor.divided(some[tensor.name], sizes[tensor.name]) for tensor in tensors]
        colours = features.initial(len(sketches[rows]))
        sums = colours
        for number in range(rounds):
            sums = {key: np.zeros_like(value) for key, value in colours.items()}
            for tensor, value in zip(tensors, values, strict=True):
                total = tensor.add(value, colours, sums)
                if number == rounds - 1:
                    logarithm = np.log(sizes[tensor.name])[:, None] * random_signs(f"{tensor.name} size", 1, FEATURES)
                    sketches[rows] += (total + logarithm) / (SPREAD * np.sqrt(len(tensors)))
            if number < rounds - 1:
                colours = features.next(sums)
        for name, channels in features.described(sums).items():
            described.setdefault(name, []).append(channels)
        for name, keys in features.keys.items():
            turning.setdefault(name, []).append(np.concatenate([sums[key] for key in keys], axis=2))
    channels = {name: np.concatenate(parts) for name, parts in described.items()}
    return MatrixInvariants(
        Invariants(sketches, channels), {name: np.concatenate(parts) for name, parts in turning.items()}
    )


class _Features:
    """The features of all channels of a table, and how they follow from sums.

    Those that permutations alone move are under ``<leader>*``; those with signs or orthogonal matrices under the
    group's id; those of invertible matrices under ``<id>+`` from what is written, and ``<id>-`` from what is read.
    """

    def __init__(self, symmetry: Symmetry) -> None:
        self._blocks: dict[str, tuple[int, int]] = {}
        self._leaders: dict[str, str] = {}
        # the vector of ones stays under these matrices, and is a feature
        self._ones = {group.id for group in symmetry.groups if group.scale == "orthogonal_mean"}
        self.keys: dict[str, tuple[str, ...]] = {}
        for group in symmetry.groups:
            if group.scale in MATRICES:
                shape = group.matrix_shape
                assert shape is not None
                keys = (f"{group.id}+", f"{group.id}-") if group.scale == "linear" else (group.id,)
                self.keys[group.id] = keys
                self._blocks |= dict.fromkeys(keys, (shape[0], shape[1]))
                self._leaders |= dict.fromkeys(keys, group.id)
            elif group.flips:
                self.keys[group.id] = (group.id,)
                self._blocks[group.id] = (group.n, 1)
                self._leaders[group.id] = symmetry.leader(group.id).id
        self._moved = {group.id: group.n for group in leaders(symmetry) if group.scale not in MATRICES}
        self._mixed = {group.id: group.n for group in leaders(symmetry) if group.scale in MATRICES}

    def initial(self, K: int) -> dict[str, np.ndarray]:
        """1 for channels that are permuted or whose matrices keep the ones, 0 for others."""
        mixed = {key: np.full((K, g * k, FEATURES), float(key in self._ones)) for key, (g, k) in self._blocks.items()}
        return mixed | {f"{name}*": np.ones((K, n, FEATURES)) for name, n in self._moved.items()}

    def next(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The features that follow."""
        made = {
            f"{name}*": waves(values / SLOPE) for name, values in self.described(sums).items() if name in self._moved
        }
        for key in self._blocks:
            norms = np.sqrt(1 + self._squares(key, sums))
            made[key] = (np.sqrt(2) * sums[key] / norms) @ _mixing() + float(key in self._ones)
        return made

    def described(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """By leader a description of each channel (K, n, 16), between -1 and 1, that no sign or matrix changes."""
        totals = {name: sums[f"{name}*"].copy() for name in self._moved}
        for key, leader in self._leaders.items():
            squares = self._squares(key, sums)
            if self._blocks[key][0] * self._blocks[key][1] != (self._moved | self._mixed)[leader]:
                squares = squares[:, :: self._blocks[key][1]]  # one complex number is two positions
            bounded = squares / (1 + squares) * random_signs(f"{key} squares", 1, FEATURES)
            totals[leader] = totals[leader] + bounded if leader in totals else bounded
        return {name: value / np.sqrt(1 + value * value) for name, value in totals.items()}

    def _squares(self, key: str, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """The mean squares of each block, (K, g * k, 16), the same for all of its channels."""
        values = sums[key].reshape(len(sums[key]), *self._blocks[key], FEATURES)
        squares = (values * values).mean(axis=2, keepdims=True)
        return np.broadcast_to(squares, values.shape).reshape(sums[key].shape)


@lru_cache(maxsize=1)
def _mixing() -> np.ndarray:
    """A fixed orthogonal matrix (16, 16), so that each feature comes to depend on all."""
    return np.linalg.qr(generator("mixing").standard_normal((FEATURES, FEATURES)))[0]


def _listed(name: str, action: AxisAction, symmetry: Symmetry) -> list[ListedChannels]:
    """The channels on an axis with their features: signs and matrices act where the table scales the axis by them."""
    found: list[ListedChannels] = []
    whole = replace(action, segments=tuple(segment for segment in action.segments if segment.within is None))
    for number, mixed in enumerate(mixed_channels((whole,), symmetry)):
        blocks, k, count = mixed.places.shape
        salt = random_signs(f"{name} {number} mixed", 1, FEATURES)
        signs = random_signs(f"{name} {number} mixed places", count, FEATURES)
        keys = _keys(symmetry[mixed.group], mixed.inverted)
        found.append(ListedChannels(*keys, mixed.places.reshape(blocks * k, count), signs, salt))
    parts = [0, 0]
    for number, listing in enumerate(listings(action, symmetry)):
        if matrices_of(symmetry, listing.group) is not None:
            continue  # mixed, or gains, which are 1
        group, leader = symmetry[listing.group], symmetry.leader(listing.group)
        turned = _turned(group, action)
        inside, gate = _inside(listing, action, symmetry), _gate(listing, action, symmetry)
        if gate is not None:
            key = group.id if turned else f"{leader.id}*"
            found.append(listed_channels(f"{name} {number}", leader, key, listing, gate, FEATURES))
            continue
        if turned or inside is not None or not isinstance(leader.perm, Fixed):
            key = group.id if turned else f"{leader.id}*"
            # real and imaginary parts have one sign: they take turns, or are listings of their own
            alike = number if listing.part is None else f"pair {parts[listing.part]}"
            parts[listing.part or 0] += listing.part is not None
            made = listed_channels(f"{name} {alike}", leader, key, listing, inside, FEATURES)
            found.append(made if inside is None else replace(made, signs=made.signs[..., :1, :]))
    return found


def _turned(group: Group, action: AxisAction) -> bool:
    return group.flips and action.exponent in (1, -1) and not action.absolute


def _keys(group: Group, inverted: bool) -> tuple[str, str]:
    """Whose features are where matrices act, and to whose sums it adds: of invertible ones those of the other side."""
    if group.scale != "linear":
        return group.id, group.id
    return (f"{group.id}+", f"{group.id}-") if inverted else (f"{group.id}-", f"{group.id}+")


def _gate(listing: Listing, action: AxisAction, symmetry: Symmetry) -> Inside | None:
    """The gate with signs that multiplies the channels."""
    for item in listings(action.of_gates, symmetry):
        if _turned(symmetry[item.group], action) and np.array_equal(item.places, listing.places):
            n, inner = item.places.shape
            return Inside(item.group, item.group, np.repeat(np.arange(n)[:, None], inner, axis=1))
    return None


def _inside(listing: Listing, action: AxisAction, symmetry: Symmetry) -> Inside | None:
    """The group that acts inside the channels, as where several heads of queries share their keys."""
    if listing.inside is None:
        return None
    name, channels = listing.inside
    if (owner := matrices_of(symmetry, name)) is None:
        key = name if _turned(symmetry[name], action) else f"{symmetry.leader(name).id}*"
        return Inside(key, key, channels)
    if symmetry[owner].scale == "complex":
        turns = np.arange(channels.shape[1]) % 2
        channels = 2 * channels + (turns if listing.part is None else listing.part)
    return Inside(*_keys(symmetry[owner], (action.exponent == -1) != listing.inverse), channels)


def _rounds(tensors: list[TensorSums], symmetry: Symmetry) -> int:
    """Rounds until all channels that signs or matrices act on have features, wherever weights lead there."""
    weighted = {action.tensor for action in symmetry.actions if action.in_mass}
    known = {f"{group.id}*" for group in leaders(symmetry)}
    rounds = 1
    while True:
        reached: set[str] = set()
        for tensor in tensors:
            if tensor.name in weighted:
                for axis in tensor.axes:
                    others = [listed for other in tensor.axes if other is not axis for listed in other.listings]
                    inside = [listed.inside.reads for listed in others if listed.inside is not None]
                    if known.issuperset([*inside, *(listed.reads for listed in others)]):
                        for listed in axis.listings:
                            if listed.inside is None or listed.inside.reads in known:
                                reached.add(listed.adds)
                            if listed.inside is not None and listed.reads in known:
                                reached.add(listed.inside.adds)
        rounds += 1
        if reached <= known:
            return rounds
        known |= reached


def _unsigned(array: np.ndarray, name: str, symmetry: Symmetry) -> np.ndarray:
    """Gains that take the signs of what they multiply, without these."""
    return np.abs(array) if any(action.signs for action in symmetry.actions_on(name)) else array


def tensor_sizes(arrays: Mapping[str, np.ndarray], symmetry: Symmetry) -> dict[str, np.ndarray]:
    """For each tensor the root (K,) of its norm's square and that of a tensor of small weights."""
    weighted = {action.tensor for action in symmetry.actions if action.in_mass}
    norms = {name: _norm(array) for name, array in arrays.items()}
    counts = {name: np.sqrt(max(1, array[0].size)) if len(array) else 1.0 for name, array in arrays.items()}
    roots = [norms[name] / counts[name] for name in norms if name in weighted]
    typical = SMALL * np.median(roots, axis=0) if roots else 0.0
    sizes = {name: np.hypot(norm, typical * counts[name]) for name, norm in norms.items()}
    return {name: np.where(size == 0, 1, size) for name, size in sizes.items()}


def _norm(array: np.ndarray) -> np.ndarray:
    """Euclidean norms (K,), without overflow."""
    flat = np.abs(array.reshape(len(array), -1)).astype(np.float64)
    largest = flat.max(axis=1, initial=0)
    return largest * np.linalg.norm(flat / np.where(largest == 0, 1, largest)[:, None], axis=1)

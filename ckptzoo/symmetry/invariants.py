"""Invariants: numbers that describe a checkpoint and its channels, and that no permutation of channels changes.

They are smooth in the weights: rounding changes them by rounding alone. Checkpoints whose invariants are close may be
one network; ``comparison.py`` decides, weight by weight.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ckptzoo.schema.symmetry import AxisAction, Fixed, Symmetry, Wreath
from ckptzoo.symmetry.arrays import is_float, listings, to_numpy
from ckptzoo.symmetry.ordering import leaders, shape_of

FEATURES = 8
"""Numbers that describe a channel or a network whatever the order of channels."""
INVARIANT_BYTES = 32 * 2**20
"""Weights that are turned into float64 at a time, or one checkpoint."""


@dataclass(frozen=True, eq=False)
class Invariants:
    """What K checkpoints are, whatever the order of their channels.

    Parameters
    ----------
    sketches
        (K, 8), the same for permuted networks.
    channels
        id of each group with a permutation of its own to (K, n, 8): a description of each channel that moves with the
        channel and depends on no other order.
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
    weights
        tensor name to (K, *shape), numpy or torch, finite, scaled by a gauge.
    symmetry
        the table.

    Notes
    -----
    About 16 products with eight columns for every tensor; memory for 32 MiB of weights in float64. Tested in
    tests/symmetry/test_invariants.py.
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


def describe_blocks(channels: Mapping[str, np.ndarray], outer: str, symmetry: Symmetry) -> np.ndarray:
    """What describes the blocks of a block permutation (..., g, features), from their channels in all groups."""
    means: list[np.ndarray] = []
    for group in leaders(symmetry):
        if isinstance(group.perm, Wreath) and group.perm.outer == outer:
            values = channels[group.id]
            waves = _waves(values).reshape(*values.shape[:-2], group.perm.g, group.perm.k, FEATURES)
            if group.perm.inner == "fixed":
                waves = waves * _random_signs(f"{group.id} in blocks", group.perm.k)
            means.append(waves.mean(axis=-2))
    return np.concatenate(means, axis=-1)


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


@dataclass(frozen=True, eq=False)
class _Listing:
    """The channels of a group on an axis: positions (n, inner), signs that broadcast to them, a sign for the whole.

    ``inside`` names the group that acts inside the channels, with its channel at each of the positions; or None.
    """

    leader: str
    places: np.ndarray
    signs: np.ndarray
    salt: np.ndarray
    inside: tuple[str, np.ndarray] | None


class _Axis:
    """One of a tensor's moving axes: random signs for its positions, and which channels are where."""

    def __init__(self, name: str, size: int, action: AxisAction | None, symmetry: Symmetry) -> None:
        blocks = 1 if action is None else action.blocks
        self.blocked = blocks > 1
        self.signs = _random_signs(name, size * blocks)
        self.listings: list[_Listing] = []
        for number, item in enumerate([] if action is None else listings(action, symmetry)):
            leader, places, inside = symmetry.leader(item.group), item.places, item.inside
            if not isinstance(leader.perm, Fixed):
                signs = _random_signs(f"{name} {number} places", places.shape[1])
                if inside is not None:  # positions of another group's channels are alike
                    each = int((inside[1][0] == inside[1][0, 0]).sum())
                    signs = np.tile(signs[:each], (places.shape[1] // each, 1))
                elif (shape := shape_of(leader)).inner == "fixed":  # channels of a block differ as positions do
                    count = shape.k * places.shape[1]
                    each = _random_signs(f"{name} {number} in blocks", count).reshape(shape.k, -1, FEATURES)
                    signs = np.tile(each, (shape.g, 1, 1))
                self.listings.append(_Listing(leader.id, places, signs, _random_signs(f"{name} {number}", 1), inside))

    def features(self, colours: Mapping[str, np.ndarray], K: int) -> np.ndarray:
        """(K, positions, 8): the colours of channels that move, signs for other positions."""
        features = np.repeat(self.signs[None], K, axis=0)
        for item in self.listings:
            features[:, item.places] = colours[item.leader][:, :, None] * item.signs
            if item.inside is not None:
                features[:, item.places] *= colours[item.inside[0]][:, item.inside[1]]
        return features

    def add(self, sums: Mapping[str, np.ndarray], values: np.ndarray, colours: Mapping[str, np.ndarray]) -> None:
        """Add values (K, positions, 8) to the sums of the channels there, times what else is there."""
        for item in self.listings:
            found = values[:, item.places] * item.signs
            whole = item.salt * np.sqrt(len(item.places))
            if item.inside is None:
                sums[item.leader][...] += found.sum(axis=2) * whole
                continue
            name, channels = item.inside
            sums[item.leader][...] += (found * colours[name][:, channels]).sum(axis=2) * whole
            found = (found * colours[item.leader][:, :, None]).reshape(len(values), -1, FEATURES)
            order = np.argsort(channels, axis=None, kind="stable")
            n = sums[name].shape[1]
            sums[name][...] += found[:, order].reshape(len(values), n, -1, FEATURES).sum(axis=2) * (
                item.salt * np.sqrt(n)
            )


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
                axis.add(sums, by_position, colours)
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

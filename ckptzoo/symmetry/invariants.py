"""Invariants: numbers that describe a checkpoint and its channels, and that no permutation of channels changes.

They are smooth in the weights: rounding changes them by rounding alone. Checkpoints whose invariants are close may be
one network; ``comparison.py`` decides, weight by weight.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ckptzoo.schema.groups import AxisAction, Fixed, Group, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import Listing, is_float, listings, to_numpy
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
        TensorSums(name, array.shape[1:], symmetry, permuted)
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
                colours = {name: waves(value) for name, value in squashed.items()}
    return described


def describe_blocks(channels: Mapping[str, np.ndarray], outer: str, symmetry: Symmetry) -> np.ndarray:
    """What describes the blocks of a block permutation (..., g, features), from their channels in all groups."""
    means: list[np.ndarray] = []
    for group in leaders(symmetry):
        if isinstance(group.perm, Wreath) and group.perm.outer == outer:
            values = channels[group.id]
            shape = (*values.shape[:-2], group.perm.g, group.perm.k, values.shape[-1])
            features = waves(values).reshape(shape)
            if group.perm.inner == "fixed":
                features = features * random_signs(f"{group.id} in blocks", group.perm.k, shape[-1])
            means.append(features.mean(axis=-2))
    return np.concatenate(means, axis=-1)


def waves(values: np.ndarray) -> np.ndarray:
    """Smooth features (..., F) of size about 1 of what describes a channel, (..., F)."""
    frequencies, phases = _wave_parameters(values.shape[-1])
    return np.sqrt(2) * np.cos(values @ frequencies + phases)


@lru_cache(maxsize=4)
def _wave_parameters(features: int) -> tuple[np.ndarray, np.ndarray]:
    """Random frequencies (F, F) and phases (F,), always the same."""
    rng = generator("waves")
    return rng.standard_normal((features, features)), rng.uniform(0, 2 * np.pi, features)


def generator(name: str) -> np.random.Generator:
    """Random numbers that follow from a name."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little"))


def random_signs(name: str, count: int, features: int = FEATURES) -> np.ndarray:
    """(count, F) of 1 and -1."""
    return generator(name).choice([-1.0, 1.0], (count, features))


def _largest(flat: np.ndarray) -> np.ndarray:
    return np.abs(flat).max(axis=1)


def _norm(flat: np.ndarray) -> np.ndarray:
    return np.linalg.norm(flat, axis=1)


@dataclass(frozen=True, eq=False)
class Inside:
    """The channels of a group inside those of another: whose features, to whose sums, and which at each position."""

    reads: str
    adds: str
    channels: np.ndarray


@dataclass(frozen=True, eq=False)
class ListedChannels:
    """The channels of a group along an axis.

    Parameters
    ----------
    reads, adds
        whose features are there, and to whose sums the axis adds.
    places
        (n, positions a channel).
    signs
        (positions a channel, F), or (n, positions a channel, F) where channels cannot be exchanged.
    salt
        (1, F) signs of this listing.
    inside
        the group that acts inside the channels; or None.
    """

    reads: str
    adds: str
    places: np.ndarray
    signs: np.ndarray
    salt: np.ndarray
    inside: Inside | None = None


Lister = Callable[[str, AxisAction, Symmetry], list[ListedChannels]]
"""From a name for an axis, its action, and the table."""


def permuted(name: str, action: AxisAction, symmetry: Symmetry) -> list[ListedChannels]:
    """The channels on an axis that permutations move, by the group that leads each permutation."""
    found: list[ListedChannels] = []
    for number, item in enumerate(listings(action, symmetry)):
        leader, inside = symmetry.leader(item.group), None
        if not isinstance(leader.perm, Fixed):
            if item.inside is not None:
                inside = Inside(item.inside[0], item.inside[0], item.inside[1])
            found.append(listed_channels(f"{name} {number}", leader, leader.id, item, inside))
    return found


def listed_channels(
    name: str, leader: Group, key: str, listing: Listing, inside: Inside | None = None, features: int = FEATURES
) -> ListedChannels:
    """Channels that take the permutation of a leader, which read from the key and add to it."""
    places = listing.places
    signs = random_signs(f"{name} places", places.shape[1], features)
    if listing.inside is not None:  # positions of another group's channels are alike
        first = listing.inside[1][0]
        each = int((first == first[0]).sum())
        signs = np.tile(signs[:each], (places.shape[1] // each, 1))
    elif (shape := shape_of(leader)).inner == "fixed":  # channels of a block differ as positions do
        count = shape.k * places.shape[1]
        each = random_signs(f"{name} in blocks", count, features).reshape(shape.k, -1, features)
        signs = np.tile(each, (shape.g, 1, 1))
    return ListedChannels(key, key, places, signs, random_signs(name, 1, features), inside)


class Axis:
    """One of a tensor's moving axes: random signs for its positions, and which channels are where."""

    def __init__(
        self, name: str, size: int, blocks: int, listings: Sequence[ListedChannels], features: int = FEATURES
    ) -> None:
        self.blocked, self.listings = blocks > 1, listings
        self.signs = random_signs(name, size * blocks, features)

    def features(self, colours: Mapping[str, np.ndarray], K: int) -> np.ndarray:
        """(K, positions, F): the colours of channels that move, signs for other positions."""
        features = np.repeat(self.signs[None], K, axis=0)
        for listed in self.listings:
            features[:, listed.places] = colours[listed.reads][:, :, None] * listed.signs
            if listed.inside is not None:
                features[:, listed.places] *= colours[listed.inside.reads][:, listed.inside.channels]
        return features

    def add(self, sums: Mapping[str, np.ndarray], values: np.ndarray, colours: Mapping[str, np.ndarray]) -> None:
        """Add values (K, positions, F) to the sums of the channels there, times what else is there."""
        for listed in self.listings:
            found = values[:, listed.places] * listed.signs
            whole = listed.salt * np.sqrt(len(listed.places))
            if (inside := listed.inside) is None:
                sums[listed.adds][...] += found.sum(axis=2) * whole
                continue
            sums[listed.adds][...] += (found * colours[inside.reads][:, inside.channels]).sum(axis=2) * whole
            found = (found * colours[listed.reads][:, :, None]).reshape(len(values), -1, found.shape[-1])
            order, taken = np.argsort(inside.channels, axis=None, kind="stable"), np.unique(inside.channels)
            inner = found[:, order].reshape(len(values), len(taken), -1, found.shape[-1]).sum(axis=2)
            sums[inside.adds][:, taken] += inner * (listed.salt * np.sqrt(sums[inside.adds].shape[1]))


class TensorSums:
    """Sums over one tensor with features of channels in place of the orders of channels.

    Parameters
    ----------
    name, shape
        of the tensor, in one checkpoint.
    symmetry
        the table.
    listing
        which channels are along an axis.
    features
        F.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], symmetry: Symmetry, listing: Lister, features: int = FEATURES
    ) -> None:
        self.name, self.shape = name, shape
        actions = {action.axis: action for action in symmetry.actions_on(name)}
        self._blocks = max((action.blocks for action in actions.values()), default=1)
        axes = sorted(actions.keys() | ({0} if self._blocks > 1 else set[int]()))
        still = [axis for axis in range(len(shape)) if axis not in axes]
        self._order = (0, *(axis + 1 for axis in (*axes, *still)))
        self.axes = [
            Axis(
                f"{name} {axis}",
                shape[axis],
                actions[axis].blocks if axis in actions else 1,
                listing(f"{name} {axis}", actions[axis], symmetry) if axis in actions else [],
                features,
            )
            for axis in axes
        ]
        self._signs = random_signs(name, int(np.prod([shape[axis] for axis in still], dtype=np.int64)), features)

    def arranged(self, array: np.ndarray) -> np.ndarray:
        """A tensor in float64 and of norm 1: (K, *moving axes, F), summed with signs over what stays; or 1 for F."""
        flat = array.transpose(self._order).astype(np.float64).reshape(len(array), -1)
        for size_of in (_largest, _norm):  # first by the largest, so that no square overflows or vanishes
            size = size_of(flat)
            flat = flat / np.where(size == 0, 1, size)[:, None]
        return self._summed(flat)

    def divided(self, array: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The same of a tensor divided by sizes (K,)."""
        flat = array.transpose(self._order).astype(np.float64).reshape(len(array), -1)
        return self._summed(flat / sizes[:, None])

    def _summed(self, flat: np.ndarray) -> np.ndarray:
        moving = [self.shape[axis - 1] for axis in self._order[1 : 1 + len(self.axes)]]
        values = flat.reshape(len(flat), *moving, len(self._signs))
        return values @ self._signs if values.shape[-1] > 1 else values

    def add(self, values: np.ndarray, colours: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """Add to the sums of each axis' channels; returns the sums (K, F) of everything."""
        K, features = len(values), self._signs.shape[1]
        if not self.axes:
            return np.broadcast_to(values, (K, features))
        by_axis = [axis.features(colours, K) for axis in self.axes]
        total = np.zeros((K, features))
        for number, axis in enumerate(self.axes):
            if axis.listings or number == 0:
                by_position = self._contracted(values, by_axis, number)
                axis.add(sums, by_position, colours)
                if number == 0:
                    total = (by_position * by_axis[0]).sum(axis=1)
        return total

    def _contracted(self, values: np.ndarray, by_axis: list[np.ndarray], number: int) -> np.ndarray:
        """Sums (K, positions, F) over all axes but one, each position times its features."""
        K, blocks, F = len(values), self._blocks, self._signs.shape[1]
        split = values.reshape(K, blocks, values.shape[1] // blocks, *values.shape[2:])
        shaped: list[np.ndarray] = []
        for place, (axis, feature) in enumerate(zip(self.axes, by_axis, strict=True)):
            whole = place > 0 and not axis.blocked
            shaped.append(feature[:, None] if whole else feature.reshape(K, blocks, -1, F))
        if len(by_axis) == 2 and values.shape[-1] == 1:  # the matrices of linear layers: as fast as BLAS
            matrix = split[..., 0] if number == 0 else split[..., 0].swapaxes(2, 3)
            contracted = matrix @ shaped[1 - number]
        else:
            letters = "abcdefgh"[: len(by_axis)]
            inputs, arguments = [f"xy{letters}z"], [np.broadcast_to(split, (*split.shape[:-1], F))]
            for place, feature in enumerate(shaped):
                if place != number:
                    inputs.append(f"xy{letters[place]}z")
                    arguments.append(np.broadcast_to(feature, (K, blocks, *feature.shape[2:])))
            contracted = np.einsum(f"{','.join(inputs)}->xy{letters[number]}z", *arguments)
        if number > 0 and not self.axes[number].blocked:
            return contracted.sum(axis=1)
        return contracted.reshape(K, -1, F)

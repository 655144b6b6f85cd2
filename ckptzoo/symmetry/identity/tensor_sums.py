"""Sums over a tensor weighted by features of channels, so that they do not depend on the order of channels."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ckptzoo.schema.groups import AxisAction, Fixed, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import Listing, listings
from ckptzoo.symmetry.kinds.kind import Kind
from ckptzoo.symmetry.kinds.matrix import Matrix
from ckptzoo.symmetry.matrix_action import matrices_of, mixed_channels
from ckptzoo.symmetry.ordering import shape_of


class Description:
    """The number of features that describe a channel and a network, and the kinds that they distinguish."""

    features: int
    """Numbers that describe a channel or a network."""
    turns = False
    """Whether it leaves open what signs and matrices do."""

    def kind(self, group: Group) -> Kind:
        """Return the kind of a group, as it is described."""
        raise NotImplementedError


def generator(name: str) -> np.random.Generator:
    """Return random numbers that follow from a name."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little"))


def random_signs(name: str, count: int, features: int) -> np.ndarray:
    """Return random signs (count, F), 1 and -1."""
    return generator(name).choice([-1.0, 1.0], (count, features))


def norms(array: np.ndarray) -> np.ndarray:
    """Return Euclidean norms (K,), without overflow."""
    flat = np.abs(array.reshape(len(array), -1)).astype(np.float64)
    largest = flat.max(axis=1, initial=0)
    return largest * np.linalg.norm(flat / np.where(largest == 0, 1, largest)[:, None], axis=1)


@dataclass(frozen=True, eq=False)
class _Inside:
    """The channels of a group inside those of another: keys of their features and sums, and which is at each place."""

    reads: str
    adds: str
    channels: np.ndarray


@dataclass(frozen=True, eq=False)
class ListedChannels:
    """The channels of a group along an axis: keys of the features there and of the sums to which the axis adds."""

    reads: str
    adds: str
    places: np.ndarray
    """(n, positions a channel)."""
    signs: np.ndarray
    """(positions a channel, F), or (n, positions a channel, F) where channels cannot be exchanged."""
    salt: np.ndarray
    """(1, F) signs of this listing."""
    inside: _Inside | None = None
    """The group that acts inside the channels."""


def order_key(group: Group) -> str:
    """Return the key of the features of channels that a permutation alone moves, by the group that leads it."""
    return f"{group.id}*"


class _Lister:
    """Lists the channels on one axis with the keys of their features."""

    def __init__(self, name: str, action: AxisAction, symmetry: Symmetry, form: Description) -> None:
        self._name, self._action, self._symmetry, self._form = name, action, symmetry, form

    def listed(self) -> list[ListedChannels]:
        """Return channels that matrices mix, and then the others."""
        parts = [0, 0]
        found = self._mixed()
        for number, listing in enumerate(listings(self._action, self._symmetry)):
            owner = matrices_of(self._symmetry, listing.group)
            if owner is not None and (self._action.role == "gain" or self._open_matrices(owner) is not None):
                continue  # mixed, or gains, which are 1
            leader = self._symmetry.leader(listing.group)
            turned = self._form.kind(self._symmetry[listing.group]).turned_by(self._action)
            key = listing.group if turned else order_key(leader)
            if (gate := self._gate(listing)) is not None:
                found.append(self._channels(f"{self._name} {number}", key, listing, gate))
            elif (inside := self._inside(listing)) is not None or turned or not isinstance(leader.perm, Fixed):
                # real and imaginary parts have one sign: they take turns, or are listings of their own
                alike = number if listing.part is None else f"pair {parts[listing.part]}"
                parts[listing.part or 0] += listing.part is not None
                made = self._channels(f"{self._name} {alike}", key, listing, inside)
                # matrices may mix the positions inside, so that these have one sign
                cut = inside is not None and self._form.turns
                found.append(replace(made, signs=made.signs[:1]) if cut else made)
        return found

    def _mixed(self) -> list[ListedChannels]:
        found: list[ListedChannels] = []
        for number, mixed in enumerate(mixed_channels((self._action.without_others_inside,), self._symmetry)):
            blocks, k, count = mixed.places.shape
            if (kind := self._open_matrices(mixed.group)) is None:
                continue
            name = f"{self._name} {number} mixed"
            salt = random_signs(name, 1, self._form.features)
            signs = random_signs(f"{name} places", count, self._form.features)
            keys = kind.keys(self._symmetry[mixed.group], mixed.inverted)
            found.append(ListedChannels(*keys, mixed.places.reshape(blocks * k, count), signs, salt))
        return found

    def _open_matrices(self, name: str) -> Matrix | None:
        """Return the kind of a group's matrices; None where the gauge settles them."""
        kind = self._form.kind(self._symmetry[name])
        return kind if isinstance(kind, Matrix) and kind.stays_open else None

    def _channels(self, name: str, key: str, listing: Listing, inside: _Inside | None) -> ListedChannels:
        """Return channels that take the permutation of a leader, which read from the key and add to it."""
        places, shape = listing.places, shape_of(self._symmetry.leader(listing.group))
        signs = random_signs(f"{name} places", places.shape[1], self._form.features)
        if listing.inside is not None:  # positions of another group's channels are alike
            first = listing.inside[1][0]
            each = int((first == first[0]).sum())
            signs = np.tile(signs[:each], (places.shape[1] // each, 1))
        elif shape.inner == "fixed":  # channels of a block differ as positions do
            count = shape.k * places.shape[1]
            each = random_signs(f"{name} in blocks", count, self._form.features).reshape(
                shape.k, -1, self._form.features
            )
            signs = np.tile(each, (shape.g, 1, 1))
        return ListedChannels(key, key, places, signs, random_signs(name, 1, self._form.features), inside)

    def _gate(self, listing: Listing) -> _Inside | None:
        """Return the gate with signs that multiplies the channels."""
        for item in listings(self._action.of_gates, self._symmetry):
            turned = self._form.kind(self._symmetry[item.group]).turned_by(self._action)
            if turned and np.array_equal(item.places, listing.places):
                n, inner = item.places.shape
                return _Inside(item.group, item.group, np.repeat(np.arange(n)[:, None], inner, axis=1))
        return None

    def _inside(self, listing: Listing) -> _Inside | None:
        """Return the group that acts inside the channels, as where several heads of queries share their keys."""
        if listing.inside is None:
            return None
        name, channels = listing.inside
        owner = matrices_of(self._symmetry, name)
        if owner is None or (kind := self._open_matrices(owner)) is None:
            turned = self._form.kind(self._symmetry[name]).turned_by(self._action)
            key = name if turned else order_key(self._symmetry.leader(name))
            return _Inside(key, key, channels)
        group, inverted = self._symmetry[owner], (self._action.exponent == -1) != listing.inverse
        return _Inside(*kind.keys(group, inverted), kind.positions(channels, listing.part))


class _Axis:
    """One of a tensor's moving axes: random signs for its positions, and which channels are where."""

    def __init__(self, name: str, size: int, blocks: int, listings: list[ListedChannels], features: int) -> None:
        self.blocked, self.listings = blocks > 1, listings
        self.signs = random_signs(name, size * blocks, features)

    def features(self, colours: Mapping[str, np.ndarray], K: int) -> np.ndarray:
        """Return (K, positions, F): the colours of channels that move, signs for other positions."""
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


def _largest(flat: np.ndarray) -> np.ndarray:
    return np.abs(flat).max(axis=1)


def _norm(flat: np.ndarray) -> np.ndarray:
    return np.linalg.norm(flat, axis=1)


class TensorSums:
    """Sums over one tensor, given by its name and shape in one checkpoint."""

    def __init__(self, name: str, shape: tuple[int, ...], symmetry: Symmetry, form: Description) -> None:
        self.name, self.shape = name, shape
        actions = {action.axis: action for action in symmetry.actions_on(name)}
        self._blocks = max((action.blocks for action in actions.values()), default=1)
        axes = sorted(actions.keys() | ({0} if self._blocks > 1 else set[int]()))
        still = [axis for axis in range(len(shape)) if axis not in axes]
        self._order = (0, *(axis + 1 for axis in (*axes, *still)))
        self.axes = [
            _Axis(
                f"{name} {axis}",
                shape[axis],
                actions[axis].blocks if axis in actions else 1,
                _Lister(f"{name} {axis}", actions[axis], symmetry, form).listed() if axis in actions else [],
                form.features,
            )
            for axis in axes
        ]
        count = int(np.prod([shape[axis] for axis in still], dtype=np.int64))
        self._signs = random_signs(name, count, form.features)

    def of_norm_one(self, array: np.ndarray) -> np.ndarray:
        """Return a tensor divided by its norm: (K, *moving axes, F), summed with signs over what stays; or 1 for F."""
        flat = self._flat(array)
        for size_of in (_largest, _norm):  # first by the largest, so that no square overflows or vanishes
            size = size_of(flat)
            flat = flat / np.where(size == 0, 1, size)[:, None]
        return self._summed(flat)

    def divided(self, array: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return a tensor divided by sizes (K,), summed in the same way."""
        return self._summed(self._flat(array) / sizes[:, None])

    def _flat(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(self._order).astype(np.float64).reshape(len(array), -1)

    def _summed(self, flat: np.ndarray) -> np.ndarray:
        moving = [self.shape[axis - 1] for axis in self._order[1 : 1 + len(self.axes)]]
        values = flat.reshape(len(flat), *moving, len(self._signs))
        return values @ self._signs if values.shape[-1] > 1 else values

    def add(self, values: np.ndarray, colours: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """Add to the sums of each axis' channels, and return the sums (K, F) of everything."""
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
        """Return sums (K, positions, F) over all axes but one, each position times its features."""
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

"""The weights that matrices act on, side by side or multiplied by matrices.

``new = G old`` along the axes that write a block's channels and ``new = G^-T old`` along those that read them, once
whole blocks are in the order of the permutation. Groups that are ``Like`` one with orthogonal matrices take these.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import listings, stored_dtype, to_numpy

PIECE = 2**22
"""Elements that are mixed at a time, at least one checkpoint's tensor: 32 MiB of float64."""
SQUARED = 2**21
"""Elements that are squared, or multiplied by both sides of a basis, at a time: 16 MiB of float64."""
UNIT = 8
"""The number of units of the stored precision within which a gain counts as 1."""
Arrays = Mapping[str, NDArray[Any]]
"""Tensor name to (K, *shape)."""


@dataclass(frozen=True, eq=False)
class MixedChannels:
    """The channels of one group with matrices along one axis of one tensor.

    ``axis`` does not count that of checkpoints; ``inverted`` says whether the inverse transposes act; ``places`` are
    (blocks, k, positions a channel), of complex numbers (n, 2, positions), real and imaginary parts.
    """

    group: str
    axis: int
    inverted: bool
    places: np.ndarray


def matrices_of(symmetry: Symmetry, group: str) -> str | None:
    """Return the group whose matrices act on a group's channels: its own, or that which it is like; or None."""
    for name in (group, symmetry.leader(group).id):
        if symmetry[name].matrix_shape is not None:
            return name
    return None


def mixed_channels(actions: Sequence[AxisAction], symmetry: Symmetry) -> list[MixedChannels]:
    """Return the channels that matrices mix in one tensor, by its actions, without gains, which must be 1 there."""
    found: list[MixedChannels] = []
    for action in actions:
        parts: dict[tuple[str, bool], list[np.ndarray]] = {}
        for listing in listings(action, symmetry):
            name, places = listing.group, listing.places
            if listing.inside is not None:  # a group with matrices acts inside the channels of one without
                name, channels = listing.inside
                order = np.argsort(channels, axis=None, kind="stable")
                places = places.ravel()[order].reshape(symmetry[name].n, -1)
            owner = matrices_of(symmetry, name)
            if owner is None or action.role == "gain":
                continue
            inverted = (action.exponent == -1) != listing.inverse
            shape = symmetry[owner].matrix_shape
            assert shape is not None
            if len(shape) == 2:  # complex numbers
                if listing.part is None:
                    pairs = places.reshape(len(places), -1, 2).swapaxes(1, 2)
                    found.append(MixedChannels(owner, action.axis, inverted, pairs))
                else:
                    parts.setdefault((owner, inverted), [np.zeros((0, 0)), np.zeros((0, 0))])
                    sides = parts[owner, inverted]
                    side = sides[listing.part]
                    sides[listing.part] = np.concatenate([side, places], axis=1) if side.size else places
                continue
            found.append(MixedChannels(owner, action.axis, inverted, places.reshape(*shape[:2], -1)))
        for (owner, inverted), sides in parts.items():
            found.append(MixedChannels(owner, action.axis, inverted, np.stack(sides, axis=1)))
    return found


@dataclass(frozen=True, eq=False)
class Gain:
    """The gains of a group's channels at the positions ``places`` (n,); the tensor's other axes are of size 1."""

    group: str
    tensor: str
    axis: int
    places: np.ndarray

    def of(self, weights: Mapping[str, Any]) -> np.ndarray:
        """Return the gains of K checkpoints, a view (K, n, 1, ...)."""
        return np.moveaxis(to_numpy(weights[self.tensor]), self.axis + 1, 1)[:, self.places]


def gains_at_one(symmetry: Symmetry) -> list[Gain]:
    """Return the gains that must be 1, as orthogonal matrices mix what they multiply."""
    return [
        Gain(listing.group, action.tensor, action.axis, listing.places[:, 0])
        for action in symmetry.actions
        if action.role == "gain"
        for listing in listings(action, symmetry)
        if matrices_of(symmetry, listing.group) is not None
    ]


def with_unit_gains(weights: Mapping[str, np.ndarray], symmetry: Symmetry) -> dict[str, np.ndarray]:
    """Return weights (K, *shape) of the same function whose gains are 1 where orthogonal matrices need it.

    What reads a channel behind the normalisation is multiplied by its gain, and the normalisation's shift divided by
    it. A checkpoint that has a gain of 0 and a shift beside it that is not 0 keeps its gains. Arrays that change are
    new, rounded once from float64, half precisions to float32; the others are returned unchanged.
    """
    found = gains_at_one(symmetry)
    gains = {gain.group: gain.of(weights).reshape(-1, len(gain.places)).astype(np.float64) for gain in found}
    usable = dict.fromkeys(gains, np.ones(len(next(iter(weights.values()))), bool))
    factors: dict[str, list[tuple[int, np.ndarray, str, int]]] = {}
    for action in symmetry.actions:
        for listing in listings(action, symmetry):
            if listing.group in gains:
                exponent = -action.exponent if listing.inverse else action.exponent
                if (gains[listing.group] != 1).any():
                    factor = (action.axis, listing.places, listing.group, exponent)
                    factors.setdefault(action.tensor, []).append(factor)
                if exponent == 1 and action.role != "gain":
                    moved = np.moveaxis(weights[action.tensor], action.axis + 1, 1)[:, listing.places]
                    lost = (moved != 0).reshape(*moved.shape[:2], -1).any(axis=2) & (gains[listing.group] == 0)
                    usable[listing.group] = usable[listing.group] & ~lost.any(axis=1)
    made = dict(weights)
    for tensor, acting in factors.items():
        if all((gains[group] == 1).all() for _, _, group, _ in acting):
            continue
        wide = weights[tensor].astype(np.float64)
        for axis, places, group, exponent in acting:
            used = usable[group][:, None] & (gains[group] != 0) if exponent == 1 else usable[group][:, None]
            factor = np.where(used, gains[group], 1)
            view = np.moveaxis(wide, axis + 1, 1)
            if places.shape[1] == 1 and _in_order(places, view.shape[1]):
                act = np.divide if exponent == 1 else np.multiply
                act(view, factor.reshape(*factor.shape, *[1] * (view.ndim - 2)), out=view)
                continue
            factor = factor.reshape(*factor.shape, *[1] * (view.ndim - 1))
            view[:, places] = view[:, places] / factor if exponent == 1 else view[:, places] * factor
        for gain in found:
            if gain.tensor == tensor:
                np.moveaxis(wide, gain.axis + 1, 1)[np.ix_(usable[gain.group], gain.places)] = 1
        made[tensor] = wide.astype(stored_dtype(weights[tensor].dtype))
    return made


def have_unit_gains(weights: Mapping[str, np.ndarray], symmetry: Symmetry) -> np.ndarray:
    """Return which checkpoints (K,) have gains of 1 wherever orthogonal matrices need it."""
    found = np.ones(len(next(iter(weights.values()))), bool)
    for gain in gains_at_one(symmetry):
        found &= (gain.of(weights).reshape(len(found), -1) == 1).all(axis=1)
    return found


def unit_gains(weights: Mapping[str, Any], symmetry: Symmetry, acting: set[str]) -> None:
    """Raise ``SymmetryError`` for gains other than 1 between channels that orthogonal matrices mix and their readers.

    ``acting`` are the groups whose matrices are not the identity.
    """
    for gain in gains_at_one(symmetry):
        values = gain.of(weights)
        precision = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 2.0**-7
        off = float(np.abs(values.astype(np.float64) - 1).max(initial=0))
        if matrices_of(symmetry, gain.group) in acting and not off <= UNIT * precision:
            raise SymmetryError(
                f"weights: tensor {gain.tensor!r}: expected gains of 1, as orthogonal matrices mix the channels that "
                f"it multiplies, got one that differs by {off:.3g}. Bring the gains to 1 first: "
                "ckptzoo.symmetry.fold(weights, table)."
            )


def multiply(work: Any, channels: Sequence[MixedChannels], matrices: Mapping[str, Any]) -> None:
    """Mix the channels of stacked weights (K, *shape), float64 and contiguous, in place.

    ``matrices`` maps groups to (K, blocks, k, k) float64 or (K, n, 2), of the framework and on the device of the
    weights; other groups stay.
    """
    xp: Any = array_namespace(work)
    for mixed in channels:
        if mixed.group not in matrices:
            continue
        matrix = matrices[mixed.group]
        matrix = _real(matrix) if matrix.ndim == 3 else matrix
        if mixed.inverted:
            matrix = xp.linalg.inv(matrix).swapaxes(-1, -2)
        blocks, k, count = mixed.places.shape
        rows, size, columns = _sides(tuple(work.shape[1:]), mixed.axis)
        view = work.reshape(len(work), rows, size, columns)
        index = None if _in_order(mixed.places, size) else _constant(mixed.places.ravel(), work)
        for some in _pieces(len(work), rows, size, columns):
            taken = view[some] if index is None else view[some][:, :, index]
            shape = taken.shape
            joined = xp.permute_dims(taken.reshape(*shape[:2], blocks, k, count, -1), (0, 2, 3, 1, 4, 5))
            made = xp.matmul(matrix[some[0]], joined.reshape(shape[0], blocks, k, -1))
            made = xp.permute_dims(made.reshape(joined.shape), (0, 3, 1, 2, 4, 5))
            if index is None:
                view[some] = made.reshape(shape)
            else:
                view[some][:, :, index] = made.reshape(shape)


def _in_order(places: np.ndarray, size: int) -> bool:
    """Whether places are all positions of an axis, one after the other."""
    return places.size == size and bool((places.ravel() == np.arange(size)).all())


def _pieces(K: int, rows: int, size: int, columns: int) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Yield cuts of stacked weights (K, rows, size, columns) whose axis of this size is whole."""
    whole = slice(None)
    if (most := PIECE // max(1, rows * size * columns)) >= 1:
        yield from ((slice(at, at + most), whole, whole, whole) for at in range(0, K, most))
    elif rows > 1:
        step = max(1, PIECE // (size * columns))
        for at in range(K):
            yield from ((slice(at, at + 1), slice(start, start + step), whole, whole) for start in range(0, rows, step))
    else:
        step = max(1, PIECE // size)
        for at in range(K):
            yield from (
                (slice(at, at + 1), whole, whole, slice(start, start + step)) for start in range(0, columns, step)
            )


def _sides(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _real(numbers: Any) -> Any:
    """Return complex numbers (K, n, 2) as matrices (K, n, 2, 2)."""
    xp = array_namespace(numbers)
    a, b = numbers[..., 0], numbers[..., 1]
    return xp.stack([xp.stack([a, -b], axis=-1), xp.stack([b, a], axis=-1)], axis=-2)


def _constant(values: np.ndarray, like: Any) -> Any:
    return values if isinstance(like, np.ndarray) else array_namespace(like).asarray(values, device=device(like))


def joined_rows(
    arrays: Arrays, group: Group, symmetry: Symmetry, *, inverted: bool, biases: bool = False
) -> NDArray[np.float64]:
    """Return all that is written or read by a group's channels side by side, (K, blocks, k, m) float64."""
    parts: list[NDArray[np.float64]] = []
    for name, actions in by_tensor(symmetry):
        for action in actions:
            if (biases or action.in_mass) and is_acting(action, group.id, symmetry):
                parts += [
                    channel_rows(arrays[name], mixed)
                    for mixed in mixed_channels((action,), symmetry)
                    if mixed.group == group.id and mixed.inverted == inverted
                ]
    if not parts:
        shape = group.matrix_shape
        assert shape is not None
        return np.zeros((len(next(iter(arrays.values()))), *shape[:2], 1))
    return np.concatenate(parts, axis=-1)


def channel_rows(array: NDArray[Any], mixed: MixedChannels) -> NDArray[np.float64]:
    """Return the weights of each channel in a tensor, (K, blocks, k, m) float64."""
    moved = np.moveaxis(array, mixed.axis + 1, 1)
    taken = moved[:, mixed.places]  # (K, blocks, k, positions, ...)
    return taken.reshape(*taken.shape[:3], -1).astype(np.float64)


def writers_of(group: Group, symmetry: Symmetry) -> Iterator[tuple[int, MixedChannels]]:
    """Yield what writes the channels of a group itself, with the number of the action."""
    for at, action in enumerate(symmetry.actions):
        own = {segment.group for segment in action.segments}
        if group.id not in own:
            continue
        for mixed in mixed_channels((action,), symmetry):
            if mixed.group == group.id and not mixed.inverted:
                yield at, mixed


def add_gram(array: NDArray[Any], mixed: MixedChannels, total: NDArray[np.float64]) -> None:
    """Add W W^T of a tensor's channels, a piece at a time."""
    blocks, k, count = mixed.places.shape
    moved = np.moveaxis(array, mixed.axis + 1, 1)
    flat = moved.reshape(len(moved), moved.shape[1], -1)
    step = max(1, SQUARED // (blocks * k * count))
    for at, one in enumerate(flat):
        for start in range(0, flat.shape[2], step):
            piece = one[mixed.places.ravel(), start : start + step].astype(np.float64)
            piece = piece.reshape(blocks, k, -1)
            total[at] += piece @ piece.swapaxes(-1, -2)


def precision_of(arrays: Arrays, group: Group, symmetry: Symmetry) -> float:
    """Return the largest machine epsilon of the tensors that a group acts on."""
    tensors = {action.tensor for action in symmetry.actions if group.id in action.groups}
    return max(float(np.finfo(arrays[name].dtype).eps) for name in tensors)


def multiply_sides(
    arrays: dict[str, NDArray[Any]],
    group: str,
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    symmetry: Symmetry,
    *,
    copy: bool = False,
) -> None:
    """Multiply what is written by one matrix and what is read by the other, in place or in new arrays."""
    for name, actions in by_tensor(symmetry):
        if not any(is_acting(action, group, symmetry) for action in actions):
            continue
        mixed = [item for item in mixed_channels(actions, symmetry) if item.group == group]
        if not mixed:
            continue
        target = arrays[name].copy() if copy else arrays[name]
        step = max(1, SQUARED // max(1, math.prod(target.shape[1:])))
        for start in range(0, len(target), step):
            some = slice(start, start + step)
            work = np.array(target[some], np.float64)
            for item in mixed:
                side = right if item.inverted else left
                multiply(work, [replace(item, inverted=False)], {group: side[some]})
            target[some] = work
        arrays[name] = target


def by_tensor(symmetry: Symmetry) -> Iterator[tuple[str, tuple[AxisAction, ...]]]:
    """Yield each tensor of a table with its actions."""
    for name in dict.fromkeys(action.tensor for action in symmetry.actions):
        yield name, symmetry.actions_on(name)


def is_acting(action: AxisAction, group: str, symmetry: Symmetry) -> bool:
    """Whether a group's matrices may act on an axis; ``mixed_channels`` lists the channels, but takes longer."""
    names = action.listed_groups
    return group in names or any(symmetry.leader(name).id == group for name in names)

"""The weights that a group's matrices act on: side by side, multiplied by themselves, and multiplied by matrices."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.matrix_action import MixedChannels, mixed_channels, multiply

Arrays = Mapping[str, NDArray[Any]]
"""Tensor name to (K, *shape)."""
PIECE = 2**21
"""Elements that are squared or multiplied at a time: 16 MiB of float64."""


def joined_rows(
    arrays: Arrays, group: Group, symmetry: Symmetry, *, inverted: bool, biases: bool = False
) -> NDArray[np.float64]:
    """Return all that is written or read by a group's channels side by side, (K, blocks, k, m) float64."""
    parts: list[NDArray[np.float64]] = []
    for name, actions in by_tensor(symmetry):
        for action in actions:
            if (biases or action.in_mass) and is_acting(action, group.id, symmetry):
                parts += [
                    rows_of(arrays[name], mixed)
                    for mixed in mixed_channels((action,), symmetry)
                    if mixed.group == group.id and mixed.inverted == inverted
                ]
    if not parts:
        shape = group.matrix_shape
        assert shape is not None
        return np.zeros((len(next(iter(arrays.values()))), *shape[:2], 1))
    return np.concatenate(parts, axis=-1)


def rows_of(array: NDArray[Any], mixed: MixedChannels) -> NDArray[np.float64]:
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
    step = max(1, PIECE // (blocks * k * count))
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
        step = max(1, PIECE // max(1, math.prod(target.shape[1:])))
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

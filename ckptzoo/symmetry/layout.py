"""Where the channels of a table's groups sit on an axis, as index arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ckptzoo.errors import SymmetryError
from ckptzoo.spec.symmetry import AxisAction, Symmetry
from ckptzoo.symmetry.arrays import as_array, is_float, to_numpy

__all__ = ["Stacked", "by_channel", "fitting", "is_float", "positions", "stack_of", "stored_dtype"]

Stacked = Mapping[str, Any]
"""Tensor name to an array of K checkpoints, (K, *shape)."""


def positions(action: AxisAction, symmetry: Symmetry) -> list[tuple[str, np.ndarray]]:
    """Every listing of a group's channels on the axis: the group's id and positions (n, inner).

    On an axis with blocks, positions count through all blocks of axis 0.
    """
    found: list[tuple[str, np.ndarray]] = []
    open_runs: dict[str, list[np.ndarray]] = {}
    for segment in action.segments:
        starts = segment.offset + segment.inner * np.arange(segment.count)
        run = open_runs.setdefault(segment.group, [])
        run.append(starts[:, None] + np.arange(segment.inner))
        if sum(map(len, run)) == symmetry[segment.group].n:
            found.append((segment.group, np.concatenate(open_runs.pop(segment.group))))
    return found


def by_channel(array: np.ndarray, action: AxisAction) -> np.ndarray:
    """A view of a stacked tensor with the action's axis first: (K, blocks, size, ...)."""
    K, axis = len(array), action.axis + 1
    if axis == 1:
        return array[:, None]
    split = array.reshape(K, action.blocks, array.shape[1] // action.blocks, *array.shape[2:])
    return np.moveaxis(split, axis + 1, 2)


def stack_of(weights: Stacked, symmetry: Symmetry) -> tuple[dict[str, np.ndarray], int]:
    """The weights as numpy arrays, without a copy where they are in the CPU's memory, and K.

    Raises
    ------
    SymmetryError
        A tensor of the table is missing or its shape does not fit, or the stacks differ in K.
    """
    arrays, K = fitting(weights, symmetry)
    return {name: to_numpy(array) for name, array in arrays.items()}, K


def fitting(weights: Stacked, symmetry: Symmetry) -> tuple[dict[str, Any], int]:
    """The weights as arrays of their framework, and K; refuses tensors that the table does not fit.

    Raises
    ------
    SymmetryError
        A tensor of the table is missing or its shape does not fit, or the stacks differ in K.
    """
    arrays = {name: as_array(value) for name, value in weights.items()}
    sizes = {tuple(array.shape[:1]) for array in arrays.values()}
    if len(sizes) != 1 or sizes == {()}:
        raise SymmetryError(
            f"weights: leading axes: expected one number of checkpoints K in every tensor, got {sorted(sizes)}. "
            "Stack the checkpoints along a new first axis."
        )
    for action in symmetry.actions:
        where = f"tensor {action.tensor!r}"
        if action.tensor not in arrays:
            raise SymmetryError(
                f"weights: {where}: expected it, as the symmetry table names it, got none. Pass all its tensors."
            )
        shape = tuple(arrays[action.tensor].shape[1:])
        end = max(segment.offset + segment.inner * segment.count for segment in action.segments)
        size = shape[action.axis] * action.blocks if action.axis < len(shape) else 0
        if end > size or (action.blocks > 1 and (end != size or shape[0] % action.blocks)):
            raise SymmetryError(
                f"weights: {where}: expected at least {end} positions on axis {action.axis} of a checkpoint, "
                f"got shape {shape}. Use the table of this architecture."
            )
    return arrays, next(iter(sizes))[0]


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of derived weights: at least float32 for floats, integers as they are."""
    half = dtype.name in ("float16", "bfloat16")
    return np.dtype(np.float32) if half else dtype

"""Folds on stacked weights: the additive freedoms of a table, fixed by changes that keep the function."""

import math
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.folds import Fold, Target, TensorPart, part_fits
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import Stacked, beside, fitting, is_float, positions, stored_dtype, to_numpy
from ckptzoo.symmetry.kinds.registry import FACTORS, matrix_kind_of
from ckptzoo.symmetry.matrix_action import gains_at_one, with_unit_gains
from ckptzoo.symmetry.tables import Arch, table_of

_Arrays = MutableMapping[str, NDArray[Any]]
_CHUNK = 2**25
"""Numbers of the checkpoints that are processed at a time; one checkpoint at least."""
_ROWS = 2**20
"""Numbers of a matrix that change at a time."""


@checked
def fold(weights: Stacked, symmetry: Arch) -> dict[str, Any]:
    """Weights of the same function whose additive freedoms are fixed, as ``Symmetry.folds`` says.

    Biases of keys become 0, those of values and the shifts of LayerNorms move into the biases behind them, what writes
    streams that only LayerNorms read is centred, and so are the rows of what reads a LayerNorm, at any gain. Gains
    become 1 where orthogonal matrices mix the channels that they multiply: only then do these keep the function.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), numpy or torch on any device.
    symmetry
        the table, or whatever names a network, as for ``canonicalize``.

    Returns
    -------
    dict[str, Any]
        New arrays for what the folds change, each in its input's framework and on its device, and of at least float32;
        the others as they are.

    Raises
    ------
    SymmetryError
        A tensor of the folds is missing, is not of floats, does not have the shape, or is not finite.

    Notes
    -----
    The function stays as it is in evaluation mode. Arithmetic is in float64 with one rounding at the end, and one more
    where gains become 1; folding
    again changes nothing but by that rounding. A freedom that needs the inverse of a gain is left as it is in a
    checkpoint that has a gain of 0. In memory beside input and output a tensor in float64 from the first fold that
    names it to the last. Tested in tests/symmetry/test_folds.py.
    """
    symmetry = table_of(symmetry)
    arrays, K = fitting(weights, symmetry)
    _check(arrays, symmetry)
    last: dict[str, int] = {}
    for number, item in enumerate(symmetry.folds):
        last.update(dict.fromkeys((part.tensor for part in item.parts), number))
    given = {name: to_numpy(arrays[name]) for name in last}
    written = set[str]().union(*(item.written for item in symmetry.folds))
    made = {name: np.empty(given[name].shape, stored_dtype(given[name].dtype)) for name in sorted(written)}
    step = max(1, _CHUNK // max(1, sum(math.prod(array.shape[1:]) for array in given.values())))
    for rows in (slice(first, first + step) for first in range(0, K, step)):
        held: dict[str, NDArray[Any]] = {}
        for number, item in enumerate(symmetry.folds):
            for name in {part.tensor for part in item.parts} - held.keys():
                held[name] = _in_float64(name, given[name], rows)
            _fix(item, held)
            for name in [name for name in held if last[name] == number]:
                if name in made:
                    made[name][rows] = held[name]
                del held[name]
    if gains_at_one(symmetry):
        whole = {name: made[name] if name in made else to_numpy(array) for name, array in arrays.items()}
        changed = with_unit_gains(whole, symmetry)
        made |= {name: array for name, array in changed.items() if array is not whole[name]}
    return arrays | {name: beside(array, arrays[name]) for name, array in made.items()}


def commuting(symmetry: Symmetry) -> Symmetry:
    """Return the table without folds that depend on the group element: means along channels that are scaled or mixed.

    A mean along channels is the same for all elements where these permute channels alone, or keep the vector of ones.
    """
    kept = tuple(item for item in symmetry.folds if not _depends_on_element(item, symmetry))
    return symmetry if len(kept) == len(symmetry.folds) else replace(symmetry, folds=kept)


def _depends_on_element(item: Fold, symmetry: Symmetry) -> bool:
    if item.kind != "centre" or item.gain is not None:
        return False
    first, stop = item.part.start[item.part.axis], item.part.start[item.part.axis] + item.part.channels
    for action in symmetry.actions_on(item.part.tensor):
        if action.axis != item.part.axis:
            continue
        for name, places in positions(action, symmetry):
            kinds = FACTORS.get(symmetry[name].scale), matrix_kind_of(symmetry.leader(name))
            if any(kind and not kind.keeps_mean for kind in kinds) and ((places >= first) & (places < stop)).any():
                return True
    return False


def _check(arrays: Mapping[str, Any], symmetry: Symmetry) -> None:
    for item in symmetry.folds:
        for part in item.parts:
            where = f"weights: tensor {part.tensor!r}"
            if part.tensor not in arrays:
                raise SymmetryError(
                    f"{where}: expected it, as a fold of the symmetry table names it, got none. Pass all its tensors."
                )
            array = arrays[part.tensor]
            if not part_fits(part, tuple(array.shape[1:])) or not is_float(array):
                raise SymmetryError(
                    f"{where}: expected floats with positions {part.start} to "
                    f"{tuple(item.stop for item in part.slices)} in a checkpoint, got {array.dtype} of shape "
                    f"{tuple(array.shape[1:])}. Use the table of this architecture."
                )


def _in_float64(name: str, array: NDArray[Any], rows: slice) -> NDArray[np.float64]:
    held = np.array(array[rows], np.float64)
    if not (finite := np.isfinite(held).all(axis=tuple(range(1, held.ndim)))).all():
        row = rows.start + int(np.flatnonzero(~finite)[0])
        raise SymmetryError(
            f"weights: tensor {name!r}: expected finite numbers, got others in checkpoint {row}. Leave it out."
        )
    return held


def _fix(item: Fold, held: _Arrays) -> None:
    part = _lines(held, item.part)
    if item.kind == "zero":
        part[...] = 0
    elif item.kind == "centre":
        _centre(item, part, held)
    else:
        gain, usable = _gain(item, part, held)
        others = tuple(range(1, part.ndim - 1))
        vector = part.mean(axis=others) if others else part.copy()
        if item.kind == "match":
            vector = np.where(usable[:, None], vector - gain, 0)
        part -= vector.reshape(len(vector), *[1] * len(others), -1)
        if item.kind == "match":  # exactly, whatever the difference was rounded to
            part[usable] = gain[usable].reshape(part[usable].shape)
        for target in item.targets:
            _add(target, vector[:, target.offset : target.offset + target.channels], gain, held)


def _lines(held: _Arrays, part: TensorPart) -> NDArray[np.float64]:
    """Return a view of the part with the channels along its last axis, checkpoints along its first."""
    return np.moveaxis(held[part.tensor][(slice(None), *part.slices)], part.axis + 1, -1)


def _vector(held: _Arrays, part: TensorPart) -> NDArray[np.float64]:
    return _lines(held, part).reshape(-1, part.channels)


def _gain(item: Fold, part: NDArray[np.float64], held: _Arrays) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the gain (K, channels), set to 1 in checkpoints where it has a 0, and which checkpoints have none."""
    if item.gain is None:
        return np.ones((len(part), part.shape[-1])), np.ones(len(part), bool)
    gain = _vector(held, item.gain)
    usable = (gain != 0).all(axis=1)
    return np.where(usable[:, None], gain, 1), usable


def _centre(item: Fold, part: NDArray[np.float64], held: _Arrays) -> None:
    gain, usable = _gain(item, part, held)
    if item.gain is None:
        means = part.mean(axis=-1)
        part -= means[..., None]
    else:
        means = _product(part, gain) / part.shape[-1]
        means[~usable] = 0
        _add_outer(part, -means, 1 / gain)
    if item.shift is not None:
        vector = means * (_vector(held, item.shift) / gain).sum(axis=-1, keepdims=True)
        for target in item.targets:
            _add(target, vector[:, target.offset : target.offset + target.channels], gain, held)


def _add(target: Target, vector: NDArray[np.float64], gain: NDArray[np.float64], held: _Arrays) -> None:
    if target.weight is not None:
        weight = _lines(held, target.weight)
        vector = _product(weight, vector)
        if target.into is None:
            _add_outer(weight, vector / weight.shape[-1], 1 / gain)
            return
    assert target.into is not None
    into = _lines(held, target.into)
    into += vector.reshape(len(vector), *[1] * (into.ndim - 2), -1)


def _product(lines: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the product of (K, ..., n) and (K, n) in each checkpoint."""
    if lines.ndim == 2:
        return (lines[:, None] @ vector[..., None])[:, 0, 0]
    return (lines @ vector.reshape(len(vector), *[1] * (lines.ndim - 3), -1, 1))[..., 0]


def _add_outer(lines: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]) -> None:
    """Add ``first[k, ...] * second[k, n]`` to (K, ..., n)."""
    for rows in _blocks(lines):
        one, other = first[rows], second[rows[:1]]
        lines[rows] += one[..., None] * other.reshape(len(other), *[1] * (lines.ndim - 2), -1)


def _blocks(lines: NDArray[np.float64]) -> Iterator[tuple[slice, ...]]:
    """Yield indices along the first axis, and the second where that is not the last."""
    if lines.ndim < 3:
        yield (slice(None),)
        return
    step = max(1, _ROWS // max(1, math.prod(lines.shape[2:]) * len(lines)))
    yield from ((slice(None), slice(first, first + step)) for first in range(0, lines.shape[1], step))

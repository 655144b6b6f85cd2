"""A group element acting on stacked weights."""

from collections.abc import Sequence

import numpy as np

from ckptzoo.errors import SymmetryError
from ckptzoo.spec.symmetry import AxisAction, Symmetry
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.layout import Stacked, by_channel, is_float, positions, stack_of, stored_dtype


def apply(element: GroupElement, weights: Stacked, symmetry: Symmetry) -> dict[str, np.ndarray]:
    """``g . theta`` for K checkpoints and K group elements: the same functions with other weights.

    Along every axis of the table, ``new[i] = scale[i] ** exponent * old[perm[i]]``; a running variance becomes
    ``scale[i] ** 2 * (old[perm[i]] + eps) - eps`` (arXiv 2310.08287, section 3; eps exactly).

    Parameters
    ----------
    element : K elements of the table's group.
    weights : tensor name to (K, *shape); tensors outside the table pass through.
    symmetry : the table.

    Returns
    -------
    dict of new arrays. Scales act in float64 with one rounding at the end, to the input's dtype or to float32
    where that is a half precision.

    Raises
    ------
    SymmetryError
        The element is not of the table's group, the tensors do not fit the table, or a scale makes a running
        variance negative.

    Notes
    -----
    Linear in the size of the weights; float64 copies of one tensor at a time. Laws: tests/laws/test_symmetry.py.
    """
    element.check(symmetry)
    arrays, K = stack_of(weights, symmetry)
    if len(element) != K:
        raise SymmetryError(
            f"group element: number of elements: expected {K}, one a checkpoint, got {len(element)}. "
            "Select the same rows of both."
        )
    made: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        moved = transform(array, symmetry.actions_on(name), element, symmetry)
        with np.errstate(invalid="ignore"):
            made[name] = moved.astype(stored_dtype(array.dtype), copy=moved is array)
    return made


def transform(
    array: np.ndarray, actions: Sequence[AxisAction], element: GroupElement, symmetry: Symmetry
) -> np.ndarray:
    """One stacked tensor under its actions (by axis): float64 where a scale acts, else the input's dtype.

    Channels are read before they are written, so the scale of the axis that writes comes last.
    """
    scalings: list[tuple[AxisAction, np.ndarray]] = []
    for action in actions:
        index, factor = _index_and_factor(action, element, symmetry, array.shape[1 + action.axis])
        if index is not None:
            array = _gather(array, index, action)
        if factor is not None and is_float(array):
            scalings.append((action, factor))
    for action, factor in sorted(scalings, key=lambda item: item[0].exponent):
        with np.errstate(invalid="ignore"):
            array = _scaled(array.astype(np.float64, copy=False), factor, action)
    return array


def _index_and_factor(
    action: AxisAction, element: GroupElement, symmetry: Symmetry, size: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """For every position of the axis its source (K, size) and its factor; None where nothing changes."""
    K, size = len(element), size * action.blocks
    index: np.ndarray | None = None
    factor: np.ndarray | None = None
    for name, places in positions(action, symmetry):
        perm = np.asarray(element.perms[name])
        if (perm != np.arange(perm.shape[1])).any():
            index = np.tile(np.arange(size), (K, 1)) if index is None else index
            index[:, places.ravel()] = places[perm].reshape(K, -1)
        if action.exponent and name in element.scales:
            factor = np.ones((K, size)) if factor is None else factor
            factor[:, places.ravel()] = np.repeat(element.scales[name], places.shape[1], axis=1)
    return index, factor


def _gather(array: np.ndarray, index: np.ndarray, action: AxisAction) -> np.ndarray:
    K, blocks, size = len(array), action.blocks, array.shape[action.axis + 1]
    rows, block = np.arange(K)[:, None, None], np.arange(blocks)[:, None]
    moved = by_channel(array, action)[rows, block, index.reshape(K, blocks, size) % size]
    return _restored(moved, action, array.shape)


def _restored(channels: np.ndarray, action: AxisAction, shape: tuple[int, ...]) -> np.ndarray:
    """Undo ``by_channel``."""
    return (channels[:, 0] if action.axis == 0 else np.moveaxis(channels, 2, action.axis + 2)).reshape(shape)


def _scaled(array: np.ndarray, factor: np.ndarray, action: AxisAction) -> np.ndarray:
    channels = by_channel(array, action)
    factor = factor.reshape(*channels.shape[:3], *[1] * (channels.ndim - 3))
    if action.exponent == -1:
        moved = channels / factor
    elif action.exponent == 1:
        moved = channels * factor
    else:
        moved = factor**2 * (channels + action.eps) - action.eps if action.eps else factor**2 * channels
        if (below := (moved < 0) & (channels >= 0)).any():
            raise SymmetryError(
                f"tensor {action.tensor!r}: scales: expected at least sqrt(eps / (variance + eps)), "
                f"got a variance of {moved[below].min():.3g} after scaling. Use larger scales."
            )
    return _restored(moved, action, array.shape)

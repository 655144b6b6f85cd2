"""Stacked arrays of numpy, torch and others of the array API, and the positions of channels on their axes.

Nothing here imports a framework that is not in use.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from array_api_compat import array_namespace, device, is_torch_array, to_device

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Wreath
from ckptzoo.schema.symmetry import Symmetry


def is_array(value: Any) -> bool:
    """Whether the value is an array of numpy, torch or another framework of the array API."""
    return isinstance(value, np.ndarray) or _is_torch(value) or hasattr(value, "__array_namespace__")


def as_array(value: Any) -> Any:
    """Return the value itself, without gradients, where it is an array of some framework, else as a numpy array."""
    if _is_torch(value):
        return value.detach()
    return value if is_array(value) and not isinstance(value, np.ndarray) else np.asarray(value)


def in_memory(array: Any) -> bool:
    """Whether numpy can look at the array's memory: numpy, and torch on the CPU."""
    return isinstance(array, np.ndarray) or (_is_torch(array) and array.device.type == "cpu")


def to_numpy(array: Any) -> np.ndarray:
    """Return the array in numpy: its own memory where that is possible, else a copy. Torch's bfloat16 is ml_dtypes'."""
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    if not _is_torch(array):
        return np.asarray(to_device(array, "cpu"))
    held = array.detach().cpu()
    xp: Any = array_namespace(held)
    if held.dtype == xp.bfloat16:
        return held.view(xp.int16).numpy().view(ml_dtypes.bfloat16)
    return held.numpy()


def beside(array: Any, like: Any) -> Any:
    """Return the array in the framework and on the device of another one; it may share its memory.

    Raises ``SymmetryError`` where the device has no float64 and the array needs it.
    """
    if isinstance(like, np.ndarray):
        return to_numpy(array)
    xp, place = array_namespace(like), device(like)
    kinds = xp.__array_namespace_info__().dtypes(device=place, kind="real floating")
    if dtype_name(array.dtype) == "float64" and "float64" not in kinds:
        raise SymmetryError(
            f"group element: scales on device {str(place)!r}: expected a device that has float64, got one of "
            f"{', '.join(kinds)}. Move the weights to the CPU first."
        )
    if not isinstance(array, np.ndarray) and array_namespace(array) is xp:
        return to_device(array, place)
    return xp.asarray(to_numpy(array), device=place, copy=True)


def _is_torch(value: Any) -> bool:
    """Whether the value is a torch tensor, also where ``sys.modules`` says that torch shall not be imported."""
    return sys.modules.get("torch") is not None and is_torch_array(value)


@lru_cache(maxsize=64)
def dtype_name(dtype: Any) -> str:
    """Return ``float32`` for the float32 of any framework."""
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def is_float(array: Any) -> bool:
    """Whether the dtype is floating, ml_dtypes' and torch's included; those of a byte only move."""
    return _is_float(array.dtype)


@lru_cache(maxsize=64)
def _is_float(dtype: Any) -> bool:
    return re.fullmatch("b?float[0-9]+", dtype_name(dtype)) is not None


@dataclass(frozen=True)
class Facts:
    """The framework (an array API namespace), the device, the shape and the dtype of an array for a result."""

    framework: Any
    device: Any
    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, array: Any) -> "Facts":
        """Return the facts of an array."""
        return cls(array_namespace(array), device(array), tuple(array.shape), array.dtype)

    def stored(self) -> "Facts":
        """Return the facts of derived weights: at least float32 where these are floats."""
        if dtype_name(self.dtype) not in ("float16", "bfloat16"):
            return self
        return replace(self, dtype=self.framework.result_type(self.dtype, self.framework.float32))

    def empty(self) -> Any:
        """Return a new array."""
        return self.framework.empty(self.shape, dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        name = self.framework.__name__.rpartition(".")[2]
        return f"{self.shape} {dtype_name(self.dtype)} of {name} on {self.device}"


Stacked = Mapping[str, Any]
"""Tensor name to an array of K checkpoints, (K, *shape)."""


@dataclass(frozen=True, eq=False)
class Listing:
    """The channels of a group on an axis, each once.

    Parameters
    ----------
    places
        (n, inner) positions; on an axis with blocks they count through all blocks of axis 0.
    inverse
        whether the listing has an exponent of its own, the inverse of the action's.
    inside
        the group that acts inside the channels (``Segment.within``), and which of its channels is at each of the
        positions (n, inner); or None.
    part
        of complex numbers: 0 for real parts, 1 for imaginary parts, None where they take turns.
    """

    group: str
    places: np.ndarray
    inverse: bool
    inside: tuple[str, np.ndarray] | None
    part: int | None


def positions(action: AxisAction, symmetry: Symmetry) -> list[tuple[str, np.ndarray]]:
    """Return every listing of a group's channels on the axis: the group's id and positions (n, inner).

    Channels of a group that acts inside those of another one are listed under both.
    """
    found: list[tuple[str, np.ndarray]] = []
    for item in listings(action, symmetry):
        found.append((item.group, item.places))
        if item.inside is not None:
            name, channels = item.inside
            order = np.argsort(channels, axis=None, kind="stable")
            found.append((name, item.places.ravel()[order].reshape(symmetry[name].n, -1)))
    return found


def listings(action: AxisAction, symmetry: Symmetry) -> list[Listing]:
    """Return every listing of a group's channels by the segments."""
    found: list[Listing] = []
    open_runs: dict[tuple[str, bool, int | None], list[np.ndarray]] = {}
    for segment in action.segments:
        starts = segment.offset + segment.inner * np.arange(segment.count)
        key = (segment.group, segment.exponent is not None, segment.part)
        run = open_runs.setdefault(key, [])
        run.append(starts[:, None] + np.arange(segment.inner))
        if sum(map(len, run)) == symmetry[segment.group].n:
            places = np.concatenate(open_runs.pop(key))
            inside = None if segment.within is None else _inside(segment.group, segment.within, places, symmetry)
            found.append(Listing(segment.group, places, key[1], inside, segment.part))
    return found


def _inside(group: str, within: str, places: np.ndarray, symmetry: Symmetry) -> tuple[str, np.ndarray]:
    """Return which channels of another group are inside a group's: those of the same block, in order."""
    (n, inner), perm = places.shape, symmetry[group].perm
    blocks = perm.g if isinstance(perm, Wreath) else 1
    count = symmetry[within].n // blocks
    return within, np.arange(n)[:, None] * blocks // n * count + np.arange(inner) // (inner // count)


def by_channel(array: np.ndarray, action: AxisAction) -> np.ndarray:
    """Return a view of a stacked tensor with the action's axis first: (K, blocks, size, ...)."""
    K, axis = len(array), action.axis + 1
    if axis == 1:
        return array[:, None]
    split = array.reshape(K, action.blocks, array.shape[1] // action.blocks, *array.shape[2:])
    return np.moveaxis(split, axis + 1, 2)


def stack_of(weights: Stacked, symmetry: Symmetry) -> tuple[dict[str, np.ndarray], int]:
    """Return the weights as numpy arrays, without a copy where they are in the CPU's memory, and K.

    Raises ``SymmetryError`` where a tensor of the table is missing or has another shape, or the stacks differ in K.
    """
    arrays, K = fitting(weights, symmetry)
    return {name: to_numpy(array) for name, array in arrays.items()}, K


def fitting(weights: Stacked, symmetry: Symmetry) -> tuple[dict[str, Any], int]:
    """Return the weights as arrays of their framework, and K.

    Raises ``SymmetryError`` where a tensor of the table is missing, has another shape or comes under two names, or the
    stacks differ in K.
    """
    arrays = {name: as_array(value) for name, value in weights.items()}
    if tied := [(other, name) for other, name in symmetry.tied if other in arrays]:
        _refuse_names(tied, symmetry)
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


def _refuse_names(tied: list[tuple[str, str]], symmetry: Symmetry) -> None:
    """Raise ``SymmetryError`` for another name of a tensor that the table changes."""
    changed = {action.tensor for action in symmetry.actions}.union(*(fold.written for fold in symmetry.folds))
    for other, name in tied:
        if name in changed:
            raise SymmetryError(
                f"weights: tensor {other!r}: expected {name!r} alone, which it is another name of, got both names. "
                f"Leave it out, and take {name!r} of the result for it."
            )


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of derived weights: at least float32 for floats, integers unchanged."""
    half = dtype.name in ("float16", "bfloat16")
    return np.dtype(np.float32) if half else dtype


def stored_copies(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return copies in the dtype of derived weights."""
    return {name: array.astype(stored_dtype(array.dtype)) for name, array in arrays.items()}

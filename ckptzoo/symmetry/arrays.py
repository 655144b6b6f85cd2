"""Arrays of numpy and of torch, told apart by what they are: nothing here imports a framework that is not in use."""

import re
import sys
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from array_api_compat import array_namespace, device, is_torch_array, to_device

from ckptzoo.errors import SymmetryError


def is_array(value: Any) -> bool:
    """Whether the value is an array of numpy, torch or another framework of the array API."""
    return isinstance(value, np.ndarray) or _is_torch(value) or hasattr(value, "__array_namespace__")


def as_array(value: Any) -> Any:
    """The value itself, without gradients, where it is an array of some framework, else what numpy makes of it."""
    if _is_torch(value):
        return value.detach()
    return value if is_array(value) and not isinstance(value, np.ndarray) else np.asarray(value)


def in_memory(array: Any) -> bool:
    """Whether numpy can look at the array's memory: numpy, and torch on the CPU."""
    return isinstance(array, np.ndarray) or (_is_torch(array) and array.device.type == "cpu")


def to_numpy(array: Any) -> np.ndarray:
    """The array in numpy: its own memory where that is possible, else a copy. Torch's bfloat16 is ml_dtypes'."""
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
    """The array in the framework and on the device of another one; it may share its memory.

    Raises
    ------
    SymmetryError
        The device has no float64, and the array needs it.
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
    """Also where ``sys.modules`` says that torch shall not be imported."""
    return sys.modules.get("torch") is not None and is_torch_array(value)


def dtype_name(dtype: Any) -> str:
    """``float32`` for the float32 of any framework."""
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def is_float(array: Any) -> bool:
    """Whether the dtype is floating, ml_dtypes' and torch's included; those of a byte only move."""
    return re.fullmatch("b?float[0-9]+", dtype_name(array.dtype)) is not None


@dataclass(frozen=True)
class Facts:
    """What an array for a result must be.

    Parameters
    ----------
    framework : the array API namespace.
    device : the framework's name of it.
    shape, dtype : as the framework has them.
    """

    framework: Any
    device: Any
    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, array: Any) -> "Facts":
        """What an array is."""
        return cls(array_namespace(array), device(array), tuple(array.shape), array.dtype)

    def stored(self) -> "Facts":
        """What derived weights are: at least float32 where these are floats."""
        if dtype_name(self.dtype) not in ("float16", "bfloat16"):
            return self
        return replace(self, dtype=self.framework.result_type(self.dtype, self.framework.float32))

    def empty(self) -> Any:
        """A new array."""
        return self.framework.empty(self.shape, dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        name = self.framework.__name__.rpartition(".")[2]
        return f"{self.shape} {dtype_name(self.dtype)} of {name} on {self.device}"

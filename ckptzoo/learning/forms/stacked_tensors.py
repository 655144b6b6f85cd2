"""Requirements of every form on its tensors, and constants on the same device."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ckptzoo.errors import Problem, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry.arrays import beside, dtype_name, is_float

_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}
"""The bound up to which a floating-point dtype represents every integer."""


def number_of(tensors: Mapping[str, Any], architecture: Architecture) -> int:
    """The number B of stacked checkpoints; refuses tensors other than the architecture's. Raises a ``ZooError`` that
    lists every tensor that is missing, unknown or of another shape.
    """
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if problems := list(_problems(found, architecture)):
        raise ZooError(problems)
    return next(iter(found.values()))[0]


def _problems(found: Mapping[str, tuple[int, ...]], architecture: Architecture) -> Iterator[Problem]:
    location = f"weights of {architecture.name}"
    B = next((shape[0] for shape in found.values() if shape), 0)
    step = f"Pass stacked tensors of {architecture.name}, as zoo[name][:] gives them."
    for tensor in architecture.tensors:
        what, expected = f"tensor {tensor.name!r}", (B, *tensor.shape)
        if tensor.name not in found:
            yield Problem(location, what, "it", "none", "Pass all tensors of the architecture.")
        elif found[tensor.name] != expected:
            yield Problem(location, what, f"shape {expected}", str(found[tensor.name]), step)
    for name in found:
        if name not in architecture:
            yield Problem(location, f"tensor {name!r}", "a tensor of the architecture", "another", "Leave it out.")


def one_dtype(tensors: Mapping[str, Any], architecture: Architecture) -> Any:
    """The dtype that holds all tensors without loss: that of the floating ones; integers must be exact in it. Raises
    ``ZooError`` if there are several floating dtypes, or an integer that the floating one does not hold.
    """
    location = f"weights of {architecture.name}"
    dtypes = {name: tensors[name].dtype for name in architecture.names}
    floating = {name: dtype for name, dtype in dtypes.items() if is_float(tensors[name])}
    kinds = sorted({dtype_name(dtype) for dtype in (floating or dtypes).values()})
    if len(kinds) > 1:
        raise ZooError(
            Problem(location, "dtypes", "one for all floating tensors", ", ".join(kinds), "Convert them to one.")
        )
    for name in dtypes.keys() - floating.keys() if floating else ():
        most, value = _EXACT.get(kinds[0], 0), tensors[name]
        # both signs: the absolute value of the least integer overflows
        if dtype_name(value.dtype) != "bool" and bool(((value > most) | (value < -most)).any()):
            step = "Convert the floating tensors to float64."
            expected, got = f"integers up to {most}, which {kinds[0]} holds", "greater ones"
            raise ZooError(Problem(location, f"tensor {name!r}", expected, got, step))
    return next(iter((floating or dtypes).values()))


def converted(array: Any, dtype: Any) -> Any:
    """The array itself, or converted where its dtype is another."""
    return array if array.dtype == dtype else array_namespace(array).astype(array, dtype)


def restored(array: Any, dtype: str) -> Any:
    """A part of an encoding as a tensor of this declared dtype: floats stay as they are encoded."""
    # an encoding may be of another precision, such as what a network has generated
    if "float" in dtype:
        return array
    return converted(array, getattr(array_namespace(array), dtype))


def check_encoded(array: Any, shape: tuple[int, ...], what: str, architecture: Architecture) -> None:
    """Refuse an encoding that is not (B, *shape). Raises ``ZooError`` if it has another shape."""
    if not array.ndim or tuple(array.shape[1:]) != shape:
        expected = f"shape ({', '.join(map(str, ('B', *shape)))})"
        step = f"Decode what the form of {architecture.name} encoded."
        raise ZooError(
            Problem(f"encoded weights of {architecture.name}", what, expected, str(tuple(array.shape)), step)
        )


class Constants:
    """Arrays of numpy that do not change, converted once for each framework and device of other arrays."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self._arrays = arrays
        self._placed: dict[Any, dict[str, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # a worker process makes its own copies on a device
        return {"_arrays": self._arrays, "_placed": {}}

    def beside(self, like: Any) -> dict[str, Any]:
        """Return the arrays on the device of another one."""
        if isinstance(like, np.ndarray):
            return self._arrays
        place = (array_namespace(like).__name__, str(device(like)))
        if place not in self._placed:
            self._placed[place] = {name: beside(array, like) for name, array in self._arrays.items()}
        return self._placed[place]

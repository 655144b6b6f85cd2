"""The objects that pickles are read as: they keep what they were given, and arrays whose numbers are not read yet."""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.schema.architecture import ITEMSIZE

_NUMPY_CODES = {numpy_dtype(name).str[1:]: name for name in ITEMSIZE if name != "bfloat16"}
"""Codes of numpy's dtypes in pickles: ``f4`` is float32."""
MAX_DIMENSIONS = 32
"""Axes of an array: the limit of numpy before version 2."""
MAX_NAME = 500
"""Characters of a global's name that are kept."""


class InertError(ValueError):
    """A pickle's numbers cannot be had: ``what``, ``expected`` and ``got`` as in ``Problem``."""

    def __init__(self, what: str, expected: str, got: str) -> None:
        super().__init__(f"{what}: expected {expected}, got {got}")
        self.what, self.expected, self.got = what, expected, got


class Inert:
    """An object of a class that is not known here: the ``args`` it was made with, the ``state`` that BUILD gave it,
    and appended ``items``.

    ``name`` is that of the class, such as ``"omegaconf.nodes.AnyNode"``; ``pairs`` were set by key, as in a dict
    of its own class, None where none was.
    """

    __slots__ = ("args", "items", "pairs", "state")
    name = ""
    args: tuple[Any, ...]
    state: Any
    items: list[Any] | None
    pairs: dict[Any, Any] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = object.__new__(cls)
        made.args = (*args, kwargs) if kwargs else args
        made.state = made.items = made.pairs = None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *args: Any) -> "Inert":
        return class_named(f"{self.name[:MAX_NAME]}()")(*args)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs = self.pairs if self.pairs is not None else {}
        self.pairs[key] = value

    def append(self, value: Any) -> None:
        """Keep an item of what is a list."""
        self._kept().append(value)

    def extend(self, values: Any) -> None:
        self._kept().extend(values)

    add = append

    def _kept(self) -> list[Any]:
        self.items = self.items if self.items is not None else []
        return self.items

    @property
    def attributes(self) -> dict[Any, Any]:
        """The object's attributes, as its state gives them; empty where it is of another form."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2 and all(one is None or isinstance(one, dict) for one in state):
            return {**(state[0] or {}), **(state[1] or {})}
        return state if isinstance(state, dict) else {}


@lru_cache(maxsize=4096)
def class_named(name: str) -> type[Inert]:
    """Return a class for a name that is not known; the same one for all files, which cannot change it."""
    return type("Inert", (Inert,), {"__slots__": (), "name": name, "__doc__": None})


class Mapping(dict[Any, Any]):
    """``OrderedDict``, ``Counter`` and ``defaultdict``; their attributes are left out."""

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(args[-1] if args and isinstance(args[-1], dict | list) else ())

    def __setstate__(self, state: Any) -> None:
        """Ignore the state: ``torch.nn.Module.state_dict`` has its versions in an attribute."""


class Known:
    """The base of the classes of known names: BUILD on one of them, or on what has no state, is an error."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise InertError("pickle", "an object without a state of its own", "one that is built a second time")


class Numbers(Known):
    """An array that is not made yet."""

    __slots__ = ()
    shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        """A key of ``ITEMSIZE``, or another name that no zoo can hold."""
        raise NotImplementedError

    @property
    def identity(self) -> tuple[Any, ...]:
        """A key that is equal for two that show the same numbers in the same way."""
        return (id(self),)

    @property
    def stored(self) -> tuple[int, int]:
        """A number for the storage, equal for all that are stored there, and the bytes of that."""
        raise NotImplementedError

    def read(self) -> NDArray[Any]:
        """Return the array, read-only where it is a view of the file.

        Raises ``InertError`` where its numbers are not all there, or it is of another kind.
        """
        raise NotImplementedError


class Storage(Known):
    """The numbers behind tensors of torch: ``numel`` of ``dtype``, ``nbytes`` in all, from ``content``."""

    __slots__ = ("content", "dtype", "key", "nbytes", "numel", "views")

    def __init__(self, key: str, dtype: str, numel: int) -> None:
        self.key, self.dtype, self.numel = key, dtype, numel
        self.nbytes = numel * ITEMSIZE.get(dtype, 1)
        # bytes of each view that tensors show, once written out
        self.views: dict[tuple[Any, ...], int] = {}
        self.content: Callable[[], Any] | None = None


class TorchTensor(Numbers):
    """A tensor of torch: a view of a storage."""

    __slots__ = ("_dtype", "itemsize", "negative", "offset", "shape", "storage", "strides")

    def __init__(self, storage: Any, offset: Any, shape: Any, strides: Any, dtype: str, negative: bool) -> None:
        if not isinstance(storage, Storage):
            raise InertError("tensor", "a storage", described(storage))
        naturals = are_naturals((offset,)) and are_naturals(shape) and are_naturals(strides)
        if not naturals or not len(shape) == len(strides) <= MAX_DIMENSIONS:
            got = f"{described(offset)}, {described(shape)}, {described(strides)}"
            raise InertError("tensor", "an offset, a shape and as many strides, integers from 0", got)
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides
        self._dtype, self.negative, self.itemsize = dtype, negative, ITEMSIZE.get(dtype, 1)
        # The last number is that of the largest index on every axis; where an axis is empty there is none.
        last = 0
        if 0 not in shape:
            last = offset + 1
            for length, step in zip(shape, strides, strict=True):
                last += (length - 1) * step
        if last * self.itemsize > storage.nbytes:
            got = f"the last at {last} of {storage.nbytes // self.itemsize}"
            raise InertError(f"tensor of shape {described(shape)}", "numbers inside its storage", got)
        storage.views[offset, shape, strides, dtype] = prod(shape) * self.itemsize

    @property
    def dtype(self) -> str:
        return self._dtype

    @property
    def identity(self) -> tuple[Any, ...]:
        """A key of its storage, and of the view of it."""
        shown = (id(self.storage), self.offset, self.shape, self.strides, self._dtype, self.negative)
        return shown if all(self.shape) else (id(self),)

    @property
    def stored(self) -> tuple[int, int]:
        return id(self.storage), self.storage.nbytes

    @property
    def is_contiguous(self) -> bool:
        """Whether its numbers are one after another in the storage, in order, as they are."""
        expected, steps = 1, list[int]()
        for length in reversed(self.shape):
            steps.append(expected)
            expected *= length
        # the stride of an axis of one number means nothing
        pairs = zip(self.shape, self.strides, reversed(steps), strict=True)
        return not self.negative and all(length == 1 or stride == step for length, stride, step in pairs)

    def read(self) -> NDArray[Any]:
        if self._dtype not in ITEMSIZE:
            raise InertError("dtype", "one of " + ", ".join(ITEMSIZE), self._dtype)
        dtype = numpy_dtype(self._dtype)
        if not all(self.shape):
            return np.zeros(self.shape, dtype)
        content = self.storage.content() if self.storage.content is not None else b""
        if len(content) != self.storage.nbytes:
            what = f"storage {self.storage.key!r}"
            raise InertError(what, f"{self.storage.nbytes} bytes", f"{len(content)} bytes")
        strides = tuple([step * self.itemsize for step in self.strides])
        # numpy checks shape, offset and strides against the buffer once more
        array = np.ndarray(self.shape, dtype, content, self.offset * self.itemsize, strides)
        return -array if self.negative else array


class _Stated(Known):
    """The common part of Array and Objects, so that one can become the other when its state is known."""

    __slots__ = ("_state",)


class Objects(_Stated):
    """An array of numpy whose items are Python objects."""

    __slots__ = ()
    _state: list[Any]

    @property
    def value(self) -> Any:
        """The items, in lists within one another; for an array without axes the one item."""
        return self._state[0]


class Array(_Stated, Numbers):
    """An array of numpy, or of jax; one of Python objects becomes ``Objects``."""

    __slots__ = ()

    def __init__(self, *_: Any) -> None:
        self._state: tuple[Any, Any, bool, Any] = ((), DType("object"), False, b"")

    def __setstate__(self, state: Any) -> None:
        # numpy's array.__setstate__: (version, shape, dtype, is_fortran, data), without the version before 1.0
        if not isinstance(state, tuple) or len(state) not in (4, 5) or not are_naturals(state[-4]):
            raise InertError("array", "a shape, a dtype, an order and its numbers", described(state))
        shape, dtype, fortran, data = state[-4:]
        self._state = (shape, dtype, bool(fortran), data)
        if isinstance(dtype, DType) and dtype.text in ("O8", "O4", "O") and isinstance(data, list):
            if len(data) != prod(shape) or len(shape) > MAX_DIMENSIONS:
                raise InertError(f"array of shape {shape}"[:200], f"{prod(shape)} objects", f"{len(data)}")
            self._state = [_nested(data, shape, fortran=bool(fortran))]  # pyright: ignore[reportAttributeAccessIssue]
            # the unpickler keeps the object that it made before it knew the state
            self.__class__ = Objects  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._state[0]

    @property
    def dtype(self) -> str:
        dtype = self._state[1]
        return dtype.numpy_name if isinstance(dtype, DType) else described(dtype)

    @property
    def stored(self) -> tuple[int, int]:
        """As in ``Numbers``; pickles name the same bytes again without writing them again."""
        data = self._state[3]
        return id(data), len(data) if isinstance(data, str | bytes | bytearray) else 0

    def read(self) -> NDArray[Any]:
        shape, dtype, fortran, data = self._state
        if self.dtype not in ITEMSIZE:
            raise InertError("dtype", "one of " + ", ".join(ITEMSIZE), self.dtype)
        found = dtype.numpy
        content = bytes_of(data)
        if len(shape) > MAX_DIMENSIONS or len(content) != prod(shape) * found.itemsize:
            raise InertError(f"array of shape {shape}", f"{prod(shape) * found.itemsize} bytes", f"{len(content)}")
        array = np.frombuffer(content, found).reshape(shape, order="F" if fortran else "C")
        return array.astype(found.newbyteorder("="), copy=False)


def _nested(items: list[Any], shape: tuple[int, ...], *, fortran: bool) -> Any:
    """Nest items as lists, a list for each axis; in their order where an array is by columns."""
    if not shape:
        return items[0]
    if len(shape) == 1 or fortran or 0 in shape:
        return items
    rows = [items[at : at + len(items) // shape[0]] for at in range(0, len(items), len(items) // shape[0])]
    return [_nested(row, shape[1:], fortran=False) for row in rows]


class DType:
    """A dtype of numpy or torch by its name."""

    __slots__ = ("order", "text")

    def __init__(self, text: Any = "", *_: Any) -> None:
        # dtypes of ml_dtypes are pickled by their class
        of_class = isinstance(text, type) and issubclass(text, Inert)
        self.text = text.name.rpartition(".")[2] if of_class else text if isinstance(text, str) else described(text)
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        # (version, byte order, subarray, names, fields, itemsize, alignment, flags); names: a structured dtype
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise InertError("dtype", "the state of a dtype of numpy", described(state))
        self.order = state[1]
        if state[2] is not None or state[3]:
            self.text = "structured"

    @property
    def numpy_name(self) -> str:
        """A key of ``ITEMSIZE``, or another description."""
        return _NUMPY_CODES.get(self.text) or {"c8": "complex64", "c16": "complex128"}.get(self.text, self.text)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype, in the byte order of the pickle."""
        found = numpy_dtype(self.numpy_name)
        return found.newbyteorder(self.order) if self.order in "<>" else found  # pyright: ignore[reportArgumentType]


def bytes_of(value: Any) -> bytes:
    """Return bytes of a pickle; those of Python 2 come as texts with surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes | bytearray):
        raise InertError("numbers", "bytes", described(value))
    return bytes(value)


def are_naturals(value: Any) -> bool:
    """Whether it is a tuple of integers from 0, below 2**62."""
    if not isinstance(value, tuple):
        return False
    for item in value:  # noqa: SIM110 - called for every tensor, and faster than all()
        if type(item) is not int or not 0 <= item < 2**62:
            return False
    return True


def described(value: Any) -> str:
    """Return an untrusted value in a few characters; containers, which may be endless, by their type."""
    if isinstance(value, str) or (type(value) is int and abs(value) < 2**64):
        return str(value)[:80]
    if isinstance(value, tuple) and len(value) < 9 and all(type(one) is int and abs(one) < 2**64 for one in value):
        return str(value)
    return f"a {value.name if isinstance(value, Inert) else type(value).__name__}"

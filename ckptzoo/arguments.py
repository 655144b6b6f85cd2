"""Arguments of public functions, compared with their annotations before anything is done."""

import functools
import inspect
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from ckptzoo.errors import Problem, ZooError

_F = TypeVar("_F", bound=Callable[..., Any])
_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (*_PLACED, inspect.Parameter.KEYWORD_ONLY)
_MANY = 2**31 - 1
"""The largest count that is accepted: no array of a study has more elements."""
_ITEMS = 100
"""The number of items of a sequence that are checked."""
ARRAY = Annotated[Any, "an array"]
"""An array of numpy, torch or another framework, with an axis or more."""
NETWORK = Annotated[Any, "a torch module"]
"""A network of torch; not its class, nor what it was saved in."""
SELF_CHECKED = object()
"""In ``Annotated[..., SELF_CHECKED]``: the function says itself what is wrong, as it knows better what to do."""


@dataclass(frozen=True)
class Within:
    """Bounds of a number, in ``Annotated[int, Within(1)]``; NaN is within none.

    ``least`` and ``most`` are the smallest and the largest number that fits.
    """

    least: float
    most: float = math.inf

    def __str__(self) -> str:
        return f"{self.least:,} or more" if self.most >= _MANY else f"from {self.least:,} to {self.most:,}"

    def holds(self, number: Any) -> bool:
        """Whether a number is within the bounds."""
        return bool(self.least <= number <= self.most)


Count = Annotated[int, Within(1, _MANY)]
"""A number of things of which there has to be one."""
Size = Annotated[int, Within(0, _MANY)]
"""A number of things of which there may be none."""
Seed = Annotated[int, Within(0)]
"""A seed of random numbers; ``numpy.random.SeedSequence`` takes no negative ones."""


def checked(function: _F) -> _F:
    """A function that names an argument whose type is not the one of its annotation, in a ``ZooError``.

    What annotations say of texts, numbers and their bounds, paths, sequences, mappings, functions and classes is
    checked, and that arrays can be made of what stands for arrays; the rest is left to the function: ``Any``, shapes,
    and annotations that are written as texts.

    >>> @checked
    ... def double(number: int | None) -> int:
    ...     return 2 * (number or 0)
    >>> double(2)
    4
    >>> try:
    ...     double("2")
    ... except ZooError as error:
    ...     print(error)
    double: number: expected an integer or None, got str '2'. Correct the argument.
    """
    signature = inspect.signature(function)
    known = [item for item in signature.parameters.values() if item.annotation is not item.empty]
    named = {item.name: item.annotation for item in known if item.kind in _NAMED}
    placed = [item.name for item in signature.parameters.values() if item.kind in _PLACED]
    others = next((item for item in known if item.kind is item.VAR_POSITIONAL), None)

    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        # what does not fit the signature is said by Python, when the function is called
        for name, value in (*zip(placed, args, strict=False), *kwargs.items()):
            if name in named and not _fits(value, named[name]):
                raise ZooError(_problem(function.__qualname__, name, named[name], value))
        if others is not None:
            for value in args[len(placed) :]:
                if not _fits(value, others.annotation):
                    raise ZooError(_problem(function.__qualname__, others.name, others.annotation, value))
        return function(*args, **kwargs)

    return cast(_F, checking)


def _problem(function: str, name: str, kind: Any, value: Any) -> Problem:
    """Describe what is wrong with an argument."""
    text = f"{type(value).__name__} {' '.join(repr(value).split())}"
    if value is None:
        text = "None"
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        text = f"{type(value).__name__} {tuple(value.shape)} {value.dtype}"
    got = text if len(text) <= 80 else type(value).__name__
    number: Any = value if _is_integer(value) else 0
    most = f", at most {_MANY:,}" if number > _MANY else ""
    return Problem(function.removesuffix(".__init__"), name, _shown(kind) + most, got, "Correct the argument.")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as far as that can be told."""
    if kind is Any:
        return True
    if kind is str:
        return isinstance(value, str)
    if kind is None or kind is types.NoneType:
        return value is None
    origin, parts = _taken_apart(kind)
    if origin is Annotated:
        bounds = [item for item in parts[1:] if isinstance(item, Within)]
        if SELF_CHECKED in parts[1:]:
            return True
        if kind == NETWORK:
            return hasattr(value, "state_dict") and not isinstance(value, type)
        if kind == ARRAY:
            return bool(getattr(value, "shape", ())) and _holds_numbers(value)
        return _fits(value, parts[0]) and all(value is None or item.holds(value) for item in bounds)
    if origin in (typing.Union, types.UnionType):
        if Any in parts:
            return True
        if isinstance(value, str) and "\0" in value and any(map(_is_path, parts)):
            return False  # no system has such a path
        return any(_fits(value, part) for part in _alternatives(parts))
    if _is_of_arrays(origin or kind):
        # functions that say NDArray read its shape; numpy.typing.ArrayLike may be lists and numbers
        is_array = hasattr(value, "shape") and hasattr(value, "dtype")
        return _holds_numbers(value) if is_array else not _is_ndarray(origin or kind) and _is_array_like(value)
    if origin is typing.Literal:
        return isinstance(value, tuple({type(part) for part in parts}))
    if isinstance(kind, type) and (numeric := _NUMBERS.get(kind)) is not None:
        return numeric(value)
    if _is_path(kind):
        return isinstance(value, os.PathLike) and "\0" not in os.fsdecode(value)
    if origin in _SEQUENCES:
        # a text is a sequence of texts, which nobody means by it
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            return False
        if origin in _INDEXED and isinstance(value, Mapping):
            return False
        some = _first_items(value, is_indexed=origin in _INDEXED)
        if origin is tuple and parts and Ellipsis not in parts:
            return len(some) == len(parts) and all(map(_fits, some, parts))
        return not parts or all(_fits(item, parts[0]) for item in some)
    if origin is Callable:
        return callable(value)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return False
        if not isinstance(value, dict) or len(parts) != 2:
            return True
        some = islice(value.items(), 1 if parts[1] is Any else _ITEMS)
        return all(_fits(key, parts[0]) and _fits(item, parts[1]) for key, item in some)
    if isinstance(kind, type) and kind.__module__.partition(".")[0] in _MODULES:
        if getattr(kind, "_is_protocol", False):
            return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
        return typing.is_typeddict(kind) or isinstance(value, kind)
    return True


@functools.lru_cache(maxsize=4096)
def _taken_apart(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """The origin and the arguments of an annotation."""
    return typing.get_origin(kind), typing.get_args(kind)


def _is_path(kind: Any) -> bool:
    return kind is Path or _taken_apart(kind)[0] is os.PathLike


def _is_of_arrays(kind: Any) -> bool:
    """Whether an annotation is that of an array of numpy, or of what numpy makes one of."""
    return getattr(kind, "__module__", "").startswith("numpy._typing") or _is_ndarray(kind)


def _is_ndarray(kind: Any) -> bool:
    """Whether an annotation is ``numpy.ndarray``, which is not imported here."""
    return getattr(kind, "__module__", "") == "numpy" and getattr(kind, "__name__", "") == "ndarray"


@functools.lru_cache(maxsize=4096)
def _alternatives(parts: tuple[Any, ...]) -> Sequence[Any]:
    """The members of a union; of ``numpy.typing.ArrayLike`` without texts and bytes, which are never meant by it."""
    if any(getattr(part, "__module__", "").startswith("numpy._typing") for part in parts):
        return [part for part in parts if part not in (str, bytes, complex)]
    return parts


def _is_array_like(value: Any) -> bool:
    """Whether it has numbers: an array of any framework, nested lists, or a number."""
    first: Any = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if isinstance(first, list | tuple | range | numbers.Number):
        return True
    return any(hasattr(first, name) for name in _ARRAYS) and _holds_numbers(first)


def _holds_numbers(array: Any) -> bool:
    """Whether the elements of an array are numbers; objects, texts and times of numpy are none."""
    return getattr(getattr(array, "dtype", None), "kind", "f") not in "OSUMm"


def _first_items(value: Any, *, is_indexed: bool) -> Sequence[Any]:
    """Some items of what can be gone through again, without reading all of it."""
    if isinstance(value, list | tuple):
        return value[:_ITEMS]
    # of arrays and zoos one; to iterate over a stream starts it, and what Arrow holds are scalars of its own
    is_ours = is_indexed and type(value).__module__.startswith("ckptzoo")
    return list(islice(value, 1)) if hasattr(value, "shape") or is_ours else ()


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # which all arrays have as a method, and those of one integer answer
    except TypeError:
        return False
    return True


def is_number(value: Any) -> bool:
    """Whether it is one real number, of Python or of any framework; truth values are none."""
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) or _is_integer(value) or (_is_scalar(value) and _holds_numbers(value))


def _is_scalar(value: Any) -> bool:
    return getattr(value, "shape", None) == () and hasattr(value, "dtype")


_NUMBERS: dict[Any, Callable[[Any], bool]] = {
    int: _is_integer,
    float: is_number,
    # numpy's, too
    bool: lambda value: type(value).__name__ in ("bool", "bool_"),
}
_SEQUENCES = (Sequence, Iterable, Collection, list, tuple, set, frozenset)
_INDEXED = (Sequence, list, tuple)
_ARRAYS = ("__array__", "__array_interface__", "__dlpack__")
"""Attributes that arrays of all frameworks have."""
_MODULES = ("ckptzoo", "builders", "builtins", "pathlib", "numpy")
_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Path: "a path",
    None: "None",
    types.NoneType: "None",
}


def _shown(kind: Any) -> str:
    """A type as messages say it."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is None or (isinstance(kind, type) and kind in _NAMES):
        return _NAMES[kind]
    if origin is Annotated:
        if kind in (ARRAY, NETWORK):
            return f"{parts[1]} with an axis or more" if kind == ARRAY else parts[1]
        bounds = [str(item) for item in parts[1:] if isinstance(item, Within)]
        return ", ".join([_shown(parts[0]), *bounds])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_shown, _alternatives(parts))))
    if _is_of_arrays(origin or kind):
        return "an array"
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin is os.PathLike:
        return "a path"
    if origin in _SEQUENCES:
        if origin is tuple and parts and Ellipsis not in parts:
            return f"({', '.join(map(_shown, parts))})"
        return "several of: " + _shown(parts[0]) if parts else "a sequence"
    if origin is Callable:
        return "a function"
    if origin in (dict, Mapping):
        return f"a mapping of {_shown(parts[0])} to {_shown(parts[1])}" if parts and parts[1] in _NAMES else "a mapping"
    return getattr(kind, "__name__", str(kind))

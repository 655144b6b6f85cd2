"""Arguments of public functions, compared with their annotations before anything is done."""

import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from ckptzoo.errors import Problem, ZooError

_F = TypeVar("_F", bound=Callable[..., Any])
_ITEMS = 100
"""Items of a sequence that are looked at."""


def checked(function: _F) -> _F:
    """A function that names an argument whose type is not the one of its annotation, in a ``ZooError``.

    What annotations say of texts, numbers, paths, sequences, mappings, functions and classes is checked; the rest is
    left to the function: ``Any``, arrays, and annotations that are written as texts.

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

    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # which says what does not fit
        for name, value in bound.items():
            parameter = signature.parameters[name]
            values = value if parameter.kind is parameter.VAR_POSITIONAL else (value,)
            if parameter.kind is parameter.VAR_KEYWORD or parameter.annotation is parameter.empty:
                continue
            for item in values:
                if not _fits(item, parameter.annotation):
                    raise ZooError(_problem(function.__qualname__, name, parameter.annotation, item))
        return function(*args, **kwargs)

    return cast(_F, checking)


def _problem(function: str, name: str, kind: Any, value: Any) -> Problem:
    """Describe what is wrong with an argument."""
    text = "None" if value is None else f"{type(value).__name__} {value!r}"
    got = text if len(text) <= 80 else type(value).__name__
    return Problem(function.removesuffix(".__init__"), name, _shown(kind), got, "Correct the argument.")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as far as that can be told."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is None or kind is types.NoneType:
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, tuple({type(part) for part in parts}))
    if isinstance(kind, type) and (numeric := _NUMBERS.get(kind)) is not None:
        return numeric(value)
    if kind is Path or origin is os.PathLike:
        return isinstance(value, os.PathLike)
    if origin in _SEQUENCES:
        # a text is a sequence of texts, which nobody means by it
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            return False
        some = value[:_ITEMS] if isinstance(value, list | tuple) else ()
        return Ellipsis in parts or len(parts) != 1 or all(_fits(item, parts[0]) for item in some)
    if origin is Callable:
        return callable(value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if isinstance(kind, type) and kind.__module__.partition(".")[0] in ("ckptzoo", "builders", "builtins", "pathlib"):
        return not _is_class(kind) or isinstance(value, kind)
    return True


def _is_class(kind: type) -> bool:
    """Whether values can be told by their class; protocols and typed dictionaries have none."""
    return not (getattr(kind, "_is_protocol", False) or typing.is_typeddict(kind))


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__") or isinstance(value, numbers.Integral)


_NUMBERS: dict[Any, Callable[[Any], bool]] = {
    int: _is_integer,
    float: lambda value: isinstance(value, numbers.Real) or _is_integer(value),
    # numpy's, too
    bool: lambda value: type(value).__name__ in ("bool", "bool_"),
}
_SEQUENCES = (Sequence, Iterable, list, tuple, set, frozenset)
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
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_shown, parts)))
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin is os.PathLike:
        return "a path"
    if origin in _SEQUENCES:
        return "several of: " + _shown(parts[0]) if len(parts) == 1 else "a sequence"
    if origin is Callable:
        return "a function"
    if origin in (dict, Mapping):
        return "a mapping"
    return getattr(kind, "__name__", str(kind))

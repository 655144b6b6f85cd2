"""Arguments of other types are named in one sentence."""

import ast
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ckptzoo.arguments import checked
from ckptzoo.errors import ZooError

FITS = [
    (str, ["a"], [1, None, b"a", Path("a")]),
    (str | Path, ["a", Path("a")], [None, 3]),
    (str | os.PathLike[str], ["a", Path("a")], [None, 3, b"a"]),
    (int, [1, np.int64(1), np.array(1)], ["1", 1.0, None]),
    (float, [1, 1.0, np.float32(1)], ["1", None, [1.0]]),
    (float | None, [1, None], ["1"]),
    (bool, [True, np.True_], ["yes", 1, None]),
    (Sequence[str], [["a"], ("a",), (), range(0)], ["a", None, 3, [1], ["a", None]]),
    (str | Sequence[str], ["a", ["a"]], [3, [3]]),
    (Mapping[str, int], [{}, {"a": 1}], [None, [], "a"]),
    (Callable[[int], int] | None, [len, None], [3, "len"]),
    (Literal["a", "b"], ["a", "c"], [3, None]),  # which text, the function says
    (Any, [3, None], []),
    ("Later", [3, None], []),
    (tuple[int, ...], [(1,), [1]], [3, "1"]),
    (ast.AST, [3], []),  # a class of others: not checked
]


@pytest.mark.parametrize(("kind", "good", "bad"), FITS)
def test_what_fits_an_annotation(kind: Any, good: list[Any], bad: list[Any]) -> None:
    def function(argument, *others, key=None):
        return argument

    function.__annotations__ = {"argument": kind, "others": kind}
    called = checked(function)
    for value in good:
        assert called(value, value, value) is value
    for value in bad:
        for arguments in ((value,), (*good[:1], value)):
            with pytest.raises(ZooError, match=r"function: (argument|others): expected .*, got .*\. Correct") as caught:
                called(*arguments)
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_does_not_fit_the_signature_is_said_by_python() -> None:
    @checked
    def function(argument: int) -> int:
        return argument

    with pytest.raises(TypeError, match=r"function\(\) missing 1 required positional argument"):
        function()  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        function(1, other=2)  # pyright: ignore[reportCallIssue]


FUNCTIONS = [
    (package, name)
    for package in ("ckptzoo", "ckptzoo.derive", "ckptzoo.image_sets", "ckptzoo.learning")
    for name in import_module(package).__all__
    if inspect.isfunction(getattr(import_module(package), name))
]


@pytest.mark.parametrize(("package", "name"), FUNCTIONS)
def test_public_functions_name_arguments_of_other_types(package: str, name: str) -> None:
    """Each parameter whose type can be told is given something else, all others what their functions never reach."""
    function = getattr(import_module(package), name)
    parameters = {
        key: item
        for key, item in inspect.signature(function).parameters.items()
        if item.kind is not item.VAR_POSITIONAL
    }
    told = [key for key, item in parameters.items() if item.annotation in TOLD]
    for key in told:
        required = {n for n, item in parameters.items() if item.default is item.empty} - {key}
        if any(parameters[n].annotation in TOLD or parameters[n].annotation is Any for n in required):
            arguments = {n: SAMPLES.get(parameters[n].annotation) for n in required}
        else:
            arguments = dict.fromkeys(required)
        with pytest.raises(ZooError) as caught:
            function(**arguments, **{key: object()})
        assert "\n" not in str(caught.value), str(caught.value)


TOLD = (str, str | Path, str | os.PathLike[str], int, float, bool)
SAMPLES: dict[Any, Any] = {str: "a", str | Path: "a", str | os.PathLike[str]: "a", int: 1, float: 1.0, bool: True}

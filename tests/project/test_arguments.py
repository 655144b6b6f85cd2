"""Arguments of other types are named in one sentence."""

import ast
import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from ckptzoo import Zoo
from ckptzoo.arguments import ARRAY, Count, Seed, Within, checked
from ckptzoo.errors import ZooError
from ckptzoo.symmetry import GroupElement
from ckptzoo.symmetry.tables import Arch

FITS = [
    (str, ["a"], [1, None, b"a", Path("a")]),
    (str | Path, ["a", Path("a")], [None, 3]),
    (str | os.PathLike[str], ["a", Path("a")], [None, 3, b"a"]),
    (int, [1, np.int64(1), np.array(1)], ["1", 1.0, None]),
    (float, [1, 1.0, np.float32(1)], ["1", None, [1.0]]),
    (float | None, [1, None, np.array(1.5)], ["1", True, np.ones(2)]),
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
    (tuple[int, int], [(0, 1), [0, 1]], [(1,), (1, 2, 3), (0, "1"), 3]),
    (Sequence[tuple[int, str]], [[(1, "a")]], [[(1, 2)], {1: "a"}, [1]]),
    (Mapping[str, float], [{"a": 1.0}], [{"a": "1"}, {1: 1.0}]),
    (Count, [1, 2**31 - 1, np.int64(5)], [0, -1, 2**31, True, 1.0, None]),
    (Seed | None, [0, 10**30, None], [-1, "0"]),
    (Annotated[float, Within(0, 1)], [0, 1.0, np.float32(0.5)], [-0.1, 1.1, float("nan"), "0"]),
    (str | Path, ["a"], ["a\0b", Path("a\0b")]),
    (ArrayLike, [1.0, [1, 2], [[1.0]], np.ones(2), []], ["a", ["a"], None, {}, np.array(["a"]), np.array([None])]),
    (NDArray[np.float64], [np.ones(2), np.float32(1)], [[1.0], 1.0, "a", np.array(["a"])]),
    (ARRAY, [np.ones(1)], [np.float64(1), [1.0], None, np.array(["a"])]),
    (np.random.Generator, [np.random.default_rng(0)], [0, np.random]),
    (Sequence[str], [np.array(["a"])], [np.ones(2), {"a": 1}]),
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


PACKAGES = (
    "ckptzoo", "ckptzoo.derive", "ckptzoo.explorer", "ckptzoo.hub", "ckptzoo.hub.untrusted", "ckptzoo.image_sets",
    "ckptzoo.learning", "ckptzoo.learning.forms", "ckptzoo.measure", "ckptzoo.symmetry", "ckptzoo.studies",
)  # fmt: skip


def public_functions() -> dict[str, Any]:
    """Those that packages export, studies, which are named like their modules, and methods that take names."""
    modules = [(name, import_module(name)) for name in PACKAGES]
    found = {f"{name}.{item}": getattr(module, item) for name, module in modules for item in module.__all__}
    for item in pkgutil.iter_modules(import_module("ckptzoo.studies").__path__):
        study = getattr(import_module(f"ckptzoo.studies.{item.name}"), item.name, None)
        if "progress" in getattr(study, "__annotations__", ()) and item.name != "gauge_distance":  # a part of a study
            found[f"ckptzoo.studies.{item.name}.{item.name}"] = study
    methods = [Zoo.checkpoint, Zoo.predictions, Zoo.sorted, Zoo.split, Zoo.stream]
    methods += [GroupElement.random.__func__, GroupElement.identity.__func__]  # pyright: ignore[reportFunctionMemberAccess]
    found |= {method.__qualname__: method for method in methods}
    return {name: item for name, item in found.items() if inspect.isfunction(item)}


FUNCTIONS = public_functions()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_name_arguments_of_other_types(name: str) -> None:
    """Each parameter whose type can be told is given something else; its function is not reached."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    assert hasattr(FUNCTIONS[name], "__wrapped__"), "it is not checked"
    named = {key: item for key, item in parameters.items() if item.kind is not item.VAR_POSITIONAL}
    required = [key for key, item in named.items() if item.default is item.empty]
    for key, item in named.items():
        if item.annotation in (item.empty, Any, Arch) or Any in get_args(item.annotation):
            continue
        if isinstance(item.annotation, str):
            continue
        wrong = {key: object(), **{other: None for other in required if other != key}}
        with pytest.raises(ZooError, match=f": {key}: expected .*, got object") as caught:
            FUNCTIONS[name](**wrong)
        assert "\n" not in str(caught.value), str(caught.value)

"""Docstrings say to tools what they say to readers: parameters, results, and examples that run.

Griffe, which renders the reference, reads them without importing anything.
"""

import ast
import doctest
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import griffe
import numpy as np
import pytest

import ckptzoo
from tests.support.example_zoos import ROOT, example_hub, fill_hub, write_zoos
from tests.support.made_once import made_once

PACKAGES = ("ckptzoo", "builders")
PUBLIC = [getattr(ckptzoo, name) for name in ckptzoo.__all__ if name != "__version__"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def objects(module: griffe.Object) -> Iterator[griffe.Object]:
    """Everything that is defined in a module, and what that defines."""
    yield module
    for member in module.members.values():
        if isinstance(member, griffe.Object):
            yield from objects(member)


def entries(found: griffe.Object, *kinds: str) -> list[Any]:
    """The entries of some sections of a docstring."""
    sections = found.docstring.parse("numpy") if found.docstring else []
    return [entry for section in sections if section.kind.value in kinds for entry in section.value]


def parameters(found: griffe.Object) -> dict[str, griffe.Parameter]:
    """What a function or a class is called with."""
    if not isinstance(found, griffe.Function | griffe.Class):
        return {}
    return {item.name: item for item in found.parameters if item.name not in ("self", "cls")}


def assigned(found: griffe.Object) -> set[str]:
    """The attributes that the methods of a class give to ``self``."""
    return {
        node.attr
        for node in ast.walk(ast.parse(found.source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def result(found: griffe.Object, kind: str) -> str:
    """The annotation of a function's result or of what it yields, or of a property."""
    annotation = found.returns if isinstance(found, griffe.Function) else getattr(found, "annotation", None)
    if kind == "yields" and isinstance(annotation, griffe.ExprSubscript):
        annotation = annotation.slice
    return str(annotation)


def problems(found: griffe.Object) -> Iterator[str]:
    """What tools would read otherwise than it is meant."""
    known = parameters(found)
    for entry in entries(found, "parameters", "other parameters"):
        if entry.name not in known:
            yield f"{found.path}: parameter {entry.name!r} is not in the signature"
        # names that share an entry are given the annotation of the first of them
        elif not any(entry.annotation is item.annotation for item in known.values()):
            yield f"{found.path}: parameter {entry.name!r} has the type {str(entry.annotation)[:60]!r} in its docstring"
    for entry in entries(found, "attributes"):
        if entry.name in found.all_members:
            if entry.annotation is not getattr(found.all_members[entry.name], "annotation", None):
                yield f"{found.path}: attribute {entry.name!r} has the type {str(entry.annotation)[:60]!r}"
        elif entry.annotation is not None or entry.name not in assigned(found):
            yield f"{found.path}: there is no attribute {entry.name!r}"
    for kind in ("returns", "yields"):
        for entry in entries(found, kind):
            if str(entry.annotation) != result(found, kind):
                yield f"{found.path}: {kind} {str(entry.annotation)[:60]!r}, annotated with {result(found, kind)!r}"


def studies() -> list[str]:
    """The functions of ``ckptzoo.studies`` that commands import, or name in ``StudyOptions.answer``."""
    found: dict[str, None] = {}
    for path in sorted(ROOT.glob("ckptzoo/cli/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ckptzoo.studies."):
                found |= {f"{node.module}.{item.name}": None for item in node.names if item.name[0].islower()}
            match node:
                case ast.Call(func=ast.Attribute(attr="answer"), args=[ast.Constant(str() as name), *_]):
                    found[f"ckptzoo.studies.{name}.{name}"] = None
                case _:
                    pass
    return list(found)


REQUIRED = [*(f"{item.__module__}.{item.__qualname__}" for item in PUBLIC), *studies()]


@pytest.mark.exhaustive
def test_tools_read_what_readers_do(caplog: pytest.LogCaptureFixture) -> None:
    """Parameters and results are those of the signatures, and what is public has all of them and an example.

    Docstrings begin with a noun or a verb, those of attributes too, not with "Of", "See" or "What"; the questions of
    studies may. One test, because griffe takes seconds to read both packages.
    """
    with caplog.at_level(logging.WARNING, logger="griffe"):
        packages = {
            name: griffe.load(
                name,
                search_paths=[ROOT],
                allow_inspection=False,
                docstring_parser="numpy",
                extensions=griffe.load_extensions(),
            )
            for name in PACKAGES
        }
        read = [found for module in packages.values() if isinstance(module, griffe.Module) for found in objects(module)]
        assert [problem for found in read for problem in problems(found)] == []
    assert caplog.messages == []

    texts = [(found.path, found.docstring.value.lstrip()) for found in read if found.docstring]
    assert len(texts) > 3000
    assert [(path, text[:60]) for path, text in texts if re.match(r"(?:Of|See)\b|What\b(?![^.]*\?)", text)] == []

    for path in REQUIRED:
        found = packages["ckptzoo"][path.removeprefix("ckptzoo.")]
        assert found.docstring is not None, path
        assert {item.name.lstrip("*") for item in entries(found, "parameters")} == set(parameters(found)), path
        assert ">>> " in "".join(text for kind, text in entries(found, "examples") if kind.value == "examples"), path


class Example(NamedTuple):
    """A docstring with examples: where it is, its text and its first line."""

    module: str
    name: str
    text: str
    path: Path
    line: int

    @property
    def full_name(self) -> str:
        """The dotted path of what it documents."""
        return f"{self.module}.{self.name}".rstrip(".")


def examples() -> list[Example]:
    """Every docstring of both packages that has an example."""
    found: list[Example] = []
    for path in sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        source = path.read_text()
        if ">>> " in source:
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            found += [Example(module, name, text, path, line) for name, text, line in documented(ast.parse(source), "")]
    return [example for example in found if ">>> " in example.text]


def documented(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str, int]]:
    """Name, docstring and first line of a module, a class or a function, and of what it defines."""
    if text := ast.get_docstring(node):
        yield name, text, node.body[0].lineno - 1
    for item in node.body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from documented(item, f"{name}.{item.name}".lstrip("."))


@pytest.fixture(params=examples(), ids=lambda example: example.full_name)
def example(request: pytest.FixtureRequest) -> Example:
    """Each of them in turn."""
    return request.param


@pytest.fixture(scope="module")
def zoos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the zoos that examples use besides those of ``cards``."""
    return made_once(tmp_path_factory, "examples", write_zoos)


@pytest.fixture(scope="module")
def served(zoos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a hub that has some of them."""
    return made_once(tmp_path_factory, "examples-hub", lambda folder: fill_hub(zoos, folder)) / "served"


@pytest.fixture
def folder(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """The folder in which an example runs, with zoos and with a hub for those that name some of theirs."""
    place = tmp_path / "reader"
    place.mkdir()
    (place / "cards").symlink_to(ROOT / "cards")
    monkeypatch.chdir(place)
    names_hub = "lab/" in example.text
    if names_hub or '"zoos' in example.text:
        shutil.copytree(request.getfixturevalue("zoos"), place, dirs_exist_ok=True)
    with example_hub(tmp_path, request.getfixturevalue("served"), monkeypatch) if names_hub else nullcontext():
        yield


# warnings that Ray, the client library and PyTorch Geometric cause themselves
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning", "ignore:.torch.jit:DeprecationWarning")
@pytest.mark.usefixtures("folder")
def test_examples_print_what_they_say(example: Example) -> None:
    """With ``import ckptzoo`` and ``import numpy as np``; those of names that are not public with their modules' names."""
    assert "+SKIP" not in example.text
    names = {"ckptzoo": ckptzoo, "np": np}
    if example.full_name not in REQUIRED:
        names = {**vars(import_module(example.module)), **names}
    test = doctest.DocTestParser().get_doctest(example.text, names, example.full_name, str(example.path), example.line)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
    assert said == [], "".join(said)

"""Light imports, one list of public names, and docstrings everywhere; ``make lint`` checks the contracts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ckptzoo

ROOT = Path(__file__).parents[2]


IMPORTS = [
    ("import ckptzoo", "numpy pyarrow torch huggingface_hub datasets safetensors typer matplotlib"),
    ("import ckptzoo.schema.architecture, ckptzoo.errors", "numpy pyarrow torch"),
    ("import ckptzoo.cli", "numpy pyarrow torch datasets matplotlib"),
    ("import ckptzoo; ckptzoo.open; ckptzoo.create; ckptzoo.verify", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo; ckptzoo.learning", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo; ckptzoo.push, ckptzoo.pull, ckptzoo.search", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo; ckptzoo.contribute, ckptzoo.review", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo.archs, ckptzoo.symmetry, ckptzoo.measure, ckptzoo.studies, ckptzoo.derive", "torch datasets"),
]
"""Programs, and what none of them imports; each may import what those before it may."""


def test_imports_are_light():
    checks = [
        f"{program}; print({program!r}, [name for name in {absent.split()} if name in sys.modules])"
        for program, absent in IMPORTS
    ]
    code = "\n".join(["import sys", *checks])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [f"{program} []" for program, _ in IMPORTS]


def test_public_names_are_there_and_documented():
    typed = {
        alias.asname
        for node in ast.walk(ast.parse((ROOT / "ckptzoo/__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ckptzoo.")
        for alias in node.names
    }
    assert typed | {"__version__"} == set(ckptzoo.__all__)
    shown = "import ckptzoo; from ckptzoo import format, hub, studies; print(*dir(ckptzoo)); print(*dir(hub))"
    names = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    packages = {path.parent.name for path in (ROOT / "ckptzoo").glob("*/__init__.py")} | {"errors"}
    first, second = (set(line.split()) for line in names.splitlines())
    assert set(ckptzoo.__all__) == first - packages and second == set(ckptzoo.hub.__all__)
    for name in ckptzoo.__all__:
        assert getattr(ckptzoo, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        ckptzoo.opne  # noqa: B018


def test_every_public_function_and_class_has_a_docstring():
    missing = []
    for path in [*ROOT.glob("ckptzoo/**/*.py"), *ROOT.glob("builders/**/*.py")]:
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree) and path.read_text().strip():
            missing.append(str(path.relative_to(ROOT)))
        for node in outer_definitions(tree):
            if not node.name.startswith("_") and not ast.get_docstring(node):
                missing.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert missing == []


def outer_definitions(node):
    """Functions and classes within a node, but not those within functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from outer_definitions(child)

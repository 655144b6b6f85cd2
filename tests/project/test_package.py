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
    (
        "import ckptzoo; ckptzoo.open('cards/mnist-optunet')['conv1.weight'][:64]",
        "pandas pyarrow.compute pyarrow.dataset ml_dtypes ckptzoo.remote ckptzoo.symmetry torch",
    ),
    (
        (
            "z = ckptzoo.open('cards/mnist-optunet'); z[5].row; z.split('main', 'train').last_steps().metadata; "
            "z.where('test_accuracy > 0.9 and recipe != \"a\" and extra.batch in [64]').ids; "
            "next(iter(z.stream('conv1.weight', columns=['seed', 'recipe'])))"
        ),
        "pandas ckptzoo.remote ckptzoo.symmetry torch",
    ),
    (
        "from ckptzoo.studies.inventory import take_stock; take_stock('cards/mnist-optunet')",
        "pandas numpy.ma pyarrow.dataset ckptzoo.remote ckptzoo.derive ckptzoo.symmetry.gauges torch",
    ),
    (
        (
            "import numpy, tempfile; w = ckptzoo.create(tempfile.mkdtemp() + '/zoo', arch=ckptzoo.Architecture('tiny', "
            "(ckptzoo.Tensor('a', (4,)),))); w.add({'a': numpy.zeros((2, 4), 'f4')}, [{'id': 'x', 'seed': 1, "
            "'epoch': 2.5}, {'id': 'y', 'extra': {'lr': .1}}]); w.commit(); ckptzoo.verify(w.path); "
            "ckptzoo.compact(w.path)"
        ),
        "pandas torch",
    ),
    ("import ckptzoo; ckptzoo.open; ckptzoo.create; ckptzoo.verify", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo; ckptzoo.learning", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo; ckptzoo.push, ckptzoo.pull, ckptzoo.search", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo; ckptzoo.contribute, ckptzoo.review", "torch datasets huggingface_hub matplotlib"),
    ("import ckptzoo.archs, ckptzoo.symmetry, ckptzoo.measure, ckptzoo.studies, ckptzoo.derive", "torch datasets"),
    (
        "from builders import engines, train; from builders.recipe import Recipe; engines.fastest(Recipe.load('toy'))",
        "numba jax ray optuna datasets",
    ),
]
"""Programs, and what none of them imports; each may import what those before it may."""


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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
    """But methods of classes with bases from elsewhere, and those that another class documents: protocols and bases."""
    missing, known, documented, methods = [], set(), set(), []
    for path in [*ROOT.glob("ckptzoo/**/*.py"), *ROOT.glob("builders/**/*.py")]:
        tree, place = ast.parse(path.read_text()), str(path.relative_to(ROOT))
        if not ast.get_docstring(tree) and path.read_text().strip():
            missing.append(place)
        inside = set()
        for node in outer_definitions(tree):
            if isinstance(node, ast.ClassDef):
                known.add(node.name)
                own = [item for item in node.body if isinstance(item, FUNCTIONS)]
                inside |= {id(item) for item in own}
                documented |= {item.name for item in own if ast.get_docstring(item)}
                bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
                names = {ast.unparse(base).rpartition(".")[2] for base in bases}
                methods += [(f"{place}: {node.name}", names, item) for item in own]
            if id(node) not in inside and not node.name.startswith("_") and not ast.get_docstring(node):
                missing.append(f"{place}: {node.name}")
    for place, bases, method in methods:
        undocumented = not (method.name.startswith("_") or ast.get_docstring(method))
        if undocumented and bases <= known and method.name not in documented:
            missing.append(f"{place}.{method.name}")
    assert missing == []


def outer_definitions(node):
    """Functions and classes within a node, but not those within functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from outer_definitions(child)

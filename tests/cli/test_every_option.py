"""Every option and argument of every command, with values that it does not take: one line says so, and nothing is left.

The commands come from the parsers, so that a new option is tried without being named here.
"""

import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file

import ckptzoo
from builders.cli.app import app as builders_app
from builders.cli.app import run as run_builders
from ckptzoo.cli.app import app, run
from ckptzoo.cli.exits import OUTCOMES
from tests.conftest import rows_of, weights_of

CODES = {outcome.code for outcome in OUTCOMES} - {70}


@cache
def commands() -> dict[str, Any]:
    """Every command by its words; those of the builders begin with ``build:``."""
    found: dict[str, Any] = {}

    def add(words: str, command: Any) -> None:
        below = getattr(command, "commands", None)
        if below is None or command.invoke_without_command:
            found[words] = command
        for name, item in (below or {}).items():
            add(f"{words} {name}".strip(), item)

    add("", typer.main.get_command(app))
    for name, command in typer.main.get_command(builders_app).commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        found[f"build:{name}"] = command
    return found


def fitting(parameter: Any) -> list[str]:
    """Words that a required option or argument takes as far as the parser can tell."""
    kind = str(parameter.type_descriptor.annotation)
    is_file = "Path" in kind and (parameter.metavar or "").startswith(("FILE", "X.csv"))
    word = "1000" if "int" in kind or "float" in kind else "file" if is_file else "0,1"
    return [word] * max(1, parameter.nargs)


def refused(command: Any, name: str, parameter: Any, words: list[str]) -> str:
    """The parser's message about a command line in which one parameter has these words."""
    before = command.params[: command.params.index(parameter)]
    line = [
        word
        for other in command.params
        if other.required or other is parameter or (other in before and other.param_type_name == "argument")
        for word in (words if other is parameter else given(other))
    ]
    with pytest.raises(typer.BadParameter) as caught:
        command.make_context(name, line)
    said = caught.value.format_message()
    assert ("\n" not in said and ", got " in said) or "does not exist" in said, (name, words, said)
    shown = (*parameter.opts, parameter.metavar or parameter.name.upper())
    assert any(option in said for option in shown), (name, words, said)
    return said


def given(parameter: Any) -> list[str]:
    """A parameter with words that fit."""
    words = fitting(parameter)
    return words if parameter.param_type_name == "argument" else [parameter.opts[0], *words]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", list(commands()))
def test_values_that_no_command_takes(folder: Path, name: str) -> None:
    command = commands()[name]
    for parameter in command.params:
        kind = str(parameter.type_descriptor.annotation)
        is_option = parameter.param_type_name == "option"
        if "bool" in kind or parameter.name == "help":
            continue

        def words(value: str, parameter: Any = parameter, is_option: bool = is_option) -> list[str]:
            values = [value] * max(1, parameter.nargs)
            return [parameter.opts[0], *values] if is_option else values

        if parameter.type_descriptor.is_choice:
            refuses = []
        elif "int" in kind or "float" in kind:
            huge = "1e400" if "float" in kind else f"{10**30}"
            refuses = ["nan", "inf", huge] if "float" in kind else [huge]
        else:
            refuses = ["", "  "]
        if "Path" in kind:
            refuses += ["-", "./-", *(["file"] if parameter.metavar in ("FOLDER", "ZOO") else [])]
        for value in refuses:
            refused(command, name, parameter, words(value))
        if is_option and not parameter.multiple and not parameter.type_descriptor.is_choice:
            twice = [*given(parameter), *given(parameter)]
            if parameter.name != "data":  # whose folder has to be there
                assert "it 2 times" in refused(command, name, parameter, twice)


def test_every_command_is_checked() -> None:
    kinds = {type(command).__name__ for command in commands().values()}
    assert kinds == {"Command", "CommandGroup"} and len(commands()) > 60
    assert set(LINES) == set(commands())


# The whole walk: command lines that work, in which one word after another is exchanged for odd ones.

LINES = {
    "info": "few", "show": "few -o out", "page": "few -o p.html", "verify": "few",
    "rebuild": "few m00000 --step 1 -o s.safetensors", "compare": "few m00000 m00001",
    "export": "few m00000 -o e.safetensors", "derive": "few", "align": "few --to best", "dedupe": "few",
    "predict": "few noise/test --inputs own.npz", "mmd": "few few -o out", "collection": ".", "search": "",
    "link": "net.safetensors --to new --license MIT --arch optunet", "materialize": "few --to new", "gather": "few",
    "build:report": "--zoos . --to new --only toy", "audit": "few", "catalogue": "", "import": "net.safetensors --to new --license MIT --arch optunet", "pull": "few -o out", "push": "few org/zoo",
    "card": "few", "contribute": "net.safetensors --to org/zoo --card card.toml --dry-run", "review": "org/zoo 1",
    "release": "few one --notes x", "cite": "few --where seed<3", "compact": "few", "retract": "few m00000 --reason x", "doctor": "", "study symmetries": "few",
    "study permutations": "few", "study mass": "few", "study marginals": "few", "study modes": "few",
    "study predict-accuracy": "few", "study toy": "few", "study ensembles": "few", "study posteriors": "few few",
    "study collapse": "few", "study barriers": "few --inputs own.npz --pairs 1 --points 3",
    "study transpositions": "few --no-barriers", "study steps": "few --no-barriers",
    "landscape": "few --inputs own.npz --set own/test", "study landscape": "few --pairs 0",
    "study independence": "few", "study novelty": "few few",
    "study reference": "few few",
    "study compact": "few --inputs own.npz --draws 2", "study pairs": "few --no-barriers", "splits make": "few main",
    "splits import": "few main --from split.csv", "splits list": "few", "splits show": "few main", "cache ls": "",
    "cache prune": "--to 1GB", "serve": "--root file", "serve user": "--root root ada", "serve org": "--root root lab",
    "serve grant": "--root root --list", "serve token": "--root root", "serve backup": "--root root --to backup",
    "serve restore": "backup --root root2", "serve gc": "--root root", "serve doctor": "--root root",
    "build:build": "toy --members 2 --to new", "build:plan": "toy --members 2 --to new", "build:work": "toy --to new",
    "build:submit": "toy --to new --print", "build:merge": "toy --to new", "build:status": "new",
    "build:planted": "toy --transpositions 0,1 --runs 1 --to new",
    "build:posterior": "swag toy --modes 1 --draws 1 --to new --from few",
    "build:posteriors": "toy --members few --to new", "build:estimate": "toy --members 2", "build:cost": "few",
    "build:predict": "few toy", "build:round": "few toy -o new", "build:search": "toy --to new --trials 1",
    "build:recipes": "", "build:inputs": "toy -o x.npy", "build:quickstart": "--members 1 --to q",
}  # fmt: skip
ZOOS = ["few", "one", "own", "empty", "gone", "net.safetensors", "none", "."]
TEXTS = ["none", "中", "a" * 300, "-1", "nan", "../x", "a,b", "a=b", "*", "(", "#", "x\udcffy", "ca/nonicl"]
PATHS = ["none", ".", "net.safetensors", "bytes", "none/deep/x", "bytes/x", "a" * 300, "few", "own.npz", "é 中"]
BY_NAME = {
    "share": ["0/0", "2/1", "a/b", "0", "0/99999999999999999999", "0/1/2", "9" * 5000 + "/1"],
    "input_shape": ["0", "-1", "1x28x28", "axb", "999999999x9999", "9" * 5000],
    "module": [
        f"{file}.py:{name}" for file in ("net", "none", "broken") for name in ("NET", "none", "raises", "exits")
    ],
    "on": ["x", "ray:", "ray://", "spark"],
    "where": ["none == 1", "seed <", "seed < 'x'", "seed > 9", "__import__('os')", "seed = 1", "seed", "id == 3"],
    "duration": ["-5m", "nans", "infh", "5", "m", "0s", "1e300h"],
    "device": ["none", "meta", "cuda:99", "cpu:0"],
}
BY_NAME["where_y"], BY_NAME["modules"] = BY_NAME["where"], BY_NAME["module"]
SIZES = ["0", "-1", "nan", "1XB", "GB", "9" * 400 + "TB"]


def odd(parameter: Any) -> list[str]:
    """Odd words for a parameter, by its name and type."""
    kind = str(parameter.type_descriptor.annotation)
    if parameter.name in BY_NAME:
        return BY_NAME[parameter.name]
    if "int" in kind or "float" in kind:
        return ["-1", "0", "1", "1.5", "abc"]
    if parameter.metavar == "SIZE":
        return SIZES
    if "Path" in kind:
        return PATHS
    return ZOOS if (parameter.metavar or "").startswith(("ZOO", "TARGET", "SAMPLES", "GENERATED")) else TEXTS


def exchanged(command: Any, line: list[str]) -> Iterator[tuple[Any, list[str]]]:
    """Command lines in which one parameter has odd words."""
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    for place, parameter in enumerate(arguments):
        if place < len(line) and not line[place].startswith("-"):
            for value in odd(parameter):
                yield parameter, [*line[:place], *(["--"] if value.startswith("-") else []), value, *line[place + 1 :]]
    for parameter in command.params:
        if parameter.param_type_name == "argument" or parameter.name == "help":
            continue
        if command.name == "serve" and parameter.name == "root":  # it would serve
            continue
        there = next((at for at, word in enumerate(line) if word in parameter.opts), None)
        rest = line if there is None else [*line[:there], *line[there + 2 :]]
        if "bool" in str(parameter.type_descriptor.annotation):
            yield parameter, [*line, parameter.opts[0]]
        else:
            for value in odd(parameter):
                words = [value] * max(1, parameter.nargs)
                joined = [f"{parameter.opts[0]}={value}"] if len(words) == 1 else [parameter.opts[0], *words]
                yield parameter, [*rest, *joined]


@pytest.fixture(scope="module")
def zoos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small zoos that lack what commands need, and files."""
    root = tmp_path_factory.mktemp("zoos")
    arch, symmetry = ckptzoo.archs.architecture("optunet"), ckptzoo.archs.symmetry("optunet")
    own = ckptzoo.Architecture("own", (ckptzoo.Tensor("a.weight", (3, 2)), ckptzoo.Tensor("b.weight", (2, 3))))
    for name, kind, count in (
        ("few", arch, 4),
        ("one", arch, 1),
        ("empty", arch, 0),
        ("own", own, 3),
        ("gone", own, 2),
    ):
        table = symmetry if kind is arch else None
        with ckptzoo.create(root / name, arch=kind, symmetry=table) as writer:
            if count:
                writer.add(weights_of(kind, count), rows_of(count, dataset="mnist"))
    ckptzoo.retract(root / "gone", ["m00000", "m00001"], reason="none is good")
    zoo = ckptzoo.open(root / "few")
    save_file({name: np.array(zoo[name][0]) for name in arch.names}, root / "net.safetensors")
    rng = np.random.default_rng(0)
    np.savez(root / "own.npz", inputs=rng.normal(size=(8, 1, 28, 28)).astype("f4"), targets=np.arange(8))
    (root / "card.toml").write_text('contributor = "Ada"\nlicense = "cc-by-4.0"\ndataset = "mnist"\n')
    (root / "split.csv").write_text("split,id\n" + "\n".join(f"train,{name}" for name in zoo.ids))
    (root / "bytes").write_bytes(bytes(range(256)))
    (root / "file").write_text("")
    own_code = "NET = 3\ndef raises():\n    raise RuntimeError('my own')\ndef exits():\n    raise SystemExit(3)\n"
    (root / "net.py").write_text(own_code)
    (root / "broken.py").write_text("def NET(:\n")
    return root


def files_of(root: Path) -> dict[str, int]:
    found = (Path(folder) / name for folder, _, names in os.walk(root) for name in names)
    return {str(path.relative_to(root)): path.lstat().st_size for path in found}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(commands()))
def test_odd_words_end_in_one_line(
    zoos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    command, line = commands()[name], LINES[name].split()
    for at, (parameter, words) in enumerate(exchanged(command, line)):
        here = shutil.copytree(zoos, tmp_path / f"{at}")
        monkeypatch.chdir(here)
        before = files_of(here)
        runner, first = (run_builders, [name[6:]]) if name.startswith("build:") else (run, name.split())
        code, said = runner([*first, *words]), capsys.readouterr().err
        where = f"{name} {words} ({parameter.name}): {code}\n{said}"
        assert code in CODES, where
        assert "Traceback" not in said and "a mistake in" not in said, where
        if code not in (0, 1):
            errors = [text for text in said.splitlines() if ": error: " in text]
            assert len(errors) == 1 and errors[0].endswith((".", "?")), where
        if code == 2:
            kept = {path for path in files_of(here) if path not in before and not path.startswith(("root", "new"))}
            assert not kept, where
        shutil.rmtree(here)

"""What the shell is offered where a word of a command line is begun."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run
from ckptzoo.derive import derive


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve OptuNets, raw and in first-weight."""
    path, rng = tmp_path_factory.mktemp("completion") / "nets", np.random.default_rng(0)
    arch = archs.architecture("optunet")
    with ckptzoo.create(path, arch=arch, symmetry=archs.symmetry("optunet")) as writer:
        weights = {tensor.name: rng.normal(size=(12, *tensor.shape)).astype(np.float32) for tensor in arch.tensors}
        writer.add(weights, [{"id": f"net-{row:03d}"} for row in range(12)])
    derive(path, gauge="first-weight", certify="none")
    return path


def variables(words: str) -> dict[str, str]:
    """The environment in which bash asks for completions, as Typer's script for it does."""
    line = f"ckptzoo {words}"
    return {
        "_CKPTZOO_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("der", ["derive"]),
        ("export ZOO net-01", ["net-010", "net-011"]),
        ("retract ZOO net-003 net-00", [f"net-00{row}" for row in range(10)]),
        ("show ZOO --variant r", ["raw"]),
        ("derive ZOO --gauge first", ["first-weight"]),
        ("export /nowhere net", []),
        ("mm", ["mmd"]),
        ("mmd ZOO ZOO --variant f", ["first-weight"]),
        ("mmd nowhere ZOO --variant-y f", ["first-weight"]),
        ("mmd ZOO --variant-y f", ["first-weight"]),
        ("mmd ZOO nowhere --variant-y f", []),
        ("mmd ZOO ZOO --bandwidths p", ["paper"]),
        (
            "study ",
            [
                *("barriers", "collapse", "compact", "ensembles", "marginals", "mass", "modes", "pairs"),
                *("permutations", "posteriors", "predict-accuracy", "steps", "symmetries", "toy", "transpositions"),
            ],
        ),
        ("study perm", ["permutations"]),
        ("study mass ZOO --formulation p", ["pinned"]),
        ("study symmetries ZOO --variant f", ["first-weight"]),
        ("study permutations ZOO --variant f", ["first-weight"]),
    ],
)
def test_words_are_completed(
    zoo: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    expected: list[str],
) -> None:
    for name, value in variables(words.replace("ZOO", str(zoo))).items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run([])
    captured = capsys.readouterr()
    assert ended.value.code == 0
    assert sorted(captured.out.split()) == sorted(expected) and captured.err == ""


def test_the_process_that_the_shell_starts_prints_the_same(zoo: Path) -> None:
    environment = {**os.environ, **variables(f"export {zoo} net-01")}
    command = [sys.executable, "-m", "ckptzoo"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (ended.stdout.split(), ended.stderr) == (["net-010", "net-011"], "")

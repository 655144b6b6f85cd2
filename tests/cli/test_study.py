"""The studies as commands."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.studies.permutations import permutations
from ckptzoo.studies.symmetries import symmetries


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Ten OptuNets at steps 0, 10 and 20, whose weights wander, in first-weight."""
    arch = archs.architecture("optunet")
    rng = np.random.default_rng(0)
    weights = {
        tensor.name: np.cumsum(rng.normal(size=(3, 10, *tensor.shape)), axis=0)
        .reshape(-1, *tensor.shape)
        .astype(np.float32)
        for tensor in arch.tensors
    }
    rows = [{"id": f"n{at}", "member": f"m{at % 10}", "step": 10 * (at // 10)} for at in range(30)]
    with ckptzoo.create(tmp_path / "trained", arch=arch, symmetry=archs.symmetry("optunet")) as writer:
        writer.add(weights, rows)
    derive(tmp_path / "trained", gauge="first-weight", certify="none")
    return tmp_path / "trained"


def test_symmetries_are_told(cli: Any, trained: Path) -> None:
    ended = cli("study", "symmetries", trained, "--variant", "first-weight")
    assert ended.code == 0 and ended.err == ""
    for words in ("30 checkpoints of optunet", "28,800", "blocks of conv1 and conv2", "conv2 within its 2 blocks"):
        assert words in ended.out
    assert not list(trained.parent.glob("*-*")), "no pictures unless they are asked for"


@pytest.mark.parametrize(
    ("name", "ask", "pictures"),
    [
        ("symmetries", symmetries, ["margins.png", "scales.png", "transpositions.png"]),
        pytest.param("permutations", permutations, ["permutations.png"], marks=pytest.mark.exhaustive),
    ],
)
def test_json_is_the_study_and_the_files(
    cli: Any, trained: Path, tmp_path: Path, name: str, ask: Any, pictures: list[str]
) -> None:
    ended = cli("study", name, trained, "--variant", "first-weight", "--json", "-o", tmp_path / "drawn")
    assert ended.code == 0 and ended.out.count("\n") == 1
    expected = json.loads(json.dumps(ask(ckptzoo.open(trained), "first-weight").to_json()))
    files = [str(tmp_path / "drawn" / file) for file in (*pictures, f"{name}.json")]
    assert ended.json == {**expected, "files": files}
    assert sorted(file.name for file in (tmp_path / "drawn").iterdir()) == sorted([*pictures, f"{name}.json"])


@pytest.mark.exhaustive
def test_permutations_are_told_and_drawn(cli: Any, trained: Path, tmp_path: Path) -> None:
    ended = cli("study", "permutations", trained, "--variant", "first-weight", "-o", tmp_path / "drawn")
    assert ended.code == 0 and ended.out.splitlines()[-2:] == [
        str(tmp_path / "drawn" / name) for name in ("permutations.png", "permutations.json")
    ]
    assert "10 members of optunet" in ended.out and "  10 to 20" in ended.out


def test_permutations_by_the_largest_weight(cli: Any, trained: Path) -> None:
    ended = cli("study", "permutations", trained, "--key", "largest-weight", "--json")
    assert ended.code == 0 and (ended.json["key"], ended.json["variant"]) == ("largest-weight", "raw")
    expected = permutations(ckptzoo.open(trained), key="largest-weight").to_json()
    assert ended.json == {**json.loads(json.dumps(expected)), "files": []}
    assert cli("study", "permutations", trained, "--key", "weight").code == 2


def test_where_selects(cli: Any, trained: Path) -> None:
    ended = cli("study", "permutations", trained, "--variant", "first-weight", "--where", "step > 0", "--json")
    assert ended.json["steps"] == [10, 20]
    ended = cli("study", "symmetries", trained, "--variant", "first-weight", "--where", "step > 0", "--json")
    assert ended.json["checkpoints"] == 20


def test_what_is_missing_is_one_line_and_the_next_step(cli: Any, trained: Path, make_zoo: Any) -> None:
    ended = cli("study", "permutations", trained, "--variant", "first-weight", "--where", "step == 20")
    assert ended.code == 2 and "--keep-steps" in ended.line
    ended = cli("study", "symmetries", trained, "--variant", "unit-norm")
    assert ended.code == 2 and f"Run ckptzoo derive {trained} --gauge unit-norm." in ended.line
    ended = cli("study", "symmetries", trained, "--variant", "frist-weight")
    assert ended.code == 2 and "Did you mean first-weight" in ended.line
    ended = cli("study", "symmetries", make_zoo()[0], "--variant", "first-weight")
    assert ended.code == 4 and "symmetry table" in ended.line
    (trained.parent / "file").write_text("")
    # before anything is computed, which would be lost
    drawn = trained.parent / "file" / "pictures"
    ended = cli("study", "symmetries", trained, "--variant", "frist-weight", "-o", drawn)
    assert ended.code == 4 and "file: path: expected a path whose folders are folders" in ended.line
    assert cli("study").code == 2 and cli("study", "everything").code == 2


def test_help_lists_the_studies(cli: Any) -> None:
    assert "study" in cli("--help").out
    ended = cli("study", "--help")
    assert ended.code == 0 and "symmetries" in ended.out and "permutations" in ended.out


@pytest.mark.exhaustive
def test_a_study_imports_neither_torch_nor_pyplot(trained: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from ckptzoo.cli.app import run\n"
        f"ask = [{str(trained)!r}, '--variant', 'first-weight']\n"
        "assert run(['study', 'symmetries', *ask]) == 0 and 'matplotlib' not in sys.modules\n"
        f"assert run(['study', 'permutations', *ask, '-o', {str(tmp_path / 'drawn')!r}]) == 0\n"
        "print('torch' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines()[-1] == "False False", ended.stderr

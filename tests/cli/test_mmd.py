"""``ckptzoo mmd`` as a command."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.studies import mmd


def test_it_is_told_and_drawn(cli: Any, optunets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = optunets
    monkeypatch.chdir(tmp_path)
    ended = cli("mmd", path, path, "--where", "seed < 6", "--where-y", "seed >= 6", "--permutations", "9")
    assert ended.code == 0 and ended.err == ""
    assert ended.out.splitlines()[-2:] == ["mmd/mmd.png", "mmd/mmd.json"]
    assert sorted(file.name for file in Path("mmd").iterdir()) == ["mmd.json", "mmd.png"]
    for words in ("nets, raw: 6 checkpoints", "5 checkpoints; 1 left out, not finite", "conv2", "weighted average"):
        assert words in ended.out, ended.out


def test_json_is_the_study_and_the_files(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    derive(path, gauge="first-weight", certify="none")
    options = ["--where", "seed < 6", "--where-y", "seed >= 6", "--variant", "first-weight", "--variant-y", "raw"]
    options += ["--bandwidths", "fixed", "--permutations", "5", "--seed", "3", "--device", "cpu", "--json"]
    ended = cli("mmd", path, path, *options, "-o", tmp_path / "made")
    assert ended.code == 0 and ended.out.count("\n") == 1
    zoo = ckptzoo.open(path)
    one, two = zoo.where("seed < 6"), zoo.where("seed >= 6")
    found = mmd(one, two, "first-weight", "raw", bandwidths="fixed", permutations=5, seed=3, device="cpu")
    files = [str(tmp_path / "made" / name) for name in ("mmd.png", "mmd.json")]
    assert ended.json == {**json.loads(json.dumps(found.to_json())), "files": files}


@pytest.mark.exhaustive
def test_the_second_gauge_is_the_first_ones(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    derive(path, gauge="first-weight", certify="none")
    ended = cli("mmd", path, path, "--variant", "first-weight", "--json", "-o", tmp_path / "made")
    assert ended.code == 0 and "11 members of nets are in both" in ended.line
    assert ended.json["y"]["variant"] == "first-weight" and ended.json["shared"] == 11
    assert max(ended.json["layers"][0]["mmd2"]) < 0


def test_what_is_wrong_is_one_line(cli: Any, optunets: Any, make_zoo: Any, tmp_path: Path) -> None:
    path, _ = optunets
    ended = cli("mmd", path, make_zoo()[0], "-o", tmp_path / "made")
    assert ended.code == 2 and "nets and zoo: parameters: expected the same shapes" in ended.line
    ended = cli("mmd", path, path, "--where", "seed == 1", "-o", tmp_path / "made")
    assert ended.code == 2 and "expected 2 or more that are finite, got 1 of 1" in ended.line
    ended = cli("mmd", path, path, "--variant-y", "canonical", "-o", tmp_path / "made")
    assert ended.code == 2 and "expected 'canonical' among them" in ended.err
    assert not (tmp_path / "made").exists()
    assert cli("mmd", path).code == 2
    assert cli("mmd", path, path, "--bandwidths", "mine").code == 2
    assert cli("mmd", path, path, "--permutations", "-1").code == 2
    assert cli("mmd", path, tmp_path / "missing").code == 2


def test_matplotlib_is_asked_for_before_anything_is_read(
    cli: Any, optunets: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where a folder is named; without one there are figures and no picture."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = cli("mmd", optunets[0], optunets[0], "--json")
    assert ended.code == 0 and ended.json["files"] == [] and not (tmp_path / "mmd").exists()

    def read(*_: Any) -> np.ndarray:
        raise AssertionError("weights were read")

    monkeypatch.setattr("ckptzoo.loader.lazy_tensor.StackedTensor.__getitem__", read)
    ended = cli("mmd", optunets[0], optunets[0], "-o", tmp_path / "made")
    assert ended.code == 4 and "pip install 'ckptzoo[plot]'" in ended.line


def test_a_comparison_is_shared(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    command = ["mmd", path, path, "--where", "seed < 6", "--where-y", "seed >= 6", "--permutations", "9", "--json"]
    command += ["-o", tmp_path / "made"]
    alone = cli(*command)
    first = cli(*command, "--saved", tmp_path / "kept", "--share", "0/2")
    assert first.code == 0 and "Others are missing" in first.out
    second = cli(*command, "--saved", tmp_path / "kept", "--share", "1/2")
    assert second.code == 0 and "without --share has the result" in second.out
    assert cli(*command, "--saved", tmp_path / "kept").out == alone.out
    for wrong in (["--share", "0/2"], ["--share", "2/2", "--saved", tmp_path / "kept"]):
        ended = cli(*command, *wrong)
        assert ended.code == 2 and "expected" in ended.err

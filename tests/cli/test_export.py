"""export: what other programs read from the file, and that equal checkpoints give equal bytes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import load_file

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive import derive


def test_safetensors_hold_weights_and_metadata(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, weights = optunets
    target = tmp_path / "one.safetensors"
    ended = cli("export", path, "net-007", "-o", target)
    assert ended.code == 0 and ended.out == f"{target}\n"
    found = load_file(target)
    assert set(found) == set(weights)
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.numpy(), weights[name][7])
    with safetensors.safe_open(target, "numpy") as file:
        metadata = file.metadata()
    assert metadata["id"] == "net-007" and metadata["seed"] == "7" and metadata["diverged"] == "false"
    assert float(metadata["test_accuracy"]) == 0.8 + 7 / 100
    assert (metadata["zoo"], metadata["variant"], metadata["architecture"]) == ("nets", "raw", "optunet")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_equal_checkpoints_give_equal_bytes(cli: Any, optunets: Any, tmp_path: Path, suffix: str) -> None:
    path, _ = optunets
    files = [tmp_path / f"{name}.{suffix}" for name in ("one", "another")]
    for target in files:
        assert cli("export", path, "net-002", "-o", target).code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_pt_is_a_state_dict(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, weights = optunets
    assert cli("export", path, "net-010", "-o", tmp_path / "one.pt").code == 0
    found = torch.load(tmp_path / "one.pt", weights_only=True)
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.numpy(), weights[name][10])
    assert (tmp_path / "one.pt").stat().st_size < 8000


def test_every_dtype_scalars_and_tied_tensors(cli: Any, make_zoo: Any, tmp_path: Path) -> None:
    path, weights = make_zoo()
    for suffix in ("safetensors", "pt"):
        assert cli("export", path, "m00004", "-o", tmp_path / f"one.{suffix}").code == 0
    flat = load_file(tmp_path / "one.safetensors")
    state = torch.load(tmp_path / "one.pt", weights_only=True)
    assert set(state) == set(flat) == {*weights, "tied.weight"}
    assert torch.equal(flat["tied.weight"], flat["brain.weight"])
    assert state["tied.weight"].data_ptr() == state["brain.weight"].data_ptr()
    for name, array in weights.items():
        assert flat[name].dtype == state[name].dtype and flat[name].shape == state[name].shape == array.shape[1:]
        exact = flat[name].view(torch.uint8) if flat[name].ndim else flat[name].reshape(1).view(torch.uint8)
        assert exact.numpy().tobytes() == array[4].tobytes()
        assert torch.equal(flat[name], state[name])


def test_a_variant_by_where(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    derive(path, gauge="first-weight", certify="none")
    target = tmp_path / "one.safetensors"
    ended = cli("export", path, "--where", "seed == 5", "--variant", "first-weight", "-o", target)
    assert ended.code == 0
    expected = ckptzoo.open(path).checkpoint("net-005", variant="first-weight")
    for name, tensor in load_file(target).items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("net-001", "-o", "one.bin"), "ends in .safetensors or .pt, got one.bin"),
        (("net-001",), "got none"),
        (("net-001", "-o", "nowhere/one.pt"), "expected an existing folder"),
        (("net-01", "-o", "one.pt"), "Did you mean net-011 or net-010 or net-001?"),
        (("--where", "seed < 3", "-o", "one.pt"), "leaves one checkpoint, got 3"),
        (("net-001", "-o", "one.pt", "--variant", "canonical"), "variant 'canonical'"),
        (("net-001", "-o", "one.pt", "--where", "seed == 2"), "checkpoint 'net-001'"),
    ],
)
def test_wrong_usage_writes_nothing(
    cli: Any, optunets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    path, _ = optunets
    monkeypatch.chdir(tmp_path)
    ended = cli("export", path, *arguments)
    assert ended.code == 2 and said in ended.err and ended.out == ""
    assert [file.name for file in tmp_path.iterdir()] == ["nets"]


def test_a_target_that_cannot_be_replaced(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    (tmp_path / "one.pt").mkdir()
    ended = cli("export", path, "net-001", "-o", tmp_path / "one.pt")
    assert ended.code == 2 and "expected a file, or nothing there yet, got a folder" in ended.line
    assert not list(tmp_path.glob(".ckptzoo*"))


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Six OptuNets on handwritten digits, near one another: three permuted, the last retracted."""
    arch, table, rng = archs.architecture("optunet"), archs.symmetry("optunet"), np.random.default_rng(0)
    one = {tensor.name: rng.normal(size=(1, *tensor.shape)) for tensor in arch.tensors}
    weights = {
        name: (array + 0.05 * rng.normal(size=(6, *array.shape[1:]))).astype(np.float32) for name, array in one.items()
    }
    moved = symmetry.apply(symmetry.GroupElement.random(table, 6, rng, spread=0.0), weights, table)
    weights = {name: np.concatenate([array[:3], moved[name][3:]]) for name, array in weights.items()}
    scaled = {"mean": 0.1307, "std": 0.3081}
    rows = [{"id": f"net-{at}", "seed": at, "dataset": "digits", "license": "mit", "extra": scaled} for at in range(6)]
    with ckptzoo.create(tmp_path / "digits", arch=arch, symmetry=table) as writer:
        writer.add(weights, rows)
    ckptzoo.retract(tmp_path / "digits", ["net-5"], reason="a mistake")
    return tmp_path / "digits"


def test_a_soup_of_a_folder(cli: Any, digits: Path, tmp_path: Path) -> None:
    target = tmp_path / "soup"
    arguments = ("export", digits, "--soup", "--align", "best", "--set", "digits/test-100", "-o", target)
    ended = cli(*arguments, "--json")
    assert ended.code == 0 and ended.json["files"] == [
        str(target / name) for name in sorted(path.name for path in target.iterdir())
    ]
    config = json.loads((target / "config.json").read_bytes())
    assert config["average"] == ended.json["average"] and config["license"] == "mit"
    assert len(config["average"]["trials"]) == 5 and "net-5" not in config["average"]["ids"]
    ended = cli(*arguments, "--force", "--held-out", "digits/test-50")
    assert ended.code == 0 and "aligned with checkpoint net-" in ended.out
    assert "on digits/test-50: the best alone " in ended.out and " on digits/test-100\n" in ended.out
    assert 'license: "mit"' in (target / "README.md").read_text()
    ended = cli("export", digits, "net-1", "--set", "digits/test-100", "-o", tmp_path / "one.pt")
    assert ended.code == 0 and ended.out.startswith("accuracy 0.") and ended.out.endswith("one.pt\n")
    ended = cli("export", digits, "net-4", "net-0", "--average", "-o", tmp_path / "two.safetensors")
    assert ended.code == 0 and ended.out.startswith("average of 2 checkpoints\n")
    with safetensors.safe_open(tmp_path / "two.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["average"])["ids"] == ["net-0", "net-4"]


WRONG = [
    (("net-1", "net-2"), "expected one ID, or --average or --soup of several, got 2"),
    (("--average", "--soup", "--set", "digits/test"), "expected --average or --soup, got both"),
    (("--soup",), "--soup: expected --set SET"),
    (("net-1", "--align", "best"), "--align is for --average and --soup"),
    (("net-1", "--set", "digits/test", "--statistics", "9"), "--statistics is for --average and --soup"),
    (("--average", "--statistics", "9"), "--statistics: expected --set SET"),
    (("--average", "--held-out", "digits/test"), "--held-out is for --soup"),
    (("net-1", "--data", "."), "--data and --module are for --set"),
    (("net-1", "-o", "one.pt", "--max-shard-size", "1GB"), "expected a folder to write to, got a file"),
    (("net-1", "--max-shard-size", "many"), "--max-shard-size: size: expected one such as"),
    (("net-1", "--max-shard-size", "0"), "size of a shard: expected 1 byte or more, got 0"),
    (("net-5",), "checkpoint 'net-5': retracted, because 'a mistake'"),
    (("--average", "--where", "seed > 7"), "checkpoints to average: expected at least one, got none"),
    (("--average", "--align", "nobody"), "reference 'nobody'"),
    (("--average", "--align", "best"), "test_accuracy: expected one of a finite checkpoint, got none"),
    (("--average", "--variant", "canonical"), "variant 'canonical'"),
    (("--average", "--set", "mnist/train-10"), "mnist"),
    (("net-1", "-o", "digits", "--force"), "folder to replace: expected one of an export, got a zoo"),
    (("net-1", "-o", "taken"), "folder: expected an empty one or none, got one with 1 name, such as 'notes'"),
]
"""Options that do not go together, and what is said of them."""


@pytest.mark.exhaustive
def test_options_that_do_not_go_together(
    cli: Any, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/notes").write_text("mine")
    for arguments, said in WRONG:
        output = () if "-o" in arguments else ("-o", "out")
        ended = cli("export", digits, *arguments, *output)
        assert ended.code == 2 and said in ended.err and ended.out == "", arguments
        assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "taken"]
    assert (tmp_path / "taken/notes").read_text() == "mine"


@pytest.mark.exhaustive
def test_comparisons(cli: Any, digits: Path, optunets: Any, tmp_path: Path) -> None:
    ended = cli("compare", digits, "net-0", "net-4", "--json")
    assert ended.code == 0 and ended.json["aligned"][-1]["relative"] < 0.3 < ended.json["layers"][-1]["relative"]
    assert cli("export", digits, "net-0", "-o", tmp_path / "one.safetensors").code == 0
    ended = cli("compare", tmp_path / "one.safetensors", f"{digits}#net-0", "-o", tmp_path / "pictures")
    assert ended.code == 0 and "all have the same bits" in ended.out and "differences.png" in ended.out
    ended = cli("compare", tmp_path / "one.safetensors", tmp_path / "one.safetensors")
    assert ended.code == 0 and "Not aligned: no symmetry table is known" in ended.out
    for places, said in (
        ((digits, "net-0"), "Name one of them, such as"),
        ((digits,), "expected ZOO ID ID"),
        ((digits, "net-0", "net-5"), "checkpoint 'net-5': retracted"),
        ((digits, "net-0", "other"), "checkpoint 'other'"),
        ((tmp_path / "one.safetensors", tmp_path / "none.pt"), "none.pt"),
        ((tmp_path / "one.safetensors", tmp_path / "one.safetensors", "--module", "x.py:Net"), "expected a zoo"),
    ):
        ended = cli("compare", *places)
        assert ended.code == 2 and said in ended.err and ended.out == ""

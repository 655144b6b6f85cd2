"""export: what other programs read from the file, and that equal checkpoints give equal bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import load_file

import ckptzoo
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
    assert ended.code == 2 and said in ended.line and ended.out == ""
    assert [file.name for file in tmp_path.iterdir()] == ["nets"]


def test_a_target_that_cannot_be_replaced(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    (tmp_path / "one.pt").mkdir()
    ended = cli("export", path, "net-001", "-o", tmp_path / "one.pt")
    assert ended.code == 4 and "directory" in ended.line
    assert not list(tmp_path.glob(".ckptzoo*"))

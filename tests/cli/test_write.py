"""derive, compact and retract."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo


def test_derive_stores_a_variant_and_says_what_it_did(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    np.save(tmp_path / "inputs.npy", np.random.default_rng(0).normal(size=(4, 1, 28, 28)).astype(np.float32))
    ended = cli("derive", path, "--gauge", "first-weight", "--inputs", tmp_path / "inputs.npy")
    assert ended.code == 0 and "12 checkpoints derived in first-weight, 0 were there already." in ended.out
    assert "random inputs: " in ended.out and "real inputs: " in ended.out and "1 left as they are" in ended.out
    assert ckptzoo.open(path).variants == ("raw", "first-weight")
    again = cli("derive", path, "--json")
    assert again.json["checkpoints"] == 0 and again.json["already"] == 12 and again.json["parts"] == []
    assert "first-weight" in cli("info", path).out


def test_derive_takes_an_npz_with_one_array(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    images = np.zeros((2, 1, 28, 28), np.float32)
    np.savez(tmp_path / "one.npz", images=images)
    np.savez(tmp_path / "two.npz", images=images, labels=images)
    (tmp_path / "odd.npz").write_bytes(b"PK\x03\x04 odd")
    (tmp_path / "odd.npy").write_bytes(b"odd")
    for name in ("two.npz", "odd.npz", "odd.npy", "missing.npy"):
        ended = cli("derive", path, "--inputs", tmp_path / name)
        assert ended.code == 2 and "expected a .npy file, or a .npz file with one array" in ended.line
    assert ckptzoo.open(path).variants == ("raw",)
    ended = cli("derive", path, "--inputs", tmp_path / "one.npz", "--json")
    assert ended.code == 0 and ended.json["worst_real"] is not None


def test_derive_without_symmetries_is_refused(cli: Any, make_zoo: Any) -> None:
    path, _ = make_zoo()
    ended = cli("derive", path)
    assert ended.code == 4 and "symmetry" in ended.line


def test_compact_writes_a_snapshot(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("compact", path, "--index")
    written = Path(ended.out.rstrip("\n"))
    assert ended.code == 0 and written.exists() and written.parent.name == "snapshots"
    assert cli("verify", path).code == 0
    assert cli("compact", path).out == ended.out


def test_compact_of_an_empty_zoo(cli: Any, tmp_path: Path) -> None:
    ckptzoo.create(tmp_path / "empty", arch=ckptzoo.Architecture("a", (ckptzoo.Tensor("w", (2,)),)))
    ended = cli("compact", tmp_path / "empty", "--index")
    assert ended.code == 0 and "nothing to write" in ended.out


def test_retract_withdraws(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("retract", path, "net-001", "net-002", "--reason", "wrong data", "--contributor", "me")
    assert ended.code == 0 and ended.out == f"{path}: 2 checkpoints retracted.\n"
    assert cli("retract", path, "net-001", "--reason", "again").out == f"{path}: 0 checkpoints retracted.\n"
    with pytest.warns(UserWarning):
        zoo = ckptzoo.open(path)
    assert len(zoo) == 10 and zoo.retracted["contributor"].to_pylist() == ["me", "me"]


def test_retract_wants_a_reason_and_known_ids(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    assert "--reason" in cli("retract", path, "net-001").line
    ended = cli("retract", path, "net-001", "net-999", "--reason", "x")
    assert ended.code == 2 and "net-999" in ended.line and len(ckptzoo.open(path)) == 12

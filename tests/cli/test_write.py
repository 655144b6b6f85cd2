"""derive, dedupe, compact and retract."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import declare
from ckptzoo.errors import ZooError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.symmetry import GroupElement, apply, trace


def test_derive_stores_a_variant_and_says_what_it_did(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    np.save(tmp_path / "inputs.npy", np.random.default_rng(0).normal(size=(4, 1, 28, 28)).astype(np.float32))
    ended = cli("derive", path, "--inputs", tmp_path / "inputs.npy")
    assert ended.code == 0 and "12 checkpoints derived in canonical, 0 were there already." in ended.out
    assert " s of them for the equivalence checks of 11\n" in ended.out and "1 left as they are" in ended.out
    for kind in ("random", "real"):
        assert re.search(rf"output, {kind} inputs: \d\.\de-\d\d in float64$", ended.out, re.MULTILINE)
    assert ckptzoo.open(path).variants == ("raw", "canonical")
    again = cli("derive", path, "--json")
    assert again.json["checkpoints"] == 0 and again.json["already"] == 12 and again.json["parts"] == []
    unused = cli("derive", path, "--inputs", tmp_path / "inputs.npy")
    assert "--inputs was not used: all are derived; --certify all checks what was not checked." in unused.out
    other = cli("derive", path, "--gauge", "first-weight", "--json")
    assert other.json["checkpoints"] == 12 and ckptzoo.open(path).variants == ("raw", "canonical", "first-weight")
    assert "first-weight" in cli("info", path).out


NETWORK = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
"""


@pytest.mark.parametrize("shape", [None, (4,)])
def test_the_check_that_derive_could_not_make_is_made_as_it_says(
    cli: Any, tmp_path: Path, shape: tuple[int, ...] | None
) -> None:
    path, tensors = tmp_path / "mine", {"0.weight": (5, 4), "0.bias": (5,), "2.weight": (2, 5), "2.bias": (2,)}
    (tmp_path / "net.py").write_text(NETWORK)
    arch = Architecture("mine", tuple(Tensor(name, shape) for name, shape in tensors.items()), input_shape=shape)
    draw = np.random.default_rng(0)
    with ckptzoo.create(path, arch=arch, card=ckptzoo.Card("mine", "Mine.")) as writer:
        for number in range(3):
            weights = {name: draw.standard_normal(shape, np.float32) for name, shape in tensors.items()}
            writer.add(weights, {"id": f"net-{number}"})
    traced = trace(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), torch.randn(2, 4))
    declare(path, traced.symmetry)
    module = ("--module", f"{tmp_path}/net.py:make")
    first = cli("derive", path)
    assert "ckptzoo.archs has no forward function for it; --certify all --module FILE.py:NAME adds it." in first.out
    assert "--module was not used: all are derived; --certify all" in cli("derive", path, *module).out
    inputs: tuple[Any, ...] = ()
    if shape is None:
        other = cli("derive", path, "--gauge", "unit-norm", *module)
        assert "the shape of an input; --certify all --module FILE.py:NAME --input-shape SHAPE adds it." in other.out
        np.save(tmp_path / "inputs.npy", draw.standard_normal((3, 4), np.float32))
        inputs = ("--inputs", tmp_path / "inputs.npy")
    ended = cli("derive", path, "--certify", "all", *module, *inputs)
    assert ended.code == 0 and "equivalence checks were added to 3 checkpoints derived before." in ended.out


def test_derive_stores_elements_alone_and_certifies_a_sample(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("derive", path, "--store", "element", "--certify", "sample", "--json")
    assert ended.code == 0 and ended.json["store"] == "element" and len(ended.json["parts"]) == 2
    (certified,) = ended.json["certified"]
    assert (certified["precision"], certified["checkpoints"]) == ("float64", 11) and certified["real"] is None
    assert ended.json["seconds"] > ended.json["certifying"] > 0
    assert not list(path.glob("derived/canonical/*/canonical-*.safetensors"))
    assert cli("verify", path).code == 0
    plain = cli("derive", path, "--gauge", "unit-norm", "--certify", "none")
    assert plain.code == 0 and "for the equivalence checks" not in plain.out and "largest" not in plain.out
    for option in ("--store", "--certify"):
        wrong = cli("derive", path, option, "some")
        assert wrong.code == 2 and "expected one of" in wrong.line


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
    assert ended.code == 0 and ended.json["certified"][0]["real"] is not None


def test_derive_without_symmetries_is_refused(cli: Any, make_zoo: Any) -> None:
    path, _ = make_zoo()
    ended = cli("derive", path)
    assert ended.code == 4 and "symmetry" in ended.line


def test_dedupe_finds_permuted_and_rescaled_networks(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, weights = optunets
    none = cli("dedupe", path)
    assert none.code == 0 and "11 checkpoints compared, 0 of them permuted or rescaled copies." in none.out
    assert "1 not compared, not finite or with ties unresolved: net-009" in none.out
    table = archs.symmetry("optunet")
    element = GroupElement.random(table, 3, np.random.default_rng(0))
    moved = GroupElement(element.perms, {name: np.ones_like(scale) for name, scale in element.scales.items()})
    with ckptzoo.append(path) as writer:
        for start, g in ((0, moved), (3, element)):
            some = {name: array[start : start + 3] for name, array in weights.items()}
            writer.add(apply(g, some, table), [{"id": f"copy-{start + at}"} for at in range(3)])
    ended = cli("dedupe", path)
    assert ended.code == 0 and [line for line in ended.out.splitlines() if line.startswith("the same")] == [
        *(f"the same: net-{at:03d}, copy-{at}" for at in range(3)),
        *(f"the same to rounding: net-{at:03d}, copy-{at}" for at in range(3, 6)),
    ]
    assert "17 checkpoints compared, 6 of them permuted or rescaled copies." in ended.out
    # the pairs that are one network are not named again
    near = [line for line in ended.out.splitlines() if line.startswith("nearly the same outputs: ")]
    assert not any(f"net-{at:03d}, copy-{at} " in line for line in near for at in range(6))
    assert f"outputs of 18 members compared: {len(near) or 'no'} other pair" in ended.out
    found = cli("dedupe", path, "--json").json
    assert found["groups"][0] == {"ids": ["net-000", "copy-0"], "identical": True} and found["zoo"] == str(path)
    assert (found["checkpoints"], found["spare"], found["skipped"]) == (17, 6, ["net-009"])
    pairs = [tuple(pair["ids"]) for pair in found["outputs"]["near"]]
    assert {(f"net-{at:03d}", f"copy-{at}") for at in range(6)} <= set(pairs)
    assert len(pairs) == len(near) + 6 and found["outputs"]["not_compared"] is None
    assert cli("dedupe", path, "--tolerance", "0", "--json").json["spare"] == 3
    assert cli("dedupe", path, "--where", "seed >= 0", "--json").json["spare"] == 0
    assert cli("dedupe", path, "--tolerance", "-1").code == 2
    assert ckptzoo.open(path).variants == ("raw",)


def test_dedupe_without_symmetries_is_refused(cli: Any, make_zoo: Any) -> None:
    path, _ = make_zoo()
    ended = cli("dedupe", path)
    assert ended.code == 4 and "ckptzoo.derive.declare" in ended.line


def test_compact_writes_a_snapshot(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("compact", path, "--index")
    written = Path(ended.out.rstrip("\n"))
    assert ended.code == 0 and written.exists() and written.parent.name == "snapshots"
    assert cli("verify", path).code == 0
    assert cli("compact", path).out == ended.out


def test_compact_merges_parts_into_another_zoo(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    for option in (("--merge-parts",), ("--to", tmp_path / "new")):
        ended = cli("compact", path, *option)
        assert ended.code == 2 and "expected --merge-parts and --to NEWZOO together" in ended.err.replace("\n", " ")
    ended = cli("compact", path, "--merge-parts", "--to", tmp_path / "new")
    assert ended.code == 0 and f"{tmp_path / 'new'}/parts: 1 part from" in ended.out.replace("\n", ""), ended
    assert ckptzoo.open(tmp_path / "new").ids == ckptzoo.open(path).ids


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
    for empty in ("", " \t"):
        assert cli("retract", path, "net-001", "--reason", empty).code == 2
        with pytest.raises(ZooError, match="reason: expected a sentence, got nothing"):
            ckptzoo.retract(path, ["net-001"], reason=empty)
    ended = cli("retract", path, "net-001", "net-999", "--reason", "x")
    assert ended.code == 2 and "net-999" in ended.line and len(ckptzoo.open(path)) == 12

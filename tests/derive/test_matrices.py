"""Variants of zoos whose table has matrices: stored, checked, read back, cut, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.derive import align_zoo, derive, variants
from ckptzoo.derive.variants import VariantJob
from ckptzoo.doctor import examine
from ckptzoo.errors import IntegrityError, SymmetryError
from ckptzoo.explorer import page
from ckptzoo.hub.card.page import readme
from ckptzoo.schema.card import Card
from ckptzoo.symmetry import GroupElement, apply, canonicalize
from tests.support.derived_zoos import files_of, zoo_of
from tests.support.matrix_networks import (
    ARCH,
    HEADS,
    K_HEAD,
    TABLE,
    TOKENS,
    WIDTH,
    N,
    RotaryAttention,
    Weights,
    outputs,
    weights_of,
    write_zoo,
)

INPUTS = np.random.default_rng(5).standard_normal((4, TOKENS, WIDTH))


def element_of(zoo: ckptzoo.Zoo, variant: str = "canonical") -> GroupElement:
    return GroupElement.from_tensors({name: np.asarray(value) for name, value in zoo.group_element(variant).items()})


def read(zoo: ckptzoo.Zoo, variant: str = "raw") -> Weights:
    return {name: np.asarray(zoo[name, variant]) for name in zoo.arch.names}


def test_the_variant_holds_weights_elements_and_checks(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo")
    done = derive(path, module=RotaryAttention(), inputs=INPUTS)
    assert (done.version, done.checkpoints, done.degenerate, done.unresolved, done.untouched) == (5, 5, 0, 0, 0)
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert zoo.contents.derived("canonical").parts[0].facts["version"] == 5
    raw, held = read(zoo), read(zoo, "canonical")
    expected = canonicalize(raw, TABLE)
    for name in ARCH.names:
        assert held[name].tobytes() == expected.weights[name].tobytes()
    element = element_of(zoo)
    assert element.matrices["values"].shape == (5, HEADS, K_HEAD, K_HEAD)
    assert element.matrices["pairs"].shape == (5, N // 2, 2)
    for name, value in apply(element, raw, TABLE).items():
        np.testing.assert_allclose(value, held[name], rtol=1e-6, atol=1e-6)
    rows = zoo.variant_metadata("canonical")
    assert rows["degenerate"].to_pylist() == [0] * 5
    assert rows["margin"].to_pylist() == expected.report.margin.tolist()
    # rounding moves canonical weights too far for digests of them
    assert rows["fingerprint"].to_pylist() == [None] * 5
    (certified,) = done.certified
    assert certified.checkpoints == 5 and 0 < max(certified.random, certified.real) < 2e-6
    scale = np.abs(outputs(raw, INPUTS)).max()
    np.testing.assert_allclose(outputs(held, INPUTS), outputs(raw, INPUTS), atol=2e-6 * scale)


def test_disguises_have_one_canonical_form(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo")
    derive(path, certify="none")
    held = read(ckptzoo.open(path), "canonical")
    for one, other in ((0, 2), (3, 4)):
        for name in ("q.weight", "k.weight", "v.weight", "o.weight"):
            assert np.linalg.norm(held[name][one] - held[name][other]) < 1e-5 * np.linalg.norm(held[name][one])
    assert np.linalg.norm(held["v.weight"][0] - held["v.weight"][1]) > 1


def test_a_second_call_adds_what_is_new(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo", (2,))
    derive(path, certify="none")
    before = files_of(path)
    assert derive(path, certify="none").checkpoints == 0 and files_of(path) == before
    writer = ckptzoo.append(path)
    writer.add(weights_of(2, 9), [{"id": f"new-{row}"} for row in range(2)])
    writer.commit()
    assert derive(path, certify="none").checkpoints == 2
    assert before.items() <= files_of(path).items() and ckptzoo.verify(path) == []


def test_checks_are_added_later(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo")
    derive(path, certify="none")
    done = derive(path, certify="all", module=RotaryAttention())
    assert done.checked_later == 5 and done.certified[0].random < 2e-6


def test_degenerate_heads_are_counted_and_have_no_element(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zoo"
    weights = weights_of(3, 0)
    weights["v.weight"][1, :K_HEAD], weights["v.bias"][1, :K_HEAD] = 0, 0
    weights["v.weight"][1, 0, 0] = 1
    weights["q.weight"][2, 0, 0] = np.inf
    with ckptzoo.create(path, arch=ARCH, symmetry=TABLE) as writer:
        writer.add(weights, [{"id": str(row)} for row in range(3)])
    shutil.copytree(path, tmp_path / "other")
    done = derive(path, module=RotaryAttention())
    assert (done.degenerate, done.untouched) == (1, 1) and done.certified[0].random < 2e-6
    assert run(["derive", str(tmp_path / "other"), "--certify", "none"]) == 0
    assert "1 with blocks of matrices of lower rank" in capsys.readouterr().out
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    rows = zoo.variant_metadata("canonical")
    assert rows["degenerate"].to_pylist() == [0, K_HEAD - 1, None] and rows["ties"].to_pylist()[2] is None
    matrices = element_of(zoo).matrices
    lost = np.isnan(matrices["values"]).any(axis=(2, 3))
    assert lost.sum(axis=1).tolist() == [0, 1, 0] and not np.isnan(matrices["pairs"]).any()
    np.testing.assert_array_equal(matrices["values"][2], np.broadcast_to(np.eye(K_HEAD), (HEADS, K_HEAD, K_HEAD)))


def test_elements_alone_are_refused(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo", (2,))
    before = files_of(path)
    with pytest.raises(SymmetryError, match="same bits on one machine alone"):
        derive(path, store="element", certify="none")
    assert files_of(path) == before


def test_a_part_without_weights_is_no_sound_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zoo(tmp_path / "zoo", (2,))
    with monkeypatch.context() as patch:
        patch.setattr(variants, "VariantJob", lambda *args, weights: VariantJob(*args, weights=False))
        with pytest.raises(IntegrityError, match="shards with the variant's weights"):
            derive(path, certify="none")
    assert any("shards with the variant's weights" in str(problem) for problem in ckptzoo.verify(path))
    with pytest.raises(IntegrityError, match="shards with the variant's weights"):
        ckptzoo.open(path)["v.weight", "canonical"]


def test_a_table_that_is_wrong_is_refused(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo", (2,))

    class Gated(RotaryAttention):
        """Values do not stay linear."""

        def __init__(self) -> None:
            super().__init__()
            self.v.register_forward_hook(lambda module, inputs, output: torch.relu(output))

    with pytest.raises(SymmetryError, match="random group elements"):
        derive(path, module=Gated())
    assert ckptzoo.open(path).variants == ("raw",)


@pytest.mark.parametrize("gauge", ["unit-norm", "first-weight", "min-mass"])
def test_other_gauges_take_permutations_and_scales(tmp_path: Path, gauge: str) -> None:
    path = write_zoo(tmp_path / "zoo", (2,))
    done = derive(path, gauge=gauge, module=RotaryAttention())
    assert done.certified[0].random < 2e-6 and ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    raw, held = read(zoo), read(zoo, gauge)
    for name, value in apply(element_of(zoo, gauge), raw, TABLE).items():
        np.testing.assert_allclose(value, held[name], rtol=1e-6, atol=1e-6)


def test_a_pulled_selection_reads_the_same(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo")
    derive(path, certify="none")
    ckptzoo.compact(path)
    zoo = ckptzoo.open(path)
    ckptzoo.pull(str(path), tmp_path / "some", where="id == '0-1' or id == '1-0'")
    assert ckptzoo.verify(tmp_path / "some") == []
    some = ckptzoo.open(tmp_path / "some")
    for name, value in read(some, "canonical").items():
        np.testing.assert_array_equal(value, np.asarray(zoo[name, "canonical"])[[1, 3]])
    np.testing.assert_array_equal(element_of(some).matrices["values"], element_of(zoo).matrices["values"][[1, 3]])
    assert some.variant_metadata("canonical")["degenerate"].to_pylist() == [0, 0]


@pytest.mark.exhaustive
def test_streams_checkpoints_pages_and_doctor(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo")
    derive(path, certify="none")
    zoo = ckptzoo.open(path)
    (batch,) = zoo.stream("v.weight", variant="canonical", batch_size=5)
    np.testing.assert_array_equal(batch["v.weight"], np.asarray(zoo["v.weight", "canonical"]))
    assert zoo.checkpoint("1-0", variant="canonical")["o.weight"].shape == (WIDTH, N)
    (check,) = (check for check in examine(path).checks if check.name == "variant canonical")
    assert check.outcome == "ok"
    page(zoo, tmp_path / "page.html")
    assert "With degenerate blocks" in (tmp_path / "page.html").read_text()
    assert "heads balanced" in readme(zoo, Card("zoo"))


def test_aligned_disguises_meet_their_reference(tmp_path: Path) -> None:
    path = write_zoo(tmp_path / "zoo", (3,))
    done = align_zoo(path, "0-0", label="first", module=RotaryAttention())
    assert done.certified[0].random < 2e-6 and ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    held = read(zoo, "aligned-first")
    for value in held.values():
        np.testing.assert_allclose(value[2], value[0], atol=1e-5)
    for name, value in apply(element_of(zoo, "aligned-first"), read(zoo), TABLE).items():
        np.testing.assert_allclose(value, held[name], rtol=1e-6, atol=1e-6)
    with pytest.raises(SymmetryError, match="same bits on one machine alone"):
        align_zoo(path, "0-0", label="bare", store="element", certify="none")


def test_zoos_without_matrices_have_no_column_for_them(tmp_path: Path) -> None:
    plain, mixed = zoo_of(tmp_path / "plain", (2,)), write_zoo(tmp_path / "mixed", (2,))
    for path, found in ((plain, False), (mixed, True)):
        derive(path, certify="none")
        (part,) = (path / "derived" / "canonical").iterdir()
        assert ("degenerate" in pq.read_schema(part / "metadata.parquet").names) == found
        snapshot = ckptzoo.compact(path)
        assert snapshot is not None and ("variant:degenerate" in pq.read_schema(snapshot).names) == found
        assert ckptzoo.verify(path) == []
        assert ckptzoo.open(path).variant_metadata("canonical")["degenerate"].to_pylist() == [0 if found else None] * 2

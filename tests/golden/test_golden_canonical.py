"""Zoos that were derived by an earlier version of the canonical gauge: read as before, and never mixed with a later one."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import Segment
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, GroupElement, apply, canonicalize, fingerprint

GOLDEN = Path(__file__).parent / "v2-canonical"
"""Four small networks: random, with twins, with a dead channel, and one that is not finite."""
BATCH_NORM = Path(__file__).parent / "v3-canonical"
"""Four small networks with a BatchNorm: random, the same with signs turned, with a gain of 0 and a clamped filter, and
one that is not finite. The table has no signs."""
VERSION = 4


def digest(zoo: ckptzoo.Zoo, variant: str = "canonical") -> str:
    content = b"".join(np.asarray(zoo[name, variant]).tobytes() for name in zoo.arch.names)
    return hashlib.sha256(content).hexdigest()[:16]


def test_a_variant_of_the_second_version_reads_the_same() -> None:
    zoo = ckptzoo.open(GOLDEN)
    assert ckptzoo.verify(GOLDEN) == []
    assert zoo.variants == ("raw", "canonical") and zoo.contents.derived("canonical").parts[0].facts["version"] == 2
    assert digest(zoo) == "ac01188f6f9f99c7"
    rows = zoo.variant_metadata("canonical")
    assert rows["gauged"].to_pylist() == [True, True, True, False]
    prints = rows["fingerprint"].to_pylist()
    assert [None if text is None else text[:21] for text in prints] == ["canonical-2:0.015625:"] * 3 + [None]


def test_its_group_elements_still_apply() -> None:
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.symmetry is not None
    element = GroupElement.from_tensors(
        {name: np.asarray(stack) for name, stack in zoo.group_element("canonical").items()}
    )
    made = apply(element, {name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry)
    for name in zoo.arch.names:
        assert made[name].tobytes() == np.asarray(zoo[name, "canonical"]).tobytes()


def test_weights_without_ties_are_the_same_today_and_fingerprints_differ_in_their_version() -> None:
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.symmetry is not None
    made = canonicalize({name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry)
    assert GAUGES["canonical"].version == VERSION
    for name, array in made.weights.items():
        assert array[[0, 2]].tobytes() == np.asarray(zoo[name, "canonical"])[[0, 2]].tobytes()
    old = zoo.variant_metadata("canonical")["fingerprint"].to_pylist()
    new = fingerprint(made)
    assert [text and text.partition(":")[2] for text in new[:3]] == [text.partition(":")[2] for text in old[:3]]
    assert all(text is not None and text.startswith(f"canonical-{VERSION}:") for text in new[:3])


def test_deriving_with_a_later_version_says_what_to_do(tmp_path: Path) -> None:
    """Also where a part was added, and after the old variant is removed it is made by the new version."""
    path = tmp_path / "zoo"
    shutil.copytree(GOLDEN, path)
    before = digest(ckptzoo.open(path))
    with ckptzoo.append(path) as writer:
        rng, rows = np.random.default_rng(1), [{"id": "new-0"}, {"id": "new-1"}]
        arch = ckptzoo.open(path).arch
        writer.add({t.name: rng.standard_normal((2, *t.shape)).astype(t.dtype) for t in arch.tensors}, rows)
    message = rf"version of the variant: expected {VERSION}, got 2\. Remove derived/canonical and make it again"
    with pytest.raises(SymmetryError, match=message):
        derive(path, certify="none")
    assert ckptzoo.verify(path) == []
    shutil.rmtree(path / "derived/canonical")
    assert derive(path, certify="none").version == VERSION
    assert ckptzoo.verify(path) == [] and len(ckptzoo.open(path).variant_metadata("canonical")) == 6
    assert digest(ckptzoo.open(GOLDEN)) == before


def test_a_batch_norm_in_the_third_version_reads_the_same() -> None:
    """The canonical variant is stored, and ``unit-norm`` computed from its group elements."""
    zoo = ckptzoo.open(BATCH_NORM)
    assert ckptzoo.verify(BATCH_NORM) == []
    versions = {name: zoo.contents.derived(name).parts[0].facts["version"] for name in zoo.variants[1:]}
    assert versions == {"canonical": 3, "unit-norm": 4}
    assert (digest(zoo), digest(zoo, "unit-norm")) == ("630e17bc45cb7e06", "89436a2910ad0bd2")
    assert zoo.symmetry is not None
    assert zoo.symmetry.digest == zoo.contents.derived("canonical").parts[0].facts["symmetry"]


def test_signs_in_front_of_a_batch_norm_are_removed_where_the_table_has_them() -> None:
    """With the table of the zoo the weights are those of the third version, and the disguise stays."""
    zoo = ckptzoo.open(BATCH_NORM)
    table, raw = zoo.symmetry, {name: np.asarray(zoo[name])[:2] for name in zoo.arch.names}
    assert table is not None
    made = canonicalize(raw, table)
    for name, array in made.weights.items():
        assert array.tobytes() == np.asarray(zoo[name, "canonical"])[:2].tobytes()
    assert len(set(fingerprint(made))) == 2
    groups = (replace(group, scale="nonzero") if group.id == "conv" else group for group in table.groups)
    signs = (Segment("conv", 0, 1, 4),)
    actions = (replace(item, signs=signs) if item.role == "gain" else item for item in table.actions)
    made = canonicalize(raw, Symmetry(tuple(groups), tuple(actions)))
    for name, array in made.weights.items():
        np.testing.assert_array_equal(array[0], array[1], name)
    assert len(set(fingerprint(made))) == 1 and (made.weights["norm.weight"] > 0).all()

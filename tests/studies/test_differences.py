"""The difference of two checkpoints against numpy, after alignment, and of what has other tensors."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.errors import ZooError
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.differences import ALL, differences
from tests.support.derived_zoos import weights_of
from tests.support.effort import examples
from tests.support.printed import line_of

NAME = "mlp-4-8-3"
ARCH, TABLE = archs.architecture(NAME), archs.symmetry(NAME)


def checkpoint(arch: ckptzoo.Architecture, weights: dict[str, Any], id: str = "a") -> Checkpoint:
    return Checkpoint(arch, {"id": id}, "raw", lambda name, private: weights[name], lambda: None)


def one_of(weights: dict[str, Any], place: int, arch: ckptzoo.Architecture = ARCH) -> Checkpoint:
    return checkpoint(arch, {name: array[place] for name, array in weights.items()}, str(place))


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-12, 1e-6, 1e-2, 1.0, 30.0]))
def test_figures_are_those_of_vectors(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    first = weights_of(1, seed % 1000, arch=ARCH, dtype=np.float64)
    second = {
        name: array * rng.choice([1.0, 2.0]) + spread * rng.standard_normal(array.shape)
        for name, array in first.items()
    }
    found = differences(one_of(first, 0), one_of(second, 0))
    assert [item.layer for item in found.layers] == ["fc1", "fc2", ALL]
    for item in found.layers:
        names = [name for name in ARCH.names if item.layer in (ALL, ARCH[name].layer)]
        ours, theirs = (np.concatenate([each[name].ravel() for name in names]) for each in (first, second))
        assert item.size == ours.size
        assert item.first == pytest.approx(np.linalg.norm(ours)) and item.second == pytest.approx(
            np.linalg.norm(theirs)
        )
        assert item.distance == pytest.approx(np.linalg.norm(ours - theirs))
        assert item.relative == pytest.approx(np.linalg.norm(ours - theirs) / np.linalg.norm(ours))
        units = ours / np.linalg.norm(ours), theirs / np.linalg.norm(theirs)
        exact = 2 * math.degrees(math.atan2(np.linalg.norm(units[0] - units[1]), np.linalg.norm(units[0] + units[1])))
        assert item.angle == pytest.approx(exact, rel=1e-6, abs=2e-6)


def test_permuted_copies_are_the_same_after_alignment(tmp_path: Path) -> None:
    weights = {name: array.repeat(2, 0) for name, array in weights_of(1, 0, arch=ARCH).items()}
    element = symmetry.GroupElement.random(TABLE, 2, np.random.default_rng(0), spread=0.0)
    moved = symmetry.apply(element, weights, TABLE)
    steps: list[tuple[int, int]] = []
    found = differences(one_of(weights, 0), one_of(moved, 1), TABLE, progress=lambda *at: steps.append(at))
    assert found.layers[-1].distance > 0.1 and not found.is_identical and steps[-1] == (4, 4)
    assert found.aligned[-1].distance == found.aligned[-1].angle == 0 and found.not_aligned is None
    assert "fc1 40 " in line_of(found, 200) and "Aligned: channels of the second" in line_of(found, 200)
    canonical(found.to_json())
    names = [path.name for path in found.plot(tmp_path / "pictures")]
    assert names == ["differences.png", "differences.json"]
    again = found.plot(tmp_path / "again")
    assert all(path.read_bytes() == (tmp_path / "pictures" / path.name).read_bytes() for path in again)


def test_without_a_table_and_with_the_same_bits() -> None:
    weights = weights_of(2, 0, arch=ARCH)
    weights["fc2.bias"][0, 1] = np.nan
    found = differences(one_of(weights, 0), one_of(weights, 0), names=("x", "y"))
    assert found.is_identical and found.aligned == () and "all have the same bits" in line_of(found, 200)
    assert "Not aligned: no symmetry table is known" in line_of(found, 200)
    found = differences(one_of(weights, 1), one_of(weights, 0), TABLE)
    assert found.aligned == () and "is not finite" in str(found.not_aligned) and math.isnan(found.layers[-1].distance)
    assert "differences" in found.file and b"NaN" in canonical(found.to_json())


def test_zeros_other_dtypes_and_buffers() -> None:
    arch = archs.architecture("resnet8-pad-10")
    first = weights_of(1, 0, arch=arch)
    second = {name: array.astype(np.float16) if array.dtype.kind == "f" else array + 1 for name, array in first.items()}
    tensors = tuple(
        ckptzoo.Tensor(item.name, item.shape, "float16" if item.dtype == "float32" else item.dtype, item.kind)
        for item in arch.tensors
    )
    half = ckptzoo.Architecture("half", tensors)
    found = differences(one_of(first, 0, arch), one_of(second, 0, half), archs.symmetry("resnet8-pad-10"))
    assert 0 < found.layers[-1].relative < 1e-3 and found.aligned[-1].relative < 1e-3
    assert all("running" in name or "tracked" in name for name in found.buffers) and "differ" in line_of(found, 200)
    zeros = {name: np.zeros_like(array) for name, array in first.items()}
    found = differences(one_of(zeros, 0, arch), one_of(zeros, 0, arch))
    assert found.layers[-1].relative == 0 and math.isnan(found.layers[-1].angle) and "-" in line_of(found, 200)
    assert differences(one_of(zeros, 0, arch), one_of(first, 0, arch)).layers[-1].relative == math.inf


def test_other_architectures_are_named() -> None:
    weights = weights_of(1, 0, arch=ARCH)
    other = {**weights, "fc2.weight": weights["fc2.weight"][:, :2], "fc3.bias": weights["fc2.bias"]}
    del other["fc1.bias"]
    arch = ckptzoo.Architecture.of({name: array[0] for name, array in other.items()}, name="other")
    with pytest.raises(ZooError) as caught:
        differences(one_of(weights, 0), one_of(other, 0, arch), names=("mine", "yours"))
    assert str(caught.value) == (
        "compare: yours: tensors: expected those of mine, got no 'fc1.bias'; 'fc3.bias' besides; 'fc2.weight' is (2, 8) "
        "and not (3, 8). Compare checkpoints of one architecture."
    )


def test_tied_tensors_are_found_under_any_of_their_names() -> None:
    first = ckptzoo.Architecture("tied", (ckptzoo.Tensor("a.weight", (3,), aliases=("b.weight",)),))
    second = ckptzoo.Architecture("tied", (ckptzoo.Tensor("b.weight", (3,), aliases=("a.weight",)),))
    apart = ckptzoo.Architecture("apart", (ckptzoo.Tensor("b.weight", (3,)), ckptzoo.Tensor("a.weight", (3,))))
    array = np.arange(3, dtype=np.float32)
    for arch in (second, apart):
        found = differences(checkpoint(first, {"a.weight": array}), checkpoint(arch, dict.fromkeys(arch.names, array)))
        assert found.is_identical and found.tensors == 1

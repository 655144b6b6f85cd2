"""Folds: as documents, what they refuse, how many dimensions they have, and what they do to stacked weights."""

import json
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from ckptzoo.errors import SpecError, SymmetryError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.schema.folds import MAX_FOLDS, Fold, Target, TensorPart, dimensions
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import count, fold


def vector(name: str, count: int, start: int = 0) -> TensorPart:
    return TensorPart(name, 0, (start,), (count,))


def matrix(name: str, axis: int, rows: int, columns: int) -> TensorPart:
    return TensorPart(name, axis, (0, 0), (rows, columns))


GAIN, SHIFT = vector("norm.gain", 4), vector("norm.shift", 4)
READ, BIAS, HEAD = matrix("read", 1, 6, 4), vector("bias", 6), matrix("head", 1, 5, 4)
FOLDS = (
    Fold("match", SHIFT, (Target(BIAS, READ), Target(None, HEAD)), GAIN),
    Fold("centre", READ, (Target(BIAS),), GAIN, SHIFT),
    Fold("zero", vector("bias", 2, 2)),
    Fold("shift", matrix("positions", 1, 3, 4), (Target(matrix("words", 1, 7, 4)),)),
    Fold("centre", matrix("positions", 1, 3, 4)),
    Fold("centre", matrix("read", 0, 6, 4)),
)
TABLE = Symmetry((), (), FOLDS)
SHAPES = {"norm.gain": (4,), "norm.shift": (4,), "read": (6, 4), "bias": (6,), "head": (5, 4)}
SHAPES |= {"positions": (3, 4), "words": (7, 4), "other": (2,)}
ARCH = Architecture("a", tuple(Tensor(name, shape, "float32") for name, shape in SHAPES.items()))


def stack(K: int = 3, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(K, *shape)).astype(dtype) for name, shape in SHAPES.items()}


def function(weights: dict[str, np.ndarray], k: int) -> np.ndarray:
    """A LayerNorm of words and positions, one reader with a bias, which sees no constants in 2 of 6 rows, and one
    without.
    """
    w = {name: value[k].astype(np.float64) for name, value in weights.items()}
    x = w["words"][[0, 3, 6]] + w["positions"]
    n = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    y = w["norm.gain"] * n + w["norm.shift"]
    read = y @ w["read"].T + w["bias"]
    read[:, 2:4] -= read[:, 2:4].mean(0)
    return np.concatenate([read, y @ w["head"].T], 1)


def test_a_table_survives_its_sealed_document_and_fits_its_architecture() -> None:
    content, digest = unseal(seal(TABLE.to_json()), location="symmetry.json")
    assert Symmetry.from_json(content) == TABLE and digest == TABLE.digest
    TABLE.check(ARCH)


def test_tables_without_folds_have_no_field_for_them() -> None:
    assert set(Symmetry((), ()).to_json()) == {"groups", "actions"}


def test_sums_of_rows_and_of_columns_have_one_in_common() -> None:
    assert dimensions(FOLDS) == (4, 6, 2, 4, 3 - 1, 4 - 1)
    assert count(TABLE).folds == (("centre", 6 + 2 + 3), ("match", 4), ("shift", 4), ("zero", 2))
    assert str(count(TABLE)).endswith("\ndimensions       21 in evaluation mode (21 folds)")


def test_dimensions_are_the_rank_of_what_is_fixed() -> None:
    """Boxes of one tensor: the constraints as rows of a matrix, whose rank is the sum."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        folds: list[Fold] = []
        rows: list[np.ndarray] = []
        for axis in (0, 1):
            start = rng.integers(0, 3, 2)
            size = rng.integers(1, 5 - start)
            part = TensorPart("w", axis, tuple(start.tolist()), tuple(size.tolist()))
            folds.append(Fold("centre" if rng.integers(2) else "shift", part))
            summed = axis if folds[-1].kind == "centre" else 1 - axis
            for line in range(int(size[1 - summed])):
                one = np.zeros((5, 5))
                box = one[part.slices]
                box[(slice(None), line) if summed == 0 else (line, slice(None))] = 1
                rows.append(one.ravel())
        if folds[0].kind == folds[1].kind:
            assert sum(dimensions(folds)) == np.linalg.matrix_rank(np.array(rows))


@pytest.mark.parametrize(
    ("folds", "what"),
    [
        ((Fold("scale", BIAS),), "kind"),
        ((Fold("zero", TensorPart("bias", 1, (0,), (6,))),), "axis"),
        ((Fold("zero", TensorPart("bias", 0, (0, 0), (6,))),), "axes with a start"),
        ((Fold("zero", TensorPart("bias", 0, (-1,), (6,))),), "starts of 0"),
        ((Fold("zero", TensorPart("bias", 0, (0,), (2**40,))),), "starts of 0"),
        ((Fold("zero", TensorPart("../bias", 0, (0,), (6,))),), "the name of a tensor"),
        ((Fold("zero", READ),), "a vector"),
        ((Fold("zero", BIAS, (Target(BIAS),)),), "targets"),
        ((Fold("shift", SHIFT),), "targets"),
        ((Fold("shift", SHIFT, (Target(None),)),), "neither"),
        ((Fold("shift", SHIFT, (Target(BIAS),)),), "some of 4 numbers"),
        ((Fold("shift", SHIFT, (Target(vector("bias", 2), None, 3),)),), "some of 4 numbers"),
        ((Fold("shift", SHIFT, (Target(vector("bias", 5), READ),)),), "as the weight writes"),
        ((Fold("shift", SHIFT, (Target(BIAS, vector("read", 4)),)),), "a matrix"),
        ((Fold("shift", SHIFT, (Target(None, HEAD),)),), "a part that takes the vector"),
        ((Fold("zero", BIAS, gain=GAIN),), "gain"),
        ((Fold("centre", READ, gain=BIAS),), "gain"),
        ((Fold("centre", READ, (Target(BIAS),), GAIN, BIAS),), "shift"),
        ((Fold("zero", BIAS), Fold("zero", vector("bias", 2, 4))), "apart"),
        ((Fold("zero", BIAS),) * (MAX_FOLDS + 1), "at most 100000"),
        (tuple(Fold("zero", vector("bias", 1, at)) for at in range(1001)), "at most 1000"),
    ],
)
def test_folds_that_make_no_sense(folds: tuple[Fold, ...], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        Symmetry((), (), folds)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda item: item.pop("kind"),
        lambda item: item.update(more=1),
        lambda item: item.update(part=3),
        lambda item: item["part"].pop("start"),
        lambda item: item["part"].update(shape="46"),
        lambda item: item["part"].update(axis=True),
        lambda item: item.update(targets=[{"into": item["part"]}]),
        lambda item: item.update(kind=["zero"]),
    ],
)
def test_a_document_with_other_fields_or_types_is_refused(spoil: Any) -> None:
    content = json.loads(json.dumps(TABLE.to_json()))
    spoil(content["folds"][0])
    with pytest.raises(SpecError):
        Symmetry.from_json(content)


def test_folds_of_another_architecture() -> None:
    tensors = tuple(
        replace(item, shape=(5,))
        if item.name == "bias"
        else replace(item, dtype="int64")
        if item.name == "head"
        else item
        for item in ARCH.tensors
        if item.name != "words"
    )
    with pytest.raises(SpecError) as caught:
        TABLE.check(Architecture("a", tensors))
    for what in ("a tensor of a", "a box of shape (5,)", "a floating-point tensor"):
        assert what in str(caught.value)


def test_every_fold_keeps_the_function_and_they_are_idempotent() -> None:
    weights = stack()
    folded = fold(weights, Symmetry((), (), FOLDS[:-1]))
    for k in range(3):
        np.testing.assert_allclose(function(folded, k), function(weights, k), rtol=1e-12, atol=1e-12)
    again = fold(folded, Symmetry((), (), FOLDS[:-1]))
    for name, value in again.items():
        np.testing.assert_allclose(value, folded[name], rtol=1e-13, atol=1e-15)
    assert (folded["norm.shift"] == folded["norm.gain"]).all()
    assert folded["other"] is weights["other"]


def test_a_gain_of_zero_leaves_what_needs_its_inverse_as_it_is() -> None:
    weights = stack()
    weights["norm.gain"][1, 2] = 0
    folded = fold(weights, Symmetry((), (), FOLDS[:2]))
    for k in range(3):
        np.testing.assert_allclose(function(folded, k), function(weights, k), rtol=1e-12, atol=1e-12)
    for name in ("norm.shift", "read", "bias", "head"):
        assert (folded[name][1] == weights[name][1]).all() and (folded[name][0] != weights[name][0]).any()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch_and_numpy_one_by_one_and_together_have_the_same_bits(dtype: str) -> None:
    weights = stack(dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected = fold(weights, TABLE)
    tensors = {
        name: torch.from_numpy(value.astype(np.float64)).to(getattr(torch, dtype)) for name, value in weights.items()
    }
    found = fold(tensors, TABLE)
    for name, value in expected.items():
        if name not in ("norm.gain", "other"):
            assert value.dtype == (np.float64 if dtype == "float64" else np.float32)
            assert isinstance(found[name], torch.Tensor) and found[name].numpy().tobytes() == value.tobytes()
        for k in range(3):
            alone = fold({other: item[k : k + 1] for other, item in weights.items()}, TABLE)
            assert alone[name].tobytes() == value[k : k + 1].tobytes()


def test_what_it_refuses() -> None:
    weights = stack()
    weights["read"][1, 0, 0] = np.nan
    with pytest.raises(SymmetryError, match="tensor 'read': expected finite numbers, got others in checkpoint 1"):
        fold(weights, TABLE)
    with pytest.raises(SymmetryError, match="tensor 'words': expected it, as a fold"):
        fold({name: value for name, value in stack().items() if name != "words"}, TABLE)
    with pytest.raises(SymmetryError, match=r"tensor 'bias': expected floats .* got float64 of shape \(5,\)"):
        fold(stack() | {"bias": np.zeros((3, 5))}, TABLE)
    with pytest.raises(SymmetryError, match="tensor 'bias': expected floats"):
        fold(stack() | {"bias": np.zeros((3, 6), np.int64)}, TABLE)
    with pytest.raises(SymmetryError, match="leading axes"):
        fold(stack() | {"bias": np.zeros((2, 6))}, TABLE)


def test_no_checkpoints_and_no_folds() -> None:
    assert {name: value.shape for name, value in fold(stack(0), TABLE).items()} == {
        name: (0, *shape) for name, shape in SHAPES.items()
    }
    weights = stack()
    assert all(value is weights[name] for name, value in fold(weights, Symmetry((), ())).items())

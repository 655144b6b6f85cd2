"""Copies of transformers that matrices disguise: they are found, changed ones are not, and slightly changed are near."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.derive import declare, dedupe
from ckptzoo.hub.contributions.duplicates import copies
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from ckptzoo.symmetry import GroupElement, Traced, apply, fold, trace
from tests.derive.test_dedupe import ids
from tests.support.derived_zoos import written
from tests.symmetry.matrices.every_kind import Weights, changed

COUNT = 40


class Transformer(nn.Module):
    """Patches with positions, two layers of attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.positions = nn.Linear(6, 8), nn.Parameter(torch.randn(4, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.patches(x) + self.positions).mean(1))


@pytest.fixture(scope="module")
def traced() -> Traced:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trace(Transformer().eval(), torch.randn(2, 4, 6))


def initial(count: int, seed: int) -> Weights:
    """Networks as torch begins them, biases of 0 among them."""
    torch.manual_seed(seed)
    states = [Transformer().state_dict() for _ in range(count)]
    return {name: np.stack([state[name].numpy() for state in states]) for name in states[0]}


def disguised(weights: Weights, traced: Traced, seed: int, dtype: Any = np.float32) -> Weights:
    """The same functions: folded, permuted, scaled and mixed, and rounded to how they are stored."""
    K = len(next(iter(weights.values())))
    element = GroupElement.random(traced.symmetry, K, np.random.default_rng(seed), spread=0.4)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    moved = apply(element, fold(wide, traced.symmetry), traced.symmetry)
    return {name: array.astype(dtype) for name, array in moved.items()}


def zoo_of(path: Path, traced: Traced, *stacks: Weights, dtype: str = "float32") -> ckptzoo.Zoo:
    tensors = tuple(replace(tensor, dtype=dtype) for tensor in traced.architecture.tensors)
    weights = {name: np.concatenate([stack[name] for stack in stacks]).astype(dtype) for name in stacks[0]}
    written(path, replace(traced.architecture, tensors=tensors), weights)
    declare(path, traced.symmetry)
    return ckptzoo.open(path)


@pytest.mark.exhaustive
def test_disguised_copies_are_found_and_changed_ones_are_not(traced: Traced, tmp_path: Path) -> None:
    """40 networks, 20 of them disguised, and all of them with one tensor each changed by 1e-3, half also disguised."""
    assert {group.scale for group in traced.symmetry.groups} >= {"linear", "orthogonal_mean"}
    weights = initial(COUNT, 1)
    rng = np.random.default_rng(2)
    other = {name: array.copy() for name, array in weights.items()}
    for row in range(COUNT):
        names = sorted(name for name in weights if np.abs(weights[name][row]).max() > 0)
        name = names[row % len(names)]
        one = {name: weights[name][row : row + 1]}
        other[name][row] = changed(one, name, 1e-3, rng)[name][0]
    half = {name: array[:20] for name, array in other.items()}
    rest = {name: array[20:] for name, array in other.items()}
    copied = disguised({name: array[:20] for name, array in weights.items()}, traced, 3)
    zoo = zoo_of(tmp_path / "zoo", traced, weights, copied, disguised(half, traced, 4), rest)
    found = dedupe(zoo)
    assert found.groups == ids([at, COUNT + at] for at in range(20))
    assert (found.checkpoints, found.skipped, found.near) == (100, (), ())
    assert not any(found.identical) and found.tolerance == 32 * np.finfo(np.float32).eps
    assert found.to_json()["near"] == []
    again = dedupe(zoo, tolerance=1e-2)
    assert len(again.groups) == COUNT and again.spare == 60


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.sampled(2)
def test_other_precisions(traced: Traced, tmp_path: Path, dtype: str) -> None:
    weights = initial(COUNT, 5)
    moved = disguised(weights, traced, 6, np.dtype(dtype))
    found = dedupe(zoo_of(tmp_path / "zoo", traced, weights, moved, dtype=dtype))
    assert found.groups == ids([at, COUNT + at] for at in range(COUNT))


@pytest.mark.exhaustive
def test_pairs_within_ten_tolerances_are_near_and_identical_ones_are_said_to_be(traced: Traced, tmp_path: Path) -> None:
    weights = initial(6, 7)
    near = changed(weights, "head.weight", 1e-5, np.random.default_rng(8))
    same = {name: array[:1] for name, array in weights.items()}
    zoo = zoo_of(tmp_path / "zoo", traced, weights, disguised(near, traced, 9), same)
    found = dedupe(zoo)
    assert found.groups == (("0", "12"),) and found.identical == (True,)
    assert found.near is not None
    pairs = {pair.ids for pair in found.near}
    assert pairs >= {(str(at), str(at + 6)) for at in range(6)} and pairs <= {
        *((str(at), str(at + 6)) for at in range(6)),
        ("6", "12"),
    }
    assert all(5e-6 < pair.distance < 2e-5 for pair in found.near)
    shown = found.to_json()["near"][0]
    assert shown["ids"] == list(found.near[0].ids) and shown["distance"] == found.near[0].distance


def test_what_is_not_finite_is_skipped(traced: Traced, tmp_path: Path) -> None:
    weights = initial(4, 10)
    weights["head.bias"][2, 0] = np.nan
    moved = disguised({name: array[:1] for name, array in weights.items()}, traced, 11)
    found = dedupe(zoo_of(tmp_path / "zoo", traced, weights, moved))
    assert found.groups == (("0", "4"),) and found.skipped == ("2",) and found.checkpoints == 4


@pytest.mark.exhaustive
def test_kept_descriptions_and_any_size_of_batches_find_the_same(
    traced: Traced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = initial(5, 12)
    zoo = zoo_of(tmp_path / "zoo", traced, weights, disguised(weights, traced, 13))
    found = dedupe(zoo, saved_in=tmp_path / "kept")
    assert len(found.groups) == 5
    monkeypatch.setattr("ckptzoo.derive.duplicates.BATCH_BYTES", 1)
    monkeypatch.setattr("ckptzoo.derive.duplicates.CANDIDATE_BYTES", 1)
    assert dedupe(zoo, saved_in=tmp_path / "kept").groups == found.groups
    assert dedupe(zoo).groups == found.groups


@pytest.mark.exhaustive
def test_a_contribution_that_is_a_disguised_copy_is_named(traced: Traced, tmp_path: Path) -> None:
    weights = initial(4, 14)
    zoo = zoo_of(tmp_path / "zoo", traced, weights)
    given = {name: array[2:3] for name, array in weights.items()}
    fresh = initial(1, 15)
    submitted = zoo_of(tmp_path / "given", traced, disguised(given, traced, 16), fresh, disguised(fresh, traced, 17))
    found = copies(submitted, TargetZoo(zoo))
    assert found.found == {
        "0": "2 of the zoo, permuted or rescaled",
        "2": "1 of the same contribution, permuted or rescaled",
    }
    assert found.resolved and found.permuted and not found.left

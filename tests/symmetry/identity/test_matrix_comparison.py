"""Distances of canonical forms with matrices: 0 within an orbit whatever rounding turned, and that of a change else."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize
from ckptzoo.symmetry.identity.comparison import distances, near_bound
from ckptzoo.symmetry.identity.forms import rounding_tolerance
from tests.symmetry.matrices.every_kind import Weights, changed, grouped_queries, table, weights_of

K = 4
TABLES = {
    "RMSNorm": table(),
    "LayerNorm": table("orthogonal_mean"),
    "packed": table(packed=True),
    "heads alone": table("none"),
    "grouped queries": grouped_queries(),
    "grouped queries, real parts first": grouped_queries(halves=True),
}
tables = pytest.mark.parametrize("symmetry", TABLES.values(), ids=TABLES.keys())


def between(one: Weights, two: Weights, symmetry: Symmetry, tolerance: float) -> np.ndarray:
    """Distances of pairs of rows."""
    rows = [[{name: array[row : row + 1] for name, array in side.items()} for side in (one, two)] for row in range(K)]
    return np.array([distances(first, other, symmetry, tolerance)[0][0] for first, other in rows])


def turned(symmetry: Symmetry, seed: int) -> GroupElement:
    """Elements that keep balanced weights balanced: permutations, signs, and orthogonal matrices for all kinds."""
    kinds = GroupElement.random(symmetry, K, np.random.default_rng(seed), spread=0)
    return GroupElement(kinds.perms, {name: np.sign(scale) for name, scale in kinds.scales.items()}, kinds.matrices)


@tables
@pytest.mark.sampled(3)
def test_any_turn_of_a_canonical_form_is_undone(symmetry: Symmetry) -> None:
    """Also by matrices far from 1, as where all singular values are equal but for rounding."""
    weights = canonicalize(weights_of(symmetry, K, np.random.default_rng(0)), symmetry).weights
    for seed in (1, 2):
        other = apply(turned(symmetry, seed), weights, symmetry)
        assert max(np.abs(other[name] - array).max() for name, array in weights.items()) > 0.1
        assert between(weights, other, symmetry, 1e-11).max() < 1e-11


@tables
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.sampled(5)
def test_rounded_copies_are_within_the_tolerance(symmetry: Symmetry, dtype: Any) -> None:
    weights = weights_of(symmetry, K, np.random.default_rng(0))
    element = GroupElement.random(symmetry, K, np.random.default_rng(3), spread=0.4)
    moved = apply(element, weights, symmetry)
    one, two = (
        canonicalize({name: array.astype(dtype) for name, array in stack.items()}, symmetry).weights
        for stack in (weights, moved)
    )
    tolerance = rounding_tolerance([np.dtype(dtype)], symmetry)
    assert between(one, two, symmetry, tolerance).max() <= tolerance
    others = {name: np.roll(array, 1, axis=0) for name, array in one.items()}
    assert between(one, others, symmetry, tolerance).min() > near_bound(tolerance, symmetry)


@pytest.mark.exhaustive
@tables
def test_a_change_of_a_thousandth_is_never_a_duplicate_in_float32(symmetry: Symmetry) -> None:
    weights, rng = weights_of(symmetry, K, np.random.default_rng(0)), np.random.default_rng(1)
    tolerance = rounding_tolerance([np.dtype(np.float32)], symmetry)
    one = canonicalize({name: array.astype(np.float32) for name, array in weights.items()}, symmetry).weights
    for name in weights.keys() - {"gain"}:
        moved = apply(GroupElement.random(symmetry, K, rng, spread=0.4), changed(weights, name, 1e-3, rng), symmetry)
        two = canonicalize({name: array.astype(np.float32) for name, array in moved.items()}, symmetry).weights
        found = between(one, two, symmetry, tolerance)
        assert found.min() > near_bound(tolerance, symmetry), name
        assert found.max() < 0.1, name


def test_copies_of_low_rank() -> None:
    symmetry = TABLES["RMSNorm"]
    weights = weights_of(symmetry, K, np.random.default_rng(0))
    weights["v"][:, 2:4], weights["v.bias"][:, 2:4] = 0, 0
    weights["low.in"][:, 1] = weights["low.in"][:, 0]
    weights["o"][:, :, 4] = weights["o"][:, :, 5]
    weights["odd.in"][:, 2], weights["odd.out"][:, :, 2], weights["odd.bias"][:, 2] = 0, 0, 0
    moved = apply(GroupElement.random(symmetry, K, np.random.default_rng(1), spread=0.4), weights, symmetry)
    one, two = (canonicalize(stack, symmetry) for stack in (weights, moved))
    assert (one.report.degenerate == 4).all()
    assert between(one.weights, two.weights, symmetry, 1e-9).max() <= 1e-9


def test_integers_decide_and_equal_bits_are_told() -> None:
    symmetry = TABLES["packed"]
    weights = canonicalize(weights_of(symmetry, K, np.random.default_rng(0)), symmetry).weights
    weights["count"] = np.arange(K)
    first = {name: array[:1] for name, array in weights.items()}
    others = {name: array[[0, 0, 1]] for name, array in weights.items()}
    others["count"] = np.array([0, 1, 0])
    found, equal = distances(first, others, symmetry, 1e-6)
    assert found[0] == 0 and np.isinf(found[1]) and 0.1 < found[2] < 10
    assert equal.tolist() == [True, False, False]

"""The rule for running variances, against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply
from ckptzoo.symmetry.scales import scaled_variance
from tests.support.effort import examples

UNIT = 2.0**-53
SINGLE = float(np.finfo(np.float32).eps)
DOUBLE = float(np.finfo(np.float64).eps)

variances = st.just(0.0) | st.floats(1e-30, 1e3)
scales = st.floats(1e-4, 1e4) | st.floats(-1e-9, 1e-9).map(lambda x: 1 + x)
epsilons = st.sampled_from([1e-3, 1e-5, 1e-12, 0.3])
many = settings(max_examples=examples(150), deadline=None)


def made(v: float, s: float, eps: float, precision: float = DOUBLE) -> float:
    return float(scaled_variance(np.array([v]), np.array([s]), eps, precision, "running_var")[0])


def exact(v: float, s: float, eps: float) -> Fraction:
    return Fraction(s) ** 2 * (Fraction(v) + Fraction(eps)) - Fraction(eps)


@many
@given(variances, scales, epsilons)
def test_the_result_is_exact_for_a_variance_and_an_eps_within_a_few_roundings(v: float, s: float, eps: float) -> None:
    """So its relative error is at most 5 units times the condition number, which is 1 for every s of at least 1."""
    true = exact(v, s, eps)
    sizes = Fraction(s) ** 2 * Fraction(v) + abs(Fraction(s) ** 2 - 1) * Fraction(eps)
    if true < -sizes * 8 * Fraction(UNIT):
        return
    assert abs(Fraction(made(v, s, eps, 1.0)) - max(true, Fraction(0))) <= 5 * Fraction(UNIT) * sizes
    if s >= 1:
        assert sizes == true


@many
@given(variances, epsilons)
def test_a_scale_of_one_gives_the_variance_back_bit_for_bit(v: float, eps: float) -> None:
    assert made(v, 1.0, eps) == v


def test_small_variances_keep_their_digits_beside_eps() -> None:
    """v + eps alone would round v = 1e-20 away."""
    assert made(1e-20, 2.0, 1e-5) == pytest.approx(3e-5, rel=1e-15)
    assert made(1e-20, 1.0, 1e-5) == 1e-20
    assert made(1e-20, 1 + 2**-52, 1e-5) == pytest.approx(2**-51 * 1e-5, rel=1e-4)


@many
@given(variances, scales)
def test_without_eps_the_variance_takes_the_square(v: float, s: float) -> None:
    assert made(v, s, 0.0) == pytest.approx(float(Fraction(s) ** 2 * Fraction(v)), rel=4 * UNIT)
    assert made(v, 4.0, 0.0) == 16 * v


@many
@given(variances, epsilons)
def test_at_the_smallest_scale_nothing_is_left_but_rounding(v: float, eps: float) -> None:
    least = np.sqrt(eps / (v + eps))
    assert 0 <= made(v, float(least), eps) <= 8 * DOUBLE * eps
    assert made(v, float(least * (1 - 2 * DOUBLE)), eps, SINGLE) == 0
    with pytest.raises(SymmetryError, match=r"running_var.*expected at least sqrt\(eps / \(variance \+ eps\)\)"):
        made(v, float(least * (1 - 1e-5)), eps, SINGLE)


@many
@given(variances, st.floats(1.0, 1e4), epsilons)
def test_a_stored_variance_comes_back_within_its_precision(v: float, s: float, eps: float) -> None:
    """Down to 0 for those that were clamped; relative to v + eps, as the network sees them."""
    stored = float(np.float32(made(v, s, eps, SINGLE)))
    back = made(stored, 1 / s, eps, SINGLE)
    assert back >= 0 and abs(back - v) <= SINGLE * (v + eps)


def test_variances_that_are_wrong_already_follow_the_formula() -> None:
    assert made(-1e-3, 2.0, 1e-5) == pytest.approx(4 * (-1e-3 + 1e-5) - 1e-5)
    assert np.isnan(made(float("nan"), 2.0, 1e-5)) and made(float("inf"), 2.0, 1e-5) == np.inf


def test_the_rule_is_the_same_in_torch() -> None:
    rng = np.random.default_rng(0)
    v, s = rng.uniform(0, 2, (3, 50)), np.exp(rng.uniform(0, 3, (3, 50)))
    s[:, :5] = np.sqrt(1e-5 / (v[:, :5] + 1e-5)) * (1 - DOUBLE)
    expected = scaled_variance(v, s, 1e-5, SINGLE, "v")
    found = scaled_variance(torch.from_numpy(v), torch.from_numpy(s), 1e-5, SINGLE, "v")
    assert found.numpy().tobytes() == expected.tobytes() and (expected[:, :5] == 0).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_clamped_variance_survives_the_way_there_and_back(dtype: type) -> None:
    """Stored as float32 in between, also where the variance was a half."""
    table = Symmetry(
        (Group("c", 64, Sym(), "positive"),),
        (AxisAction("var", 0, (Segment("c", 0, 1, 64),), 2, False, "variance", eps=1e-5),),
    )
    rng = np.random.default_rng(1)
    raw = np.abs(rng.standard_normal((8, 64)) * 10.0 ** rng.integers(-6, 1, (8, 64))).astype(dtype)
    raw[:, ::4] = 0
    element = GroupElement.random(table, 8, rng)
    old = np.take_along_axis(raw, element.perms["c"], 1).astype(np.float64)
    element.scales["c"][:] = np.maximum(element.scales["c"], np.sqrt(1e-5 / (old + 1e-5)))
    stored = apply(element, {"var": raw}, table)["var"]
    back = apply(element.inverse(), {"var": stored}, table)["var"]
    assert (stored >= 0).all() and (back >= 0).all() and stored.dtype == np.float32
    np.testing.assert_allclose(back + 1e-5, raw.astype(np.float64) + 1e-5, rtol=2 * SINGLE)

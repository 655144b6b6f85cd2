"""Orders that are alike: known answers, the definitions by plain loops, and the nulls by simulation."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from ckptzoo.errors import ZooError
from ckptzoo.measure.ranks import (
    kendall,
    kendall_tau_b,
    noise_tau,
    normal_tau,
    normal_tau_sd,
)
from tests.support.effort import examples


def test_tau_is_that_of_the_ranks_and_not_of_the_orders() -> None:
    first, second = np.array([0, 4, 1, 2, 3]), np.array([4, 0, 1, 2, 3])
    assert kendall(np.argsort(first), np.argsort(second)) == 0.8
    assert kendall(first, second) == -0.4


def test_known_answers() -> None:
    assert kendall([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert kendall([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall([0.5, -2], [7, 9]) == -1
    assert kendall([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)


def looped(first: np.ndarray, second: np.ndarray) -> float:
    """Tau by its definition, one pair at a time."""
    pairs = list(itertools.combinations(range(len(first)), 2))
    return sum(math.copysign(1, (first[i] - first[j]) * (second[i] - second[j])) for i, j in pairs) / len(pairs)


@given(seed=st.integers(0, 2**32), n=st.integers(2, 40), rows=st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None)
def test_tau_is_its_definition(seed: int, n: int, rows: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, rows, 3, n))
    found = kendall(first, second)
    assert found.shape == (rows, 3)
    for at in np.ndindex(rows, 3):
        assert found[at] == pytest.approx(looped(first[at], second[at]), abs=1e-12)
    np.testing.assert_array_equal(kendall(second, first), found)
    np.testing.assert_allclose(kendall(first, -second), -found, atol=1e-15)
    np.testing.assert_array_equal(kendall(np.exp(first), second**3), found)
    shuffle = np.random.default_rng(seed).permutation(n)
    np.testing.assert_array_equal(kendall(first[..., shuffle], second[..., shuffle]), found)


def test_known_answers_with_ties() -> None:
    assert kendall_tau_b([1, 1, 2, 3], [1, 2, 2, 3]) == pytest.approx(4 / math.sqrt(5 * 5))
    assert kendall_tau_b([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2 * 3))
    assert kendall_tau_b([3, 3, 1], [7, 7, 9]) == -1, "the same pairs are tied in both"
    assert math.isnan(kendall_tau_b([5, 5, 5], [1, 2, 3])) and math.isnan(kendall_tau_b([2.5, 1.5], [0, 0]))


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(2, 40),
    levels=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    dtype=st.sampled_from([np.int64, np.float32, np.float64]),
)
@settings(max_examples=examples(150), deadline=None)
def test_tau_b_is_its_definition_and_that_of_scipy(seed: int, n: int, levels: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 5, (4, n))
    first, second = (((common + rng.integers(0, 9, (4, n))) % level * 37 - 11).astype(dtype) for level in levels)
    second[3] = 4
    found = kendall_tau_b(first, second)
    assert found.shape == (4,) and np.isnan(found[3]), "NaN where one side is constant"
    for row in range(4):
        expected = kendalltau(first[row], second[row], variant="b").statistic
        np.testing.assert_allclose(found[row], expected, atol=1e-12)
        pairs = list(itertools.combinations(range(n), 2))
        sides = (values[row].tolist() for values in (first, second))
        signs = [np.array([np.sign(values[i] - values[j]) for i, j in pairs]) for values in sides]
        norms = [np.square(sign).sum() for sign in signs]
        if min(norms):
            assert found[row] == pytest.approx((signs[0] * signs[1]).sum() / math.sqrt(norms[0] * norms[1]), abs=1e-12)
    np.testing.assert_array_equal(kendall_tau_b(second, first), found)
    np.testing.assert_array_equal(kendall_tau_b(first, -second), -found)


@given(seed=st.integers(0, 2**32), n=st.integers(2, 40))
@settings(max_examples=examples(60), deadline=None)
def test_without_ties_tau_b_is_tau_to_the_last_bit(seed: int, n: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, 3, 2, n))
    np.testing.assert_array_equal(kendall_tau_b(first, second), kendall(first, second))


@pytest.mark.parametrize(("n", "d"), [(2, 0.73), (7, 0.31), (40, 1.9), (200, 0.08)])
def test_the_null_is_what_independent_noise_gives(n: int, d: float) -> None:
    rng = np.random.default_rng(n)
    keys = 3.1 + 2.7 * rng.normal(size=(400_000 // n // n if n > 20 else 20_000, n))
    found = kendall(keys, keys + d * 2.7 * rng.normal(size=keys.shape))
    error = found.std(ddof=1) / len(found) ** 0.5
    assert found.mean() == pytest.approx(noise_tau(d), abs=4 * error)
    assert 4 * error < 0.06


def test_the_null_has_known_ends_and_is_the_normal_one() -> None:
    np.testing.assert_array_equal(noise_tau([0.0, np.inf]), [1, 0])
    assert noise_tau(1) == pytest.approx(0.5) and normal_tau(-0.5) == pytest.approx(-1 / 3)
    assert noise_tau(2.3) == pytest.approx(normal_tau(1 / math.hypot(1, 2.3)))


@pytest.mark.parametrize(("correlation", "n"), [(-0.83, 12), (0.37, 5), (0.61, 2), (0.97, 30), (0.0, 9)])
def test_tau_of_a_correlation_has_this_mean_and_deviation(correlation: float, n: int) -> None:
    rng = np.random.default_rng(n)
    first, other = rng.normal(size=(2, 10_000, n))
    found = kendall(first, correlation * first + math.sqrt(1 - correlation**2) * other)
    assert found.mean() == pytest.approx(normal_tau(correlation), abs=4 * found.std() / 100)
    assert found.std() == pytest.approx(normal_tau_sd(correlation, n), rel=0.04)


def test_the_deviation_has_known_values() -> None:
    assert normal_tau_sd(0.0, 7) ** 2 == pytest.approx(2 * (2 * 7 + 5) / (9 * 7 * 6)), "of unrelated orders"
    assert normal_tau_sd(0.5, 2) ** 2 == pytest.approx(1 - 1 / 9), "of a single pair"
    assert normal_tau_sd(1.0, 5) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize(
    ("first", "second"),
    [([1, 2], [1, 2, 3]), ([1], [1]), (1, 1), ([1, 1, 2], [1, 2, 3]), ([1, 2, 3], [1, float("nan"), 3])],
)
def test_what_has_no_tau_is_refused(first: Any, second: Any) -> None:
    with pytest.raises(ZooError, match=r"kendall: .*expected"):
        kendall(first, second)


@pytest.mark.parametrize(("first", "second"), [([1, 2], [1, 2, 3]), ([1], [1]), (1, 1), ([1, 1], [1, math.nan])])
def test_what_has_no_tau_b_is_refused(first: Any, second: Any) -> None:
    with pytest.raises(ZooError, match=r"kendall_tau_b: .*expected"):
        kendall_tau_b(first, second)

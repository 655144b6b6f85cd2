"""P-values of Kolmogorov and Smirnov: exact ones, their size, and the test of their uniformity."""

import itertools
import math
import sys

import numpy as np
import pytest

from ckptzoo.errors import MissingExtraError, ZooError
from ckptzoo.measure.marginals import equality, uniformity


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """By the definition."""
    values = np.concatenate([first, second])
    return max(abs(float((first <= at).mean()) - float((second <= at).mean())) for at in values)


def gnedenko(n: int, d: float) -> float:
    """P(D >= d) of two samples of n: 2 (C(2n, n - h) - C(2n, n - 2h) + ...) / C(2n, n) with h = n d."""
    h = round(n * d)
    if h == 0:
        return 1.0
    terms = ((-1) ** (i + 1) * math.comb(2 * n, n - i * h) for i in range(1, n // h + 1))
    return 2 * sum(terms) / math.comb(2 * n, n)


@pytest.mark.parametrize("n", [1, 2, 7, 30, 200])
def test_equal_sizes_have_the_exact_probability(n: int) -> None:
    rng = np.random.default_rng(n)
    shift = rng.normal(size=(12, 1)) * n**-0.5
    first, second = rng.normal(size=(12, n)), rng.normal(size=(12, n)) + shift
    expected = [gnedenko(n, distance(x, y)) for x, y in zip(first, second, strict=True)]
    np.testing.assert_allclose(equality(first, second), expected, rtol=1e-9)
    np.testing.assert_allclose(equality(second, first), expected, rtol=1e-9)


def test_other_sizes_have_the_share_of_all_permutations() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(4, 3)), rng.normal(size=(4, 5)) + 0.7
    for x, y, found in zip(first, second, equality(first, second), strict=True):
        both, hits = np.concatenate([x, y]), []
        for chosen in itertools.combinations(range(8), 3):
            inside = np.isin(np.arange(8), chosen)
            hits.append(distance(both[inside], both[~inside]) >= distance(x, y) - 1e-12)
        assert found == pytest.approx(np.mean(hits))


def test_equal_distributions_give_the_p_that_they_should_and_others_do_not() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.exponential(size=(2, 2000, 40))
    found = equality(first, second)
    for level in sorted(set(found[found < 0.5])):
        error = math.sqrt(level * (1 - level) / 2000)
        assert (found <= level).mean() == pytest.approx(level, abs=4 * error)
    assert uniformity(found) > 0.01
    far = equality(first, second + 1)
    assert (far < 0.05).mean() > 0.9 and uniformity(far) < 1e-100


def test_uniformity_of_known_p_values() -> None:
    assert uniformity((np.arange(100) + 1) / 100) == 1
    assert uniformity(np.ones(50)) == 1, "of p-values that can only be 1"
    assert uniformity(np.full(20, 0.01)) == pytest.approx(0.01**20, rel=1e-6), "D = 0.99"
    assert math.isnan(uniformity([]))


@pytest.mark.slow
@pytest.mark.parametrize("lattice", [None, 4, 64])
def test_the_test_of_uniformity_rejects_at_most_as_often_as_it_says(lattice: int | None) -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(size=(1500, 100))
    p = p if lattice is None else np.ceil(p * lattice) / lattice
    found = np.array([uniformity(row) for row in p])
    for level in (0.01, 0.05, 0.2):
        error = math.sqrt(level * (1 - level) / 1500)
        assert (found <= level).mean() < level + 4 * error
    assert (found <= 0.2).mean() > (0.05 if lattice == 4 else 0.16)


def test_larger_p_values_are_no_evidence_and_smaller_ones_are() -> None:
    p = np.random.default_rng(1).uniform(size=200)
    assert uniformity(p) > 0.05
    assert uniformity(p**0.5) > uniformity(p) and uniformity(np.concatenate([p, np.ones(200)])) > uniformity(p)
    assert uniformity(p**2) < 1e-6


def test_odd_samples() -> None:
    assert equality(np.empty((0, 3)), np.empty((0, 2))).shape == (0,)
    np.testing.assert_array_equal(equality([[2.0, 2.0]], [[2.0, 2.0]]), [1])
    assert np.isnan(equality([[1.0, np.nan]], [[1.0, 2.0]])).all()
    for first, second in (([1.0], [2.0]), (np.ones((2, 2)), np.ones((3, 2))), (np.ones((2, 0)), np.ones((2, 2)))):
        with pytest.raises(ZooError, match="equality: shapes: expected"):
            equality(first, second)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[stats\]"):
        equality([[1.0]], [[2.0]])

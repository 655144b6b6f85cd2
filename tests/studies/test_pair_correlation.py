"""Correlations of figures of pairs: scipy and known answers, and how often the test and the interval are right."""

import itertools

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from ckptzoo.errors import ZooError
from ckptzoo.studies.pair_correlation import PairCorrelation, correlate_pairs


def symmetric(values: np.ndarray) -> np.ndarray:
    return np.triu(values, 1) + np.triu(values, 1).T


def of_members(rng: np.random.Generator, members: int, shared: float, noise: float = 1.0) -> list[np.ndarray]:
    """Two figures a pair: sums of one of each member, of which a part is shared by the two sides, and noise."""
    common = rng.normal(size=members)
    sides = []
    for _ in range(2):
        own = np.sqrt(shared) * common + np.sqrt(1 - shared) * rng.normal(size=members)
        sides.append(symmetric(own[:, None] + own + noise * rng.normal(size=(members, members))))
    return sides


@pytest.mark.parametrize("ties", [False, True])
def test_values_are_scipys(ties: bool) -> None:
    one, two = of_members(np.random.default_rng(0), 25, 0.5)
    if ties:
        one, two = one.round(), two.round(1)
    pairs = np.triu_indices(25, 1)
    found = correlate_pairs(one, two, permutations=0, resamples=0)
    assert found["pearson"].value == pytest.approx(pearsonr(one[pairs], two[pairs])[0], abs=1e-12)
    assert found["spearman"].value == pytest.approx(spearmanr(one[pairs], two[pairs])[0], abs=1e-12)
    for item in found.values():
        assert (item.low, item.high, item.p_value) == (None, None, None)


def test_p_values_are_those_of_all_permutations() -> None:
    one, two = of_members(np.random.default_rng(1), 5, 0.8)
    pairs = np.triu_indices(5, 1)
    found = correlate_pairs(one, two, permutations=4000, resamples=0)
    for name, correlation in (("pearson", pearsonr), ("spearman", spearmanr)):
        value = correlation(one[pairs], two[pairs])[0]
        every = [correlation(one[pairs], two[np.ix_(p, p)][pairs])[0] for p in itertools.permutations(range(5))]
        exact = np.mean(np.abs(every) >= abs(value) - 1e-9)
        assert found[name].p_value == pytest.approx(exact, abs=5 * np.sqrt(exact * (1 - exact) / 4000))


def test_resamples_are_copies_of_members() -> None:
    one, two = of_members(np.random.default_rng(2), 9, 0.5)
    one = one.round(1)
    found = correlate_pairs(one, two, permutations=0, resamples=200, seed=7)
    rng = np.random.default_rng(np.random.SeedSequence(7).spawn(2)[1])
    every: dict[str, list[float]] = {"pearson": [], "spearman": []}
    for _ in range(200):
        drawn = rng.integers(9, size=9)
        pairs = [(drawn[a], drawn[b]) for a in range(9) for b in range(a) if drawn[a] != drawn[b]]
        x, y = (np.array([figures[pair] for pair in pairs]) for figures in (one, two))
        every["pearson"].append(pearsonr(x, y)[0])
        every["spearman"].append(spearmanr(x, y)[0])
    for name, values in every.items():
        assert (found[name].low, found[name].high) == pytest.approx(
            tuple(np.quantile(values, [0.025, 0.975])), abs=1e-9
        )


def test_a_planted_correlation_is_found_and_none_is_not() -> None:
    rng = np.random.default_rng(3)
    found = correlate_pairs(*of_members(rng, 60, 0.9, noise=0.3), permutations=199, resamples=199)
    for item in found.values():
        assert item.p_value == 1 / 200 and item.low is not None and 0.4 < item.low < item.value
    none = correlate_pairs(*of_members(rng, 60, 0.0), permutations=199, resamples=199)
    for item in none.values():
        assert item.p_value is not None and item.p_value > 0.02
        assert item.low is not None and item.high is not None and item.low < 0 < item.high


def test_equal_sides_correlate_perfectly_and_opposite_ones_too() -> None:
    one, _ = of_members(np.random.default_rng(4), 20, 0.5)
    for other, value in ((one, 1.0), (-3 * one + 2, -1.0)):
        for item in correlate_pairs(one, other, permutations=99, resamples=50).values():
            assert item == PairCorrelation(pytest.approx(value), pytest.approx(value), pytest.approx(value), 0.01)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pairs_that_share_members_are_no_independent_evidence() -> None:
    """Of unrelated sides with member effects the test rejects 5 %; taking pairs for independent rejects far more."""
    rng, p_values, naive, within = np.random.default_rng(5), [], [], []
    for seed in range(150):
        one, two = of_members(rng, 15, 0.0, noise=0.2)
        found = correlate_pairs(one, two, permutations=99, resamples=99, seed=seed)["pearson"]
        assert found.p_value is not None and found.low is not None and found.high is not None
        p_values.append(found.p_value)
        within.append(found.low <= 0 <= found.high)
        pairs = np.triu_indices(15, 1)
        naive.append(pearsonr(one[pairs], two[pairs])[1])
    rejected = np.mean(np.array(p_values) <= 0.05)
    assert rejected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150) < 0.2 < np.mean(np.array(naive) <= 0.05)
    assert np.mean(within) > 0.85


def test_what_does_not_vary_has_no_correlation() -> None:
    one, _ = of_members(np.random.default_rng(6), 4, 0.5)
    assert correlate_pairs(one, np.full((4, 4), 0.1)) == {}
    assert correlate_pairs(one[:2, :2], one[:2, :2]) == {}
    few = correlate_pairs(one[:3, :3], one[:3, :3], permutations=10, resamples=100)["pearson"]
    assert few.value == pytest.approx(1) and few.low == pytest.approx(1)


def test_equal_seeds_give_equal_results_and_progress_is_told() -> None:
    one, two = of_members(np.random.default_rng(7), 12, 0.5)
    calls: list[int] = []
    found = correlate_pairs(one, two, permutations=20, resamples=30, seed=1, done=lambda: calls.append(1))
    assert len(calls) == 50 and found == correlate_pairs(one, two, permutations=20, resamples=30, seed=1)
    assert found != correlate_pairs(one, two, permutations=20, resamples=30, seed=2)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ZooError, match="shapes: expected"):
        correlate_pairs(np.zeros((3, 3)), np.zeros((4, 4)))
    with pytest.raises(ZooError, match="figures: expected numbers"):
        correlate_pairs(np.full((3, 3), np.nan), np.zeros((3, 3)))

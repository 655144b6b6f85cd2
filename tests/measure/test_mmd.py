"""The squared maximum mean discrepancy: loops over its definition, closed forms, and every permutation."""

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure import Distances, mmd2, mmd_test, p_value
from tests.support.effort import FEW_EXAMPLES, examples

Rows = list[list[float]]


def l1(a: list[float], b: list[float]) -> float:
    return math.fsum(abs(u - v) for u, v in zip(a, b, strict=True))


def l2(a: list[float], b: list[float]) -> float:
    return math.sqrt(math.fsum((u - v) ** 2 for u, v in zip(a, b, strict=True)))


def bandwidths(d: list[float]) -> list[float]:
    low = min(d)
    if low < 0.1:
        low = max(sorted(d)[math.floor(0.05 * len(d))], 0.1)
    low = low / 2
    high = 2 * max(max(d), 0.3)
    return [low * (high / low) ** (i / 9) for i in range(10)]


def by_the_recipe(x: Rows, y: Rows, rule: str = "paper") -> list[float]:
    """The definition, one pair at a time."""
    m, n = len(x), len(y)
    made: list[float] = []
    for distance, kernel in ((l1, lambda d, b: math.exp(-d / b)), (l2, lambda d, b: math.exp(-((d / b) ** 2)))):
        if rule == "paper":
            looked = [distance(a, b) for a in x[:500] for b in y[:500]]
        else:
            looked = [distance(a, b) for a, b in itertools.combinations(x[:500], 2)]
        for b in bandwidths(looked):
            xx = [kernel(distance(x[i], x[j]), b) for i in range(m) for j in range(m) if i != j]
            yy = [kernel(distance(y[i], y[j]), b) for i in range(n) for j in range(n) if i != j]
            xy = [kernel(distance(u, v), b) for u in x for v in y]
            made.append(math.fsum(xx) / (m * (m - 1)) + math.fsum(yy) / (n * (n - 1)) - 2 * math.fsum(xy) / (m * n))
    return made


@given(
    seed=st.integers(0, 2**32),
    m=st.integers(2, 9),
    n=st.integers(2, 9),
    d=st.integers(1, 7),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
    same=st.booleans(),
    rule=st.sampled_from(["paper", "fixed"]),
)
@settings(max_examples=examples(80, FEW_EXAMPLES), deadline=None)
def test_it_is_the_recipe(seed: int, m: int, n: int, d: int, scale: float, same: bool, rule: Any) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(m, d)) * scale, rng.normal(size=(n, d)) * scale * 1.5 + scale / 3
    if same:
        y[: min(m, n) // 2] = x[: min(m, n) // 2]
    expected = by_the_recipe(x.tolist(), y.tolist(), rule)
    np.testing.assert_allclose(mmd2(x, y, rule), expected, atol=1e-11)
    single = [array.astype(np.float32) for array in (x, y)]
    expected = by_the_recipe(*(array.astype(float).tolist() for array in single), rule)
    np.testing.assert_allclose(mmd2(*single, rule), expected, atol=1e-5)


@pytest.mark.parametrize(("m", "n"), [(520, 7), (7, 520)])
def test_bandwidths_look_at_the_first_500_rows(m: int, n: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(m, 2)), rng.normal(size=(n, 2))
    x[500:], y[500:] = x[500:] * 40, y[500:] * 40
    head = (x[:500].tolist(), y[:500].tolist())
    cross = [bandwidths([norm(a, b) for a in head[0] for b in head[1]]) for norm in (l1, l2)]
    own = [bandwidths([norm(a, b) for a, b in itertools.combinations(head[0], 2)]) for norm in (l1, l2)]
    found = Distances(m, n)
    found.add(x, y)
    np.testing.assert_allclose(found.bandwidths("paper"), np.ravel(cross), rtol=1e-9)
    np.testing.assert_allclose(found.bandwidths("fixed"), np.ravel(own), rtol=1e-9)


def test_fixed_bandwidths_do_not_depend_on_the_other_sample() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 4))
    made: list[Distances] = []
    for shift in (0, 50):
        made.append(Distances(30, 10))
        made[-1].add(x, rng.normal(size=(10, 4)) + shift)
    np.testing.assert_allclose(made[0].bandwidths("fixed"), made[1].bandwidths("fixed"), rtol=1e-9)
    assert not np.allclose(made[0].bandwidths("paper"), made[1].bandwidths("paper"))


def normal_mean(b: float, shift: float, variance: float, laplace: bool) -> float:
    """The mean kernel of a normal difference with this mean and variance."""
    if not laplace:
        return (1 + 2 * variance / b**2) ** -0.5 * math.exp(-(shift**2) / (b**2 + 2 * variance))
    sides = (
        math.exp(sign * shift / b) * math.erfc((variance / b + sign * shift) / math.sqrt(2 * variance))
        for sign in (-1, 1)
    )
    return 0.5 * math.exp(variance / (2 * b**2)) * sum(sides)


@pytest.mark.slow
def test_the_mean_over_draws_of_two_normals_is_the_closed_form() -> None:
    given_bandwidths = np.concatenate([np.geomspace(0.3, 9, 10)] * 2)
    rng, shift, s, t, count = np.random.default_rng(2), 0.7, 1.0, 1.6, examples(500, 150)
    draws = [mmd2(rng.normal(0, s, (30, 1)), rng.normal(shift, t, (20, 1)), given_bandwidths) for _ in range(count)]
    for number, b in enumerate(given_bandwidths):
        parts = ((0, 2 * s**2), (0, 2 * t**2), (shift, s**2 + t**2))
        xx, yy, xy = (normal_mean(b, *part, laplace=number < 10) for part in parts)
        values = np.array(draws)[:, number]
        assert values.mean() == pytest.approx(xx + yy - 2 * xy, abs=4.5 * values.std() / count**0.5)
        assert abs(xx + yy - 2 * xy) > 5 * values.std() / count**0.5


def test_identical_samples_are_below_zero_by_the_self_pairs() -> None:
    x = np.random.default_rng(3).normal(size=(8, 5))
    found = mmd2(x, x, np.full(20, 2.0))
    kernels = [math.exp(-l1(a, b) / 2) for a, b in itertools.combinations(x.tolist(), 2)]
    mean = math.fsum(kernels) / len(kernels)
    assert found[0] == pytest.approx(2 * mean - 2 * (mean * 7 / 8 + 1 / 8), abs=1e-12)
    assert (found < 0).all()
    constant = mmd2(np.ones((3, 4)), np.ones((2, 4)))
    np.testing.assert_allclose(constant, 0, atol=1e-15)


def test_a_shift_is_found_and_grows() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(100, 12)), rng.normal(size=(60, 12))
    kernels = np.concatenate([np.geomspace(2, 60, 10), np.geomspace(1, 20, 10)])
    medians = [float(np.median(mmd2(x, y + shift, kernels))) for shift in (0, 0.2, 0.5, 1, 2)]
    assert medians == sorted(medians)
    assert mmd_test(x, y, permutations=199).p > 0.01
    found = mmd_test(x, y + 0.5, permutations=199)
    assert found.p == 1 / 200 and found.statistic > found.null.max()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_small_floats_of_numpy_and_torch_are_alike(dtype: str) -> None:
    rng = np.random.default_rng(5)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, y = rng.normal(size=(20, 300)).astype(kind), rng.normal(size=(15, 300)).astype(kind)
    held = [torch.tensor(array.astype(np.float32)).to(getattr(torch, dtype)) for array in (x, y)]
    np.testing.assert_allclose(mmd2(x, y), mmd2(*held), atol=1e-6)
    np.testing.assert_allclose(mmd2(x, y), mmd2(x.astype(np.float64), y.astype(np.float64)), atol=1e-6)


def test_integers_are_taken_as_they_are() -> None:
    x, y = np.arange(12).reshape(4, 3) * 2**30, np.arange(9).reshape(3, 3) * 2**30 + 1
    np.testing.assert_array_equal(mmd2(x, y), mmd2(x.astype(float), y.astype(float)))


def test_permutations_give_every_split_alike() -> None:
    rng, m, n = np.random.default_rng(6), 3, 2
    rows, kernels = rng.normal(size=(m + n, 4)), np.geomspace(0.5, 8, 20)
    every = []
    for chosen in itertools.combinations(range(m + n), m):
        others = [at for at in range(m + n) if at not in chosen]
        every.append(mmd2(rows[list(chosen)], rows[others], kernels))
    made = Distances(m, n)
    made.add(rows[:m], rows[m:])
    null = made.null(kernels, permutations=3000, seed=1)
    assert null.shape == (20, 3000)
    gaps = np.abs(null[:, :, None] - np.array(every).T[:, None, :]).max(axis=0)
    assert gaps.min(axis=1).max() < 1e-12
    counts = np.bincount(gaps.argmin(axis=1), minlength=10)
    assert counts.min() > 300 - 6 * 300**0.5 and counts.max() < 300 + 6 * 300**0.5
    medians = np.median(every, axis=1)
    tail = (medians >= medians[0] - 1e-12).mean()
    found = mmd_test(rows[:m], rows[m:], kernels, permutations=3000, seed=1)
    assert found.statistic == pytest.approx(medians[0], abs=1e-13)
    assert found.p == pytest.approx(tail, abs=6 * (tail * (1 - tail) / 3000) ** 0.5 + 1e-3)
    assert found.p == (1 + (null.shape[1] * 0 + (found.null >= medians[0] - 1e-12).sum())) / 3001


@pytest.mark.slow
def test_p_values_under_the_null_are_uniform() -> None:
    rng, kernels, count = np.random.default_rng(7), np.geomspace(0.5, 8, 20), examples(300, 100)
    found = [
        mmd_test(rng.normal(size=(8, 2)), rng.normal(size=(6, 2)), kernels, permutations=39, seed=at).p
        for at in range(count)
    ]
    for level in (0.1, 0.25, 0.5, 0.75):
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=4 * (level * (1 - level) / count) ** 0.5)


def test_the_same_seed_gives_the_same_bits() -> None:
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(200, 30)), rng.normal(size=(150, 30))
    one, again, other = (mmd_test(x, y, permutations=20, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.null, again.null)
    assert one.p == again.p and not np.array_equal(one.null, other.null)


def test_p_values_count_the_observed_one() -> None:
    assert p_value(2.0, np.array([1.0, 1.5, 3.0])) == 0.5
    assert p_value(5.0, np.zeros(99)) == 0.01
    assert p_value(1.0, np.array([1.0 - 1e-14, 0.0])) == pytest.approx(2 / 3)


def test_what_cannot_be_compared_is_refused() -> None:
    x = np.zeros((3, 2))
    with pytest.raises(ZooError, match="expected 2 or more of X and of Y, got 1 and 3"):
        mmd2(x[:1], x)
    with pytest.raises(UnknownNameError, match="Did you mean fixed"):
        mmd2(x, x, "fixd")  # type: ignore[arg-type]
    for bad in (np.ones(10), np.zeros(20), np.full(20, np.nan)):
        with pytest.raises(ZooError, match=r"expected \(20,\) finite numbers above 0"):
            mmd2(x, x, bad)

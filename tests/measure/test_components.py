"""Principal components: their definition, known answers, and that blocks do not matter."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.measure.components import ByColumns, ByRows, Components, principal_components
from tests.support.effort import examples


@given(
    seed=st.integers(0, 2**32), K=st.integers(2, 12), d=st.integers(1, 12), dtype=st.sampled_from(["f2", "f4", "f8"])
)
@settings(max_examples=examples(80), deadline=None)
def test_variances_are_those_of_the_singular_values(seed: int, K: int, d: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    samples = (7 + rng.normal(size=(K, d)) * rng.exponential(size=d)).astype(dtype)
    exact = samples.astype(np.float64)
    singular = np.linalg.svd(exact - exact.mean(axis=0), compute_uv=False)
    expected = (singular**2 / (K - 1))[: min(K - 1, d)]
    found = principal_components(samples)
    np.testing.assert_allclose(found.variances, expected, rtol=1e-9, atol=1e-12 * expected.max())
    assert found.total == pytest.approx(exact.var(axis=0, ddof=1).sum(), rel=1e-9)
    rows, columns = ByRows(d), ByColumns(K)
    for at in range(K):
        rows.add(samples[at : at + 1])
    for start in range(0, d, 5):
        columns.add(samples[:, start : start + 5])
    for other in (rows.components(), columns.components()):
        np.testing.assert_allclose(other.variances, found.variances, rtol=1e-9, atol=1e-12 * expected.max())


def test_known_components() -> None:
    # Four corners of a rectangle: 4 (2a)^2 / 4 / 3 and the same of b.
    a, b = 3.0, 0.5
    corners = np.array([100, -50]) + np.array([[a, b], [a, -b], [-a, b], [-a, -b]])
    found = principal_components(corners @ np.array([[0.6, 0.8], [-0.8, 0.6]]))
    np.testing.assert_allclose(found.variances, [4 * a**2 / 3, 4 * b**2 / 3])
    np.testing.assert_allclose(found.ratios, np.array([36, 1]) / 37)
    np.testing.assert_allclose(found.cumulative, [36 / 37, 1])
    assert [found.needed(share) for share in (0.5, 36 / 37, 0.98, 1.0)] == [1, 1, 2, 2]


def test_planted_variances_are_found() -> None:
    rng = np.random.default_rng(0)
    planted = np.array([9.0, 4.0, 1.0, 0.25, 0.01])
    turned, _ = np.linalg.qr(rng.normal(size=(40, 40)))
    samples = (rng.normal(size=(100_000, 5)) * np.sqrt(planted)) @ turned[:5]
    found = principal_components(samples).variances
    np.testing.assert_allclose(found[:5], planted, rtol=0.03)
    assert (found[5:] < 1e-12).all() and len(found) == 40


def test_what_does_not_vary_has_no_shares() -> None:
    for shape in ((5, 3), (3, 5)):
        found = principal_components(np.full(shape, 0.1))
        assert found.total == 0 and np.isnan(found.cumulative).all() and found.needed(0.9) is None
    assert len(principal_components(np.ones((2, 9))).variances) == 1
    assert Components(np.array([3.0, 1.0])).needed(0.75) == 1


def test_a_large_mean_costs_no_digits() -> None:
    samples = np.random.default_rng(1).normal(size=(50, 4))
    expected = principal_components(samples).variances
    np.testing.assert_allclose(principal_components(samples + 2.0**30).variances, expected, rtol=1e-6)
    np.testing.assert_allclose(principal_components(samples.T + 2.0**30).variances, _of(samples.T), rtol=1e-6)


def _of(samples: np.ndarray) -> np.ndarray:
    return principal_components(samples).variances


def test_a_million_columns_take_the_memory_of_a_piece() -> None:
    gathered = ByColumns(8)
    block = np.random.default_rng(2).normal(size=(8, 1_000_000)).astype(np.float32)
    tracemalloc.start()
    gathered.add(block)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * 2**22 * 8
    np.testing.assert_allclose(gathered.components().variances, np.full(7, 1e6 / 7), rtol=0.02)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 0), (2, 2, 2)])
def test_what_has_no_components_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ZooError, match="samples: expected"):
        principal_components(np.ones(shape))


def test_blocks_that_do_not_fit_are_refused() -> None:
    for gathered, block in ((ByRows(3), np.ones((2, 4))), (ByColumns(3), np.ones((2, 4)))):
        with pytest.raises(ZooError, match=r"samples: expected \("):
            gathered.add(block)
    with pytest.raises(ZooError, match="expected finite numbers"):
        principal_components([[1.0, 2.0], [np.nan, 1.0], [0.0, 0.0]])

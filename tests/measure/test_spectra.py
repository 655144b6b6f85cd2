"""Lanczos' method and Hutchinson's estimate against known matrices: bounds that hold, and intervals that cover."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ckptzoo.measure.spectra import Values, interval_factor, lanczos, traces
from tests.support.effort import examples


def matrix_of(eigenvalues: Values, seed: int) -> Values:
    vectors = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(eigenvalues),) * 2))[0]
    return (vectors * eigenvalues) @ vectors.T


def product_of(matrices: Values) -> object:
    return lambda vectors: np.einsum("kdp,kpq->kdq", vectors, matrices)


@settings(max_examples=examples(100), deadline=None)
@given(
    size=st.integers(1, 30),
    steps=st.integers(2, 40),
    rank=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
    shift=st.sampled_from([-3.0, 0.0, 2.0]),
)
def test_there_is_an_eigenvalue_within_the_bound(size: int, steps: int, rank: int, seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.where(np.arange(size) < rank, rng.standard_normal(size) * 10 ** rng.uniform(-2, 2), 0) + shift
    matrices = np.stack(
        [matrix_of(values, seed % 1000), matrix_of(values[::-1] / 2, seed % 999), np.zeros((size, size))]
    )
    starts = rng.standard_normal((3, size))
    found = lanczos(product_of(matrices), starts, steps=steps, tolerance=1e-6)
    for at, matrix in enumerate(matrices):
        exact = np.linalg.eigvalsh(matrix)
        rounding = 1e-9 * max(1, np.abs(exact).max())
        assert np.abs(exact - found.values[at]).min() <= found.bounds[at] + rounding
        # every Ritz value is between the extreme eigenvalues
        assert found.values[at] <= exact[-1] + rounding
        if steps >= size:
            assert abs(found.values[at] - exact[-1]) <= 1e-5 * max(1, np.abs(exact).max())
        rows = found.basis[at][np.abs(found.basis[at]).sum(1) > 0]
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-9)
    # no matrix depends on those beside it
    for at in range(3):
        alone = lanczos(product_of(matrices[[at]]), starts[[at]], steps=steps, tolerance=1e-6)
        np.testing.assert_allclose(alone.values, found.values[[at]], rtol=1e-9, atol=1e-9)
        count = alone.basis.shape[1]
        assert not found.basis[at, count:].any()
        np.testing.assert_allclose(alone.traces, found.traces[[at]], rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("probes", [32, 64])
def test_the_interval_covers_the_trace_in_93_to_97_of_100_trials(probes: int) -> None:
    """A spectrum as Hessians have it: some large eigenvalues, many small ones, a few negative."""
    matrix = matrix_of(np.r_[50, 20, 10, 8, np.geomspace(5, 0.01, 50), -np.geomspace(1, 0.1, 6)], 3)
    trials = 1_000
    starts = np.random.default_rng(4).standard_normal((trials, len(matrix)))
    product = lambda vectors: np.einsum("kdp,pq->kdq", vectors, matrix)  # noqa: E731
    found = lanczos(product, starts, steps=32, tolerance=1e-3)
    assert np.abs(found.values - 50).max() < 1e-3 * 50
    generators = [np.random.default_rng([trial, probes]) for trial in range(trials)]
    estimates, errors = traces(product, found, generators, probes=probes, at_once=7)
    covered = np.abs(estimates - np.trace(matrix)) <= interval_factor(probes) * errors
    assert 0.93 <= covered.mean() <= 0.97
    # without bias
    assert abs(estimates.mean() - np.trace(matrix)) < 4 * estimates.std() / np.sqrt(trials)


def test_what_is_drawn_together_changes_nothing() -> None:
    matrix = matrix_of(np.arange(20.0), 1)[None]
    found = lanczos(product_of(matrix), np.ones((1, 20)) + np.arange(20), steps=4, tolerance=1e-9)
    each = [
        traces(product_of(matrix), found, [np.random.default_rng(5)], probes=12, at_once=at_once)
        for at_once in (1, 5, 12)
    ]
    for estimate, error in each[1:]:
        np.testing.assert_allclose([estimate, error], each[0], rtol=1e-12)


@pytest.mark.parametrize("probes", [9, 16, 33, 100, 5_000])
def test_the_factor_is_students_t(probes: int) -> None:
    assert interval_factor(probes) == pytest.approx(stats.t.ppf(0.975, probes - 1), rel=2e-5)


def test_what_is_not_finite_has_no_figures() -> None:
    matrices = np.stack([np.full((5, 5), np.nan), np.diag(np.arange(5.0))])
    found = lanczos(product_of(matrices), np.ones((2, 5)), steps=5, tolerance=1e-6)
    assert np.isnan(found.values[0]) and found.values[1] == pytest.approx(4)

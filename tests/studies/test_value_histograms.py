"""The histogram of leading bits against numpy's on the values themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ckptzoo.format.header import numpy_dtype
from ckptzoo.studies.shared.value_histograms import ValueHistogram
from tests.support.effort import examples

VALUES = arrays(np.float32, st.integers(1, 300), elements=st.floats(-1e6, 1e6, width=32))


def counted(*pieces: np.ndarray) -> ValueHistogram:
    made = ValueHistogram()
    for piece in pieces:
        made.add(piece)
    return made


@settings(max_examples=examples(50), deadline=None)
@given(VALUES)
def test_moments_are_those_of_the_values(values: np.ndarray) -> None:
    made = counted(values)
    exact = values.astype(np.float64)
    scale = np.abs(exact).max()
    assert made.total == len(values)
    assert made.mean == pytest.approx(exact.mean(), rel=1e-12, abs=1e-12 * scale)
    assert made.sd == pytest.approx(exact.std(), rel=1e-6, abs=1e-6 * scale)


@settings(max_examples=examples(50), deadline=None)
@given(VALUES, st.floats(0, 1))
def test_quantile_lies_between_order_statistics(values: np.ndarray, q: float) -> None:
    ordered = np.sort(values.astype(np.float64))
    place = q * len(values)
    low, high = ordered[max(0, int(np.ceil(place)) - 1)], ordered[min(len(values) - 1, int(place))]
    found = counted(values).quantile(q)
    slack = max(abs(low), abs(high), 1e-38) / 256
    assert min(low, high) - slack <= found <= max(low, high) + slack


@settings(max_examples=examples(50), deadline=None)
@given(VALUES, st.integers(1, 299))
def test_pieces_count_as_the_whole(values: np.ndarray, cut: int) -> None:
    whole, parts = counted(values), counted(values[:cut], values[cut:])
    edges = np.linspace(-1e6, 1e6, 40)
    np.testing.assert_array_equal(whole.density(edges), parts.density(edges))


def test_density_between_bin_edges_is_exact() -> None:
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    edges = np.array([-4, -2, -1, -0.5, -0.25, 0, 0.125, 0.75, 1.5, 3])
    expected = np.histogram(values, edges)[0] / len(values) / np.diff(edges)
    np.testing.assert_allclose(counted(values).density(edges), expected, rtol=1e-12)


def test_any_range_at_once() -> None:
    values = np.array([1e-30, -1e-30, 1.0, -3e30], np.float32)
    density = counted(values).density(np.array([-1e31, -1.0, -1e-20, 0.0, 1e-20, 2.0]))
    np.testing.assert_allclose(density * np.diff([-1e31, -1.0, -1e-20, 0.0, 1e-20, 2.0]) * 4, [1, 0, 1, 1, 1])


def test_half_precisions_and_float64_are_counted_as_float32() -> None:
    for dtype in ("float16", "bfloat16", "float64"):
        made = counted(np.array([[0.5, -2.0], [1.0, 4.0]]).astype(numpy_dtype(dtype)))
        assert (made.total, made.mean) == (4, 0.875)


def test_what_is_not_finite_is_left_out() -> None:
    made = counted(np.array([1.0, np.nan, np.inf, -np.inf, 1e300, 3.0]))
    assert (made.total, made.mean, made.sd) == (2, 2.0, 1.0)


def test_quantiles_stay_within_the_values() -> None:
    made = counted(np.full(7, 1.0009, np.float32))
    assert made.quantile(0.0) == made.quantile(1.0) == float(np.float32(1.0009))


def test_nothing_counted_has_no_mean() -> None:
    assert np.isnan(ValueHistogram().mean) and np.isnan(ValueHistogram().sd)

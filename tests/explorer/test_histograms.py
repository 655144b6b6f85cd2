"""Grey bars are numpy's histograms, whatever the values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ckptzoo.explorer.columns import BINS, histogram

ANY = st.one_of(
    st.floats(),
    st.integers(-5, 5).map(float),
    st.sampled_from([1e308, -1e308, 5e-324, 0.0, -0.0, 1e-300, 0.1]),
)


@given(arrays.arrays(np.float64, st.integers(0, 200), elements=ANY), st.sampled_from(["linear", "log"]), st.data())
def test_counts_are_those_of_numpy_and_every_row_is_counted_once(values, scale, data):
    is_null = data.draw(arrays.arrays(bool, len(values)))
    found = histogram(values, is_null, scale)
    finite = values[~is_null & np.isfinite(values)]
    if len(found.edges):
        assert np.isfinite(found.edges).all() and (np.diff(found.edges) > 0).all()
        np.testing.assert_array_equal(found.counts, np.histogram(finite, found.edges)[0])
    else:
        near = np.abs(finite) < 1e300
        assert not (near & (finite > 1e-300)).any() if scale == "log" else not near.any()
    assert len(found.counts) <= BINS
    assert found.counts.sum() + found.missing + found.nan + found.infinite + found.beyond == len(values)


def test_all_values_are_in_the_picture_unless_a_few_are_far_away():
    rng = np.random.default_rng(0)
    near = rng.normal(size=1000)
    no_nulls = np.zeros(1000, bool)
    assert histogram(near, no_nulls).beyond == 0
    assert histogram(10.0**near, no_nulls, "log").beyond == 0
    far = np.append(near[:-1], 1e6)
    found = histogram(far, no_nulls)
    assert 1 <= found.beyond <= 10 and found.edges[-1] < 10


@pytest.mark.parametrize("value", [0.0, 1.0, 0.875, -3e-7, 1e299])
def test_a_constant_has_one_bar_with_all(value):
    found = histogram(np.full(50, value), np.zeros(50, bool))
    assert found.counts.sum() == 50 and (found.counts > 0).sum() == 1


def test_small_whole_numbers_have_a_bar_each():
    found = histogram(np.array([0.0, 1.0, 1.0, 3.0]), np.zeros(4, bool))
    assert found.edges.tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5] and found.counts.tolist() == [1, 2, 0, 1]

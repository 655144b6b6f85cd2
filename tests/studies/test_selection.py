"""What studies take of a zoo: blocks of tensors, and evenly spaced items."""

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.studies.shared.selection import blocks, evenly, thinned
from tests.support.effort import examples


@given(st.lists(st.integers(0, 7), max_size=4), st.integers(1, 400))
@settings(max_examples=examples(200), deadline=None)
def test_blocks_are_the_whole_in_order(shape: list[int], limit: int) -> None:
    array = np.arange(prod(shape)).reshape(shape)
    parts = [array[block].ravel() for block in blocks(shape, limit)]
    np.testing.assert_array_equal(np.concatenate(parts), array.ravel())
    assert all(len(part) <= limit for part in parts)
    assert len(parts) <= max(1, 2 * array.size / limit + prod(shape[:1]) * prod(shape[1:2]) * prod(shape[2:3]))


@given(st.integers(1, 500), st.integers(1, 50))
def test_items_are_thinned_out_evenly_with_both_ends(number: int, limit: int) -> None:
    indices = evenly(number, limit)
    assert len(indices) == min(number, limit) and indices[0] == 0
    assert limit == 1 or indices[-1] == number - 1
    assert np.ptp(np.diff(indices)) <= 1 if len(indices) > 1 else True
    items, left_out = thinned(range(number), limit)
    assert items == indices.tolist() and left_out == number - len(items)

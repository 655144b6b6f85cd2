"""The compiled engine's draws and its vector type: the same numbers as in numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from builders import rng as draws
from builders.engines.compiled import lanes
from builders.engines.compiled import rng as compiled
from tests.support.effort import examples

CODES = st.integers(0, 2**64 - 1)
EDGES = np.array([-np.inf, -88.0, -87.5, np.nan, 0.0], np.float32)


@settings(deadline=None, max_examples=examples(150))
@given(
    key=CODES, epoch=st.integers(0, 2**20), count=st.integers(1, 3000) | st.integers(2**31 - 50, 2**31), data=st.data()
)
def test_a_step_draws_the_items_and_crops_of_builders_draws(
    key: int, epoch: int, count: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, count - 1))
    size = data.draw(st.integers(1, min(70, count - first)))
    pad, width = data.draw(st.integers(0, 40)), data.draw(st.integers(28, 200))
    rounds, items, corners = np.empty(compiled.ROUNDS, np.uint64), np.empty(size, np.int64), np.empty(size, np.int64)
    compiled.round_keys(np.uint64(key), epoch, rounds)
    compiled.items(first, count, compiled.side(count), rounds, items)
    compiled.corners(np.uint64(key), epoch, first, pad, width, corners)
    keys, positions = np.array([key], dtype=np.uint64), np.arange(first, first + size)
    assert np.array_equal(items, draws.order(keys, epoch, positions, count)[0])
    down, right = draws.crops(keys, epoch, positions, pad)
    assert np.array_equal(corners, (down * width + right)[0])


@njit
def exponentials(values: NDArray[np.float32], found: NDArray[np.float32]) -> None:
    for at in range(0, len(values), lanes.LANES):
        lanes.store(found, at, lanes.exponential(lanes.load(values, at)))


@njit
def chosen(value: NDArray[np.float32], best: NDArray[np.float32], found: NDArray[np.float32]) -> None:
    first, second = lanes.load(value, 0), lanes.load(best, 0)
    lanes.store(found, 0, lanes.greater(first, second, first, second))
    lanes.store(found, 16, lanes.where_positive(first, second))
    lanes.store(found, 32, first * second - (first + lanes.spread(best[3])))
    found[48] = lanes.total(first)


@njit
def gathered(
    pixels: NDArray[np.uint8], corners: NDArray[np.int64], at: int, width: int, found: NDArray[np.float32]
) -> None:
    four = lanes.crops(pixels, corners, at)
    lanes.store(found, 0, four[0])
    lanes.store(found, 16, four[1])
    lanes.store(found, 32, four[2])
    lanes.store(found, 48, four[3])
    lanes.store(found, 64, lanes.patch(pixels, at, width))


def test_exponentials_are_those_of_numpy() -> None:
    values = -np.geomspace(1e-8, 87, 2**16).astype(np.float32)
    found = np.empty_like(values)
    exponentials(values, found)
    exact = np.exp(values.astype(np.float64))
    assert (np.abs(found - exact) / np.spacing(exact.astype(np.float32))).max() < 2
    edges, found = np.resize(EDGES, 16), np.empty(16, np.float32)
    exponentials(edges, found)
    assert np.array_equal(found[:5], [0, 0, 0, np.nan, 1], equal_nan=True)


@pytest.mark.parametrize("seed", range(3))
def test_lanes_choose_and_add_as_float32_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, best = rng.normal(size=(2, 16)).astype(np.float32)
    value[[1, 5]], best[[2, 5]], value[7], best[8] = np.nan, np.nan, best[7], np.inf
    value[9:11] = 0, -np.inf
    found = np.empty(49, np.float32)
    chosen(value, best, found)
    assert np.array_equal(found[:16], np.where((value > best) | np.isnan(value), value, best), equal_nan=True)
    assert np.array_equal(found[16:32], np.where(value <= 0, np.float32(0), best), equal_nan=True)
    value[~np.isfinite(value)], best[~np.isfinite(best)] = 1, 2
    chosen(value, best, found)
    expected = value.astype(np.float64) * best - (value.astype(np.float64) + best[3])
    np.testing.assert_allclose(found[32:48], expected, rtol=0, atol=1e-6)
    pairs = value
    while len(pairs) > 1:
        pairs = pairs[: len(pairs) // 2] + pairs[len(pairs) // 2 :]
    assert found[48] == pairs[0]


def test_pixels_are_gathered_from_where_they_lie() -> None:
    rng = np.random.default_rng(0)
    pixels, width = rng.integers(0, 256, 4000, dtype=np.uint8), 31
    corners, at, found = rng.integers(0, 3000, 16), 517, np.empty(80, np.float32)
    gathered(pixels, corners, at, width, found)
    assert np.array_equal(found[:64].reshape(4, 16), pixels[corners + at + np.arange(4)[:, None]])
    rows = at + width * np.arange(4)[:, None] + np.arange(4)
    assert np.array_equal(found[64:].reshape(4, 4), pixels[rows])

"""Sets of points that are apart, and the neighbours of one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.symmetry.identity import neighbours
from ckptzoo.symmetry.identity.neighbours import Neighbours, apart, close_pairs
from tests.support.effort import examples


def close(points: np.ndarray, width: float) -> np.ndarray:
    """(N, N) whether two points are within the width in every coordinate, by looking at every pair."""
    return np.logical_and.reduce(np.abs(points[:, None] - points) <= width, axis=2)


clouds = st.builds(
    lambda seed, count, axes, grid: np.round(np.random.default_rng(seed).random((count, axes)) * grid) / grid,
    st.integers(0, 10**6), st.integers(0, 40), st.integers(1, 4), st.sampled_from([3, 8, 1000]),
)  # fmt: skip


@given(clouds, st.sampled_from([0.0, 0.01, 0.126, 0.5]))
@settings(max_examples=examples(150), deadline=None)
def test_neighbours_are_never_apart_and_every_set_could_not_be_cut(points: np.ndarray, width: float) -> None:
    sets = list(apart(points, width))
    owner = np.full(len(points), -1)
    for number, some in enumerate(sets):
        assert len(some) > 1 and (np.diff(some) > 0).all() and (owner[some] == -1).all()
        owner[some] = number
        gaps = np.diff(np.sort(points[some], axis=0), axis=0)
        assert (gaps <= width).all()
    pairs = close(points, width)
    np.fill_diagonal(pairs, False)
    one, two = np.nonzero(pairs)
    assert (owner[one] == owner[two]).all() and (owner[one] >= 0).all()


@given(clouds, st.sampled_from([0.0, 0.126, 0.5]), st.integers(0, 100))
@settings(max_examples=examples(100), deadline=None)
def test_the_neighbours_that_are_left(points: np.ndarray, width: float, seed: int) -> None:
    if not len(points):
        return
    left, pairs = Neighbours(points, width), close(points, width)
    free = np.ones(len(points), bool)
    for at in np.random.default_rng(seed).permutation(len(points)).tolist():
        assert left.take(at) and not left.take(at)
        free[at] = False
        assert left.near(at).tolist() == np.flatnonzero(pairs[at] & free).tolist()


@pytest.mark.parametrize("count", [20_000, 200_000])
def test_many_points_at_one_place_take_no_more_memory_than_they_have(count: int) -> None:
    points = np.repeat(np.random.default_rng(0).random((1, 16)), count, axis=0)
    (some,) = apart(points, 1e-9)
    assert len(some) == count
    left = Neighbours(points, 1e-9)
    left.take(0)
    assert len(left.near(0)) == count - 1


def all_close(
    first: np.ndarray, second: np.ndarray, distance: float, labels: tuple[np.ndarray, np.ndarray]
) -> set[tuple[int, int]]:
    """Pairs by looking at every one."""
    near = np.linalg.norm(first[:, None] - second, axis=2) < distance
    near &= labels[0][:, None] != labels[1]
    if second is first:
        near &= np.arange(len(first))[:, None] < np.arange(len(first))
    return {(int(row), int(other)) for row, other in zip(*np.nonzero(near), strict=True)}


@given(
    st.integers(0, 10**6),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([1, 2, 3, 5, 24]),
    st.sampled_from([0.0, 1e-300, 1e-6, 0.1, 0.7, 1e3]),
    st.sampled_from([2, 9, 10**6]),
    st.booleans(),
    st.sampled_from([1, 3, 256]),
)
@settings(max_examples=examples(150), deadline=None)
def test_close_pairs_are_those_of_all_pairs(
    seed: int, count: int, others: int, axes: int, distance: float, grid: int, same: bool, leaf: int
) -> None:
    """Points lie at one place, along a line or far apart, and some are not finite."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "LEAF", leaf)
        patch.setattr(neighbours, "PAIRS", 16 * leaf)
        patch.setattr(neighbours, "NUMBERS", 60)
        check_close_pairs(seed, (count, others), axes, distance, grid, same=same)


def check_close_pairs(seed: int, counts: tuple[int, int], axes: int, distance: float, grid: int, *, same: bool) -> None:
    count, others = counts
    rng = np.random.default_rng(seed)
    first, second = (np.round(rng.random((n, axes)) * grid) / grid for n in (count, others))
    for side in (first, second):
        side[: len(side) // 4] = side[:1] if len(side) else 0
        side[len(side) // 4 : len(side) // 2, 1:] = 0
        side[len(side) - len(side) // 8 :, 0] = rng.choice([np.nan, np.inf, 1e6])
    labels = rng.integers(0, 5, count), rng.integers(0, 5, others)
    if same:
        second, labels = first, (labels[0], labels[0])
    found = list(close_pairs(first, second, distance, labels))
    pairs = [pair for rows, places, _ in found for pair in zip(rows.tolist(), places.tolist(), strict=True)]
    with np.errstate(invalid="ignore"):
        assert len(pairs) == len(set(pairs)) and set(pairs) == all_close(first, second, distance, labels)
    for rows, places, distances in found:
        np.testing.assert_allclose(np.linalg.norm(first[rows] - second[places], axis=1), distances, atol=1e-12)

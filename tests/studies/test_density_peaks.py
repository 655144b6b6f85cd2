"""Peaks of planted densities in the plane."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.studies.density_peaks import FEW, GRID, Density, density
from tests.support.effort import examples


def clusters(places: list[tuple[float, float]], shares: list[int], sd: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(place, sd, (share, 2)) for place, share in zip(places, shares, strict=True)])


def places(found: Density) -> np.ndarray:
    return np.array([peak.place for peak in found.peaks])


def test_planted_peaks_are_found_with_their_shares() -> None:
    found = density(clusters([(0, 0), (4, 0), (0, 5)], [600, 300, 100], 0.5))
    np.testing.assert_allclose(places(found), [(0, 0), (4, 0), (0, 5)], atol=0.35)
    assert [peak.share for peak in found.peaks] == pytest.approx([0.6, 0.3, 0.1], abs=0.02)
    assert found.inside == 1


@pytest.mark.slow
def test_one_normal_is_one_hill() -> None:
    for seed in range(8):
        found = density(np.random.default_rng(seed).normal(0, 1, (2000, 2)))
        assert len(found.peaks) == 1 and found.peaks[0].share == pytest.approx(1)
        assert np.hypot(*found.peaks[0].place) < 0.8


def test_the_estimate_is_that_of_its_kernel() -> None:
    points = np.random.default_rng(3).normal(0, [1, 0.4], (300, 2))
    found = density(points)
    assert found.heights is not None
    (first, second), step = found.widths, (found.high - found.low) / GRID
    inside = points[((points >= found.low) & (points <= found.high)).all(axis=1)]
    assert found.widths == pytest.approx(0.5 * inside.std(axis=0) * len(inside) ** (-1 / 6))
    assert found.inside == len(inside) / 300
    gaps = found.centres[:, None] - inside.T[:, None]
    one, two = (np.exp(-0.5 * (gap / width) ** 2) for gap, width in zip(gaps, found.widths, strict=True))
    expected = one @ two.T / (2 * np.pi * first * second * len(inside))
    np.testing.assert_allclose(found.heights, expected, atol=0.05 * expected.max())
    assert found.heights.sum() * step**2 == pytest.approx(1)


def test_levels_hold_their_shares() -> None:
    found = density(np.random.default_rng(4).normal(0, 1, (5000, 2)))
    assert found.heights is not None
    for share, level in zip((0.9, 0.5), found.levels((0.5, 0.9)), strict=True):
        held = found.heights[found.heights >= level].sum() / found.heights.sum()
        assert held == pytest.approx(share, abs=0.01)
        area = (found.heights >= level).sum() * ((found.high - found.low) / GRID) ** 2
        assert area == pytest.approx(-2 * np.pi * np.log(1 - share), rel=0.1), "of a standard normal's disc"


def test_far_points_do_not_spread_the_grid() -> None:
    points = clusters([(-2, 2), (2, -2)], [500, 500], 0.3)
    points[::50] *= 1e4
    found = density(points)
    assert found.high - found.low < 20 and found.inside == 0.98
    assert len(found.peaks) == 2


def test_too_little_has_no_peaks() -> None:
    for points in (np.zeros((200, 2)), np.ones((1, 2)), np.random.default_rng(0).normal(size=(FEW - 1, 2))):
        found = density(points)
        assert found.heights is None and found.peaks == () and found.levels((0.5,)) == []
        assert found.low < points.min() <= points.max() < found.high


@pytest.mark.slow
@settings(max_examples=examples(8, 3), deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(0.1, 10))
def test_shifts_and_scales_move_the_peaks_along(seed: int, shift: float, scale: float) -> None:
    points = clusters([(0, 0), (3, 1)], [200, 100], 0.4, seed)
    one, two = density(points), density(shift + scale * points)
    assert len(one.peaks) == len(two.peaks)
    step = scale * (one.high - one.low) / GRID
    np.testing.assert_allclose(places(two), shift + scale * places(one), atol=1.5 * step)
    assert [peak.share for peak in two.peaks] == pytest.approx([peak.share for peak in one.peaks], abs=0.03)


def test_exchanging_the_axes_exchanges_the_places() -> None:
    points = clusters([(0, 0), (3, 1)], [200, 100], 0.4)
    np.testing.assert_allclose(places(density(points[:, ::-1])), places(density(points))[:, ::-1], atol=1e-9)

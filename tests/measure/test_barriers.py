"""Barriers of known losses, and what is refused."""

import numpy as np
import pytest

from ckptzoo.errors import ZooError
from ckptzoo.measure.barriers import barriers

POINTS = np.linspace(0, 1, 11)


def test_a_double_well_has_the_barrier_1() -> None:
    weights = 2 * POINTS - 1
    found = barriers(np.stack([(weights**2 - 1) ** 2, 3 * (weights**2 - 1) ** 2 + 5 * weights]), POINTS)
    np.testing.assert_allclose(found.height, [1, 3])
    np.testing.assert_allclose(found.middle, [1, 3])
    np.testing.assert_array_equal(found.at, 0.5)


def test_a_convex_loss_has_none() -> None:
    weights = np.linspace(-1, 2, 11)
    found = barriers(np.stack([weights**2, np.exp(weights), 4 * weights]), POINTS)
    np.testing.assert_allclose(found.height, 0, atol=1e-15)
    assert (found.middle[:2] < 0).all()


def test_the_place_of_the_highest_rise() -> None:
    losses = np.zeros(5)
    losses[3] = 2.0
    found = barriers(losses, [0, 0.1, 0.2, 0.9, 1])
    assert (found.height, found.at) == (2, 0.9) and np.isnan(found.middle)


def test_losses_that_are_not_finite() -> None:
    losses = np.zeros((4, 11))
    losses[0, 4], losses[1, 5], losses[2, 0], losses[3, 10] = np.inf, np.nan, np.inf, np.nan
    found = barriers(losses, POINTS)
    assert found.height[0] == np.inf and found.at[0] == 0.4
    assert np.isnan(found.height[1:]).all() and np.isnan(found.at[1:]).all()


@pytest.mark.parametrize("points", [[0.0, 0.5], [0.1, 1.0], [0.0, 0.6, 0.5, 1.0], [[0.0, 1.0]], [0.0]])
def test_points_that_do_not_rise_from_0_to_1(points: list[float]) -> None:
    with pytest.raises(ZooError, match="points: expected numbers that rise from 0 to 1"):
        barriers(np.zeros(np.shape(points)), points)


def test_losses_of_another_number_of_points() -> None:
    with pytest.raises(ZooError, match=r"losses: expected 11 a line, got \(2, 10\)"):
        barriers(np.zeros((2, 10)), POINTS)

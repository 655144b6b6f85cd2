"""Distances of Gaussians against integrals and known answers."""

import numpy as np
import pytest
from scipy.stats import norm

from ckptzoo.errors import ZooError
from ckptzoo.measure.gaussians import divergence, joined, signal_to_noise, wasserstein


def test_wasserstein_is_the_distance_of_sorted_samples() -> None:
    """In one dimension the best coupling sorts: the root mean square difference of quantiles."""
    levels = (np.arange(400_000) + 0.5) / 400_000
    quantiles = norm.ppf(levels)
    for mean, std, other_mean, other_std in ((0.0, 1.0, 3.0, 2.0), (-0.4, 0.3, 0.2, 1.7)):
        gaps = (mean + std * quantiles) - (other_mean + other_std * quantiles)
        expected = np.sqrt(np.mean(gaps**2))
        np.testing.assert_allclose(wasserstein([mean], [std], [other_mean], [other_std]), expected, rtol=1e-4)
    np.testing.assert_allclose(wasserstein([0.0], [1.0], [3.0], [2.0]) ** 2, 10, rtol=1e-15)


def test_divergence_is_the_integral() -> None:
    x = np.linspace(-30, 30, 200_001)

    def log_density(mean: float, std: float) -> np.ndarray:
        return -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)

    total = 0.0
    rows = ((0.3, 1.1, -0.7, 2.3), (1.2, 0.4, 1.0, 0.9), (0.0, 1.0, 0.0, 1.0))
    for mean, std, other_mean, other_std in rows:
        one, other = log_density(mean, std), log_density(other_mean, other_std)
        expected = float(np.trapezoid(np.exp(one) * (one - other), x))
        np.testing.assert_allclose(
            divergence([mean], [std], [other_mean], [other_std]), expected, rtol=1e-8, atol=1e-12
        )
        total += expected
    columns = np.array(rows).T
    np.testing.assert_allclose(divergence(*columns), total, rtol=1e-8)
    assert divergence(*np.broadcast_arrays(columns[0], columns[1], np.zeros((5, 3)), np.ones((5, 3)))).shape == (5,)


def test_ratios_and_joined_tensors() -> None:
    weights = {"a": np.array([[[1.0, -2.0]], [[0.0, 4.0]]]), "b": np.ones((2, 1))}
    weights |= {f"{name}_std": np.full_like(array, 0.5) for name, array in weights.items()}
    mean, std = joined(weights)
    np.testing.assert_array_equal(mean, [[1, -2, 1], [0, 4, 1]])
    np.testing.assert_array_equal(signal_to_noise(mean, std), [[2, 4, 2], [0, 8, 2]])


@pytest.mark.parametrize("std", [0.0, -1.0, np.nan, np.inf])
def test_what_is_no_deviation(std: float) -> None:
    for call in (wasserstein, divergence):
        for deviations in (([1.0, std], [1.0, 1.0]), ([1.0, 1.0], [std, 1.0])):
            with pytest.raises(ZooError, match="deviations: expected finite numbers above 0, got"):
                call([0.0, 0.0], deviations[0], [0.0, 0.0], deviations[1])
    with pytest.raises(ZooError, match="deviations"):
        signal_to_noise([0.0], [std])
    with pytest.raises(ZooError, match=r"deviations of 'a': expected a tensor 'a_std', got none"):
        joined({"a": np.ones((1, 2))})

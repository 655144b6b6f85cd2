"""The least cost of a pair of channels over all scales, against all roots of the quartic and against a grid."""

import numpy as np
import pytest

from ckptzoo.symmetry.alignment.scale_costs import least_costs


def cost(s: np.ndarray, p: float, u: float, q: float, v: float) -> np.ndarray:
    return p * s**2 - 2 * u * s + q / s**2 - 2 * v / s


def random_coefficients(count: int, seed: int, spread: float) -> np.ndarray:
    """p, u, q, v with |u| and |v| up to more than norms of equal size allow."""
    rng = np.random.default_rng(seed)
    p, q = np.exp(spread * rng.standard_normal((2, count)))
    u, v = rng.uniform(-4, 4, (2, count)) * np.sqrt([p, q])
    return np.stack([p, u, q, v], 1)


def test_known_answer() -> None:
    assert [float(value) for value in least_costs(1, 1, 1, 1)] == [1, -2]


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_the_least_of_all_positive_roots(spread: float) -> None:
    coefficients = random_coefficients(2000, 0, spread)
    scales, costs = least_costs(*coefficients.T)
    several = 0
    for (p, u, q, v), scale, found in zip(coefficients, scales, costs, strict=True):
        unit = (q / p) ** 0.25  # without which np.roots is inaccurate
        roots = np.roots([p * unit**4, -u * unit**3, 0, v * unit, -q]) * unit
        real = roots.real[(abs(roots.imag) < 1e-6 * abs(roots)) & (roots.real > 0)]
        several += len(real) == 3
        size = p * scale**2 + q / scale**2 + 2 * abs(u) * scale + 2 * abs(v) / scale
        assert found <= cost(real, p, u, q, v).min() + 1e-10 * size
        assert abs(found - cost(scale, p, u, q, v)) <= 1e-12 * size
    assert several > 20


def test_no_scale_of_a_fine_grid_is_better() -> None:
    for p, u, q, v in random_coefficients(300, 1, 1.0):
        scale, found = least_costs(p, u, q, v)
        grid = np.geomspace(float(scale) / 1e4, float(scale) * 1e4, 20_001)
        assert found <= cost(grid, p, u, q, v).min() + 1e-12 * (p * scale**2 + q / scale**2)


def test_double_roots_and_shapes() -> None:
    """(t - 1)^3 (t + 1) = t^4 - 2 t^3 + 2 t - 1: a triple root, where Newton's method is slowest."""
    scale, found = least_costs(np.ones((3, 1)), 2.0, np.ones(4), 2.0)
    assert scale.shape == found.shape == (3, 4)
    np.testing.assert_allclose(scale, 1, atol=1e-4)
    np.testing.assert_allclose(found, 2 - 8, rtol=1e-12)

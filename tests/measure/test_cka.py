"""Debiased linear CKA: against the estimate from whole kernels, and what leaves it as it is."""

import numpy as np
import pytest

from ckptzoo.errors import ZooError
from ckptzoo.measure import linear_cka

RNG = np.random.default_rng(0)


def by_kernels(x: np.ndarray, y: np.ndarray) -> float:
    """Song et al. 2012, equation 5, from kernels (N, N) without their diagonals."""

    def hsic(one: np.ndarray, other: np.ndarray) -> float:
        count = len(one)
        k, m = one @ one.T, other @ other.T
        np.fill_diagonal(k, 0)
        np.fill_diagonal(m, 0)
        sums = k.sum() * m.sum() / ((count - 1) * (count - 2)) - 2 / (count - 2) * (k.sum(0) @ m.sum(0))
        return (np.trace(k @ m) + sums) / (count * (count - 3))

    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


@pytest.mark.parametrize(("count", "one", "other"), [(10, 3, 4), (50, 7, 2), (6, 20, 30), (200, 1, 5)])
def test_it_is_that_of_whole_kernels(count: int, one: int, other: int) -> None:
    x = RNG.standard_normal((count, one)) + 3
    y = np.concatenate([x[:, :1], RNG.standard_normal((count, other))], 1)
    assert linear_cka(x, y) == pytest.approx(by_kernels(x, y), rel=1e-9)


def test_permutations_rotations_and_one_scale_change_nothing() -> None:
    x, y = RNG.standard_normal((40, 6)), RNG.standard_normal((40, 5))
    rotation = np.linalg.qr(RNG.standard_normal((6, 6)))[0]
    expected = linear_cka(x, y)
    for other in (x[:, RNG.permutation(6)], x @ rotation, -3 * x, x + 7):
        assert linear_cka(other, y) == pytest.approx(expected, rel=1e-9)
        assert linear_cka(x, other) == pytest.approx(1)
    assert linear_cka(x * np.arange(1, 7), y) != pytest.approx(expected, rel=1e-3)


def test_independent_features_have_none_however_many() -> None:
    values = [linear_cka(*RNG.standard_normal((2, 30, 100))) for _ in range(200)]
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(200)
    assert np.isnan(linear_cka(np.ones((9, 2)), RNG.standard_normal((9, 2))))


@pytest.mark.parametrize("shapes", [((3, 2), (3, 2)), ((9,), (9, 2)), ((9, 2), (8, 2)), ((0, 2), (0, 2))])
def test_other_shapes_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ZooError, match="linear_cka: features: expected"):
        linear_cka(*(np.zeros(shape) for shape in shapes))

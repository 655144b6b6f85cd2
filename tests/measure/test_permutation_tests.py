"""The permutation test of independence: its size, its p-values against all permutations, and what it refuses."""

import itertools

import numpy as np
import pytest
from scipy.stats import kstest

from ckptzoo.errors import ZooError
from ckptzoo.measure.permutation_tests import holm, independence, independence_of_all

SIZES = (3, 5)


def orders_of(count: int, rng: np.random.Generator, sizes: tuple[int, ...] = SIZES) -> list[np.ndarray]:
    return [rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1) for n in sizes]


def every_order(sizes: tuple[int, ...] = SIZES) -> list[np.ndarray]:
    """Each element of the product of the groups once."""
    elements = list(itertools.product(*(itertools.permutations(range(n)) for n in sizes)))
    return [np.array([element[at] for element in elements]) for at in range(len(sizes))]


@pytest.mark.parametrize("drawn", [50, 1000, None])
def test_p_values_of_independent_pairs_are_uniform(drawn: int | None) -> None:
    """Skewed and unequal similarities, and permutations that all pairs share, of which some are drawn twice."""
    rng = np.random.default_rng(1)
    similarities = [rng.exponential(size=(2000, n, n)) ** 2 * rng.exponential(size=(1, n, 1)) for n in SIZES]
    orders = every_order() if drawn is None else orders_of(drawn, rng)
    p = independence(similarities, orders, seed=2).p
    count = len(orders[0])
    # p-values are multiples of 1 / T, so that uniform ones less a share of that are uniform on 0 to 1
    assert kstest(p - rng.uniform(size=2000) / count, "uniform").pvalue > 1e-3
    for level in (0.02, 0.1, 0.5):
        assert (p <= level).mean() < level + 4 * np.sqrt(level / 2000)


def test_with_all_permutations_p_is_the_rank_among_them() -> None:
    rng = np.random.default_rng(3)
    similarities, orders = [rng.standard_normal((40, n, n)) for n in SIZES], every_order()
    found = independence(similarities, orders, seed=5)
    for pair in range(40):
        sums = sum(
            array[pair][order, np.arange(order.shape[1])].sum(1)
            for array, order in zip(similarities, orders, strict=True)
        )
        own = sum(np.trace(array[pair]) for array in similarities)
        assert found.p[pair] == (sums >= own - 1e-9).mean()
        assert found.statistic[pair] == pytest.approx(own)
        assert found.excess[pair] == pytest.approx((own - sums.mean()) / sums.std())
    again = independence(similarities, orders, seed=6)
    np.testing.assert_array_equal(again.p, found.p)


def test_equal_neurons_count_as_equal_whatever_is_added_up_first() -> None:
    rng = np.random.default_rng(4)
    row = rng.standard_normal((6, 1, 5))
    found = independence([np.repeat(row, 5, axis=1)], orders_of(200, rng, (5,)))
    np.testing.assert_array_equal(found.p, 1.0)
    np.testing.assert_array_equal(found.excess, 0.0)


def test_many_permutations_are_tried_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    similarities, orders = [rng.standard_normal((7, n, n)) for n in SIZES], orders_of(30, rng)
    whole = independence(similarities, orders)
    monkeypatch.setattr("ckptzoo.measure.permutation_tests._BYTES", 1)
    np.testing.assert_array_equal(independence(similarities, orders).p, whole.p)
    assert len(independence([array[:0] for array in similarities], orders).p) == 0


def test_holm_adjusts() -> None:
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.03, 0.005])), [0.06, 0.03, 0.06, 0.02])
    assert len(holm(np.empty(0))) == 0


@pytest.mark.parametrize(
    ("similarities", "orders"),
    [
        ([], []),
        ([(2, 3, 3)], []),
        ([(2, 3, 4)], [(9, 3)]),
        ([(2, 3, 3)], [(9, 4)]),
        ([(2, 3, 3), (1, 4, 4)], [(9, 3), (9, 4)]),
        ([(2, 3, 3), (2, 4, 4)], [(9, 3), (8, 4)]),
        ([(2, 3, 3)], [(0, 3)]),
        ([(3, 3)], [(9, 3)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(similarities: list, orders: list) -> None:
    with pytest.raises(ZooError, match="independence: shapes: expected"):
        independence([np.zeros(shape) for shape in similarities], [np.zeros(shape, np.int64) for shape in orders])


def test_similarities_that_are_not_finite_count_as_none() -> None:
    """One of them made every p-value 0."""
    rng = np.random.default_rng(7)
    similarities, orders = [rng.standard_normal((3, n, n)) for n in SIZES], orders_of(50, rng)
    for bad in (np.nan, np.inf, -np.inf):
        spoilt, zeros = ([array.copy() for array in similarities] for _ in range(2))
        spoilt[1][0, 2], zeros[1][0, 2] = bad, 0
        found, expected = independence(spoilt, orders), independence(zeros, orders)
        np.testing.assert_array_equal(found.p, expected.p)
        assert found.p.min() > 0 and np.isfinite(found.excess).all()
        assert independence_of_all(spoilt, orders, seed=1) == independence_of_all(zeros, orders, seed=1)
    assert independence([np.full((2, 3, 3), np.nan)], orders_of(50, rng, (3,))).p.tolist() == [1, 1]

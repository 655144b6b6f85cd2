"""Orthogonal Procrustes problems: nothing drawn is better, planted matrices and pairs are found, all pairs at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.matrices.balance import balance
from ckptzoo.symmetry.matrices.procrustes import pair_costs, procrustes
from tests.support.effort import examples
from tests.symmetry.matrices.disguises import invertible, orthogonal

DOUBLE = float(np.finfo(np.float64).eps)
laws = settings(max_examples=examples(100), deadline=None)


def squared(A1: np.ndarray, B1: np.ndarray, A2: np.ndarray, B2: np.ndarray) -> float:
    return float(((A1 - A2) ** 2).sum() + ((B1 - B2) ** 2).sum())


@laws
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9))
def test_no_orthogonal_matrix_is_closer(seed: int, k: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    A1, A2, B1, B2 = (rng.standard_normal((k, width)) for width in (m, m, n, n))
    R, cost = procrustes(A1, B1, A2, B2)
    np.testing.assert_allclose(R @ R.T, np.eye(k), atol=1e-14 * k)
    least = squared(A1, B1, R @ A2, R @ B2)
    norms = sum((side**2).sum() for side in (A1, B1, A2, B2))
    np.testing.assert_allclose(least, norms + 2 * cost, rtol=1e-12, atol=1e-12 * norms)
    for near in (0, 1):
        for _ in range(5):
            skew = rng.standard_normal((k, k))
            other = np.linalg.qr(R + 0.1 * skew @ R)[0] if near else orthogonal(rng, k)
            assert squared(A1, B1, other @ A2, other @ B2) >= least - 1e-12 * norms


@pytest.mark.parametrize("determinant", [1, -1])
def test_rotations_and_reflections_are_found(determinant: int) -> None:
    rng = np.random.default_rng(0)
    A2, B2, R = rng.standard_normal((5, 8)), rng.standard_normal((5, 7)), orthogonal(rng, 5)
    R[0] *= determinant * np.sign(np.linalg.det(R))
    found, cost = procrustes(R @ A2, R @ B2, A2, B2)
    np.testing.assert_allclose(found, R, atol=1e-13)
    np.testing.assert_allclose(-cost, (A2**2).sum() + (B2**2).sum(), rtol=1e-13)


def test_disguised_heads_are_found_among_all() -> None:
    """Balanced, then assigned by their costs: the order of heads that were disguised, with noise."""
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(1)
    h, k, d = 12, 8, 40
    A, B, order = rng.standard_normal((h, k, d)), rng.standard_normal((h, k, d)), rng.permutation(h)
    H = np.stack([invertible(rng, k, 10) for _ in range(h)])
    noisy = [side * (1 + 0.1 * rng.standard_normal(side.shape)) for side in (A, B)]
    moved = [H @ noisy[0][order], np.swapaxes(np.linalg.inv(H), -1, -2) @ noisy[1][order]]
    forms = []
    for one, two in ((A, B), moved):
        found = balance(one, two, DOUBLE)
        forms.append((found.left @ one, found.right @ two))
    costs = pair_costs(*forms[0], *forms[1])
    rows, columns = linear_sum_assignment(costs)
    np.testing.assert_array_equal(order[columns], rows)
    R, cost = procrustes(*forms[0], forms[1][0][columns], forms[1][1][columns])
    np.testing.assert_allclose(cost, costs[rows, columns], rtol=1e-12)
    (A1, B1), (A2, B2) = forms[0], (forms[1][0][columns], forms[1][1][columns])
    near, far = (squared(A1, B1, turn @ A2, turn @ B2) / squared(A1, B1, 0 * A2, 0 * B2) for turn in (R, np.eye(k)))
    assert near < 0.02 < far


def test_all_pairs_are_single_ones() -> None:
    rng = np.random.default_rng(2)
    A1, B1, A2, B2 = (rng.standard_normal((heads, 4, width)) for heads, width in ((3, 9), (3, 6), (5, 9), (5, 6)))
    costs = pair_costs(A1, B1, A2, B2)
    assert costs.shape == (3, 5)
    _, expected = procrustes(A1[:, None], B1[:, None], A2, B2)
    np.testing.assert_allclose(costs, expected, rtol=1e-13)
    assert procrustes(np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 2)), np.ones((1, 2)))[1] == 0


def test_refusals() -> None:
    A, B = np.ones((2, 3, 4)), np.ones((2, 3, 5))
    for call in (procrustes, pair_costs):
        with pytest.raises(SymmetryError, match="shapes of A1, B1, A2 and B2"):
            call(A, B, B, A)
        with pytest.raises(SymmetryError, match="shapes of A1, B1, A2 and B2"):
            call(A, B[:1], A, B)
        with pytest.raises(SymmetryError, match="B2: expected finite"):
            call(A, B, A, np.nan * B)
    with pytest.raises(SymmetryError, match="shapes of A1 and A2"):
        pair_costs(A[0], B[0], A[0], B[0])

"""Orthogonal Procrustes problems: nothing drawn is better, planted matrices and pairs are found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.kinds.linear import balance
from ckptzoo.symmetry.kinds.orthogonal import greatest_products, procrustes
from tests.support.effort import examples
from tests.symmetry.matrices.disguises import invertible, keeping_ones, orthogonal

DOUBLE = float(np.finfo(np.float64).eps)
laws = settings(max_examples=examples(100), deadline=None)


def squared(A1: np.ndarray, B1: np.ndarray, A2: np.ndarray, B2: np.ndarray) -> float:
    return float(((A1 - A2) ** 2).sum() + ((B1 - B2) ** 2).sum())


@laws
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_no_orthogonal_matrix_is_closer(seed: int, k: int, m: int, n: int, mean: bool) -> None:
    rng = np.random.default_rng(seed)
    A1, A2, B1, B2 = (rng.standard_normal((k, width)) for width in (m, m, n, n))
    X = A1 @ A2.T + B1 @ B2.T
    R, value = procrustes(X, mean=mean), greatest_products(X, mean=mean)
    np.testing.assert_allclose(R @ R.T, np.eye(k), atol=1e-14 * k)
    if mean:
        np.testing.assert_allclose(R.sum(axis=1), 1, atol=1e-14 * k)
    least = squared(A1, B1, R @ A2, R @ B2)
    norms = sum((side**2).sum() for side in (A1, B1, A2, B2))
    np.testing.assert_allclose(least, norms - 2 * value, rtol=1e-12, atol=1e-12 * norms)
    for near in (0, 1):
        for _ in range(5):
            if mean:
                other = keeping_ones(rng, k)
            else:
                other = np.linalg.qr(R + 0.1 * rng.standard_normal((k, k)) @ R)[0] if near else orthogonal(rng, k)
            assert squared(A1, B1, other @ A2, other @ B2) >= least - 1e-12 * norms


@pytest.mark.parametrize("determinant", [1, -1])
def test_rotations_and_reflections_are_found(determinant: int) -> None:
    rng = np.random.default_rng(0)
    A, R = rng.standard_normal((5, 15)), orthogonal(rng, 5)
    R[0] *= determinant * np.sign(np.linalg.det(R))
    np.testing.assert_allclose(procrustes(R @ A @ A.T), R, atol=1e-13)
    np.testing.assert_allclose(greatest_products(R @ A @ A.T), (A**2).sum(), rtol=1e-13)
    R = keeping_ones(rng, 5)
    np.testing.assert_allclose(procrustes(R @ A @ A.T, mean=True), R, atol=1e-13)
    np.testing.assert_allclose(greatest_products(R @ A @ A.T, mean=True), (A**2).sum(), rtol=1e-13)


def test_disguised_heads_are_found_among_all() -> None:
    """Balanced, then assigned by their greatest products: the order of heads that were disguised, with noise."""
    rng = np.random.default_rng(1)
    h, k, d = 12, 8, 40
    A, B, order = rng.standard_normal((h, k, d)), rng.standard_normal((h, k, d)), rng.permutation(h)
    H = np.stack([invertible(rng, k, 10) for _ in range(h)])
    noisy = [side * (1 + 0.1 * rng.standard_normal(side.shape)) for side in (A, B)]
    moved = [H @ noisy[0][order], np.swapaxes(np.linalg.inv(H), -1, -2) @ noisy[1][order]]
    forms = []
    for one, two in ((A, B), moved):
        found = balance(one, two, DOUBLE)
        forms.append(np.concatenate([found.left @ one, found.right @ two], axis=-1))
    X = forms[0][:, None] @ np.swapaxes(forms[1], -1, -2)
    rows, columns = linear_sum_assignment(greatest_products(X), maximize=True)
    np.testing.assert_array_equal(order[columns], rows)
    R = procrustes(X[rows, columns])
    near, far = (((forms[0] - turn @ forms[1][columns]) ** 2).sum() / (forms[0] ** 2).sum() for turn in (R, np.eye(k)))
    assert near < 0.02 < far


def test_refusals() -> None:
    for call in (procrustes, greatest_products):
        for X in (np.ones(3), np.ones((2, 3)), np.ones((0, 0))):
            with pytest.raises(SymmetryError, match=r"shape of X: expected \(\.\.\., k, k\)"):
                call(X)
        with pytest.raises(SymmetryError, match="X: expected finite"):
            call(np.full((2, 2), np.nan))

"""Bases of residual streams: one for all rotations, the ones kept, equal eigenvalues, signs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.kinds.orthogonal import StreamAxes, settle_signs, stream_axes
from tests.support.effort import examples
from tests.symmetry.matrices.disguises import keeping_ones, orthogonal

DOUBLE, SINGLE = (float(np.finfo(dtype).eps) for dtype in (np.float64, np.float32))
seeds = st.integers(0, 2**32 - 1)
laws = settings(max_examples=examples(150), deadline=None)
both = pytest.mark.parametrize("mean", [False, True])


def rotation(rng: np.random.Generator, d: int, mean: bool) -> np.ndarray:
    return keeping_ones(rng, d) if mean else orthogonal(rng, d)


def symmetric(rng: np.random.Generator, values: list[float], mean: bool) -> np.ndarray:
    """A random matrix with these eigenvalues; with ``mean`` these on the vectors orthogonal to the ones."""
    if not mean:
        Q = orthogonal(rng, len(values))
        return (Q * values) @ Q.T
    d = len(values) + 1
    basis = np.linalg.qr(np.column_stack([np.ones(d), rng.standard_normal((d, len(values)))]))[0][:, 1:]
    ones = np.outer(np.ones(d), rng.standard_normal(d))  # what is beside them does not matter
    return (basis * values) @ basis.T + ones + ones.T


def settled(
    M: np.ndarray, W: np.ndarray, mean: bool, second: np.ndarray | None = None
) -> tuple[np.ndarray, StreamAxes]:
    found = stream_axes(M, DOUBLE, mean=mean, second=second)
    Q, unresolved = settle_signs(found.matrix, W, DOUBLE, mean=mean)
    assert (unresolved == 0).all()
    return Q, found


def off_diagonal(M: np.ndarray, Q: np.ndarray, mean: bool) -> np.ndarray:
    """What is not diagonal in Q M Q^T, with ``mean`` in coordinates beside the ones."""
    turned = Q @ M @ Q.T
    if mean:
        d = len(M)
        reflection = np.eye(d) - 2 * np.outer(u := np.eye(d)[0] + 1 / np.sqrt(d), u) / (u @ u)
        turned = (reflection @ turned @ reflection)[1:, 1:]
    return turned - np.diag(np.diag(turned))


@both
@laws
@given(seed=seeds, d=st.integers(2, 12))
def test_one_basis_for_all_rotations(mean: bool, seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    values = list(np.cumprod(rng.uniform(0.6, 0.95, d - mean)))
    M, W = symmetric(rng, values, mean), rng.standard_normal((d, 7)) ** 3
    Q, found = settled(M, W, mean)
    np.testing.assert_allclose(found.values, values, rtol=0, atol=1e-13 * max(1, np.abs(M).max()))
    np.testing.assert_allclose(Q @ Q.T, np.eye(d), atol=1e-13)
    np.testing.assert_allclose(off_diagonal(M, Q, mean), 0, atol=1e-12 * max(1, np.abs(M).max()))
    assert not found.unresolved
    gaps = -np.diff(values) / values[0] if d - mean > 1 else np.ones(1)
    np.testing.assert_allclose(found.margin, gaps.min(), rtol=1e-10 * max(1, np.abs(M).max()) / gaps.min())
    R = rotation(rng, d, mean)
    turned, _ = settled(R @ M @ R.T, R @ W, mean)
    np.testing.assert_allclose(turned, Q @ R.T, atol=1e-13 * max(1, np.abs(M).max()) / found.margin)
    again, _ = settled(Q @ M @ Q.T, Q @ W, mean)
    np.testing.assert_allclose(again, np.eye(d), atol=1e-13 * max(1, np.abs(M).max()) / found.margin)
    if mean:
        for matrix in (Q, Q.T, turned, R):
            np.testing.assert_allclose(matrix @ np.ones(d), 1, atol=1e-13)


def test_rows_are_eigenvectors_by_descending_eigenvalue() -> None:
    rng = np.random.default_rng(0)
    W = rng.standard_normal((4, 9, 20))
    M = W @ np.swapaxes(W, -1, -2)
    found = stream_axes(M, DOUBLE, mean=False)
    np.testing.assert_allclose(found.matrix @ M, found.values[..., None] * found.matrix, atol=1e-12)
    np.testing.assert_allclose(found.values, np.linalg.svd(W)[1] ** 2, rtol=1e-12)
    for index in range(4):
        single = stream_axes(M[index], DOUBLE, mean=False)
        np.testing.assert_array_equal(single.matrix, found.matrix[index])
        signed, _ = settle_signs(found.matrix, W, DOUBLE, mean=False)
        np.testing.assert_array_equal(settle_signs(single.matrix, W[index], DOUBLE, mean=False)[0], signed[index])


@both
def test_equal_eigenvalues_and_zero(mean: bool) -> None:
    """A second matrix resolves them; without it, or where it has equal eigenvalues too, the report says so."""
    rng = np.random.default_rng(1)
    values = [4.0, 2, 2, 2, 1, 0, 0]
    d = len(values) + mean
    M, second, W = symmetric(rng, values, mean), symmetric(rng, list(range(7)), mean), rng.standard_normal((d, 9)) ** 3
    Q, found = settled(M, W, mean, second)
    assert not found.unresolved and found.margin < 1e-13
    for _ in range(3):
        R = rotation(rng, d, mean)
        turned, _ = settled(R @ M @ R.T, R @ W, mean, R @ second @ R.T)
        np.testing.assert_allclose(turned, Q @ R.T, atol=1e-11)
    np.testing.assert_allclose(off_diagonal(M, Q, mean), 0, atol=1e-12)
    for other in (None, M, np.eye(d), np.zeros((d, d))):
        open_axes = stream_axes(M, DOUBLE, mean=mean, second=other)
        assert open_axes.unresolved
        np.testing.assert_allclose(off_diagonal(M, open_axes.matrix, mean), 0, atol=1e-12)
    assert stream_axes(np.zeros((d, d)), DOUBLE, mean=mean).unresolved
    stack = stream_axes(np.stack([M, second]), DOUBLE, mean=mean)
    assert stack.unresolved.tolist() == [True, False]


@both
def test_storage_decides_what_is_equal(mean: bool) -> None:
    M = symmetric(np.random.default_rng(2), [1, 0.5 + 1e-7, 0.5, 0.25], mean)
    assert stream_axes(M, SINGLE, mean=mean).unresolved and not stream_axes(M, DOUBLE, mean=mean).unresolved


@both
def test_signs(mean: bool) -> None:
    """All choices of signs become one; rows without a sum of cubes keep theirs and are counted."""
    rng = np.random.default_rng(3)
    d = 6
    M, W = symmetric(rng, list(range(d - mean, 0, -1)), mean), rng.standard_normal((d, 8)) ** 3
    Q, found = settled(M, W, mean)
    reflected, unresolved = settle_signs(found.matrix, -W, DOUBLE, mean=mean)
    assert unresolved == 0
    kept = np.full((d, d), 2 / d) if mean else 0
    np.testing.assert_allclose(reflected, kept - Q, atol=1e-14)  # every eigenvector turned, the ones not
    odd = np.concatenate([W, -W], axis=1)
    for silent in (odd, np.zeros((d, 3)), np.ones((d, 3)) if mean else odd):
        same, unresolved = settle_signs(found.matrix, silent, DOUBLE, mean=mean)
        assert unresolved == d - mean
        np.testing.assert_allclose(same, found.matrix, atol=1e-15)
    tiny, _ = settle_signs(found.matrix, 1e-150 * W, DOUBLE, mean=mean)
    np.testing.assert_array_equal(tiny, Q)


def test_the_smallest_streams() -> None:
    for mean in (False, True):
        found = stream_axes(np.array([[3.0]]), DOUBLE, mean=mean)
        Q, unresolved = settle_signs(found.matrix, np.array([[-2.0]]), DOUBLE, mean=mean)
        np.testing.assert_allclose(Q, [[1 if mean else -np.sign(found.matrix[0, 0]) * found.matrix[0, 0]]])
        assert unresolved == 0 and found.margin == 1 and not found.unresolved
        assert found.values.shape == (1 - mean,)


def test_refusals() -> None:
    for wrong in (np.ones(3), np.ones((2, 3)), np.ones((0, 0))):
        with pytest.raises(SymmetryError, match="shape of M"):
            stream_axes(wrong, DOUBLE, mean=False)
    with pytest.raises(SymmetryError, match="shape of second"):
        stream_axes(np.eye(3), DOUBLE, mean=False, second=np.eye(2))
    with pytest.raises(SymmetryError, match="M: expected finite"):
        stream_axes(np.full((2, 2), np.nan), DOUBLE, mean=True)
    with pytest.raises(SymmetryError, match="W: expected finite"):
        settle_signs(np.eye(2), np.full((2, 2), np.inf), DOUBLE, mean=True)
    with pytest.raises(SymmetryError, match="shape of W"):
        settle_signs(np.eye(2), np.ones((3, 2)), DOUBLE, mean=True)

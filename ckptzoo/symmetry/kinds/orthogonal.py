r"""Orthogonal matrices, of all channels of a stream that readers normalise by its norm.

The root mean square of a stream does not change under an orthogonal matrix Q, so that what writes the stream may be
multiplied by Q and what reads it by ``Q^-T = Q`` (Ashkboos et al., arXiv 2401.15024). Where the mean is subtracted too,
as in LayerNorm, Q also keeps the vector of ones.

The matrix R that brings weights closest to others is that of Schönemann (Psychometrika 31, 1966). Two balanced pairs of
the same function differ by an orthogonal matrix at most: ``(A_1, B_1) = (R A_2, R B_2)``. For others, with
``X = A_1 A_2^T + B_1 B_2^T = U S V^T``,

.. math:: R = U V^T, \quad \min_R |A_1 - R A_2|^2 + |B_1 - R B_2|^2 = |A_1|^2 + |B_1|^2 + |A_2|^2 + |B_2|^2 - 2 |X|_*,

where the nuclear norm is the sum of S. Reflections are allowed. Matrices that keep the vector of ones too are
orthogonal on the vectors orthogonal to it, and the problem is that of X there.
"""

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import Group, Sym
from ckptzoo.symmetry.kinds.kind import Shared, Turn, refused
from ckptzoo.symmetry.kinds.matrix import Matrix, checked, matrix_shape, random_orthogonal

ORTHOGONAL = 1e-9
"""The largest difference of an entry of G G^T from the identity's."""


class Orthogonal(Matrix):
    """Orthogonal matrices (K, blocks, k, k); with ``mean`` they keep the vector of ones."""

    def __init__(self, *, mean: bool) -> None:
        self._mean = mean

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Draw uniform matrices."""
        blocks, k, _ = matrix_shape(group)
        found = random_orthogonal(rng, (K, blocks, k - self._mean, k - self._mean))
        return keeping_ones(found) if self._mean else found

    def check_matrices(self, what: str, value: np.ndarray) -> None:
        """Raise for matrices that are not orthogonal, or change the vector of ones."""
        off = float(np.abs(value @ value.swapaxes(-1, -2) - np.eye(value.shape[-1])).max(initial=0.0))
        if off > ORTHOGONAL:
            raise refused(what, "an orthogonal matrix", f"one with |G G^T - 1| of {off:.3g}")
        if self._mean and (off := float(np.abs(value.sum(axis=-1) - 1).max())) > ORTHOGONAL:
            raise refused(what, "a matrix that keeps the vector of ones", f"one that changes it by {off:.3g}")

    def dimensions(self, group: Group) -> int:
        """Return ``k (k - 1) / 2`` for each block, of the k directions beside the vector of ones where this stays."""
        blocks, k, _ = matrix_shape(group)
        return blocks * ((k - self._mean) * (k - self._mean - 1) // 2)

    def turn(self, group: Group) -> Turn:
        """Return the last turn for a stream, on whose basis all else depends."""
        return Turn.STREAM if isinstance(group.perm, Sym) else Turn.BLOCKS

    def undetermined(self, gains: np.ndarray, least: np.ndarray) -> np.ndarray:
        """Return the number of directions (...) in which gains (..., k, k) are at most ``least`` (..., 1)."""
        k = gains.shape[-1]
        values = np.linalg.svd(gains - gains.mean(axis=-1, keepdims=True) * self._mean, compute_uv=False)
        return k - self._mean - (values > least).sum(axis=-1)

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the matrix of a Procrustes problem for every block."""
        return procrustes(gains, mean=self._mean)

    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the nuclear norm of every block."""
        return greatest_products(gains, mean=self._mean)


def keeping_ones(inner: np.ndarray) -> np.ndarray:
    """Return orthogonal matrices (..., k, k) that keep the vector of ones, from (..., k - 1, k - 1) beside it."""
    k = inner.shape[-1] + 1
    basis = np.tril(np.ones((k, k)), -1)  # Helmert's: the first row is constant, the others are orthogonal to it
    basis[np.arange(1, k), np.arange(1, k)] = -np.arange(1.0, k)
    basis[0] = 1
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    whole = np.broadcast_to(np.eye(k), (*inner.shape[:-2], k, k)).copy()
    whole[..., 1:, 1:] = inner
    return basis.T @ whole @ basis


def procrustes(X: NDArray[np.float64], *, mean: bool = False) -> NDArray[np.float64]:
    """Return the orthogonal matrices R (..., k, k) float64 with the greatest ``<R, X>``, by singular values.

    X (..., k, k) float64 is the sum of products of the reference's rows with those that R acts on, ``A_1 A_2^T``; R is
    determined where X has full rank. With ``mean`` R keeps the vector of ones. Raises ``SymmetryError`` for matrices
    that are not square or not finite. tests/symmetry/matrices/test_procrustes.py compares R with rotations and
    reflections drawn at random.
    """
    _square("procrustes", X)
    if mean:
        whole = np.zeros(X.shape)
        whole[..., 0, 0], whole[..., 1:, 1:] = 1, procrustes(beside_ones(X))
        return on_both_sides(whole)
    U, _, V = np.linalg.svd(X)
    return U @ V


def greatest_products(X: NDArray[np.float64], *, mean: bool = False) -> NDArray[np.float64]:
    """Return the greatest ``<R, X>`` over orthogonal matrices R, the nuclear norm, (...) float64.

    This is the value of a pair in an assignment between balanced pairs. Parameters and errors are those of
    ``procrustes``. Only singular values are computed: 144 matrices of k = 64 take 0.1 s on one core.
    """
    _square("greatest_products", X)
    if mean:
        return X.sum(axis=(-1, -2)) / X.shape[-1] + greatest_products(beside_ones(X))
    return np.linalg.svd(X, compute_uv=False).sum(axis=-1)


def beside_ones(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coordinates (..., k - 1, k - 1) in a basis of the vectors orthogonal to the ones."""
    return np.ascontiguousarray(on_both_sides(X)[..., 1:, 1:])


def on_both_sides(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R X R for the R of ``reflected``."""
    return np.swapaxes(reflected(np.swapaxes(reflected(X), -1, -2)), -1, -2)


def _square(where: str, X: NDArray[np.float64]) -> None:
    if X.ndim < 2 or X.shape[-1] != X.shape[-2] or not X.shape[-1]:
        step = "Give sums of products of one block's rows with another's."
        raise SymmetryError(Problem(where, "shape of X", "(..., k, k)", str(X.shape), step))
    checked(where, X=X)


def reflected(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R X for X (..., d, c); the Householder reflection R takes the first unit vector to the ones over -sqrt(d).

    The other columns of R are an orthonormal basis of the vectors orthogonal to the ones.
    """
    d = X.shape[-2]
    u = np.full(d, 1 / np.sqrt(d))
    u[0] += 1
    return X - u[:, None] * ((2 / (u @ u)) * (u @ X))[..., None, :]

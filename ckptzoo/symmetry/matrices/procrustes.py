r"""Orthogonal Procrustes problems: the orthogonal matrix that brings weights closest to others.

Two balanced pairs of the same function differ by an orthogonal matrix R at most: ``(A_1, B_1) = (R A_2, R B_2)``. For
others the closest is that of Schönemann (Psychometrika 31, 1966): with ``X = A_1 A_2^T + B_1 B_2^T = U S V^T``

.. math:: R = U V^T, \quad \min_R |A_1 - R A_2|^2 + |B_1 - R B_2|^2 = |A_1|^2 + |B_1|^2 + |A_2|^2 + |B_2|^2 - 2 |X|_*,

where the nuclear norm is the sum of S. Reflections are allowed. Matrices that keep the vector of ones too are
orthogonal on the vectors orthogonal to it, and the problem is that of X there.
"""

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.matrices.repeated import checked
from ckptzoo.symmetry.matrices.stream import reflected


def procrustes(X: NDArray[np.float64], *, mean: bool = False) -> NDArray[np.float64]:
    """The orthogonal matrices R with the greatest ``<R, X>``.

    Parameters
    ----------
    X
        (..., k, k) float64, sums of products of the reference's rows with those that R acts on: ``A_1 A_2^T``.
    mean
        whether R keeps the vector of ones.

    Returns
    -------
    NDArray[np.float64]
        (..., k, k) float64; determined where X has full rank.

    Raises
    ------
    SymmetryError
        matrices that are not square or not finite.

    Notes
    -----
    A singular value decomposition of a (k, k) matrix each. tests/symmetry/matrices/test_procrustes.py compares it with
    rotations and reflections drawn at random.
    """
    _square("procrustes", X)
    if mean:
        whole = np.zeros(X.shape)
        whole[..., 0, 0], whole[..., 1:, 1:] = 1, procrustes(_beside_ones(X))
        return _on_both_sides(whole)
    U, _, V = np.linalg.svd(X)
    return U @ V


def greatest_products(X: NDArray[np.float64], *, mean: bool = False) -> NDArray[np.float64]:
    """The greatest ``<R, X>`` over orthogonal matrices R: the nuclear norm.

    Parameters
    ----------
    X
        (..., k, k) float64, as for ``procrustes``.
    mean
        whether R keeps the vector of ones.

    Returns
    -------
    NDArray[np.float64]
        (...) float64: what an assignment between balanced pairs adds up and makes greatest.

    Raises
    ------
    SymmetryError
        matrices that are not square or not finite.

    Notes
    -----
    Singular values alone. 144 matrices of k = 64 take 0.1 s on one core.
    """
    _square("greatest_products", X)
    if mean:
        return X.sum(axis=(-1, -2)) / X.shape[-1] + greatest_products(_beside_ones(X))
    return np.linalg.svd(X, compute_uv=False).sum(axis=-1)


def _beside_ones(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coordinates (..., k - 1, k - 1) in a basis of the vectors orthogonal to the ones."""
    return np.ascontiguousarray(_on_both_sides(X)[..., 1:, 1:])


def _on_both_sides(X: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.swapaxes(reflected(np.swapaxes(reflected(X), -1, -2)), -1, -2)


def _square(where: str, X: NDArray[np.float64]) -> None:
    if X.ndim < 2 or X.shape[-1] != X.shape[-2] or not X.shape[-1]:
        step = "Give sums of products of one block's rows with another's."
        raise SymmetryError(Problem(where, "shape of X", "(..., k, k)", str(X.shape), step))
    checked(where, X=X)

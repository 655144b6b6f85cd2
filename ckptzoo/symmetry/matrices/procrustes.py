r"""Orthogonal Procrustes problems between balanced pairs.

Two balanced pairs of the same function differ by an orthogonal matrix R at most: ``(A_1, B_1) = (R A_2, R B_2)``. For
others the closest is that of Schönemann (Psychometrika 31, 1966): with ``X = A_1 A_2^T + B_1 B_2^T = U S V^T``

.. math:: R = U V^T, \quad \min_R |A_1 - R A_2|^2 + |B_1 - R B_2|^2 = |A_1|^2 + |B_1|^2 + |A_2|^2 + |B_2|^2 - 2 |X|_*,

where the nuclear norm is the sum of S. Reflections are allowed.
"""

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.matrices.repeated import checked


def procrustes(
    A1: NDArray[np.float64], B1: NDArray[np.float64], A2: NDArray[np.float64], B2: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The orthogonal matrices that bring balanced pairs closest to others, one to one.

    Parameters
    ----------
    A1, B1
        (..., k, m) and (..., k, n) float64, the references.
    A2, B2
        of the same shapes, or shapes that broadcast to them.

    Returns
    -------
    tuple[NDArray[np.float64], NDArray[np.float64]]
        R (..., k, k) float64, determined where ``A_1 A_2^T + B_1 B_2^T`` has full rank; and the cost (...) float64,
        minus the nuclear norm of this matrix.

    Raises
    ------
    SymmetryError
        shapes that do not belong together; weights that are not finite.

    Notes
    -----
    A singular value decomposition of a (k, k) matrix each. tests/symmetry/matrices/test_procrustes.py compares it with
    rotations and reflections drawn at random.
    """
    _fitting("procrustes", A1, B1, A2, B2)
    cross = A1 @ np.swapaxes(A2, -1, -2) + B1 @ np.swapaxes(B2, -1, -2)
    U, values, V = np.linalg.svd(cross)
    return U @ V, -values.sum(axis=-1)


def pair_costs(
    A1: NDArray[np.float64], B1: NDArray[np.float64], A2: NDArray[np.float64], B2: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The costs of ``procrustes`` between all balanced pairs of one list and all of another.

    Parameters
    ----------
    A1, B1
        (g, k, m) and (g, k, n) float64.
    A2, B2
        (h, k, m) and (h, k, n) float64.

    Returns
    -------
    NDArray[np.float64]
        (g, h) float64: what an assignment between them adds up and makes least.

    Raises
    ------
    SymmetryError
        shapes that do not belong together; weights that are not finite.

    Notes
    -----
    Singular values alone, no vectors, of g h matrices, those of one pair of the first list at a time: memory for h of
    them. 12 and 12 pairs of k = 64, m = n = 768 take 0.07 s on one core.
    """
    _fitting("pair_costs", A1, B1, A2, B2)
    if A1.ndim != 3 or A2.ndim != 3:
        got, step = f"{A1.shape} and {A2.shape}", "Give the pairs of one layer at a time."
        raise SymmetryError(Problem("pair_costs", "shapes of A1 and A2", "(g, k, m) and (h, k, m)", got, step))
    (k, m), n, h = A1.shape[1:], B1.shape[-1], len(A2)
    flat = [np.ascontiguousarray(side.reshape(h * k, width).T) for side, width in ((A2, m), (B2, n))]
    costs = np.empty((len(A1), h))
    for row, (A, B) in enumerate(zip(A1, B1, strict=True)):
        cross = np.swapaxes((A @ flat[0] + B @ flat[1]).reshape(k, h, k), 0, 1)
        costs[row] = -np.linalg.svd(cross, compute_uv=False).sum(axis=-1)
    return costs


def _fitting(
    where: str, A1: NDArray[np.float64], B1: NDArray[np.float64], A2: NDArray[np.float64], B2: NDArray[np.float64]
) -> None:
    checked(where, A1=A1, B1=B1, A2=A2, B2=B2)
    shapes = [array.shape for array in (A1, B1, A2, B2)]
    together = all(len(shape) >= 2 for shape in shapes) and A1.shape[-2:] == A2.shape[-2:]
    if not (
        together
        and B1.shape[-2:] == B2.shape[-2:]
        and A1.shape[:-1] == B1.shape[:-1]
        and A2.shape[:-1] == B2.shape[:-1]
    ):
        expected = "(..., k, m), (..., k, n), (..., k, m) and (..., k, n)"
        step = "Give balanced pairs of the same widths."
        raise SymmetryError(Problem(where, "shapes of A1, B1, A2 and B2", expected, str(shapes), step))

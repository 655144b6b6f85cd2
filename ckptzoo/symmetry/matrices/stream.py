r"""The basis of a residual stream: eigenvectors of what is written into it.

Where every reader normalises the stream by its root mean square, an orthogonal matrix Q on the stream's axis keeps the
network (Ashkboos et al., arXiv 2401.15024); where the mean is subtracted too, Q also keeps the vector of
ones. The sum ``M = sum W W^T`` over the weights W that write the stream becomes ``Q M Q^T``, so that its eigenvectors
are a basis that no such matrix changes, up to signs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.kinds.matrix import checked
from ckptzoo.symmetry.kinds.orthogonal import beside_ones, on_both_sides, reflected
from ckptzoo.symmetry.matrices.repeated import diagonalising, equal_below, margins, runs

_ROUNDING = 16
"""A sum counts as 0 below this number of units of the stored precision of the norm of its terms."""


@dataclass(frozen=True, eq=False)
class StreamAxes:
    """Orthogonal matrices into the basis of eigenvectors, and how well they are determined.

    Parameters
    ----------
    matrix
        (..., d, d) float64, Q.
    values
        (..., d) float64, eigenvalues, descending; (..., d - 1) where Q keeps the ones.
    margin
        (...) float64, the smallest difference of neighbouring eigenvalues over the largest modulus.
    unresolved
        (...) bool, there are equal eigenvalues whose eigenvectors are not determined beyond an orthogonal matrix.
    """

    matrix: NDArray[np.float64]
    values: NDArray[np.float64]
    margin: NDArray[np.float64]
    unresolved: NDArray[np.bool_]


def stream_axes(
    M: NDArray[np.float64], precision: float, *, mean: bool, second: NDArray[np.float64] | None = None
) -> StreamAxes:
    r"""Return the orthogonal matrix Q that makes M (..., d, d) float64, symmetric, diagonal.

    Its rows are eigenvectors of M by descending eigenvalue, each up to its sign (``settle_signs``). With ``mean`` it
    keeps the vector of ones: with u the eigenvectors of ``P M P`` orthogonal to the ones, P the projection beside them,
    and h a fixed orthonormal basis of the vectors orthogonal to the ones,

    .. math:: Q = 1 1^T / d + \sum_i h_i u_i^T.

    ``precision`` is the machine epsilon of the stored dtype: eigenvalues that differ by less than 64 epsilons of the
    largest modulus are equal. ``second``, another symmetric matrix of the same shape that becomes ``Q . Q^T``, is made
    diagonal within the eigenvectors of equal eigenvalues. Raises ``SymmetryError`` for matrices that are not square or
    not finite, or do not have the shape of M.

    The eigenvalue decomposition takes 0.1 s for d = 768 on one core; the h are columns of a Householder reflection,
    which costs two products with vectors.
    """
    for name, matrix in (("M", M), ("second", M if second is None else second)):
        if matrix.shape != M.shape or M.ndim < 2 or M.shape[-1] != M.shape[-2] or not M.shape[-1]:
            step = "Give sums of W W^T over the weights that write the stream."
            expected = "(..., d, d)" if name == "M" else str(M.shape)
            raise SymmetryError(Problem("stream_axes", f"shape of {name}", expected, str(matrix.shape), step))
        checked("stream_axes", **{name: matrix})
    if mean:
        M = beside_ones(M)
        second = None if second is None else beside_ones(second)
    ascending, vectors = np.linalg.eigh(M)
    values = np.ascontiguousarray(ascending[..., ::-1])
    axes = np.ascontiguousarray(np.swapaxes(vectors, -1, -2)[..., ::-1, :])
    margin, unresolved = margins(values), np.zeros(M.shape[:-2], bool)
    for place in map(tuple, np.ndindex(M.shape[:-2])):
        for start, stop in runs(values[place], equal_below(precision)):
            if second is None:
                unresolved[place] = True
                continue
            block = axes[place][start:stop]
            turn, determined = diagonalising([block @ second[place] @ block.T], precision)
            axes[place][start:stop] = turn @ block
            unresolved[place] |= not determined
    if mean:
        whole = np.zeros((*M.shape[:-2], M.shape[-1] + 1, M.shape[-1] + 1))
        whole[..., 0, 0], whole[..., 1:, 1:] = 1, axes
        axes = on_both_sides(whole)
    return StreamAxes(axes, values, margin, unresolved)


def settle_signs(
    Q: NDArray[np.float64], W: NDArray[np.float64], precision: float, *, mean: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return Q with signs for which the rows of a weight have positive sums of cubes, and how many are unsettled.

    Q (..., d, d) float64 is that of ``stream_axes``, with the same ``mean``. W (..., d, c) float64 is a weight that
    writes the stream, before Q, and on whose columns no signs are open; its coordinate along an eigenvector is a row of
    ``Q W``, with ``mean`` one of its components along the h. With entries x of a row, and w the norms of the columns of
    W, a sum of cubes of at most 16 epsilons (``precision``, of the stored dtype) times the root of ``sum x^4 w^2`` is
    rounding, and does not settle a sign. The second item counts these eigenvectors, which keep their sign, (...) int64.
    Raises ``SymmetryError`` for shapes that do not belong together, and for weights that are not finite.
    """
    if W.ndim < 2 or Q.shape != (*W.shape[:-1], W.shape[-2]):
        step = "Give a weight with the stream's axis last but one."
        raise SymmetryError(Problem("settle_signs", "shape of W", f"{Q.shape[:-1]} and columns", str(W.shape), step))
    checked("settle_signs", W=W)
    rows = Q @ W
    if mean:
        rows = reflected(rows)[..., 1:, :]
    largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0)
    rows = rows / np.where(largest > 0, largest, 1)
    squares = rows * rows
    sums = np.einsum("...c,...c->...", squares, rows)
    # entries of Q W are known to epsilon times the norms of the columns
    columns = np.linalg.norm(W, axis=-2)[..., None, :]
    rounding = np.linalg.norm(squares * columns, axis=-1) / np.where(largest > 0, largest, 1)[..., 0]
    settled = np.abs(sums) > _ROUNDING * precision * rounding
    signs = np.where(settled & (sums < 0), -1.0, 1.0)
    if mean:
        signs = np.concatenate([np.ones((*signs.shape[:-1], 1)), signs], axis=-1)
        Q = reflected(signs[..., None] * reflected(Q))
    else:
        Q = signs[..., None] * Q
    return Q, (~settled).sum(axis=-1)

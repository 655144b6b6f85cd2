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

A gauge takes the eigenvectors of what is written into a stream for its channels: the sum ``M = sum W W^T`` over the
weights W that write the stream becomes ``Q M Q^T``, so that its eigenvectors are a basis that no such matrix changes,
up to signs. These make the sum of cubes of each channel's weights positive, in the first tensor that no other group
acts on.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import Group, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.kinds.equal_values import diagonalising, equal_below, margins, runs
from ckptzoo.symmetry.kinds.kind import Shared, Turn, refused
from ckptzoo.symmetry.kinds.matrix import Basis, Matrix, checked, matrix_shape, random_orthogonal
from ckptzoo.symmetry.matrix_action import Arrays, add_gram, channel_rows, precision_of, writers_of

_ROUNDING = 16
"""A sum counts as 0 below this number of units of the stored precision of the norm of its terms."""

ORTHOGONAL = 1e-9
"""The largest difference of an entry of G G^T from the identity's."""


class Orthogonal(Matrix):
    """Orthogonal matrices (K, blocks, k, k); with ``mean`` they keep the vector of ones."""

    stays_open = True

    def __init__(self, *, mean: bool) -> None:
        self._mean = self.keeps_mean = mean

    @property
    def beside_gains(self) -> str:
        """Signs, which gains take; a mean in front of the gain would change."""
        return "none" if self._mean else "sign"

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

    def settle(self, group: Group, arrays: Arrays, symmetry: Symmetry, precision: float) -> Basis:
        """Return the basis of the stream's variance."""
        axes, lacking = basis_of_stream(arrays, group, symmetry)
        none = np.zeros(axes.margin.shape, np.int64)
        return Basis(axes.matrix, axes.matrix, axes.margin, none, axes.unresolved | (lacking > 0))


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


def basis_of_stream(arrays: Arrays, group: Group, symmetry: Symmetry) -> tuple[StreamAxes, NDArray[np.int64]]:
    """Return the matrices (K, blocks, k, k) into the basis of a stream's variance, and how many signs are not settled.

    Raises ``SymmetryError`` where no tensor writes the channels with a weight.
    """
    mean, precision = group.scale == "orthogonal_mean", precision_of(arrays, group, symmetry)
    writers = list(writers_of(group, symmetry))
    if not any(symmetry.actions[at].in_mass for at, _ in writers):
        raise SymmetryError(
            f"symmetry table: group {group.id!r}: expected a weight that writes its channels, got none. "
            "Trace the module again, or declare the group without matrices."
        )
    shape = group.matrix_shape
    assert shape is not None
    blocks, k = shape[:2]
    total = np.zeros((len(next(iter(arrays.values()))), blocks, k, k))
    for at, mixed in writers:
        if symmetry.actions[at].in_mass:
            add_gram(arrays[symmetry.actions[at].tensor], mixed, total)
    axes = stream_axes(total, precision, mean=mean)
    matrix, lacking = axes.matrix, np.ones(axes.margin.shape, np.int64)
    for at, mixed in writers:
        tensor = symmetry.actions[at].tensor
        if len(symmetry.actions_on(tensor)) == 1 and (lacking > 0).any():
            # the first tensor settles all signs, but where its sums vanish
            settled, left = settle_signs(matrix, channel_rows(arrays[tensor], mixed), precision, mean=mean)
            matrix = np.where((lacking > 0)[..., None, None], settled, matrix)
            lacking = np.minimum(lacking, left) if lacking.any() else lacking
    return replace(axes, matrix=matrix), lacking

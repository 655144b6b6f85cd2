r"""Invertible matrices, one for each block of channels that nothing treats one by one, such as those of a head.

Of queries a and keys b of a head only the products ``a_i . b_j`` count, so that ``(G a, G^-T b)`` is the same network
for every invertible matrix G; of values and outputs likewise. A gauge balances such pairs: of all ``(H A, H^-T B)`` it
takes the one whose two factors have the same, diagonal Gram matrix. An orthogonal matrix is left, of which
orthogonal.py says what is best.

Two weights A (k, m) and B (k, n) of which the network uses only the product ``A^T B``, such as the queries and keys of
one attention head, or the two factors of a low-rank update, have an invertible matrix H in between. With the singular
value decomposition ``A^T B = P S Q^T`` the balanced pair is

.. math:: A' = S^{1/2} P^T, \quad B' = S^{1/2} Q^T, \quad A' A'^T = B' B'^T = S,

which has the least ``|A|^2 + |B|^2`` of all, twice the sum of S (Recht, Fazel and Parrilo, arXiv 0706.4138). It is
determined up to a sign a row where the singular values are distinct. The group is that of low-rank updates in Putterman
et al., arXiv 2410.04207.

The decomposition is that of the (k, k) matrix ``L_A^T L_B = U S V^T``, where ``A = L_A Q_A``, ``B = L_B Q_B`` with
orthonormal rows. The matrices are computed as

.. math:: G_A = S^{-1/2} V^T L_B^T = S^{1/2} U^T L_A^{-1}, \quad G_B = S^{-1/2} U^T L_A^T = S^{1/2} V^T L_B^{-1},

each from the factor of the other side: that needs no inverse, holds for any rank and for m or n below k, and keeps the
products of B with vectors beside A (biases of queries) wherever ``A^T B`` has the rank of B. The factors are those of a
QR decomposition. Cholesky factors of ``A A^T`` take a third of its time, but lose twice as many digits to the condition
of A: two disguises of condition 1000 (k = 64, m = 768) agree to 2e-12 by QR, to 3e-10 by Cholesky, and where the
spectrum decays by 1000 two of condition 10 agree to 3e-14 and 1.5e-11.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.kinds.equal_values import COARSEST, diagonalising, equal_below, margins, runs
from ckptzoo.symmetry.kinds.kind import Shared, Side, Turning, half_log, refused
from ckptzoo.symmetry.kinds.matrix import Basis, Matrix, checked, matrix_shape, random_orthogonal
from ckptzoo.symmetry.kinds.orthogonal import greatest_products, procrustes
from ckptzoo.symmetry.matrix_action import Arrays, joined_rows, precision_of

MOST_CONDITION = 1e12
"""The largest condition of an invertible matrix: beyond it float64 leaves fewer than four digits of a product."""
_ROUNDING = 1000 * float(np.finfo(np.float64).eps)
"""Singular values of float64 products up to this part of the largest may be 0."""
_DEGENERATE = 1000
"""Singular values of at most this times the stored precision of the largest: their rows may be rounding alone."""
_PIECE = 2**17
"""Elements that are decomposed at a time."""


class Linear(Matrix):
    """Invertible matrices (K, blocks, k, k)."""

    among, signs = "nonzero", "sign"
    balances = whitens = stays_open = True

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Draw ``U diag(exp(spread * N(0, 1))) V`` with uniform orthogonal U and V."""
        shape = (K, *matrix_shape(group))
        sizes = np.exp(spread * rng.standard_normal(shape[:3]))
        return random_orthogonal(rng, shape) * sizes[..., None, :] @ random_orthogonal(rng, shape)

    def check_matrices(self, what: str, value: np.ndarray) -> None:
        """Raise for matrices that are not invertible."""
        condition = float(np.linalg.cond(value).max(initial=1.0))
        if not condition <= MOST_CONDITION:
            raise refused(what, f"an invertible matrix, of condition {MOST_CONDITION:g} at most", f"{condition:.3g}")

    def dimensions(self, group: Group) -> int:
        """Return ``k ** 2`` for each block."""
        blocks, k, _ = matrix_shape(group)
        return blocks * k * k

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the orthogonal matrix of a Procrustes problem for every block."""
        return procrustes(gains)

    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the nuclear norm of every block."""
        return greatest_products(gains)

    def settle(self, group: Group, arrays: Arrays, symmetry: Symmetry, precision: float) -> "Balance":
        """Return the matrices of ``balance``; whether rows stay open is known by ``resolve`` alone."""
        written, read = (joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True))
        made = balance(written, read, precision)
        short = np.flatnonzero((made.degenerate > 0).any(axis=1))
        if len(short):  # biases may reach where the weights do not
            wide = [joined_rows(arrays, group, symmetry, inverted=side, biases=True)[short] for side in (False, True)]
            made.put(short, balance(wide[0], wide[1], precision))
        return replace(made, unresolved=np.zeros_like(made.unresolved))

    def resolve(
        self, group: Group, arrays: Arrays, symmetry: Symmetry, basis: Basis
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return matrices for rows of equal singular values, from columns in their final order and basis."""
        precision = precision_of(arrays, group, symmetry)
        assert isinstance(basis, Balance)
        if (basis.margin >= equal_below(precision)).all():
            return None
        written, read = (joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True))
        return resolve_equal(written, read, basis.values, precision)

    def white(self, group: Group, arrays: Arrays, symmetry: Symmetry) -> tuple[np.ndarray, np.ndarray]:
        """Return symmetric matrices, where weights or else biases reach; directions that nothing reaches become 0.

        Biases count where the weights have fewer columns than the block has channels, or where readers see more with
        them. The rank of what is written alone would decide otherwise of a network and of its canonical form, in which
        rows that nothing reads are 0.
        """
        precision = precision_of(arrays, group, symmetry)
        written = joined_rows(arrays, group, symmetry, inverted=False)
        left, right, rank = _white(written, precision)
        k, m = written.shape[-2:]
        short = np.flatnonzero((rank < k).any(axis=1))
        if len(short):
            wide = joined_rows(arrays, group, symmetry, inverted=False, biases=True)[short]
            if m >= k:
                read = _transposed(joined_rows(arrays, group, symmetry, inverted=True)[short])
                seen, seen_with_biases = (_rank(read @ side, precision) for side in (written[short], wide))
                more = (seen_with_biases > seen).any(axis=1)
                short, wide = short[more], wide[more]
            left[short], right[short], _ = _white(wide, precision)
        return left, right

    def turnings(self, group: Group) -> Sequence[Turning]:
        """Return the features of both sides: what is written is read with those from what is read."""
        blocks, size, _ = matrix_shape(group)
        return tuple(Turning(key, blocks, size) for key in self.keys(group, True))

    def keys(self, group: Group, inverted: bool) -> tuple[str, str]:
        written, read = f"{group.id}+", f"{group.id}-"
        return (written, read) if inverted else (read, written)

    def imbalance(self, written: Side, read: Side) -> tuple[np.ndarray, np.ndarray]:
        """Return the nuclear norms of the differences of Gram matrices (K,), as shares of all masses too."""
        off = np.abs(np.linalg.eigvalsh(written.gram - read.gram)).sum(axis=(1, 2))
        # 1e-300 avoids a division by 0: a block without weights is balanced
        total = np.maximum(np.trace(written.gram + read.gram, axis1=2, axis2=3).sum(axis=1), 1e-300)
        return off, off / total

    def reach(self, side: Side, mass: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
        """Return how far logarithms of eigenvalues can move (K,), by the least one of the Gram matrices."""
        return np.maximum.reduce(list(others)) + half_log(mass, side.least_eigenvalue)

    def lost(self, written: Side, read: Side) -> np.ndarray:
        """Return (K,) how many channels are 0 on both sides, as in blocks of lower rank."""
        sides = ((side.joined() == 0).all(axis=-1) for side in (written, read))
        return np.logical_and.reduce(list(sides)).sum(axis=(1, 2))


@dataclass(frozen=True, eq=False)
class Balance(Basis):
    """The matrices that balance pairs, G_A and G_B.

    Parameters
    ----------
    values
        (..., k) float64, the singular values of ``A^T B``, descending; beyond m or n they are 0.
    rank
        (...) int64, how many rows are not zero: those from here on are zero in ``left`` and in ``right``.

    Notes
    -----
    ``margin`` is the smallest difference of neighbouring singular values among these rows over the largest one, 1 where
    there are fewer than two. ``degenerate`` counts the singular values of at most 1000 epsilons of the stored dtype of
    the largest, whose rows may be rounding alone. ``unresolved`` says where equal singular values have rows that are
    not determined beyond an orthogonal matrix.
    """

    values: NDArray[np.float64]
    rank: NDArray[np.int64]


def balance(A: NDArray[np.float64], B: NDArray[np.float64], precision: float) -> Balance:
    """Return the matrices for which ``G_A A`` and ``G_B B`` are balanced, with ``(G_A A)^T (G_B B) = A^T B``.

    A and B are (..., k, m) and (..., k, n) float64, ``precision`` is the machine epsilon of the dtype in which the
    weights are stored. Singular values that count as 0 (up to 2e-13 of the largest, and in single or lower precision up
    to the epsilon of single precision) give zero rows: the limit of the orbit, with the same product but for what is
    below this bound. Equal singular values are resolved as in ``resolve_equal``. Raises ``SymmetryError`` for shapes
    that do not belong together, and for weights or products that are not finite.

    Each pair takes two QR decompositions and a singular value decomposition, one pair after the other, so that the bits
    do not depend on how many are stacked: 0.5 s for 288 pairs of k = 64, m = n = 768 on one core, and memory of nine
    (k, k) matrices a pair. Errors are those of the factors: epsilon ``|A| |B|`` over the gap of the singular values.
    """
    left_factor, right_factor, core = _factors(A, B)
    U, found, V = np.linalg.svd(core, full_matrices=False)
    values = np.zeros(A.shape[:-1])
    values[..., : found.shape[-1]] = found
    kept = are_kept(values, precision)
    inverse_root = np.divide(1, np.sqrt(found), out=np.zeros_like(found), where=kept[..., : found.shape[-1]])
    left, right = (np.zeros((*A.shape[:-1], A.shape[-2])) for _ in range(2))
    left[..., : found.shape[-1], :] = inverse_root[..., None] * (V @ _transposed(right_factor))
    right[..., : found.shape[-1], :] = inverse_root[..., None] * (_transposed(U) @ _transposed(left_factor))
    unresolved = np.zeros(A.shape[:-2], bool)
    for place in _with_equal(values, kept, precision):
        turn, unresolved[place] = _resolved(
            left[place] @ A[place], right[place] @ B[place], values[place], kept[place], precision
        )
        left[place], right[place] = turn @ left[place], turn @ right[place]
    rank = kept.sum(axis=-1)
    degenerate = (values <= _DEGENERATE * precision * values[..., :1]).sum(axis=-1)
    return Balance(left, right, margins(values, rank), degenerate, unresolved, values, rank)


def resolve_equal(
    A: NDArray[np.float64], B: NDArray[np.float64], values: NDArray[np.float64], precision: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return orthogonal matrices that settle the rows of pairs with equal singular values, and which are unresolved.

    Within such rows, scaled to unit norm, ``A diag(1, ..., m) A^T`` becomes diagonal, with descending entries, and
    where that has equal eigenvalues ``B diag(1, ..., n) B^T``. The columns of A and B must have their final order and
    basis, as these matrices depend on both; ``balance`` settles the rows for the columns as they are then.

    A and B are (..., k, m) and (..., k, n) float64, balanced, with singular values (..., k) as ``balance`` returned
    them; ``precision`` is the machine epsilon of the stored dtype. The matrices (..., k, k) float64 multiply A and B
    from the left, and are the identity beyond rows of equal values; the second item is (...) bool. Nothing is computed
    where singular values are distinct. Raises ``SymmetryError`` for shapes that do not belong together.
    """
    _fitting("resolve_equal", A, B)
    turns = np.broadcast_to(np.eye(A.shape[-2]), (*A.shape[:-1], A.shape[-2])).copy()
    unresolved = np.zeros(A.shape[:-2], bool)
    kept = are_kept(values, precision)
    for place in _with_equal(values, kept, precision):
        turns[place], unresolved[place] = _resolved(A[place], B[place], values[place], kept[place], precision)
    return turns, unresolved


def _factors(A: NDArray[np.float64], B: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return L_A, L_B and ``L_A^T L_B``; raise for what is not finite in A or B, which makes the product so too."""
    _fitting("balance", A, B)
    left, right = _factor(A), _factor(B)
    with np.errstate(invalid="ignore", over="ignore"):
        core = _transposed(left) @ right
    checked("balance", **{"A^T B": core})
    return left, right, core


def _factor(A: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return L (..., k, min(k, m)), lower triangular, with A = L Q and orthonormal rows of Q."""
    k, m = A.shape[-2:]
    flat, together = A.reshape(-1, k, m), max(1, _PIECE // (k * m))
    upper = np.empty((len(flat), min(k, m), k))
    for start in range(0, len(flat), together):
        # numpy decomposes a copy
        upper[start : start + together] = np.linalg.qr(_transposed(flat[start : start + together]), mode="r")
    return _transposed(upper).reshape(*A.shape[:-1], min(k, m))


def _transposed(A: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.swapaxes(A, -1, -2)


def are_kept(values: NDArray[np.float64], precision: float) -> NDArray[np.bool_]:
    """Return which singular values (..., k) count as more than 0."""
    return values > max(_ROUNDING, min(precision, COARSEST)) * values[..., :1]


def _with_equal(values: NDArray[np.float64], kept: NDArray[np.bool_], precision: float) -> list[tuple[int, ...]]:
    """Return the pairs of a stack that have equal singular values among those that are kept."""
    return list(map(tuple, np.argwhere(margins(values, kept.sum(axis=-1)) < equal_below(precision)).tolist()))


def _resolved(
    A: NDArray[np.float64],
    B: NDArray[np.float64],
    values: NDArray[np.float64],
    kept: NDArray[np.bool_],
    precision: float,
) -> tuple[NDArray[np.float64], bool]:
    """Return the orthogonal matrix (k, k) of one balanced pair, and whether rows remain unresolved."""
    turn, unresolved = np.eye(len(A)), False
    for start, stop in runs(values[kept], equal_below(precision)):
        rows = slice(start, stop)
        forms = []
        for side in (A, B):
            unit = side[rows] / np.sqrt(values[rows, None])
            width = side.shape[-1]
            forms.append((unit * (np.arange(1, width + 1) / width)) @ unit.T)
        turn[rows, rows], determined = diagonalising(forms, precision)
        unresolved |= not determined
    return turn, unresolved


def _fitting(where: str, A: NDArray[np.float64], B: NDArray[np.float64]) -> None:
    if A.ndim < 2 or A.shape[:-1] != B.shape[:-1] or 0 in (*A.shape[-2:], B.shape[-1]):
        expected, got = "(..., k, m) and (..., k, n) without empty axes", f"{A.shape} and {B.shape}"
        step = "Give both weights with the shared axis last but one, and the same stack."
        raise SymmetryError(Problem(where, "shapes of A and B", expected, got, step))


def _rank(A: NDArray[np.float64], precision: float) -> NDArray[np.int64]:
    """Return the ranks (...) of matrices (..., m, n)."""
    return are_kept(np.asarray(np.linalg.svd(A, compute_uv=False), np.float64), precision).sum(axis=-1)


def _white(
    A: NDArray[np.float64], precision: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the symmetric matrix that gives A (..., k, m) orthonormal rows, its inverse, both within what A reaches,
    and the rank.
    """
    U, values, _ = np.linalg.svd(A, full_matrices=False)
    kept = are_kept(values, precision)
    inverse = np.divide(1, values, out=np.zeros_like(values), where=kept)
    left, right = (U * item[..., None, :] @ U.swapaxes(-1, -2) for item in (inverse, np.where(kept, values, 0)))
    return left, right, kept.sum(axis=-1)

"""Orthogonal matrices, of all channels of a stream that readers normalise by its norm.

The root mean square of a stream does not change under an orthogonal matrix Q, so that what writes the stream may be
multiplied by Q and what reads it by ``Q^-T = Q`` (Ashkboos et al., arXiv 2401.15024). Where the mean is subtracted too,
as in LayerNorm, Q also keeps the vector of ones.
"""

import numpy as np

from ckptzoo.schema.groups import Group
from ckptzoo.symmetry.kinds.kind import Shared, refused
from ckptzoo.symmetry.kinds.linear import Linear, matrix_shape, random_orthogonal

ORTHOGONAL = 1e-9
"""By how much an entry of G G^T may differ from the identity's."""


class Orthogonal(Linear):
    """Orthogonal matrices (K, blocks, k, k)."""

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Uniform ones."""
        return random_orthogonal(rng, (K, *matrix_shape(group)))

    def check_matrices(self, what: str, value: np.ndarray) -> None:
        """Refuse matrices that are not orthogonal."""
        off = float(np.abs(value @ value.swapaxes(-1, -2) - np.eye(value.shape[-1])).max(initial=0.0))
        if off > ORTHOGONAL:
            raise refused(what, "an orthogonal matrix", f"one with |G G^T - 1| of {off:.3g}")

    def dimensions(self, group: Group) -> int:
        """``k (k - 1) / 2`` a block."""
        blocks, k, _ = matrix_shape(group)
        return blocks * (k * (k - 1) // 2)


class OrthogonalMean(Orthogonal):
    """Orthogonal matrices that keep the vector of ones."""

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Uniform ones."""
        blocks, k, _ = matrix_shape(group)
        return keeping_ones(random_orthogonal(rng, (K, blocks, k - 1, k - 1)))

    def check_matrices(self, what: str, value: np.ndarray) -> None:
        """Refuse matrices that are not orthogonal, or change the vector of ones."""
        super().check_matrices(what, value)
        if (off := float(np.abs(value.sum(axis=-1) - 1).max())) > ORTHOGONAL:
            raise refused(what, "a matrix that keeps the vector of ones", f"one that changes it by {off:.3g}")

    def dimensions(self, group: Group) -> int:
        """``(k - 1) (k - 2) / 2`` a block."""
        blocks, k, _ = matrix_shape(group)
        return blocks * ((k - 1) * (k - 2) // 2)


def keeping_ones(inner: np.ndarray) -> np.ndarray:
    """Orthogonal matrices (..., k, k) that keep the vector of ones, from ones (..., k - 1, k - 1) beside it."""
    k = inner.shape[-1] + 1
    basis = np.tril(np.ones((k, k)), -1)  # Helmert's: the first row is constant, the others are orthogonal to it
    basis[np.arange(1, k), np.arange(1, k)] = -np.arange(1.0, k)
    basis[0] = 1
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    whole = np.broadcast_to(np.eye(k), (*inner.shape[:-2], k, k)).copy()
    whole[..., 1:, 1:] = inner
    return basis.T @ whole @ basis

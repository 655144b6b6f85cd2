"""Invertible matrices, one for each block of channels that nothing treats one by one, such as those of a head.

Of queries a and keys b of a head only the products ``a_i . b_j`` count, so that ``(G a, G^-T b)`` is the same network
for every invertible matrix G; of values and outputs likewise. Once blocks are balanced (matrices/balance.py) an
orthogonal matrix is left, of which orthogonal.py says what is best.
"""

from collections.abc import Sequence

import numpy as np

from ckptzoo.schema.groups import Group
from ckptzoo.symmetry.kinds.kind import Shared, Side, half_log, refused
from ckptzoo.symmetry.kinds.matrix import Matrix, matrix_shape, random_orthogonal
from ckptzoo.symmetry.kinds.orthogonal import greatest_products, procrustes

MOST_CONDITION = 1e12
"""The largest condition of an invertible matrix: beyond it float64 leaves fewer than four digits of a product."""


class Linear(Matrix):
    """Invertible matrices (K, blocks, k, k)."""

    among, signs = "nonzero", "sign"
    balances = True

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

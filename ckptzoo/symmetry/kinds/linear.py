"""Invertible matrices, one for each block of channels that nothing treats one by one, such as those of a head.

Of queries a and keys b of a head only the products ``a_i . b_j`` count, so that ``(G a, G^-T b)`` is the same network
for every invertible matrix G; of values and outputs likewise. Once blocks are balanced (matrices/balance.py) an
orthogonal matrix is left, of which orthogonal.py says what is best.
"""

import numpy as np

from ckptzoo.schema.groups import Group
from ckptzoo.symmetry.kinds.kind import Shared, refused
from ckptzoo.symmetry.kinds.matrix import Matrix, matrix_shape, random_orthogonal
from ckptzoo.symmetry.kinds.orthogonal import greatest_products, procrustes

MOST_CONDITION = 1e12
"""The largest condition of an invertible matrix: beyond it float64 leaves fewer than four digits of a product."""


class Linear(Matrix):
    """Invertible matrices (K, blocks, k, k)."""

    among, signs = "nonzero", "sign"

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

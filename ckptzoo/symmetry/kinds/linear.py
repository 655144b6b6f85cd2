"""Invertible matrices, one for each block of channels that nothing treats one by one, such as those of a head.

Of queries a and keys b of a head only the products ``a_i . b_j`` count, so that ``(G a, G^-T b)`` is the same network
for every invertible matrix G; of values and outputs likewise.
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.schema.groups import Group
from ckptzoo.symmetry.kinds.kind import Kind, Shared, blocks_taken, refused

MOST_CONDITION = 1e12
"""Of an invertible matrix; beyond it float64 leaves fewer than four digits of what it acts on."""


class Linear(Kind):
    """Invertible matrices (K, blocks, k, k)."""

    part = "matrices"

    def identity(self, group: Group, K: int) -> np.ndarray:
        """The unit matrix for every block."""
        shape = matrix_shape(group)
        return np.broadcast_to(np.eye(shape[-1]), (K, *shape)).copy()

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """``U diag(exp(spread * N(0, 1))) V`` with uniform orthogonal U and V."""
        shape = (K, *matrix_shape(group))
        sizes = np.exp(spread * rng.standard_normal(shape[:3]))
        return random_orthogonal(rng, shape) * sizes[..., None, :] @ random_orthogonal(rng, shape)

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Refuse what is no matrix of this kind, and channels that leave their order within a block."""
        what, shape = f"group {group.id!r}: matrix", matrix_shape(group)
        if value.shape != (K, *shape) or value.dtype != np.float64:
            raise refused(what, f"({K}, {', '.join(map(str, shape))}) float64", f"{value.shape} {value.dtype}")
        if not np.isfinite(value).all():
            got = "another: where a block has no element, its weights are stored alone"
            raise refused(what, "finite numbers", got)
        k = group.n // shape[0]
        if (perm != (perm[:, ::k, None] + np.arange(k)).reshape(perm.shape)).any():
            expected = "blocks whose channels stay in order, as matrices mix them"
            raise refused(f"group {group.id!r}: perm", expected, "others")
        self.check_matrices(what, value)

    def check_matrices(self, what: str, value: np.ndarray) -> None:
        """Refuse matrices that are not invertible."""
        condition = float(np.linalg.cond(value).max(initial=1.0))
        if not condition <= MOST_CONDITION:
            raise refused(what, f"an invertible matrix, of condition {MOST_CONDITION:g} at most", f"{condition:.3g}")

    @staticmethod
    def moved(value: Any, perm: Any) -> Any:
        """The matrices of every block in the order of the permutation (K, n) of the channels."""
        return blocks_taken(value, perm)

    @staticmethod
    def product(second: Any, first: Any) -> Any:
        """Products of matrices, block by block."""
        return array_namespace(second, first).matmul(second, first)

    @staticmethod
    def inverse(value: Any) -> Any:
        """Inverse matrices, to rounding."""
        xp: Any = array_namespace(value)
        return xp.linalg.inv(value)

    @staticmethod
    def is_identity(value: np.ndarray) -> bool:
        """Whether all are the unit matrix."""
        return bool((value == np.eye(value.shape[-1])).all())

    def dimensions(self, group: Group) -> int:
        """``k ** 2`` a block."""
        blocks, k, _ = matrix_shape(group)
        return blocks * k * k


def matrix_shape(group: Group) -> tuple[int, ...]:
    """That of a group that has matrices, in one element."""
    shape = group.matrix_shape
    assert shape is not None
    return shape


def random_orthogonal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform orthogonal matrices."""
    return uniform_orthogonal(rng.standard_normal(shape))


def uniform_orthogonal(normal: np.ndarray) -> np.ndarray:
    """Uniform orthogonal matrices from Gaussian ones (..., k, k): Q, with the signs of R's diagonal (Stewart 1980)."""
    if not normal.shape[-1]:
        return normal
    q, r = np.linalg.qr(normal)
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]

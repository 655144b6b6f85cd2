"""The common part of all kinds of matrices: one for each block of channels, which mixes them.

``new = G old`` for what writes the channels of a block and ``new = G^-T old`` for what reads them, once whole blocks
are in the order of the permutation.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.kinds.kind import BlockKind, Shared, Turn, Turning, blocks_taken, refused
from ckptzoo.symmetry.matrix_action import Arrays, precision_of


@dataclass(frozen=True, eq=False)
class Basis:
    """The matrices that a gauge takes for the blocks (K, blocks) or numbers (K, n) of a group, and their margins.

    Parameters
    ----------
    left, right
        (..., k, k) float64 or (..., 2): what is written is multiplied by ``left``, what is read by ``right``, the
        inverse of its transpose. Rows that no matrix of the group settles are zero in both.
    margin
        (...) float64, the smallest relative gap of the numbers that decide.
    degenerate
        (...) int64, channels that are 0, or rounding alone: no matrix of the group leads there.
    unresolved
        (...) bool, another matrix would do as well.
    """

    left: NDArray[np.float64]
    right: NDArray[np.float64]
    margin: NDArray[np.float64]
    degenerate: NDArray[np.int64]
    unresolved: NDArray[np.bool_]

    def put(self, rows: NDArray[np.integer] | NDArray[np.bool_], others: "Basis") -> None:
        """Take some checkpoints from others, in place."""
        for item in fields(self):
            getattr(self, item.name)[rows] = getattr(others, item.name)


class Matrix(BlockKind):
    """Matrices (K, blocks, k, k)."""

    part = "matrices"
    balances: ClassVar[bool] = False
    """Whether it gives what is written and what is read the same size: then it comes before others, and groups that
    meet in a tensor take turns."""
    whitens: ClassVar[bool] = False
    """Whether scales of channels that read a group are settled with orthonormal rows in what writes the group."""
    one_by_one: ClassVar[bool] = False
    """Whether each channel has a number of its own, so that channels are permuted one by one."""
    least_fall: ClassVar[float] = 1e-6
    # matrices of condition 10 multiply the rounding of a copy's entries
    roundings = 32
    gauge_error = 1e-11

    def turn(self, group: Group) -> Turn:
        """Return the first turn, as one visit solves a block."""
        return Turn.BLOCKS

    def of_pairs(self, group: Group, gains: np.ndarray) -> tuple[None, np.ndarray]:
        return None, self.greatest(group, gains)

    def identity(self, group: Group, K: int) -> np.ndarray:
        shape = matrix_shape(group)
        return np.broadcast_to(np.eye(shape[-1]), (K, *shape)).copy()

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Raise for what is no matrix of this kind, and for channels that leave their order within a block."""
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

    @abstractmethod
    def check_matrices(self, what: str, value: np.ndarray) -> None:
        """Raise for finite matrices of another kind."""

    @staticmethod
    def moved(value: Any, perm: Any) -> Any:
        return blocks_taken(value, perm)

    @staticmethod
    def product(second: Any, first: Any) -> Any:
        return array_namespace(second, first).matmul(second, first)

    @staticmethod
    def inverse(value: Any) -> Any:
        xp: Any = array_namespace(value)
        return xp.linalg.inv(value)

    @staticmethod
    def is_identity(value: np.ndarray) -> bool:
        return bool((value == np.eye(value.shape[-1])).all())

    def monomial(self, group: Group, perm: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return matrices for permutations (K, n) and scales (K, n), and the remaining permutation of whole blocks."""
        (blocks, k, _), K = matrix_shape(group), len(perm)
        inside = perm.reshape(K, blocks, k)
        made = np.zeros((K, blocks, k, k))
        np.put_along_axis(made, (inside % k)[..., None], scale.reshape(K, blocks, k)[..., None], axis=3)
        return made, (inside[..., :1] // k * k + np.arange(k)).reshape(K, group.n)

    @staticmethod
    def value(gains: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return ``<G, gains>`` (K,)."""
        return (gains * value).sum(axis=(1, 2, 3))

    @abstractmethod
    def settle(self, group: Group, arrays: Arrays, symmetry: Symmetry, precision: float) -> Basis:
        """Return the matrices that a gauge takes, up to signs of channels.

        ``arrays`` (K, *shape) are finite; groups before this one are settled in them. ``precision`` is the machine
        epsilon of the stored weights.
        """

    def resolve(
        self, group: Group, arrays: Arrays, symmetry: Symmetry, basis: Basis
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return orthogonal matrices that follow once all groups are settled, and where they are open; None for none.

        ``basis`` is what ``settle`` returned; the weights are in it.
        """
        return None

    def white(self, group: Group, arrays: Arrays, symmetry: Symmetry) -> tuple[np.ndarray, np.ndarray]:
        """Return matrices, for both sides, that give orthonormal rows to what writes a group that ``whitens``."""
        basis = self.settle(group, arrays, symmetry, precision_of(arrays, group, symmetry))
        return basis.left, basis.right

    def turnings(self, group: Group) -> Sequence[Turning]:
        blocks, size = matrix_shape(group)[:2]
        return (Turning(group.id, blocks, size, float(self.keeps_mean)),) if self.stays_open else ()

    def keys(self, group: Group, inverted: bool) -> tuple[str, str]:
        """Return the keys of the features that are read where the channels are, and of those that the axis adds to."""
        return group.id, group.id

    def positions(self, channels: np.ndarray, part: int | None) -> np.ndarray:
        """Return the places among the turned features of a group's channels (n, positions)."""
        return channels

    def closest(self, group: Group, first: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
        """Return the values that bring sides of every block, (1, blocks, k, m), closest to those of the first."""
        crossed = sum(one @ two.swapaxes(-1, -2) for one, two in zip(first, other, strict=True))
        return self.best(group, np.asarray(crossed))

    @staticmethod
    def off_unit(value: np.ndarray) -> np.ndarray:
        """Return the largest entry (K,) of ``|G G^T - 1|``, rows of zeros and blocks with NaN left out."""
        square = value @ value.swapaxes(-1, -2)
        kept = (value != 0).any(axis=-1)
        off = np.abs(square - kept[..., None] * np.eye(value.shape[-1]))
        return np.nan_to_num(off).reshape(len(value), -1).max(axis=1, initial=0)

    @staticmethod
    def as_value(left: np.ndarray) -> np.ndarray:
        """Return the ``left`` of a basis as values of elements, with NaN in blocks that have rows of zeros."""
        return np.where((left == 0).all(axis=-1).any(axis=-1)[..., None, None], np.nan, left)


def matrix_shape(group: Group) -> tuple[int, ...]:
    """Return the shape of a group's matrices in one element."""
    shape = group.matrix_shape
    assert shape is not None
    return shape


def random_orthogonal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw uniform orthogonal matrices."""
    return uniform_orthogonal(rng.standard_normal(shape))


def uniform_orthogonal(normal: np.ndarray) -> np.ndarray:
    """Return uniform orthogonal matrices from Gaussian (..., k, k): Q with the signs of R's diagonal (Stewart 1980)."""
    if not normal.shape[-1]:
        return normal
    q, r = np.linalg.qr(normal)
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def checked(where: str, **arrays: NDArray[np.generic]) -> None:
    """Raise ``SymmetryError`` where an array has entries that are infinite or NaN."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            step = "Leave out networks that are not finite, and weights whose products overflow float64."
            raise SymmetryError(Problem(where, name, "finite entries", "infinite ones or NaN", step))

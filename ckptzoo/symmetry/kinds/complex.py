"""Complex numbers other than 0, one for each channel, which is a pair of positions.

Rotary position embedding turns two positions as one complex number (Su et al., arXiv 2104.09864). Of queries a and
keys b of such a pair only ``a_i conj(b_j)`` counts, so that ``(c a, b / conj(c))`` is the same network for every c
that is not 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.kinds.kind import Shared, refused
from ckptzoo.symmetry.kinds.matrix import Basis, Matrix, checked
from ckptzoo.symmetry.matrix_action import Arrays, joined_rows

_ROUNDING = 16
"""A sum counts as 0 below this number of units of the stored precision of the norm of its terms."""


class Complex(Matrix):
    """Real and imaginary parts (K, n, 2)."""

    among, signs = "nonzero", "sign"
    balances = one_by_one = stays_open = True

    def identity(self, group: Group, K: int) -> np.ndarray:
        return np.tile([1.0, 0.0], (K, group.n, 1))

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Draw a modulus ``exp(spread * N(0, 1))`` and a uniform phase."""
        phases, sizes = rng.uniform(-np.pi, np.pi, (K, group.n)), np.exp(spread * rng.standard_normal((K, group.n)))
        return np.stack([sizes * np.cos(phases), sizes * np.sin(phases)], axis=-1)

    def check_matrices(self, what: str, value: np.ndarray) -> None:
        """Refuse 0."""
        if not (value != 0).any(axis=-1).all():
            raise refused(what, "complex numbers other than 0", "0")

    @staticmethod
    def product(second: Any, first: Any) -> Any:
        a, b, c, d = second[..., 0], second[..., 1], first[..., 0], first[..., 1]
        return array_namespace(second, first).stack([a * c - b * d, a * d + b * c], axis=-1)

    @staticmethod
    def inverse(value: Any) -> Any:
        real, imaginary = value[..., 0], value[..., 1]
        squares = real * real + imaginary * imaginary
        return array_namespace(value).stack([real / squares, -imaginary / squares], axis=-1)

    @staticmethod
    def is_identity(value: np.ndarray) -> bool:
        return bool((value == np.array([1.0, 0.0])).all())

    def monomial(self, group: Group, perm: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return real numbers, and the permutation."""
        return np.stack([scale, np.zeros(scale.shape)], axis=-1), perm

    def dimensions(self, group: Group) -> int:
        """Return 2 for each number."""
        return 2 * group.n

    def beside(self, group: Group, K: int) -> Mapping[complex, np.ndarray]:
        """Return quarter turns, so that gains are complex."""
        return {1j: np.tile([0.0, 1.0], (K, group.n, 1))}

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the phase of ``sum a conj(b)``, from complex gains."""
        number = np.diagonal(gains, axis1=-2, axis2=-1).reshape(len(gains), group.n)
        size = np.abs(number)
        phase = np.where(size > 0, number, 1) / np.where(size > 0, size, 1)
        return np.stack([phase.real, phase.imag], axis=-1)

    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the sum of the moduli."""
        return np.abs(np.diagonal(gains, axis1=-2, axis2=-1)).sum(axis=-1)

    def positions(self, channels: np.ndarray, part: int | None) -> np.ndarray:
        """Return the places of real and imaginary parts, which take turns."""
        return 2 * channels + (np.arange(channels.shape[1]) % 2 if part is None else part)

    def closest(self, group: Group, first: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
        """Return phases."""
        products = np.zeros(first[0].shape[:-2], np.complex128)
        for one, two in zip(first, other, strict=True):
            numbers = [side[..., 0, :] + 1j * side[..., 1, :] for side in (one, two)]
            products += (numbers[0] * numbers[1].conj()).sum(axis=-1)
        sizes = np.abs(products)
        phases = np.ones(sizes.shape, np.complex128)
        np.divide(products, sizes, out=phases, where=sizes > 0)
        return np.stack([phases.real, phases.imag], axis=-1)

    @staticmethod
    def value(gains: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return (K,) the real part of ``sum c a conj(b)``."""
        number: NDArray[np.complex128] = np.diagonal(gains, axis1=-2, axis2=-1).reshape(value.shape[:2])
        return (number.real * value[..., 0] + number.imag * value[..., 1]).sum(axis=1)

    def settle(self, group: Group, arrays: Arrays, symmetry: Symmetry, precision: float) -> Basis:
        """Return the numbers of ``balance_complex``."""
        sides = [joined_rows(arrays, group, symmetry, inverted=side) for side in (False, True)]
        a, b = (side[..., 0, :] + 1j * side[..., 1, :] for side in sides)
        return balance_complex(a, b, precision)

    @staticmethod
    def off_unit(value: np.ndarray) -> np.ndarray:
        """Return the largest difference (K,) of a squared modulus from 1, where there is a number."""
        size = (value * value).sum(axis=-1)
        return np.abs(np.where(size > 0, size - 1, 0)).reshape(len(value), -1).max(axis=1, initial=0)

    @staticmethod
    def as_value(left: np.ndarray) -> np.ndarray:
        """Return the numbers, with NaN for those that are 0."""
        return np.where((left == 0).all(axis=-1)[..., None], np.nan, left)


def balance_complex(a: NDArray[np.complex128], b: NDArray[np.complex128], precision: float) -> Basis:
    r"""Return the factors for which ``c a`` and ``b / conj(c)`` have equal norms and a fixed phase.

    .. math:: |c| = \sqrt{|b| / |a|}, \quad \sum_j (c a_j)^2 > 0,

    where that sum vanishes ``sum_j (b_j / conj(c))^2 > 0``, then ``sum_j j (c a_j)^2 > 0`` and ``sum_j j (b_j /
    conj(c))^2 > 0``. The sign of c is left open. Orthogonal matrices on the columns keep the first two sums.

    a and b are (..., m) and (..., n) complex128: all that c and its counterpart multiply, biases included.
    ``precision`` is the machine epsilon of the stored dtype. A sum vanishes where its modulus is at most 16 epsilons of
    the root of the sum of its terms' squared moduli. Raises ``SymmetryError`` for shapes that do not belong together,
    and for weights or sums of squares that are not finite.

    ``left`` and ``right`` of the result are c and ``1 / conj(c)`` as (..., 2), which keep every product ``a_i
    conj(b_j)``; 0 where a or b is zero (``degenerate``). ``margin`` is the modulus of the sum that settles the phase
    over the sum of the moduli of its terms, and 0 where nothing settles it (``unresolved``); the phase is known to
    about epsilon over the margin.
    """
    if not (a.ndim and b.ndim) or a.shape[:-1] != b.shape[:-1] or 0 in (a.shape[-1], b.shape[-1]):
        expected, got = "(..., m) and (..., n) without empty axes", f"{a.shape} and {b.shape}"
        step = "Give both weights with the columns last, and the same stack."
        raise SymmetryError(Problem("balance_complex", "shapes of a and b", expected, got, step))
    # what is not finite in a or b is not finite in its norm
    with np.errstate(invalid="ignore", over="ignore"):
        norms = [np.sqrt(_moments(side, np.ones(side.shape[-1]))[1]) for side in (a, b)]
    checked("balance_complex", **{"norm of a": norms[0], "norm of b": norms[1]})
    degenerate = (norms[0] == 0) | (norms[1] == 0)
    settling, margin = np.zeros(a.shape[:-1], np.complex128), np.zeros(a.shape[:-1])
    for weighted in (False, True):
        for side in (a, b):
            open_phase = (margin == 0) & ~degenerate
            if open_phase.any():
                m = side.shape[-1]
                weights = np.arange(1, m + 1) / m if weighted else np.ones(m)
                rows = side[open_phase]
                moment, terms = _moments(rows, weights)
                rounding = np.linalg.norm((rows.real**2 + rows.imag**2) * weights, axis=-1)
                settles = np.abs(moment) > _ROUNDING * precision * rounding
                settling[open_phase] = np.where(settles, moment, 0)
                margin[open_phase] = np.where(settles, np.abs(moment) / terms, 0)
    phase = np.exp(-0.5j * np.angle(settling))
    size = np.sqrt(norms[1] / np.where(degenerate, 1, norms[0]))
    sides = size * phase, phase / np.where(degenerate, 1, size)
    left, right = (
        np.where(degenerate[..., None], 0, np.stack([np.real(side), np.imag(side)], axis=-1)) for side in sides
    )
    open_phase = (margin == 0) & ~degenerate
    return Basis(left, right, np.where(degenerate, np.inf, margin), degenerate.astype(np.int64), open_phase)


def _moments(
    side: NDArray[np.complex128], weights: NDArray[np.float64]
) -> tuple[NDArray[np.complex128], NDArray[np.float64]]:
    """Return weighted sums (...) of the squares of side (..., m) and of the squared moduli."""
    real, imaginary = side.real, side.imag
    of_real, of_imaginary, of_both = (
        np.einsum("...m,...m,m->...", one, other, weights)
        for one, other in ((real, real), (imaginary, imaginary), (real, imaginary))
    )
    return of_real - of_imaginary + 2j * of_both, of_real + of_imaginary

"""Complex numbers other than 0, one for each channel, which is a pair of positions.

Rotary position embedding turns two positions as one complex number (Su et al., arXiv 2104.09864). Of queries a and
keys b of such a pair only ``a_i conj(b_j)`` counts, so that ``(c a, b / conj(c))`` is the same network for every c
that is not 0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from ckptzoo.schema.groups import Group
from ckptzoo.symmetry.kinds.kind import Shared, refused
from ckptzoo.symmetry.kinds.matrix import Matrix


class Complex(Matrix):
    """Real and imaginary parts (K, n, 2)."""

    among, signs = "nonzero", "sign"
    balances = True

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

    @staticmethod
    def value(gains: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return (K,) the real part of ``sum c a conj(b)``."""
        number: NDArray[np.complex128] = np.diagonal(gains, axis1=-2, axis2=-1).reshape(value.shape[:2])
        return (number.real * value[..., 0] + number.imag * value[..., 1]).sum(axis=1)

"""Scales, one number for each channel: positive ones, signs, and any but 0.

Which are allowed follows from the activation behind the channel: one that is homogeneous, as ReLU, lets positive scales
through, ``relu(s x) = s relu(x)`` for s > 0; an odd one, as tanh, lets signs through; and in front of a normalisation
whose gain takes the sign any scale but 0 is.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from ckptzoo.schema.groups import Group
from ckptzoo.symmetry.kinds.kind import Kind, Shared, refused, taken


class Scale(Kind):
    """A number for each channel, (K, n) float64."""

    part = "scales"
    expected: ClassVar[str]
    """What the numbers are, in messages."""

    def identity(self, group: Group, K: int) -> np.ndarray:
        return np.ones((K, group.n))

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Refuse numbers of another kind."""
        what = f"group {group.id!r}: scale"
        if value.shape != (K, group.n) or value.dtype != np.float64:
            raise refused(what, f"({K}, {group.n}) float64", f"{value.shape} {value.dtype}")
        if not (allowed := self.allowed(value)).all():
            raise refused(what, self.expected, str(value[~allowed][0]))

    @staticmethod
    @abstractmethod
    def allowed(scale: np.ndarray) -> np.ndarray:
        """Which scales are of this kind."""

    @staticmethod
    def moved(value: Any, perm: Any) -> Any:
        return taken(value, perm)

    @staticmethod
    def product(second: Any, first: Any) -> Any:
        return second * first

    @staticmethod
    def inverse(value: Any) -> Any:
        return 1 / value

    @staticmethod
    def is_identity(value: np.ndarray) -> bool:
        return not (value != 1).any()


class Positive(Scale):
    """Positive numbers."""

    expected = "positive finite numbers"
    among = sizes = "positive"

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """``exp(spread * N(0, 1))``."""
        return np.exp(spread * rng.standard_normal((K, group.n)))

    @staticmethod
    def allowed(scale: np.ndarray) -> np.ndarray:
        """Positive and finite."""
        return (scale > 0) & (scale < np.inf)


class Sign(Scale):
    """Signs."""

    expected = "+1 or -1"
    among = signs = "sign"

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """A fair coin."""
        return rng.choice([-1.0, 1.0], (K, group.n))

    @staticmethod
    def allowed(scale: np.ndarray) -> np.ndarray:
        """+1 or -1."""
        return np.abs(scale) == 1


class Nonzero(Scale):
    """Any numbers but 0: a size and a sign."""

    expected = "finite numbers other than 0"
    among, signs, sizes = "nonzero", "sign", "positive"

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """A positive number times a sign."""
        size = Positive().random(group, K, rng, spread, shared)
        return size * Sign().random(group, K, rng, spread, shared)

    @staticmethod
    def allowed(scale: np.ndarray) -> np.ndarray:
        """Finite and not 0."""
        return np.isfinite(scale) & (scale != 0)

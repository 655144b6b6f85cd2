"""Scales, one number for each channel: positive ones, signs, and any but 0.

Which are allowed follows from the activation behind the channel: one that is homogeneous, as ReLU, lets positive scales
through, ``relu(s x) = s relu(x)`` for s > 0; an odd one, as tanh, lets signs through; and in front of a normalisation
whose gain takes the sign any scale but 0 is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.symmetry.kinds.kind import Kind, Shared, Turning, refused, taken


class Scale(Kind):
    """A number for each channel, (K, n) float64.

    ``among`` is the name of the kind in tables, ``expected`` the description of the numbers in messages; ``resizes``
    and ``flips`` allow sizes other than 1, and signs.
    """

    part = "scales"

    def __init__(self, among: str, expected: str, *, resizes: bool, flips: bool) -> None:
        self.among, self._expected = among, expected
        self.signs, self.sizes = "sign" if flips else "none", "positive" if resizes else "none"
        self._resizes, self._flips = resizes, flips
        # the gauge takes sizes to 40 bits (ckptzoo/symmetry/scales.py); two copies differ by up to four scales, one for
        # each axis of each, and twice that for depth
        self.gauge_error = 8 * 2.0**-40 if resizes else 0.0

    def identity(self, group: Group, K: int) -> np.ndarray:
        return np.ones((K, group.n))

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Draw sizes ``exp(spread * N(0, 1))`` and signs by a fair coin, where they are free."""
        scale = np.exp(spread * rng.standard_normal((K, group.n))) if self._resizes else 1.0
        return np.asarray(scale * rng.choice([-1.0, 1.0], (K, group.n)) if self._flips else scale)

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Raise for numbers of another kind."""
        what = f"group {group.id!r}: scale"
        if value.shape != (K, group.n) or value.dtype != np.float64:
            raise refused(what, f"({K}, {group.n}) float64", f"{value.shape} {value.dtype}")
        allowed = (np.isfinite(value) & (value != 0)) if self._resizes else np.abs(value) == 1
        if not self._flips:
            allowed &= value > 0
        if not allowed.all():
            raise refused(what, self._expected, str(value[~allowed][0]))

    def turnings(self, group: Group) -> Sequence[Turning]:
        return (Turning(group.id, group.n, 1),) if self._flips else ()

    def turned_by(self, action: AxisAction) -> bool:
        """Whether the action has signs, which variances and moduli have not."""
        return self._flips and action.exponent in (1, -1) and not action.absolute

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

"""How a set of figures is spread, in six numbers."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Spread:
    """Count, mean, standard deviation and three order statistics of some figures.

    Parameters
    ----------
    sd : of the sample, with the divisor n - 1; 0 for a single figure.
    """

    count: int
    mean: float
    sd: float
    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: ArrayLike) -> "Spread | None":
        """Of the finite ones among these; None where there are none."""
        found = np.asarray(values, np.float64)
        found = found[np.isfinite(found)]
        if not len(found):
            return None
        sd = float(found.std(ddof=1)) if len(found) > 1 else 0.0
        middle = float(np.median(found))
        return cls(len(found), float(found.mean()), sd, float(found.min()), middle, float(found.max()))

    def to_json(self) -> dict[str, Any]:
        """The six numbers by name."""
        return asdict(self)

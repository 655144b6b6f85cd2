"""The largest elements of layers, and quantiles of figures of which some may not be finite."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Largest:
    """The largest absolute value in the parameters of one layer: (M,) as trained and at the least mass."""

    layer: str
    before: Values
    after: Values

    def to_json(self) -> dict[str, Any]:
        """Quantiles over the networks."""
        return {"layer": self.layer, "before": quantiles(self.before), "after": quantiles(self.after)}


def largest_of(tensor: NDArray[np.generic]) -> Values:
    """(K,) largest absolute values of a stacked tensor."""
    flat = tensor.reshape(len(tensor), -1)
    return np.maximum(flat.max(axis=1), -flat.min(axis=1)).astype(np.float64)


def quantiles(values: Values) -> dict[str, float] | None:
    """Quantiles and extremes of the finite ones by name; None where there are none."""
    found = values[np.isfinite(values)]
    if not len(found):
        return None
    shares = (0.0, *QUANTILES, 1.0)
    names = ("least", *map(str, QUANTILES), "most")
    return dict(zip(names, np.quantile(found, shares).tolist(), strict=True))

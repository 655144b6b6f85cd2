"""Two weights of every network of a zoo, and their density."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.studies.toy.hills import Density

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class Panel:
    """The two last-layer weights of all networks, with some of the symmetries removed.

    Parameters
    ----------
    name : which are removed.
    points : (M, 2).
    density : of the points, with its hills.
    """

    name: str
    points: NDArray[np.float64]
    density: Density

    @property
    def above(self) -> float:
        """Fraction of networks whose second weight is the larger one; 1/2 where the neurons are exchangeable."""
        first, second = self.points.T
        return float((second > first).mean() + 0.5 * (second == first).mean())

    @property
    def quantiles(self) -> NDArray[np.float64]:
        """(5, 2) both weights at ``QUANTILES``."""
        return np.quantile(self.points, QUANTILES, axis=0)

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the points and the density."""
        return {
            "name": self.name,
            "quantiles": {str(share): pair for share, pair in zip(QUANTILES, self.quantiles.tolist(), strict=True)},
            "above_diagonal": self.above,
            "kernel": None if self.density.heights is None else list(self.density.widths),
            "inside": self.density.inside,
            "modes": None if self.density.heights is None else [hill.to_json() for hill in self.density.hills],
        }

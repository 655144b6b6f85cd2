"""What a comparison of two sets of checkpoints measured: the sets, and a layer or a tensor of theirs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.measure.mmd import p_value
from ckptzoo.words import counted

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """One of the two sets.

    Parameters
    ----------
    name : the zoo's.
    variant : the gauge of its weights.
    checkpoints : how many were compared.
    left : checkpoints that were left out because they are not finite.
    kept : compared ones that the gauge left as trained, because they are not representable in it.
    """

    name: str
    variant: str
    checkpoints: int
    left: int
    kept: int

    def __str__(self) -> str:
        text = f"{self.name}, {self.variant}: {counted(self.checkpoints, 'checkpoint')}"
        text += f"; {self.left:,} left out, not finite" if self.left else ""
        return text + (f"; {self.kept:,} as trained, not representable in the gauge" if self.kept else "")


@dataclass(frozen=True, eq=False)
class Measured:
    """A layer or a tensor.

    Parameters
    ----------
    parameters : columns.
    mmd2 : (20,) estimates, 10 of Laplace kernels and 10 of Gaussian ones.
    bandwidths : (20,) of the kernels.
    null : (B,) the median after exchanges of checkpoints; None where there were none.
    """

    name: str
    parameters: int
    mmd2: Values
    bandwidths: Values
    null: Values | None

    @property
    def median(self) -> float:
        """Of the twenty."""
        return float(np.median(self.mmd2))

    @property
    def mean(self) -> float:
        """Of the twenty."""
        return float(self.mmd2.mean())

    @property
    def most(self) -> float:
        """The largest of the twenty."""
        return float(self.mmd2.max())

    @property
    def p(self) -> float | None:
        """The p-value of the median; None without exchanges."""
        return None if self.null is None else p_value(self.median, self.null)

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the exchanges."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "median": self.median,
            "mean": self.mean,
            "max": self.most,
            "p": self.p,
            "mmd2": self.mmd2.tolist(),
            "bandwidths": self.bandwidths.tolist(),
        }

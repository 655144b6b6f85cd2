"""How the test accuracy of members rose, where a zoo kept several steps of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

LEAST = 3
"""Steps that make a trajectory."""


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Test accuracies along the training.

    Parameters
    ----------
    steps : (S,) int64, rising.
    accuracies : (M, S), NaN where a member has no such checkpoint or nothing was measured.
    """

    steps: NDArray[np.int64]
    accuracies: NDArray[np.float64]

    def to_json(self) -> list[dict[str, Any]]:
        """For each step how many members there are, and the mean, least and largest accuracy among them."""
        made: list[dict[str, Any]] = []
        for step, column in zip(self.steps.tolist(), self.accuracies.T, strict=True):
            known = column[np.isfinite(column)]
            figures = {"mean": float(known.mean()), "lowest": float(known.min()), "highest": float(known.max())}
            made.append({"step": step, "members": len(known), **figures})
        return made


def trajectories_of(metadata: pa.Table) -> Trajectories | None:
    """Those of a zoo's rows; None where fewer than ``LEAST`` steps were measured of any member."""
    accuracy = metadata["test_accuracy"].fill_null(float("nan")).to_numpy().astype(np.float64)
    step = metadata["step"].fill_null(-1).to_numpy()
    known = np.isfinite(accuracy) & (step >= 0)
    members = metadata["member"].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()[known]
    owners, row = np.unique(members, return_inverse=True)
    steps, column = np.unique(step[known], return_inverse=True)
    table = np.full((len(owners), len(steps)), np.nan)
    table[row, column] = accuracy[known]
    enough = np.isfinite(table).sum(1) >= LEAST
    table = table[enough]
    shared = np.isfinite(table).any(0)
    return Trajectories(steps[shared], table[:, shared]) if enough.any() else None

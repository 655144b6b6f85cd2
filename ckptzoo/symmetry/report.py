"""What a gauge found in each checkpoint."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Report:
    """Per checkpoint, how well the gauge is defined there.

    Parameters
    ----------
    ties : (K,) int64, neighbouring keys that are equal; the order is arbitrary there.
    margin : (K,) float64, the smallest gap between neighbouring keys; infinite where nothing was ordered.
    dead : (K,) int64, channels whose incoming weights are all zero.
    gauged : (K,) bool, False where the checkpoint stays as it was: its weights are not finite, or would not be
        in the gauge. Such a row has no ties, no dead channels and a margin of NaN.
    """

    ties: np.ndarray
    margin: np.ndarray
    dead: np.ndarray
    gauged: np.ndarray

    @classmethod
    def blank(cls, K: int) -> "Report":
        """The report of K checkpoints in which nothing has been looked at."""
        counts = np.zeros(K, np.int64)
        return cls(counts, np.full(K, np.inf), counts.copy(), np.ones(K, bool))

    def compare(self, gaps: np.ndarray) -> None:
        """Count the gaps (K, ...) between neighbouring keys, in place."""
        axes = tuple(range(1, gaps.ndim))
        self.ties[:] += (gaps == 0).sum(axis=axes)
        self.margin[:] = np.minimum(self.margin, gaps.min(axis=axes, initial=np.inf))

    def set(self, rows: np.ndarray, found: "Report") -> None:
        """Put another report's rows in place."""
        for name in ("ties", "margin", "dead", "gauged"):
            getattr(self, name)[rows] = getattr(found, name)

    def refuse(self, rows: np.ndarray) -> None:
        """Mark rows as left as they were."""
        self.ties[rows], self.dead[rows] = 0, 0
        self.margin[rows], self.gauged[rows] = np.nan, False

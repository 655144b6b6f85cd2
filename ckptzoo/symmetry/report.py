"""The report on each checkpoint that a gauge brings to its representative."""

from dataclasses import dataclass, fields

import numpy as np

from ckptzoo.text import brief_repr


@dataclass(frozen=True, eq=False)
class Report:
    """Per checkpoint, how well the gauge is defined there.

    Parameters
    ----------
    ties
        (K,) int64, neighbouring channels whose first keys are equal.
    margin
        (K,) float64, the smallest gap between neighbouring keys; infinite where nothing was ordered. With matrices
        also the smallest relative gap between neighbouring singular values or eigenvalues.
    unresolved
        (K,) bool, where ties are left that a bounded search could not break, or a sign or a scale that nothing
        determines: the weights are in the gauge, but another checkpoint of the orbit may come to others.
    dead
        (K,) int64, channels that nothing writes: no weights, no bias.
    clamped
        (K,) int64, filters that could not be scaled to unit norm, because their running variance reached 0.
    degenerate
        (K,) int64, channels in blocks of matrices whose product of weights has a lower rank: they are 0 in the gauge.
    gauged
        (K,) bool, False where the checkpoint stays as it was: its weights are not finite, or would not be in the gauge.
        Such a row has no ties, no dead channels and a margin of NaN.
    """

    ties: np.ndarray
    unresolved: np.ndarray
    margin: np.ndarray
    dead: np.ndarray
    clamped: np.ndarray
    degenerate: np.ndarray
    gauged: np.ndarray

    __repr__ = brief_repr

    def __getitem__(self, rows: np.ndarray) -> "Report":
        """The report of some of the checkpoints, a copy."""
        return Report(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def blank(cls, K: int) -> "Report":
        """The report of K checkpoints in which nothing has been looked at.

        Parameters
        ----------
        K
            how many.
        """
        none = np.zeros(K, np.int64)
        return cls(none, np.zeros(K, bool), np.full(K, np.inf), none.copy(), none.copy(), none.copy(), np.ones(K, bool))

    def compare(self, gaps: np.ndarray) -> None:
        """Count the gaps (K, ...) between neighbouring keys, in place.

        Parameters
        ----------
        gaps
            distances of neighbouring keys, along the axes behind the first.
        """
        axes = tuple(range(1, gaps.ndim))
        self.ties[:] += (gaps == 0).sum(axis=axes)
        self.margin[:] = np.minimum(self.margin, gaps.min(axis=axes, initial=np.inf))

    def set(self, rows: np.ndarray, found: "Report") -> None:
        """Put another report's rows in place.

        Parameters
        ----------
        rows
            positions in this report.
        found
            the report of these checkpoints alone.
        """
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(found, field.name)

    def refuse(self, rows: np.ndarray) -> None:
        """Mark rows as left as they were.

        Parameters
        ----------
        rows
            positions in this report.
        """
        self.ties[rows], self.dead[rows], self.clamped[rows], self.degenerate[rows] = 0, 0, 0, 0
        self.margin[rows], self.gauged[rows], self.unresolved[rows] = np.nan, False, False

"""Principal components of many samples: how much variance is along how many directions, in bounded memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import Problem, ZooError

Values = NDArray[np.float64]

_PIECE = 2**22
"""Numbers of a block that are centred at a time: 32 MiB of float64."""


@dataclass(frozen=True, eq=False)
class Components:
    """Variances along the principal components of a sample: (min(K - 1, d),), descending, with the divisor K - 1."""

    variances: Values

    @property
    def total(self) -> float:
        """The sum of the variances, which is that of the columns."""
        return float(self.variances.sum())

    @property
    def ratios(self) -> Values:
        """Each variance over the total; NaN where nothing varies."""
        return self.variances / self.total if self.total > 0 else np.full(len(self.variances), np.nan)

    @property
    def cumulative(self) -> Values:
        """The share of the total that the first 1, 2, ... components hold; NaN where nothing varies."""
        return np.cumsum(self.ratios)

    def needed(self, share: float) -> int | None:
        """How many components hold at least this share of the total; None where nothing varies."""
        # cumulative sums round, and the last may be slightly below 1
        return int(np.searchsorted(self.cumulative, share - 1e-12)) + 1 if self.total > 0 else None


def principal_components(samples: ArrayLike) -> Components:
    r"""The principal components' variances of K samples of d numbers.

    .. math:: \lambda_i = \frac{s_i^2}{K - 1}

    with s_i the singular values of the samples less their mean: the eigenvalues of the sample covariance (Pearson, "On
    lines and planes of closest fit to systems of points in space", 1901). ``samples`` are (K, d) with K of 2 or more
    and d of 1 or more. Raises ``ZooError`` for another shape. Through the smaller of the two Gram matrices: time K d
    min(K, d), memory min(K, d)^2 and a few copies of pieces. A variance is known to about 1e-15 of the largest one.
    Tested in ``tests/measure/test_components.py``.
    """
    array = np.asarray(samples)
    if array.ndim != 2:
        raise ZooError(_problem("principal_components", "(K, d)", str(array.shape)))
    K, d = array.shape
    sums = ByRows(d) if d < K else ByColumns(K)
    sums.add(array)
    return sums.components()


class ByRows:
    """Gathers the covariance of d columns from blocks of rows: (d, d), whatever the number of rows. ``d`` is the number
    of columns. Sums are of differences to the first row, so that a large mean costs no digits.
    """

    def __init__(self, d: int) -> None:
        if d < 1:
            raise ZooError(_problem("ByRows", "1 column or more", str(d)))
        self._origin: Values | None = None
        self._count, self._sum, self._products = 0, np.zeros(d), np.zeros((d, d))

    def add(self, block: NDArray[np.generic]) -> None:
        """Add rows (k, d)."""
        if block.ndim != 2 or block.shape[1] != len(self._sum):
            raise ZooError(_problem("ByRows", f"(k, {len(self._sum)})", str(block.shape)))
        for start in range(0, len(block), step := max(1, _PIECE // block.shape[1])):
            piece = block[start : start + step].astype(np.float64)
            if self._origin is None:
                self._origin = piece[0].copy()
            # sums of squares of numbers with a large mean would cancel
            piece -= self._origin
            self._count += len(piece)
            self._sum += piece.sum(axis=0)
            self._products += piece.T @ piece

    def components(self) -> Components:
        """Components of the rows so far, 2 or more."""
        if self._count < 2:
            raise ZooError(_problem("ByRows", "2 rows or more", str(self._count)))
        scatter = self._products - np.outer(self._sum, self._sum / self._count)
        return _components(scatter, self._count, len(self._sum))


class ByColumns:
    """Gathers the (K, K) Gram matrix of K rows, 2 or more, from blocks of columns, whatever their number."""

    def __init__(self, K: int) -> None:
        if K < 2:
            raise ZooError(_problem("ByColumns", "2 rows or more", str(K)))
        self._gram, self._columns = np.zeros((K, K)), 0

    def add(self, block: NDArray[np.generic]) -> None:
        """Add columns (K, c); each loses its mean."""
        if block.ndim != 2 or len(block) != len(self._gram):
            raise ZooError(_problem("ByColumns", f"({len(self._gram)}, c)", str(block.shape)))
        for start in range(0, block.shape[1], step := max(1, _PIECE // len(block))):
            piece = block[:, start : start + step].astype(np.float64)
            piece -= piece[0].copy()
            piece -= piece.mean(axis=0)
            self._gram += piece @ piece.T
        self._columns += block.shape[1]

    def components(self) -> Components:
        """Components of the columns so far, 1 or more."""
        if not self._columns:
            raise ZooError(_problem("ByColumns", "1 column or more", "none"))
        return _components(self._gram, len(self._gram), self._columns)


def _components(scatter: Values, K: int, d: int) -> Components:
    """From either Gram matrix of the centred samples."""
    if not np.isfinite(scatter).all():
        raise ZooError(_problem("principal_components", "finite numbers", "others"))
    # K centred samples span K - 1 dimensions at most: other eigenvalues are 0, and rounding can make them negative.
    eigenvalues = np.linalg.eigvalsh(scatter)[::-1][: min(K - 1, d)]
    return Components(eigenvalues.clip(0) / (K - 1))


def _problem(location: str, expected: str, got: str) -> Problem:
    return Problem(location, "samples", expected, got, "Pass one sample a row.")

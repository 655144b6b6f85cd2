"""The density of points in the plane: a kernel estimate, and its maxima that are more than noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.documents import JsonFields

GRID = 160
"""The number of cells along either axis."""
FEW = 50
"""The minimum number of points for an estimate."""
SIGMAS = 3
"""A maximum counts where it is at least this number of standard errors above the pass to a higher one."""
_WIDTH = 0.5
"""The kernel's width over that of Scott's rule."""
_FENCE = 0.75
"""The grid ends at most this number of ranges (of 90 % of the coordinates) beyond them."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Peak(JsonFields):
    """A maximum of a density; its ``share`` of the mass is in cells from which steepest ascent leads there."""

    place: tuple[float, float]
    height: float
    share: float


@dataclass(frozen=True, eq=False)
class Density:
    """A Gaussian kernel estimate on a square grid.

    ``low`` and ``high`` are the ends of both axes; ``heights`` are (GRID, GRID) densities at the cells' centres, the
    first axis for the first coordinate, None for fewer than ``FEW`` points or points without spread; ``widths`` are the
    kernel's standard deviations along both axes; ``inside`` is the fraction of the points on the grid; ``peaks`` are
    ordered from the highest share to the lowest.
    """

    low: float
    high: float
    heights: Values | None
    widths: tuple[float, float]
    inside: float
    peaks: tuple[Peak, ...]

    @property
    def centres(self) -> Values:
        """(GRID,) centres of the cells along either axis."""
        return self.low + (np.arange(GRID) + 0.5) * (self.high - self.low) / GRID

    def levels(self, shares: tuple[float, ...]) -> list[float]:
        """Ascending heights above which these shares of the estimated mass lie."""
        if self.heights is None:
            return []
        ordered = np.sort(self.heights.ravel())[::-1]
        mass = np.cumsum(ordered) / ordered.sum()
        # a set: matplotlib's contours need levels that increase
        return sorted({float(ordered[int(np.searchsorted(mass, share))]) for share in shares})


def density(points: Values) -> Density:
    r"""Estimate the density of points in the plane and find its peaks.

    .. math:: f(x) = \frac{1}{n} \sum_i N(x; x_i, \mathrm{diag}(h^2)), \qquad h = \frac{s}{2} n^{-1/6}

    with the standard deviations s of the points on the grid: half of Scott's rule, which is made for one peak. A
    maximum counts as a peak where it exceeds the highest pass to a higher maximum by ``SIGMAS`` standard errors of
    their heights, of variance f / (4 pi n h_1 h_2) each (Wand and Jones, Kernel Smoothing, section 4.3); lower ones
    belong to the peak beyond the pass.

    ``points`` are (n, 2), finite. The grid ends at the outermost coordinate, or where that is closer, three quarters of
    the range that holds 90 % of all coordinates beyond its ends. 160 x 160 cells whatever n is. Tested in
    ``tests/studies/test_density_peaks.py``.
    """
    low, high = _range(points)
    inside = points[((points >= low) & (points <= high)).all(axis=1)]
    spread = inside.std(axis=0) if len(inside) else np.zeros(2)
    share = len(inside) / len(points)
    if len(inside) < FEW or not (spread > 0).all():
        return Density(low, high, None, (0.0, 0.0), share, ())
    step = (high - low) / GRID
    # Scott's rule is s n^(-1 / (d + 4)), with d = 2 axes
    width = np.maximum(step, _WIDTH * spread * len(inside) ** (-1 / 6))
    counts = np.histogram2d(inside[:, 0], inside[:, 1], bins=GRID, range=((low, high), (low, high)))[0]
    heights = _smoothed(_smoothed(counts, width[0] / step).T, width[1] / step).T
    # a mass of 1 on the grid: kernels at its border reach beyond it
    heights /= heights.sum() * step**2
    # 1 / (4 pi h_1 h_2) is the integral of the squared kernel
    noise = (4 * np.pi * len(inside) * width[0] * width[1]) ** -0.5
    estimate = Density(low, high, heights, (float(width[0]), float(width[1])), share, ())
    return Density(low, high, heights, estimate.widths, share, _peaks(heights, float(noise), estimate.centres))


def _range(points: Values) -> tuple[float, float]:
    """Ends of both axes, with a margin."""
    first, last = np.quantile(points, [0.05, 0.95])
    fence = _FENCE * (last - first)
    low, high = max(points.min(), first - fence), min(points.max(), last + fence)
    # equal points have no range
    margin = 0.05 * float(high - low) or 0.5
    return float(low) - margin, float(high) + margin


def _smoothed(values: Values, cells: float) -> Values:
    """Rows convolved with a Gaussian of this standard deviation, in cells."""
    # as a matrix product; scipy, which has a filter for it, is no dependency of the base
    kernel = np.exp(-0.5 * (np.arange(-GRID, GRID + 1) / cells) ** 2)
    matrix = (kernel / kernel.sum())[np.subtract.outer(np.arange(GRID), np.arange(GRID)) + GRID]
    return matrix @ values


def _peaks(heights: Values, noise: float, centres: Values) -> tuple[Peak, ...]:
    """Cells from high to low: each joins the peak of its highest neighbour; where two peaks meet is their pass.
    ``noise`` is the standard error of a height over its root.
    """
    wide = GRID + 2
    padded = np.pad(heights, 1, constant_values=-1.0).ravel()  # a border, so that every cell has eight neighbours
    # stable: cells of equal height have one order on every machine
    order = np.argsort(-padded, kind="stable")[: GRID**2].tolist()
    height_of: list[float] = padded.tolist()  # a list: the loop below reads single numbers
    around = (-wide - 1, -wide, -wide + 1, -1, 1, wide - 1, wide, wide + 1)
    owner = [-1] * len(height_of)
    tops: list[int] = []
    parent: list[int] = []
    mass: list[float] = []

    def root(peak: int) -> int:
        while parent[peak] != peak:
            peak = parent[peak]
        return peak

    for cell in order:
        visited = [cell + step for step in around if owner[cell + step] >= 0]
        if not visited:
            owner[cell] = len(tops)
            parent.append(len(tops))
            tops.append(cell)
            mass.append(height_of[cell])
            continue
        # peaks are numbered from the highest down; the first that is met keeps the others that are no more than noise
        highest, *lower = sorted({root(owner[neighbour]) for neighbour in visited})
        for peak in lower:
            top, saddle = height_of[tops[peak]], height_of[cell]
            # the variances of both heights are proportional to these, and add up
            if top - saddle <= SIGMAS * noise * (top + saddle) ** 0.5:
                parent[peak] = highest
                mass[highest] += mass[peak]
        owner[cell] = owner[max(visited, key=height_of.__getitem__)]
        mass[root(owner[cell])] += height_of[cell]
    total = sum(height_of[cell] for cell in order)
    peaks: list[Peak] = []
    for peak, top in enumerate(tops):
        if parent[peak] == peak:
            row, column = divmod(top, wide)
            place = float(centres[row - 1]), float(centres[column - 1])
            peaks.append(Peak(place, height_of[top], mass[peak] / total))
    return tuple(sorted(peaks, key=lambda peak: (-peak.share, peak.place)))

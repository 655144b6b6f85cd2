"""The hills of a density in the plane: a kernel estimate, and its maxima that are more than noise."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRID = 160
FEW = 50
"""Fewer points have no estimate."""
SIGMAS = 3
"""A maximum counts where it stands so many standard errors above the pass to a higher one."""
_WIDTH = 0.5
_FENCE = 0.75

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Hill:
    """A maximum of a density, and what runs down from it.

    Parameters
    ----------
    place : where the maximum is.
    height : the density there.
    share : of the estimated mass, that of the cells from which the steepest way up leads there.
    """

    place: tuple[float, float]
    height: float
    share: float

    def to_json(self) -> dict[str, Any]:
        """The three by name."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Density:
    """A Gaussian kernel estimate on a square grid.

    Parameters
    ----------
    low, high : the ends of both axes.
    heights : (GRID, GRID) densities at the cells' centres, the first axis for the first coordinate; None for fewer than
        ``FEW`` points or points without spread.
    widths : the kernel's standard deviations along both axes.
    inside : fraction of the points on the grid.
    hills : from the highest share to the lowest.
    """

    low: float
    high: float
    heights: Values | None
    widths: tuple[float, float]
    inside: float
    hills: tuple[Hill, ...]

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
        return sorted({float(ordered[int(np.searchsorted(mass, share))]) for share in shares})


def density(points: Values) -> Density:
    r"""Estimate the density of points in the plane and find its hills.

    .. math:: f(x) = \frac{1}{n} \sum_i N(x; x_i, \mathrm{diag}(h^2)), \qquad h = \frac{s}{2} n^{-1/6}

    with the standard deviations s of the points on the grid: half of Scott's rule, which is made for one hill. A
    maximum counts as a hill where it exceeds the highest pass to a higher maximum by ``SIGMAS`` standard errors of
    their heights, of variance f / (4 pi n h_1 h_2) each (Wand and Jones, Kernel Smoothing, section 4.3); lower ones
    belong to the hill behind the pass.

    Parameters
    ----------
    points : (n, 2), finite.

    Notes
    -----
    The grid ends at the outermost coordinate, or where that is closer, three quarters of the range that holds 90 % of
    all coordinates beyond its ends. 160 x 160 cells whatever n is. Known answers:
    ``tests/studies/test_hills.py``.
    """
    low, high = _range(points)
    inside = points[((points >= low) & (points <= high)).all(axis=1)]
    spread = inside.std(axis=0) if len(inside) else np.zeros(2)
    share = len(inside) / len(points)
    if len(inside) < FEW or not (spread > 0).all():
        return Density(low, high, None, (0.0, 0.0), share, ())
    step = (high - low) / GRID
    width = np.maximum(step, _WIDTH * spread * len(inside) ** (-1 / 6))
    counts = np.histogram2d(inside[:, 0], inside[:, 1], bins=GRID, range=((low, high), (low, high)))[0]
    heights = _smoothed(_smoothed(counts, width[0] / step).T, width[1] / step).T
    heights /= heights.sum() * step**2
    noise = (4 * np.pi * len(inside) * width[0] * width[1]) ** -0.5
    found = Density(low, high, heights, (float(width[0]), float(width[1])), share, ())
    return Density(low, high, heights, found.widths, share, _hills(heights, float(noise), found.centres))


def _range(points: Values) -> tuple[float, float]:
    """Ends of both axes, with a margin."""
    first, last = np.quantile(points, [0.05, 0.95])
    fence = _FENCE * (last - first)
    low, high = max(points.min(), first - fence), min(points.max(), last + fence)
    margin = 0.05 * float(high - low) or 0.5
    return float(low) - margin, float(high) + margin


def _smoothed(values: Values, cells: float) -> Values:
    """Rows convolved with a Gaussian of so many cells."""
    kernel = np.exp(-0.5 * (np.arange(-GRID, GRID + 1) / cells) ** 2)
    matrix = (kernel / kernel.sum())[np.subtract.outer(np.arange(GRID), np.arange(GRID)) + GRID]
    return matrix @ values


def _hills(heights: Values, noise: float, centres: Values) -> tuple[Hill, ...]:
    """Cells from high to low: each joins the hill of its highest neighbour; where two hills meet is their pass.

    ``noise`` is the standard error of a height over its root.
    """
    wide = GRID + 2
    padded = np.pad(heights, 1, constant_values=-1.0).ravel()
    order = np.argsort(-padded, kind="stable")[: GRID**2].tolist()
    up: list[float] = padded.tolist()
    around = (-wide - 1, -wide, -wide + 1, -1, 1, wide - 1, wide, wide + 1)
    owner = [-1] * len(up)
    peaks: list[int] = []
    behind: list[int] = []
    mass: list[float] = []

    def root(hill: int) -> int:
        while behind[hill] != hill:
            hill = behind[hill]
        return hill

    for cell in order:
        near = [cell + step for step in around if owner[cell + step] >= 0]
        if not near:
            owner[cell] = len(peaks)
            behind.append(len(peaks))
            peaks.append(cell)
            mass.append(up[cell])
            continue
        highest, *lower = sorted({root(owner[at]) for at in near})
        for hill in lower:
            top, saddle = up[peaks[hill]], up[cell]
            if top - saddle <= SIGMAS * noise * (top + saddle) ** 0.5:
                behind[hill] = highest
                mass[highest] += mass[hill]
        owner[cell] = owner[max(near, key=up.__getitem__)]
        mass[root(owner[cell])] += up[cell]
    found: list[Hill] = []
    for hill, peak in enumerate(peaks):
        if behind[hill] == hill:
            row, column = divmod(peak, wide)
            place = float(centres[row - 1]), float(centres[column - 1])
            found.append(Hill(place, up[peak], mass[hill] / sum(up[cell] for cell in order)))
    return tuple(sorted(found, key=lambda hill: (-hill.share, hill.place)))

"""Sums of Laplace and Gaussian kernels over the pairs of two samples, as they are and with labels exchanged."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from ckptzoo.measure.bandwidths import COUNT
from ckptzoo.measure.panels import Panel
from ckptzoo.measure.threads import share

PIECE = 2**16
"""Distances whose kernels are computed at a time."""

Values = NDArray[np.float64]
Host = Callable[[Any], Any]


def exponent(panel: Panel, rows: slice, bandwidths: Values, number: int) -> Any:
    """A new array of one kernel's exponents for some rows of a panel; minus infinity where a pair does not count."""
    b = float(bandwidths[number])
    return panel.manhattan[rows] * (-1 / b) if number < COUNT else panel.squares[rows] * (-1 / b / b)


def unbiased(within_x: Any, within_y: Any, across: Any, m: int, n: int) -> Any:
    r"""The unbiased estimate of the squared maximum mean discrepancy from sums of a kernel.

    .. math:: \frac{1}{m(m-1)} \sum_{i \ne j} k(x_i, x_j) + \frac{1}{n(n-1)} \sum_{i \ne j} k(y_i, y_j)
        - \frac{2}{mn} \sum_{i, j} k(x_i, y_j)

    (Gretton et al., "A kernel two-sample test", JMLR 2012, equation 3.)

    Parameters
    ----------
    within_x, within_y : sums over the unordered pairs of different rows of one sample.
    across : the sum over all pairs of a row of X and a row of Y.
    """
    return 2 * within_x / (m * (m - 1)) + 2 * within_y / (n * (n - 1)) - 2 * across / (m * n)


def estimates(panels: Sequence[Panel], m: int, n: int, bandwidths: Values, host: Host) -> Values:
    """(20,) the estimate of every kernel.

    Parameters
    ----------
    host : brings an array to numpy.
    """
    columns = m + n
    step = max(1, PIECE // columns)
    pieces = [
        (panel, slice(start, start + step)) for panel in panels for start in range(0, panel.stop - panel.start, step)
    ]
    sums = np.empty((len(pieces), 2 * COUNT, 2))

    def act(at: int) -> None:
        panel, rows = pieces[at]
        cut = panel.cut
        for number in range(2 * COUNT):
            kernel = exponent(panel, rows, bandwidths, number)
            xp: Any = array_namespace(kernel)
            xp.exp(kernel, out=kernel)
            sums[at, number] = [float(xp.sum(kernel[:, :cut])), float(xp.sum(kernel[:, cut:]))]

    share(range(len(pieces)), lambda: act)
    of_x = np.array([panel.cut > 0 for panel, _ in pieces])
    left, right = sums[of_x].sum(axis=0).T
    return unbiased(left, sums[~of_x, :, 1].sum(axis=0), right, m, n)


def relabelled(panels: Sequence[Panel], m: int, n: int, bandwidths: Values, labels: Any) -> Iterator[Any]:
    """For every kernel the (B,) estimates of B ways to call m of the rows X and the others Y.

    With K the kernel's matrix without its diagonal and z the indicator of X, the sums over ordered pairs are
    ``z'Kz`` within X, ``z'K1 - z'Kz`` across and ``1'K1 - 2 z'K1 + z'Kz`` within Y: one product of K with all labels
    does for all of them, a panel of K at a time.

    Parameters
    ----------
    labels : (m + n, B) float64 on the distances' device, 1 where a row is of X, else 0.
    """
    xp: Any = array_namespace(labels)
    for number in range(2 * COUNT):
        inside, degree = 0.0 * labels[0], 0.0 * labels[:, 0]
        for panel in panels:
            kernel = xp.exp(exponent(panel, slice(None), bandwidths, number))
            mine = slice(panel.start, panel.stop)
            inside += xp.sum(labels[mine] * (kernel @ labels[panel.start :]), axis=0)
            degree[mine] += xp.sum(kernel, axis=1)
            degree[panel.start :] += xp.sum(kernel, axis=0)
        of_x = degree @ labels
        across = of_x - 2 * inside
        yield unbiased(inside, (xp.sum(degree) - of_x - across) / 2, across, m, n)

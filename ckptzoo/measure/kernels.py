"""Sums of Laplace and Gaussian kernels over the pairs of two samples, as they are and with labels exchanged.

Bandwidths of kernels from distances: the rule of arXiv 2310.08287's code.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure.panels import Panel, share

COUNT = 10
"""Bandwidths of each norm."""
FIRST = 500
"""Rows of each sample that the rule looks at."""

Rule = Literal["paper", "fixed"]
RULES: tuple[Rule, ...] = ("paper", "fixed")


def bandwidths_of(distances: ArrayLike) -> NDArray[np.float64]:
    r"""Ten bandwidths, evenly spaced on a logarithmic scale, from distances in one norm.

    With :math:`d_{(0)} \le d_{(1)} \le \dots` the sorted distances and l their number:

    .. math::

        b_\min &= \tfrac{1}{2} \begin{cases} d_{(0)} & d_{(0)} \ge 0.1 \\
            \max(d_{(\lfloor 0.05\, l \rfloor)}, 0.1) & \text{else} \end{cases} \\
        b_\max &= 2 \max(d_{(l-1)}, 0.3) \\
        b_i &= b_\min (b_\max / b_\min)^{i/9}, \quad i = 0 \dots 9

    (the code of arXiv 2310.08287).

    Parameters
    ----------
    distances : at least one, in any shape, 0 or above and finite.

    Returns
    -------
    (10,) float64, increasing.

    Raises
    ------
    ZooError
        There is no distance, or one that is not finite or negative.

    Notes
    -----
    Held by ``tests/measure/test_bandwidths.py``.
    """
    found = np.asarray(distances, np.float64).ravel()
    if not len(found) or not np.isfinite(found).all() or found.min() < 0:
        got = "none" if not len(found) else f"{found.min()} to {found.max()}"
        step = "Pass distances of at least two rows whose sums do not overflow."
        raise ZooError(f"bandwidths: distances: expected finite ones, 0 or above, got {got}. {step}")
    least = float(found.min())
    if least < 0.1:
        place = len(found) // 20
        least = max(float(np.partition(found, place)[place]), 0.1)
    low, high = least / 2, 2 * max(float(found.max()), 0.3)
    return low * (high / low) ** (np.arange(COUNT) / (COUNT - 1))


def chosen(
    panels: Sequence[Panel], m: int, n: int, bandwidths: Rule | ArrayLike, host: Callable[[Any], NDArray[Any]]
) -> NDArray[np.float64]:
    """(20,) bandwidths: given ones, or the rule's for the distances in the panels, 10 for L1 and then 10 for L2.

    Parameters
    ----------
    bandwidths : ``paper`` looks at the distances between the first 500 rows of X and of Y; ``fixed`` at those among
        the first 500 rows of X, each pair once; or (20,) numbers.
    host : brings an array to numpy.

    Raises
    ------
    UnknownNameError
        No such rule.
    ZooError
        The given ones are not 20 finite numbers above 0, or distances are not finite.
    """
    if isinstance(bandwidths, str):
        if bandwidths not in RULES:
            raise UnknownNameError("mmd", "bandwidths", bandwidths, RULES)
        cross = bandwidths == "paper"
        squares = _first(panels, m, n, "squares", cross, host)
        return np.concatenate(
            [bandwidths_of(_first(panels, m, n, "manhattan", cross, host)), bandwidths_of(np.sqrt(squares))]
        )
    given = np.asarray(bandwidths, np.float64)
    if given.shape != (2 * COUNT,) or not (np.isfinite(given) & (given > 0)).all():
        got = f"{given.shape}" if given.shape != (2 * COUNT,) else f"{given.min()} to {given.max()}"
        step = "Give 10 for Laplace kernels and then 10 for Gaussian ones."
        raise ZooError(f"mmd: bandwidths: expected (20,) finite numbers above 0, got {got}. {step}")
    return given


def _first(
    panels: Sequence[Panel], m: int, n: int, norm: str, cross: bool, host: Callable[[Any], NDArray[Any]]
) -> NDArray[np.float64]:
    """The distances of one norm that a rule looks at."""
    most = min(m, FIRST)
    found: list[NDArray[np.float64]] = []
    for panel in panels:
        if panel.start >= most:
            break
        rows = slice(most - panel.start)
        columns = slice(panel.cut, panel.cut + min(n, FIRST)) if cross else slice(most - panel.start)
        block = host(getattr(panel, norm)[rows, columns])
        found.append(block.ravel() if cross else block[np.triu_indices(block.shape[0], 1, block.shape[1])])
    return np.concatenate(found)


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

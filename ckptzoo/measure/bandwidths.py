"""Bandwidths of kernels from distances: the rule of arXiv 2310.08287's code."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure.panels import Panel

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

"""Centred kernel alignment: how alike two networks' features are on the same inputs."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError

Values = NDArray[np.float64]


@checked
def linear_cka(first: ArrayLike, second: ArrayLike) -> float:
    r"""Return the debiased linear centred kernel alignment of two sets of features of the same inputs.

    .. math:: \frac{\mathrm{HSIC}(X X^\top, Y Y^\top)}
              {\sqrt{\mathrm{HSIC}(X X^\top, X X^\top)\, \mathrm{HSIC}(Y Y^\top, Y Y^\top)}}

    (Kornblith et al., arXiv 1905.00414), with the unbiased estimate of HSIC (Song et al., JMLR 2012), so that
    independent features have 0 on average however many there are.

    Parameters
    ----------
    first
        (N, F) features of N inputs, at least 4.
    second
        (N, G) features of the same inputs.

    Returns
    -------
    float
        1 for features that are rotations, reflections or multiples of one another, and around 0 for unrelated ones; NaN
        where features do not vary, or so little that an estimate is not positive.

    Raises
    ------
    ZooError
        They are no matrices of as many rows, or of fewer than 4.

    Notes
    -----
    Invariant under permutations of the features, rotations and one scale for all, not under a scale for each feature.
    Time and memory grow with N F G. Tested in tests/measure/test_cka.py.

    Examples
    --------
    >>> features = np.random.default_rng(0).standard_normal((50, 3))
    >>> round(linear_cka(features, 2 * features[:, ::-1]), 6)
    1.0
    """
    sides = [np.asarray(side, np.float64) for side in (first, second)]
    x, y = sides
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or len(x) < 4:
        got = f"{x.shape} and {y.shape}"
        step = "Pass features of the same inputs, one input a row."
        raise ZooError(Problem("linear_cka", "features", "(N, F) and (N, G) with N from 4", got, step))
    x, y = x - x.mean(0), y - y.mean(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(_hsic(x, y) / np.sqrt(_hsic(x, x) * _hsic(y, y)))


def _hsic(x: Values, y: Values) -> float:
    """Return the unbiased estimate of HSIC of linear kernels times N (N - 3), of centred features.

    The kernels' diagonals, which bias it, are the squared norms of the rows.
    """
    count = len(x)
    rows_x, rows_y = np.square(x).sum(1), np.square(y).sum(1)
    return float(
        np.square(x.T @ y).sum()
        - count / (count - 2) * (rows_x @ rows_y)
        + rows_x.sum() * rows_y.sum() / ((count - 1) * (count - 2))
    )

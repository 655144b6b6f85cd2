"""The correlation of two figures of pairs of members, where pairs share members: a Mantel test, and a bootstrap."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.schema.documents import JsonFields

LEVEL = 0.95
"""The level of the confidence interval."""
_ROUNDING = 1e-18
"""Variances of standardised figures below this count as 0."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class PairCorrelation(JsonFields):
    """The correlation of two figures of the pairs of some members.

    ``low`` and ``high`` are an interval of level ``LEVEL``; None without resamples, or where the figures of none of
    them varied; ``p_value`` is the two-sided one of no relation, None without permutations.
    """

    value: float
    low: float | None
    high: float | None
    p_value: float | None


def correlate_pairs(
    first: Values,
    second: Values,
    *,
    permutations: int = 1000,
    resamples: int = 1000,
    seed: int = 0,
    done: Callable[[], None] = lambda: None,
) -> dict[str, PairCorrelation]:
    r"""Pearson's and Spearman's correlation of two figures over the pairs of M members.

    The pairs i < j are not independent, as each member is in M - 1 of them. So what chance would do is found by a
    Mantel test ("The detection of disease clustering and a generalized regression approach", 1967): the members of one
    side are exchanged at random, :math:`y_{ij} \to y_{\pi(i) \pi(j)}`, which keeps what the pairs of one member have in
    common, and

    .. math:: p = \frac{1 + |\{ b : |r_b| \ge |r| \}|}{1 + B}.

    The interval is from quantiles over resamples of members with their pairs (the vertex bootstrap of Snijders and
    Borgatti, "Non-parametric standard errors and tests for network statistics", 1999): a pair counts as often as both
    of its members were drawn together; a member and its copy are no pair. Every resample has ranks of its own.

    Returns ``pearson`` and ``spearman``, the correlation of ranks, of which equal ones are the mean; empty where a
    figure is the same for all pairs, or there are fewer than three members. Raises ``ZooError`` if the shapes do not
    fit, or there are NaNs. Time M^2 for each permutation and resample (10 ms each for 1,000 members), memory some
    copies of M^2 numbers. Tested in ``tests/studies/test_pair_correlation.py``.

    ``first`` and ``second`` are (M, M) and symmetric, and their diagonals are ignored; ``permutations`` is B, and
    ``resamples`` is the number for the bootstrap, each 0 or more; ``done`` is called after each permutation and each
    resample.
    """
    if first.ndim != 2 or first.shape != second.shape or first.shape[0] != first.shape[1]:
        expected, got = "two of (M, M)", f"{first.shape} and {second.shape}"
        raise ZooError(Problem("pair correlation", "shapes", expected, got, "Pass figures of the same pairs."))
    if np.isnan(first).any() or np.isnan(second).any():
        raise ZooError(Problem("pair correlation", "figures", "numbers", "some that are not", "Leave them out."))
    M = len(first)
    left, right = np.triu_indices(M, 1)
    pairs = [figures[left, right].astype(np.float64) for figures in (first, second)]
    if M < 3 or any((figures == figures[0]).all() for figures in pairs):
        return {}
    sides, once = [_PairSide(figures) for figures in pairs], np.ones(len(left))
    values = _correlations(sides, once)
    # separate streams: the interval does not depend on the number of permutations, nor p on that of resamples
    drawn = np.random.SeedSequence(seed).spawn(2)
    rng = np.random.default_rng(drawn[0])
    exceeding = np.zeros(2)
    squares = [[_square(z, left, right, M) for z in (side.standard, _standardized(side.ranks(once)))] for side in sides]
    for _ in range(permutations):
        order = rng.permutation(M)
        # a symmetric matrix has every pair twice, so that M (M - 1) divides below
        products = [np.vdot(one, other[order[:, None], order]) for one, other in zip(*squares, strict=True)]
        # of few members some permutations change nothing, and rounding must not tell them from the figures as they are
        exceeding += np.abs(products) / (M * (M - 1)) >= np.abs(values) - 1e-9
        done()
    rng = np.random.default_rng(drawn[1])
    resampled = np.full((resamples, 2), np.nan)
    for row in range(resamples):
        copies = np.bincount(rng.integers(M, size=M), minlength=M)
        resampled[row] = _correlations(sides, (copies[left] * copies[right]).astype(np.float64))
        done()
    results: dict[str, PairCorrelation] = {}
    for index, name in enumerate(("pearson", "spearman")):
        known = resampled[:, index][np.isfinite(resampled[:, index])]
        low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist() if len(known) else (None, None)
        # the figures as they are count as one of the permutations, so that p is never 0
        p_value = float(1 + exceeding[index]) / (1 + permutations) if permutations else None
        results[name] = PairCorrelation(float(values[index]), low, high, p_value)
    return results


class _PairSide:
    """One figure of P pairs, of which two differ, and its ranks where pairs have weights. ``standard`` holds the (P,)
    figures with mean 0 and standard deviation 1.
    """

    def __init__(self, figures: Values) -> None:
        distinct, self._level_of = np.unique(figures, return_inverse=True)
        self._levels = len(distinct)
        self.standard = _standardized(figures)

    def ranks(self, weights: Values) -> Values:
        """(P,) the mean rank of each pair, where it counts ``weights`` times."""
        of_level = np.bincount(self._level_of, weights, minlength=self._levels)
        return (of_level.cumsum() - (of_level - 1) / 2)[self._level_of]


def _standardized(values: Values) -> Values:
    centred = values - values.mean()
    return centred / centred.std()


def _correlations(sides: list[_PairSide], weights: Values) -> Values:
    """(2,) Pearson's and Spearman's, where pairs have weights; NaN where a figure does not vary."""
    figures = [side.standard for side in sides], [side.ranks(weights) for side in sides]
    return np.array([_pearson(x, y, weights) for x, y in figures])


def _pearson(x: Values, y: Values, weights: Values) -> float:
    total = weights.sum()
    if not total:  # copies of one member are no pairs
        return np.nan
    x, y = (values - weights @ values / total for values in (x, y))
    xx, yy, xy = (weights @ values / total for values in (x * x, y * y, x * y))
    # standardised figures and ranks vary by more, or by nothing but rounding
    return float(np.clip(xy / np.sqrt(xx * yy), -1, 1)) if min(xx, yy) > _ROUNDING else np.nan


def _square(values: Values, left: NDArray[np.intp], right: NDArray[np.intp], members: int) -> Values:
    """(M, M) symmetric, from the values of the pairs, with a diagonal of 0."""
    square = np.zeros((members, members))
    square[left, right] = square[right, left] = values
    return square

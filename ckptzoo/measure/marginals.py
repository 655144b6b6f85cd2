"""Whether two samples come from one distribution, for many pairs of samples: Kolmogorov and Smirnov's test."""

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import Problem, ZooError, require

Values = NDArray[np.float64]


def equality(first: ArrayLike, second: ArrayLike) -> Values:
    r"""The p-value of each pair of samples under the hypothesis that both come from one continuous distribution.

    .. math:: p = P(D_{m,n} \ge d), \qquad d = \sup_x |F(x) - G(x)|

    with F and G the empirical distributions of the two samples, and D_{m,n} the same distance of two independent
    samples of m and n numbers of one continuous distribution, whatever it is (Smirnov, "Table for estimating the
    goodness of fit of empirical distributions", 1948). The two samples must be independent of each other.

    ``first`` and ``second`` are (P, m) and (P, n) with m and n of 1 or more: P pairs of samples. Returns (P,) float64
    in 0 .. 1: ``scipy.stats.ks_2samp`` of each pair, exact for up to 10,000 numbers a sample as long as m = n. p takes
    the values that d allows, and is at most each of them with that probability; equal numbers make it larger. NaN for a
    pair with a NaN. Raises ``ZooError`` if shapes differ in P, or a sample is empty, and ``MissingExtraError`` if scipy
    is not installed.

    Time P n log n where m = n, memory a few copies. Two samples of n are never closer than 1 / n, where p is 1; scipy's
    sum can round to more than 1 there and is given up for an approximation, so that 1 is put in its place. Tested
    against the formula of Gnedenko and Korolyuk and against all permutations in ``tests/measure/test_marginals.py``.
    """
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or not x.shape[1] or not y.shape[1]:
        expected, got = "(P, m) and (P, n), m and n above 0", f"{x.shape} and {y.shape}"
        raise ZooError(Problem("equality", "shapes", expected, got, "Pass one pair of samples a row."))
    if not len(x):
        return np.empty(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning)
        result = require("scipy.stats", "stats").ks_2samp(x, y, axis=1)
    # The distance of two samples of n is a multiple of 1 / n: below 1.5 / n it is the least one, where p is 1.
    closest = result.statistic * x.shape[1] < 1.5 if x.shape == y.shape else False
    return np.where(closest, 1.0, result.pvalue)


def uniformity(p: ArrayLike) -> float:
    r"""The p-value of p-values under the hypothesis that they are uniform or larger: ``P(p <= a) <= a`` for every a.

    .. math:: P(D_N^+ \ge d), \qquad d = \max_i \, (F(p_i) - p_i)

    with F the empirical distribution of the N p-values, and D_N^+ the one-sided distance of Kolmogorov's test for N
    uniform numbers (Smirnov, "Approximate laws of distribution of random variables from empirical data", 1944). Only an
    excess of small p-values counts: those of tests with few outcomes, or of samples with equal numbers, are larger than
    uniform ones and no evidence against anything.

    .. math:: P(D_N^+ \ge d) = d \sum_{j=0}^{\lfloor N (1 - d) \rfloor} \binom{N}{j}
        \left(d + \frac{j}{N}\right)^{j-1} \left(1 - d - \frac{j}{N}\right)^{N-j}

    (Birnbaum and Tingey, "One-sided confidence contours for probability distribution functions", 1951.) ``p`` is (N,)
    p-values, independent of each other. The result is in 0 .. 1; NaN where there are none. Time and memory of a few
    copies. Its size is tested in ``tests/measure/test_marginals.py``.
    """
    values, counts = np.unique(np.asarray(p, np.float64), return_counts=True)
    if not len(values):
        return float("nan")
    distance = (np.cumsum(counts) / counts.sum() - values).max()
    if distance <= 0:
        return 1.0
    # all terms are positive, so that nothing is lost by their logarithms
    N = int(counts.sum())
    j = np.arange(int(np.floor(N * (1 - distance))) + 1)
    # the last term is 0 where its base is, unless its exponent is too
    rest = np.maximum(1 - distance - j / N, 0)
    with np.errstate(divide="ignore"):
        last = np.where(j == N, 0.0, (N - j) * np.log(rest))
    gamma = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, N + 1)))])
    terms = gamma[N] - gamma[j] - gamma[N - j] + (j - 1) * np.log(distance + j / N) + last
    return min(1.0, float(distance * np.exp(terms).sum()))

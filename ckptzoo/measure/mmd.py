"""Maximum mean discrepancy between two samples of weights, with 20 kernels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.arguments import ARRAY, Count, Seed, checked
from ckptzoo.measure.distances import Distances
from ckptzoo.measure.kernels import Rule

TOLERANCE = 1e-12
"""Statistics that are as close as this count as equal: sums of kernels, which are at most 1, differ by rounding."""


@checked
def mmd2(x: ARRAY, y: ARRAY, bandwidths: Rule | ArrayLike = "paper") -> NDArray[np.float64]:
    r"""Twenty unbiased estimates of the squared maximum mean discrepancy between two samples, one a kernel.

    As the code of arXiv 2310.08287 computes it:

    1. Kernels: 10 Laplace, :math:`\exp(-\|x - y\|_1 / b)`, then 10 Gaussian, :math:`\exp(-(\|x - y\|_2 / b)^2)`,
       without a factor 2.
    2. Bandwidths: for each norm, from the distances d between the first 500 rows of X and the first 500 of Y.
       :math:`b_\min = \min d`; if that is below 0.1, :math:`b_\min = \max(d_{(\lfloor 0.05\,l \rfloor)}, 0.1)` with d
       sorted and l their number; then :math:`b_\min \leftarrow b_\min / 2`. :math:`b_\max = 2 \max(\max d, 0.3)`.
       :math:`b_i = b_\min (b_\max / b_\min)^{i/9}` for i = 0 to 9.
    3. For each kernel k the unbiased estimate, self-pairs excluded, which can be slightly negative:

       .. math:: \frac{1}{m(m-1)} \sum_{i \ne j} k(x_i, x_j) + \frac{1}{n(n-1)} \sum_{i \ne j} k(y_i, y_j)
           - \frac{2}{mn} \sum_{i, j} k(x_i, y_j)

       (Gretton et al., JMLR 2012, equation 3.)
    4. The paper takes the median of the twenty, averages it over layers weighted by their number of parameters, and
       prints 100 times that: ``ckptzoo.studies.mmd``.

    Parameters
    ----------
    x
        (m, d) the target's rows, m of 2 or more; numpy or torch, floats of 2, 4 or 8 bytes; trailing axes are columns.
    y
        (n, d) rows to compare, n of 2 or more.
    bandwidths
        ``"paper"``, step 2, which depends on Y; ``"fixed"``, step 2 with the distances among the first 500 rows of X
        alone, each pair once, so that several Y share their kernels; or (20,) numbers, Laplace first.

    Returns
    -------
    NDArray[np.float64]
        (20,) float64 of numpy, in the order of step 1.

    Raises
    ------
    ZooError
        Fewer than 2 rows, shapes that do not fit, or rows that are not finite, which are named.

    Notes
    -----
    Time (m + n)^2 d / 2 absolute differences and as many multiplications, on one thread a core; memory as
    ``Distances``, which also takes columns block by block. Torch tensors stay on their device. Tested against
    loops over the definition in ``tests/measure/test_mmd.py``.
    """
    distances = Distances(len(x), len(y))
    distances.add(x, y)
    return distances.mmd2(bandwidths)


@dataclass(frozen=True, eq=False)
class MMDTest:
    """A permutation test.

    Parameters
    ----------
    mmd2
        (20,) as from the function ``mmd2``.
    statistic
        the median of them.
    null
        (B,) the same median after B exchanges of rows between X and Y.
    p
        of ``p_value``.
    """

    mmd2: NDArray[np.float64]
    statistic: float
    null: NDArray[np.float64]
    p: float


@checked
def mmd_test(
    x: ARRAY, y: ARRAY, bandwidths: Rule | ArrayLike = "paper", *, permutations: Count = 1000, seed: Seed = 0
) -> MMDTest:
    """Whether two samples come from one distribution: a permutation test of the median of the twenty estimates.

    Parameters
    ----------
    x, y, bandwidths
        as in ``mmd2``. The p-value is exact for bandwidths that do not depend on which rows are X's, such as given
        ones; with those of a rule, which are kept for all permutations, it is approximate.
    permutations
        B, 1 or more.
    seed
        equal seeds give equal results.

    Raises
    ------
    ZooError
        As ``mmd2``, or permutations is below 1.

    Notes
    -----
    Distances and kernels are computed once: see ``Distances.null``. Tested against every permutation of a small
    sample in ``tests/measure/test_mmd.py``.
    """
    distances = Distances(len(x), len(y))
    distances.add(x, y)
    kernels = distances.bandwidths(bandwidths)
    estimates = distances.mmd2(kernels)
    statistic = float(np.median(estimates))
    null = np.median(distances.null(kernels, permutations=permutations, seed=seed), axis=0)
    return MMDTest(estimates, statistic, null, p_value(statistic, null))


@checked
def p_value(statistic: float, null: NDArray[np.float64]) -> float:
    r"""The share of permutations, with the one observed among them, whose statistic is as large.

    .. math:: p = \frac{1 + \#\{b : T_b \ge T\}}{1 + B}

    (Phipson and Smyth, "Permutation p-values should never be zero", 2010.) Statistics within ``TOLERANCE`` are equal.

    Parameters
    ----------
    statistic
        the observed one, T.
    null
        (B,) those of the permutations.
    """
    values = np.atleast_1d(null)
    return float((1 + (values >= statistic - TOLERANCE).sum()) / (1 + len(values)))

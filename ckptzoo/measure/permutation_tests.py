"""Whether two networks were trained from independent initial weights: an exact test by permutations of neurons."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import Seed, checked
from ckptzoo.errors import Problem, ZooError

Values = NDArray[np.float64]
_BYTES = 8 * 2**20
"""Bytes of similarities under permutations that are in memory at a time, unless one pair has more."""
_ROUNDING = 1e-9
"""Sums of similarities, each at most 1, that differ by less than this times their number count as equal: a permutation
that exchanges equal neurons changes the order of summation alone."""


@dataclass(frozen=True, eq=False)
class Independence:
    """The test of P pairs.

    Parameters
    ----------
    p
        (P,) p-values under the hypothesis that the networks of a pair are independent.
    statistic
        (P,) sums of the similarities of corresponding neurons.
    excess
        (P,) how far these are above their mean over the permutations, in standard deviations; 0 where all are equal.
    """

    p: Values
    statistic: Values
    excess: Values


@checked
def independence(
    similarities: Sequence[NDArray[np.floating]], orders: Sequence[NDArray[np.integer]], *, seed: Seed = 0
) -> Independence:
    r"""Test pairs of networks for independence: are corresponding neurons more similar than neurons by chance?

    .. math:: p = \frac{1}{T} \#\{ t : \phi(\pi_t \pi_s^{-1} A, B) \ge \phi(A, B) \},
        \qquad \phi(A, B) = \sum_g \sum_i c_g(A_i, B_i)

    with the similarity c of neuron i of group g in both networks and T permutations of a group of permutations, of
    which s is drawn for each pair. Training commutes with permutations of the hidden neurons, so that independent
    random initial weights, whose distribution no permutation changes, give networks A and ``pi A`` of one distribution
    given B: ``P(p <= a) <= a`` for every a, whatever the data and the optimiser (Zhu et al., arXiv 2502.12292). The
    random s makes that exact for any fixed permutations, and the p-values of independent pairs independent, though all
    pairs share the permutations (Ramdas et al., arXiv 2204.13581).

    Parameters
    ----------
    similarities
        for each group of neurons (P, n, n): of neuron i of the first network and neuron j of the second, such as the
        cosine of their incoming weights. Those that are not finite count as 0.
    orders
        for each group (T, n): uniform permutations, drawn independently of the networks; row t of all groups is one
        element. Neurons ``order[i]`` of the first network come to place i.
    seed
        of the random s.

    Returns
    -------
    Independence
        The p-values are multiples of 1 / T, and not below 1 over the number of elements of the group by more than
        chance.

    Raises
    ------
    ZooError
        The shapes do not fit.

    Notes
    -----
    Neurons that were permuted after training in one of the two networks look independent: for such copies see
    ``ckptzoo.derive.dedupe``. P T n lookups. Tested in tests/measure/test_permutation_tests.py.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> first = rng.standard_normal((3, 8, 20))
    >>> second = np.stack([first[0] + 0.5 * rng.standard_normal((8, 20)), *rng.standard_normal((2, 8, 20))])
    >>> orders = rng.permuted(np.tile(np.arange(8), (1000, 1)), axis=1)
    >>> independence([first @ second.swapaxes(1, 2)], [orders]).p < 0.01
    array([ True, False, False])
    """
    shapes = [array.shape for array in similarities], [array.shape for array in orders]
    pairs, elements = ({shape[:1] for shape in some} for some in shapes)
    if not shapes[0] or len(pairs) != 1 or len(elements) != 1 or (0,) in elements or len(shapes[0]) != len(shapes[1]):
        fits = False
    else:
        fits = all(
            len(one) == 3 and len(other) == 2 and one[1:] == 2 * other[1:] for one, other in zip(*shapes, strict=True)
        )
    if not fits:
        expected, got = "(P, n, n) and (T, n), T of 1 or more, for each group", f"{shapes[0]} and {shapes[1]}"
        raise ZooError(Problem("independence", "shapes", expected, got, "Pass one of each for every group."))
    (P,), (T,) = pairs.pop(), elements.pop()
    shown = np.random.default_rng(np.random.SeedSequence(seed)).integers(T, size=P)
    size = sum(shape[1] for shape in shapes[1])
    step = max(1, _BYTES // (8 * T * max(shape[1] for shape in shapes[1])))
    found = np.empty((3, P))
    for start in range(0, P, step):
        some = slice(start, start + step)
        sums = np.zeros((len(shown[some]), T))
        for array, order in zip(similarities, orders, strict=True):
            sums += _sums(array[some], order, shown[some])
        own = np.take_along_axis(sums, shown[some, None], 1)
        deviation = sums.std(axis=1)
        distance = own[:, 0] - sums.mean(axis=1)
        found[0, some] = (sums >= own - _ROUNDING * size).mean(axis=1)
        found[1, some] = own[:, 0]
        # without spread there is nothing but rounding
        found[2, some] = np.divide(distance, deviation, out=np.zeros_like(distance), where=deviation > _ROUNDING * size)
    return Independence(*found)


def independence_of_all(
    similarities: Sequence[NDArray[np.floating]], orders: Sequence[NDArray[np.integer]], *, seed: int
) -> tuple[float, int]:
    r"""Test one network against all of P others at once, whatever the others' dependence on each other.

    As ``independence``, with one s for all and the statistic ``max_p phi(A, B_p)``. Returns its p-value and the place
    of the other network that is most similar.
    """
    P, T = len(similarities[0]), len(orders[0])
    shown = int(np.random.default_rng(np.random.SeedSequence(seed)).integers(T))
    most, own = np.full(T, -np.inf), np.empty(P)
    size = sum(array.shape[1] for array in orders)
    step = max(1, _BYTES // (8 * T * max(array.shape[1] for array in orders)))
    for start in range(0, P, step):
        some = slice(start, start + step)
        count = len(own[some])
        sums = np.zeros((count, T))
        for array, order in zip(similarities, orders, strict=True):
            sums += _sums(array[some], order, np.full(count, shown))
        own[some] = sums[:, shown]
        most = np.maximum(most, sums.max(axis=0))
    return float((most >= most[shown] - _ROUNDING * size).mean()), int(own.argmax())


def holm(p: Values) -> Values:
    r"""Adjust the p-values (P,) of all tests that were made, whatever their dependence (Holm, 1979).

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min(1, (P - j + 1) \, p_{(j)})

    Of tests whose adjusted p-value is at most a, any hypothesis is rejected wrongly with probability a or less.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def _sums(similarities: NDArray[np.floating], orders: NDArray[np.integer], shown: NDArray[np.int64]) -> Values:
    """Return (P, T) sums over the neurons of one group; row ``shown`` of the permutations gives those as they are."""
    P, n = similarities.shape[:2]
    # the neurons of the first network by the inverse of their row, so that this row puts them back
    inverse = np.argsort(orders[shown], axis=1)
    placed = np.take_along_axis(similarities, inverse[:, :, None], 1).astype(np.float64).reshape(P, n * n)
    # one NaN would make every comparison of sums false, and p 0
    placed[~np.isfinite(placed)] = 0
    return np.take(placed, orders * n + np.arange(n), axis=1).sum(axis=2)

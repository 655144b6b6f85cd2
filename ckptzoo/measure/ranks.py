"""The similarity of two orders: Kendall's tau with and without ties, and its expectation by chance."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import Problem, ZooError

Values = NDArray[np.float64]


def kendall(first: ArrayLike, second: ArrayLike) -> Values:
    r"""Kendall's tau (tau-a: no ties) of two vectors of ranks or of keys.

    .. math:: \tau = \frac{C - D}{n (n - 1) / 2}

    where C of the pairs of entries are in the same order in both vectors and D are not (Kendall, "A new measure of rank
    correlation", 1938). ``first`` and ``second`` are (..., n) with n of 2 or more, no two entries of a vector equal;
    entry i belongs to the same thing in both. For sorted things these are the ranks, ``argsort(order)``, and not the
    orders themselves: the orders [0, 4, 1, 2, 3] and [4, 0, 1, 2, 3] have tau 0.8, and as if they were ranks -0.4.
    Returns (...,) float64 in -1 .. 1: 1 for the same order, -1 for the reverse, 0 expected for unrelated ones. Raises
    ``ZooError`` if shapes differ, n is below 2, or entries are equal (``kendall_tau_b`` takes those) or not a number.
    Time n log(n)^2 by merging, memory a few copies. Tested against the definition in ``tests/measure/test_ranks.py``.

    Examples
    --------
    >>> float(kendall([1, 2, 3, 4], [1, 2, 4, 3]))
    0.6666666666666666
    """
    x, y = _checked_pair("kendall", first, second)
    n = x.shape[-1]
    if not _distinct(x) or not _distinct(y):
        step = "Break the ties first, or use kendall_tau_b."
        raise ZooError(Problem("kendall", "entries", "different numbers", "equal or no numbers", step))
    relative = np.take_along_axis(_ranks(y), np.argsort(x, axis=-1), -1)
    pairs = n * (n - 1) // 2
    return (pairs - 2 * _inversions(relative.reshape(-1, n))).reshape(x.shape[:-1]) / pairs


def kendall_tau_b(first: ArrayLike, second: ArrayLike) -> Values:
    r"""Kendall's tau-b of two vectors of ranks or of keys, which may have ties.

    .. math:: \tau_b = \frac{C - D}{\sqrt{(n_0 - n_1)(n_0 - n_2)}}, \quad n_0 = \frac{n (n - 1)}{2}, \quad
        n_1 = \sum_i \frac{t_i (t_i - 1)}{2}, \quad n_2 = \sum_j \frac{u_j (u_j - 1)}{2}

    where C of the pairs of entries are in the same order in both vectors, D are in opposite orders, and pairs that are
    tied in either vector are in neither; t_i and u_j are the sizes of the sets of equal entries in the first and in the
    second vector (Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945). Without ties it is
    ``kendall``, number by number.

    ``first`` and ``second`` are (..., n) with n of 2 or more, numbers; otherwise as in ``kendall``. Returns (...,)
    float64 in -1 .. 1; NaN where all entries of either vector are equal, as no pair then has an order to compare. 1 and
    -1 are reached only where the same pairs are tied in both vectors. Raises ``ZooError`` if shapes differ, n is below
    2, or an entry is not a number.

    C + D is ``n_0 - n_1 - n_2 + n_3`` with n_3 the pairs that are tied in both vectors, and D the inversions of the
    second vector once the entries are sorted by the first and then by the second (Knight, "A computer method for
    calculating Kendall's tau with ungrouped data", JASA 61, 1966). Time and memory as ``kendall``. Tested against the
    definition and ``scipy.stats.kendalltau`` in ``tests/measure/test_ranks.py``.

    Examples
    --------
    >>> float(kendall_tau_b([1, 1, 2, 3], [1, 2, 2, 3]))
    0.8
    >>> float(kendall_tau_b([5, 5, 5], [1, 2, 3]))
    nan
    """
    x, y = _checked_pair("kendall_tau_b", first, second)
    if (x != x).any() or (y != y).any():
        step = "Leave those entries out."
        raise ZooError(Problem("kendall_tau_b", "entries", "numbers", "some that are not", step))
    n = x.shape[-1]
    order = np.lexsort((y, x), axis=-1)
    x, y = np.take_along_axis(x, order, -1), np.take_along_axis(y, order, -1)
    pairs = n * (n - 1) // 2
    y_order = np.argsort(y, axis=-1, kind="stable")
    tied_x, tied_both = _tied_pairs(_changes(x)), _tied_pairs(_changes(x) | _changes(y))
    tied_y = _tied_pairs(_changes(np.take_along_axis(y, y_order, -1)))
    # Equal entries of the second vector have increasing ranks here, so that no tie counts as an inversion.
    discordant = _inversions(_inverse(y_order).reshape(-1, n)).reshape(x.shape[:-1])
    difference = pairs - tied_x - tied_y + tied_both - 2 * discordant
    ordered_x, ordered_y = pairs - tied_x, pairs - tied_y
    # A product of equal roots would round, and tau-b without ties would not be tau to the last bit.
    mean = np.where(ordered_x == ordered_y, ordered_x, np.sqrt(ordered_x) * np.sqrt(ordered_y))
    return np.divide(difference, mean, out=np.full(np.shape(mean), np.nan), where=mean > 0)


def normal_tau(correlation: ArrayLike) -> Values:
    r"""The tau to expect of two jointly normal keys with this correlation.

    .. math:: \mathrm{E}\,\tau = \frac{2}{\pi} \arcsin \rho

    For two things with keys (x, y) and (x', y') the differences x - x' and y - y' are jointly normal with the same
    correlation. They have the same sign with probability 1/2 + arcsin(rho) / pi (Sheppard, 1899), and
    E tau = P(same) - P(other) = 2 P(same) - 1, for any n (Kendall and Gibbons, "Rank correlation methods", chapter 10).
    """
    return 2 / np.pi * np.arcsin(np.asarray(correlation, np.float64))


def normal_tau_sd(correlation: ArrayLike, n: int) -> Values:
    r"""The standard deviation of tau for n things with two jointly normal keys of this correlation.

    .. math:: \mathrm{var}\,\tau = \frac{2}{n (n - 1)} \left[ 1 - \left( \frac{2}{\pi} \arcsin \rho \right)^2
        + 2 (n - 2) \left( \frac{1}{9} - \left( \frac{2}{\pi} \arcsin \frac{\rho}{2} \right)^2 \right) \right]

    (Esscher, 1924; Kendall and Gibbons, "Rank correlation methods", chapter 10.)
    """
    half = normal_tau(np.asarray(correlation, np.float64) / 2)
    variance = 1 - normal_tau(correlation) ** 2 + 2 * (n - 2) * (1 / 9 - half**2)
    return np.sqrt(np.maximum(variance, 0) * 2 / (n * (n - 1)))


def noise_tau(size: ArrayLike) -> Values:
    r"""The tau to expect between keys and the same keys plus independent normal noise.

    .. math:: \mathrm{E}\,\tau = \frac{2}{\pi} \arcsin \frac{1}{\sqrt{1 + d^2}}

    Keys x with standard deviation s, and y = x + d s e with e standard normal and independent of x: var(y) is s^2 (1 +
    d^2) and cov(x, y) is s^2, so their correlation is 1 / sqrt(1 + d^2); the rest is ``normal_tau``. ``size`` is d, the
    standard deviation of the change over that of the keys; 0 or above.
    """
    return normal_tau(1 / np.sqrt(1 + np.square(np.asarray(size, np.float64))))


def _checked_pair(location: str, first: ArrayLike, second: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = np.asarray(first), np.asarray(second)
    if x.shape != y.shape or not x.ndim or x.shape[-1] < 2:
        expected, got = "twice (..., n) with n above 1", f"{x.shape} and {y.shape}"
        raise ZooError(Problem(location, "shapes", expected, got, "Pass vectors of the same things."))
    return x, y


def _distinct(values: NDArray[Any]) -> bool:
    """Whether the entries of each row are distinct and none is NaN: comparisons with NaN are false."""
    ordered = np.sort(values, axis=-1)
    return bool((ordered[..., 1:] > ordered[..., :-1]).all())


def _ranks(values: NDArray[Any]) -> NDArray[np.int64]:
    return _inverse(np.argsort(values, axis=-1))


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The inverse of each row's permutation: ranks, where the rows are orders."""
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), -1)
    return ranks


def _changes(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """(..., n) where an entry differs from the one before it; the first one does."""
    changed = np.ones(ordered.shape, bool)
    changed[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return changed


def _tied_pairs(changes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the pairs of entries of each row without a change between them."""
    index = np.arange(changes.shape[-1])
    starts = np.maximum.accumulate(np.where(changes, index, 0), axis=-1)
    return (index - starts).sum(-1)


def _inversions(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the pairs of each row (K, n) that are out of order while merging runs of 1, 2, 4, ... entries.

    The place of an entry in the merged run, less its place in the left one, counts the smaller ones right of it.
    """
    K, n = rows.shape
    width = 1 << (n - 1).bit_length()
    # what fills a row up is larger than its ranks and in order, so that it adds no inversions
    runs = np.concatenate([rows, np.broadcast_to(np.arange(n, width), (K, width - n))], axis=1)
    count = np.zeros(K, np.int64)
    half = 1
    while half < width:
        runs = runs.reshape(K, -1, 2 * half)
        order = np.argsort(runs, axis=2)
        count += np.where(order < half, np.arange(2 * half), 0).sum(axis=(1, 2))
        # less the places within the left runs, 0 + 1 + ... + half - 1 each
        count -= runs.shape[1] * (half * (half - 1) // 2)
        runs = np.take_along_axis(runs, order, 2)
        half *= 2
    return count

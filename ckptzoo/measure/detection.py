"""How well a score tells two kinds of inputs apart, such as inputs of another data set from those of the own."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import ZooError


def auroc(positives: ArrayLike, negatives: ArrayLike) -> float:
    r"""The area under the receiver operating characteristic: how often a positive has the higher score.

    .. math:: \frac{1}{P N} \sum_{i=1}^P \sum_{j=1}^N \left( [s_i > t_j] + \tfrac{1}{2} [s_i = t_j] \right)

    for positives s and negatives t: the statistic of Mann and Whitney (1947) over the number of pairs, ties counted
    half, which is the area (Hanley and McNeil, "The meaning and use of the area under a ROC curve", 1982).

    Parameters
    ----------
    positives, negatives : (P,) and (N,) scores of what is to be found and of the rest, higher for what is to be found;
        P and N are 1 or more.

    Returns
    -------
    float in 0 .. 1; 0.5 by chance.

    Raises
    ------
    ZooError
        No scores of one kind, or a score that is not a number.

    Notes
    -----
    Time (P + N) log(P N) by sorting; exact counts. Held against all pairs and scikit-learn in
    ``tests/measure/test_detection.py``.
    """
    found, rest = _checked("auroc", positives, negatives)
    rest.sort()
    found.sort()
    twice = np.searchsorted(rest, found, "left").sum() + np.searchsorted(rest, found, "right").sum()
    return float(twice) / (2 * found.size * rest.size)


def fpr(positives: ArrayLike, negatives: ArrayLike, recall: float = 0.95) -> float:
    r"""The share of negatives that are flagged where at least this share of the positives is.

    .. math:: \frac{1}{N} \left| \{ j : t_j \ge \tau \} \right|, \qquad
        \tau = \max \left\{ x : \tfrac{1}{P} \left| \{ i : s_i \ge x \} \right| \ge r \right\}

    for positives s, negatives t and recall r: the false positive rate at a true positive rate, without interpolation.

    Parameters
    ----------
    positives, negatives : as in ``auroc``.
    recall : r, above 0 and at most 1.

    Returns
    -------
    float in 0 .. 1: 0 at best, about r by chance. It changes where the two kinds are exchanged; ``auroc`` of exchanged
    kinds and negated scores is the same.

    Raises
    ------
    ZooError
        As in ``auroc``, or the recall is out of range.
    """
    found, rest = _checked("fpr", positives, negatives)
    if not 0 < recall <= 1:
        raise ZooError(f"fpr: recall: expected above 0 and at most 1, got {recall}. Choose another share.")
    count = math.ceil(recall * found.size)
    if count > 1 and (count - 1) / found.size >= recall:
        count -= 1
    threshold = np.partition(found, found.size - count)[found.size - count]
    return float((rest >= threshold).mean())


def _checked(where: str, positives: ArrayLike, negatives: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Copies of both, in float64."""
    found, rest = np.array(positives, np.float64), np.array(negatives, np.float64)
    if found.ndim != 1 or rest.ndim != 1 or not found.size or not rest.size:
        step = "Pass scores of both kinds."
        raise ZooError(
            f"{where}: shapes: expected (P,) and (N,), P and N above 0, got {found.shape} and {rest.shape}. {step}"
        )
    if np.isnan(found).any() or np.isnan(rest).any():
        raise ZooError(f"{where}: scores: expected numbers, got some that are not. Leave those inputs out.")
    return found, rest

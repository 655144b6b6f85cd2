"""Predictions of ensembles: how good probabilities are, how much members differ, and how well scores detect.

- Probabilities and labels: ``accuracy``, ``nll``, ``brier``, ``ece``.
- What the members of an ensemble predict, from sums over the members: ``entropy``, ``mutual_information``,
  ``disagreement``.
- Values of two kinds of inputs, such as another data set's and the test set's: ``auroc``, ``average_precision``,
  ``fpr``.

These are the columns of Table 1 of arXiv 2310.08287, there times 100: Acc is ``accuracy``, ECE ``ece``, Brier
``brier``, AUPR ``average_precision`` and FPR95 ``fpr``, both with the inputs of the other set as positives and
-max_c p_c as the score, IDMI and OODMI the means of ``mutual_information`` on the test set and on the other one.
torch-uncertainty 0.1.5 has them in float32; where its definition differs, the function says how.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import Problem, ZooError

BINS = 10
"""The number of bins of the calibration error."""

Values = NDArray[np.float64]


# Probabilities and labels.


def accuracy(log_probabilities: ArrayLike, labels: ArrayLike) -> Values:
    r"""The fraction of inputs whose most probable class is the label, the first of several.

    .. math:: \frac{1}{N} \sum_n [\operatorname{argmax}_c p_{nc} = y_n]

    ``log_probabilities`` are (..., N, C) natural logarithms of normalised probabilities; leading axes are members;
    ``labels`` are (N,) integers, 0 to C - 1. Returns (...,) float64 in 0 .. 1; NaN where a member's predictions are
    NaN. Raises ``ZooError`` if shapes do not fit, labels are out of range, or N is 0.
    """
    logs, truth = _checked_log_probabilities(log_probabilities, labels)
    # argmax takes the first NaN for the largest, which could be the label
    hits = (logs.argmax(-1) == truth).mean(-1)
    return np.where(np.isnan(logs).any((-2, -1)), np.nan, hits)


def nll(log_probabilities: ArrayLike, labels: ArrayLike) -> Values:
    r"""Mean negative log-likelihood in nats; the mean cross-entropy of one-hot labels is the same number.

    .. math:: -\frac{1}{N} \sum_n \log p_{n y_n}

    Parameters, Returns and Raises as in ``accuracy``; the value is 0 or above, and may be infinite.
    """
    logs, truth = _checked_log_probabilities(log_probabilities, labels)
    return -np.take_along_axis(logs, _index(truth, logs), axis=-1)[..., 0].mean(-1)


def brier(log_probabilities: ArrayLike, labels: ArrayLike) -> Values:
    r"""Mean squared distance of the probabilities to the one-hot label.

    .. math:: \frac{1}{N} \sum_n \sum_c (p_{nc} - [c = y_n])^2

    (Brier, "Verification of forecasts expressed in terms of probability", 1950, equation 2.) Parameters, Returns and
    Raises as in ``accuracy``; the value is 0 to 2.
    """
    logs, truth = _checked_log_probabilities(log_probabilities, labels)
    gap = np.exp(logs)
    index = _index(truth, logs)
    np.put_along_axis(gap, index, np.take_along_axis(gap, index, axis=-1) - 1, axis=-1)
    return np.square(gap).sum(-1).mean(-1)


def ece(log_probabilities: ArrayLike, labels: ArrayLike) -> Values:
    r"""Expected calibration error of the top label over 10 bins of equal width, in the L1 norm.

    .. math:: \sum_{b=1}^{10} \frac{|B_b|}{N} \left| \mathrm{acc}(B_b) - \mathrm{conf}(B_b) \right|

    where bin b has the inputs whose largest probability is in :math:`((b-1)/10, b/10]` (Guo, Pleiss, Sun and
    Weinberger, "On calibration of modern neural networks", ICML 2017, equation 3). Parameters, Returns and Raises as in
    ``accuracy``; the value is 0 to 1.

    The calibration error of torch-uncertainty 0.1.5 is torchmetrics', also of 10 bins (torchmetrics by itself has 15)
    but of :math:`[(b-1)/10, b/10)`, with a bin of its own for a probability of 1: it differs only where a largest
    probability is an edge. In float32 sure predictions are 1, and its two last bins then count apart.
    """
    logs, truth = _checked_log_probabilities(log_probabilities, labels)
    confidence = np.exp(logs.max(-1))
    gap = (logs.argmax(-1) == truth) - confidence
    inner = np.arange(1, BINS) / BINS
    # "left" puts a confidence that is an edge into the bin below it, as equation 3 has the bins
    bins = np.searchsorted(inner, confidence, side="left")
    sums = [np.abs(np.where(bins == number, gap, 0).sum(-1)) for number in range(BINS)]
    return np.where(np.isnan(confidence).any(-1), np.nan, np.sum(sums, axis=0) / truth.size)


# What the members of an ensemble predict.


def entropy(probabilities: ArrayLike) -> Values:
    r"""The entropy of each distribution, in nats.

    .. math:: H(p) = -\sum_c p_c \log p_c, \qquad 0 \log 0 = 0

    ``probabilities`` are (..., C), normalised. Returns (...,) float64 in 0 .. log C.
    """
    p = np.asarray(probabilities, np.float64)
    logs = np.zeros_like(p)
    np.log(p, out=logs, where=p != 0)
    # of a certain class the sum is -0.0, and rounding can leave it below 0
    return np.maximum(-(p * logs).sum(-1), 0)


def mutual_information(mean_probabilities: ArrayLike, mean_entropy: ArrayLike) -> Values:
    r"""The mutual information of prediction and member, in nats: the ensemble's epistemic uncertainty.

    .. math:: I = H\left( \frac{1}{S} \sum_s p_s \right) - \frac{1}{S} \sum_s H(p_s)

    (Houlsby et al., arXiv 1112.5745, equation 2; as functional diversity: arXiv 2310.08287.) It is also the mean of the
    members' Kullback-Leibler divergences from the ensemble, and 0 where all agree. ``mean_probabilities`` are the (...,
    C) averages of the members' probabilities, and ``mean_entropy`` the (...,) averages of their entropies. Returns
    (...,) float64 in 0 .. log C. Tested against both forms over all members in ``tests/measure/test_diversity.py``.
    """
    return np.maximum(entropy(mean_probabilities) - np.asarray(mean_entropy, np.float64), 0)


def disagreement(votes: ArrayLike) -> Values:
    r"""The share of pairs of members that choose different classes.

    .. math:: \frac{2}{S (S - 1)} \sum_{s < t} [\hat y_s \ne \hat y_t]
        = 1 - \frac{\sum_c v_c (v_c - 1)}{S (S - 1)}, \qquad v_c = \left| \{ s : \hat y_s = c \} \right|

    because :math:`v_c (v_c - 1) / 2` of the pairs agree on class c. ``votes`` are (..., C) integers: v_c, the members
    whose most probable class is c; their sum S is 2 or more. Returns (...,) float64 in 0 .. 1. Raises ``ZooError`` if
    votes are not counts, or are fewer than two. Tested against all pairs in ``tests/measure/test_diversity.py``.
    """
    v = np.asarray(votes)
    if v.dtype.kind not in "iu" or not v.ndim or (v < 0).any() or (v.sum(-1) < 2).any():
        expected, step = "counts of 2 members or more", "Count their classes."
        raise ZooError(Problem("disagreement", "votes", expected, "others", step))
    v = v.astype(np.float64)
    total = v.sum(-1)
    return 1 - (v * (v - 1)).sum(-1) / (total * (total - 1))


# Values of two kinds of inputs.


def auroc(positives: ArrayLike, negatives: ArrayLike) -> float:
    r"""The area under the receiver operating characteristic: how often a positive has the higher score.

    .. math:: \frac{1}{P N} \sum_{i=1}^P \sum_{j=1}^N \left( [s_i > t_j] + \tfrac{1}{2} [s_i = t_j] \right)

    for positives s and negatives t: the statistic of Mann and Whitney (1947) over the number of pairs, ties counted
    half, which is the area (Hanley and McNeil, "The meaning and use of the area under a ROC curve", 1982).
    ``positives`` and ``negatives`` are (P,) and (N,) scores of the inputs to detect and of the others, higher for those
    to detect; P and N are 1 or more. The result is in 0 .. 1; 0.5 by chance. Raises ``ZooError`` if there are no scores
    of one kind, or a score is NaN. Time (P + N) log(P N) by sorting; exact counts. Tested against all pairs and
    scikit-learn in ``tests/measure/test_detection.py``.
    """
    positive, negative = _checked_scores("auroc", positives, negatives)
    negative.sort()
    positive.sort()
    # Lower negatives are counted twice, and equal ones once.
    twice = np.searchsorted(negative, positive, "left").sum() + np.searchsorted(negative, positive, "right").sum()
    return float(twice) / (2 * positive.size * negative.size)


def average_precision(positives: ArrayLike, negatives: ArrayLike) -> float:
    r"""The area under the curve of precision against recall as a sum of steps: the mean precision at the positives.

    .. math:: \frac{1}{P} \sum_{i=1}^P
        \frac{|\{ k : s_k \ge s_i \}|}{|\{ k : s_k \ge s_i \}| + |\{ j : t_j \ge s_i \}|}

    for positives s and negatives t: :math:`\sum_n (R_n - R_{n-1}) P_n` over the thresholds, without interpolation
    (Davis and Goadrich, "The relationship between precision-recall and ROC curves", ICML 2006, on why not), as
    scikit-learn's ``average_precision_score`` has it. Equal scores are one threshold. ``positives`` and ``negatives``
    are as in ``auroc``. The result is above 0 and at most 1: 1 where all positives are above all negatives, P / (P + N)
    by chance or where all scores are equal, and :math:`\frac{1}{P} \sum_{k=1}^P \frac{k}{k + N}` at worst, which for P
    = N tends to 1 - log 2. It changes where the two kinds are exchanged. Raises ``ZooError`` as in ``auroc``. Time (P +
    N) log(P N) by sorting; exact counts. Tested against scikit-learn in ``tests/measure/test_detection.py``.

    Examples
    --------
    >>> average_precision([3, 1], [2])
    0.8333333333333333
    """
    positive, negative = _checked_scores("average precision", positives, negatives)
    # torchmetrics, and with it torch-uncertainty, first takes the sigmoid of all scores where one is outside 0 .. 1, as
    # -max p is: in float32 nearby scores become equal, and all above 17 or so
    thresholds, counts = np.unique(positive, return_counts=True)
    true = counts[::-1].cumsum()[::-1]
    negative.sort()
    false = negative.size - np.searchsorted(negative, thresholds, "left")
    return float((counts * (true / (true + false))).sum() / positive.size)


def fpr(positives: ArrayLike, negatives: ArrayLike, recall: float = 0.95) -> float:
    r"""The share of negatives that are flagged where at least this share of the positives is.

    .. math:: \frac{1}{N} \left| \{ j : t_j \ge \tau \} \right|, \qquad
        \tau = \max \left\{ x : \tfrac{1}{P} \left| \{ i : s_i \ge x \} \right| \ge r \right\}

    for positives s, negatives t and recall r: the false positive rate at a true positive rate, without interpolation.
    ``positives`` and ``negatives`` are as in ``auroc``; ``recall`` is r, above 0 and at most 1. The result is in 0 ..
    1: 0 at best, about r by chance. It changes where the two kinds are exchanged; ``auroc`` of exchanged kinds and
    negated scores is the same. Raises ``ZooError`` as in ``auroc``, or if the recall is out of range. torch-uncertainty
    0.1.5 takes the threshold whose share of positives is nearest to 0.95, which can be below it.
    """
    positive, negative = _checked_scores("fpr", positives, negatives)
    if not 0 < recall <= 1:
        raise ZooError(Problem("fpr", "recall", "above 0 and at most 1", str(recall), "Choose another share."))
    count = math.ceil(recall * positive.size)
    # The product can round up to the next integer, as 0.07 * 100 does.
    if count > 1 and (count - 1) / positive.size >= recall:
        count -= 1
    threshold = np.partition(positive, positive.size - count)[positive.size - count]
    return float((negative >= threshold).mean())


def _checked_log_probabilities(log_probabilities: ArrayLike, labels: ArrayLike) -> tuple[Values, NDArray[Any]]:
    logs, truth = np.asarray(log_probabilities, dtype=np.float64), np.asarray(labels)
    if truth.ndim != 1 or not truth.size or logs.ndim < 2 or logs.shape[-2] != truth.size:
        expected, got = "(..., N, C) and (N,) with N above 0", f"{logs.shape} and {truth.shape}"
        raise ZooError(Problem("uncertainty", "shapes", expected, got, "Pass log-probabilities of the same inputs."))
    if truth.dtype.kind not in "iu" or truth.min() < 0 or truth.max() >= logs.shape[-1]:
        expected, got = f"integers below {logs.shape[-1]}", f"{truth.dtype} {truth.min()} to {truth.max()}"
        raise ZooError(Problem("uncertainty", "labels", expected, got, "Correct them."))
    return logs, truth


def _index(truth: NDArray[Any], logs: Values) -> NDArray[Any]:
    return np.broadcast_to(truth[:, None], (*logs.shape[:-1], 1))


def _checked_scores(location: str, positives: ArrayLike, negatives: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both as float64 copies."""
    positive, negative = np.array(positives, np.float64), np.array(negatives, np.float64)
    if positive.ndim != 1 or negative.ndim != 1 or not positive.size or not negative.size:
        expected, got = "(P,) and (N,), P and N above 0", f"{positive.shape} and {negative.shape}"
        raise ZooError(Problem(location, "shapes", expected, got, "Pass scores of both kinds."))
    if np.isnan(positive).any() or np.isnan(negative).any():
        raise ZooError(Problem(location, "scores", "numbers", "some that are not", "Leave those inputs out."))
    return positive, negative

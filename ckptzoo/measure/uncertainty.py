"""How good predicted probabilities are: accuracy, likelihood, Brier score, calibration."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import ZooError

BINS = 10

Scores = NDArray[np.float64]


def accuracy(log_probabilities: ArrayLike, labels: ArrayLike) -> Scores:
    r"""The fraction of inputs whose most probable class is the label, the first of several.

    .. math:: \frac{1}{N} \sum_n [\arg\max_c p_{nc} = y_n]

    Parameters
    ----------
    log_probabilities : (..., N, C) natural logarithms of normalised probabilities; leading axes are members.
    labels : (N,) integers, 0 to C - 1.

    Returns
    -------
    (...,) float64 in 0 .. 1; not a number where a member's predictions are not.

    Raises
    ------
    ZooError
        Shapes do not fit, labels are out of range, or N is 0.
    """
    logs, truth = _checked(log_probabilities, labels)
    hits = (logs.argmax(-1) == truth).mean(-1)
    return np.where(np.isnan(logs).any((-2, -1)), np.nan, hits)


def nll(log_probabilities: ArrayLike, labels: ArrayLike) -> Scores:
    r"""Mean negative log-likelihood in nats; the mean cross-entropy of one-hot labels is the same number.

    .. math:: -\frac{1}{N} \sum_n \log p_{n y_n}

    Parameters, Returns and Raises as in ``accuracy``; the value is 0 or above, and may be infinite.
    """
    logs, truth = _checked(log_probabilities, labels)
    return -np.take_along_axis(logs, _index(truth, logs), axis=-1)[..., 0].mean(-1)


def brier(log_probabilities: ArrayLike, labels: ArrayLike) -> Scores:
    r"""Mean squared distance of the probabilities to the one-hot label.

    .. math:: \frac{1}{N} \sum_n \sum_c (p_{nc} - [c = y_n])^2

    (Brier, "Verification of forecasts expressed in terms of probability", 1950, equation 2.) Parameters, Returns and
    Raises as in ``accuracy``; the value is 0 to 2.
    """
    logs, truth = _checked(log_probabilities, labels)
    gap = np.exp(logs)
    index = _index(truth, logs)
    np.put_along_axis(gap, index, np.take_along_axis(gap, index, axis=-1) - 1, axis=-1)
    return np.square(gap).sum(-1).mean(-1)


def ece(log_probabilities: ArrayLike, labels: ArrayLike) -> Scores:
    r"""Expected calibration error of the top label over 10 bins of equal width, in the L1 norm.

    .. math:: \sum_{b=1}^{10} \frac{|B_b|}{N} \left| \mathrm{acc}(B_b) - \mathrm{conf}(B_b) \right|

    where bin b holds the inputs whose largest probability lies in :math:`((b-1)/10, b/10]` (Guo, Pleiss, Sun and
    Weinberger, "On calibration of modern neural networks", ICML 2017, equation 3). Parameters, Returns and Raises as in
    ``accuracy``; the value is 0 to 1.
    """
    logs, truth = _checked(log_probabilities, labels)
    confidence = np.exp(logs.max(-1))
    gap = (logs.argmax(-1) == truth) - confidence
    inner = np.arange(1, BINS) / BINS
    bins = np.searchsorted(inner, confidence, side="left")
    sums = [np.abs(np.where(bins == number, gap, 0).sum(-1)) for number in range(BINS)]
    return np.where(np.isnan(confidence).any(-1), np.nan, np.sum(sums, axis=0) / truth.size)


def _checked(log_probabilities: ArrayLike, labels: ArrayLike) -> tuple[Scores, NDArray[Any]]:
    logs, truth = np.asarray(log_probabilities, dtype=np.float64), np.asarray(labels)
    if truth.ndim != 1 or not truth.size or logs.ndim < 2 or logs.shape[-2] != truth.size:
        found = f"{logs.shape} and {truth.shape}"
        step = "Pass log-probabilities of the same inputs."
        raise ZooError(f"uncertainty: shapes: expected (..., N, C) and (N,) with N above 0, got {found}. {step}")
    if truth.dtype.kind not in "iu" or truth.min() < 0 or truth.max() >= logs.shape[-1]:
        found = f"{truth.dtype} {truth.min()} to {truth.max()}"
        raise ZooError(f"uncertainty: labels: expected integers below {logs.shape[-1]}, got {found}. Correct them.")
    return logs, truth


def _index(truth: NDArray[Any], logs: Scores) -> NDArray[Any]:
    return np.broadcast_to(truth[:, None], (*logs.shape[:-1], 1))

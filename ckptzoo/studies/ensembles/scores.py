"""The figures of one prediction: how right it is, and whether its doubt tells inputs of other data sets apart."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ckptzoo.measure.detection import auroc, fpr
from ckptzoo.measure.uncertainty import accuracy, brier, ece, nll

RIGHT = {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": ece}

Values = NDArray[np.float64]
Scores = dict[str, dict[str, float]]
"""Set to figures by name."""


def scores(logs: Values, information: Values | None, sets: Mapping[str, slice], targets: NDArray[np.int64]) -> Scores:
    """What can be said of a prediction on several sets of inputs.

    Parameters
    ----------
    logs : (N, C) logarithms of probabilities on the inputs of all sets.
    information : (N,) mutual information; None for a single member, which has none.
    sets : name to its inputs. The first is the networks' own; the others are to be told from it.
    targets : labels of the first set.

    Returns
    -------
    For the first set ``accuracy``, ``nll``, ``brier`` and ``ece`` of ``ckptzoo.measure.uncertainty``, and
    ``confidence``, the mean of the largest probability. For each other set ``auroc`` and ``fpr95`` of
    ``ckptzoo.measure.detection``: its inputs are the positives, those of the first set the negatives, and the score is
    the doubt, -log max_c p_c, which orders inputs as 1 - max_c p_c does. With mutual information, its mean on each set,
    and ``information_auroc`` and ``information_fpr95`` with it as the score.
    """
    own, *others = sets
    found: Scores = {own: {name: float(score(logs[sets[own]], targets)) for name, score in RIGHT.items()}}
    found[own]["confidence"] = float(np.exp(logs[sets[own]].max(-1)).mean())
    doubt = -logs.max(-1)
    for name in others:
        found[name] = _told(doubt[sets[name]], doubt[sets[own]], "")
    if information is not None:
        for name, inputs in sets.items():
            found[name]["mutual_information"] = float(information[inputs].mean())
        for name in others:
            found[name] |= _told(information[sets[name]], information[sets[own]], "information_")
    return found


def _told(others: Values, own: Values, prefix: str) -> dict[str, float]:
    return {f"{prefix}auroc": auroc(others, own), f"{prefix}fpr95": fpr(others, own)}

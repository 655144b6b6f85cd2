"""How much the members of an ensemble differ in what they predict, from sums over the members alone."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import ZooError

Values = NDArray[np.float64]


def entropy(probabilities: ArrayLike) -> Values:
    r"""The entropy of each distribution, in nats.

    .. math:: H(p) = -\sum_c p_c \log p_c, \qquad 0 \log 0 = 0

    Parameters
    ----------
    probabilities : (..., C), normalised.

    Returns
    -------
    (...,) float64 in 0 .. log C.
    """
    p = np.asarray(probabilities, np.float64)
    logs = np.zeros_like(p)
    np.log(p, out=logs, where=p != 0)
    return np.maximum(-(p * logs).sum(-1), 0)


def mutual_information(mean_probabilities: ArrayLike, mean_entropy: ArrayLike) -> Values:
    r"""What a member of the ensemble tells about the prediction, in nats: the ensemble's epistemic uncertainty.

    .. math:: I = H\left( \frac{1}{S} \sum_s p_s \right) - \frac{1}{S} \sum_s H(p_s)

    (Houlsby et al., arXiv 1112.5745, equation 2; as functional diversity: arXiv 2310.08287.) It is also the mean of
    the members' Kullback-Leibler divergences from the ensemble, and 0 where all agree.

    Parameters
    ----------
    mean_probabilities : (..., C) the average of the members' probabilities.
    mean_entropy : (...,) the average of the members' entropies.

    Returns
    -------
    (...,) float64 in 0 .. log C.

    Notes
    -----
    Held against both forms over all members in ``tests/measure/test_diversity.py``.
    """
    return np.maximum(entropy(mean_probabilities) - np.asarray(mean_entropy, np.float64), 0)


def disagreement(votes: ArrayLike) -> Values:
    r"""The share of pairs of members that choose different classes.

    .. math:: \frac{2}{S (S - 1)} \sum_{s < t} [\hat y_s \ne \hat y_t]
        = 1 - \frac{\sum_c v_c (v_c - 1)}{S (S - 1)}, \qquad v_c = \left| \{ s : \hat y_s = c \} \right|

    because :math:`v_c (v_c - 1) / 2` of the pairs agree on class c.

    Parameters
    ----------
    votes : (..., C) integers: v_c, the members whose most probable class is c; their sum S is 2 or more.

    Returns
    -------
    (...,) float64 in 0 .. 1.

    Raises
    ------
    ZooError
        Votes are no counts, or fewer than two.

    Notes
    -----
    Held against all pairs in ``tests/measure/test_diversity.py``.
    """
    v = np.asarray(votes)
    if v.dtype.kind not in "iu" or not v.ndim or (v < 0).any() or (v.sum(-1) < 2).any():
        raise ZooError("disagreement: votes: expected counts of 2 members or more, got others. Count their classes.")
    v = v.astype(np.float64)
    total = v.sum(-1)
    return 1 - (v * (v - 1)).sum(-1) / (total * (total - 1))

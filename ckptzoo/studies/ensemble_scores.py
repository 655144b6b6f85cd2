"""The figures of one prediction, single or averaged, and ensembles of many sizes that grow one member at a time."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ckptzoo.measure.predictions import accuracy, auroc, brier, ece, entropy, fpr, mutual_information, nll

RIGHT = {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": ece}
"""Figures that need labels."""
# e^-708.4 is the smallest normal number of float64.
LEAST = -700.0
"""The least logarithm of a probability in an average, so that none is 0 in float64."""

Values = NDArray[np.float64]
Scores = dict[str, dict[str, float]]
"""A map of sets to figures by name."""


def scores(logs: Values, information: Values | None, sets: Mapping[str, slice], targets: NDArray[np.int64]) -> Scores:
    """Score a prediction, and how well its doubt separates the inputs of other sets.

    The figures are, for the first set, ``accuracy``, ``nll``, ``brier`` and ``ece`` of ``ckptzoo.measure.predictions``,
    and ``confidence``, the mean of the largest probability. For each other set ``auroc`` and ``fpr95`` of
    ``ckptzoo.measure.predictions``: its inputs are the positives, those of the first set the negatives, and the score
    is the doubt, -log max_c p_c, which orders inputs as 1 - max_c p_c does. With mutual information, its mean on each
    set, and ``information_auroc`` and ``information_fpr95`` with it as the score.

    ``logs`` are (N, C) logarithms of probabilities on the inputs of all ``sets``, of which the first is the networks'
    own and has the ``targets``; ``information`` is (N,), None for a single member, which has none.
    """
    own, *others = sets
    figures: Scores = {own: {name: float(score(logs[sets[own]], targets)) for name, score in RIGHT.items()}}
    figures[own]["confidence"] = float(np.exp(logs[sets[own]].max(-1)).mean())
    doubt = -logs.max(-1)
    for name in others:
        figures[name] = _detection(doubt[sets[name]], doubt[sets[own]], "")
    if information is not None:
        for name, inputs in sets.items():
            figures[name]["mutual_information"] = float(information[inputs].mean())
        for name in others:
            figures[name] |= _detection(information[sets[name]], information[sets[own]], "information_")
    return figures


def _detection(others: Values, own: Values, prefix: str) -> dict[str, float]:
    """How well a score separates the inputs of another set from those of the own one."""
    return {f"{prefix}auroc": auroc(others, own), f"{prefix}fpr95": fpr(others, own)}


def log_softmax(logits: NDArray[np.generic]) -> Values:
    """(..., C) natural logarithms of the probabilities, in float64."""
    logs = logits.astype(np.float64)
    logs -= logs.max(-1, keepdims=True)  # so that no exponential overflows
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    return logs


class SummedPredictions:
    """The predictions of some members on the same N inputs, summed. ``probabilities`` are the (N, C) sums of the
    members' probabilities, and ``entropies`` the (N,) sums of their entropies.
    """

    def __init__(self, size: int, probabilities: Values, entropies: Values) -> None:
        self.size, self.probabilities, self.entropies = size, probabilities, entropies

    @classmethod
    def of(cls, logs: Values) -> "SummedPredictions":
        """The scores of a single member, from the logarithms (N, C) of its probabilities."""
        probabilities = np.exp(np.maximum(logs, LEAST))
        return cls(1, probabilities, entropy(probabilities))

    def copy(self) -> "SummedPredictions":
        return SummedPredictions(self.size, self.probabilities.copy(), self.entropies.copy())

    def add(self, other: "SummedPredictions") -> None:
        self.size += other.size
        self.probabilities += other.probabilities
        self.entropies += other.entropies

    @property
    def logs(self) -> Values:
        r"""(N, C) :math:`\log \frac{1}{S} \sum_s p_s`: the ensemble's prediction."""
        return np.log(self.probabilities / self.size)

    @property
    def mutual_information(self) -> Values:
        """(N,) of members and predictions, in nats."""
        return mutual_information(self.probabilities / self.size, self.entropies / self.size)


class DisjointEnsembles:
    """Disjoint ensembles of several sizes, each of the members that come next.

    ``sizes`` ascend, each 2 or more.

    One sum a size: 8 bytes a size, input and class. A size takes its members from complete ensembles of the largest
    size that divides it, so that sizes 2, 4, 8, ... cost two additions a member in all.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._source = {size: max(s for s in (1, *sizes) if s < size and size % s == 0) for size in sizes}
        self._growing = dict[int, SummedPredictions]()

    def add(self, member: SummedPredictions) -> Iterator[SummedPredictions]:
        """Add one member; yields the ensembles that it completes, in ascending size."""
        complete = {1: member}
        for size, source in self._source.items():
            if source not in complete:  # a source completes before the sizes that it divides: sizes ascend
                continue
            if size in self._growing:
                self._growing[size].add(complete[source])
            else:
                self._growing[size] = complete[source].copy()
            if self._growing[size].size == size:
                complete[size] = self._growing.pop(size)
                yield complete[size]

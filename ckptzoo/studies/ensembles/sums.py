"""Ensembles of many sizes that grow side by side as members come in, one at a time."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ckptzoo.measure.diversity import entropy, mutual_information

LEAST = -700.0
"""Smaller logarithms of probabilities count as this in an average, so that none is 0 in float64."""

Values = NDArray[np.float64]


def log_softmax(logits: NDArray[np.generic]) -> Values:
    """(..., C) natural logarithms of the probabilities, in float64."""
    logs = logits.astype(np.float64)
    logs -= logs.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    return logs


class Sum:
    """The predictions of some members on the same N inputs, summed.

    Parameters
    ----------
    size : members.
    probabilities : (N, C) the sum of their probabilities.
    entropies : (N,) the sum of the entropies of these.
    """

    def __init__(self, size: int, probabilities: Values, entropies: Values) -> None:
        self.size, self.probabilities, self.entropies = size, probabilities, entropies

    @classmethod
    def of(cls, logs: Values) -> "Sum":
        """Of a single member, from the logarithms (N, C) of its probabilities."""
        probabilities = np.exp(np.maximum(logs, LEAST))
        return cls(1, probabilities, entropy(probabilities))

    def copy(self) -> "Sum":
        """The same members, in arrays of its own."""
        return Sum(self.size, self.probabilities.copy(), self.entropies.copy())

    def add(self, other: "Sum") -> None:
        """Take in the members of another."""
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


class Growing:
    """Disjoint ensembles of several sizes, each of the members that come next.

    Parameters
    ----------
    sizes : ascending, 2 or more each.

    Notes
    -----
    One sum a size: 8 bytes a size, input and class. A size takes its members from complete ensembles of the largest
    size that divides it, so that sizes 2, 4, 8, ... cost two additions a member in all.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._source = {size: max(s for s in (1, *sizes) if s < size and size % s == 0) for size in sizes}
        self._held = dict[int, Sum]()

    def add(self, member: Sum) -> Iterator[Sum]:
        """Add one member; yields the ensembles that it completes, in ascending size."""
        complete = {1: member}
        for size, source in self._source.items():
            if source not in complete:
                continue
            if size in self._held:
                self._held[size].add(complete[source])
            else:
                self._held[size] = complete[source].copy()
            if self._held[size].size == size:
                complete[size] = self._held.pop(size)
                yield complete[size]

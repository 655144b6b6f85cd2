"""Are weights at two positions of a tensor distributed alike? Pairs of positions within one orbit and across orbits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.measure.marginals import equality, uniformity

LEVEL = 0.05
"""The level of the tests: p-values below it are counted."""
MAX_PAIRS = 200
"""Pairs of positions of one tensor that are compared, within orbits and across them."""
LEAST = 8
"""Members that a comparison takes: two samples of four numbers can have a p-value below ``LEVEL``, of three cannot."""
RESOLVED = 30
"""Members from which marginals are called equal: halves of fewer do not show a distance of 0.5, 1.36 sqrt(2 / 15)."""

Pairs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairTests:
    """The p-values of some pairs of positions, of the same pairs in every variant. ``p`` maps variants to (P,) p-values
    of the hypothesis that the weights at both positions have one distribution.
    """

    p: dict[str, NDArray[np.float64]]

    @classmethod
    def join(cls, items: "list[PairTests]") -> "PairTests":
        return cls({variant: np.concatenate([item.p[variant] for item in items]) for variant in items[0].p})

    @property
    def pairs(self) -> int:
        return len(next(iter(self.p.values())))

    def share(self, variant: str) -> float | None:
        """The fraction of p-values below ``LEVEL``, that much or less to expect where all pairs are equal."""
        return float((self.p[variant] < LEVEL).mean()) if self.pairs else None

    def median(self, variant: str) -> float | None:
        """The median p-value, 1/2 or more to expect where all pairs are equal."""
        return float(np.median(self.p[variant])) if self.pairs else None

    def uniform(self, variant: str) -> float | None:
        """The p-value of the p-values, small where they are too small: ``ckptzoo.measure.marginals.uniformity``."""
        return uniformity(self.p[variant]) if self.pairs else None

    def to_json(self) -> dict[str, Any]:
        figures = {"below": self.share, "median": self.median, "uniform": self.uniform}
        return {"pairs": self.pairs} | {
            name: {variant: figure(variant) for variant in self.p} for name, figure in figures.items()
        }


def position_pairs(labels: NDArray[np.int64], rng: np.random.Generator, limit: int = MAX_PAIRS) -> tuple[Pairs, Pairs]:
    """Random pairs of positions within one orbit, and across orbits.

    ``labels`` are the (n,) orbits of n positions; ``limit`` bounds the pairs of either kind. Returns two arrays of (P,
    2) positions. No position is in two pairs of a kind, so that p-values of different pairs depend on each other only
    as far as the weights of one network do.
    """
    shuffled = rng.permutation(len(labels))
    # a stable sort keeps the random order within each orbit
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, first, inverse = np.unique(labels[order], return_index=True, return_inverse=True)
    # within each orbit, in random order: the first with the second, the third with the fourth, ...
    even = (np.arange(len(order)) - first[inverse]) % 2 == 0
    starts = np.flatnonzero(even[:-1] & (inverse[:-1] == inverse[1:]))
    within = np.stack([order[starts], order[starts + 1]], axis=1)
    return rng.permutation(within)[:limit], _across(labels, limit, rng)


def _across(labels: NDArray[np.int64], limit: int, rng: np.random.Generator) -> Pairs:
    """Pair all positions at random, keep the pairs across orbits, and go on with the others."""
    unpaired, accepted = np.arange(len(labels)), [np.empty((0, 2), np.int64)]
    # no pair is left where all positions are of one orbit
    while sum(map(len, accepted)) < limit and (labels[unpaired] != labels[unpaired[:1]]).any():
        unpaired = rng.permutation(unpaired)
        pairs = unpaired[: len(unpaired) // 2 * 2].reshape(-1, 2)
        across = labels[pairs[:, 0]] != labels[pairs[:, 1]]
        accepted.append(pairs[across])
        unpaired = np.concatenate([pairs[~across].ravel(), unpaired[pairs.size :]])
    return np.concatenate(accepted)[:limit]


def compare_pairs(tensors: dict[str, StackedTensor], pairs: Pairs, rng: np.random.Generator) -> PairTests:
    """Compare the weights at the first position of each pair with those at the second one.

    Every pair splits the members at random into two halves (one is left over where their number is odd): the first
    position is read in one half and the second one in the other, so that the two samples are independent. ``tensors``
    maps variants to the tensor of the same K members, one row each; ``pairs`` are (P, 2) positions. Reads the weights
    at these positions alone where the variant is stored; memory of a few copies of P K numbers.
    """
    K = len(next(iter(tensors.values())))
    if K < LEAST or not len(pairs):
        return PairTests({variant: np.empty(0) for variant in tensors})
    # each pair has a split of its own: with one split for all their p-values would share its luck
    members = rng.permuted(np.tile(np.arange(K), (len(pairs), 1)), axis=1)
    first, second = members[:, : K // 2], members[:, K // 2 : K // 2 * 2]
    positions, places = np.unique(pairs, return_inverse=True)
    # reshaped: numpy's inverse is flat before 2.0, and has the shape of the argument since
    left, right = places.reshape(-1, 2, 1).transpose(1, 0, 2)
    p: dict[str, NDArray[np.float64]] = {}
    for variant, tensor in tensors.items():
        values = _at(tensor, positions)
        p[variant] = equality(values[first, left], values[second, right])
    return PairTests(p)


def _at(tensor: StackedTensor, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """(K, P) the weights at these positions."""
    index = np.unravel_index(positions, tensor.shape[1:])
    values, start = np.empty((len(tensor), len(positions))), 0
    for view in tensor.views():
        values[start : start + len(view)] = view[(slice(None), *index)]
        start += len(view)
    return values

"""Two weights of one output neuron over all checkpoints of a zoo."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.zoo import Zoo
from ckptzoo.studies.reading.batches import batches, weight_names

MAX_POINTS = 20_000


@dataclass(frozen=True, eq=False)
class Pair:
    """The first and the last incoming weight of the first output neuron, in one or two variants.

    Parameters
    ----------
    names : what they are called, such as ``fc.weight[0, 0]``.
    points : variant to (n, 2), the same checkpoints in each; at most ``MAX_POINTS``, drawn with the seed.
    """

    names: tuple[str, str]
    points: dict[str, NDArray[np.float64]]

    def above(self, variant: str) -> float:
        """The fraction of points whose second weight is the larger one; 1/2 where the cloud is symmetric."""
        first, second = self.points[variant].T
        return float((second > first).mean() + 0.5 * (second == first).mean())

    def correlation(self, variant: str) -> float:
        """Pearson's correlation of the two weights; NaN for fewer than two different points."""
        centred = self.points[variant] - self.points[variant].mean(axis=0)
        first, second = centred.T
        scale = np.sqrt((first @ first) * (second @ second))
        return float(first @ second / scale) if scale > 0 else float("nan")


def pair_of(zoo: Zoo, variants: Sequence[str], *, seed: int) -> Pair | None:
    """The pair of the last matrix of a zoo, or else of its last weight tensor.

    Parameters
    ----------
    variants : the gauges that are compared.
    seed : draws the checkpoints where there are more than ``MAX_POINTS``.

    Returns
    -------
    None where no output neuron has two incoming weights.
    """
    floats = [zoo.arch[name] for name in weight_names(zoo.arch) if len(zoo.arch[name].shape) > 1]
    matrices = [tensor for tensor in floats if len(tensor.shape) == 2] or floats
    if not matrices or matrices[-1].size // matrices[-1].shape[0] < 2:
        return None
    name, shape = matrices[-1].name, matrices[-1].shape
    last = matrices[-1].size // shape[0] - 1
    rows = np.arange(len(zoo))
    if len(zoo) > MAX_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(len(zoo), MAX_POINTS, replace=False))
    chosen = zoo.take(rows)
    points = {
        variant: np.concatenate([_ends(array) for array in batches(chosen, name, variant)]) for variant in variants
    }
    places = [np.unravel_index(at, shape[1:]) for at in (0, last)]
    labels = [f"{name}[{', '.join(['0', *(str(int(index)) for index in place)])}]" for place in places]
    return Pair((labels[0], labels[1]), points)


def _ends(weights: NDArray[np.generic]) -> NDArray[np.float64]:
    """(K, 2) first and last incoming weight of the first output neuron from (K, out, ...)."""
    incoming = weights[:, 0].reshape(len(weights), -1)
    return incoming[:, [0, -1]].astype(np.float64)

"""Weights of some networks of a zoo, and distances between networks of two such sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.studies.shared.selection import parameter_names

PAIR_BYTES = 64 * 2**20
"""Weights of pairs of networks that are in memory at a time, or one pair."""

Weights = Mapping[str, NDArray[Any]]


def read_networks(zoo: Zoo, rows: Any, variant: str = layout.RAW) -> dict[str, NDArray[Any]]:
    """Tensor name to (len(rows), *shape), of all tensors."""
    return {name: np.asarray(zoo[name, variant][rows]) for name in zoo.arch.names}


def pairs_at_once(arch: Architecture) -> int:
    """How many pairs fit into ``PAIR_BYTES``."""
    return max(1, PAIR_BYTES // (2 * arch.nbytes))


def distances(arch: Architecture, first: Weights, second: Weights) -> NDArray[np.float64]:
    """(P,) Euclidean distances of the parameters of P pairs; of Gaussians the 2-Wasserstein distances."""
    total = np.zeros(len(next(iter(first.values()))))
    for name in parameter_names(arch):
        difference = np.asarray(first[name], np.float64) - second[name]
        total += np.square(difference).reshape(len(difference), -1).sum(1)
    return np.sqrt(total)

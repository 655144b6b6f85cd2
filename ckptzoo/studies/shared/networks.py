"""Weights of some networks of a zoo, what scores them, and distances between networks of two such sets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.derive.checks import import_with_torch
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.barriers import barriers
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.studies.shared.selection import parameter_names

if TYPE_CHECKING:
    from ckptzoo.derive.evaluation import Evaluator

RAW, ALIGNED = "as trained", "aligned"
"""Relations between the two networks of a pair."""
PAIR_BYTES = 64 * 2**20
"""Bytes of weights of pairs of networks that are in memory at a time, unless one pair has more."""

Weights = Mapping[str, NDArray[Any]]


def read_networks(zoo: Zoo, rows: Any, variant: str = layout.RAW) -> dict[str, NDArray[Any]]:
    """Tensor name to (len(rows), *shape), of all tensors."""
    return {name: np.asarray(zoo[name, variant][rows]) for name in zoo.arch.names}


def evaluator_of(zoo: Zoo, labelled: Labelled, module: Any = None) -> "Evaluator":
    """Return the evaluator of the networks of a zoo.

    ``labelled`` holds the inputs and labels for the scores; ``module`` is the network as a torch module, for
    architectures that are not in ``ckptzoo.archs``. Raises ``ZooError`` if the zoo holds Gaussians, the network does
    not take such inputs, or labels are not classes of it, and ``MissingExtraError`` if torch is not installed.
    """
    base = archs.base_of(zoo.arch.forward)
    if base is not None:
        step = "Draw networks from them with ckptzoo.derive.draws; ckptzoo study barriers takes Gaussians as they are."
        raise ZooError(Problem(zoo.name, "checkpoints", f"networks {base}", "Gaussians over their weights", step))
    return import_with_torch("evaluation").Evaluator(zoo.arch, labelled, module=module)


def line_barriers(
    evaluator: "Evaluator", first: Weights, second: Weights, points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(P,) the barriers of the loss, in nats, on the lines between P pairs of networks, at T points of each."""
    losses = import_with_torch("evaluation").along_lines(evaluator, first, second, points).loss
    return barriers(losses, points).height


def pairs_at_once(arch: Architecture) -> int:
    """The number of pairs that fit into ``PAIR_BYTES``."""
    # both networks of a pair
    return max(1, PAIR_BYTES // (2 * arch.nbytes))


def distances(arch: Architecture, first: Weights, second: Weights) -> NDArray[np.float64]:
    """(P,) Euclidean distances of the parameters of P pairs; of Gaussians the 2-Wasserstein distances."""
    # between Gaussians of independent weights the 2-Wasserstein distance is that of means and deviations in one vector
    total = np.zeros(len(next(iter(first.values()))))
    for name in parameter_names(arch):
        difference = np.asarray(first[name], np.float64) - second[name]
        total += np.square(difference).reshape(len(difference), -1).sum(1)
    return np.sqrt(total)

"""Inputs with labels, on which networks are scored."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Labelled:
    """Inputs on which networks are scored; ``ckptzoo.hub.contributions.inputs.labelled_of`` reads those of a zoo.

    Parameters
    ----------
    set
        their name, such as ``mnist/test``.
    inputs
        (N, *input_shape) float32, as the networks take them.
    targets
        (N,) labels from 0.
    statistics
        (T, *input_shape) training inputs, from which the running statistics of BatchNorm are computed for every network
        that is scored, as between networks they have to be; None takes those of the weights.
    """

    set: str
    inputs: NDArray[Any]
    targets: NDArray[Any]
    statistics: NDArray[Any] | None = None

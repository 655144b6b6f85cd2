"""Weights without accidents, on which only what holds for all weights holds."""

import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.spec.symmetry import Symmetry

Weights = dict[str, NDArray[Any]]
"""Tensor name to array, without an axis of checkpoints."""


def generic_weights(
    own: Mapping[str, NDArray[Any]], parameters: Container[str], symmetry: Symmetry, rng: np.random.Generator
) -> Weights:
    """Random parameters and running statistics in float64; other buffers and integers as they are.

    All are uniform: weights with variance 2 / fan-in, gains in 0.5 to 1.5 with either sign, running variances in 0.5
    to 1.5, biases, shifts and running means in -1 to 1.

    Parameters
    ----------
    own : the module's weights, float64 where they are floats.
    parameters : names of those that are parameters.
    symmetry : tells the gains.
    """
    gains = {action.tensor for action in symmetry.actions if action.role == "gain"}
    return {
        name: _generic(name, value, name in gains, rng) if name in parameters or _is_statistic(name) else value.copy()
        for name, value in own.items()
    }


def near_weights(own: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> Weights:
    """The module's weights, each multiplied by a number near 1."""
    return {
        name: value * rng.uniform(0.9, 1.1, value.shape) if value.dtype.kind == "f" else value.copy()
        for name, value in own.items()
    }


def _is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))


def _generic(name: str, value: NDArray[Any], gain: bool, rng: np.random.Generator) -> NDArray[Any]:
    if value.dtype.kind != "f":
        return value.copy()
    if name.endswith("running_var"):
        return rng.uniform(0.5, 1.5, value.shape)
    long = sum(size > 1 for size in value.shape) > 1
    if gain or (name.endswith("weight") and not long):
        return rng.uniform(0.5, 1.5, value.shape) * rng.choice([-1.0, 1.0], value.shape)
    width = math.sqrt(6 / math.prod(value.shape[1:])) if long else 1.0
    return rng.uniform(-width, width, value.shape)

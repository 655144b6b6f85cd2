"""Posterior methods on potentials that are known: what data and engines would give is replaced by formulas."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from builders import rng, sources
from builders.engines.sgd import GradientStep
from builders.posterior.method import Method, Surroundings, flatten, parameters, unflatten
from builders.recipe import Recipe
from builders.state import TrainingState

TOY = Recipe.load("toy")
"""9 weights in four tensors."""


@dataclass(frozen=True, eq=False)
class Planted(Surroundings):
    """Gradients of a formula.

    Parameters
    ----------
    formula
        of weights (M, P) and the step to gradients of the mean loss (M, P).
    snapshots
        of the step and the number of modes to the weights (M, P) to which training comes there.
    """

    formula: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    snapshots: Callable[[int, int], torch.Tensor] | None = None
    rate: float = 0.0

    def gradient_steps(self, state: TrainingState, stop: int) -> Iterator[GradientStep]:
        assert self.formula is not None
        names = parameters(TOY.arch)
        for step in range(state.step, stop):

            def gradient(weights: dict[str, torch.Tensor], step: int = step) -> dict[str, torch.Tensor]:
                assert self.formula is not None
                return unflatten(self.formula(flatten(weights, names), step), weights, names)

            yield GradientStep(self.rate, gradient)

    def train(self, state: TrainingState, stop: int) -> None:
        assert self.snapshots is not None
        names = parameters(TOY.arch)
        for name, part in unflatten(self.snapshots(stop, len(state)), state.weights, names).items():
            state.weights[name].copy_(part)
        state.step = stop


def planted(method: Method, **formulas: Any) -> Planted:
    source = sources.load(TOY)
    return Planted(sources.data_source(method.chain, source, "cpu"), source, "mlp", **formulas)


def start(method: Method, surroundings: Planted, modes: int, weights: Any = None) -> TrainingState:
    return method.start(surroundings, keys(method, modes), weights)


def keys(method: Method, modes: int) -> NDArray[np.uint64]:
    return rng.member_keys(method.digest, range(modes))


def flat_draw(method: Method, surroundings: Planted, state: TrainingState, number: int) -> NDArray[np.float64]:
    """A draw of every mode, (M, P)."""
    return flatten(method.draw(surroundings, state, number), parameters(TOY.arch)).double().numpy()

r"""Cyclical SGHMC: a chain whose step size falls and is raised again, to visit several modes (Zhang et al. 2020).

In cycle c of C, at step k of the K of a cycle, the step size is (arXiv 1902.03932, equation 1)

.. math:: \eta_k = \frac{\eta_0}{2} \left( \cos \frac{\pi k}{K} + 1 \right)

and the weights move by

.. math::

    v \leftarrow (1 - \alpha) v - \eta_k \nabla \tilde L(\theta) + n, \qquad \theta \leftarrow \theta + v

where L is the mean loss with the recipe's weight decay. In the last epochs of a cycle the noise n has the variance
:math:`2 \eta_k \alpha T / N`, for which :math:`\exp(-N L / T)` is stationary at small steps, with N examples; before
that it is 0. T is 1 here; the authors' code divides its default temperature, 1 / N, by N once more.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from builders import rng
from builders.posterior.method import (
    MarkovChain,
    StepNormals,
    Surroundings,
    derived,
    flatten,
    number,
    parameters,
    spread,
    unflatten,
)
from builders.recipe import Recipe
from builders.schedules import MILESTONES
from builders.state import Tensors, TrainingState
from ckptzoo.errors import Problem


# the settings have their values in builders/recipes/posterior/csghmc.toml
@dataclass(frozen=True, kw_only=True)
class CyclicalSghmc(MarkovChain):
    """Chains from random weights, with data and batches of the recipe.

    Parameters
    ----------
    epochs, cycles
        of the chain; a cycle has ``epochs / cycles`` epochs.
    step_size, friction
        the largest step size, and alpha.
    noisy
        epochs at the end of each cycle in which noise is added.
    draws_per_cycle
        taken at the ends of the last epochs of a cycle.
    temperature
        T.
    """

    name: ClassVar[str] = "csghmc"

    epochs: int = number(1, 10**6, whole=True)
    cycles: int = number(1, 10**4, whole=True)
    step_size: float = number(0, 1e3, above=True)
    friction: float = number(0, 1, above=True)
    noisy: int = number(0, 10**6, whole=True)
    draws_per_cycle: int = number(1, 10**4, whole=True)
    temperature: float = number(0, 1e6)

    @property
    def chain(self) -> Recipe:
        """The recipe over as many epochs; the step size is not SGD's here."""
        return derived(
            self.recipe,
            epochs=self.epochs,
            learning_rate=0.0,
            momentum=0.0,
            nesterov=False,
            schedule=MILESTONES,
            milestones=(),
        )

    @property
    def cycle_epochs(self) -> int:
        """Epochs of a cycle."""
        return self.epochs // self.cycles

    @property
    def draw_steps(self) -> list[int]:
        """The step of each draw, by its number; see ``builders.posterior.method.spread``."""
        ends = range(self.cycle_epochs, self.epochs + 1, self.cycle_epochs)
        epochs = [end - back for end in ends for back in reversed(range(self.draws_per_cycle))]
        return [epoch * self.chain.epoch_steps for epoch in spread(epochs)]

    def start(self, surroundings: Surroundings, keys: NDArray[np.uint64], weights: Tensors | None) -> TrainingState:
        """Adds the velocity."""
        state = super().start(surroundings, keys, weights)
        state.extra = {"velocity": torch.zeros_like(flatten(state.weights, parameters(self.recipe.arch)))}
        return state

    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        names, epoch_steps = parameters(self.recipe.arch), self.chain.epoch_steps
        cycle_steps, velocity = self.cycle_epochs * epoch_steps, state.extra["velocity"]
        position = flatten(state.weights, names)
        noise = StepNormals(state.keys, rng.NOISE, position)
        for step in surroundings.gradient_steps(state, stop):
            gradient = flatten(step.gradient(unflatten(position, state.weights, names)), names)
            gradient.add_(position, alpha=self.recipe.weight_decay)
            within_cycle = state.step % cycle_steps
            rate = self.rate_at(state.step)
            velocity.mul_(1 - self.friction).sub_(gradient, alpha=rate)
            if within_cycle >= cycle_steps - self.noisy * epoch_steps:
                # the variance 2 eta alpha T / N: of a mean loss, hence the division by N
                deviation = math.sqrt(2 * rate * self.friction * self.temperature / self.recipe.train)
                velocity.add_(noise[state.step], alpha=deviation)
            position.add_(velocity)
            state.step += 1
        for name, part in unflatten(position, state.weights, names).items():
            state.weights[name].copy_(part)

    def unservable(self) -> Iterator[Problem]:
        if self.epochs % self.cycles:
            yield self.problem_with("epochs", f"a multiple of {self.cycles}, the number of cycles")
        if self.draws_per_cycle > self.cycle_epochs:
            yield self.problem_with("draws_per_cycle", f"at most {self.cycle_epochs}, the epochs of a cycle")

    def rate_at(self, step: int) -> float:
        """The step size at an optimiser step."""
        cycle_steps = self.cycle_epochs * self.chain.epoch_steps
        return self.step_size / 2 * (math.cos(math.pi * (step % cycle_steps) / cycle_steps) + 1)

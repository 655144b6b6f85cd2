r"""SWAG: a Gaussian around the mean of the weights that SGD visits (Maddox et al., arXiv 1902.02476).

A trained member is trained further, at a learning rate that rises in equal steps and then stays, and after each
``distance`` epochs its weights are a snapshot :math:`\theta_i`. Of S snapshots, with the running means
:math:`\bar\theta_i = \frac1i \sum_{j \le i} \theta_j`,

.. math::

    \bar\theta = \bar\theta_S, \qquad
    \sigma^2 = \frac1S \sum_i \theta_i^2 - \bar\theta^2, \qquad
    D_i = \theta_i - \bar\theta_i

are kept, and a draw is (their equation 1, whose scale is 1)

.. math::

    \theta = \bar\theta + \sqrt{s} \left( \frac{1}{\sqrt 2} \sigma \odot z_1
        + \frac{1}{\sqrt{2 (S - 1)}} \sum_i D_i z_{2,i} \right)

with standard normal :math:`z_1` (one number a weight) and :math:`z_2` (one a snapshot, the same for all tensors, so
that tensors vary together). The first deviation is 0, so that the low-rank part has rank S - 1.

Statistics of batches (BatchNorm) belong to no mean of weights: for each draw they are computed again, in one pass over
the training data.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from builders import rng
from builders.posterior.batch_norm import renewed_statistics
from builders.posterior.method import (
    Method,
    Surroundings,
    derived,
    flatten,
    number,
    parameters,
    standard_normals,
    unflatten,
)
from builders.recipe import Recipe
from builders.schedules import MILESTONES
from builders.state import Tensors, TrainingState


# the settings have their values in builders/recipes/posterior/swag.toml
@dataclass(frozen=True, kw_only=True)
class Swag(Method):
    """Members of a zoo are trained further.

    Parameters
    ----------
    learning_rate
        of the snapshots.
    ramp
        epochs in which the learning rate moves from that of the recipe's last epoch to this one.
    snapshots, distance
        how many, and the epochs in front of each.
    scale
        s, of the covariance.
    """

    name: ClassVar[str] = "swag"
    starts: ClassVar[str] = "member"

    learning_rate: float = number(0, 1e3, above=True)
    ramp: int = number(0, 10**6, whole=True)
    snapshots: int = number(2, 10**4, whole=True)
    distance: int = number(1, 10**6, whole=True)
    scale: float = number(0, 1e6)

    @property
    def chain(self) -> Recipe:
        """The recipe, carried on."""
        return derived(
            self.recipe,
            epochs=self.ramp + self.snapshots * self.distance,
            learning_rate=self.learning_rate,
            schedule=MILESTONES,
            milestones=(),
            warmup=self.ramp,
            warmup_from=self.recipe.rates.learning_rate_at(self.recipe.epochs - 1),
        )

    def start(self, surroundings: Surroundings, keys: NDArray[np.uint64], weights: Tensors | None) -> TrainingState:
        """Adds sums of snapshots and the deviations."""
        state = super().start(surroundings, keys, weights)
        flat = flatten(state.weights, parameters(self.recipe.arch))
        # sums in double precision: a variance is a small difference of large sums
        state.extra = {
            "sum": torch.zeros_like(flat, dtype=torch.float64),
            "squares": torch.zeros_like(flat, dtype=torch.float64),
            "deviations": flat.new_zeros(len(flat), self.snapshots, flat.shape[1]),
        }
        return state

    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        names, epoch_steps = parameters(self.recipe.arch), self.chain.epoch_steps
        for index in range(self.snapshots):
            moment = (self.ramp + (index + 1) * self.distance) * epoch_steps
            # a state that was restored has these snapshots in its sums
            if moment <= state.step:
                continue
            surroundings.train(state, min(moment, stop))
            if state.step < moment:
                return
            snapshot = flatten(state.weights, names).double()
            state.extra["sum"] += snapshot
            state.extra["squares"] += snapshot.square()
            state.extra["deviations"][:, index] = (snapshot - state.extra["sum"] / (index + 1)).float()

    def draw(self, surroundings: Surroundings, state: TrainingState, number: int) -> Tensors:
        names, deviations = parameters(self.recipe.arch), state.extra["deviations"]
        mean, variance = self.moments(state)
        count = self.snapshots
        like = torch.cat([mean, mean.new_zeros(len(mean), count)], 1)
        normals = standard_normals(state.keys, rng.DRAWS, number, like)
        diagonal = variance.sqrt() * normals[:, :-count] / math.sqrt(2)
        low_rank = torch.einsum("mkp,mk->mp", deviations.double(), normals[:, -count:]) / math.sqrt(2 * (count - 1))
        flat = (mean + math.sqrt(self.scale) * (diagonal + low_rank)).float()
        weights = {**state.weights, **unflatten(flat, state.weights, names)}
        return renewed_statistics(self.recipe, surroundings.source, weights)

    def moments(self, state: TrainingState) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and the diagonal variance (M, P) of the snapshots, float64."""
        mean = state.extra["sum"] / self.snapshots
        # equal snapshots leave a difference that rounding may bring below 0
        return mean, (state.extra["squares"] / self.snapshots - mean.square()).clamp_min(0)

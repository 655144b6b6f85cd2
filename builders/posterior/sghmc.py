r"""SGHMC with scale adaptation: a Markov chain over weights that is driven by gradients of batches and by noise.

The posterior has the potential :math:`U(\theta) = N L(\theta) + \sum_t \frac{\lambda_t}{2} |\theta_t|^2`, with the mean
loss L over N examples and a Gaussian prior of precision :math:`\lambda_t` for each tensor t. Stochastic gradient
Hamiltonian Monte Carlo (Chen, Fox and Guestrin, arXiv 1402.4102) with the adaptation of Springenberg et al. ("Bayesian
optimization with robust Bayesian neural networks", NeurIPS 2016, equations 9 and 10) moves weights and momentum by

.. math::

    v &\leftarrow (1 - C) v - \epsilon^2 \hat V^{-1/2} \nabla \tilde U(\theta) + n, \qquad
    n \sim \mathcal N\!\left(0, \max(2 \epsilon^2 C \hat V^{-1/2} - \epsilon^4, 10^{-16})\right) \\
    \theta &\leftarrow \theta + v

where :math:`\nabla \tilde U` is estimated on a batch. During burn-in the scale :math:`\hat V` of each weight's gradient
is estimated over a window :math:`\tau` that adapts, with the mean gradient g:

.. math::

    \tau \leftarrow \tau - \frac{g^2}{\hat V} \tau + 1, \qquad
    g \leftarrow g + \frac1\tau (\nabla \tilde U - g), \qquad
    \hat V \leftarrow \hat V + \frac1\tau ((\nabla \tilde U)^2 - \hat V)

and afterwards it stays. The momentum is drawn again from :math:`\mathcal N(0, \epsilon^2 \hat V^{-1/2})` at regular
steps, and :math:`\lambda_t` from its conditional under a Gamma prior with shape and rate :math:`\alpha_0, \beta_0`:

.. math:: \lambda_t \sim \mathrm{Gamma}\left(\alpha_0 + \tfrac{n_t}{2},\ \beta_0 + \tfrac12 |\theta_t|^2\right)

Gradients of the loss whose norm is above mean + k standard deviations of the last 1,000 norms are shortened to that.
This follows a public implementation (J. Antoran, Bayesian-Neural-Networks, ``H_SA_SGHMC``), momentum resampling and
clipping included.
"""

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
    flatten,
    number,
    parameters,
    spread,
    standard_normals,
    unflatten,
    without_sgd,
)
from builders.recipe import Recipe
from builders.state import Tensors, TrainingState
from ckptzoo.errors import Problem

_SMALL = 1e-6
"""Added to divisors, as in the public implementation."""
_WINDOW = 1000
"""Norms of gradients that the clipping remembers; until there are as many, nothing is shortened."""


# the settings have their values in builders/recipes/posterior/sghmc.toml
@dataclass(frozen=True, kw_only=True)
class Sghmc(MarkovChain):
    """Chains of SGHMC from random weights.

    Parameters
    ----------
    epochs, batch
        of the chain; examples are not augmented.
    step_size, friction
        epsilon and C.
    burn_in
        epochs in which the scales adapt.
    first_draw, every
        draws are taken at the ends of epochs ``first_draw``, ``first_draw + every``, ... ``epochs``.
    resample_momentum, resample_precision
        steps between two new momenta, and two new precisions.
    shape, rate
        of the Gamma prior of each tensor's precision.
    initial_precision
        before the first is drawn.
    clip
        k, standard deviations above the mean norm.
    """

    name: ClassVar[str] = "sghmc"

    epochs: int = number(1, 10**6, whole=True)
    batch: int = number(1, 2**20, whole=True)
    step_size: float = number(0, 1, above=True)
    friction: float = number(0, 1, above=True)
    burn_in: int = number(0, 10**6, whole=True)
    first_draw: int = number(1, 10**6, whole=True)
    every: int = number(1, 10**6, whole=True)
    resample_momentum: int = number(1, 10**9, whole=True)
    resample_precision: int = number(1, 10**9, whole=True)
    shape: float = number(0, 1e9, above=True)
    rate: float = number(0, 1e9, above=True)
    initial_precision: float = number(0, 1e9)
    clip: float = number(0, 1e9, above=True)

    @property
    def chain(self) -> Recipe:
        """The recipe's data in other batches, without augmentation; rate, momentum and decay are not SGD's here."""
        return without_sgd(self.recipe, epochs=self.epochs, batch=self.batch)

    @property
    def draw_steps(self) -> list[int]:
        """The step of each draw, by its number; see ``spread``."""
        epochs = range(self.first_draw, self.epochs + 1, self.every)
        return [step * self.chain.epoch_steps for step in spread(epochs)]

    def start(self, surroundings: Surroundings, keys: NDArray[np.uint64], weights: Tensors | None) -> TrainingState:
        """Adds momentum, scales, precisions and norms."""
        state = super().start(surroundings, keys, weights)
        names = parameters(self.recipe.arch)
        flat = flatten(state.weights, names)
        state.extra = {
            "velocity": torch.zeros_like(flat),
            "window": torch.ones_like(flat),
            "gradient": torch.ones_like(flat),
            "scale": torch.ones_like(flat),
            "precision": flat.new_full((len(flat), len(names)), self.initial_precision),
            "norms": flat.new_zeros(len(flat), _WINDOW),
            "norms_seen": torch.zeros(len(flat), dtype=torch.int64, device=flat.device),
        }
        return state

    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        names, count = parameters(self.recipe.arch), self.recipe.train
        position = flatten(state.weights, names)
        sizes = torch.tensor([state.weights[name][0].numel() for name in names], device=position.device)
        burn_in = self.burn_in * self.chain.epoch_steps
        noise = StepNormals(state.keys, rng.NOISE, position)
        for step in surroundings.gradient_steps(state, stop):
            gradient = flatten(step.gradient(unflatten(position, state.weights, names)), names).mul_(count)
            # gradients of the loss alone: that of the prior is added behind
            gradient = shortened(gradient, state.extra["norms"], state.extra["norms_seen"], self.clip)
            if state.step % self.resample_precision == 0:
                squares = torch.stack([part.double().square().sum(1) for part in position.split(sizes.tolist(), 1)], 1)
                state.extra["precision"].copy_(self._precisions(state, squares.cpu().numpy(), sizes.cpu().numpy()))
            gradient += position * state.extra["precision"].repeat_interleave(sizes, 1)
            if state.step < burn_in:
                adapt(state.extra["window"], state.extra["gradient"], state.extra["scale"], gradient)
            inverse = 1 / (state.extra["scale"].sqrt() + _SMALL)
            velocity = state.extra["velocity"]
            if state.step % self.resample_momentum == 0:
                normals = standard_normals(state.keys, rng.MOMENTA, state.step, position)
                velocity.copy_(normals * (self.step_size * inverse.sqrt()))
            move(position, velocity, gradient, inverse, noise[state.step], self.step_size, self.friction)
            state.step += 1
        for name, part in unflatten(position, state.weights, names).items():
            state.weights[name].copy_(part)

    def unservable(self) -> Iterator[Problem]:
        if not self.burn_in < self.first_draw <= self.epochs:
            yield self.problem_with("first_draw", f"an epoch after burn-in, {self.burn_in + 1} to {self.epochs}")

    def _precisions(self, state: TrainingState, squares: NDArray[np.float64], sizes: NDArray[np.int64]) -> torch.Tensor:
        """(M, T) from their conditionals; each mode and step has a stream of its own."""
        drawn = np.empty_like(squares)
        for mode, key in enumerate(state.keys):
            # numpy's Philox (4x64), because builders.rng has no Gamma numbers
            generator = np.random.Generator(np.random.Philox(key=int(key), counter=[0, 0, state.step, rng.NOISE]))
            finite = np.where(np.isfinite(squares[mode]), squares[mode], 0)
            drawn[mode] = generator.standard_gamma(self.shape + sizes / 2) / (self.rate + finite / 2)
        return torch.from_numpy(drawn)


def shortened(gradient: torch.Tensor, norms: torch.Tensor, seen: torch.Tensor, clip: float) -> torch.Tensor:
    """Gradients (M, P), none longer than mean + ``clip`` standard deviations of the last norms (M, W), which it joins.

    ``norms`` is a ring of the last W norms of each mode, without those that were shortened, and ``seen`` (M,) int64 the
    number that was ever put there; both are changed in place.
    """
    length = gradient.norm(dim=1)
    window = norms.shape[1]
    limit = norms.mean(1) + clip * norms.std(1, correction=0)
    too_long = (seen >= window) & (length >= limit)
    place = (seen % window)[:, None]
    norms.scatter_(1, place, torch.where(too_long[:, None], norms.gather(1, place), length[:, None]))
    seen += (~too_long).to(seen.dtype)
    return gradient * torch.where(too_long, limit / length, torch.ones_like(length))[:, None]


def adapt(window: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, gradient: torch.Tensor) -> None:
    r"""Estimate :math:`\tau`, g and :math:`\hat V` further from a gradient, all (M, P), in place."""
    window.add_(1 - window * mean.square() / (scale + _SMALL))
    share = 1 / (window + _SMALL)
    mean.add_(share * (gradient - mean))
    scale.add_(share * (gradient.square() - scale))


def move(
    position: torch.Tensor,
    velocity: torch.Tensor,
    gradient: torch.Tensor,
    inverse: torch.Tensor,
    normals: torch.Tensor,
    step_size: float,
    friction: float,
) -> None:
    r"""A step of position and velocity (M, P), in place; ``inverse`` is :math:`\hat V^{-1/2}`."""
    drift = step_size**2 * inverse
    # below 0 where epsilon^2 is above 2 C V^(-1/2)
    variance = (2 * friction * drift - step_size**4).clamp_min(1e-16)
    velocity.mul_(1 - friction).sub_(drift * gradient).add_(variance.sqrt() * normals)
    position.add_(velocity)

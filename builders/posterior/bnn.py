r"""A variational network: a Gaussian with independent weights, fitted to the posterior (Blundell et al. 2015).

The mean :math:`\mu` and :math:`\rho`, with :math:`\sigma = \log(1 + e^\rho)`, minimise

.. math::

    \frac1S \sum_{s=1}^{S} \tilde L(\mu + \sigma \odot z_s)
        + \kappa \sum_i \left( \log \frac{\sigma_p}{\sigma_i} + \frac{\sigma_i^2 + \mu_i^2}{2 \sigma_p^2}
        - \frac12 \right), \qquad z_s \sim \mathcal N(0, 1)

(arXiv 1505.05424, equation 2 with the divergence of Gaussians in closed form), where :math:`\tilde L` is the mean loss
of a batch, the prior is :math:`\mathcal N(0, \sigma_p^2)`, and :math:`\kappa = T / N` with N examples and a temperature
T. At T = 1 this is the negative evidence lower bound divided by N; below it the posterior is colder, and narrower. With
the gradient g of the loss at the drawn weights,

.. math::

    \nabla_\mu = \frac1S \sum_s g_s + \kappa \frac{\mu}{\sigma_p^2}, \qquad
    \nabla_\rho = \frac{1}{1 + e^{-\rho}} \left( \frac1S \sum_s g_s \odot z_s
        + \kappa \left( \frac{\sigma}{\sigma_p^2} - \frac{1}{\sigma} \right) \right)

and both take steps of SGD by the recipe's schedule. Means start at random, or at the weights of trained members.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from builders import rng
from builders.engines.sgd import direction
from builders.posterior.batch_norm import renewed_statistics
from builders.posterior.method import (
    Method,
    StepNormals,
    Surroundings,
    derived,
    flatten,
    number,
    parameters,
    standard_normals,
    unflatten,
)
from builders.recipe import Recipe
from builders.state import Tensors, TrainingState

RANDOM, MEMBER = "random", "member"
"""The means at first."""


# the settings have their values in builders/recipes/posterior/bnn.toml
@dataclass(frozen=True, kw_only=True)
class Bnn(Method):
    """Chains of stochastic gradient descent in means and deviations.

    Parameters
    ----------
    prior
        the standard deviation of every weight under the prior.
    temperature
        T, which weighs the divergence from the prior.
    draws_per_step
        S.
    initial_mean
        the standard deviation of the means at first.
    initial_rho_linear, initial_rho_convolution, initial_rho_spread
        rho is normal at first, around these for linear layers and for convolutions, with this standard deviation.
    means
        at first: ``random``, or ``member``, the weights of a member.
    """

    name: ClassVar[str] = "bnn"

    prior: float = number(0, 1e6, above=True)
    temperature: float = number(0, 1e6, above=True)
    draws_per_step: int = number(1, 1000, whole=True)
    initial_mean: float = number(0, 1e3)
    initial_rho_linear: float = number(-50, 50)
    initial_rho_convolution: float = number(-50, 50)
    initial_rho_spread: float = number(0, 50)
    means: str = RANDOM

    @property
    def chain(self) -> Recipe:
        """The recipe without weight decay, whose place the prior takes."""
        return derived(self.recipe, weight_decay=0.0)

    def start(self, surroundings: Surroundings, keys: NDArray[np.uint64], weights: Tensors | None) -> TrainingState:
        """The weights of the state are the means."""
        state = super().start(surroundings, keys, weights)
        names, arch = parameters(self.recipe.arch), self.recipe.arch
        flat = flatten(state.weights, names)
        count = flat.shape[1]
        if weights is None:
            means = self.initial_mean * standard_normals(keys, rng.INITIAL_DEVIATIONS, 0, flat)
            for name, part in unflatten(means, state.weights, names).items():
                state.weights[name].copy_(part)
        # a bias belongs to the layer of its weight
        centres = torch.cat([flat.new_full((arch[name].size,), self._initial_rho(name)) for name in names])
        # a draw of its own, apart from that of the means
        rho = centres + self.initial_rho_spread * standard_normals(keys, rng.INITIAL_DEVIATIONS, 1, flat)
        state.extra = {"rho": rho.expand(len(keys), count).contiguous()}
        if self.chain.momentum:
            state.extra |= {"mean_momentum": torch.zeros_like(flat), "rho_momentum": torch.zeros_like(flat)}
        return state

    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        names = parameters(self.recipe.arch)
        mean, rho = flatten(state.weights, names), state.extra["rho"]
        noise = StepNormals(state.keys, rng.NOISE, mean)
        for step in surroundings.gradient_steps(state, stop):
            deviation = torch.nn.functional.softplus(rho)
            slopes, products = torch.zeros_like(mean), torch.zeros_like(mean)
            for index in range(self.draws_per_step):
                normals = noise[state.step * self.draws_per_step + index]
                drawn = unflatten(mean + deviation * normals, state.weights, names)
                gradient = flatten(step.gradient(drawn), names)
                slopes += gradient
                products += gradient * normals
            slopes, products = (
                slopes / self.draws_per_step + self.divergence_weight * mean / self.prior**2,
                products / self.draws_per_step + self.divergence_weight * (deviation / self.prior**2 - 1 / deviation),
            )
            products *= torch.sigmoid(rho)
            if self.chain.momentum:
                # momentum of means and of rho apart, as for two parameters of torch.optim.SGD
                slopes = direction(self.chain, state.extra["mean_momentum"], slopes)
                products = direction(self.chain, state.extra["rho_momentum"], products)
            mean.sub_(slopes, alpha=step.rate)
            rho.sub_(products, alpha=step.rate)
            state.step += 1
        for name, part in unflatten(mean, state.weights, names).items():
            state.weights[name].copy_(part)

    def draw(self, surroundings: Surroundings, state: TrainingState, number: int) -> Tensors:
        names = parameters(self.recipe.arch)
        mean = flatten(state.weights, names)
        normals = standard_normals(state.keys, rng.DRAWS, number, mean)
        drawn = mean + torch.nn.functional.softplus(state.extra["rho"]) * normals
        weights = {**state.weights, **unflatten(drawn, state.weights, names)}
        return renewed_statistics(self.recipe, surroundings.source, weights)

    def gaussian(self, surroundings: Surroundings, state: TrainingState) -> Tensors | None:
        """Statistics of BatchNorm are those of the means."""
        names = parameters(self.recipe.arch)
        deviations = unflatten(torch.nn.functional.softplus(state.extra["rho"]), state.weights, names)
        means = renewed_statistics(self.recipe, surroundings.source, state.weights)
        return {**means, **{f"{name}_std": tensor for name, tensor in deviations.items()}}

    @property
    def divergence_weight(self) -> float:
        """kappa."""
        return self.temperature / self.recipe.train

    @property
    def modes_are(self) -> str:
        return "member" if self.means == MEMBER else "chain"

    def from_members(self) -> Self:
        return replace(self, means=MEMBER)

    @property
    def digested(self) -> dict[str, Any]:
        """Kappa stands for the temperature, 0 for 1 / N, as when it was the setting."""
        settings = dict(self.settings)
        # draws that zoos hold keep their digest
        settings["kl_weight"] = 0 if settings.pop("temperature") == 1 else self.divergence_weight
        if settings["means"] == RANDOM:
            del settings["means"]
        return settings

    def _initial_rho(self, name: str) -> float:
        arch = self.recipe.arch
        weight = f"{arch[name].layer}.weight"
        shape = arch[weight].shape if weight in arch else arch[name].shape
        return self.initial_rho_convolution if len(shape) > 2 else self.initial_rho_linear

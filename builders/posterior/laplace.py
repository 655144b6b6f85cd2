r"""Laplace's approximation: a Gaussian around a trained network, with the curvature of its loss.

The posterior is taken for :math:`N(\theta_*, (G + \tau I)^{-1})`, with the generalised Gauss-Newton matrix G of the
negative log-likelihood of the whole training set (``builders.posterior.curvature``) and the precision :math:`\tau` of
the prior, by default that of the greatest marginal likelihood (``builders.posterior.gaussian``). Where G is too large,
the last, linear layer alone has a posterior, with Kronecker factors in place of its G; the other weights and buffers
stay as they were trained.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from builders import losses, rng, sources
from builders.posterior import curvature, gaussian
from builders.posterior.curvature import TrainingInputs
from builders.posterior.method import Method, Surroundings, derived, flatten, number, standard_normals
from builders.recipe import FLOAT32, Recipe
from builders.schedules import MILESTONES
from builders.state import Tensors, TrainingState
from ckptzoo import archs
from ckptzoo.errors import Problem

_EXAMPLES = 1024
"""Training examples of which the loss is computed at a time."""


# the settings have their values in builders/recipes/posterior/laplace.toml
@dataclass(frozen=True, kw_only=True)
class Laplace(Method):
    """Members of a zoo, with a Gaussian around each.

    Parameters
    ----------
    prior_precision
        tau; 0 means that of the greatest marginal likelihood, which differs from mode to mode.
    """

    name: ClassVar[str] = "laplace"
    starts: ClassVar[str] = "member"
    # the eigenvectors of a mode take up to 256 MiB (``curvature.MAX_DENSE_BYTES``)
    unit_size: ClassVar[int | None] = 2

    prior_precision: float = number(0, 1e12)

    @property
    def chain(self) -> Recipe:
        """The recipe, whose examples are taken once and as they are, by networks as zoos hold them."""
        return derived(
            self.recipe,
            epochs=1,
            crop_pad=0,
            flip=False,
            schedule=MILESTONES,
            milestones=(),
            momentum=0.0,
            nesterov=False,
            precision=FLOAT32,
        )

    @property
    def steps(self) -> int:
        """One: the curvature."""
        return 1

    def start(self, surroundings: Surroundings, keys: NDArray[np.uint64], weights: Tensors | None) -> TrainingState:
        """Adds places for eigenvalues, eigenvectors and the prior precision."""
        state = super().start(surroundings, keys, weights)
        rows, columns, modes = *self._shape, len(state)
        sizes = {"values": (rows, columns), "left": (rows, rows), "right": (columns, columns), "precision": ()}
        device = surroundings.data_source.device
        state.extra = {
            name: torch.zeros(modes, *size, dtype=torch.float64, device=device) for name, size in sizes.items()
        }
        return state

    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        # torch warns of what is read-only, as a memory map is
        raw = torch.from_numpy(np.require(surroundings.source.half("train")[0], requirements=["C", "W"]))
        inputs = TrainingInputs(raw, surroundings.data_source.network_inputs)
        architecture, loss = self.recipe.architecture, self.recipe.loss
        for mode in range(len(state) if state.step < stop else 0):
            weights = {name: tensor[mode] for name, tensor in state.weights.items()}
            if self._is_dense:
                found = curvature.gauss_newton(architecture, loss, weights, inputs)
            else:
                found = curvature.last_layer(architecture, loss, weights, inputs)
            mean_loss = self._mean_loss(surroundings, weights)
            scale = losses.get(loss).likelihood(mean_loss, self.recipe.train).scale
            spectrum = gaussian.decompose(found, scale)
            mean = curvature.flatten(weights, self._names)
            precision = self.prior_precision or gaussian.best_precision(spectrum, float(mean.square().sum()))
            for name, value in (("values", spectrum.values), ("left", spectrum.left), ("right", spectrum.right)):
                state.extra[name][mode] = value
            state.extra["precision"][mode] = precision
        state.step = stop

    def draw(self, surroundings: Surroundings, state: TrainingState, number: int) -> Tensors:
        names = self._names
        normals = standard_normals(state.keys, rng.DRAWS, number, flatten(state.weights, names).double())
        drawn: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        for mode in range(len(state)):
            weights = {name: state.weights[name][mode] for name in names}
            parts = (state.extra[name][mode] for name in ("values", "left", "right"))
            spectrum = gaussian.Spectrum(*parts, has_bias=not self._is_dense and len(names) > 1)
            mean, precision = curvature.flatten(weights, names), float(state.extra["precision"][mode])
            flat = gaussian.draw(spectrum, mean, precision, normals[mode])
            for name, tensor in curvature.unflatten(flat, weights, names).items():
                drawn[name].append(tensor)
        return {**state.weights, **{name: torch.stack(tensors) for name, tensors in drawn.items()}}

    def unservable(self) -> Iterator[Problem]:
        if not self._is_dense:
            weight = self.recipe.arch[self.recipe.head]
            if weight.name != next(t.name for t in reversed(self.recipe.arch.tensors) if t.name.endswith(".weight")):
                step = "Choose another method."
                yield self.refusal("a linear last layer, or fewer parameters", f"{weight.name} before the end", step)

    @property
    def _is_dense(self) -> bool:
        """Whether all weights have the posterior, not those of the last layer alone."""
        return curvature.fits(self.recipe.architecture)

    @property
    def _names(self) -> tuple[str, ...]:
        """The tensors that have the posterior."""
        if self._is_dense:
            return curvature.parameter_names(self.recipe.architecture)
        head = self.recipe.head
        return tuple(name for name in (head, head.removesuffix("weight") + "bias") if name in self.recipe.arch)

    @property
    def _shape(self) -> tuple[int, int]:
        """The shape of the eigenvalues; see ``builders.posterior.gaussian.Spectrum``."""
        arch = self.recipe.arch
        if self._is_dense:
            return 1, arch.parameters
        outputs, features = arch[self.recipe.head].shape
        return outputs, features + len(self._names) - 1

    def _mean_loss(self, surroundings: Surroundings, weights: Tensors) -> float:
        """The mean loss on the training set without augmentation."""
        recipe, source = self.recipe, surroundings.source
        module, mean, total = archs.get(recipe.architecture)().eval(), losses.get(recipe.loss).mean, 0.0
        device, targets = surroundings.data_source.device, np.require(source.half("train")[1], requirements="W")
        module = module.to(device)
        with torch.no_grad():
            for start in range(0, recipe.train, _EXAMPLES):
                stop = min(start + _EXAMPLES, recipe.train)
                inputs = torch.from_numpy(sources.train_inputs(recipe, source, start, stop)).to(device)
                outputs = torch.func.functional_call(module, weights, (inputs,)).double()
                total += float(mean(outputs, torch.from_numpy(targets[start:stop]).to(device))) * (stop - start)
        return total / recipe.train

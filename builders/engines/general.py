"""The engine for any architecture without buffers: ``torch.func.functional_call`` under ``vmap`` over the members."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from builders import losses
from builders.data_source import Feed, TrainingBatch
from builders.engines import sgd
from builders.engines.sgd import GradientStep
from builders.recipe import Recipe
from builders.state import Tensors, TrainingState
from ckptzoo import archs
from ckptzoo.errors import Problem, ZooError


def advance(data_source: Feed, state: TrainingState, stop: int) -> None:
    """Take the steps; raises as ``gradient_steps``."""
    steps = gradient_steps(data_source, state.keys, state.step, stop)
    sgd.advance(data_source.recipe, state, steps)


def gradient_steps(data_source: Feed, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[GradientStep]:
    """Yield the steps with their gradients. Raises ZooError: the architecture has buffers (such as BatchNorm's), which
    the members could not share, or the recipe drops inputs of a last layer that is not ``torch.nn.Linear``.
    """
    recipe = data_source.recipe
    model = archs.get(recipe.architecture)().to(data_source.device)
    if any(True for _ in model.buffers()):
        step = "Choose the engine single."
        raise ZooError(Problem(recipe.architecture, "engine", "an architecture without buffers", "one with some", step))
    scaled = scale_head_inputs(model, recipe) if recipe.dropout else None
    mean = losses.get(recipe.loss).mean

    def loss(weights: Tensors, inputs: torch.Tensor, targets: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        if scaled is not None:
            scaled["scales"] = scales
        return mean(torch.func.functional_call(model, weights, (inputs,)), targets)

    # vmap batches the weights; buffers would be of the one module, hence the check above
    stacked = torch.func.vmap(torch.func.grad(loss))

    def gradient(batch: TrainingBatch, weights: Tensors) -> Tensors:
        # vmap takes no None; without dropout ``loss`` ignores the argument
        scales = batch.targets if batch.scales is None else batch.scales
        return stacked(weights, batch.inputs, batch.targets, scales)

    for batch in data_source.batches(keys, start, stop):
        yield GradientStep(batch.rate, partial(gradient, batch))


def scale_head_inputs(model: torch.nn.Module, recipe: Recipe) -> dict[str, torch.Tensor]:
    """Let the last linear layer multiply its inputs (B, U) by the scales in a dictionary, which is returned."""
    layer = dict(model.named_modules()).get(recipe.head.removesuffix(".weight"))
    if not isinstance(layer, torch.nn.Linear):
        got, step = f"{type(layer).__name__} as {recipe.head!r}", "Train it without dropout."
        raise ZooError(Problem(recipe.architecture, "dropout", "a last layer of torch.nn.Linear", got, step))
    current: dict[str, torch.Tensor] = {}

    def scale(module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0] * current["scales"],)

    layer.register_forward_pre_hook(scale)
    return current

"""The engine for any architecture without buffers: ``torch.func.functional_call`` under ``vmap`` over the members."""

import torch

from builders import losses
from builders.data_source import Feed
from builders.engines import sgd
from builders.state import Tensors, TrainingState
from ckptzoo import archs
from ckptzoo.errors import ZooError


def advance(material: Feed, state: TrainingState, stop: int) -> None:
    """See ``builders.engines.Engine``.

    Raises
    ------
    ZooError
        The architecture has buffers (such as BatchNorm's), which the members could not share.
    """
    recipe = material.recipe
    model = archs.get(recipe.architecture)().to(material.device)
    if any(True for _ in model.buffers()):
        raise ZooError(
            f"{recipe.architecture}: engine: expected an architecture without buffers, got one with some. "
            "Write an engine for it in builders/engines."
        )
    mean = losses.get(recipe.loss).mean

    def loss(weights: Tensors, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return mean(torch.func.functional_call(model, weights, (inputs,)), targets)

    gradient = torch.func.vmap(torch.func.grad(loss))
    for batch in material.batches(state.keys, state.step, stop):
        sgd.update(recipe, state, gradient(state.weights, batch.inputs, batch.targets), batch.rate)
    state.step = stop

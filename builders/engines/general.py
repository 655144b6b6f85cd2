"""The engine for any architecture without buffers: ``torch.func.functional_call`` under ``vmap`` over the members."""

import torch

from builders import losses
from builders.data_source import Feed
from builders.engines import sgd
from builders.state import Tensors, TrainingState
from ckptzoo import archs
from ckptzoo.errors import Problem, ZooError


def advance(data_source: Feed, state: TrainingState, stop: int) -> None:
    """See ``builders.engines.Engine``.

    Raises
    ------
    ZooError
        The architecture has buffers (such as BatchNorm's), which the members could not share.
    """
    recipe = data_source.recipe
    model = archs.get(recipe.architecture)().to(data_source.device)
    if any(True for _ in model.buffers()):
        step = "Write an engine for it in builders/engines."
        raise ZooError(Problem(recipe.architecture, "engine", "an architecture without buffers", "one with some", step))
    mean = losses.get(recipe.loss).mean

    def loss(weights: Tensors, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return mean(torch.func.functional_call(model, weights, (inputs,)), targets)

    # vmap batches the weights; buffers would be of the one module, hence the check above
    gradient = torch.func.vmap(torch.func.grad(loss))
    for batch in data_source.batches(state.keys, state.step, stop):
        sgd.update(recipe, state, gradient(state.weights, batch.inputs, batch.targets), batch.rate)
    state.step = stop

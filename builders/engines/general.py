"""The engine for any architecture without buffers: ``torch.func.functional_call`` under ``vmap`` over the members."""

import torch
from torch import nn

from builders.engines import sgd
from builders.material import Material, steps
from builders.state import State, Tensors
from ckptzoo import archs
from ckptzoo.errors import ZooError


def advance(material: Material, state: State, stop: int) -> None:
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
    pad = recipe.crop_pad
    rows = torch.arange(material.height - 2 * pad, device=material.device) * material.width
    columns = torch.arange(material.width - 2 * pad, device=material.device)
    window = rows[:, None] + columns

    def loss(weights: Tensors, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, weights, (images,)), labels)

    gradient = torch.func.vmap(torch.func.grad(loss))
    for step in steps(material, state.keys, state.step, stop):
        images = material.seen(material.pixels[step.corners[:, :, None, None, None] + window])
        sgd.update(recipe, state, gradient(state.weights, images, step.labels), step.rate)
    state.step = stop

"""The running statistics of BatchNorm for weights that no training has visited: draws of a posterior."""

from typing import Any

import torch

from builders import sources
from builders.recipe import Recipe
from builders.sources import Source
from builders.state import Tensors
from ckptzoo import archs

_BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
_BATCH = 512
"""Examples of which statistics are taken at once."""


def renewed_statistics(recipe: Recipe, source: Source, weights: Tensors) -> Tensors:
    """The same weights with running statistics from one pass over the training inputs, in order and not augmented.

    Every batch counts by its number of examples, as with ``momentum=None`` of ``torch.nn.BatchNorm2d`` where all
    batches are equally large (``bn_update`` of Maddox et al., arXiv 1902.02476, section 3.2). Weights without buffers
    are returned as they are.

    Parameters
    ----------
    weights : ``{name: (M, *shape)}``; their buffers, if they have any, are not read.
    """
    buffers = [tensor.name for tensor in recipe.arch.tensors if tensor.kind == "buffer"]
    if not buffers:
        return weights
    parameters = {name: tensor for name, tensor in weights.items() if name not in buffers}
    first = next(iter(parameters.values()))
    # PyTorch's own types know no memory format here
    module: Any = archs.get(recipe.architecture)().train()
    module = module.to(first.device, memory_format=torch.channels_last)
    statistics = [layer for layer in module.modules() if isinstance(layer, _BATCH_NORMS)]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in buffers}
    for member in range(len(first)):
        module.load_state_dict({name: tensor[member] for name, tensor in parameters.items()}, strict=False)
        for layer in statistics:
            layer.reset_running_stats()
        with torch.no_grad():
            for start in range(0, recipe.train, _BATCH):
                seen = min(start + _BATCH, recipe.train)
                batch = torch.from_numpy(sources.train_inputs(recipe, source, start, seen)).to(first.device)
                for layer in statistics:
                    # the running value moves by this share of the way to the batch's: the mean over all examples
                    layer.momentum = len(batch) / seen
                module(batch.contiguous(memory_format=torch.channels_last) if batch.ndim == 4 else batch)
        values = module.state_dict()
        for name in buffers:
            found[name].append(values[name].clone())
    return {**parameters, **{name: torch.stack(tensors) for name, tensors in found.items()}}

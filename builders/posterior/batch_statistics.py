"""Batch statistics (BatchNorm's running means and variances) of weights that no training has visited."""

import torch

from builders import sources
from builders.recipe import Recipe
from builders.sources import Source
from builders.state import Tensors
from ckptzoo import archs

_BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
_BATCH = 512
"""Examples of which statistics are taken at once."""


def renewed(recipe: Recipe, source: Source, weights: Tensors) -> Tensors:
    """The same weights with running statistics from one pass over the training inputs, in order and not augmented.

    Every batch counts by its number of examples, as with ``momentum=None`` of ``torch.nn.BatchNorm2d`` where all
    batches are equally large. Weights without buffers are returned as they are.

    Parameters
    ----------
    weights : ``{name: (M, *shape)}``, buffers included.
    """
    buffers = [tensor.name for tensor in recipe.arch.tensors if tensor.kind == "buffer"]
    if not buffers:
        return weights
    module = archs.get(recipe.architecture)().train()
    found: dict[str, list[torch.Tensor]] = {name: [] for name in buffers}
    for member in range(len(next(iter(weights.values())))):
        module.load_state_dict({name: tensor[member].cpu() for name, tensor in weights.items()})
        statistics = [layer for layer in module.modules() if isinstance(layer, _BATCH_NORMS)]
        for layer in statistics:
            layer.reset_running_stats()
        with torch.no_grad():
            for start in range(0, recipe.train, _BATCH):
                seen = min(start + _BATCH, recipe.train)
                batch = torch.from_numpy(sources.train_inputs(recipe, source, start, seen))
                for layer in statistics:
                    # the running value moves by this share of the way to the batch's: the mean over all examples
                    layer.momentum = len(batch) / seen
                module(batch)
        values = module.state_dict()
        for name in buffers:
            found[name].append(values[name].clone())
    device = next(iter(weights.values())).device
    return {**weights, **{name: torch.stack(tensors).to(device) for name, tensors in found.items()}}

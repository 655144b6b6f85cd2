"""The running statistics of BatchNorm for weights that no training has visited: draws of a posterior."""

from collections.abc import Iterator

import torch

from builders import sources
from builders.recipe import Recipe
from builders.sources import Source
from builders.state import Tensors
from ckptzoo import archs
from ckptzoo.derive import batch_norm

_BATCH = 512
"""Examples from which statistics are computed at once."""


def renewed_statistics(recipe: Recipe, source: Source, weights: Tensors) -> Tensors:
    """Return the same weights ``{name: (M, *shape)}`` with running statistics from one pass over the training inputs,
    in order and not augmented, as ``ckptzoo.derive.batch_norm.renewed_statistics``. Existing buffers are not read;
    weights without buffers are returned unchanged.
    """
    buffers = [tensor.name for tensor in recipe.arch.tensors if tensor.kind == "buffer"]
    if not buffers:
        return weights
    device = next(iter(weights.values())).device

    def batches() -> Iterator[torch.Tensor]:
        # in order, since sums in another order have other last bits
        for start in range(0, recipe.train, _BATCH):
            inputs = sources.train_inputs(recipe, source, start, min(start + _BATCH, recipe.train))
            yield torch.from_numpy(inputs).to(device)

    return batch_norm.renewed_statistics(archs.get(recipe.architecture)(), buffers, weights, batches)

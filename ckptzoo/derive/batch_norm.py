"""The running statistics of BatchNorm for weights that no training has visited: draws, and points between networks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

_BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def statistics_names(module: torch.nn.Module) -> list[str]:
    """Names of the running statistics in a network's state dict; other buffers are none."""
    return [
        f"{layer}.{name}" if layer else name
        for layer, inner in module.named_modules()
        if isinstance(inner, _BATCH_NORMS)
        for name, _ in inner.named_buffers(recurse=False)
    ]


def renewed_statistics(
    module: torch.nn.Module,
    buffers: Sequence[str],
    weights: Mapping[str, torch.Tensor],
    batches: Callable[[], Iterable[torch.Tensor]],
) -> dict[str, torch.Tensor]:
    """The same weights with running statistics from one pass over some inputs.

    Every batch counts by its number of examples, as with ``momentum=None`` of ``torch.nn.BatchNorm2d`` where all
    batches are equally large (``bn_update`` of Maddox et al., arXiv 1902.02476, section 3.2; Jordan et al., arXiv
    2211.08403, section 3, on points between networks). Layers other than BatchNorm compute as in evaluation, so that
    nothing is random.

    ``buffers`` are names of the statistics; ``weights`` are ``{name: (M, *shape)}``, whose buffers, if any, are not
    read; ``batches`` gives the inputs (B, ...) of a pass, as the network takes them.
    """
    parameters = {name: tensor for name, tensor in weights.items() if name not in buffers}
    first = next(iter(parameters.values()))
    # PyTorch's own types know no memory format here
    network: Any = module.eval()
    network = network.to(first.device, memory_format=torch.channels_last)
    statistics = [layer.train() for layer in network.modules() if isinstance(layer, _BATCH_NORMS)]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in buffers}
    for member in range(len(first)):
        network.load_state_dict({name: tensor[member] for name, tensor in parameters.items()}, strict=False)
        for layer in statistics:
            layer.reset_running_stats()
        seen = 0
        with torch.no_grad():
            for batch in batches():
                seen += len(batch)
                for layer in statistics:
                    # the running value moves by this share of the way to the batch's: the mean over all examples
                    layer.momentum = len(batch) / seen
                network(batch.contiguous(memory_format=torch.channels_last) if batch.ndim == 4 else batch)
        values = network.state_dict()
        for name in buffers:
            found[name].append(values[name].clone())
    return {**parameters, **{name: torch.stack(tensors) for name, tensors in found.items()}}

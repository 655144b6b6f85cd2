"""Memory that tensors of a module share: what changes one of them changes the other. Imports torch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.tracing.graph import Operations
from ckptzoo.symmetry.tracing.module_copy import other_tensors

_Named = tuple[str, torch.Tensor]


def check_memory(module: nn.Module, double: nn.Module, found: Operations, symmetry: Symmetry) -> None:
    """Check that no tensor that the table acts on shares memory with another one, but where both are the same, and none
    of the state dict with what the module keeps and uses beside it.

    ``double`` is the copy that has these operations. Raises ``SymmetryError`` that names two tensors.

    The verification gives each tensor memory of its own. In a module whose decoder is a transposed view of its encoder,
    or which uses a view of a gain that it has kept, whatever is put into the one changes the other.
    """
    acted = {action.tensor for action in symmetry.actions}.union(*(item.written for item in symmetry.folds))
    state = module.state_dict(keep_vars=True)
    stored = {id(tensor) for tensor in state.values()}
    nodes = [node.name for node in found.graph.find_nodes(op="placeholder") if node.users]
    constants = [found.tensors[name][1] for name in nodes if name in found.tensors]
    used = {tensor.data_ptr() for tensor in constants if tensor.layout == torch.strided}
    kept = {name for name, same in other_tensors(double) if same.data_ptr() in used}
    others = {name: own for name, own in other_tensors(module) if name in kept and id(own) not in stored}
    by_memory: dict[int, list[_Named]] = {}
    for name, tensor in (*state.items(), *others.items()):
        if tensor.layout == torch.strided and tensor.numel():
            by_memory.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    for tensors in by_memory.values():
        for (first, one), (second, other) in _in_reach(tensors):
            inside = [name in state for name in (first, second)]
            concerned = bool({first, second} & acted) and _place(one) != _place(other) if all(inside) else any(inside)
            if concerned and _share_entries(one, other):
                expected, got = "memory of its own for each", "parts of one memory"
                step = (
                    "Use the one tensor in the forward function, as in F.linear(x, encoder.weight.t()), or clone one."
                )
                raise SymmetryError(Problem("symmetry.trace", f"tensors {first!r} and {second!r}", expected, got, step))


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the one behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _in_reach(tensors: list[_Named]) -> Iterator[tuple[_Named, _Named]]:
    """Yield pairs of tensors whose spans overlap; those that lie side by side are many in a flat buffer."""
    spans = sorted((_span(tensor), number) for number, (_, tensor) in enumerate(tensors))
    for at, ((_, end), number) in enumerate(spans):
        for place in range(at + 1, len(spans)):
            (start, _), other = spans[place]
            if start >= end:
                break
            yield tensors[min(number, other)], tensors[max(number, other)]


def _share_entries(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors whose spans overlap have bytes in common."""
    spans = [_span(item) for item in (first, second)]
    whole = [
        item.numel() * item.element_size() == end - start
        for item, (start, end) in zip((first, second), spans, strict=True)
    ]
    return all(whole) or bool(np.isin(_addresses(first), _addresses(second)).any())


def _addresses(tensor: torch.Tensor) -> NDArray[np.int64]:
    """Return the addresses of a tensor's bytes."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    lines = np.ix_(*(stride * np.arange(size) for size, stride in steps))
    entries = tensor.data_ptr() + tensor.element_size() * sum(lines, np.int64(0))
    return (np.reshape(entries, (-1, 1)) + np.arange(tensor.element_size())).ravel()

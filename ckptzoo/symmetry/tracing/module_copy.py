"""Copies of modules, and the tensors that they keep beside parameters and buffers. Imports torch."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module, also where it keeps what it computed: weights, as torch.nn.utils.weight_norm does, or
    values of a forward pass.
    """
    kept = (leaf for part in module.modules() for leaf in pytree.tree_leaves(attributes(part)))
    computed = [leaf for leaf in kept if isinstance(leaf, torch.Tensor) and not leaf.is_leaf]
    # deepcopy refuses tensors that autograd has computed
    return copy.deepcopy(module, {id(item): item.detach().clone() for item in computed})


def copied_in_float64(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, in evaluation mode, with all its floats in float64: those of attributes too."""
    made = copied(module).cpu().double().eval()
    for part in made.modules():
        for name, value in attributes(part).items():
            if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)):
                # a parameter in a list, which is in float64 by now, stays the same object
                part.__dict__[name] = pytree.tree_map_only(torch.Tensor, _in_float64, value)
    return made


def attributes(part: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that are no parameters, buffers or modules."""
    return {name: value for name, value in vars(part).items() if name not in _REGISTERED}


def other_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a module keeps beside its parameters, in buffers and attributes, each with its place."""
    for prefix, part in module.named_modules():
        for name, value in (*part.named_buffers(recurse=False), *attributes(part).items()):
            for number, leaf in enumerate(pytree.tree_leaves(value)):
                # what a forward pass has left there may be a tensor without numbers
                if type(leaf) in (torch.Tensor, nn.Parameter) and leaf.layout == torch.strided:
                    path = f"{prefix}.{name}".removeprefix(".")
                    yield f"{path}.{number}" if leaf is not value else path, leaf


def _in_float64(item: torch.Tensor) -> torch.Tensor:
    double = item.is_floating_point() and item.dtype != torch.float64
    return item.detach().cpu().double() if double else item.cpu()

"""From a module to its verified symmetry table."""

import copy
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import nn

from ckptzoo.errors import SymmetryError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.symmetry.tracing.double import InDouble
from ckptzoo.symmetry.tracing.graph import operations
from ckptzoo.symmetry.tracing.ledger import Ledger
from ckptzoo.symmetry.tracing.result import Traced
from ckptzoo.symmetry.tracing.table import table
from ckptzoo.symmetry.tracing.verify import verified
from ckptzoo.symmetry.tracing.walk import Walk

_ROWS = 2


def trace(module: nn.Module, example_input: torch.Tensor) -> Traced:
    """A module's symmetries, as ``ckptzoo.symmetry.trace`` says; the module is not changed."""
    example = _example(example_input)
    shape = tuple(example.shape[1:])
    arch = Architecture.of(module.state_dict(), name=type(module).__name__, input_shape=shape or None)
    names = {spelt: tensor.name for tensor in arch.tensors for spelt in (tensor.name, *tensor.aliases)}
    double = copy.deepcopy(module).cpu().double().eval()
    derived, notes = table(_walked(double, names, example), arch)
    derived.check(arch)
    symmetry, worst, failed = verified(double, arch, derived, example)
    return Traced(symmetry, arch, notes + failed, worst)


def _walked(module: nn.Module, names: Mapping[str, str], example: torch.Tensor) -> Ledger:
    """What the module's operations tell, for two rows of the example if they take them, else for all."""
    graph = operations(module)
    with torch.no_grad(), InDouble():
        if len(example) > _ROWS:
            with suppress(SymmetryError):
                return Walk(module, names).run(graph, example[:_ROWS])
        return Walk(module, names).run(graph, example)


def _example(given: object) -> torch.Tensor:
    """The example in float64, on the CPU."""
    if isinstance(given, torch.Tensor) and given.is_floating_point() and given.numel():
        return given.detach().cpu().double()
    got = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
    raise SymmetryError(
        f"symmetry.trace: example input: expected a tensor of floats with at least one entry, got {got}. "
        "Pass one such as the module takes, with an axis of examples first."
    )

"""Small networks in a line, tables as text, and whether a table holds."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ckptzoo.schema.symmetry import AxisAction, Fixed, Like, Perm, Symmetry, Wreath
from ckptzoo.symmetry import GroupElement, apply, trace
from ckptzoo.symmetry.tracing.graph import InDouble
from ckptzoo.symmetry.tracing.result import Traced

Forward = Callable[[Any, torch.Tensor], Any]


class Net(nn.Module):
    """A module of parts; tensors that are no parameters become buffers."""

    def __init__(self, forward: Forward, parts: dict[str, Any]) -> None:
        super().__init__()
        self._run = forward
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self._run(self, x)


def net(forward: Forward, seed: int = 0, **parts: Callable[[], Any]) -> Net:
    """A network of parts that are made with this seed."""
    torch.manual_seed(seed)
    return Net(forward, {name: make() for name, make in parts.items()})


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    """A part that is a random parameter."""
    return lambda: nn.Parameter(torch.randn(shape))


def images(channels: int = 1, size: int = 6, count: int = 2) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def rows(features: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(0))


def held(module: nn.Module, example: torch.Tensor) -> Traced:
    """A trace whose table holds, seen with other elements and inputs than those of the verification."""
    traced = trace(module, example)
    assert traced.worst < 1e-9
    assert not any("change the outputs" in note for note in traced.notes)
    stays(module, traced.symmetry, example)
    return traced


def stays(module: nn.Module, table: Symmetry, example: torch.Tensor, seed: int = 1) -> None:
    """Random elements leave float64 outputs alone, with weights near the module's own."""
    double = copy.deepcopy(module).double().eval()
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.standard_normal((5, *example.shape[1:])))
    stack = {name: value.detach().numpy()[None] for name, value in double.named_buffers()}
    for name, value in [*double.named_parameters(), *double.named_buffers()]:
        if name not in stack or "running" in name:
            stack[name] = (value.detach().numpy() * rng.uniform(0.8, 1.2, value.shape))[None]
    moved = apply(GroupElement.random(table, 1, rng, spread=0.3), stack, table)
    expected, found = (_outputs(double, weights, inputs) for weights in (stack, moved))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def _outputs(module: nn.Module, stack: dict[str, np.ndarray], inputs: torch.Tensor) -> np.ndarray:
    state = {name: torch.from_numpy(np.array(value[0])) for name, value in stack.items()}
    with torch.no_grad(), InDouble():
        made = torch.func.functional_call(module, state, (inputs,))
    return torch.cat([item.reshape(-1) for item in (made if isinstance(made, tuple) else (made,))]).numpy()


def text(table: Symmetry) -> str:
    """A table as lines: ``group n perm scale``, then ``tensor axis exponent role group@offset+count*inner ...``."""
    groups = [f"{group.id} {group.n} {_perm(group.perm)} {group.scale}" for group in table.groups]
    return "\n".join([*groups, *map(_action, table.actions)])


def lines(expected: str) -> str:
    """Such lines as they stand in a test."""
    return "\n".join(line.strip() for line in expected.strip().splitlines())


def _perm(perm: Perm) -> str:
    if isinstance(perm, Wreath):
        return f"wreath({perm.outer},{perm.g},{perm.k})"
    if isinstance(perm, Like):
        return f"like({perm.group})"
    return "fixed" if isinstance(perm, Fixed) else "sym"


def _action(action: AxisAction) -> str:
    segments = (
        f"{item.group}@{item.offset}+{item.count}" + (f"*{item.inner}" if item.inner > 1 else "")
        for item in action.segments
    )
    assert action.in_mass == (action.role in ("out", "in") or (action.role == "gain" and action.in_mass))
    blocks = f"/{action.blocks}" if action.blocks > 1 else ""
    exponent = f"{action.exponent:+d}" if action.exponent else "0"
    eps = f" eps={action.eps:g}" if action.eps else ""
    return f"{action.tensor} {action.axis}{blocks} {exponent} {action.role} {' '.join(segments)}{eps}"

"""Random networks: whatever is composed of known operations is traced, and its table holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ckptzoo.symmetry import trace
from tests.support.effort import examples

Step = Callable[[nn.ModuleDict, list[torch.Tensor]], torch.Tensor]

ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu in place of a copy": lambda h: h.clone().relu_(),
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "max_pool": lambda h: F.max_pool2d(h, 3, 1, 1),
    "avg_pool": lambda h: F.avg_pool2d(h, 3, 1, 1),
    "double": lambda h: -2 * h,
    "one more": lambda h: h + 1,
    "less its mean": lambda h: h - h.mean((2, 3), keepdim=True),
    "less the mean of channels": lambda h: h - h.mean(1, keepdim=True),
    "upside down": lambda h: h.flip(2),
    "rms": lambda h: h * torch.rsqrt(h.pow(2).mean((2, 3), keepdim=True) + 1e-3),
}


@dataclass
class Draft:
    """A network that is being drawn: parts, steps, and the number of channels of every value."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    parts: nn.ModuleDict
    steps: list[Step]
    widths: list[int]

    def part(self, module: nn.Module) -> str:
        name = f"part{len(self.parts)}"
        self.parts[name] = module
        return name

    def one_of(self, *items: Any) -> Any:
        return self.draw(st.sampled_from(items))

    def value(self, width: int | None = None) -> int:
        return self.one_of(*(at for at, size in enumerate(self.widths) if width in (None, size)))

    def add(self, width: int, step: Step) -> None:
        self.widths.append(width)
        self.steps.append(step)

    def apply(self, module: nn.Module, at: int, width: int) -> None:
        name = self.part(module)
        self.add(width, lambda parts, values: parts[name](values[at]))


def _layer(draft: Draft) -> None:
    at = draft.value()
    width = draft.widths[at]
    groups = draft.one_of(*(divisor for divisor in range(1, width + 1) if width % divisor == 0))
    after = groups * draft.one_of(1, 2, 3)
    draft.apply(
        nn.Conv2d(width, after, draft.one_of(1, 3), padding="same", groups=groups, bias=draft.one_of(True, False)),
        at,
        after,
    )


def _again(draft: Draft) -> None:
    convs = [(name, part) for name, part in draft.parts.items() if isinstance(part, nn.Conv2d)]
    name, part = draft.one_of(*convs)
    if part.in_channels in draft.widths:
        at = draft.value(part.in_channels)
        draft.add(part.out_channels, lambda parts, values: parts[name](values[at]))


def _act(draft: Draft) -> None:
    at, act = draft.value(), ACTS[draft.one_of(*ACTS)]
    draft.add(draft.widths[at], lambda _, values: act(values[at]))


def _norm(draft: Draft) -> None:
    at = draft.value()
    width = draft.widths[at]
    groups = draft.one_of(*(divisor for divisor in range(1, width + 1) if width % divisor == 0))
    norms = (
        nn.BatchNorm2d(width, affine=draft.one_of(True, False)),
        nn.BatchNorm2d(width, track_running_stats=False),
        nn.GroupNorm(groups, width),
        nn.InstanceNorm2d(width, affine=True),
        nn.LayerNorm((width, 4, 4)),
        nn.PReLU(draft.one_of(1, width)),
    )
    draft.apply(draft.one_of(*norms), at, width)


class Elementwise(nn.Module):
    """One parameter with a value."""

    def __init__(self, shape: tuple[int, ...], operation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.values, self.operation = nn.Parameter(torch.randn(shape)), operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operation(x, self.values)


def _parameter(draft: Draft) -> None:
    at = draft.value()
    width = draft.widths[at]
    operation = draft.one_of(torch.add, torch.mul, torch.max, torch.sub)
    shape = draft.one_of((1,), (width, 1, 1), (1, width, 1, 1), (width, 4, 4))
    draft.apply(Elementwise(shape, operation), at, width)


def _pair(draft: Draft) -> None:
    first = draft.value()
    second = draft.value(draft.widths[first])
    operation = draft.one_of(
        torch.add, torch.mul, torch.max, lambda a, b: a - 0.5 * b, lambda a, b: a * torch.sigmoid(b)
    )
    draft.add(draft.widths[first], lambda _, values: operation(values[first], values[second]))


def _joined(draft: Draft) -> None:
    first, second = draft.value(), draft.value()
    draft.add(
        draft.widths[first] + draft.widths[second], lambda _, values: torch.cat([values[first], values[second]], 1)
    )


def _in_space(draft: Draft) -> None:
    first = draft.value()
    second = draft.value(draft.widths[first])
    draft.add(draft.widths[first], lambda _, values: torch.cat([values[first], values[second]], 3)[..., 2:6])


def _part(draft: Draft) -> None:
    at, half = draft.value(), draft.one_of(0, 1)
    if draft.widths[at] % 2 == 0:
        draft.add(draft.widths[at] // 2, lambda _, values: values[at].chunk(2, 1)[half])


def _padded(draft: Draft) -> None:
    at, pad = draft.value(), (draft.one_of(0, 1, 2), draft.one_of(0, 1))
    draft.add(draft.widths[at] + sum(pad), lambda _, values: F.pad(values[at], (0, 0, 0, 0, *pad)))


def _gated(draft: Draft) -> None:
    at = draft.value()
    width = draft.widths[at]
    gates = draft.one_of(1, width)
    name = draft.part(nn.Sequential(nn.Conv2d(width, 2, 1), nn.ReLU(), nn.Conv2d(2, gates, 1), nn.Sigmoid()))
    draft.add(width, lambda parts, values: values[at] * parts[name](values[at].mean((2, 3), keepdim=True)))


def _product(draft: Draft) -> None:
    """Two layers of one value, each with an activation or without, and their product, which one of them may join."""
    at, width = draft.value(), draft.one_of(1, 2, 3, 4)
    one, two = (draft.part(nn.Conv2d(draft.widths[at], width, 1)) for _ in range(2))
    acts = [draft.one_of(F.relu, torch.tanh, lambda h: h, F.silu) for _ in range(2)]
    join = draft.one_of(lambda a, b: a * b, lambda a, b: a * b, lambda a, b: torch.cat([a, a * b], 1))

    def step(parts: nn.ModuleDict, values: list[torch.Tensor]) -> torch.Tensor:
        return join(*(act(parts[name](values[at])) for act, name in zip(acts, (one, two), strict=True)))

    draft.add(step(draft.parts, [torch.zeros(1, size, 4, 4) for size in draft.widths]).shape[1], step)


STEPS = (_layer, _layer, _again, _act, _act, _norm, _parameter, _pair, _joined, _in_space, _part, _padded, _gated)
STEPS += (_product, _product)


class Random(nn.Module):
    """The network that was drawn, with a head that reads the last value."""

    def __init__(self, draft: Draft, flat: bool) -> None:
        super().__init__()
        self.parts, self.steps, self.flat = draft.parts, draft.steps, flat
        self.head = nn.Linear(draft.widths[-1] * (16 if flat else 1), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [self.parts["part0"](x)]
        for step in self.steps:
            values.append(step(self.parts, values))
        return self.head(values[-1].flatten(1) if self.flat else values[-1].mean((2, 3)))


@st.composite
def networks(draw: st.DrawFn) -> Random:
    """A convolution, up to eight steps, and a linear layer."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    width = draw(st.sampled_from([1, 2, 3, 4, 6]))
    draft = Draft(draw, nn.ModuleDict({"part0": nn.Conv2d(2, width, 3, padding=1)}), [], [width])
    for _ in range(draw(st.integers(1, 8))):
        draw(st.sampled_from(STEPS))(draft)
    return Random(draft, draw(st.booleans()))


@pytest.mark.slow
@settings(max_examples=examples(150, 5), deadline=None)
@given(networks())
def test_random_networks_are_traced_and_their_tables_hold(network: Random) -> None:
    traced = trace(network, torch.randn(2, 2, 4, 4))
    assert traced.worst < 1e-9
    assert not any("change the outputs by" in note for note in traced.notes)

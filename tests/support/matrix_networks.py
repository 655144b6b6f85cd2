"""An attention layer with rotary embeddings, whose table has invertible matrices and complex numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ckptzoo
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction, Group, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply

TOKENS, WIDTH, HEADS, K_HEAD = 5, 6, 2, 4
N = HEADS * K_HEAD
"""Channels of queries, of keys and of values."""
Weights = dict[str, np.ndarray]


class RotaryAttention(nn.Module):
    """Attention between tokens (B, tokens, width), and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, N), nn.Linear(WIDTH, N, bias=False), nn.Linear(WIDTH, N)
        self.o = nn.Linear(N, WIDTH)
        angles = torch.outer(torch.arange(TOKENS), 10.0 ** -torch.arange(K_HEAD // 2))
        self.register_buffer("angles", torch.cat([angles, angles], dim=1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the attention adds to every token."""
        q, k, v = (layer(x).unflatten(-1, (HEADS, K_HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(self._turned(q), self._turned(k), v)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * self.angles.cos() + torch.cat([-second, first], dim=-1) * self.angles.sin()


def _pairs(tensor: str, exponent: int, role: str = "out") -> AxisAction:
    """Real parts are in the first half of each head, imaginary parts in the second."""
    half = K_HEAD // 2
    halves = [
        Segment("pairs", head * K_HEAD + part * half, 1, half, part=part) for head in range(HEADS) for part in (0, 1)
    ]
    return AxisAction(tensor, 0, tuple(halves), exponent, role == "out", role)


def _values(tensor: str, axis: int, exponent: int, role: str) -> AxisAction:
    return AxisAction(tensor, axis, (Segment("values", 0, 1, N),), exponent, role != "bias", role)


TABLE = Symmetry(
    (
        Group("pairs", N // 2, Wreath("heads", HEADS, K_HEAD // 2, "fixed"), "complex"),
        Group("values", N, Wreath("heads", HEADS, K_HEAD), "linear"),
    ),
    (
        _pairs("q.weight", 1),
        _pairs("q.bias", 1, "bias"),
        _pairs("k.weight", -1),
        _values("v.weight", 0, 1, "out"),
        _values("v.bias", 0, 1, "bias"),
        _values("o.weight", 1, -1, "in"),
    ),
)
SHAPES = {name: tuple(value.shape) for name, value in RotaryAttention().state_dict().items()}
ARCH = Architecture(
    f"rotary-attention-{WIDTH}-{HEADS}-{K_HEAD}",
    tuple(Tensor(name, shape) for name, shape in SHAPES.items()),
    input_shape=(TOKENS, WIDTH),
)


def weights_of(K: int, seed: int, dtype: Any = np.float32) -> Weights:
    """Random weights of K networks."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((K, *shape)).astype(dtype) for name, shape in SHAPES.items()}


def disguised(weights: Weights, seed: int, table: Symmetry = TABLE, *, spread: float = 0.5) -> Weights:
    """The same networks under random elements of their group."""
    K = len(next(iter(weights.values())))
    return apply(GroupElement.random(table, K, np.random.default_rng(seed), spread=spread), weights, table)


def outputs(weights: Weights, inputs: np.ndarray) -> np.ndarray:
    """(K, B, ...) of every network in float64."""
    module = RotaryAttention().double()
    found = []
    for row in range(len(weights["q.weight"])):
        module.load_state_dict(
            {name: torch.from_numpy(value[row].astype(np.float64)) for name, value in weights.items()}
        )
        with torch.no_grad():
            found.append(module(torch.from_numpy(inputs)).numpy())
    return np.stack(found)


def write_zoo(path: Path, parts: tuple[int, ...] = (3, 2), *, name: str | None = None) -> Path:
    """A zoo in parts of so many networks, of which the last of each part is the first one in a disguise."""
    options = {} if name is None else {"card": ckptzoo.Card(name, license="cc0-1.0")}
    writer = ckptzoo.create(path, arch=ARCH, symmetry=TABLE, **options)
    for number, count in enumerate(parts):
        weights = weights_of(count, number)
        copy = disguised({key: value[:1] for key, value in weights.items()}, 100 + number)
        for key, value in weights.items():
            value[-1:] = copy[key]
        writer.add(weights, [{"id": f"{number}-{row}", "unit": f"u{number}"} for row in range(count)])
        writer.commit()
    return path

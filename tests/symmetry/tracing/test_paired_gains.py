"""Gains of queries and of keys that all heads share: scales between them, in every layout of pairs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ckptzoo.symmetry import count
from tests.symmetry.tracing.helpers import checked_trace
from tests.symmetry.tracing.test_folds import folded_dimensions, nullity

WIDTH, HEADS, HEAD = 8, 2, 4
EXAMPLE = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


class RMSNorm(nn.Module):
    """As large language models write it; ``offset`` is added to the gain."""

    def __init__(self, n: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.rand(n) + 0.5), offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gain = self.offset + self.weight if self.offset else self.weight
        return gain * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def turned(values: torch.Tensor, layout: str) -> torch.Tensor:
    """With rotary embeddings of pairs in two halves or in turns, or without."""
    if layout == "entries":
        return values
    half = values.shape[-1] // 2
    angles = torch.arange(values.shape[2])[:, None] * 0.3 ** torch.arange(half)
    cos, sin = angles.cos(), angles.sin()
    if layout == "halves":
        first, second = values[..., :half], values[..., half:]
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    first, second = values[..., ::2], values[..., 1::2]
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, norm: type[nn.Module] | None, layout: str, head: int = HEAD, **options: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(WIDTH, HEADS * head) for _ in range(3))
        self.o, self.layout, self.head = nn.Linear(HEADS * head, WIDTH), layout, head
        if norm is None:  # gains beside each other, without modules of their own
            self.q_gain, self.k_gain = (nn.Parameter(torch.rand(head) + 0.5) for _ in range(2))
            self.norms = None
        else:
            self.q_norm, self.k_norm = (norm(head, **options) for _ in range(2))
            self.norms = self.q_norm, self.k_norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(2, (HEADS, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.norms is None:
            q, k = F.normalize(q, dim=-1) * self.q_gain, F.normalize(k, dim=-1) * self.k_gain
        else:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k = turned(q, self.layout), turned(k, self.layout)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("norm", "layout", "scales"),
    [
        (RMSNorm, "entries", HEAD),
        (RMSNorm, "halves", HEAD // 2),
        (RMSNorm, "turns", HEAD // 2),
        (nn.RMSNorm, "halves", HEAD // 2),
        (nn.LayerNorm, "entries", HEAD),
        (None, "entries", HEAD),
    ],
)
@pytest.mark.sampled(3)
def test_only_products_of_gains_count(norm: type[nn.Module] | None, layout: str, scales: int) -> None:
    module = Attention(norm, layout)
    table = checked_trace(module, EXAMPLE).symmetry
    first, second = ("q_gain", "k_gain") if norm is None else ("q_norm.weight", "k_norm.weight")
    ((queries,), (keys,)) = table.actions_on(first), table.actions_on(second)
    assert queries.segments == keys.segments and (queries.exponent, keys.exponent) == (1, -1)
    (name,) = queries.groups
    assert (table[name].n, table[name].scale) == (scales, "nonzero")
    assert dict(count(table).continuous)["scales"] == scales


@pytest.mark.exhaustive
def test_the_dimensions_are_those_of_the_jacobian() -> None:
    module = Attention(RMSNorm, "halves")
    traced = checked_trace(module, EXAMPLE)
    found = count(traced.symmetry)
    assert dict(found.continuous)["scales"] == HEAD // 2
    examples = 1.5 * torch.randn(60, 5, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert nullity(module, traced, examples) == found.dimensions
    assert folded_dimensions(traced) == HEADS * HEAD  # values move into the output's bias


@pytest.mark.exhaustive
def test_shifted_gains_have_no_scales() -> None:
    table = checked_trace(Attention(RMSNorm, "halves", offset=1.0), EXAMPLE).symmetry
    gains = [action for name in ("q_norm.weight", "k_norm.weight") for action in table.actions_on(name)]
    assert all(table[name].scale == "none" for action in gains for name in action.groups)


@pytest.mark.exhaustive
def test_each_pair_has_its_own_layout() -> None:
    """Heads of an odd size, which have no halves, beside others with rotary embeddings."""
    module = nn.Sequential(Attention(RMSNorm, "entries", head=3), Attention(RMSNorm, "halves"))
    table = checked_trace(module, EXAMPLE).symmetry
    sizes = [table[name].n for part in "01" for act in table.actions_on(f"{part}.q_norm.weight") for name in act.groups]
    assert sizes == [3, HEAD // 2]

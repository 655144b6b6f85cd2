"""Attentions whose queries are of other values than their keys: one packed weight is read in parts."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo.symmetry import GroupElement, apply, canonicalize, fold, trace
from tests.symmetry.tracing.helpers import checked_trace

D = 8


class Cross(nn.Module):
    """Queries of one layer, keys of another, values of the same or of a third."""

    def __init__(self, three: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, D) for _ in range(3))
        self.attention, self.out = nn.MultiheadAttention(D, 2, batch_first=True), nn.Linear(D, 2)
        self.three = three

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = torch.relu(self.b(x))
        values = torch.relu(self.c(x)) if self.three else keys
        return self.out(torch.relu(self.attention(torch.relu(self.a(x)), keys, values, need_weights=False)[0]))


class Pool(nn.Module):
    """One learned query over all tokens, as in the head of SigLIP and in Set Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.seed, self.tokens = nn.Parameter(torch.randn(1, 1, D)), nn.Linear(3, D)
        self.attention, self.norm = nn.MultiheadAttention(D, 2, batch_first=True), nn.LayerNorm(D)
        self.units, self.out = nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x)
        pooled = self.attention(self.seed.expand(len(x), -1, -1), h, h, need_weights=False)[0]
        return self.out(self.norm(pooled + torch.relu(self.units(pooled)))[:, 0])


class Decoder(nn.Module):
    def __init__(self, whole: bool, norm_first: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, D), nn.Linear(3, D), nn.Linear(D, 2)
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        if whole:
            self.part: nn.Module = nn.Transformer(D, 2, 1, 1, 12, **options)
        else:
            self.part = nn.TransformerDecoderLayer(D, 2, 12, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.part(self.a(x), self.b(x)))


class Rows(nn.Module):
    """Rows of one weight, which two layers use."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.a, self.out = nn.Parameter(torch.randn(10, 6)), nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.a(x))
        first = torch.relu(nn.functional.linear(h, self.weight[:6]))
        return self.out(first) + torch.tanh(h @ self.weight[6:].T).sum(-1, keepdim=True)


KINDS = {
    "two values": lambda: Cross(three=False),
    "three values": lambda: Cross(three=True),
    "pooled by a seed": Pool,
    "decoder layer": lambda: Decoder(whole=False),
    "decoder layer, norms first": lambda: Decoder(whole=False, norm_first=True),
    "transformer": lambda: Decoder(whole=True),
    "rows of a weight": Rows,
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(6)
def test_tables_are_found_and_canonical(name: str) -> None:
    torch.manual_seed(0)
    module = KINDS[name]().eval()
    example = torch.randn(2, 5, 3)
    table = checked_trace(module, example).symmetry
    if name != "rows of a weight":
        assert sum(group.scale == "linear" for group in table.groups) >= 2
    rng = np.random.default_rng(0)
    weights = {key: value.double().numpy()[None] for key, value in module.state_dict().items()}
    weights = {key: value + 0.2 * rng.standard_normal(value.shape) for key, value in weights.items()}
    start = fold(weights, table)
    first, second = (
        canonicalize(apply(GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.3), start, table), table)
        for seed in (1, 2)
    )
    assert not first.report.unresolved.any()
    for key, value in first.weights.items():
        np.testing.assert_allclose(value, second.weights[key], atol=1e-8, err_msg=key)


def test_one_value_for_all_three_is_read_as_a_whole() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(D, 2, batch_first=True).eval()

    class Self(nn.Module):
        def __init__(self, apart: bool) -> None:
            super().__init__()
            self.a, self.attention, self.out, self.apart = nn.Linear(3, D), attention, nn.Linear(D, 2), apart

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.a(x))
            keys = h.clone() if self.apart else h
            return self.out(torch.relu(self.attention(h, keys, keys, need_weights=False)[0]))

    whole, parts = (trace(Self(apart), torch.randn(2, 5, 3)).symmetry for apart in (False, True))
    assert whole.groups == parts.groups
    assert {action.tensor for action in whole.actions} == {action.tensor for action in parts.actions}

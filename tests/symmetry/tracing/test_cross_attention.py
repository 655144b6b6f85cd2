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


QUERIES = {
    "expanded": lambda table, x: table.expand(len(x), -1, -1),
    "repeated": lambda table, x: table.repeat(len(x), 1, 1),
    "added to zeros": lambda table, x: torch.zeros(len(x), 1, 1) + table.repeat(len(x), 1, 1),
    "some rows": lambda table, x: table[1:].expand(len(x), -1, -1),
    "rows in another order": lambda table, x: table.flip(0).unsqueeze(0).repeat(len(x), 1, 1),
    "channels in another order": lambda table, x: table.flip(1).expand(len(x), -1, -1),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.sampled(2)
def test_learned_queries_that_a_layer_reads(name: str) -> None:
    """As in Perceiver and DETR: a matrix in front of the layer, and the heads of the attention behind it."""

    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(3, 4))
            self.first, self.queries, self.keys, self.values = (nn.Linear(4, 4) for _ in range(4))
            self.out = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            queries = self.queries(torch.relu(self.first(QUERIES[name](self.table, x))))
            return self.out((queries @ self.keys(x).mT).softmax(-1) @ self.values(x))

    table = checked_trace(Queries(), torch.randn(2, 5, 4)).symmetry
    scales = {group.id: (group.n, group.scale) for group in table.groups}
    assert scales == {
        "table": (4, "linear"),
        "first": (4, "positive"),
        "queries": (4, "linear"),
        "values": (4, "linear"),
    }


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_learned_queries_that_a_norm_reads_are_canonical(norm: type[nn.Module]) -> None:
    """Nothing but the table writes what the norm reads, so that no weights determine a basis."""

    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Parameter(torch.randn(3, 4)), norm(4)
            self.queries, self.keys, self.values = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            queries = self.queries(self.norm(self.table.expand(len(x), -1, -1)))
            return (queries @ self.keys(x).mT).softmax(-1) @ self.values(x)

    module = Queries().double()
    traced = checked_trace(module, torch.randn(2, 5, 4))
    inputs, state = torch.randn(2, 5, 4).double(), module.state_dict()
    weights = canonicalize({name: value[None].clone() for name, value in state.items()}, traced).weights
    found = torch.func.functional_call(module, {name: value[0] for name, value in weights.items()}, (inputs,))
    torch.testing.assert_close(found, module(inputs), rtol=1e-9, atol=1e-9)

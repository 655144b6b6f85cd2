"""Attention: heads that move, channels within them, and what queries and keys, and values and outputs, share."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, count, trace
from ckptzoo.symmetry.matrices.tables import monomial
from ckptzoo.symmetry.tracing.rules import elementwise, registry
from tests.symmetry.tracing.helpers import (
    Case,
    Net,
    check,
    checked_trace,
    conv,
    images,
    linear,
    net,
    parameter,
    part,
    rows,
)

TOKENS = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
SEPARATE = {"q": linear(6, 12), "k": linear(6, 12), "v": linear(6, 12), "o": linear(12, 6)}


def _heads(x: torch.Tensor, h: int = 3) -> torch.Tensor:
    return x.unflatten(-1, (h, -1)).transpose(1, 2)


def _joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def _split(m: Net, x: torch.Tensor) -> list[torch.Tensor]:
    return [_heads(layer(x)) for layer in (m.q, m.k, m.v)]


def _fused(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.o(_joined(F.scaled_dot_product_attention(*_split(m, x), is_causal=True)))


def _eager(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _split(m, x)
    scores = q @ k.mT / math.sqrt(k.shape[-1])
    scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e30)
    return m.o(_joined(scores.softmax(-1) @ v))


def _by_einsum(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (layer(x).unflatten(-1, (3, 4)) for layer in (m.q, m.k, m.v))
    weights = torch.einsum("bthk, bshk -> bhts", q, k).softmax(-1)
    return m.o(torch.einsum("bhts, bshk -> bthk", weights, v).flatten(2))


def _by_bmm(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (_heads(layer(x), 1)[:, 0] for layer in (m.q, m.k, m.v))
    return m.o(torch.bmm(torch.bmm(q, k.mT).softmax(-1), v))


def _packed(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = m.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4).unbind(0)
    return m.o(_joined(F.scaled_dot_product_attention(q, k, v)))


def _biased(m: Net, x: torch.Tensor) -> torch.Tensor:
    """Relative positions: one bias for each distance and each head."""
    q, k, v = _split(m, x)
    T = x.shape[1]
    distance = torch.arange(T)[:, None] - torch.arange(T)[None] + T - 1
    bias = m.table[distance.view(-1)].view(T, T, 3).permute(2, 0, 1)[None]
    return m.o(_joined((q @ k.mT + bias).softmax(-1) @ v))


def _sloped(m: Net, x: torch.Tensor) -> torch.Tensor:
    """A bias that is another one for each head, and not learned."""
    q, k, v = _split(m, x)
    return m.o(_joined((q @ k.mT + torch.arange(3.0).view(3, 1, 1) * torch.arange(5.0)).softmax(-1) @ v))


def _rotated(x: torch.Tensor) -> torch.Tensor:
    T, half = x.shape[-2], x.shape[-1] // 2
    angles = torch.arange(T)[:, None] * 0.3 ** torch.arange(half)
    angles = torch.cat([angles, angles], 1)
    return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()


def _rotary(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _split(m, x)
    return m.o(_joined(F.scaled_dot_product_attention(_rotated(q), _rotated(k), v)))


def _rotary_neighbours(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _split(m, x)
    return m.o(_joined(F.scaled_dot_product_attention(_neighbours_rotated(q), _neighbours_rotated(k), v)))


def _neighbours_rotated(x: torch.Tensor) -> torch.Tensor:
    """Each channel with even number is turned with the next one."""
    angles = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    first, second = x[..., 0::2], x[..., 1::2]
    turned = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    return torch.stack(turned, -1).flatten(-2)


def _rotary_grouped(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _heads(m.q(x), 2), _heads(m.k(x), 1), _heads(m.v(x), 1)
    return m.o(_joined(F.scaled_dot_product_attention(_rotated(q), _rotated(k), v, enable_gqa=True)))


def _grouped(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _heads(m.q(x), 4), _heads(m.k(x), 2), _heads(m.v(x), 2)
    return m.o(_joined(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


def _grouped_by_hand(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _heads(m.q(x), 4), _heads(m.k(x), 2), _heads(m.v(x), 2)
    k, v = (item[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for item in (k, v))
    return m.o(_joined((q @ k.mT).softmax(-1) @ v))


def _normed(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _split(m, x)
    return m.o(_joined(F.scaled_dot_product_attention(m.qn(q), m.kn(k), v)))


class RMSNorm(nn.Module):
    """As large language models write it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


HEADS = """
    q 12 wreath({0},3,4) nonzero
    v 12 wreath({0},3,4) nonzero
    q: -> q@0+12
    k.weight 0 -1 out q@0+12
    k.bias 0 -1 bias q@0+12
    v: -> v@0+12
    o: v@0+12 ->
"""
FUSED = HEADS.format("scaled_dot_product_attention")
CASES = {
    "attention": Case(_fused, SEPARATE, TOKENS, FUSED, notes=()),
    "attention of products": Case(_eager, SEPARATE, TOKENS, HEADS.format("matmul"), notes=()),
    "attention of einsums": Case(_by_einsum, SEPARATE, TOKENS, HEADS.format("einsum"), notes=()),
    "one head": Case(
        _by_bmm, SEPARATE, TOKENS, FUSED.replace("wreath(scaled_dot_product_attention,3,4)", "sym"), notes=()
    ),
    "queries, keys and values of one layer": Case(
        _packed,
        {"qkv": linear(6, 36), "o": linear(12, 6)},
        TOKENS,
        """
        qkv 12 wreath(scaled_dot_product_attention,3,4) nonzero
        qkv:2 12 wreath(scaled_dot_product_attention,3,4) nonzero
        qkv: -> qkv@0+12 qkv@12+12^-1 qkv:2@24+12
        o: qkv:2@0+12 ->
        """,
        notes=(),
    ),
    "heads move with their biases": Case(
        _biased,
        SEPARATE | {"table": parameter(9, 3)},
        TOKENS,
        """
        q 12 wreath(matmul,3,4) nonzero
        v 12 wreath(matmul,3,4) nonzero
        table 3 wreath(matmul,3,1) none
        table 1 +1 bias table@0+3
        ...
        """,
    ),
    "heads that constants tell apart": Case(
        _sloped, SEPARATE, TOKENS, "q 4 sym nonzero | q:2 4 sym nonzero | q:3 4 sym nonzero | v 4 sym nonzero | ..."
    ),
    "rotary embeddings keep pairs in their order": Case(
        _rotary,
        SEPARATE,
        TOKENS,
        """
        q 6 wreath(scaled_dot_product_attention,3,2,fixed) nonzero
        v 12 wreath(scaled_dot_product_attention,3,4) nonzero
        q: -> q@0+2 q@4+2 q@8+2 q@2+2 q@6+2 q@10+2
        k.weight 0 -1 out q@0+2 q@4+2 q@8+2 q@2+2 q@6+2 q@10+2
        k.bias 0 -1 bias q@0+2 q@4+2 q@8+2 q@2+2 q@6+2 q@10+2
        v: -> v@0+12
        o: v@0+12 ->
        """,
        notes=(),
    ),
    "rotary embeddings of neighbouring channels": Case(
        _rotary_neighbours,
        SEPARATE,
        TOKENS,
        """
        q 6 wreath(scaled_dot_product_attention,3,2,fixed) nonzero
        v 12 wreath(scaled_dot_product_attention,3,4) nonzero
        q: -> q@0+6*2
        k.weight 0 -1 out q@0+6*2
        k.bias 0 -1 bias q@0+6*2
        v: -> v@0+12
        o: v@0+12 ->
        """,
        notes=(),
    ),
    "rotary embeddings of one head of keys": Case(
        _rotary_grouped,
        {"q": linear(6, 8), "k": linear(6, 4), "v": linear(6, 4), "o": linear(8, 6)},
        TOKENS,
        """
        heads 2 wreath(heads,1,2) none
        q 2 wreath(heads,1,2,fixed) nonzero
        v 4 wreath(heads,1,4) nonzero
        q: -> heads(q)@0+1*2 heads(q)@4+1*2 heads(q)@2+1*2 heads(q)@6+1*2
        ...
        """,
    ),
    "a norm over the channels of each head keeps signs and the order": Case(
        _normed,
        SEPARATE | {"qn": part(RMSNorm, 4), "kn": part(RMSNorm, 4)},
        TOKENS,
        """
        q 12 wreath(qn,3,4,fixed) sign
        v 12 wreath(qn,3,4) nonzero
        ...
        """,
    ),
    "a layer norm over the channels of each head keeps the order": Case(
        _normed,
        SEPARATE | {"qn": part(nn.LayerNorm, 4), "kn": part(nn.LayerNorm, 4)},
        TOKENS,
        "q 12 wreath(qn,3,4,fixed) none | v 12 wreath(qn,3,4) nonzero | ...",
    ),
}
GROUPED = """
    {0} 4 wreath({0},2,2) none
    q 8 wreath({0},2,4) nonzero
    v 8 wreath({0},2,4) nonzero
    q: -> {0}(q)@0+4*4
    k.weight 0 -1 out q@0+8
    k.bias 0 -1 bias q@0+8
    v: -> v@0+8
    o: {0}(v)@0+4*4 ->
"""
CASES |= {
    f"heads of queries that share keys and values, {name}": Case(
        forward,
        {"q": linear(6, 16), "k": linear(6, 8), "v": linear(6, 8), "o": linear(16, 6)},
        TOKENS,
        GROUPED.format(name),
        notes=(),
    )
    for name, forward in (("scaled_dot_product_attention", _grouped), ("matmul", _grouped_by_hand))
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


def test_the_number_of_symmetries() -> None:
    for forward, parts in ((_fused, SEPARATE), (_packed, {"qkv": linear(6, 36), "o": linear(12, 6)})):
        found = count(monomial(trace(net(forward, **parts), TOKENS).symmetry))
        assert found.permutations == math.factorial(3) * math.factorial(4) ** 6 == 1_146_617_856
        assert (found.scaling_eval, found.signs) == (24, 24)


def disguised(module: nn.Module, table: Symmetry, seed: int) -> dict[str, np.ndarray]:
    """The module's weights in float64 under a random element."""
    stack = {name: value.detach().double().numpy()[None] for name, value in module.state_dict().items()}
    return apply(GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.5), stack, table)


@pytest.mark.parametrize("name", ["attention", "queries, keys and values of one layer", "heads move with their biases"])
def test_two_disguises_have_one_canonical_form(name: str) -> None:
    case = CASES[name]
    module = net(case.forward, **case.parts)
    table = trace(module, case.example).symmetry
    first, second = (canonicalize(disguised(module, table, seed), table).weights for seed in (1, 2))
    for tensor, value in first.items():
        assert np.linalg.norm(value - second[tensor]) <= 1e-11 * np.linalg.norm(value)


def test_weights_of_an_attention_that_are_returned_keep_the_heads_in_place() -> None:
    def forward(m: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = _split(m, x)
        weights = (q @ k.mT).softmax(-1)
        return m.o(_joined(weights @ v)), weights

    found = count(monomial(checked_trace(net(forward, **SEPARATE), TOKENS).symmetry))
    assert found.permutations == math.factorial(4) ** 6


def test_heads_that_are_mixed_stay_in_place() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        q, k, v = _split(m, x)
        scores = q @ k.mT
        return m.o(_joined((scores + scores[:, [1, 2, 0]].relu()).softmax(-1) @ v))

    table = checked_trace(net(forward, **SEPARATE), TOKENS).symmetry
    assert count(monomial(table)).permutations == math.factorial(4) ** 6


def test_no_signed_permutation_is_missed() -> None:
    """All signed permutations of queries and keys, and of values and outputs, of two heads of two channels."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (_heads(layer(x), 2) for layer in (m.q, m.k, m.v))
        return m.o(_joined(F.scaled_dot_product_attention(q, k, v)))

    module = net(forward, q=linear(3, 4), k=linear(3, 4), v=linear(3, 4), o=linear(4, 3)).double()
    found = count(monomial(trace(module, TOKENS[..., :3]).symmetry))
    example = TOKENS[:, :3, :3].double()
    signed = [
        torch.diag(torch.tensor(signs, dtype=torch.float64))[list(order)]
        for order in itertools.permutations(range(4))
        for signs in itertools.product([1.0, -1.0], repeat=4)
    ]
    with torch.no_grad():
        expected = module(example)
        kept = [0, 0]
        for first in signed:
            # The same on both sides: nothing else keeps q k^T, as both have generic weights.
            state = {**module.state_dict(), "q.weight": first @ module.q.weight, "q.bias": first @ module.q.bias}
            state |= {"k.weight": first @ module.k.weight, "k.bias": first @ module.k.bias}
            kept[0] += _same(module, state, example, expected)
            state = {**module.state_dict(), "v.weight": first @ module.v.weight, "v.bias": first @ module.v.bias}
            kept[1] += _same(module, state | {"o.weight": module.o.weight @ first.T}, example, expected)
    # Alone, neither side can exchange the heads: together they can, which doubles the number once.
    inside = 2**2 * 2**4
    assert kept == [inside, inside]
    assert found.permutations * 2**found.signs == 2 * inside * inside


def _same(module: nn.Module, state: dict[str, torch.Tensor], example: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((torch.func.functional_call(module, state, (example,)) - expected).abs().max() < 1e-9)


def test_dropout_that_is_left_on() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.o(_joined(F.scaled_dot_product_attention(*_split(m, x), dropout_p=0.1)))

    with pytest.raises(
        SymmetryError, match=r"'scaled_dot_product_attention' \(test_attention.py line \d+\): expected no dr"
    ):
        trace(net(forward, **SEPARATE), TOKENS)


def test_a_relu_within_heads_leaves_positive_scales_to_queries() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        q, k, v = _split(m, x)
        return m.o(_joined(F.scaled_dot_product_attention(F.relu(q), F.gelu(k), F.relu(v))))

    table = checked_trace(net(forward, **SEPARATE), TOKENS).symmetry
    assert [(group.id, group.scale) for group in table.groups] == [("q", "none"), ("v", "positive")]


def test_a_false_claim_within_heads_is_taken_back_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        q, k, v = _split(m, x)
        return m.o(_joined(F.scaled_dot_product_attention(q, F.relu(k), v)))

    right = trace(net(forward, **SEPARATE), TOKENS).symmetry
    assert right["q"].scale == "positive"
    monkeypatch.setitem(registry.RULES, "relu", elementwise.homogeneous)
    traced = trace(net(forward, **SEPARATE), TOKENS)
    assert traced.worst < 1e-9 and traced.symmetry["q"].scale == "none" and traced.symmetry["v"].scale == "linear"
    assert any(note.startswith("Group 'q' is not scaled: its scales change the outputs by") for note in traced.notes)


CONDITIONED = {
    "where": lambda m, x: m.c(torch.where(m.a(x) > 0, m.a(x), -m.a(x))),
    "a comparison with zero": lambda m, x: m.c(m.a(x) * (m.a(x) >= 0)),
    "a comparison of two values": lambda m, x: m.c(torch.where(m.a(x) < m.b(x), m.a(x), m.b(x))),
}


@pytest.mark.parametrize("name", CONDITIONED)
def test_conditions_on_the_numbers_of_channels(name: str) -> None:
    module = net(CONDITIONED[name], a=linear(5, 4), b=linear(5, 4), c=linear(4, 2))
    assert checked_trace(module, rows(5)).symmetry["a"].scale == "positive"


def test_a_bias_of_queries_and_values_alone() -> None:
    """As in BEiT: the keys' bias is zeros, and the bias of the packed layer is made of three."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        bias = torch.cat([m.qb, torch.zeros(12), m.vb])
        q, k, v = F.linear(x, m.w, bias).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        return m.o(_joined(F.scaled_dot_product_attention(q, k, v)))

    module = net(forward, w=parameter(36, 6), qb=parameter(12), vb=parameter(12), o=linear(12, 6))
    assert count(monomial(checked_trace(module, TOKENS).symmetry)).permutations == 1_146_617_856


def test_a_gain_and_a_bias_by_addcmul() -> None:
    module = net(
        lambda m, x: m.c(F.relu(torch.addcmul(m.bias, m.gain, torch.sigmoid(m.a(x))))),
        a=linear(5, 4),
        gain=parameter(4),
        bias=parameter(4),
        c=linear(4, 2),
    )
    table = checked_trace(module, rows(5)).symmetry
    assert [(group.id, group.scale) for group in table.groups] == [("a", "none"), ("gain", "positive")]


def test_a_blur_that_is_the_same_for_all_channels() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.c(F.conv2d(F.relu(m.a(x)), m.blur.expand(4, 1, 2, 2), groups=4).mean((2, 3)))

    module = net(forward, a=conv(1, 4, 3), blur=lambda: torch.rand(1, 1, 2, 2), c=linear(4, 2))
    table = checked_trace(module, images()).symmetry
    assert [(group.n, group.scale) for group in table.groups] == [(4, "positive")] and count(table).permutations == 24


def test_a_comparison_with_another_number_leaves_no_scale() -> None:
    module = net(lambda m, x: m.c(m.a(x) * (m.a(x) > 1)), a=linear(5, 4), c=linear(4, 2))
    assert checked_trace(module, rows(5)).symmetry["a"].scale == "none"

"""Weights computed from parameters, gates, linear pairs and RMSNorm streams: tables, brute force, canonical forms."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import GroupElement, apply, canonicalize, count, fold, trace
from ckptzoo.symmetry.matrices.tables import monomial
from tests.symmetry.tracing.helpers import (
    Case,
    Net,
    check,
    check_outputs,
    checked_trace,
    conv,
    images,
    linear,
    net,
    parameter,
    part,
    rows,
    signed_permutations_kept,
)

# The older function is deprecated, and still in use.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning"),
]
WORDS = torch.tensor([[0, 2, 1], [3, 1, 0]])


def weight_norm(layer: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: nn.utils.parametrizations.weight_norm(layer())


def spectral_norm(layer: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: nn.utils.parametrizations.spectral_norm(layer())


def by_hooks(norm: Callable[..., nn.Module], layer: Callable[[], Any], **options: Any) -> Callable[[], nn.Module]:
    """With the older functions, which keep the computed weight as an attribute; here without its gradient."""

    def make() -> nn.Module:
        module = norm(layer(), **options)
        module.weight = module.weight.detach()
        return module

    return make


class RMSNorm(nn.Module):
    """As language models compute it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def standardized(m: Net, x: torch.Tensor) -> torch.Tensor:
    """Weight standardisation, as in NF-ResNets."""
    w = F.batch_norm(m.w.reshape(1, 4, -1), None, None, weight=(m.g * 0.5).view(-1), training=True, momentum=0.0)
    return m.c(F.relu(F.conv2d(x, w.reshape_as(m.w)))).mean((2, 3))


def _adapted(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.c(F.relu(F.linear(F.relu(m.a(x)), m.w.weight + 0.5 * m.B @ m.A, m.w.bias)))


def _in_a_row(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = F.relu(m.a(x))
    return m.c(F.relu(m.w(h) + 0.5 * m.B(m.A(h))))


LORA = {"a": linear(5, 6), "w": linear(6, 6), "c": linear(6, 3)}
LORA_TABLE = """
    a 6 sym positive
    w 6 sym positive
    A 2 sym nonzero
    {A} 0 +1 out A@0+2
    {A} 1 -1 in a@0+6
    {B} 0 +1 out w@0+6
    {B} 1 -1 in A@0+2
    a: -> a@0+6
    w: a@0+6 -> w@0+6
    c: w@0+6 ->
"""
NORMED = """
    a 4 sym nonzero
    a:2 4 like(a) positive
    a.bias 0 +1 bias a:2@0+4
    a.weight_g 0 +1 gain a:2@0+4 signs a@0+4
    a.weight_v 0 +1 out a@0+4
    c: a:2@0+4 ->
"""
CASES = {
    "weight_norm by hooks": Case(
        lambda m, x: m.c(F.relu(m.a(x))),
        {"a": by_hooks(nn.utils.weight_norm, linear(5, 4)), "c": linear(4, 2)},
        rows(5),
        NORMED,
        notes=(),
    ),
    "weight_norm": Case(
        lambda m, x: m.c(F.relu(m.a(x))).mean((2, 3)),
        {"a": weight_norm(conv(1, 4, 3)), "c": conv(4, 2, 1)},
        images(),
        """
        a.parametrizations.weight 4 sym nonzero
        a.parametrizations.weight:2 4 like(a.parametrizations.weight) positive
        a.bias 0 +1 bias a.parametrizations.weight:2@0+4
        a.parametrizations.weight.original0 0 +1 gain a.parametrizations.weight:2@0+4 signs a.parametrizations.weight@0+4
        a.parametrizations.weight.original1 0 +1 out a.parametrizations.weight@0+4
        c: a.parametrizations.weight:2@0+4 ->
        """,
    ),
    "weight_norm leaves what it reads its signs": Case(
        lambda m, x: m.c(torch.tanh(m.a(x))),
        {"a": linear(5, 4), "c": by_hooks(nn.utils.weight_norm, linear(4, 2))},
        rows(5),
        "a 4 sym sign | ...",
    ),
    "weight_norm after a ReLU leaves no scale": Case(
        lambda m, x: m.c(F.relu(m.a(x))),
        {"a": linear(5, 4), "c": by_hooks(nn.utils.weight_norm, linear(4, 2))},
        rows(5),
        "a 4 sym none | ...",
        notes=("Group 'a' is not scaled: 'relu' * and 'linear' (c, *divides by a norm of the weight.", "..."),
    ),
    "weight_norm with a norm for each channel that is read": Case(
        lambda m, x: m.c(F.relu(m.a(x))),
        {"a": linear(5, 4), "c": by_hooks(nn.utils.weight_norm, linear(4, 2), dim=1)},
        rows(5),
        """
        a 4 sym positive
        a:2 4 like(a) positive
        a: -> a@0+4
        c.weight_g 1 -1 in a@0+4
        c.weight_v 1 -1 in a:2@0+4
        """,
    ),
    "weight_norm with one norm": Case(
        lambda m, x: m.c(torch.tanh(m.a(x))),
        {"a": by_hooks(nn.utils.weight_norm, linear(5, 4), dim=None), "c": linear(4, 2)},
        rows(5),
        "a 4 sym sign | a.bias 0 +1 bias a@0+4 | a.weight_v 0 +1 out a@0+4 | c: a@0+4 ->",
    ),
    "spectral_norm by hooks": Case(
        lambda m, x: m.c(torch.tanh(m.a(x))).mean((2, 3)),
        {"a": by_hooks(nn.utils.spectral_norm, conv(2, 4, 3)), "c": by_hooks(nn.utils.spectral_norm, conv(4, 3, 2))},
        images(2),
        """
        a 4 sym sign
        a.bias 0 +1 bias a@0+4
        a.weight_orig 0 +1 out a@0+4
        a.weight_u 0 +1 bias a@0+4
        c.weight_orig 1 -1 in a@0+4
        c.weight_v 0 +1 bias a@0+4*4
        """,
        notes=(),
    ),
    "spectral_norm of transposed convolutions": Case(
        lambda m, x: m.c(torch.tanh(m.a(x))).mean((2, 3)),
        {"a": spectral_norm(part(nn.ConvTranspose2d, 2, 4, 3)), "c": conv(4, 2, 1)},
        images(2),
        """
        a.parametrizations.weight 4 sym sign
        a.bias 0 +1 bias a.parametrizations.weight@0+4
        a.parametrizations.weight.original 1 +1 out a.parametrizations.weight@0+4
        a.parametrizations.weight.0._u 0 +1 bias a.parametrizations.weight@0+4
        c: a.parametrizations.weight@0+4 ->
        """,
    ),
    "spectral_norm after a ReLU leaves no scale": Case(
        lambda m, x: m.c(F.relu(m.a(x))),
        {"a": linear(5, 4), "c": spectral_norm(linear(4, 2))},
        rows(5),
        "a 4 sym none | ...",
        notes=("Group 'a' is not scaled: *'linear' (c, *divides by the spectral norm, which keeps signs alone*", "..."),
    ),
    "spectral_norm of a convolution in groups keeps its channels in place": Case(
        lambda m, x: m.c(torch.tanh(m.d(torch.tanh(m.a(x))))).mean((2, 3)),
        {"a": conv(1, 4, 3), "d": by_hooks(nn.utils.spectral_norm, conv(4, 4, 1, groups=2)), "c": conv(4, 2, 1)},
        images(),
        "a 4 fixed none | d 4 fixed none | ...",
    ),
    "standardised weights": Case(
        standardized,
        {"w": parameter(4, 2, 3, 3), "g": parameter(4, 1, 1, 1), "c": conv(4, 2, 1)},
        images(2),
        """
        g 4 sym positive
        w 4 like(g) sign
        w 0 +1 out w@0+4
        g 0 +1 gain g@0+4 signs w@0+4
        c: g@0+4 ->
        """,
    ),
    "LoRA, one computed weight": Case(
        _adapted,
        LORA | {"A": parameter(2, 6), "B": parameter(6, 2)},
        rows(5),
        LORA_TABLE.format(A="A", B="B"),
        notes=(),
    ),
    "LoRA, a weight with its axes in another order": Case(
        lambda m, x: m.c(F.relu(F.relu(m.a(x)) @ (m.w.weight + 0.5 * m.B @ m.A).T + m.w.bias)),
        LORA | {"A": parameter(2, 6), "B": parameter(6, 2)},
        rows(5),
        LORA_TABLE.format(A="A", B="B"),
    ),
    "a multiple of a weight": Case(
        lambda m, x: m.c(F.relu(F.linear(x, 2 * m.a.weight, m.a.bias))),
        {"a": linear(5, 4), "c": linear(4, 2)},
        rows(5),
        "a 4 sym positive | a: -> a@0+4 | c: a@0+4 ->",
    ),
    "a difference of weights": Case(
        lambda m, x: m.c(F.relu(F.linear(x, m.a.weight - m.b.weight / 3, m.a.bias))),
        {"a": linear(5, 4), "b": linear(5, 4, bias=False), "c": linear(4, 2)},
        rows(5),
        "a 4 sym positive | a: -> a@0+4 | b: -> a@0+4, no bias | c: a@0+4 ->",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


def test_lora_as_two_layers_in_a_row() -> None:
    parts = LORA | {"A": linear(6, 2, bias=False), "B": linear(2, 6, bias=False)}
    table = checked_trace(net(_in_a_row, **parts), rows(5)).symmetry
    assert [(group.id, group.n, group.scale) for group in table.groups] == [
        ("a", 6, "positive"),
        ("w", 6, "positive"),
        ("A", 2, "linear"),
    ]


def test_a_weight_that_the_module_keeps_with_its_gradient() -> None:
    """``torch.nn.utils.weight_norm`` leaves a tensor that cannot be copied by copy.deepcopy."""
    module = nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 4)), nn.ReLU(), nn.Linear(4, 2))
    assert not module[0].weight.is_leaf
    assert count(trace(module, rows(5)).symmetry).permutations == 24


def _gated(act: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, dict[str, Any], torch.Tensor, Any, int]:
    sites = [[("g.weight", 0), ("g.bias", 0)], [("u.weight", 0), ("u.bias", 0)], [("d.weight", 1)]]
    parts = {"g": linear(3, 2), "u": linear(3, 2), "d": linear(2, 3)}
    return lambda m, x: m.d(act(m.g(x)) * m.u(x)), parts, rows(3), sites, 2 * 2**2


def _stream(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x)
    h = h + m.d(F.silu(m.u(m.n(h))))
    return m.o(m.f(h))


def _tied(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.e(x)
    h = h + m.d(F.silu(m.u(m.n(h))))
    return F.linear(m.f(h), m.e.weight)


STREAM = [("d.weight", 0), ("d.bias", 0)]
NORMS = {"n": part(RMSNorm, 2), "f": part(RMSNorm, 2), "u": linear(2, 1), "d": linear(1, 2)}
BRUTE = {
    "SwiGLU": _gated(F.silu),
    "GEGLU": _gated(F.gelu),
    "ReGLU": _gated(F.relu),
    "LoRA": (
        _adapted,
        {"a": linear(3, 4), "w": linear(4, 4), "c": linear(4, 3), "A": parameter(2, 4), "B": parameter(4, 2)},
        rows(3),
        [[("A", 0)], [("B", 1)]],
        2 * 2**2,
    ),
    "weight_norm": (
        lambda m, x: m.c(torch.tanh(m.a(x))),
        {"a": by_hooks(nn.utils.weight_norm, linear(3, 2)), "c": linear(2, 3)},
        rows(3),
        [[("a.weight_v", 0)], [("a.weight_g", 0)], [("a.bias", 0)], [("c.weight", 1)]],
        2 * 2**2 * 2**2,
    ),
    "spectral_norm": (
        lambda m, x: m.c(torch.tanh(m.a(x))),
        {"a": by_hooks(nn.utils.spectral_norm, linear(3, 2)), "c": linear(2, 3)},
        rows(3),
        [[("a.weight_orig", 0), ("a.bias", 0)], [("a.weight_u", 0)], [("c.weight", 1)]],
        2 * 2**2,
    ),
    "a stream read by RMSNorm": (
        _stream,
        NORMS | {"a": linear(3, 2), "o": linear(2, 3)},
        rows(3),
        [
            [("a.weight", 0), ("a.bias", 0), *STREAM],
            [("n.weight", 0)],
            [("u.weight", 1)],
            [("f.weight", 0)],
            [("o.weight", 1)],
        ],
        2 * 2**2 * 2**2 * 2**2,
    ),
    "a tied embedding with RMSNorm": (
        _tied,
        NORMS | {"e": part(nn.Embedding, 4, 2)},
        WORDS,
        [[("e.weight", 1), *STREAM], [("n.weight", 0)], [("u.weight", 1)], [("f.weight", 0)]],
        2 * 2**2 * 2**2,
    ),
}


@pytest.mark.parametrize("name", BRUTE)
@pytest.mark.sampled(2)
def test_no_signed_permutation_is_missed(name: str) -> None:
    forward, parts, example, sites, expected = BRUTE[name]
    module = net(forward, **parts)
    traced = trace(module, example)
    check_outputs(module, traced.symmetry, example)
    table = monomial(traced.symmetry)
    groups = {group for site in sites for tensor, axis in site for group in _groups(table, tensor, axis)}
    signs = sum(group.n for group in table.groups if group.id in groups and group.flips)
    assert 2 * 2**signs == expected == signed_permutations_kept(module, sites, example)


def _groups(table: Any, tensor: str, axis: int) -> set[str]:
    return {
        name for action in table.actions if (action.tensor, action.axis) == (tensor, axis) for name in action.groups
    }


@pytest.mark.parametrize("norm", [RMSNorm, nn.RMSNorm, lambda size: nn.RMSNorm(size, elementwise_affine=False)])
@pytest.mark.sampled(3)
def test_a_stream_has_signs_however_its_norms_are_computed(norm: Callable[[int], nn.Module]) -> None:
    parts = {"a": linear(5, 4), "n": part(norm, 4), "f": part(norm, 4), "u": linear(4, 3), "d": linear(3, 4)}
    table = monomial(checked_trace(net(_stream, **parts, o=linear(4, 2)), rows(5)).symmetry)
    assert table["a"].scale == "sign"
    assert [table[name].scale for name in ("n", "f") if name in {group.id for group in table.groups}] == [
        "nonzero" for name in ("n", "f") if name in {group.id for group in table.groups}
    ]


def test_the_last_gain_of_a_tied_embedding_stays_as_it_is() -> None:
    table = checked_trace(net(_tied, **NORMS, e=part(nn.Embedding, 4, 2)), WORDS).symmetry
    assert [(group.id, group.scale) for group in table.groups] == [
        ("e", "sign"),
        ("n", "nonzero"),
        ("u", "none"),
        ("f", "none"),
    ]


DISGUISED = {
    "weight_norm": CASES["weight_norm by hooks"],
    "spectral_norm": CASES["spectral_norm by hooks"],
    "LoRA": CASES["LoRA, one computed weight"],
    "standardised weights": CASES["standardised weights"],
    "a tied embedding": Case(_tied, NORMS | {"e": part(nn.Embedding, 4, 2)}, WORDS, ""),
    "a stream": Case(_stream, NORMS | {"a": linear(3, 2), "o": linear(2, 3)}, rows(3), ""),
    "ReGLU": Case(_gated(F.relu)[0], _gated(F.relu)[1], rows(3), ""),
}


@pytest.mark.parametrize("name", DISGUISED)
@pytest.mark.sampled(2)
def test_two_disguises_have_one_canonical_form(name: str) -> None:
    case = DISGUISED[name]
    module = net(case.forward, **case.parts)
    table, rng = trace(module, case.example).symmetry, np.random.default_rng(0)
    stack = {
        key: value.double().numpy()[None] + 0.1 * rng.standard_normal(value.shape)
        for key, value in module.state_dict().items()
    }
    first, second = (
        canonicalize(apply(GroupElement.random(table, 1, rng, spread=0.5), fold(stack, table), table), table).weights
        for _ in range(2)
    )
    for tensor, value in first.items():
        assert np.linalg.norm(value - second[tensor]) <= 1e-11 * np.linalg.norm(value)


@pytest.mark.parametrize(
    ("forward", "got"),
    [
        (lambda m, x: m.c(F.linear(x, m.a.weight * m.a.bias[:, None])), "parameters of several axes in layers"),
        (
            lambda m, x: m.c(m.a(x)) + (m.c.weight @ m.a.weight)[0, 0],
            "weights computed from parameters in layers alone",
        ),
        (
            lambda m, x: m.c(m.a(x)) + torch._weight_norm(m.c.weight, x[0, :2, None])[:, :2],
            "parameters of the state dict, which",
        ),
    ],
)
def test_weights_computed_in_other_ways_are_refused(forward: Any, got: str) -> None:
    with pytest.raises(SymmetryError, match=r"test_computed_weights.py line \d+") as caught:
        trace(net(forward, a=linear(5, 4), c=linear(4, 2)), rows(5))
    assert got in str(caught.value)


EXPERTS = {
    "gate": linear(5, 3),
    "up": lambda: nn.ModuleList(nn.Linear(5, 4) for _ in range(3)),
    "down": lambda: nn.ModuleList(nn.Linear(4, 6) for _ in range(3)),
    "o": linear(6, 2),
}


def _made(m: Net, x: torch.Tensor) -> list[torch.Tensor]:
    return [down(F.relu(up(x))) for up, down in zip(m.up, m.down, strict=True)]


MIXED = {
    "one by one": lambda m, x: m.o(
        F.relu(sum(m.gate(x).softmax(1)[:, e, None] * y for e, y in enumerate(_made(m, x))))
    ),
    "stacked": lambda m, x: m.o(F.relu((torch.stack(_made(m, x), 1) * m.gate(x).softmax(1)[..., None]).sum(1))),
    "by einsum": lambda m, x: m.o(
        F.relu(torch.einsum("be, bed -> bd", m.gate(x).softmax(1), torch.stack(_made(m, x), 1)))
    ),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.sampled(2)
def test_experts_that_are_modules_have_units_of_their_own(name: str) -> None:
    """No table exchanges tensors, so that the experts themselves stay in place."""
    module = net(MIXED[name], **EXPERTS)
    traced = trace(module, rows(5))
    check_outputs(module, traced.symmetry, rows(5))
    found = count(traced.symmetry)
    assert (found.permutations, found.scaling_eval) == (24**3 * 720, 3 * 4 + 6)


STACKED = {
    "gate": linear(5, 3),
    "up": parameter(3, 5, 4),
    "b": parameter(3, 4),
    "down": parameter(3, 4, 6),
    "c": parameter(3, 6),
    "o": linear(6, 2),
}


def _by_einsum(m: Net, x: torch.Tensor) -> torch.Tensor:
    units = F.relu(torch.einsum("bi, eih -> beh", x, m.up) + m.b)
    return torch.einsum("beh, ehd -> bed", units, m.down) + m.c


def _by_bmm(m: Net, x: torch.Tensor) -> torch.Tensor:
    units = F.relu(torch.bmm(x.expand(3, -1, -1), m.up) + m.b[:, None])
    return torch.bmm(units, m.down) + m.c[:, None]


def _gated_units(m: Net, x: torch.Tensor) -> torch.Tensor:
    gate, up = (torch.einsum("bi, eih -> beh", x, weight) for weight in (m.g, m.up))
    return torch.einsum("beh, ehd -> bed", F.silu(gate) * up, m.down) + m.c


WEIGHED = {
    "by einsum": lambda m, x: torch.einsum("be, bed -> bd", m.gate(x).softmax(1), _by_einsum(m, x)),
    "by a sum of products": lambda m, x: (_by_einsum(m, x) * m.gate(x).softmax(1)[..., None]).sum(1),
    "by a product of matrices": lambda m, x: (m.gate(x).softmax(1)[:, None] @ _by_einsum(m, x))[:, 0],
}


@pytest.mark.parametrize("name", WEIGHED)
def test_experts_that_are_stacked_are_exchanged(name: str) -> None:
    module = net(lambda m, x: m.o(F.relu(WEIGHED[name](m, x))), **STACKED)
    table = checked_trace(module, rows(5)).symmetry
    found = count(table)
    assert (found.permutations, found.scaling_eval) == (6 * 24**3 * 720, 3 * 4 + 6)
    rng = np.random.default_rng(0)
    stack = {key: value.double().numpy()[None] for key, value in module.state_dict().items()}
    first, second = (
        canonicalize(apply(GroupElement.random(table, 1, rng, spread=0.5), fold(stack, table), table), table).weights
        for _ in range(2)
    )
    for tensor, value in first.items():
        assert np.linalg.norm(value - second[tensor]) <= 1e-11 * np.linalg.norm(value)


def test_experts_by_batches_of_matrices() -> None:
    module = net(lambda m, x: m.o(F.relu((_by_bmm(m, x) * m.gate(x).softmax(1).T[..., None]).sum(0))), **STACKED)
    assert count(checked_trace(module, rows(5)).symmetry).permutations == 6 * 24**3 * 720


def test_experts_of_gated_units() -> None:
    module = net(
        lambda m, x: m.o(F.relu(torch.einsum("be, bed -> bd", m.gate(x).softmax(1), _gated_units(m, x)))),
        **STACKED | {"g": parameter(3, 5, 4)},
    )
    found = count(checked_trace(module, rows(5)).symmetry)
    assert (found.permutations, found.signs) == (6 * 24**3 * 720, 12)


def test_experts_that_are_told_apart_stay_in_place() -> None:
    traced = checked_trace(net(lambda m, x: m.o(F.relu(_by_einsum(m, x)[:, 0])), **STACKED), rows(5))
    assert count(traced.symmetry).permutations == 24**3 * 720
    assert any("'select' (test_computed_weights.py line" in note for note in traced.notes)

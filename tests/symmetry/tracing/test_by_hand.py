"""Symmetries of what is written by hand, and notes on those that are known and left out."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.symmetry import count
from ckptzoo.symmetry.tracing.graph import Float64Mode
from tests.symmetry.tracing.helpers import (
    Net,
    checked_trace,
    images,
    linear,
    net,
    parameter,
    part,
    rows,
    signed_permutations_kept,
)


def sequence(features: int, length: int = 4) -> torch.Tensor:
    return torch.randn(2, length, features, generator=torch.Generator().manual_seed(0))


def steps(step: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Any, torch.Tensor], Any]:
    """A recurrence from zeros, of which all states are read."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h, states = x.new_zeros(len(x), 3), []
        for t in range(x.shape[1]):
            h = step(m, x[:, t], h)
            states.append(h)
        return m.out(torch.stack(states, 1))

    return forward


def lstm(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = c = x.new_zeros(len(x), 3)
    for t in range(x.shape[1]):
        i, f, g, o = (m.read(x[:, t]) + m.again(h)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return m.out(h)


def gru(m: Any, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    z, r = (layer(torch.cat([x, h], -1)).sigmoid() for layer in (m.z, m.r))
    return (1 - z) * h + z * torch.tanh(m.c(torch.cat([x, r * h], -1)))


def convex(m: Any, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    z = m.z(x).sigmoid()
    return (1 - z) * h + z * m.c(x)


def heads(m: Net, x: torch.Tensor, *names: str, count: int = 2) -> list[torch.Tensor]:
    return [getattr(m, name)(x).unflatten(-1, (count, -1)).transpose(1, 2) for name in names]


def cosine(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = heads(m, x, "q", "k", "v")
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
    return m.out(((3 * scores).softmax(-1) @ v).transpose(1, 2).flatten(2))


def queries_are_keys(m: Net, x: torch.Tensor) -> torch.Tensor:
    q = m.q(x)
    return m.out((q @ q.transpose(-1, -2)).softmax(-1) @ m.v(x))


def before(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.a(x)
    return m.out(m.norm(x + m.down(F.gelu(m.up(m.norm(x))))))


def shared_heads(m: Net, x: torch.Tensor, kv: int = 2) -> torch.Tensor:
    q = m.q_norm(m.q(x).unflatten(-1, (4, -1)).transpose(1, 2))
    k, v = heads(m, x, "k", "v", count=kv)
    k, v = (item.repeat_interleave(4 // kv, 1) for item in (m.k_norm(k), v))
    return m.out(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2))


def blurred(m: Net, x: torch.Tensor, name: str = "filter") -> torch.Tensor:
    return m.out(F.conv2d(m.a(x).relu(), getattr(m, name), groups=4).mean((2, 3)))


def distances(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.out(torch.exp(-((m.a(x)[:, None] - m.centres) ** 2).sum(-1)))


def graph_attention(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x).unflatten(-1, (2, 3))
    scores = (h * m.source).sum(-1)[:, :, None] + (h * m.target).sum(-1)[:, None]
    return m.out(torch.einsum("bijh,bjhk->bihk", F.leaky_relu(scores).softmax(2), h).flatten(2))


def talking(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = heads(m, x, "q", "k", "v")
    scores = m.mix((q @ k.transpose(-1, -2)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
    return m.out((scores @ v).transpose(1, 2).flatten(2))


def without_softmax(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = m.q(x), m.k(x), m.v(x)
    return m.out(q @ (k.transpose(-1, -2) @ v))


def tied(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.words(x) + m.places(torch.arange(x.shape[1]))
    return m.norm(h + m.a(m.norm(h))) @ m.words.weight.T


WORDS = torch.randint(0, 7, (2, 4), generator=torch.Generator().manual_seed(0))
QKV = {name: linear(5, 6) for name in ("q", "k", "v")}
NORM = part(nn.LayerNorm, 6, elementwise_affine=False)
UNITS = {"a": linear(7, 6), "up": linear(6, 5), "down": linear(5, 6), "out": linear(6, 4)}
GROUPED = {"q": linear(5, 16), "k": linear(5, 8), "v": linear(5, 8), "out": linear(16, 4)}
GROUPED |= {name: part(nn.RMSNorm, 4, eps=1e-2) for name in ("q_norm", "k_norm")}
SINGLE = GROUPED | {name: linear(5, 4) for name in ("k", "v")}
CASES: dict[str, tuple[Any, dict[str, Any], torch.Tensor, str, tuple[str, ...]]] = {
    # network, example, kinds of its groups, notes
    "LSTM": (
        lstm,
        {"read": linear(2, 12), "again": linear(3, 12), "out": linear(3, 2)},
        sequence(2, 2),
        "none sign",
        (),
    ),
    "GRU": (steps(gru), {n: linear(5, 3) for n in "zrc"} | {"out": linear(3, 2)}, sequence(2, 2), "none sign", ()),
    "convex combinations": (
        steps(convex),
        {"z": linear(2, 3), "c": linear(2, 3), "out": linear(3, 2)},
        sequence(2, 2),
        "none nonzero",
        (),
    ),
    "diagonal state space": (
        steps(lambda m, x, h: m.a.sigmoid() * h + m.b(x)),
        {"a": parameter(3), "b": linear(2, 3), "out": linear(3, 2)},
        sequence(2, 7),
        "none positive",
        (),
    ),
    "LayerNorm without gains": (before, UNITS | {"norm": NORM}, rows(7, 4), "orthogonal_mean none", ()),
    "RMSNorm without gains": (
        before,
        UNITS | {"norm": part(nn.RMSNorm, 6, elementwise_affine=False)},
        rows(7, 4),
        "orthogonal none",
        (),
    ),
    "queries are keys": (
        queries_are_keys,
        {"q": linear(5, 4), "v": linear(5, 4), "out": linear(4, 5)},
        sequence(5),
        "orthogonal linear",
        (),
    ),
    "cosines of heads": (
        cosine,
        QKV | {"out": linear(6, 3)},
        sequence(5),
        "sign linear",
        ("Orthogonal matrices that mix the channels of group 'q' are left out: *",),
    ),
    "norms of shared heads": (shared_heads, GROUPED, sequence(5), "none sign linear nonzero", ()),
    "norms of one head": (
        lambda m, x: shared_heads(m, x, kv=1),
        SINGLE,
        sequence(5),
        "sign sign sign sign none none none none linear",
        ("Factors between the entries of 'q_norm.weight' and those of 'k_norm.weight' are left out: *",),
    ),
    "one filter for all channels": (
        lambda m, x: blurred(m, x, "constant"),
        {"a": part(nn.Conv2d, 1, 4, 3), "constant": lambda: torch.ones(4, 1, 2, 2) / 4, "out": linear(4, 2)},
        images(),
        "positive",
        (),
    ),
    "a filter for each channel": (
        blurred,
        {"a": part(nn.Conv2d, 1, 4, 3), "filter": lambda: torch.ones(4, 1, 2, 2) / 4, "out": linear(4, 2)},
        images(),
        "positive",
        (),
    ),
    "distances from centres": (
        distances,
        {"a": linear(6, 4), "centres": parameter(5, 4), "out": linear(5, 2)},
        rows(6),
        "orthogonal",
        ("Exchanges of the rows of 'centres' are left out: *",),
    ),
    "vectors of heads": (
        graph_attention,
        {"a": linear(5, 6), "source": parameter(2, 3), "target": parameter(2, 3), "out": linear(6, 3)},
        sequence(5),
        "",
        ("Permutations and factors along axis 0 of 'source' are left out: *",),
    ),
    "heads that are mixed": (
        talking,
        QKV | {"mix": linear(2, 2), "out": linear(6, 3)},
        sequence(5),
        "",
        ("Group 'mix' is not scaled: *",),
    ),
    "attention without softmax": (
        without_softmax,
        {name: linear(5, 4) for name in ("q", "k", "v")} | {"out": linear(4, 3)},
        sequence(5),
        "",
        ("Group 'k' is not scaled: *multiplies channels by other channels*",),
    ),
    "a factor behind tanh": (
        lambda m, x: m.out(torch.tanh(m.g * m.a(x))),
        {"a": linear(3, 4), "g": parameter(1), "out": linear(4, 2)},
        rows(3),
        "sign",
        ("One factor that 'g' may share with all channels is left out: *",),
    ),
    "a factor of each channel": (
        lambda m, x: m.out(torch.tanh(m.g * m.a(x))),
        {"a": linear(3, 4), "g": parameter(4), "out": linear(4, 2)},
        rows(3),
        "sign",
        ("'g' is permuted and not scaled: *",),
    ),
    "squared ReLU": (
        lambda m, x: m.out(F.relu(m.a(x)) ** 2),
        {"a": linear(3, 4), "out": linear(4, 2)},
        rows(3),
        "none",
        ("Group 'a' is not scaled: *reads powers of values.",),
    ),
    "tied, without shifts": (
        tied,
        {
            "words": part(nn.Embedding, 7, 4),
            "places": part(nn.Embedding, 4, 4),
            "norm": part(nn.LayerNorm, 4, bias=False),
            "a": linear(4, 4, bias=False),
        },
        WORDS,
        "",
        ("One number along the inverse gains of the norm in front of 'words.weight' is left out: *",),
    ),
}
COMPLETE = {"convex combinations", "diagonal state space", "norms of shared heads", "queries are keys"}
"""Cases whose continuous symmetries are all in the table, but for biases of values where these are folded."""


FEW = {"LSTM", "convex combinations", "LayerNorm without gains", "cosines of heads", "distances from centres"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES]
)
@pytest.mark.sampled(2)
def test_kinds_and_notes(name: str) -> None:
    forward, parts, example, kinds, notes = CASES[name]
    module = net(forward, **parts)
    traced = checked_trace(module, example)
    if kinds:
        assert [group.scale for group in traced.symmetry.groups] == kinds.split()
    for pattern in notes:
        assert any(fnmatchcase(note, pattern) for note in traced.notes), traced.notes
    assert notes or not any("left out" in note for note in traced.notes)
    if name in COMPLETE:
        assert count(traced).dimensions == nullity(module, example)


def nullity(module: nn.Module, example: torch.Tensor) -> int:
    """Dimensions of changes of generic parameters that leave outputs on many inputs as they are, to first order."""
    module = module.double().eval()
    rng = np.random.default_rng(0)
    params = {
        name: torch.from_numpy(rng.uniform(0.3, 1.0, value.shape) * rng.choice([-1, 1], value.shape))
        for name, value in module.named_parameters()
    }
    size = sum(value.numel() for value in params.values())
    lines: list[torch.Tensor] = []
    while sum(map(len, lines)) < 1.5 * size + 20:
        x = torch.from_numpy(rng.standard_normal((6, *example.shape[1:])))
        with Float64Mode():
            made = torch.func.jacrev(lambda given, x=x: torch.func.functional_call(module, given, (x,)).flatten())(
                params
            )
        lines.append(torch.cat([item.flatten(1) for item in made.values()], 1))
    values = torch.linalg.svdvals(torch.cat(lines))
    return size - int((values > 1e-9 * values[0]).sum())


@pytest.mark.parametrize(
    "act", [torch.square, torch.abs, lambda x: torch.exp(-(x**2))], ids=["square", "modulus", "Gaussian"]
)
def test_no_other_signed_permutation_keeps_the_function(act: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Of two channels: any signed permutation in front, and the permutation behind."""
    module = net(lambda m, x: m.b(act(m.a(x))), a=linear(3, 2), b=linear(2, 2))
    kept = signed_permutations_kept(module, [[("a.weight", 0), ("a.bias", 0)], [("b.weight", 1)]], rows(3))
    found = count(checked_trace(module, rows(3)))
    assert kept == found.permutations * 2**found.signs == 8

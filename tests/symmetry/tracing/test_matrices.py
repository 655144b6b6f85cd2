"""Which groups of a traced table have matrices, by module; what fails, with a note; and the dimensions of the whole."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.schema.groups import Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, count, fold, trace
from ckptzoo.symmetry.tracing.rules import registry
from tests.symmetry.tracing.helpers import Net, checked_trace, conv, images, linear, net, part, rows

TOKENS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
WORDS = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(0))


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def turned(x: torch.Tensor) -> torch.Tensor:
    """A rotary embedding of the halves of each head."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 0.5 ** torch.arange(half)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()], -1)


class Block(nn.Module):
    """Attention with grouped queries and rotary embeddings, and a gated layer; RMSNorm in front of both."""

    def __init__(self, width: int, queries: int, keys: int, k: int, hidden: int) -> None:
        super().__init__()
        self.queries, self.keys = queries, keys
        self.n, self.m = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k = nn.Linear(width, queries * k, bias=False), nn.Linear(width, keys * k, bias=False)
        self.v, self.o = nn.Linear(width, keys * k, bias=False), nn.Linear(queries * k, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.n(x)
        q, k, v = heads(self.q(y), self.queries), heads(self.k(y), self.keys), heads(self.v(y), self.keys)
        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.m(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Sizes, groups and nullities are those of a Llama: 5,200 parameters of which 328 are free, tied 4,560 and 192."""

    def __init__(self, tied: bool, words: int = 40, width: int = 16, *block: int, layers: int = 2) -> None:
        super().__init__()
        sizes = block or (4, 2, 4, 24)
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, *sizes) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _attention(m: Net, x: torch.Tensor, h: int = 2) -> torch.Tensor:
    q, k, v = (heads(layer(x), h) for layer in (m.q, m.k, m.v))
    return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


ATTENTION = {name: linear(8, 8) for name in "qkvo"}
KINDS: dict[str, tuple[Callable[[Any, torch.Tensor], Any], dict[str, Any], torch.Tensor, dict[str, str]]] = {
    "attention": (_attention, ATTENTION, TOKENS, {"q": "linear", "v": "linear"}),
    "one head": (lambda m, x: _attention(m, x, 1), ATTENTION, TOKENS, {"q": "linear", "v": "linear"}),
    "a norm over the channels of each head": (
        lambda m, x: m.o(
            F.scaled_dot_product_attention(m.n(heads(m.q(x), 2)), m.n(heads(m.k(x), 2)), heads(m.v(x), 2))
            .transpose(1, 2)
            .flatten(2)
        ),
        ATTENTION | {"n": part(nn.RMSNorm, 4)},
        TOKENS,
        {"q": "sign", "v": "linear"},
    ),
    "linear layers in a row": (
        lambda m, x: m.b(m.a(x)),
        {"a": linear(5, 4), "b": linear(4, 3)},
        rows(5),
        {"a": "linear"},
    ),
    "convolutions in a row": (
        lambda m, x: m.b(F.avg_pool2d(m.a(x), 2)),
        {"a": conv(1, 4, 3), "b": conv(4, 3, 2)},
        images(),
        {"a": "linear"},
    ),
    "an activation in between": (
        lambda m, x: m.b(m.a(x).relu()),
        {"a": linear(5, 4), "b": linear(4, 3)},
        rows(5),
        {"a": "positive"},
    ),
    "gates": (
        lambda m, x: m.b(F.silu(m.a(x)) * m.v(x)),
        {"a": linear(5, 4), "v": linear(5, 4), "b": linear(4, 3)},
        rows(5),
        {"a": "none", "v": "nonzero"},
    ),
    "an embedding in front of a recurrent layer": (
        lambda m, x: m.o(m.r(m.e(x))[0]),
        {"e": part(nn.Embedding, 11, 4), "r": part(nn.LSTM, 4, 3, batch_first=True), "o": linear(3, 2)},
        WORDS,
        {"e": "linear", "r": "none", "r:2": "sign"},
    ),
    "a gain that cannot become 1, as its result is added to the stream": (
        lambda m, x: m.c(m.n(m.a(x)) + m.a(x)),
        {"a": linear(5, 4), "n": part(nn.RMSNorm, 4), "c": linear(4, 2)},
        rows(5),
        {"a": "sign", "n": "none"},
    ),
}


def kinds(table: Symmetry) -> dict[str, str]:
    return {group.id: group.scale for group in table.groups}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(2)
def test_kinds(name: str) -> None:
    forward, parts, example, expected = KINDS[name]
    assert kinds(checked_trace(net(forward, **parts), example).symmetry) == expected


def test_rotary_embeddings_leave_complex_numbers() -> None:
    table = checked_trace(Block(16, 4, 2, 4, 6), torch.randn(2, 5, 16)).symmetry
    pairs = table["q"]
    assert (pairs.n, pairs.scale, pairs.perm) == (4, "complex", Wreath("scaled_dot_product_attention", 2, 2, "fixed"))
    assert table["v"].scale == "linear"
    (rows_of_q,) = [action for action in table.actions if (action.tensor, action.axis) == ("q.weight", 0)]
    assert [(item.offset, item.inner, item.part) for item in rows_of_q.segments if item.offset < 4] == [
        (0, 2, 0),
        (2, 2, 1),
    ]
    assert {item.within for item in rows_of_q.segments} == {"q"}


def test_heads_of_one_rotary_pair() -> None:
    table = checked_trace(Block(8, 4, 4, 2, 6), TOKENS).symmetry
    assert (table["q"].n, table["q"].scale, table["v"].scale) == (4, "complex", "linear")


@pytest.mark.parametrize(("tied", "free", "stream"), [(False, 328, "orthogonal"), (True, 192, "sign")])
@pytest.mark.sampled(2)
def test_llama_has_the_dimensions_of_its_nullity(tied: bool, free: int, stream: str) -> None:
    module = Llama(tied)
    table = checked_trace(module, WORDS).symmetry
    assert sum(item.numel() for item in module.parameters()) == (4560 if tied else 5200)
    assert count(table).dimensions == free
    assert table["embed"].scale == stream


def test_what_layer_norm_reads_keeps_the_vector_of_ones() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True, activation="gelu")
    module = nn.Sequential(nn.Linear(6, 8), layer, nn.LayerNorm(8), nn.Linear(8, 3))
    table = checked_trace(module, TOKENS[..., :6]).symmetry
    assert table["0"].scale == "orthogonal_mean"
    assert [group.scale for group in table.groups if group.matrix_shape] == ["orthogonal_mean", "linear", "linear"]
    found = dict(count(table).continuous)
    assert (found["linear"], found["orthogonal"], found["gains"]) == (2 * 2 * 16, 7 * 6 // 2, 3 * 8)


def test_a_false_claim_falls_to_scales_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ReLU inside the heads, which is said to be linear."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(layer(x), 2) for layer in (m.q, m.k, m.v))
        return m.o(F.scaled_dot_product_attention(q, k, F.relu(v)).transpose(1, 2).flatten(2))

    right = trace(net(forward, **ATTENTION), TOKENS)
    assert kinds(right.symmetry) == {"q": "linear", "v": "positive"}
    assert not any("matrices" in note for note in right.notes)
    monkeypatch.setattr(registry, "_LINEAR", registry._LINEAR | {"relu"})
    claimed = trace(net(forward, **ATTENTION), TOKENS)
    assert kinds(claimed.symmetry) == {"q": "linear", "v": "positive"} and claimed.worst < 1e-9
    assert any(note.startswith("Group 'v' has scales and no matrices: these change the out") for note in claimed.notes)


DISGUISED: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "attention": lambda: (net(_attention, **ATTENTION), TOKENS),
    "Llama": lambda: (Llama(False), WORDS),
    "tied Llama": lambda: (Llama(True), WORDS),
    "pre-norm encoder": lambda: (
        nn.Sequential(
            nn.Linear(6, 8),
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True),
            nn.LayerNorm(8),
            nn.Linear(8, 3),
        ),
        TOKENS[..., :6],
    ),
    "a bottleneck between ReLUs": lambda: (
        nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2)),
        rows(6),
    ),
    "two bottlenecks": lambda: (
        nn.Sequential(
            *(nn.Linear(6, 3), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 3), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
        ),
        rows(6),
    ),
}


def generic(module: nn.Module, table: Symmetry, dtype: type) -> dict[str, np.ndarray]:
    """Random weights near the module's, folded."""
    rng = np.random.default_rng(0)
    stack = {
        name: (value.detach().double().numpy() + 0.2 * rng.standard_normal(value.shape))[None]
        for name, value in module.named_parameters()
    }
    return {name: value.astype(dtype) for name, value in fold(stack, table).items()}


def apart(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """The largest relative norm of a difference; biases that folds make 0 count as they are."""
    sizes = {name: np.linalg.norm(value) for name, value in first.items()}
    return max(float(np.linalg.norm(value - second[name]) / (sizes[name] or 1)) for name, value in first.items())


@pytest.mark.parametrize("name", DISGUISED)
@pytest.mark.sampled(3)
def test_two_disguises_have_one_canonical_form(name: str) -> None:
    torch.manual_seed(0)
    module, example = DISGUISED[name]()
    traced = trace(module, example)
    table, weights = traced.symmetry, generic(module, traced.symmetry, np.float64)
    drawn = [GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.4) for seed in (1, 2)]
    forms = [canonicalize(apply(element, weights, table), table) for element in drawn]
    assert not any(form.report.unresolved.any() or form.report.degenerate.any() for form in forms)
    assert apart(forms[0].weights, forms[1].weights) <= 1e-11
    again = canonicalize(forms[0].weights, table)
    assert apart(again.weights, forms[0].weights) <= 1e-11
    own = canonicalize(weights, table)
    assert apart(apply(own.element, weights, table), own.weights) <= 1e-12
    with torch.no_grad():
        outputs = [
            torch.func.functional_call(
                module.double().eval(),
                {key: torch.from_numpy(value[0]) for key, value in held.items()},
                (example.double() if example.is_floating_point() else example,),
            )
            for held in (weights, own.weights)
        ]
    assert float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()) <= 1e-12


@pytest.mark.exhaustive
def test_disguises_in_float32() -> None:
    torch.manual_seed(0)
    module, example = DISGUISED["Llama"]()
    table = trace(module, example).symmetry
    weights = generic(module, table, np.float32)
    forms = [
        canonicalize(
            apply(GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.4), weights, table), table
        )
        for seed in (1, 2)
    ]
    assert apart(forms[0].weights, forms[1].weights) <= 1e-5


SAMPLE = (
    Path(os.environ.get("CKPTZOO_DATA", "../shared/data")).parent / "checkpoints/transformer-samples/stories260K.bin"
)


def stories() -> tuple[Llama, dict[str, np.ndarray]]:
    """A Llama of 260,000 parameters that was trained on short stories, its head untied."""
    numbers = np.fromfile(SAMPLE, "<f4", offset=28)
    width, hidden, layers, queries, keys, words, _ = np.fromfile(SAMPLE, "<i4", count=7).tolist()
    k = width // queries
    shapes = {
        "embed": (abs(words), width),
        "n": (layers, width),
        "q": (layers, queries * k, width),
        "k": (layers, keys * k, width),
        "v": (layers, keys * k, width),
        "o": (layers, width, width),
        "m": (layers, width),
        "gate": (layers, hidden, width),
        "down": (layers, width, hidden),
        "up": (layers, hidden, width),
        "norm": (width,),
    }
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(numbers[: ends[-1]], ends[:-1])
    held = {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), parts, strict=True)}
    for name in "qk":  # pairs of neighbours become halves
        rows = held[name].reshape(layers, -1, k // 2, 2, width)
        held[name] = rows.swapaxes(2, 3).reshape(held[name].shape)
    state = {"embed.weight": held.pop("embed"), "norm.weight": held.pop("norm")}
    state["head.weight"] = state["embed.weight"]
    for name, piece in held.items():
        state |= {f"blocks.{number}.{name}.weight": layer for number, layer in enumerate(piece)}
    return Llama(False, abs(words), width, queries, keys, k, hidden, layers=layers), state


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLE.is_file(), reason="no sample")
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-11), (np.float32, 1e-5)])
@pytest.mark.sampled(2)
@pytest.mark.exhaustive
def test_disguises_of_a_trained_llama(dtype: type, bound: float) -> None:
    module, state = stories()
    module.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    table = trace(module, WORDS).symmetry
    weights = fold({name: value[None].astype(np.float64) for name, value in state.items()}, table)
    drawn = [GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.5) for seed in (1, 2)]
    disguises = [{name: value.astype(dtype) for name, value in apply(item, weights, table).items()} for item in drawn]
    forms = [canonicalize(disguise, table) for disguise in disguises]
    assert not forms[0].report.unresolved.any() and not forms[0].report.degenerate.any()
    assert apart(forms[0].weights, forms[1].weights) <= bound

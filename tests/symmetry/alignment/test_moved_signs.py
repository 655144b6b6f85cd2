"""Alignment where gains take the signs of the channels that they normalise: streams under RMSNorm with moved gains."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.derive.variant_rule import AlignmentRule
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, fold, trace
from ckptzoo.symmetry.alignment.joint_signs import best_signs, greatest, is_forest, moved_signs, value_of
from tests.support.effort import examples

D, HIDDEN, TOKENS = 8, 12, 20


class Layer(nn.Module):
    def __init__(self, kv: int) -> None:
        super().__init__()
        self.attention_norm, self.units_norm = nn.RMSNorm(D), nn.RMSNorm(D)
        self.q, self.o = (nn.Linear(D, D, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(D, kv, bias=False) for _ in range(2))
        self.gate, self.up, self.down = nn.Linear(D, HIDDEN), nn.Linear(D, HIDDEN), nn.Linear(HIDDEN, D, bias=False)


class Decoder(nn.Module):
    """A decoder with norms in front of its layers (Qwen2, SmolLM3, T5) or behind them (OLMo2), its head tied or not."""

    def __init__(self, *, behind: bool, tied: bool, grouped: bool = False, units: str = "silu") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.behind, self.tied, self.units = behind, tied, units
        self.heads, self.kv = (4, 2) if grouped else (2, 2)
        self.tokens = nn.Embedding(TOKENS, D)
        self.layers = nn.ModuleList([Layer(D // self.heads * self.kv) for _ in range(2)])
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, TOKENS, bias=False) if not tied else None
        with torch.no_grad():
            for value in self.parameters():
                if value.ndim == 1:
                    value.uniform_(0.5, 1.5)

    def attention(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        q, k, v = (part(x).view(B, T, -1, D // self.heads).transpose(1, 2) for part in (layer.q, layer.k, layer.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv)
        return layer.o(h.transpose(1, 2).reshape(B, T, D))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            y = x if self.behind else layer.attention_norm(x)
            h = self.attention(layer, y)
            x = x + (layer.attention_norm(h) if self.behind else h)
            y = x if self.behind else layer.units_norm(x)
            gate = layer.gate(y)
            h = layer.down(F.silu(gate) * layer.up(y) if self.units == "silu" else F.relu(gate))
            x = x + (layer.units_norm(h) if self.behind else h)
        x = self.norm(x)
        return x @ self.tokens.weight.T if self.head is None else self.head(x)


KINDS: dict[str, dict[str, Any]] = {
    "Qwen2": {"behind": False, "tied": True},
    "SmolLM3, grouped queries": {"behind": False, "tied": True, "grouped": True},
    "T5": {"behind": False, "tied": True, "units": "relu"},
    "OLMo2": {"behind": True, "tied": False},
    "OLMo2, tied": {"behind": True, "tied": True},
    "T5 v1.1": {"behind": False, "tied": False},
}


Weights = dict[str, np.ndarray]


def setting(name: str, noise: float) -> tuple[Symmetry, Weights, Weights]:
    """A table, a network, and another one near it."""
    module = Decoder(**KINDS[name])
    table = trace(module, torch.randint(0, TOKENS, (2, 6))).symmetry
    one = {key: value.double().numpy()[None] for key, value in module.state_dict().items()}
    rng = np.random.default_rng(0)
    other = {key: value + noise * rng.standard_normal(value.shape) * value.std() for key, value in one.items()}
    return table, fold(one, table), fold(other, table)


def distance(first: Weights, second: Weights) -> float:
    apart = sum(np.square(first[name] - second[name]).sum() for name in first)
    return float(np.sqrt(apart / sum(np.square(value).sum() for value in first.values())))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(6)
def test_disguised_copies_come_back(name: str) -> None:
    table, one, _ = setting(name, 0.0)
    for seed in range(3):
        element = GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.0)
        found = align(apply(element, one, table), one, table)
        assert found.distance[0] < 1e-9, seed
        assert found.ties[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(6)
def test_the_result_does_not_depend_on_the_disguise(name: str) -> None:
    table, one, other = setting(name, 0.05)
    first, second = (
        align(apply(GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.0), other, table), one, table)
        for seed in (1, 2)
    )
    assert distance(first.weights, second.weights) < 1e-6
    assert first.distance[0] < 0.15 * np.sqrt(sum(np.square(value).sum() for value in one.values()))


def test_signs_of_a_stream_alone() -> None:
    table, one, _ = setting("Qwen2", 0.0)
    assert moved_signs(table)
    element = GroupElement.identity(table, 1)
    stream = next(group.id for group in table.groups if group.scale == "sign")
    element.scales[stream][:] = np.random.default_rng(0).choice([-1.0, 1.0], element.scales[stream].shape)
    moved = apply(element, one, table)
    assert distance(moved, one) > 0.5
    assert align(moved, one, table).distance[0] < 1e-9


@pytest.mark.parametrize("seed", range(examples(10)))
@pytest.mark.sampled(2)
def test_signs_on_a_forest_are_the_best(seed: int) -> None:
    """Against all signs, for random terms of one group and of two."""
    rng = np.random.default_rng(seed)
    names = [f"g{number}" for number in range(int(rng.integers(1, 6)))]
    terms = {frozenset[str](): rng.standard_normal((2, 3))} if rng.random() < 0.5 else {}
    terms |= {frozenset({name}): rng.standard_normal((2, 3)) for name in names if rng.random() < 0.8}
    for number in range(1, len(names)):
        if rng.random() < 0.8:
            pair = frozenset({names[number], names[int(rng.integers(number))]})
            terms[pair] = rng.standard_normal((2, 3))
    if not terms:
        return
    used = sorted(set[str]().union(*terms))
    every = [
        value_of(terms, {name: np.full((2, 3), sign) for name, sign in zip(used, signs, strict=True)})
        for signs in itertools.product((1.0, -1.0), repeat=len(used))
    ]
    np.testing.assert_allclose(greatest(terms), np.max(every, axis=0), atol=1e-12)
    np.testing.assert_allclose(value_of(terms, best_signs(terms)), greatest(terms), atol=1e-12)


def test_gains_in_a_circle_are_no_forest() -> None:
    table = setting("Qwen2", 0.0)[0]
    gains = [action for action in table.actions if action.signs]
    signed = {item.group for action in gains for item in (*action.segments, *action.signs)}
    assert is_forest(gains, signed)
    from dataclasses import replace

    first, second, *_ = gains
    circle = replace(first, segments=first.segments, signs=second.segments)
    assert not is_forest([*gains, circle], signed)


def test_the_version_is_another_one_for_these_tables_alone() -> None:
    moved = trace(Decoder(**KINDS["Qwen2"]), torch.randint(0, TOKENS, (2, 6))).symmetry
    others = trace(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(2, 3)).symmetry
    for table, gauge, scales, version in (
        (moved, None, "fixed", 3),
        (moved, None, "fit", 1),
        (others, None, "fixed", 1),
    ):
        rule = AlignmentRule("x", {"a": np.zeros(1)}, "", gauge, None, scales)
        assert rule.facts(table)["version"] == version

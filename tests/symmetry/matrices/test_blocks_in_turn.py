"""Blocks of matrices that meet in a tensor, and layers that share their weights: one canonical form for all disguises."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.derive import declare, dedupe
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, fold, trace
from ckptzoo.symmetry.folds import commuting
from ckptzoo.symmetry.gauges import gauge_of
from ckptzoo.symmetry.matrices.gauge import meeting_blocks
from tests.support.effort import examples

Weights = Mapping[str, np.ndarray]


def chain(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Linear layers of random widths in a row, some behind a ReLU, some of lower rank than they are wide."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    widths = rng.integers(2, 9, int(rng.integers(4, 7))).tolist()
    layers: list[nn.Module] = []
    for number, (left, right) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(left, right, bias=bool(rng.random() < 0.7)))
        if number and number < len(widths) - 2 and rng.random() < 0.25:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers), torch.randn(4, widths[0])


class Attention(nn.Module):
    """Attentions and layers in a row, without a residual stream: ``kind`` says which."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        sizes: dict[str, Any] = {"kdim": 6, "vdim": 7} if kind == "other sizes" else {}
        self.first = nn.MultiheadAttention(8, 2, batch_first=True, **sizes)
        self.keys, self.values = nn.Linear(8, 6), nn.Linear(8, 7)
        self.second = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slopes = torch.arange(x.shape[1], dtype=x.dtype).neg().expand(x.shape[1], -1)  # ALiBi
        mask = slopes / 4 if self.kind == "sloped" else None
        keys = (self.keys(x), self.values(x)) if self.kind == "other sizes" else (x, x)
        h = self.first(x, *keys, attn_mask=mask, need_weights=False)[0]
        return self.out(self.second(h, h, h, need_weights=False)[0] if self.kind == "two" else h)


class Shared(nn.Module):
    """A block of attention and units behind LayerNorms, of which all layers use the same weights, as in ALBERT."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = layers
        self.tokens, self.norm, self.wide = nn.Embedding(9, 5), nn.LayerNorm(5), nn.Linear(5, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)
        self.out = nn.Linear(8, 3)
        with torch.no_grad():
            for value in self.parameters():
                value.add_(0.3 * torch.randn_like(value))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.wide(self.norm(self.tokens(tokens)))
        for _ in range(self.layers):
            h = self.block(h)
        return self.out(h.mean(1))


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    kind, _, number = name.partition(" ")
    if kind == "chain":
        return chain(int(number))
    if kind == "shared":
        return Shared(int(number)), torch.randint(0, 9, (2, 6))
    return Attention(name), torch.randn(2, 5, 8)


def stacked(module: nn.Module, K: int, dtype: str) -> Weights:
    """K networks near a module's weights, as a zoo has them."""
    rng = np.random.default_rng(0)
    return {
        name: (value.double().numpy() + 0.3 * rng.standard_normal((K, *value.shape))).astype(dtype)
        for name, value in module.state_dict().items()
    }


def distance(first: Weights, second: Weights) -> float:
    """The largest relative distance of two stacks, over the checkpoints."""
    squares = [
        sum(np.square(one, dtype=np.float64).reshape(len(one), -1).sum(1) for one in parts)
        for parts in ([first[name] - second[name] for name in first], list(first.values()))
    ]
    return float(np.sqrt(squares[0] / squares[1]).max())


NAMES = ["one", "shared 2", "chain 5", "chain 24"]
MORE = ["two", "sloped", "other sizes", "shared 3", *(f"chain {seed}" for seed in range(examples(12)))]
CASES = [*NAMES, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_two_disguises_have_one_form_and_keep_it(name: str) -> None:
    module, example = network(name)
    table = trace(module, example).symmetry
    for dtype, bound in (("float64", 1e-9), ("float32", 1e-4)):
        weights = fold(stacked(module, 3, dtype), table)
        first, second = (
            canonicalize(
                apply(GroupElement.random(table, 3, np.random.default_rng(seed), spread=0.4), weights, table), table
            )
            for seed in (1, 2)
        )
        assert not first.report.unresolved.any()
        assert distance(first.weights, second.weights) < bound
        assert distance(first.weights, canonicalize(first.weights, table).weights) < bound
        check_element(first, apply(GroupElement.identity(table, 3), weights, table), table, name)


def check_element(made: Any, weights: Weights, table: Symmetry, name: str) -> None:
    """The element leads to the form where it is known."""
    again = canonicalize(weights, table)
    known = all(np.isfinite(item).all() for item in again.element.matrices.values())
    if known:
        assert distance(apply(again.element, fold(weights, table), table), again.weights) < 1e-3
    assert known == (not again.report.degenerate.any())


@pytest.mark.parametrize("seed", range(examples(40, 4)))
def test_dead_units_in_front_of_a_block_are_said_to_be_open(seed: int) -> None:
    """A matrix changes the norm of the column that reads a dead unit, which alone could settle the unit's scale."""
    rng = np.random.default_rng(seed)
    width, rank = rng.integers(2, 6, 2).tolist()
    parts = [nn.Linear(3, width), nn.ReLU(), nn.Linear(width, rank), nn.Linear(rank, 5)]
    module = nn.Sequential(*parts).double()
    table = trace(module, torch.randn(4, 3)).symmetry
    weights = {name: rng.standard_normal((3, *value.shape)) for name, value in module.state_dict().items()}
    dead, unread = rng.random((3, width)) < 0.3, rng.random((3, width)) < 0.3
    weights["0.weight"][dead], weights["0.bias"][dead] = 0, 0
    weights["2.weight"].swapaxes(1, 2)[unread] = 0
    first, second = (
        canonicalize(apply(GroupElement.random(table, 3, np.random.default_rng(at), spread=0.4), weights, table), table)
        for at in (1, 2)
    )
    is_open = (dead & ~unread).any(axis=1)
    assert first.report.unresolved.tolist() == second.report.unresolved.tolist() == is_open.tolist()
    one, other = ({name: value[~is_open] for name, value in made.weights.items()} for made in (first, second))
    assert is_open.all() or distance(one, other) < 1e-9


@pytest.mark.parametrize(
    "name",
    [
        "chain 0",
        pytest.param("one", marks=pytest.mark.exhaustive),
        pytest.param("shared 2", marks=pytest.mark.exhaustive),
    ],
)
def test_planted_twins_are_found(name: str, tmp_path: Path) -> None:
    module, example = network(name)
    table = trace(module, example).symmetry
    weights = fold(stacked(module, 4, "float32"), table)
    copies = apply(GroupElement.random(table, 4, np.random.default_rng(1), spread=0.3), weights, table)
    both = {key: np.concatenate([value, copies[key]]).astype(np.float32) for key, value in weights.items()}
    card = ckptzoo.Card("twins", "Four networks and a disguise of each.")
    with ckptzoo.create(tmp_path / "zoo", arch=module.state_dict(), card=card) as writer:
        writer.add(both, [{"id": f"n{number}"} for number in range(8)])
    declare(tmp_path / "zoo", table)
    found = dedupe(ckptzoo.open(tmp_path / "zoo"))
    assert sorted(map(sorted, found.groups)) == [[f"n{number}", f"n{number + 4}"] for number in range(4)]


def test_the_version_is_another_one_for_these_tables_alone() -> None:
    alone = trace(*network("shared 1")).symmetry
    assert gauge_of("canonical", alone).version == 5 and not meeting_blocks(alone)
    assert commuting(alone) is alone
    row = trace(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 6)), torch.randn(2, 6)).symmetry
    assert meeting_blocks(row) == ["0", "1"]
    assert gauge_of("canonical", row).version == 6 and gauge_of("min-mass", row).version == 3


def test_a_mean_of_shared_key_biases_in_an_older_table_is_left_out() -> None:
    """Tables that zoos have may fold the mean of a bias that matrices mix."""
    from dataclasses import replace

    module, example = network("shared 2")
    table = trace(module, example).symmetry
    part = next(item.part for item in table.folds if item.kind == "zero")
    older = replace(
        table, folds=tuple(replace(item, kind="centre") if item.part == part else item for item in table.folds)
    )
    assert gauge_of("canonical", older).version == 6
    weights = stacked(module, 2, "float64")
    start = fold(weights, commuting(older))
    first, second = (
        canonicalize(apply(GroupElement.random(older, 2, np.random.default_rng(seed), spread=0.4), start, older), older)
        for seed in (1, 2)
    )
    assert distance(first.weights, second.weights) < 1e-9

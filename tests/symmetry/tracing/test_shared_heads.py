"""Heads of queries that share heads of keys and values: which of them may be exchanged, in every layout."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ckptzoo.schema.groups import Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, count, fold, trace
from ckptzoo.symmetry.matrices.tables import monomial
from tests.symmetry.tracing.helpers import checked_trace

WIDTH, TOKENS, HEAD = 8, 6, 4
EXAMPLE = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
LAYOUTS = ("sdpa", "tiled", "grouped", "broadcast")
ALIKE = ("scores", "sink", "head gate", "channel gate")
APART = ("slopes", "factors")


class Attention(nn.Module):
    """``heads`` heads of queries on ``shared`` heads of keys and values.

    Parameters
    ----------
    layout
        ``sdpa`` as torch shares them; ``tiled``: head i has the keys ``i % shared``; ``grouped`` by einsum and
        ``broadcast`` by matmul over an axis of groups.
    extra
        what there is beside, by head: factors of the scores, a sink or a gate, which are parameters, or constants.
    """

    def __init__(self, heads: int, shared: int, *, rotary: bool = False, layout: str = "sdpa", extra: str = "") -> None:
        super().__init__()
        self.heads, self.shared, self.rotary, self.layout, self.extra = heads, shared, rotary, layout, extra
        self.q, self.o = nn.Linear(WIDTH, heads * HEAD), nn.Linear(heads * HEAD, 5)
        self.k, self.v = nn.Linear(WIDTH, shared * HEAD), nn.Linear(WIDTH, shared * HEAD)
        if extra in ("scores", "sink"):
            self.extra_parameter = nn.Parameter(torch.randn(heads))
        if extra in ("head gate", "channel gate"):
            self.gate = nn.Linear(WIDTH, heads * (HEAD if extra == "channel gate" else 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._split(part(x)) for part in (self.q, self.k, self.v))
        if self.rotary:
            q, k = _turned(q), _turned(k)
        made = (self._scored if self.extra else self._mixed)(q, k, v)
        if self.extra == "head gate":
            made = made * torch.sigmoid(self.gate(x)).transpose(1, 2)[..., None]
        joined = made.transpose(1, 2).flatten(2)
        if self.extra == "channel gate":
            joined = joined * torch.sigmoid(self.gate(x))
        return self.o(joined)

    def _split(self, values: torch.Tensor) -> torch.Tensor:
        return values.unflatten(2, (-1, HEAD)).transpose(1, 2)

    def _mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        times, grouped = self.heads // self.shared, q.unflatten(1, (self.shared, -1))
        if self.layout == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        if self.layout == "tiled":
            return F.scaled_dot_product_attention(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1))
        if self.layout == "grouped":
            weights = torch.einsum("bgmtk,bgsk->bgmts", grouped, k).softmax(-1)
            return torch.einsum("bgmts,bgsk->bgmtk", weights, v).flatten(1, 2)
        return ((grouped @ k[:, :, None].mT).softmax(-1) @ v[:, :, None]).flatten(1, 2)

    def _scored(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (item.repeat_interleave(self.heads // self.shared, 1) for item in (k, v))
        scores, numbers = q @ k.mT, torch.arange(1, self.heads + 1)[:, None, None]
        if self.extra == "factors":
            scores = scores * numbers
        if self.extra == "slopes":
            scores = scores + numbers * torch.arange(TOKENS)
        if self.extra == "scores":
            scores = scores * self.extra_parameter[:, None, None]
        if self.extra == "sink":
            sink = self.extra_parameter.view(1, -1, 1, 1).expand(len(q), -1, q.shape[2], 1)
            return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v
        return scores.softmax(-1) @ v


def _turned(values: torch.Tensor) -> torch.Tensor:
    half = HEAD // 2
    angles = torch.arange(values.shape[2])[:, None] * 0.3 ** torch.arange(half)
    cos, sin, first, second = angles.cos(), angles.sin(), values[..., :half], values[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def made(**options: object) -> Attention:
    torch.manual_seed(0)
    sizes = {"heads": 4, "shared": 2} | options
    return Attention(**sizes)  # pyright: ignore[reportArgumentType]


def exchanged(table: Symmetry) -> list[tuple[int, int]]:
    """Of each group inside whose channels others act: blocks, and heads of a block."""
    names = {item.group for action in table.actions for item in action.segments if item.within}
    perms = [table[name].perm for name in sorted(names)]
    return [(perm.g, perm.k) for perm in perms if isinstance(perm, Wreath)]


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(("heads", "shared"), [(4, 1), (4, 2), (6, 3), (6, 2)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sampled(9)
def test_heads_are_exchanged_within_those_that_they_share(layout: str, heads: int, shared: int, rotary: bool) -> None:
    table = checked_trace(made(heads=heads, shared=shared, rotary=rotary, layout=layout), EXAMPLE).symmetry
    assert exchanged(table) == [(shared, heads // shared)]
    assert table["q"].scale == ("complex" if rotary else "linear") and table["v"].scale == "linear"
    found = count(monomial(table)).permutations
    inside = 1 if rotary else math.factorial(HEAD) ** shared
    orders = math.factorial(shared) * math.factorial(heads // shared) ** shared
    assert found == orders * inside * math.factorial(HEAD) ** shared


def test_heads_that_share_nothing_have_no_group_of_their_own() -> None:
    assert exchanged(checked_trace(made(shared=4), EXAMPLE).symmetry) == []


@pytest.mark.parametrize("extra", ALIKE)
@pytest.mark.sampled(2)
def test_parameters_of_each_head_move_with_it(extra: str) -> None:
    table = checked_trace(made(extra=extra), EXAMPLE).symmetry
    assert exchanged(table) == [(2, 2)]
    name = "extra_parameter" if extra in ("scores", "sink") else "gate.weight"
    ((segment,),) = [action.segments for action in table.actions_on(name) if action.axis == 0]
    assert (segment.offset, segment.count, segment.inner) == (0, 4, HEAD if extra == "channel gate" else 1)


@pytest.mark.parametrize("extra", APART)
@pytest.mark.sampled(2)
def test_heads_that_differ_by_constants_keep_their_order(extra: str) -> None:
    assert exchanged(checked_trace(made(extra=extra), EXAMPLE).symmetry) == []


def test_a_flattened_image_is_not_taken_for_heads() -> None:
    """Each channel of the last convolution has as many positions in front of the head as the image has."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)
    )
    assert exchanged(checked_trace(network, torch.randn(2, 2, 6, 6)).symmetry) == []


@pytest.mark.parametrize(("shared", "rotary"), [(1, True), (2, True), (2, False)])
@pytest.mark.sampled(2)
def test_two_disguises_have_one_canonical_form(shared: int, rotary: bool) -> None:
    module = made(shared=shared, rotary=rotary).double()
    table = trace(module, EXAMPLE).symmetry
    raw = {name: value.detach().numpy()[None] for name, value in module.named_parameters()}
    folded = fold(raw, table)
    forms = [
        canonicalize(
            apply(GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.3), folded, table), table
        )
        for seed in (1, 2)
    ]
    for name, value in forms[0].weights.items():
        assert np.linalg.norm(value - forms[1].weights[name]) <= 1e-11 * np.linalg.norm(value)

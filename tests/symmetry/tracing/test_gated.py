"""Products of two values that are scaled apart: gated units with ReLU or tanh, bilinear ones, and what follows them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, count, fold, min_mass, trace
from ckptzoo.symmetry.identity.invariants import invariants
from ckptzoo.symmetry.matrices.tables import residual
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
from tests.symmetry.tracing.test_folds import nullity

UNIT = {"g": linear(3, 4), "u": linear(3, 4), "d": linear(4, 2)}
WRITTEN = "g: -> g@0+4 | u: -> u@0+4"
READ = "d.weight 1 -1 in u@0+4 gates g@0+4"
REGLU = f"g 4 sym positive | u 4 like(g) nonzero | {WRITTEN} | {READ}"


def reglu(m: Net, x: torch.Tensor) -> torch.Tensor:
    return F.relu(m.g(x)) * m.u(x)


def _packed(m: Net, x: torch.Tensor) -> torch.Tensor:
    gate, value = m.a(x).chunk(2, -1)
    return m.d(F.relu(gate) * value)


class Block(nn.Module):
    """A residual stream with RMSNorm in front of a gated unit, and of the head."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor] = F.relu, width: int = 4, hidden: int = 5) -> None:
        super().__init__()
        self.act = act
        self.e, self.o = nn.Linear(3, width), nn.Linear(width, 3)
        self.n, self.f = nn.RMSNorm(width, eps=0.01), nn.RMSNorm(width, eps=0.01)
        self.g, self.u = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.d = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.e(x)
        y = self.n(x)
        return self.o(self.f(x + self.d(self.act(self.g(y)) * self.u(y))))


CASES = {
    "ReGLU": Case(lambda m, x: m.d(reglu(m, x)), UNIT, rows(3), REGLU, ()),
    "the gate behind": Case(lambda m, x: m.d(m.u(x) * F.relu(m.g(x))), UNIT, rows(3), REGLU.replace(
        "g 4 sym positive | u 4 like(g) nonzero", "u 4 sym nonzero | g 4 like(u) positive"), ()),
    "a gate of tanh": Case(
        lambda m, x: m.d(torch.tanh(m.g(x)) * m.u(x)), UNIT, rows(3),
        f"g 4 sym nonzero | u 4 like(g) nonzero | {WRITTEN} | {READ}".replace("g 4 sym nonzero", "g 4 sym sign"), (),
    ),
    "tanh and ReLU": Case(
        lambda m, x: m.d(torch.tanh(m.g(x)) * F.relu(m.u(x))), UNIT, rows(3),
        f"g 4 sym sign | u 4 like(g) positive | {WRITTEN} | d.weight 1 -1 in g@0+4 gates u@0+4", (),
    ),
    "a bilinear unit": Case(
        lambda m, x: m.d(m.g(x) * m.u(x)), UNIT, rows(3),
        f"g 4 sym nonzero | u 4 like(g) nonzero | {WRITTEN} | d.weight 1 -1 in g@0+4 gates u@0+4", (),
    ),
    "a ReLU behind leaves positive scales": Case(
        lambda m, x: m.d(F.relu(reglu(m, x))), UNIT, rows(3), REGLU.replace("nonzero", "positive"), (),
    ),
    "tanh behind leaves the value its sign": Case(
        lambda m, x: m.d(torch.tanh(reglu(m, x))), UNIT, rows(3),
        f"g 4 sym none | u 4 like(g) sign | {WRITTEN} | d: u@0+4 ->", ("*multiplies two values that are scaled apart*",),
    ),
    "tanh behind two of tanh": Case(
        lambda m, x: m.d(torch.tanh(torch.tanh(m.g(x)) * torch.tanh(m.u(x)))), UNIT, rows(3),
        f"g 4 sym sign | u 4 like(g) sign | {WRITTEN} | d.weight 1 -1 in g@0+4 gates u@0+4", (),
    ),
    "GELU behind": Case(
        lambda m, x: m.d(F.gelu(reglu(m, x))), UNIT, rows(3),
        """g 4 sym positive | g:2 4 like(g) none | g: -> g@0+4 | u.weight 0 -1 out g@0+4 | u.bias 0 -1 bias g@0+4
        d: g:2@0+4 ->""", ("*",),
    ),
    "LayerNorm behind": Case(
        lambda m, x: m.d(m.n(reglu(m, x))), UNIT | {"n": part(nn.LayerNorm, 4)}, rows(3),
        """g 4 sym positive | n 4 like(g) positive | g: -> g@0+4 | u.weight 0 -1 out g@0+4 | u.bias 0 -1 bias g@0+4
        d: n@0+4 -> | n.weight 0 +1 gain n@0+4 | n.bias 0 +1 shift n@0+4""", (),
    ),
    "BatchNorm behind": Case(
        lambda m, x: m.d(m.n(reglu(m, x))), UNIT | {"n": part(nn.BatchNorm1d, 4)}, rows(3), "g 4 sym none | ...",
    ),
    "a depthwise convolution behind": Case(
        lambda m, x: m.c(m.w(reglu(m, x))).flatten(1),
        {"g": conv(1, 3, 3), "u": conv(1, 3, 3), "w": conv(3, 3, 3, groups=3), "c": conv(3, 2, 2)}, images(),
        "g 3 wreath(w,3,1) none | u 3 like(g) nonzero | ...",
    ),
    "convolutions and a flattened axis": Case(
        lambda m, x: m.d(reglu(m, x).flatten(1)),
        {"g": conv(1, 3, 3), "u": conv(1, 3, 3), "d": linear(48, 2)}, images(),
        """g 3 sym positive | u 3 like(g) nonzero | g: -> g@0+3 | u: -> u@0+3
        d.weight 1 -1 in u@0+3*16 gates g@0+3*16""", (),
    ),
    "a bias behind": Case(
        lambda m, x: m.d(reglu(m, x) + m.b), UNIT | {"b": parameter(4)}, rows(3),
        f"g 4 sym positive | u 4 like(g) nonzero | b 0 +1 bias u@0+4 gates g@0+4 | {WRITTEN} | {READ}", (),
    ),
    "a gain behind": Case(
        lambda m, x: m.d(reglu(m, x) * m.b), UNIT | {"b": parameter(4)}, rows(3),
        f"g 4 sym positive | u 4 like(g) nonzero | b 0 0 gain u@0+4 | {WRITTEN} | {READ}", ("'b' is permuted*",),
    ),
    "two readers": Case(
        lambda m, x: torch.cat([m.d(reglu(m, x)), m.e(reglu(m, x))], -1), UNIT | {"e": linear(4, 2)}, rows(3),
        f"{REGLU} | e.weight 1 -1 in u@0+4 gates g@0+4", (),
    ),
    "the gate is read too": Case(
        lambda m, x: m.d(reglu(m, x)) + m.e(F.relu(m.g(x))), UNIT | {"e": linear(4, 2)}, rows(3),
        f"{REGLU} | e: g@0+4 ->", (),
    ),
    "one gate of two values": Case(
        lambda m, x: m.d(reglu(m, x)) + m.e(F.relu(m.g(x)) * m.v(x)), UNIT | {"v": linear(3, 4), "e": linear(4, 2)},
        rows(3),
        f"""g 4 sym positive | u 4 like(g) nonzero | v 4 like(g) nonzero | {WRITTEN} | {READ}
        v: -> v@0+4 | e.weight 1 -1 in v@0+4 gates g@0+4""", (),
    ),
    "gate and value of one layer": Case(
        _packed, {"a": linear(3, 8), "d": linear(4, 2)}, rows(3),
        "a 4 sym positive | a:2 4 like(a) nonzero | a: -> a@0+4 a:2@4+4 | d.weight 1 -1 in a:2@0+4 gates a@0+4", (),
    ),
    "added to another layer": Case(
        lambda m, x: m.d(reglu(m, x) + m.w(x)), UNIT | {"w": linear(3, 4)}, rows(3),
        f"""{REGLU} | w.weight 0 +1 out u@0+4 gates g@0+4 | w.bias 0 +1 bias u@0+4 gates g@0+4""", (),
    ),
    "added to its own value": Case(
        lambda m, x: m.d(reglu(m, x) + m.u(x)), UNIT, rows(3),
        f"g 4 sym none | u 4 like(g) nonzero | {WRITTEN} | d: u@0+4 ->", ("*",),
    ),
    "two products that are added": Case(
        lambda m, x: m.d(reglu(m, x) + F.relu(m.h(x)) * m.v(x)), UNIT | {"h": linear(3, 4), "v": linear(3, 4)}, rows(3),
        f"""g 4 sym positive | u 4 like(g) nonzero | h 4 like(g) none | {WRITTEN} | {READ} | h: -> h@0+4
        v.weight 0 +1 out u@0+4 gates g@0+4 | v.bias 0 +1 bias u@0+4 gates g@0+4""", ("*",),
    ),
    "a product of three has two scales": Case(
        lambda m, x: m.d(m.g(x) * m.u(x) * m.h(x)), UNIT | {"h": linear(3, 4)}, rows(3),
        f"""g 4 sym nonzero | u 4 like(g) nonzero | h 4 like(g) none | {WRITTEN}
        d.weight 1 -1 in g@0+4 gates u@0+4 | h: -> h@0+4""", ("*",),
    ),
    "beside its value": Case(
        lambda m, x: m.e(torch.cat([m.u(x), reglu(m, x)], -1)), {"g": UNIT["g"], "u": UNIT["u"], "e": linear(8, 2)},
        rows(3),
        f"u 4 sym nonzero | g 4 like(u) positive | {WRITTEN} | e.weight 1 -1 in u@0+4 u@4+4 gates g@4+4", (),
    ),
    "beside its gate": Case(
        lambda m, x: m.e(torch.cat([F.relu(m.g(x)), reglu(m, x)], -1)),
        {"g": UNIT["g"], "u": UNIT["u"], "e": linear(8, 2)}, rows(3),
        f"g 4 sym positive | u 4 like(g) nonzero | {WRITTEN} | e.weight 1 -1 in g@0+4 g@4+4 gates u@4+4", (),
    ),
    "beside both": Case(
        lambda m, x: m.e(torch.cat([F.relu(m.g(x)), m.u(x), reglu(m, x)], -1)),
        {"g": UNIT["g"], "u": UNIT["u"], "e": linear(12, 2)}, rows(3),
        f"g 4 sym none | u 4 like(g) nonzero | {WRITTEN} | e: g@0+4 u@4+4 u@8+4 ->", ("*",),
    ),
    "channels in turns with their values": Case(
        lambda m, x: m.e(torch.stack([m.u(x), reglu(m, x)], -1).flatten(1)),
        {"g": linear(3, 2), "u": linear(3, 2), "e": linear(4, 2)}, rows(3),
        """u 2 sym nonzero | g 2 like(u) positive | g: -> g@0+2 | u: -> u@0+2
        e.weight 1 -1 in u@0+1 u@2+1 u@1+1 u@3+1 gates g@1+1 g@3+1""", (),
    ),
    "the same layers twice": Case(
        lambda m, x: m.d(reglu(m, x)) + m.d(reglu(m, x.flip(-1))), UNIT, rows(3), REGLU, (),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


@pytest.mark.parametrize(
    ("name", "scales", "others"),
    [
        ("ReGLU", 8, 0),
        ("a gate of tanh", 4, 0),
        ("tanh and ReLU", 4, 0),
        ("a ReLU behind leaves positive scales", 8, 0),
        ("gate and value of one layer", 8, 0),
        ("convolutions and a flattened axis", 6, 0),
        ("added to its own value", 4, 0),
        # the bias that is added to the products goes into that of the layer behind
        ("a bias behind", 8, 4),
        # each gain takes a scale that no other tensor has
        ("a gain behind", 8, 4),
        ("GELU behind", 4, 0),
        ("a product of three has two scales", 8, 4),
    ],
)
@pytest.mark.sampled(2)
def test_the_table_has_the_dimensions_of_the_jacobian(name: str, scales: int, others: int) -> None:
    case = CASES[name]
    module = net(case.forward, **case.parts)
    traced = trace(module, case.example)
    examples = 4 * torch.randn(120, *case.example.shape[1:], generator=torch.Generator().manual_seed(0))
    bilinear = 0 if name != "a product of three has two scales" else 6  # a pair of linear factors has more than scales
    assert count(traced).dimensions == scales
    assert nullity(module.double(), traced, examples.double()) == scales + others + bilinear


def test_a_gated_unit_in_a_residual_block() -> None:
    module = Block()
    traced = checked_trace(module, rows(3))
    assert [(group.id, group.scale) for group in traced.symmetry.groups] == [
        ("e", "orthogonal"),
        ("n", "none"),
        ("g", "positive"),
        ("u", "nonzero"),
        ("f", "none"),
    ]
    assert dict(count(traced).continuous) == {"scales": 10, "orthogonal": 6, "gains": 8}
    examples = 4 * torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    assert nullity(module.double(), traced, examples.double()) == count(traced).dimensions


def disguised(module: nn.Module, table: Symmetry, count: int, seed: int = 0) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(seed)
    stack = {
        name: value.double().numpy()[None] + 0.1 * rng.standard_normal(value.shape)
        for name, value in module.state_dict().items()
    }
    stack = fold(stack, table)
    return stack, [apply(GroupElement.random(table, 1, rng, spread=0.5), stack, table) for _ in range(count)]


@pytest.mark.parametrize("gauge", ["canonical", "min-mass"])
@pytest.mark.parametrize(
    "name",
    [
        "ReGLU",
        "a gate of tanh",
        "tanh and ReLU",
        "a bilinear unit",
        "two readers",
        "added to another layer",
        "a bias behind",
    ],
)
@pytest.mark.sampled(3)
def test_two_disguises_have_one_form(name: str, gauge: Any) -> None:
    case = CASES[name]
    module = net(case.forward, **case.parts)
    table = trace(module, case.example).symmetry
    _, found = disguised(module, table, 2)
    if gauge == "min-mass":  # whose channels keep their order
        raw, _ = disguised(module, table, 0)
        still = GroupElement.identity(table, 1).perms
        rng = np.random.default_rng(1)
        found = [
            apply(GroupElement(still, GroupElement.random(table, 1, rng, spread=0.5).scales), raw, table)
            for _ in range(2)
        ]
    first, second = (canonicalize(weights, table, gauge=gauge) for weights in found)
    assert not (first.report.unresolved | second.report.unresolved).any()
    bound = 1e-11 if gauge == "canonical" else 1e-9
    for tensor, value in first.weights.items():
        assert np.linalg.norm(value - second.weights[tensor]) <= bound * np.linalg.norm(value), tensor


@pytest.mark.parametrize("act", [F.relu, torch.tanh, nn.Identity()])
@pytest.mark.sampled(3)
def test_two_disguises_of_a_residual_block_have_one_form(act: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The table has matrices, so that its scales come first and its signs last."""
    module = Block(act)
    table = trace(module, rows(3)).symmetry
    assert any(group.scale == "orthogonal" for group in table.groups)
    _, (first, second) = disguised(module, table, 2)
    made = [canonicalize(weights, table).weights for weights in (first, second)]
    for tensor, value in made[0].items():
        assert np.linalg.norm(value - made[1][tensor]) <= 1e-10 * np.linalg.norm(value), tensor
    # signs that are not settled change no sketch
    rest = residual(table)
    flipped = apply(GroupElement.random(rest, 1, np.random.default_rng(1)), made[0], rest)
    sketches = [invariants(weights, table).sketches for weights in (made[0], flipped)]
    np.testing.assert_allclose(sketches[0], sketches[1], rtol=0, atol=1e-14)
    masses = [min_mass(weights, table) for weights in (first, second)]
    np.testing.assert_allclose(masses[0].mass_after, masses[1].mass_after, rtol=1e-9)
    assert all(found.gap[0] < 1e-11 and found.mass_after[0] < found.mass_before[0] for found in masses)

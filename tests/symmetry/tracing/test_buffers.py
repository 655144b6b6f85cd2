"""Buffers that checkpoints have each of their own: the table acts on them, or leaves the channels beside them in place."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo.symmetry import GroupElement, apply, canonicalize, min_mass, trace
from ckptzoo.symmetry.tracing.verify import BUFFERS
from tests.support.effort import examples
from tests.symmetry.tracing.helpers import rows

N = 6
WIDE = 2 * N


class Masked(nn.Module):
    """Layers in between which buffers meet the channels, each in its own way."""

    def __init__(self, meet: Callable[[Any, torch.Tensor], torch.Tensor], act: Callable[..., Any], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.meet, self.act = meet, act
        self.a, self.b, self.c = nn.Linear(3, N), nn.Linear(N, N), nn.Linear(N, 2)
        rng = np.random.default_rng(seed)
        for name, value in {
            "mask": rng.random(N) > 0.4,
            "floats": rng.standard_normal(N).astype("f4"),
            "positive": rng.uniform(0.5, 2, (1, N)).astype("f4"),
            "order": rng.permutation(N),
            "flags": rng.integers(0, 2, N).astype(np.int32),
            "matrix": rng.standard_normal((N, N)).astype("f4"),
            "one": np.array(rng.uniform(0.5, 2), "f4"),
        }.items():
            self.register_buffer(name, torch.from_numpy(np.array(value)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.a(x))
        return self.c(self.act(self.b(self.meet(self, h))))


MEET: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], int]] = {
    # how a buffer meets N channels, and how many of these are still permuted
    "truth values": (lambda m, h: h * m.mask, N),
    "floats": (lambda m, h: h * m.floats, N),
    "integers": (lambda m, h: h * m.flags, N),
    "sum": (lambda m, h: h + m.floats, N),
    "difference from a buffer": (lambda m, h: m.floats - h, N),
    "quotient": (lambda m, h: h / m.positive, N),
    "statistics by hand": (lambda m, h: (h - m.floats) / torch.sqrt(m.positive + 1e-5), N),
    "threshold": (lambda m, h: torch.maximum(h, m.floats), N),
    "clamp": (lambda m, h: torch.clamp(h, -m.positive[0], m.positive[0]), N),
    "gate of numbers": (lambda m, h: h * torch.sigmoid(m.floats), N),
    "gate by comparison": (lambda m, h: h * (h > m.floats), N),
    "filled": (lambda m, h: h.masked_fill(m.mask, 0.0), N),
    "filled with a buffer": (lambda m, h: h.masked_fill(m.mask, m.one), N),
    "chosen": (lambda m, h: torch.where(m.mask, h, -h), N),
    "chosen from a buffer": (lambda m, h: torch.where(m.mask, h, m.floats), N),
    "cast": (lambda m, h: h * m.mask.float(), N),
    "two at once": (lambda m, h: h * (m.mask * m.floats), N),
    "two, one after the other": (lambda m, h: h * m.mask + m.floats, N),
    "not": (lambda m, h: h * ~m.mask, N),
    "view": (lambda m, h: h * m.positive.view(-1), N),
    "one number for all": (lambda m, h: h * m.one, N),
    "with other constants": (lambda m, h: h * (m.floats + torch.arange(N)), 0),
    "flipped": (lambda m, h: h * m.floats.flip(0), 0),
    "order": (lambda m, h: h[:, m.order], 0),
    "index_select": (lambda m, h: torch.index_select(h, 1, m.order), 0),
    "matrix": (lambda m, h: h @ m.matrix, 0),
    "row of a matrix": (lambda m, h: h * m.matrix[0], N),
    "both ways": (lambda m, h: h * m.floats + m.floats.flip(0), 0),
    "a sum of it too": (lambda m, h: h * m.mask + m.mask.sum(), 0),
}


def member(module: nn.Module, weights: dict[str, np.ndarray], number: int, example: torch.Tensor) -> torch.Tensor:
    state = {name: torch.from_numpy(np.array(value[number])) for name, value in weights.items()}
    with torch.no_grad():
        return torch.func.functional_call(copy.deepcopy(module).double(), state, (example.double(),))


def double(value: torch.Tensor) -> np.ndarray:
    return (value.double() if value.is_floating_point() else value).numpy()


def permuted(table: Any) -> int:
    """Channels of the first layer that are permuted."""
    group = table[next(iter(table.actions_on("a.weight"))).segments[0].group]
    return 0 if type(group.perm).__name__ == "Fixed" else group.n


ACTS = (torch.relu, nn.functional.gelu, torch.tanh)
CASES = [
    pytest.param(name, act, marks=[pytest.mark.exhaustive] if (row + column) % 4 else [], id=f"{name}, {act.__name__}")
    for row, name in enumerate(MEET)
    for column, act in enumerate(ACTS)
]


@pytest.mark.parametrize(("name", "act"), CASES)
@pytest.mark.sampled(12)
def test_every_checkpoint_keeps_its_function(name: str, act: Callable[..., Any]) -> None:
    meet, moved = MEET[name]
    networks = [Masked(meet, act, seed) for seed in range(4)]
    traced = trace(networks[0], rows(3))
    assert traced.worst < 1e-9
    assert permuted(traced.symmetry) == moved, traced.notes
    if not moved:
        assert any("stays in place" in note for note in traced.notes)
    states = [net.state_dict() for net in networks]
    weights = {key: np.stack([double(state[key]) for state in states]) for key in states[0]}
    example = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    expected = [member(networks[0], weights, number, example) for number in range(4)]
    element = GroupElement.random(traced.symmetry, 4, np.random.default_rng(0), spread=0.4)
    disguised = apply(element, weights, traced.symmetry)
    forms = [disguised, canonicalize(disguised, traced.symmetry).weights, min_mass(disguised, traced.symmetry).weights]
    for form in forms:
        assert {key: value.dtype for key, value in form.items()} == {key: value.dtype for key, value in weights.items()}
        for number in range(4):
            torch.testing.assert_close(
                member(networks[0], form, number, example), expected[number], rtol=1e-9, atol=1e-9
            )
    same = canonicalize(weights, traced.symmetry).weights
    for key, value in forms[1].items():
        np.testing.assert_allclose(value.astype(float), same[key].astype(float), rtol=1e-9, atol=1e-9, err_msg=key)


def test_a_constant_of_the_module_is_no_tensor_of_a_checkpoint() -> None:
    module = Masked(lambda m, h: h * m.const, torch.relu, 0)
    module.register_buffer("const", torch.rand(N), persistent=False)
    traced = trace(module, rows(3))
    assert not permuted(traced.symmetry)
    assert "const" not in {action.tensor for action in traced.symmetry.actions}
    assert any("constants that are not the same" in note for note in traced.notes)


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("seed", range(examples(4)))
@pytest.mark.sampled(2)
def test_other_values_of_a_buffer_have_its_dtype_and_range(kind: Callable[..., Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for value in (
        rng.random(5) < 0.5,
        rng.permutation(7),
        rng.integers(3, 9, (2, 3)).astype(np.uint8),
        rng.standard_normal((3, 2)),
        np.ones(4),
        np.where(np.tri(3) > 0, 0.0, -np.inf),
    ):
        made = kind(value, rng)
        assert made.dtype == value.dtype
        assert made.shape == value.shape
        if value.dtype.kind != "f":
            assert set(made.ravel().tolist()) <= set(range(int(value.min()), int(value.max()) + 1)) | {False, True}
    assert sorted(BUFFERS[0](np.arange(6), rng).tolist()) == list(range(6))

"""Tensors that share memory: one under two names is taken once, and what else a module shares is refused by name."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo import symmetry
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import GroupElement, canonicalize, trace
from tests.symmetry.tracing.helpers import rows

N = 4


class Parts(nn.Module):
    """An encoder with a gain and a decoder, which ``share`` may let use one memory, and ``use`` may reach otherwise."""

    def __init__(self, share: Callable[[Any], None], gain: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(N, N), nn.Linear(N, N)
        self.gain = nn.Parameter(torch.ones(N))
        share(self)
        self.double()
        self.of_gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x
        return self.decoder(torch.tanh(self.encoder(x)) * self.of_gain(self))


def _transposed(m: Any) -> None:
    m.double()
    m.decoder.weight = nn.Parameter(m.encoder.weight.t())


def _overlapping(m: Any) -> None:
    whole = torch.randn(N + 2, N).double()
    m.encoder.weight, m.decoder.weight = nn.Parameter(whole[:N]), nn.Parameter(whole[2:])


def _side_by_side(m: Any) -> None:
    whole = torch.randn(2 * N, N).double()
    m.encoder.weight, m.decoder.weight = nn.Parameter(whole[::2]), nn.Parameter(whole[1::2])


def _tied(m: Any) -> None:
    m.decoder.weight = m.encoder.weight


def _kept(of: Callable[[nn.Parameter], Any]) -> Callable[[Any], None]:
    def share(m: Any) -> None:
        m.double()
        m.kept = of(m.gain)

    return share


def _buffer(m: Any) -> None:
    m.double()
    m.register_buffer("kept", m.gain.data[None], persistent=False)


def _nothing(m: Any) -> None:
    pass


MEMORY = "memory of its own for each, got parts of one memory"
REFERENCE = "uses of the parameter or buffer itself, got one through a list or another object"
SHARED: dict[str, tuple[Callable[[Any], None], Callable[[Any], torch.Tensor], str | None]] = {
    "nothing": (_nothing, lambda m: m.gain, None),
    "a transposed view": (_transposed, lambda m: m.gain, MEMORY),
    "some rows": (_overlapping, lambda m: m.gain, MEMORY),
    "rows in between": (_side_by_side, lambda m: m.gain, None),
    "one tensor under two names": (_tied, lambda m: m.gain, None),
    "a parameter in a list": (_kept(lambda gain: [gain]), lambda m: m.kept[0], REFERENCE),
    "a parameter of an object": (_kept(lambda gain: SimpleNamespace(g=gain)), lambda m: m.kept.g, REFERENCE),
    "a view that is kept": (_kept(lambda gain: gain.view(1, N)), lambda m: m.kept, MEMORY),
    "data that are kept": (_kept(lambda gain: {"g": gain.data}), lambda m: m.kept["g"], MEMORY),
    "a buffer out of the state dict": (_buffer, lambda m: m.kept, MEMORY),
    "a copy that is kept": (_kept(lambda gain: gain.detach().clone()), lambda m: m.kept, None),
    "a constant in single precision": (_kept(lambda _: torch.full((N,), 2.0)), lambda m: m.gain * m.kept, None),
    "a list that nothing uses": (_kept(lambda gain: [gain]), lambda m: m.gain, None),
    "a view that nothing uses": (_kept(lambda gain: gain.data.view(1, N)), lambda m: m.gain, None),
    "a buffer that nothing uses": (_buffer, lambda m: m.gain, None),
}


@pytest.mark.parametrize("name", SHARED)
def test_canonical_weights_are_the_same_function_in_the_module_itself_or_it_is_refused(name: str) -> None:
    share, gain, refused = SHARED[name]
    module = Parts(share, gain)
    if refused is not None:
        with pytest.raises(SymmetryError, match=rf"^symmetry\.trace: tensors? '.*expected {refused}"):
            trace(module, rows(N))
        return
    traced = trace(module, rows(N))
    for parameter in dict.fromkeys(module.parameters()):
        parameter.data += 0.5 * torch.randn(parameter.shape)
    inputs = rows(N, 6).double()
    before = module(inputs)
    state = module.state_dict()
    weights = canonicalize({name: state[name][None].clone() for name in traced.architecture.names}, traced).weights
    for tensor in traced.architecture.tensors:
        for other in (tensor.name, *tensor.aliases):
            state[other].copy_(weights[tensor.name][0])
    assert share is _tied or any(group.scale == "sign" for group in traced.symmetry.groups)
    torch.testing.assert_close(module(inputs), before, rtol=1e-10, atol=1e-10)


def test_a_tied_tensor_is_taken_under_one_name() -> None:
    """A table acts on one of the names, so that weights under both would no longer belong together."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(7, N), nn.Linear(N, 7, bias=False)
            self.a, self.b = nn.Linear(N, 5), nn.Linear(5, N)
            self.out.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.b(F.relu(self.a(self.embedding(ids)))))

    module = Tied()
    traced = trace(module, torch.arange(6).reshape(2, 3))
    both = {name: value[None].numpy() for name, value in module.state_dict().items()}
    once = {name: both[name] for name in traced.architecture.names}
    one = {name: value[0] for name, value in once.items()}
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "apply": lambda table, weights: symmetry.apply(
            GroupElement.random(traced.symmetry, 1, np.random.default_rng(0)), weights, table
        ),
        "fold": lambda table, weights: symmetry.fold(weights, table),
        "canonicalize": lambda table, weights: symmetry.canonicalize(weights, table),
        "min_mass": lambda table, weights: symmetry.min_mass(weights, table),
        "align": lambda table, weights: symmetry.align(weights, one, table),
    }
    tables = (traced, traced.symmetry, symmetry.monomial(traced), symmetry.unnested(traced))
    for call, table in itertools.product(calls.values(), tables):
        assert "out.weight" not in getattr(found := call(table, once), "weights", found)
        with pytest.raises(
            SymmetryError, match=r"'out\.weight': expected 'embedding\.weight' alone, which it is another"
        ):
            call(table, both)

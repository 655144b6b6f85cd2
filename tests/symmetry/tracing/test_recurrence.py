"""Recurrent layers: units, gates, signs, layers, directions, projections, first states."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.symmetry import canonicalize, count, trace
from tests.symmetry.tracing.helpers import Case, Net, check, checked_trace, linear, net, part, rows, text
from tests.symmetry.tracing.test_attention import disguised

STEPS = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


def _read(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.o(m.r(x)[0])


CASES = {
    "lstm": Case(
        _read,
        {"r": part(nn.LSTM, 3, 5, batch_first=True), "o": linear(5, 2)},
        STEPS,
        """
        r 5 sym none
        r:2 5 like(r) sign
        r.weight_ih_l0 0 +1 out r@0+5 r@5+5 r:2@10+5 r@15+5
        r.weight_hh_l0 0 +1 out r@0+5 r@5+5 r:2@10+5 r@15+5
        r.weight_hh_l0 1 -1 in r:2@0+5
        r.bias_ih_l0 0 +1 bias r@0+5 r@5+5 r:2@10+5 r@15+5
        r.bias_hh_l0 0 +1 bias r@0+5 r@5+5 r:2@10+5 r@15+5
        o: r:2@0+5 ->
        """,
    ),
    "gru": Case(
        _read,
        {"r": part(nn.GRU, 3, 5, batch_first=True, bias=False), "o": linear(5, 2)},
        STEPS,
        """
        r 5 sym none
        r:2 5 like(r) sign
        r.weight_ih_l0 0 +1 out r@0+5 r@5+5 r:2@10+5
        r.weight_hh_l0 0 +1 out r@0+5 r@5+5 r:2@10+5
        r.weight_hh_l0 1 -1 in r:2@0+5
        o: r:2@0+5 ->
        """,
    ),
    "a projection has channels of its own": Case(
        _read,
        {"r": part(nn.LSTM, 3, 5, batch_first=True, proj_size=2, bias=False), "o": linear(2, 2)},
        STEPS,
        """
        r 2 sym nonzero
        r:2 5 sym sign
        r:3 5 like(r:2) none
        r.weight_ih_l0 0 +1 out r:3@0+5 r:3@5+5 r:2@10+5 r:3@15+5
        r.weight_hh_l0 0 +1 out r:3@0+5 r:3@5+5 r:2@10+5 r:3@15+5
        r.weight_hh_l0 1 -1 in r@0+2
        r.weight_hr_l0 0 +1 out r@0+2
        r.weight_hr_l0 1 -1 in r:2@0+5
        o: r@0+2 ->
        """,
    ),
    "the halves of a glu": Case(
        lambda m, x: m.c(F.glu(m.a(x))),
        {"a": linear(5, 6), "c": linear(3, 2)},
        rows(5),
        "a 3 sym nonzero | a:2 3 like(a) none | a: -> a@0+3 a:2@3+3 | c: a@0+3 ->",
    ),
}
CASES |= {
    f"plain, {nonlinearity}": Case(
        _read,
        {"r": part(nn.RNN, 3, 5, batch_first=True, nonlinearity=nonlinearity, bias=False), "o": linear(5, 2)},
        STEPS,
        f"""
        r 5 sym {scale}
        r.weight_ih_l0 0 +1 out r@0+5
        r.weight_hh_l0 0 +1 out r@0+5
        r.weight_hh_l0 1 -1 in r@0+5
        o: r@0+5 ->
        """,
    )
    for nonlinearity, scale in (("tanh", "sign"), ("relu", "positive"))
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_number_of_symmetries(kind: type[nn.Module]) -> None:
    found = count(trace(net(_read, r=part(kind, 3, 5, batch_first=True), o=linear(5, 2)), STEPS).symmetry)
    assert (found.permutations, found.signs, found.scaling_eval) == (120, 5, 0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.sampled(4)
def test_layers_and_directions(kind: type[nn.Module], bias: bool) -> None:
    layer = part(kind, 3, 5, 2, batch_first=True, bidirectional=True, bias=bias, dropout=0.5)
    module = net(lambda m, x: (m.o(m.r(x)[0]), m.s(m.r(x)[0][:, -1])), r=layer, o=linear(10, 2), s=linear(10, 1))
    found = count(checked_trace(module, STEPS).symmetry)
    assert (found.permutations, found.signs) == (120**4, 20)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_two_disguises_have_one_canonical_form(kind: type[nn.Module]) -> None:
    module = net(_read, r=part(kind, 3, 5, 2, batch_first=True, bidirectional=True), o=linear(10, 2))
    table = trace(module, STEPS).symmetry
    first, second = (canonicalize(disguised(module, table, seed), table).weights for seed in (1, 2))
    assert all(np.array_equal(value, second[name]) for name, value in first.items())


@pytest.mark.exhaustive
def test_the_last_states_are_read_layer_by_layer() -> None:
    module = net(
        lambda m, x: m.o(torch.cat(list(m.r(x)[1][0]) + list(m.r(x)[1][1]), 1)),
        r=part(nn.LSTM, 3, 4, 2, batch_first=True),
        o=linear(16, 2),
    )
    table = checked_trace(module, STEPS).symmetry
    assert count(table).permutations == 24**2
    assert "o.weight 1 -1 in r:2@0+4 r:4@4+4 r:2@8+4 r:4@12+4" in text(table)


def test_first_states_that_are_inputs_keep_the_units_in_place() -> None:
    class WithState(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.r, self.o = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return self.o(self.r(x, state)[0])

    traced = trace(WithState(), (STEPS, torch.randn(1, 2, 5)))
    assert count(traced.symmetry).permutations == 1 and count(traced.symmetry).signs == 0
    assert any("starts from a state that stays in place" in note for note in traced.notes)


def test_first_states_that_are_made_of_channels_move_with_the_units() -> None:
    module = net(
        lambda m, x: m.o(m.r(x, torch.tanh(m.s(x[:, 0]))[None])[0]),
        s=linear(3, 5),
        r=part(nn.GRU, 3, 5, batch_first=True),
        o=linear(5, 2),
    )
    found = count(checked_trace(module, STEPS).symmetry)
    assert (found.permutations, found.signs) == (120, 5)


@pytest.mark.exhaustive
def test_a_layer_that_is_called_twice() -> None:
    module = net(lambda m, x: m.o(m.r(m.r(x)[0])[0]), r=part(nn.LSTM, 3, 3, batch_first=True), o=linear(3, 2))
    table = checked_trace(module, STEPS).symmetry
    # What it writes is what it reads, so that it moves with the inputs.
    assert count(table).permutations == 1


@pytest.mark.exhaustive
def test_a_language_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm, self.head = nn.Embedding(11, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 11)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embed(ids))[0])

    traced = checked_trace(Model(), torch.randint(0, 11, (2, 4)))
    assert count(traced.symmetry).log10_permutations == pytest.approx(np.log10(120))
    assert text(traced.symmetry).splitlines()[:3] == [
        "embed 6 sym linear",
        "lstm 5 sym none",
        "lstm:2 5 like(lstm) sign",
    ]
    assert traced.architecture.input_shape is None

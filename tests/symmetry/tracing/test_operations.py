"""Operations that are less common: what passes through them, and through those that torch makes of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import count, trace
from tests.support.effort import examples
from tests.symmetry.tracing.helpers import Net, checked_trace, linear, net, parameter, part
from tests.symmetry.tracing.test_refused import Experts

STEPS = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
ODD, POSITIVE, NONE, NONZERO, FIXED, SQUARES = "signs", "positive", "none", "nonzero", "fixed", "squares"

KINDS: dict[str, dict[str, Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    ODD: {
        "round": lambda m, x: torch.round(x),
        "trunc": lambda m, x: x.trunc(),
        "frac": lambda m, x: x.frac(),
        "asin": lambda m, x: torch.asin(x.tanh()),
        "nan_to_num": lambda m, x: x.nan_to_num(),
    },
    POSITIVE: {
        "sign": lambda m, x: x.sign() * x,
        "sort of steps": lambda m, x: x.sort(1)[0],
        "topk of steps": lambda m, x: x.topk(3, 1)[0],
        "median of steps": lambda m, x: x.median(1)[0],
        "quantiles of steps": lambda m, x: x.quantile(torch.tensor([0.2, 0.7], dtype=x.dtype), 1),
        "cummax": lambda m, x: x.cummax(1)[0],
        "norms of order 3": lambda m, x: x.norm(3, 1),
        "hypot": lambda m, x: torch.hypot(x, x.relu()),
        "LPPool": lambda m, x: F.lp_pool1d(x.transpose(1, 2), 2, 2).transpose(1, 2),
        "unpooled": lambda m, x: _unpooled(x.transpose(1, 2)).transpose(1, 2),
        "spectrum": lambda m, x: torch.fft.rfft(x, dim=1).abs(),
        "scatter_reduce": lambda m, x: x.new_zeros(len(x), 3, 4).scatter_reduce(1, _places(x), x, "amax"),
    },
    NONE: {
        "ceil": lambda m, x: x.ceil(),
        "lgamma": lambda m, x: torch.lgamma(1 + x.sigmoid()),
        "logsumexp": lambda m, x: x.logsumexp(1),
        "logcumsumexp": lambda m, x: x.logcumsumexp(1),
        "prod": lambda m, x: x.prod(1),
        "2 ** x": lambda m, x: 2**x,
        "powers that are learned": lambda m, x: x.sigmoid() ** m.v,
        "lerp": lambda m, x: torch.lerp(x, x.sigmoid(), m.v.sigmoid()),
        "logaddexp": lambda m, x: torch.logaddexp(x, x.tanh()),
        "sort of channels": lambda m, x: x.sort(-1)[0],
        "cosine": lambda m, x: F.cosine_similarity(x, x.tanh(), -1)[..., None].expand(x.shape),
        "distance": lambda m, x: F.pairwise_distance(x, x.tanh(), keepdim=True).expand(x.shape),
    },
    NONZERO: {
        "cumsum": lambda m, x: x.cumsum(1),
        "gather": lambda m, x: x.gather(1, m.input.argmax(-1)[:, :2, None].expand(-1, -1, 4)),
        "index of the input": lambda m, x: x[torch.arange(len(x)), m.input.mean(-1).argmax(1)],
        "index_add": lambda m, x: x.new_zeros(len(x), 3, 4).index_add(1, torch.tensor([0, 1, 2, 0, 1, 2]), x),
        "scatter_add": lambda m, x: x.new_zeros(len(x), 3, 4).scatter_add(1, _places(x), x),
        "transforms": lambda m, x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=6, dim=1),
        "pairs as complex numbers": lambda m, x: torch.view_as_real(torch.fft.fft(x, dim=1)).sum(-1),
        "einsum of one": lambda m, x: torch.einsum("b...i->...ib", x).permute(2, 0, 1),
        "stacks": lambda m, x: torch.hstack([x[:, :2], x[:, 2:]]),
        "differences": lambda m, x: x.diff(dim=1),
        "unfold": lambda m, x: x.unfold(1, 3, 1).mean(-1),
    },
    FIXED: {
        "cumsum of channels": lambda m, x: x.cumsum(-1),
        "argmax of channels": lambda m, x: F.one_hot(x.argmax(-1), 4).to(x.dtype) + x,
        "places of the largest": lambda m, x: x * x.topk(4)[1],
        "transform of channels": lambda m, x: torch.fft.fft(x).real,
        "gather of channels": lambda m, x: x.gather(-1, m.input[..., :4].argsort(-1)),
    },
    SQUARES: {
        "einsum of three": lambda m, x: torch.einsum("bti,bsi,bsj->btj", x, x, x),
        "baddbmm": lambda m, x: torch.baddbmm(torch.ones(6, 6, dtype=x.dtype), x, x.mT) @ x,
        "inner": lambda m, x: torch.inner(x[0], x[1]).mean() * x,
    },
}


def _places(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0, 1, 2, 0, 1, 2])[None, :, None].expand(x.shape)


def _unpooled(x: torch.Tensor) -> torch.Tensor:
    return F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), [2])


def _between(operation: Callable[[Any, torch.Tensor], torch.Tensor]) -> Net:
    """The operation behind one layer and before another, with a nonlinearity there."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.input = x
        return m.b(operation(m, m.a(x)))

    return net(forward, a=linear(5, 4), b=linear(4, 2), v=parameter(4))


NAMES = [(kind, name) for kind, several in KINDS.items() for name in several]
CASES = [
    pytest.param(kind, name, id=name, marks=() if number % 5 == 0 else pytest.mark.exhaustive)
    for number, (kind, name) in enumerate(NAMES)
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.sampled(2)
def test_what_passes(kind: str, name: str) -> None:
    traced = trace(_between(KINDS[kind][name]), STEPS)
    assert traced.worst < 1e-9 and not any("outputs by" in note for note in traced.notes)
    found = count(traced.symmetry)
    expected = {
        ODD: (24, 4, 0),
        POSITIVE: (24, 0, 4),
        NONE: (24, 0, 0),
        NONZERO: (1, 0, 16),  # any matrix
        FIXED: (1, 0, 0),
        SQUARES: (1, 0, 6),
    }[kind]
    # absolute values end signs too, and products of queries that are keys keep any orthogonal matrix
    expected = {"spectrum": (24, 4, 4), "cosine": (24, 4, 0)}.get(name, expected)
    assert (found.permutations, found.signs, found.dimensions) == expected


@pytest.mark.parametrize("seed", range(examples(40, 2)))
def test_two_operations_in_a_row_keep_outputs(seed: int) -> None:
    """A table of any two of them holds for other elements and inputs than those of the verification."""
    rng = np.random.default_rng(seed)
    every = [operation for several in KINDS.values() for operation in several.values()]
    first, second = (every[int(at)] for at in rng.integers(0, len(every), 2))

    def both(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = first(m, x).to(x.dtype)
        h = h if h.shape == x.shape else x + h.mean() * x.tanh()
        return second(m, h)

    checked_trace(_between(both), STEPS)


def test_a_function_that_is_mapped_over_examples() -> None:
    """``torch.func.vmap`` gives the table of the same layers without it, and no trace leaves torch in the midst of it."""

    def mapped(act: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        return lambda m, x: torch.func.vmap(lambda row: m.b(act(m.a(row))))(x)

    parts = {"a": linear(5, 4), "b": linear(4, 2)}
    plain = trace(net(lambda m, x: m.b(m.a(x).relu()), **parts), STEPS).symmetry
    assert checked_trace(net(mapped(torch.relu), **parts), STEPS).symmetry == plain
    with pytest.raises(SymmetryError, match=r"'copysign' .*expected an operation that there is a rule for"):
        trace(net(mapped(lambda h: torch.copysign(h, h.cos())), **parts), STEPS)
    torch.randn(2)  # refused within vmap


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
@pytest.mark.sampled(2)
def test_cells_are_recurrent_layers(kind: type[nn.Module]) -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = m.cell(step, state)
        return m.out(state[0] if isinstance(state, tuple) else state)

    found = count(checked_trace(net(forward, cell=part(kind, 5, 4), out=linear(4, 2)), STEPS).symmetry)
    assert (found.permutations, found.signs) == (24, 4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.sampled(6)
def test_packed_sequences(kind: type[nn.Module], in_order: bool) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = kind(5, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=in_order)
            return self.out(pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0])

    traced = trace(Packed(), (STEPS, torch.tensor([6, 3] if in_order else [3, 6])))
    found = count(traced.symmetry)
    assert (found.permutations, found.signs) == (24, 4) and traced.worst < 1e-9


def test_padding_that_is_no_zero_takes_the_signs() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, [6, 3], batch_first=True)
        return m.out(pad_packed_sequence(m.layer(packed)[0], batch_first=True, padding_value=2.0)[0])

    table = trace(net(forward, layer=part(nn.RNN, 5, 4, batch_first=True), out=linear(4, 2)), STEPS).symmetry
    assert count(table).signs == 0 and count(table).permutations == 24


def test_tables_that_read_two_values_or_rows() -> None:
    bilinear = net(
        lambda m, x: m.b(m.w(m.a(x), m.c(x))),
        a=linear(5, 3),
        c=linear(5, 4),
        w=part(nn.Bilinear, 3, 4, 2),
        b=linear(2, 2),
    )
    assert count(checked_trace(bilinear, STEPS).symmetry).dimensions == 9 + 16 + 4

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.out = nn.EmbeddingBag(7, 4, mode="max"), nn.Linear(4, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.bag(ids))

    found = count(trace(Bags(), torch.randint(0, 7, (3, 5))).symmetry)
    assert (found.permutations, found.dimensions) == (24, 4)


@pytest.mark.parametrize(
    "product",
    [
        lambda m, h: torch.einsum("bti,oi->bto", h, m.w),
        lambda m, h: torch.einsum("bti,io->otb", h, m.w).permute(2, 1, 0),
        lambda m, h: (m.w @ h.mT).mT,
        lambda m, h: torch.tensordot(h, m.w, dims=([2], [0])),  # pyright: ignore[reportArgumentType]
    ],
)
def test_products_with_a_parameter_on_either_side(product: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    module = net(lambda m, x: m.b(product(m, m.a(x).tanh()).relu()), a=linear(5, 4), w=parameter(4, 4), b=linear(4, 2))
    found = count(checked_trace(module, STEPS).symmetry)
    assert (found.permutations, found.signs, found.dimensions) == (24**2, 4, 4)


def test_a_vector_reads_channels() -> None:
    module = net(lambda m, x: m.a(x).relu() @ m.v, a=linear(5, 4), v=parameter(4))
    assert count(checked_trace(module, STEPS).symmetry).dimensions == 4


@pytest.mark.exhaustive
def test_experts_that_the_best_rows_are_routed_to() -> None:
    """The gate and its experts stay in order, whose units are of one kind as their results are added."""
    found = count(trace(Experts(), STEPS[0]).symmetry)
    assert (found.permutations, found.dimensions) == (24, 4)


class Scan(nn.Module):
    """A selective scan, as Mamba's."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, 6), nn.Linear(6, 2)
        self.select, self.dt = nn.Linear(6, 2 + 3 + 3, bias=False), nn.Linear(2, 6)
        self.A_log, self.D = nn.Parameter(torch.rand(6, 3)), nn.Parameter(torch.rand(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.silu(self.enter(x))
        low, b, c = self.select(h).split([2, 3, 3], -1)
        dt = F.softplus(self.dt(low))
        decay = torch.exp(-torch.exp(self.A_log) * dt[..., None])
        given = dt[..., None] * b[:, :, None] * h[..., None]
        state, outputs = torch.zeros(len(x), 6, 3, dtype=x.dtype), []
        for step in range(x.shape[1]):
            state = decay[:, step] * state + given[:, step]
            outputs.append((state @ c[:, step, :, None])[..., 0])
        return self.leave(torch.stack(outputs, 1) + h * self.D)


def test_a_selective_scan_permutes_its_channels() -> None:
    traced = trace(Scan(), STEPS)
    assert traced.worst < 1e-9 and count(traced.symmetry).permutations == 720

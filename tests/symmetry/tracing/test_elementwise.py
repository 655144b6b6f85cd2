"""Entry by entry: which scales pass through which activation, and sums, products and quotients of values."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.symmetry.tracing.helpers import (
    Case,
    Net,
    check,
    checked_trace,
    conv,
    images,
    linear,
    lines,
    net,
    parameter,
    part,
    rows,
    text,
)

Act = Callable[[torch.Tensor], torch.Tensor]

POSITIVE = {
    "ReLU": nn.ReLU(),
    "ReLU in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "x.relu()": lambda x: x.relu(),
    "x.relu_()": lambda x: x.relu_(),
    "LeakyReLU": nn.LeakyReLU(0.2),
    "LeakyReLU in place": nn.LeakyReLU(0.2, inplace=True),
    "F.leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "RReLU": nn.RReLU(),
    "PReLU of one slope": nn.PReLU(),
    "clamp(min=0)": lambda x: x.clamp(min=0),
    "clamp(max=0)": lambda x: torch.clamp(x, max=0),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "Threshold": nn.Threshold(0, 0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "max with zeros": lambda x: torch.max(x, x.new_zeros(1)),
}
ABSOLUTE = {
    "abs": torch.abs,
    "root of squares": lambda x: torch.sqrt(x * x),
    "twice the negative modulus": lambda x: -2 * x.abs(),
}
EVEN = {
    "x ** 2": lambda x: x**2,
    "x * x": lambda x: x * x,
    "a Gaussian": lambda x: torch.exp(-(x**2)),
    "exp of the modulus": lambda x: torch.exp(-x.abs()),
    "a hyperbola": lambda x: (1 + x.square()).sqrt(),
    "tanh of a square": lambda x: torch.tanh(x * x),
    "cos of the modulus": lambda x: torch.cos(2 * x.abs()),
    "a square above one": lambda x: (x**2).clamp(min=1.0),
    "the modulus at least one": lambda x: torch.maximum(x.abs(), torch.ones(1)),
    "a fourth power and a square": lambda x: x**4 + x**2,
    "softmax of squares": lambda x: torch.softmax(x**2, 1),
}
SIGN = {
    "Tanh": nn.Tanh(),
    "torch.tanh": torch.tanh,
    "x.tanh_()": lambda x: x.tanh_(),
    "F.tanh": F.tanh,
    "sin": torch.sin,
    "erf": torch.erf,
    "Softsign": nn.Softsign(),
    "Tanhshrink": nn.Tanhshrink(),
    "Hardshrink": nn.Hardshrink(),
    "Hardtanh": nn.Hardtanh(),
    "F.hardtanh": lambda x: F.hardtanh(x, -2.0, 2.0),
    "clamp on both sides": lambda x: x.clamp(-0.5, 0.5),
}
NONE = {
    "GELU": nn.GELU(),
    "GELU by tanh": nn.GELU(approximate="tanh"),
    "F.gelu": F.gelu,
    "SiLU": nn.SiLU(),
    "SiLU in place": nn.SiLU(inplace=True),
    "Sigmoid": nn.Sigmoid(),
    "torch.sigmoid": torch.sigmoid,
    "x.sigmoid()": lambda x: x.sigmoid(),
    "Softplus": nn.Softplus(),
    "ELU": nn.ELU(),
    "SELU": nn.SELU(),
    "CELU": nn.CELU(),
    "Hardswish": nn.Hardswish(),
    "Hardsigmoid": nn.Hardsigmoid(),
    "Mish": nn.Mish(),
    "ReLU6": nn.ReLU6(),
    "F.relu6": F.relu6,
    "LogSigmoid": nn.LogSigmoid(),
    "Threshold above zero": nn.Threshold(0.5, 0.0),
    "exp": torch.exp,
    "x + 1": lambda x: x + 1,
    "1 - x": lambda x: 1 - x,
    "relu after tanh": lambda x: torch.relu(torch.tanh(x)),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "clamp at one": lambda x: x.clamp(min=1.0),
    "x ** 2 + x": lambda x: x**2 + x,
    "x ** 2 + 1 + x": lambda x: x**2 + 1 + x,
    "exp(x) and its modulus": lambda x: x.abs() + torch.exp(x),
    "relu squared": lambda x: torch.relu(x) ** 2,
}
LINEAR = {
    "Identity": nn.Identity(),
    "Dropout": nn.Dropout(),
    "F.dropout": lambda x: F.dropout(x, 0.5, False),
    "x": lambda x: x,
    "-x": lambda x: -x,
    "2 x": lambda x: 2 * x,
    "x / 3": lambda x: x / 3,
    "x - 0": lambda x: x - 0.0,
    "copies": lambda x: x.contiguous().clone().detach().float().to(torch.float32),
}
ANY = {"AlphaDropout": nn.AlphaDropout(), "x * x / x": lambda x: x * x / x}
ACTIVATIONS = [
    pytest.param(act, kind, id=name)
    for kind, acts in (
        ("positive", POSITIVE),
        ("nonzero", ABSOLUTE),
        ("even", EVEN),
        ("sign", SIGN),
        ("none", NONE),
        ("positive", ANY),
        ("linear", LINEAR),
    )
    for name, act in acts.items()
]


@pytest.mark.slow
@pytest.mark.parametrize(("act", "kind"), ACTIVATIONS)
@pytest.mark.sampled(12)
def test_activations(act: Act, kind: str) -> None:
    module = net(lambda m, x: m.b(m.act(m.a(x))), a=linear(5, 4), act=lambda: act, b=linear(4, 2))
    traced = checked_trace(module, rows(5))
    table = "a 4 sym {0} | a: -> a@0+4 | b{1} a@0+4{2}"
    if kind == "even":
        table = (
            table.format("sign", ".weight 1 -1 in", "")
            .replace("| a:", "| a:2 4 like(a) none | a:")
            .replace("in a@", "in a:2@")
        )
    else:
        kinds = (".weight 1 -1 in", " absolute") if kind == "nonzero" else (":", " ->")
        table = table.format(kind, *kinds)
    assert text(traced.symmetry) == lines(table)
    assert len(traced.notes) == (kind in ("none", "even"))


def test_dropout_of_every_kind_is_nothing() -> None:
    for kind, example, layer in (
        (nn.Dropout1d, torch.randn(2, 1, 6), nn.Conv1d),
        (nn.Dropout2d, images(), nn.Conv2d),
        (nn.Dropout3d, torch.randn(2, 1, 4, 4, 4), nn.Conv3d),
    ):
        module = nn.Sequential(layer(1, 3, 2), kind(), nn.FeatureAlphaDropout(), nn.ReLU(), layer(3, 2, 1))
        assert checked_trace(module, example).symmetry["0"].scale == "positive"


def _stream(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = F.relu(m.a(x))
    h = F.relu(h + m.b2(F.relu(m.b1(h))))
    h += m.d(h)
    return m.c(torch.sub(h, m.d(h), alpha=2))


def _squeeze_and_excitation(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = F.relu(m.a(x))
    gate = torch.sigmoid(m.e2(F.relu(m.e1(F.adaptive_avg_pool2d(h, 1)))))
    return m.c((h * gate).mean((2, 3)))


CASES = {
    "slopes move with their channels": Case(
        lambda m, x: F.prelu(m.b(m.act(m.a(x))), m.slopes).mean((2, 3)),
        {"a": conv(1, 4, 3), "act": part(nn.PReLU, 4), "b": conv(4, 3, 1), "slopes": parameter(3)},
        images(),
        "a 4 sym positive | a: -> a@0+4 | act.weight 0 0 gain a@0+4 | b: a@0+4 ->",
    ),
    "signs end at even functions": Case(
        lambda m, x: m.b(torch.cos(m.a(x))),
        {"a": linear(4, 3), "b": linear(3, 2)},
        rows(4),
        "a 3 sym sign | a:2 3 like(a) none | a: -> a@0+3 | b: a:2@0+3 ->",
        notes=("Group 'a:2' is not scaled*",),
    ),
    "relu and tanh on one value leave no scale": Case(
        lambda m, x: m.b(torch.cat([torch.relu(m.a(x)), torch.tanh(m.a(x))], 1)),
        {"a": linear(5, 4), "b": linear(8, 2)},
        rows(5),
        "a 4 sym none | ...",
        notes=("*'relu' (test_elementwise.py line*positive factors alone, and 'tanh'*",),
    ),
    "a residual sum ties channels and scales": Case(
        _stream,
        {
            "a": linear(5, 4),
            "b1": linear(4, 3),
            "b2": linear(3, 4, bias=False),
            "d": linear(4, 4, bias=False),
            "c": linear(4, 2),
        },
        rows(5),
        """
        a 4 sym positive
        b1 3 sym positive
        a: -> a@0+4
        b1: a@0+4 -> b1@0+3
        b2: b1@0+3 -> a@0+4, no bias
        d: a@0+4 -> a@0+4, no bias
        c: a@0+4 ->
        """,
    ),
    "what joins the input stays in place": Case(
        lambda m, x: m.c(F.relu(m.a(x) + x)),
        {"a": linear(4, 4), "c": linear(4, 2)},
        rows(4),
        "a 4 fixed none | a: -> a@0+4 | c: a@0+4 ->",
        notes=(
            "Group 'a' stays in place: 'add' (test_elementwise.py line*",
            "Group 'a' is not scaled: 'add' (*",
            "...",
        ),
    ),
    "what joins one number of the input is not scaled": Case(
        lambda m, x: m.c(F.relu(m.a(x) + x[:, :1])),
        {"a": linear(5, 4), "c": linear(4, 2)},
        rows(5),
        "a 4 sym none | ...",
    ),
    "outputs that are read stay in place": Case(
        lambda m, x: m.a(x) + m.c(F.relu(m.b(m.a(x)))),
        {"a": linear(5, 4), "b": linear(4, 3), "c": linear(3, 4)},
        rows(5),
        "a 4 fixed none | b 3 sym positive | ...",
        notes=("Group 'a' stays in place: the module gives them as outputs.", "..."),
    ),
    "a mask over space is free and one that depends on the input too": Case(
        lambda m, x: m.c((F.relu(m.a(x)) * m.mask * torch.sigmoid(x[:, :, 1:-1, 1:-1])).mean((2, 3))),
        {"a": conv(1, 4, 3), "c": linear(4, 2), "mask": lambda: torch.rand(4, 4)},
        images(),
        "a 4 sym positive | ...",
    ),
    "gates leave the scale to what they gate": Case(
        _squeeze_and_excitation,
        {"a": conv(1, 4, 3), "e1": conv(4, 3, 1), "e2": conv(3, 4, 1), "c": linear(4, 2)},
        images(),
        """
        a 4 sym positive
        e1 3 sym positive
        e2 4 like(a) none
        a: -> a@0+4
        e1: a@0+4 -> e1@0+3
        e2: e1@0+3 -> e2@0+4
        c: a@0+4 ->
        """,
        notes=("*'sigmoid'*",),
    ),
    "a gate of one channel": Case(
        lambda m, x: m.c((F.relu(m.a(x)) * torch.sigmoid(m.g(x))).mean((2, 3))),
        {"a": conv(1, 4, 3), "g": conv(1, 1, 3), "c": linear(4, 2)},
        images(),
        "a 4 sym positive | g 1 sym none | ...",
    ),
    "products of values that are scaled apart have the scales of both": Case(
        lambda m, x: m.c(F.relu(m.a(x)) * F.relu(m.b(x))),
        {"a": linear(5, 4), "b": linear(5, 4), "c": linear(4, 2)},
        rows(5),
        """
        a 4 sym positive
        b 4 like(a) positive
        a: -> a@0+4
        b: -> b@0+4
        c.weight 1 -1 in a@0+4 gates b@0+4
        """,
        notes=(),
    ),
    "a gain after something without a scale brings its own": Case(
        lambda m, x: m.c(F.relu(torch.sigmoid(m.a(x)) * m.gain + m.bias)),
        {"a": linear(5, 4), "gain": parameter(4), "bias": parameter(1, 4), "c": linear(4, 2)},
        rows(5),
        """
        a 4 sym none
        gain 4 like(a) positive
        gain 0 +1 gain gain@0+4
        bias 1 +1 bias gain@0+4
        a: -> a@0+4
        c: gain@0+4 ->
        """,
    ),
    "a parameter that makes channels of one number": Case(
        lambda m, x: m.c(F.relu(x[:, :1] * m.gain)),
        {"gain": parameter(4), "c": linear(4, 2)},
        rows(5),
        "gain 4 sym positive | gain 0 +1 gain gain@0+4 | c: gain@0+4 ->",
    ),
    "several outputs": Case(
        lambda m, x: (m.b(F.relu(m.a(x))), {"more": [m.c(F.relu(m.a(x)))]}["more"][0]),
        {"a": linear(5, 4), "b": linear(4, 2), "c": linear(4, 3)},
        rows(5),
        "a 4 sym positive | ...",
    ),
    "a bias over channels and space": Case(
        lambda m, x: m.c(F.relu(m.a(x) + m.bias).mean((2, 3))),
        {"a": conv(1, 4, 3), "bias": parameter(4, 4, 4), "c": linear(4, 2)},
        images(),
        "a 4 sym positive | bias 0 +1 bias a@0+4 | ...",
    ),
}
UNIFORM = torch.full((4,), 2.0), torch.tensor(3.0), torch.tensor([[-1.0]])
CASES |= {
    f"constants that are the same for all channels scale freely {number}": Case(
        lambda m, x: m.c(F.relu(m.a(x)) * m.constant / 2),
        {"a": linear(5, 4), "c": linear(4, 2), "constant": constant.clone},
        rows(5),
        "a 4 sym positive | ...",
        notes=(),
    )
    for number, constant in enumerate(UNIFORM)
}
MASKED = {
    "product": (lambda m, x: m.c(F.relu(m.a(x)) * m.constant), "positive"),
    "quotient": (lambda m, x: m.c(F.relu(m.a(x)) / (1 + m.constant)), "positive"),
    "sum": (lambda m, x: m.c(F.relu(m.a(x)) + m.constant), "none"),
    "range": (lambda m, x: m.c(F.relu(m.a(x)) * torch.arange(1.0, 5.0)), "positive"),
}
CASES |= {
    f"constants that differ between channels fix them, {name}": Case(
        forward,
        {"a": linear(5, 4), "c": linear(4, 2), "constant": torch.tensor([1.0, 0.0, 1.0, 1.0]).clone},
        rows(5),
        f"a 4 fixed {kind} | ...",
        notes=("*meets constants that are not the same for all channels*", "..."),
    )
    for name, (forward, kind) in MASKED.items()
}
GAINED = {
    "h * gain": lambda m, x: m.c(F.relu(m.a(x) * m.gain)),
    "gain * h": lambda m, x: m.c(F.relu(m.gain * m.a(x))),
    "h / gain": lambda m, x: m.c(F.relu(m.a(x) / m.gain)),
    "h.mul(gain)": lambda m, x: m.c(F.relu(m.a(x).mul(m.gain))),
}
CASES |= {
    f"a gain of scaled values is permuted alone, {name}": Case(
        forward,
        {"a": linear(5, 4), "gain": parameter(4), "c": linear(4, 2)},
        rows(5),
        "a 4 sym positive | gain 0 0 gain a@0+4 | a: -> a@0+4 | c: a@0+4 ->",
        notes=("'gain' is permuted and not scaled: *", "..."),
    )
    for name, forward in GAINED.items()
}
SINGLE = {
    "product": (lambda m, x: m.c(F.relu(m.a(x) * m.one)), "positive"),
    "product with its exponential": (lambda m, x: m.c(F.relu(m.a(x) * m.one.exp())), "positive"),
    "sum": (lambda m, x: m.c(F.relu(m.a(x) + m.one)), "none"),
    "maximum": (lambda m, x: m.c(torch.max(m.a(x), m.one)), "none"),
}
CASES |= {
    f"a parameter of one number of shape {shape}, {name}": Case(
        forward,
        {"a": linear(5, 4), "one": parameter(*shape), "c": linear(4, 2)},
        rows(5),
        f"a 4 sym {kind} | a: -> a@0+4 | c: a@0+4 ->",
    )
    for name, (forward, kind) in SINGLE.items()
    for shape in ((), (1,), (1, 1))
}
RESHAPED = (
    lambda m, x: m.a(x) + m.bias.view(1, -1, 1, 1),
    lambda m, x: m.a(x) + m.bias.reshape(4, 1, 1),
    lambda m, x: m.a(x) + m.bias[None, :, None, None],
    lambda m, x: m.a(x) + m.bias.unsqueeze(-1).unsqueeze(-1),
    lambda m, x: m.a(x) + m.bias.clone().float()[:, None, None].contiguous(),
    lambda m, x: m.a(x) + m.bias.expand(1, 6, 6, 4).permute(0, 3, 1, 2)[:, :, :4, :4],
)
CASES |= {
    f"a parameter is reshaped before use {number}": Case(
        lambda m, x, biased=biased: m.c(F.relu(biased(m, x)).mean((2, 3))),
        {"a": conv(1, 4, 3, bias=False), "bias": parameter(4), "c": linear(4, 2)},
        images(),
        "a 4 sym positive | bias 0 +1 bias a@0+4 | a: -> a@0+4, no bias | c: a@0+4 ->",
    )
    for number, biased in enumerate(RESHAPED)
}
CASES |= {
    f"a learned threshold is a bias of positive scale, {larger.__name__}": Case(
        lambda m, x, larger=larger: m.c(larger(m.a(x), m.tau)),
        {"a": linear(5, 4), "tau": parameter(4), "c": linear(4, 2)},
        rows(5),
        "a 4 sym positive | tau 0 +1 bias a@0+4 | a: -> a@0+4 | c: a@0+4 ->",
    )
    for larger in (torch.max, torch.maximum)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(6)
def test_tables(name: str) -> None:
    check(CASES[name])

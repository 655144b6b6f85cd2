"""Which scales pass through which activation, however it is spelt."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.symmetry.tracing.helpers import held, images, lines, net, parameter, rows, text

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
    "abs": torch.abs,
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "max with zeros": lambda x: torch.max(x, x.new_zeros(1)),
    "root of squares": lambda x: torch.sqrt(x * x),
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
    "cos": torch.cos,
    "x + 1": lambda x: x + 1,
    "1 - x": lambda x: 1 - x,
    "relu after tanh": lambda x: torch.relu(torch.tanh(x)),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "clamp at one": lambda x: x.clamp(min=1.0),
    "x ** 2": lambda x: x**2,
}
ANY = {
    "Identity": nn.Identity(),
    "Dropout": nn.Dropout(),
    "AlphaDropout": nn.AlphaDropout(),
    "F.dropout": lambda x: F.dropout(x, 0.5, False),
    "x": lambda x: x,
    "-x": lambda x: -x,
    "2 x": lambda x: 2 * x,
    "x / 3": lambda x: x / 3,
    "x - 0": lambda x: x - 0.0,
    "copies": lambda x: x.contiguous().clone().detach().float().to(torch.float32),
    "x * x / x": lambda x: x * x / x,
}
CASES = [
    pytest.param(act, kind, id=name)
    for kind, acts in (("positive", POSITIVE), ("sign", SIGN), ("none", NONE), ("positive", ANY))
    for name, act in acts.items()
]


@pytest.mark.parametrize(("act", "kind"), CASES)
def test_activations(act: Act, kind: str) -> None:
    module = net(lambda m, x: m.b(m.act(m.a(x))), a=lambda: nn.Linear(5, 4), act=lambda: act, b=lambda: nn.Linear(4, 2))
    traced = held(module, rows(5))
    assert text(traced.symmetry) == lines(f"""
        a 4 sym {kind}
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        b.weight 1 -1 in a@0+4
    """)
    assert len(traced.notes) == (kind == "none")


def test_relu_and_tanh_on_one_value_leave_no_scale() -> None:
    module = net(
        lambda m, x: m.b(torch.cat([torch.relu(m.a(x)), torch.tanh(m.a(x))], 1)),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(8, 2),
    )
    traced = held(module, rows(5))
    assert traced.symmetry["a"].scale == "none"
    (note,) = traced.notes
    assert "'relu' (test_pointwise.py line" in note and "positive factors alone, and 'tanh'" in note


def test_slopes_move_with_their_channels() -> None:
    module = net(
        lambda m, x: F.prelu(m.b(m.act(m.a(x))), m.slopes).mean((2, 3)),
        a=lambda: nn.Conv2d(1, 4, 3),
        act=lambda: nn.PReLU(4),
        b=lambda: nn.Conv2d(4, 3, 1),
        slopes=parameter(3),
    )
    traced = held(module, images())
    assert text(traced.symmetry) == lines("""
        a 4 sym positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        act.weight 0 0 gain a@0+4
        b.weight 1 -1 in a@0+4
    """)


def test_dropout_of_every_kind_is_nothing() -> None:
    for kind, example, conv in (
        (nn.Dropout1d, torch.randn(2, 1, 6), nn.Conv1d),
        (nn.Dropout2d, images(), nn.Conv2d),
        (nn.Dropout3d, torch.randn(2, 1, 4, 4, 4), nn.Conv3d),
    ):
        module = nn.Sequential(conv(1, 3, 2), kind(), nn.FeatureAlphaDropout(), nn.ReLU(), conv(3, 2, 1))
        assert held(module, example).symmetry["0"].scale == "positive"

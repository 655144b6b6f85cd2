"""Linear layers and convolutions: what they read and write, in groups or not, shared or tied."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.symmetry import trace
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


def _products(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = F.relu(F.linear(x, m.w, m.b))
    h = F.relu(h @ m.v)
    h = torch.relu(torch.matmul(h, m.u.t()) + m.d)
    return torch.mm(h, m.o.transpose(0, 1))


def _recurrent(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(x.shape[0], 4)
    for step in range(3):
        h = torch.tanh(m.hidden(h) + m.input(x[:, step]))
    return m.out(h)


CASES = {
    "linear layers": Case(
        lambda m, x: m.c(F.relu(m.b(torch.tanh(m.a(x))))),
        {"a": linear(5, 4), "b": linear(4, 3, bias=False), "c": linear(3, 2)},
        rows(5),
        "a 4 sym sign | b 3 sym positive | a: -> a@0+4 | b: a@0+4 -> b@0+3, no bias | c: b@0+3 ->",
        notes=(),
    ),
    "a grouped convolution moves its blocks on both sides": Case(
        lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x)))).mean((2, 3))),
        {"a": conv(1, 4, 3), "b": conv(4, 6, 3, groups=2), "c": linear(6, 2)},
        images(),
        """
        a 4 wreath(b,2,2) positive
        b 6 wreath(b,2,3) positive
        a: -> a@0+4
        b/2: a@0+4 -> b@0+6
        c: b@0+6 ->
        """,
    ),
    "functions with parameters and products with them": Case(
        _products,
        {
            "w": parameter(4, 5),
            "b": parameter(4),
            "v": parameter(4, 3),
            "u": parameter(2, 3),
            "d": parameter(2),
            "o": parameter(7, 2),
        },
        rows(5),
        """
        w 4 sym positive
        v 3 sym positive
        u 2 sym positive
        w 0 +1 out w@0+4
        b 0 +1 bias w@0+4
        v 0 -1 in w@0+4
        v 1 +1 out v@0+3
        u 0 +1 out u@0+2
        u 1 -1 in v@0+3
        d 0 +1 bias u@0+2
        o 1 -1 in u@0+2
        """,
    ),
    "a convolution as a function": Case(
        lambda m, x: F.conv2d(F.relu(F.conv2d(x, m.w, m.b, padding=1)), m.v, groups=2).mean((2, 3)),
        {"w": parameter(4, 1, 3, 3), "b": parameter(4), "v": parameter(2, 2, 1, 1)},
        images(),
        """
        w 2 sym positive
        w:2 2 sym positive
        w 0 +1 out w@0+2 w:2@2+2
        b 0 +1 bias w@0+2 w:2@2+2
        v 1/2 -1 in w@0+2 w:2@2+2
        """,
    ),
    "a module that is called twice ties what it reads to what it writes": Case(
        lambda m, x: m.c(F.relu(m.b(F.relu(m.b(F.relu(m.a(x))))))),
        {"a": linear(5, 4), "b": linear(4, 4), "c": linear(4, 2)},
        rows(5),
        "a 4 sym positive | a: -> a@0+4 | b: a@0+4 -> a@0+4 | c: a@0+4 ->",
    ),
    "a recurrent network by hand": Case(
        _recurrent,
        {"hidden": linear(4, 4), "input": linear(5, 4), "out": linear(4, 2)},
        torch.randn(2, 3, 5),
        "hidden 4 sym sign | hidden: hidden@0+4 -> hidden@0+4 | input: -> hidden@0+4 | out: hidden@0+4 ->",
    ),
    "layers on sequences and on axes beside the channels": Case(
        lambda m, x: m.c((m.a(x) + m.b(F.relu(m.a(x)).transpose(1, 2)).transpose(1, 2)).mean(1)),
        {"a": linear(5, 4), "b": linear(3, 3, bias=False), "c": linear(4, 2)},
        torch.randn(2, 3, 5),
        "a 4 sym positive | a: -> a@0+4 | c: a@0+4 ->",
        notes=("'b.weight' stays in place: 'linear' (b, *", "..."),
    ),
    "an autoencoder with tied weights keeps signs alone": Case(
        lambda m, x: F.linear(torch.tanh(m.a(x)), m.a.weight.t(), m.b),
        {"a": linear(5, 3), "b": parameter(5)},
        rows(5),
        "a 3 sym sign | a: -> a@0+3",
    ),
    "an autoencoder with tied weights and ReLU has no scale": Case(
        lambda m, x: F.relu(m.a(x)) @ m.a.weight,
        {"a": linear(5, 3)},
        rows(5),
        "a 3 sym none | ...",
        notes=("*keeps positive factors alone, and 'matmul'*", "..."),
    ),
    "a single channel": Case(
        lambda m, x: m.b(F.relu(m.a(x)).flatten(1)),
        {"a": conv(1, 1, 3), "b": linear(16, 2)},
        images(),
        "a 1 sym positive | a: -> a@0+1 | b: a@0+1*16 ->",
    ),
}
CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d), (nn.Conv2d, nn.ConvTranspose2d), (nn.Conv3d, nn.ConvTranspose3d)
CASES |= {
    f"convolutions in {dim} dimensions": Case(
        lambda m, x, axes=tuple(range(2, 2 + dim)): m.c(F.relu(m.b(F.relu(m.a(x)))).mean(axes)),
        {
            "a": part(kind, 1, 3, 2, padding_mode="circular", padding=1),
            "b": part(transposed, 3, 4, 2, stride=2, output_padding=1),
            "c": linear(4, 2),
        },
        torch.randn(2, 1, *[4] * dim),
        """
        a 3 sym positive
        b 4 sym positive
        a: -> a@0+3
        b.weight 0 -1 in a@0+3
        b.weight 1 +1 out b@0+4
        b.bias 0 +1 bias b@0+4
        c: b@0+4 ->
        """,
    )
    for dim, (kind, transposed) in enumerate(CONVOLUTIONS, 1)
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


class Tied(nn.Module):
    """Two layers with one weight, under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.c.weight = self.b.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.c(F.relu(self.b(F.relu(self.a(x)))))))


def test_tied_tensors_are_one_tensor_with_aliases() -> None:
    traced = checked_trace(Tied(), rows(4))
    assert traced.architecture["b.weight"].aliases == ("c.weight",)
    assert text(traced.symmetry) == lines(
        "a 4 sym positive | a: -> a@0+4 | b: a@0+4 -> a@0+4 | c.bias 0 +1 bias a@0+4 | out: a@0+4 ->"
    )


def test_a_single_example_is_traced_as_several() -> None:
    module = net(lambda m, x: m.b(F.relu(m.a(x))), a=linear(5, 4), b=linear(4, 2))
    assert trace(module, torch.randn(5)).symmetry == checked_trace(module, rows(5)).symmetry


def test_a_number_of_examples_that_the_module_insists_on() -> None:
    module = net(lambda m, x: m.b(F.relu(m.a(x.reshape(7, 5))).reshape(7, 4)), a=linear(5, 4), b=linear(4, 2))
    traced = trace(module, rows(5, 7))
    assert text(traced.symmetry).splitlines()[0] == "a 4 sym positive" and traced.worst < 1e-9


class Scaled(nn.Linear):
    """A layer of a class of its own, with another forward function."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class Renamed(nn.BatchNorm1d):
    """A BatchNorm of a class of its own."""


def test_classes_that_inherit_from_layers() -> None:
    module = nn.Sequential(Scaled(5, 4), Renamed(4), nn.ReLU(), nn.Linear(4, 2))
    assert text(checked_trace(module, rows(5)).symmetry) == lines("""
        0 4 sym nonzero
        1 4 like(0) positive
        0: -> 0@0+4
        1.weight 0 +1 gain 1@0+4 signs 0@0+4
        1.bias 0 +1 shift 1@0+4
        1.running_mean 0 +1 mean 0@0+4
        1.running_var 0 +2 variance 0@0+4 eps=1e-05
        3: 1@0+4 ->
    """)


def test_the_module_stays_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    example = rows(5)
    copy = example.clone()
    traced = trace(module, example)
    assert module.training and module[1].training and module[0].weight.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(example, copy)
    assert traced.architecture.names == tuple(before)
    assert traced.architecture.input_shape == (5,)
    assert traced.architecture["0.weight"].dtype == "float32"

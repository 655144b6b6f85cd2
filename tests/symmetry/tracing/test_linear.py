"""Linear layers and convolutions: what they read and write, in groups or not, shared or tied."""

import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.symmetry import trace
from tests.symmetry.tracing.helpers import Net, held, images, lines, net, parameter, rows, text


def test_linear_layers() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.b(torch.tanh(m.a(x))))),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(4, 3, bias=False),
        c=lambda: nn.Linear(3, 2),
    )
    traced = held(module, rows(5))
    assert traced.notes == ()
    assert text(traced.symmetry) == lines("""
        a 4 sym sign
        b 3 sym positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        b.weight 0 +1 out b@0+3
        b.weight 1 -1 in a@0+4
        c.weight 1 -1 in b@0+3
    """)


def test_convolutions_of_every_dimension() -> None:
    for dim, kind, up in (
        (1, nn.Conv1d, nn.ConvTranspose1d),
        (2, nn.Conv2d, nn.ConvTranspose2d),
        (3, nn.Conv3d, nn.ConvTranspose3d),
    ):
        axes = tuple(range(2, 2 + dim))
        module = net(
            lambda m, x, axes=axes: m.c(F.relu(m.b(F.relu(m.a(x)))).mean(axes)),
            a=lambda kind=kind: kind(1, 3, 2, padding_mode="circular", padding=1),
            b=lambda up=up: up(3, 4, 2, stride=2, output_padding=1),
            c=lambda: nn.Linear(4, 2),
        )
        assert text(held(module, torch.randn(2, 1, *[4] * dim)).symmetry) == lines("""
            a 3 sym positive
            b 4 sym positive
            a.weight 0 +1 out a@0+3
            a.bias 0 +1 bias a@0+3
            b.weight 0 -1 in a@0+3
            b.weight 1 +1 out b@0+4
            b.bias 0 +1 bias b@0+4
            c.weight 1 -1 in b@0+4
        """)


def test_a_grouped_convolution_moves_its_blocks_on_both_sides() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x)))).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        b=lambda: nn.Conv2d(4, 6, 3, groups=2),
        c=lambda: nn.Linear(6, 2),
    )
    assert text(held(module, images()).symmetry) == lines("""
        a 4 wreath(b,2,2) positive
        b 6 wreath(b,2,3) positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        b.weight 0 +1 out b@0+6
        b.weight 1/2 -1 in a@0+4
        b.bias 0 +1 bias b@0+6
        c.weight 1 -1 in b@0+6
    """)


def test_functions_with_parameters_and_products_with_them() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(F.linear(x, m.w, m.b))
        h = F.relu(h @ m.v)
        h = torch.relu(torch.matmul(h, m.u.t()) + m.d)
        return torch.mm(h, m.o.transpose(0, 1))

    module = net(
        forward,
        w=parameter(4, 5),
        b=parameter(4),
        v=parameter(4, 3),
        u=parameter(2, 3),
        d=parameter(2),
        o=parameter(7, 2),
    )
    assert text(held(module, rows(5)).symmetry) == lines("""
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
    """)


def test_a_convolution_as_a_function() -> None:
    module = net(
        lambda m, x: F.conv2d(F.relu(F.conv2d(x, m.w, m.b, padding=1)), m.v, groups=2).mean((2, 3)),
        w=parameter(4, 1, 3, 3),
        b=parameter(4),
        v=parameter(2, 2, 1, 1),
    )
    assert text(held(module, images()).symmetry) == lines("""
        w 2 sym positive
        w:2 2 sym positive
        w 0 +1 out w@0+2 w:2@2+2
        b 0 +1 bias w@0+2 w:2@2+2
        v 1/2 -1 in w@0+2 w:2@2+2
    """)


def test_a_module_that_is_called_twice_ties_what_it_reads_to_what_it_writes() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.b(F.relu(m.b(F.relu(m.a(x))))))),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(4, 4),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 4 sym positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        b.weight 0 +1 out a@0+4
        b.weight 1 -1 in a@0+4
        b.bias 0 +1 bias a@0+4
        c.weight 1 -1 in a@0+4
    """)


def test_a_recurrent_network_by_hand() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 4)
        for step in range(3):
            h = torch.tanh(m.hidden(h) + m.input(x[:, step]))
        return m.out(h)

    module = net(
        forward,
        hidden=lambda: nn.Linear(4, 4),
        input=lambda: nn.Linear(5, 4),
        out=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, torch.randn(2, 3, 5)).symmetry) == lines("""
        hidden 4 sym sign
        hidden.weight 0 +1 out hidden@0+4
        hidden.weight 1 -1 in hidden@0+4
        hidden.bias 0 +1 bias hidden@0+4
        input.weight 0 +1 out hidden@0+4
        input.bias 0 +1 bias hidden@0+4
        out.weight 1 -1 in hidden@0+4
    """)


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
    traced = held(Tied(), rows(4))
    assert traced.architecture["b.weight"].aliases == ("c.weight",)
    assert text(traced.symmetry) == lines("""
        a 4 sym positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        b.weight 0 +1 out a@0+4
        b.weight 1 -1 in a@0+4
        b.bias 0 +1 bias a@0+4
        c.bias 0 +1 bias a@0+4
        out.weight 1 -1 in a@0+4
    """)


def test_an_autoencoder_with_tied_weights_keeps_signs_alone() -> None:
    module = net(
        lambda m, x: F.linear(torch.tanh(m.a(x)), m.a.weight.t(), m.b), a=lambda: nn.Linear(5, 3), b=parameter(5)
    )
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 3 sym sign
        a.weight 0 +1 out a@0+3
        a.bias 0 +1 bias a@0+3
    """)
    module = net(lambda m, x: F.relu(m.a(x)) @ m.a.weight, a=lambda: nn.Linear(5, 3))
    traced = held(module, rows(5))
    assert traced.symmetry["a"].scale == "none"
    assert "keeps positive factors alone, and 'matmul'" in traced.notes[0]


def test_layers_on_sequences_and_on_axes_beside_the_channels() -> None:
    module = net(
        lambda m, x: m.c((m.a(x) + m.b(F.relu(m.a(x)).transpose(1, 2)).transpose(1, 2)).mean(1)),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(3, 3, bias=False),
        c=lambda: nn.Linear(4, 2),
    )
    traced = held(module, torch.randn(2, 3, 5))
    assert text(traced.symmetry) == lines("""
        a 4 sym positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        c.weight 1 -1 in a@0+4
    """)
    assert traced.notes[0].startswith("'b.weight' stays in place: 'linear' (b, ")


def test_single_examples_and_single_channels() -> None:
    module = net(lambda m, x: m.b(F.relu(m.a(x))), a=lambda: nn.Linear(5, 4), b=lambda: nn.Linear(4, 2))
    assert trace(module, torch.randn(5)).symmetry == held(module, rows(5)).symmetry
    module = net(lambda m, x: m.b(F.relu(m.a(x)).flatten(1)), a=lambda: nn.Conv2d(1, 1, 3), b=lambda: nn.Linear(16, 2))
    assert text(held(module, images()).symmetry) == lines("""
        a 1 sym positive
        a.weight 0 +1 out a@0+1
        a.bias 0 +1 bias a@0+1
        b.weight 1 -1 in a@0+1*16
    """)


def test_a_number_of_examples_that_the_module_insists_on() -> None:
    module = net(
        lambda m, x: m.b(F.relu(m.a(x.reshape(7, 5))).reshape(7, 4)),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(4, 2),
    )
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
    assert text(held(module, rows(5)).symmetry) == lines("""
        0 4 sym positive
        1 4 like(0) positive
        0.weight 0 +1 out 0@0+4
        0.bias 0 +1 bias 0@0+4
        1.weight 0 +1 gain 1@0+4
        1.bias 0 +1 shift 1@0+4
        1.running_mean 0 +1 mean 0@0+4
        1.running_var 0 +2 variance 0@0+4 eps=1e-05
        3.weight 1 -1 in 1@0+4
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

"""What has no rule is refused, with the operation, the module and the line; and nothing is changed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import trace
from tests.symmetry.tracing.helpers import Net, conv, images, linear, net, parameter, rows

STEP = "Declare the table by hand, as a ckptzoo.schema.symmetry.Symmetry."


class Deep(nn.Module):
    """A module within a module, with an operation that there is no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"block": Cumulative()})
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner["block"](x))


class Cumulative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(self.a(x), 1)


def test_an_unknown_operation_is_named_with_its_module_and_line() -> None:
    line = Cumulative.forward.__code__.co_firstlineno + 1
    with pytest.raises(SymmetryError) as caught:
        trace(Deep(), rows(5))
    assert str(caught.value) == (
        f"symmetry.trace: 'cumsum' (inner.block, test_refused.py line {line}): expected an operation that there is a rule "
        f"for, got 'cumsum' in `return torch.cumsum(self.a(x), 1)`. {STEP}"
    )


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda m, x: m.c(m.a(x).cumsum(1)), "'cumsum'"),
        (lambda m, x: m.c(m.a(x).sort(1)[0]), "'sort'"),
        (lambda m, x: torch.einsum("bi,oi->bo", m.a(x), m.c.weight), "'einsum'"),
        (lambda m, x: torch.bmm(m.a(x)[None], m.c.weight.t()[None])[0], "'bmm'"),
        (lambda m, x: m.a(x) @ m.a(x)[0], "a product of matrices, or with a parameter of two axes on the right"),
        (lambda m, x: m.c(F.dropout(m.a(x))), "training=self.training"),
        (lambda m, x: m.c(torch.randn_like(x[:, :4]) * m.a(x)), "'randn_like'"),
        (lambda m, x: F.linear(m.a(x), m.c.weight * 2, m.c.bias), "parameters of several axes in layers"),
        (lambda m, x: m.c(m.a(x) ** x[:, :4]), "a number as the exponent"),
        (lambda m, x: m.c(m.a(x)[x[:, 0].argsort()]), "'argsort'"),
        (lambda m, x: m.c(m.a(x) * x.sum().item()), "'item'"),
        (lambda m, x: m.a(x)[:, :, None] * m.a(x)[:, None], "channels on two axes"),
    ],
)
def test_what_rules_do_not_cover(forward, message: str) -> None:
    module = net(forward, a=linear(5, 4), c=linear(4, 2))
    with pytest.raises(SymmetryError) as caught:
        trace(module, rows(5))
    assert message in str(caught.value) and "test_refused.py line" in str(caught.value)
    assert str(caught.value).startswith("symmetry.trace: ") and str(caught.value).endswith(STEP)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda m, x: m.c(m.a(x)[:, :2]), "mat1 and mat2 shapes cannot be multiplied"),
        (lambda m, x: m.c(m.a(x).grad), "not NoneType"),
        (lambda m, x: m.c(m.a(x.long())), "same dtype"),
    ],
)
def test_an_example_that_the_module_does_not_take(forward, message: str) -> None:
    module = net(forward, a=linear(5, 4), c=linear(4, 2))
    with pytest.raises(
        SymmetryError, match=r"test_refused.py line \d+: expected an example input that the module"
    ) as caught:
        trace(module, rows(5))
    assert message in str(caught.value) and "floats, or integers for an embedding" in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), "'_weight_norm'"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), "'mv'"),
    ],
)
def test_layers_without_a_rule(layer: nn.Module, name: str) -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.layer(x)

    module = net(forward, layer=lambda: layer)
    with pytest.raises(SymmetryError, match=rf"{name} \(layer.*, test_refused.py line \d+\): expected"):
        trace(module, rows(5))


def test_packed_sequences() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([2]), batch_first=True)
        return m.layer(packed)[0].data

    with pytest.raises(SymmetryError, match=r"test_refused.py line \d+: expected operations that do not depend"):
        trace(net(forward, layer=lambda: nn.LSTM(5, 4, batch_first=True)), rows(5))


def test_a_network_without_any_symmetry() -> None:
    traced = trace(nn.Linear(5, 4), rows(5))
    assert traced.symmetry.groups == () and traced.worst == 0


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.c(m.a(x) if x.sum() > 0 else -m.a(x)),
        lambda m, x: m.c(m.a(x) * int(x.mean())),
        lambda m, x: m.c(m.a(x) * (1 if torch.equal(x, -x) else 2)),
    ],
)
def test_control_flow_that_depends_on_the_numbers(forward) -> None:
    module = net(forward, a=linear(5, 4), c=linear(4, 2))
    with pytest.raises(
        SymmetryError, match=r"symmetry.trace: test_refused.py line \d+: expected operations that do not"
    ):
        trace(module, rows(5))


def test_changes_in_place_of_a_parameter() -> None:
    module = net(lambda m, x: m.c(m.b.relu_() + m.a(x)), a=linear(5, 4), b=parameter(4), c=linear(4, 2))
    with pytest.raises(SymmetryError, match="expected parameters that stay as they are, got 'relu_' in place"):
        trace(module, rows(5))


def test_a_change_in_place_is_seen_through_other_names_of_the_tensor() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x)
        same = m.drop(h)
        torch.tanh_(h)
        return m.c(same)

    module = net(forward, a=linear(5, 4), drop=nn.Dropout, c=linear(4, 2))
    assert trace(module, rows(5)).symmetry["a"].scale == "sign"


@pytest.mark.parametrize("example", [torch.empty(0, 5), [1.0], (), {"input": 1.0}, torch.ones(2, 5) * 1j])
def test_examples_that_are_no_tensors(example) -> None:
    with pytest.raises(SymmetryError, match="example input: expected a tensor of floats or integers"):
        trace(nn.Linear(5, 2), example)


def test_integers_where_there_is_no_embedding() -> None:
    with pytest.raises(
        SymmetryError, match=r"expected an example input that the module takes.*integers for an embedding"
    ):
        trace(nn.Linear(5, 2), torch.ones(2, 5, dtype=torch.int64))


def test_a_module_whose_numbers_are_random_fails_the_verification() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.c(m.a(x)) + torch.rand(2, dtype=torch.float64)

    module = net(forward, a=linear(5, 4), c=linear(4, 2))
    with pytest.raises(SymmetryError, match="rounding"):
        trace(module, rows(5))


def test_one_weight_in_convolutions_of_different_groups() -> None:
    module = net(
        lambda m, x: m.c(F.conv2d(m.a(x), m.w) + F.conv2d(m.a(x)[:, :2], m.w[:, :1], groups=2)),
        a=conv(1, 4, 1),
        w=parameter(4, 4, 1, 1),
        c=conv(4, 2, 1),
    )
    with pytest.raises(
        SymmetryError, match="a parameter as it is in the state dict, got entries of 'w' in other places"
    ):
        trace(module, images())

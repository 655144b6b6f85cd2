"""What has no rule is refused, with the operation, the module and the line; and nothing is changed."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import Fixed
from ckptzoo.symmetry import GroupElement, apply, count, trace
from ckptzoo.symmetry.matrices.tables import monomial
from tests.symmetry.tracing.helpers import Net, conv, images, linear, net, parameter, rows

STEP = "Declare the table by hand, as a ckptzoo.schema.symmetry.Symmetry."


class Deep(nn.Module):
    """A module within a module, with an operation that there is no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"block": Unfolding()})
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner["block"](x))


class Unfolding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.copysign(self.a(x), x[:, :1])


def test_an_unknown_operation_is_named_with_its_module_and_line() -> None:
    line = Unfolding.forward.__code__.co_firstlineno + 1
    with pytest.raises(SymmetryError) as caught:
        trace(Deep(), rows(5))
    assert str(caught.value) == (
        f"symmetry.trace: 'copysign' (inner.block, test_refused.py line {line}): expected an operation that there is a "
        f"rule for, got 'copysign' in `return torch.copysign(self.a(x), x[:, :1])`. {STEP}"
    )


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda m, x: m.c(m.a(x).as_strided((2, 4), (4, 1))), "'as_strided'"),
        (lambda m, x: m.c(m.a(x).sort(1)[0].masked_scatter(x[:, :4] > 0, m.a(x))), "'masked_scatter'"),
        (lambda m, x: torch.einsum("bi,ii->bi", m.a(x), m.a(x).T @ m.a(x)), "each letter once"),
        (lambda m, x: m.c(torch.linalg.svdvals(m.a(x))[:, None] * m.a(x)[:, :2].repeat(1, 2)), "of 'linalg_svdvals'"),
        (lambda m, x: torch.bmm(m.a(x)[None], m.c.weight.t()[None])[0], "'bmm'"),
        (lambda m, x: F.linear(m.a(x), m.c.weight.exp(), m.c.bias), "one that was computed from others"),
        (lambda m, x: m.c(m.a(x)[m.a(x)[:, 0].argsort()]), "an index that no symmetry changes"),
        (lambda m, x: m.c(m.a(x) * x.sum().item()), "'item'"),
    ],
)
def test_what_rules_do_not_cover(forward, message: str) -> None:
    module = net(forward, a=linear(5, 4), c=linear(4, 2))
    with pytest.raises(SymmetryError) as caught:
        trace(module, rows(5))
    assert message in str(caught.value) and "test_refused.py line" in str(caught.value)
    assert str(caught.value).startswith("symmetry.trace: ") and str(caught.value).endswith(STEP)


def test_dropout_that_stays_on() -> None:
    with pytest.raises(
        SymmetryError, match=r"test_refused.py line \d+\): expected dropout that is off .* training=self"
    ):
        trace(net(lambda m, x: m.c(F.dropout(m.a(x))), a=linear(5, 4), c=linear(4, 2)), rows(5))


def test_outputs_that_are_no_tensors() -> None:
    class Cache:
        """What torch.export does not know."""

    with pytest.raises(
        SymmetryError, match=r"expected outputs of tensors, got a Cache among them\. .*use_cache = False"
    ):
        trace(net(lambda m, x: (m.a(x), Cache()), a=linear(5, 4)), rows(5))


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


@pytest.mark.parametrize(
    ("random", "name"),
    [
        (lambda x: torch.rand(2, 4, dtype=torch.float64), "rand"),
        (torch.randn_like, "randn_like"),
        (lambda x: torch.empty_like(x).exponential_(), "exponential_"),
        (lambda x: torch.bernoulli(x.sigmoid()), "bernoulli"),
    ],
)
def test_random_numbers(random, name: str) -> None:
    module = net(lambda m, x: m.c(random(x[:, :4]) * m.a(x)), a=linear(5, 4), c=linear(4, 2))
    message = rf"'{name}' \(test_refused.py line \d+\): expected an operation whose result is the same each time"
    with pytest.raises(SymmetryError, match=message):
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


class Experts(nn.Module):
    """A mixture of experts, each of which sees the rows that are routed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(5, 3), nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(5, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(1)
        mixed = torch.zeros(len(x), 4, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            row, rank = torch.where(chosen == number)
            mixed[row] += weights[row, rank, None] * expert(x[row])
        return self.out(mixed)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            lambda gate: torch.nonzero(gate[:, 0] > 0)[:, 0],
            r"'nonzero' \(test_refused.py line \d+\): expected an operat",
        ),
        (
            lambda gate: gate[:, 0] > 0,
            r"'index' \(test_refused.py line \d+\): expected an index that no symmetry changes",
        ),
    ],
)
def test_rows_that_are_chosen_by_their_numbers(chosen, message: str) -> None:
    module = net(lambda m, x: m.c(m.a(x)[chosen(m.g(x))]), a=linear(5, 4), g=linear(5, 1), c=linear(4, 2))
    with pytest.raises(SymmetryError, match=message):
        trace(module, rows(5))


def test_dropout_of_a_recurrent_layer_that_is_left_on() -> None:
    class Always(nn.LSTM):
        """Stays in training mode."""

        def train(self, mode: bool = True) -> "Always":
            return super().train(True)

    module = net(lambda m, x: m.c(m.r(x[None])[0][0]), r=lambda: Always(5, 4, 2, dropout=0.5), c=linear(4, 2))
    with pytest.raises(SymmetryError, match=r"'lstm' \(r, test_refused.py line \d+\): expected no dropout in eval"):
        trace(module, rows(5))


def test_first_states_that_are_inputs_keep_the_units_in_place_by_name() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.c(m.r(x[None, :, :5], x[None, :, 5:])[0][0])

    traced = trace(net(forward, r=lambda: nn.GRU(5, 4), c=linear(4, 2)), rows(9))
    assert {group.scale for group in traced.symmetry.groups} == {"none"}
    assert all(isinstance(traced.symmetry.leader(group.id).perm, Fixed) for group in traced.symmetry.groups)
    pattern = (
        r"Group 'r.*' stays in place: 'gru' \(r, test_refused.py line \d+\) starts from a state that stays in place"
    )
    assert any(re.match(pattern, note) for note in traced.notes)


def test_attention_weights_that_are_returned_keep_the_heads_in_place_by_name() -> None:
    def forward(m: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (layer(x).unflatten(-1, (2, 2)).transpose(1, 2) for layer in (m.q, m.k, m.v))
        weights = (q @ k.mT).softmax(-1)
        return m.o((weights @ v).transpose(1, 2).flatten(2)), weights

    parts = {name: linear(4, 4) for name in "qkvo"}
    traced = trace(net(forward, **parts), torch.randn(2, 3, 4))
    assert count(monomial(traced.symmetry)).permutations == 2**4
    assert "The heads of 'matmul' stay in place: the module gives them as outputs." in traced.notes


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(number: float) -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    with torch.no_grad():
        module[1].weight[0, 1] = number
    with pytest.raises(SymmetryError) as caught:
        trace(module, rows(5))
    assert str(caught.value) == (
        "symmetry.trace: parameter '1.weight': expected finite numbers, got 1 of 8 that are NaN or infinite. "
        "Trace the module with other weights: the table depends on its operations alone."
    )


def test_running_statistics_that_are_no_numbers() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    module[1].running_var[2] = float("nan")
    with pytest.raises(SymmetryError, match=r"buffer '1\.running_var': expected finite numbers, got 1 of 4"):
        trace(module, images())


class Sparse(nn.Linear):
    """A layer with a sparse buffer, as layers on graphs have."""

    def __init__(self) -> None:
        super().__init__(5, 4)
        self.register_buffer("graph", torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LazyLinear(4), r"parameter '0\.weight': .* got one whose shape is open. Call"),
        (lambda: nn.Linear(5, 4, device="meta"), r"parameter '0\.weight': .* got one on the device 'meta'. Load"),
        (Sparse, r"buffer '0\.graph': expected a tensor of numbers, got one of layout torch\.sparse_coo. Keep"),
    ],
)
def test_weights_without_numbers(make, message: str) -> None:
    with pytest.raises(SymmetryError, match=rf"^symmetry\.trace: {message}"):
        trace(nn.Sequential(make(), nn.ReLU(), nn.Linear(4, 2)), rows(5))


def test_what_a_forward_pass_has_left_in_the_module_changes_nothing() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        m.seen["h"] = [m.a(x).relu()]
        return m.c(m.seen["h"][0])

    module = net(forward, a=linear(5, 4), c=linear(4, 2))
    module.seen = {}
    before = trace(module, rows(5)).symmetry
    module(rows(5))
    assert trace(module, rows(5)).symmetry == before and module.seen["h"][0].dtype == torch.float32


def test_a_mask_in_a_buffer_may_be_infinite() -> None:
    mask = torch.tensor([0.0, float("-inf")])
    module = net(lambda m, x: m.c((m.a(x) + m.mask).softmax(1)), a=linear(5, 2), c=linear(2, 2), mask=mask.clone)
    assert trace(module, rows(5)).worst < 1e-9


def test_an_example_that_is_no_numbers() -> None:
    example = rows(5)
    example[1, 2] = float("nan")
    with pytest.raises(SymmetryError, match=r"example input: expected a tensor .*, got NaN in one of shape \(2, 5\)"):
        trace(nn.Linear(5, 2), example)


def test_an_element_of_another_table() -> None:
    tables = [
        trace(net(lambda m, x: m.c(F.relu(m.a(x))), a=linear(5, size), c=linear(size, 2)), rows(5)).symmetry
        for size in (4, 3)
    ]
    others = trace(net(lambda m, x: m.c(F.relu(m.b(x))), b=linear(5, 4), c=linear(4, 2)), rows(5)).symmetry
    module = net(lambda m, x: m.c(F.relu(m.a(x))), a=linear(5, 4), c=linear(4, 2))
    stack = {name: value.numpy()[None] for name, value in module.state_dict().items()}
    for table, got in ((tables[1], "group 'a': perm"), (others, "perms: expected a, got b")):
        with pytest.raises(SymmetryError, match=got):
            apply(GroupElement.identity(table, 1), stack, tables[0])

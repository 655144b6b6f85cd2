"""The verification: wrong rules are caught, groups that fail alone are fixed, and rounding is no difference."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import trace
from ckptzoo.symmetry.tracing import verify
from ckptzoo.symmetry.tracing.example import Example
from ckptzoo.symmetry.tracing.rules import elementwise, registry
from ckptzoo.symmetry.tracing.rules.call import Call
from tests.symmetry.tracing.helpers import Net, checked_trace, conv, images, linear, lines, net, rows, text


def _mlp() -> Net:
    return net(lambda m, x: m.c(F.gelu(m.a(x))), a=linear(5, 4), c=linear(4, 2))


def test_a_wrong_rule_for_scales_is_caught_and_its_groups_are_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    right = trace(_mlp(), rows(5))
    monkeypatch.setitem(registry.RULES, "gelu", elementwise.positively_homogeneous)
    traced = trace(_mlp(), rows(5))
    assert traced.symmetry == right.symmetry and traced.worst < 1e-9
    (note,) = traced.notes
    assert note.startswith("Group 'a' is not scaled: its scales change the outputs by 0.")


def test_a_wrong_rule_for_permutations_is_caught_and_its_groups_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.d(F.relu(m.c(F.relu(m.a(x) + x))))

    module = net(forward, a=linear(4, 4), c=linear(4, 3), d=linear(3, 2))
    right = trace(module, rows(4))
    add = registry.RULES["add"]
    monkeypatch.setitem(registry.RULES, "add", lambda call: _without_fixing(call, add))
    traced = trace(module, rows(4))
    assert traced.symmetry == right.symmetry
    assert text(traced.symmetry).splitlines()[:2] == ["a 4 fixed none", "c 3 sym positive"]
    assert "Group 'a' stays in place: its permutations change the outputs by " in traced.notes[1]


def _without_fixing(call: Call, rule: elementwise.Rule):
    fix = call.constraints.fix
    call.constraints.fix = lambda *_: None  # type: ignore[method-assign]
    try:
        return rule(call)
    finally:
        call.constraints.fix = fix  # type: ignore[method-assign]


def test_a_difference_that_no_group_alone_makes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.RULES, "gelu", elementwise.positively_homogeneous)
    monkeypatch.setattr(verify, "_drop_failing", lambda verifier, symmetry: symmetry)
    with pytest.raises(SymmetryError, match=r"expected outputs that agree to 1e-09 .*, got a relative difference of 0"):
        trace(_mlp(), rows(5))


def _table(*groups: Group, **actions: tuple[int, str, str, int]) -> Symmetry:
    """Actions by ``tensor_axis = (exponent, role, group, inner)``."""
    sizes = {group.id: group.n for group in groups}
    made = [
        AxisAction(
            key[:-2].replace("_", "."),
            int(key[-1]),
            (Segment(group, 0, inner, sizes[group]),),
            exponent,
            role in ("in", "out"),
            role,
        )
        for key, (exponent, role, group, inner) in actions.items()
    ]
    return Symmetry(groups, tuple(made))


RIGHT = {"a_weight_0": (1, "out", "a", 1), "a_bias_0": (1, "bias", "a", 1), "c_weight_1": (-1, "in", "a", 1)}


@pytest.mark.parametrize(
    ("actions", "perm", "scale"),
    [
        (RIGHT, Sym(), "positive"),
        ({key: RIGHT[key] for key in ("a_weight_0", "c_weight_1")}, None, "none"),
        ({key: RIGHT[key] for key in ("a_weight_0", "a_bias_0")}, None, "none"),
        (RIGHT | {"c_weight_1": (0, "in", "a", 1)}, Sym(), "none"),
        (RIGHT | {"c_weight_1": (1, "in", "a", 1)}, Sym(), "none"),
        (RIGHT | {"a_bias_0": (0, "bias", "a", 1)}, Sym(), "none"),
    ],
)
@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.sampled(2)
def test_groups_are_fixed_where_a_table_is_wrong(
    actions: dict[str, tuple[int, str, str, int]], perm, scale: str, n: int
) -> None:
    module = net(lambda m, x: m.c(F.relu(m.a(x))), a=linear(5, n), c=linear(n, 2)).double().eval()
    arch = Architecture.of(module.state_dict(), name="net")
    table, worst, notes = verify.verify_table(
        module, arch, _table(Group("a", n, Sym(), "positive"), **actions), Example.of(rows(5))
    )
    assert worst < 1e-9
    assert isinstance(table["a"].perm, Sym) == (perm is not None) and table["a"].scale == scale
    assert len(notes) == (perm is None) + (scale == "none")


def test_groups_that_move_together_are_fixed_together() -> None:
    table = Symmetry(
        (
            Group("a", 4, Wreath("blocks", 2, 2), "none"),
            Group("b", 4, Wreath("blocks", 2, 2), "none"),
            Group("c", 4, Like("a"), "none"),
            Group("d", 3, Sym(), "none"),
        ),
        tuple(
            AxisAction(name, 0, (Segment(name, 0, 1, n),), 0, False, "bias")
            for name, n in (("a", 4), ("b", 4), ("c", 4), ("d", 3))
        ),
    )
    module = (
        net(
            lambda m, x: m.a + m.b + m.c + x[:, :1] + m.d.sum(),
            **{name: (lambda n=n: nn.Parameter(torch.rand(n))) for name, n in (("a", 4), ("b", 4), ("c", 4), ("d", 3))},
        )
        .double()
        .eval()
    )
    arch = Architecture.of(module.state_dict(), name="net")
    found, _, notes = verify.verify_table(module, arch, table, Example.of(rows(5)))
    assert [type(group.perm).__name__ for group in found.groups] == ["Fixed", "Fixed", "Fixed", "Sym"]
    assert len(notes) == 3


def test_elements_are_the_identity_on_no_group() -> None:
    module = _mlp().double().eval()
    arch = Architecture.of(module.state_dict(), name="net")
    groups = [Group("a", 2, Sym(), "sign"), Group("b", 2, Like("a"), "positive")]
    groups += [Group("c", 2, Wreath("o", 2, 1), "none"), Group("d", 4, Wreath("o", 2, 2), "none")]
    segments = {group.id: (Segment(group.id, 0, 1, group.n),) for group in groups}
    table = Symmetry(
        tuple(groups),
        (
            AxisAction("v.running_var", 0, segments["b"], 2, False, "variance", eps=1e-5),
            *(AxisAction(name, 0, segments[name], 0, False, "bias") for name in "acd"),
        ),
    )
    verifier = verify.Verifier(module, arch, table, Example.of(rows(5)))
    for _ in range(20):
        element = verifier.random_element(table)
        element.check(table)
        assert all((perm != np.arange(perm.shape[1])).any() for perm in element.perms.values())
        assert (element.scales["a"] == -1).any() and (element.scales["b"] >= 1).all()


def test_both_modes_are_verified_where_there_are_batch_norms() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).mean((2, 3))), a=conv(1, 4, 3), n=lambda: nn.BatchNorm2d(4), c=linear(4, 2)
    )
    traced = checked_trace(module, images())
    module = module.double().eval()
    arch = traced.architecture
    wrong = Symmetry(
        traced.symmetry.groups, tuple(action for action in traced.symmetry.actions if "running" not in action.tensor)
    )
    verifier = verify.Verifier(module, arch, wrong, Example.of(images()))
    assert verifier.max_difference(wrong, lambda: verifier.random_element(wrong)) > 1e-3
    assert not module.training and module.n.eps == 1e-5 and not module.n.training
    assert torch.equal(module.n.running_mean, torch.zeros(4, dtype=torch.float64))


def test_channels_without_any_variance_leave_the_training_mode_out() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = F.pad(F.relu(m.a(x)), (0, 0, 0, 0, 1, 1))
        return m.c(m.n(m.c1(m.b(h))).mean((2, 3)))

    module = net(
        forward,
        a=conv(1, 2, 3),
        b=conv(4, 4, 1, groups=4),
        c1=conv(4, 4, 1, groups=4),
        n=lambda: nn.BatchNorm2d(4),
        c=linear(4, 2),
    )
    traced = trace(module, images())
    assert traced.worst < 1e-9
    assert traced.notes[-1] == "Not verified in training mode: at eps = 0 rounding alone changes the outputs."


def test_one_example_that_cannot_be_normalised_leaves_the_training_mode_out() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.c(F.relu(m.n(m.a(x.reshape(1, 5)))))

    module = net(forward, a=linear(5, 4), n=lambda: nn.BatchNorm1d(4), c=linear(4, 2))
    traced = trace(module, rows(5, 1))
    assert text(traced.symmetry).splitlines()[:2] == ["a 4 sym nonzero", "n 4 like(a) positive"]
    assert traced.notes == (
        (
            "Not verified in training mode: Expected more than 1 value per channel when training, "
            "got input size torch.Size([1, 4])."
        ),
    )


def test_zero_weights_and_tiny_variances_are_no_obstacle() -> None:
    """Zeros everywhere in the last layer, and variances far below eps."""
    module = net(lambda m, x: m.c(F.relu(m.n(m.a(x)))), a=linear(5, 4), n=lambda: nn.BatchNorm1d(4), c=linear(4, 2))
    with torch.no_grad():
        module.n.running_var.fill_(1e-9)
        module.c.weight.zero_()
        module.c.bias.zero_()
    assert (
        text(trace(module, rows(5)).symmetry).splitlines()[:2]
        == lines("a 4 sym nonzero\nn 4 like(a) positive").splitlines()
    )


def test_half_precision_weights_and_casts() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.a(x.to(torch.bfloat16)).float()).bfloat16()), a=linear(5, 4), c=linear(4, 2)
    ).bfloat16()
    traced = trace(module, rows(5).bfloat16())
    assert traced.symmetry["a"].scale == "positive" and traced.worst < 1e-12
    assert traced.architecture["a.weight"].dtype == "bfloat16"

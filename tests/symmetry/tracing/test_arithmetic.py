"""Sums, products and quotients: of values, with parameters, with constants."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.symmetry.tracing.helpers import Net, held, images, lines, net, parameter, rows, text

AB = """
    a.weight 0 +1 out a@0+4
    a.bias 0 +1 bias a@0+4
"""
HEAD = "c.weight 1 -1 in a@0+4"


def test_a_residual_sum_ties_channels_and_scales() -> None:
    def stream(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(m.a(x))
        h = F.relu(h + m.b2(F.relu(m.b1(h))))
        h += m.d(h)
        return m.c(torch.sub(h, m.d(h), alpha=2))

    module = net(
        stream,
        a=lambda: nn.Linear(5, 4),
        b1=lambda: nn.Linear(4, 3),
        b2=lambda: nn.Linear(3, 4, bias=False),
        d=lambda: nn.Linear(4, 4, bias=False),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, rows(5)).symmetry) == lines(f"""
        a 4 sym positive
        b1 3 sym positive
        {AB.strip()}
        b1.weight 0 +1 out b1@0+3
        b1.weight 1 -1 in a@0+4
        b1.bias 0 +1 bias b1@0+3
        b2.weight 0 +1 out a@0+4
        b2.weight 1 -1 in b1@0+3
        d.weight 0 +1 out a@0+4
        d.weight 1 -1 in a@0+4
        {HEAD}
    """)


def test_what_joins_the_input_stays_in_place() -> None:
    module = net(lambda m, x: m.c(F.relu(m.a(x) + x)), a=lambda: nn.Linear(4, 4), c=lambda: nn.Linear(4, 2))
    traced = held(module, rows(4))
    assert text(traced.symmetry) == lines(f"""
        a 4 fixed none
        {AB.strip()}
        {HEAD}
    """)
    assert traced.notes[0].startswith("Group 'a' stays in place: 'add' (test_arithmetic.py line")
    assert traced.notes[1].startswith("Group 'a' is not scaled: 'add' (")


def test_what_joins_one_number_of_the_input_is_not_scaled() -> None:
    module = net(lambda m, x: m.c(F.relu(m.a(x) + x[:, :1])), a=lambda: nn.Linear(5, 4), c=lambda: nn.Linear(4, 2))
    assert text(held(module, rows(5)).symmetry).splitlines()[0] == "a 4 sym none"


def test_outputs_that_are_read_stay_in_place() -> None:
    module = net(
        lambda m, x: m.a(x) + m.c(F.relu(m.b(m.a(x)))),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(4, 3),
        c=lambda: nn.Linear(3, 4),
    )
    traced = held(module, rows(5))
    assert text(traced.symmetry).splitlines()[:2] == ["a 4 fixed none", "b 3 sym positive"]
    assert traced.notes[0] == "Group 'a' stays in place: the module gives them as outputs."


def test_several_outputs() -> None:
    module = net(
        lambda m, x: (m.b(F.relu(m.a(x))), {"more": [m.c(F.relu(m.a(x)))]}["more"][0]),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(4, 2),
        c=lambda: nn.Linear(4, 3),
    )
    assert held(module, rows(5)).symmetry["a"].scale == "positive"


def test_constants_that_are_the_same_for_all_channels_scale_freely() -> None:
    for constant in (torch.full((4,), 2.0), torch.tensor(3.0), torch.tensor([[-1.0]])):
        module = net(
            lambda m, x: m.c(F.relu(m.a(x)) * m.mask / 2),
            a=lambda: nn.Linear(5, 4),
            c=lambda: nn.Linear(4, 2),
            mask=lambda constant=constant: constant,
        )
        traced = held(module, rows(5))
        assert text(traced.symmetry).splitlines()[0] == "a 4 sym positive" and traced.notes == ()


def test_constants_that_differ_between_channels_hold_them() -> None:
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
    for forward, kind in (
        (lambda m, x: m.c(F.relu(m.a(x)) * m.mask), "positive"),
        (lambda m, x: m.c(F.relu(m.a(x)) / (1 + m.mask)), "positive"),
        (lambda m, x: m.c(F.relu(m.a(x)) + m.mask), "none"),
        (lambda m, x: m.c(F.relu(m.a(x)) * torch.arange(1.0, 5.0)), "positive"),
    ):
        module = net(forward, a=lambda: nn.Linear(5, 4), c=lambda: nn.Linear(4, 2), mask=lambda: mask)
        traced = held(module, rows(5))
        assert text(traced.symmetry).splitlines()[0] == f"a 4 fixed {kind}"
        assert "meets constants that are not the same for all channels" in traced.notes[0]


def test_a_mask_over_space_is_free_and_one_that_depends_on_the_input_too() -> None:
    module = net(
        lambda m, x: m.c((F.relu(m.a(x)) * m.mask * torch.sigmoid(x[:, :, 1:-1, 1:-1])).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        c=lambda: nn.Linear(4, 2),
        mask=lambda: torch.rand(4, 4),
    )
    assert text(held(module, images()).symmetry).splitlines()[0] == "a 4 sym positive"


def test_gates_leave_the_scale_to_what_they_gate() -> None:
    def squeeze_and_excitation(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(m.a(x))
        gate = torch.sigmoid(m.e2(F.relu(m.e1(F.adaptive_avg_pool2d(h, 1)))))
        return m.c((h * gate).mean((2, 3)))

    module = net(
        squeeze_and_excitation,
        a=lambda: nn.Conv2d(1, 4, 3),
        e1=lambda: nn.Conv2d(4, 3, 1),
        e2=lambda: nn.Conv2d(3, 4, 1),
        c=lambda: nn.Linear(4, 2),
    )
    traced = held(module, images())
    assert text(traced.symmetry) == lines(f"""
        a 4 sym positive
        e1 3 sym positive
        e2 4 like(a) none
        {AB.strip()}
        e1.weight 0 +1 out e1@0+3
        e1.weight 1 -1 in a@0+4
        e1.bias 0 +1 bias e1@0+3
        e2.weight 0 +1 out e2@0+4
        e2.weight 1 -1 in e1@0+3
        e2.bias 0 +1 bias e2@0+4
        {HEAD}
    """)
    assert len(traced.notes) == 1 and "'sigmoid'" in traced.notes[0]


def test_a_gate_of_one_channel() -> None:
    module = net(
        lambda m, x: m.c((F.relu(m.a(x)) * torch.sigmoid(m.g(x))).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        g=lambda: nn.Conv2d(1, 1, 3),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, images()).symmetry).splitlines()[:2] == ["a 4 sym positive", "g 1 sym none"]


def test_products_of_values_that_are_scaled_apart_are_not_scaled() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.a(x)) * F.relu(m.b(x))),
        a=lambda: nn.Linear(5, 4),
        b=lambda: nn.Linear(5, 4),
        c=lambda: nn.Linear(4, 2),
    )
    traced = held(module, rows(5))
    assert text(traced.symmetry) == lines(f"""
        a 4 sym none
        {AB.strip()}
        b.weight 0 +1 out a@0+4
        b.bias 0 +1 bias a@0+4
        {HEAD}
    """)
    assert "multiplies two values that are scaled apart" in traced.notes[0]


def test_a_gain_after_something_without_a_scale_brings_its_own() -> None:
    module = net(
        lambda m, x: m.c(F.relu(torch.sigmoid(m.a(x)) * m.gain + m.bias)),
        a=lambda: nn.Linear(5, 4),
        gain=parameter(4),
        bias=parameter(1, 4),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 4 sym none
        gain 4 like(a) positive
        gain 0 +1 gain gain@0+4
        bias 1 +1 bias gain@0+4
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        c.weight 1 -1 in gain@0+4
    """)


def test_a_gain_of_scaled_values_is_permuted_alone() -> None:
    for gained in (
        lambda m, h: h * m.gain,
        lambda m, h: m.gain * h,
        lambda m, h: h / m.gain,
        lambda m, h: h.mul(m.gain),
    ):
        module = net(
            lambda m, x, gained=gained: m.c(F.relu(gained(m, m.a(x)))),
            a=lambda: nn.Linear(5, 4),
            gain=parameter(4),
            c=lambda: nn.Linear(4, 2),
        )
        traced = held(module, rows(5))
        assert text(traced.symmetry) == lines(f"""
            a 4 sym positive
            gain 0 0 gain a@0+4
            {AB.strip()}
            {HEAD}
        """)
        assert traced.notes[0].startswith("'gain' is permuted and not scaled: ")


def test_parameters_of_one_number() -> None:
    for forward, kind in (
        (lambda m, x: m.c(F.relu(m.a(x) * m.one)), "positive"),
        (lambda m, x: m.c(F.relu(m.a(x) * m.one.exp())), "positive"),
        (lambda m, x: m.c(F.relu(m.a(x) + m.one)), "none"),
        (lambda m, x: m.c(torch.max(m.a(x), m.one)), "none"),
    ):
        for shape in ((), (1,), (1, 1)):
            module = net(forward, a=lambda: nn.Linear(5, 4), one=parameter(*shape), c=lambda: nn.Linear(4, 2))
            assert text(held(module, rows(5)).symmetry) == lines(f"""
                a 4 sym {kind}
                {AB.strip()}
                {HEAD}
            """)


def test_parameters_are_turned_and_reshaped_before_use() -> None:
    for turned in (
        lambda bias: bias.view(1, -1, 1, 1),
        lambda bias: bias.reshape(4, 1, 1),
        lambda bias: bias[None, :, None, None],
        lambda bias: bias.unsqueeze(-1).unsqueeze(-1),
        lambda bias: bias.clone().float()[:, None, None].contiguous(),
        lambda bias: bias.expand(1, 6, 6, 4).permute(0, 3, 1, 2)[:, :, :4, :4],
    ):
        module = net(
            lambda m, x, turned=turned: m.c(F.relu(m.a(x) + turned(m.bias)).mean((2, 3))),
            a=lambda: nn.Conv2d(1, 4, 3, bias=False),
            bias=parameter(4),
            c=lambda: nn.Linear(4, 2),
        )
        assert text(held(module, images()).symmetry) == lines(f"""
            a 4 sym positive
            bias 0 +1 bias a@0+4
            a.weight 0 +1 out a@0+4
            {HEAD}
        """)


def test_a_bias_over_channels_and_space() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.a(x) + m.bias).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        bias=parameter(4, 4, 4),
        c=lambda: nn.Linear(4, 2),
    )
    assert "bias 0 +1 bias a@0+4" in text(held(module, images()).symmetry).splitlines()


def test_a_parameter_that_makes_channels_of_one_number() -> None:
    module = net(lambda m, x: m.c(F.relu(x[:, :1] * m.gain)), gain=parameter(4), c=lambda: nn.Linear(4, 2))
    assert text(held(module, rows(5)).symmetry) == lines("""
        gain 4 sym positive
        gain 0 +1 gain gain@0+4
        c.weight 1 -1 in gain@0+4
    """)


def test_a_learned_threshold_is_a_bias_of_positive_scale() -> None:
    for larger in (torch.max, torch.maximum):
        module = net(
            lambda m, x, larger=larger: m.c(larger(m.a(x), m.tau)),
            a=lambda: nn.Linear(5, 4),
            tau=parameter(4),
            c=lambda: nn.Linear(4, 2),
        )
        assert text(held(module, rows(5)).symmetry) == lines(f"""
            a 4 sym positive
            tau 0 +1 bias a@0+4
            {AB.strip()}
            {HEAD}
        """)

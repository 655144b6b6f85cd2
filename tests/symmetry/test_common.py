"""What several tables share is a symmetry of every network, and the most that they share where they differ in scales."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, common, count, monomial, trace

Activation = Callable[[], nn.Module]
ACTIVATIONS: dict[str, Activation] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "leaky": nn.LeakyReLU,
    "linear": nn.Identity,
}


def perceptron(act: Activation) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), act(), nn.Linear(5, 6), act(), nn.Linear(6, 3))


def grouped(act: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), act(), nn.Conv2d(4, 6, 3, groups=2), act(), nn.Flatten(), nn.Linear(6 * 4, 3)
    )


def normalised(act: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        act(),
        nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5),
        act(),
        nn.Flatten(),
        nn.Linear(20, 3),
    )


class Residual(nn.Module):
    def __init__(self, act: Activation) -> None:
        super().__init__()
        self.one, self.two, self.three, self.act = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3), act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.act(self.one(x))
        return self.three(first + self.act(self.two(first)))


NETWORKS: dict[str, tuple[Callable[[Activation], nn.Module], tuple[int, ...]]] = {
    "grouped": (grouped, (2, 6, 6)), "perceptron": (perceptron, (4,)), "residual": (Residual, (4,)),
    "normalised": (normalised, (2, 6, 6)),
}  # fmt: skip


def moved_outputs(net: nn.Module, table: Symmetry, inputs: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of a network, and of three copies under random elements."""
    state = {name: value.detach() for name, value in net.state_dict().items()}
    element = GroupElement.random(table, 3, np.random.default_rng(0), spread=0.5)
    element.check(table)
    moved = apply(element, {name: torch.stack([value] * 3) for name, value in state.items()}, table)
    outputs = [functional_call(net, {name: moved[name][at] for name in state}, (inputs,)) for at in range(3)]
    return functional_call(net, state, (inputs,)).numpy(), torch.stack(outputs).numpy()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.sampled(2)
def test_elements_keep_the_function_of_every_network(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    nets = {key: make(act).double().eval() for key, act in ACTIVATIONS.items()}
    for net in nets.values():
        for key, value in net.state_dict().items():
            if key.endswith("running_var"):
                value.uniform_(0.5, 2)
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    tables = {key: trace(net, inputs).symmetry for key, net in nets.items()}
    with torch.no_grad():
        for several in (["relu", "leaky"], ["relu", "tanh"], ["gelu", "tanh"], ["linear", "tanh", "leaky"], list(nets)):
            table = common([tables[key] for key in several])
            for key in several:
                before, after = moved_outputs(nets[key], table, inputs)
                np.testing.assert_allclose(after, np.broadcast_to(before, after.shape), rtol=1e-9, atol=1e-9)
            # no permutation is lost: there are as many as in the network with the fewest
            assert count(table).permutations == min(count(monomial(tables[key])).permutations for key in several)
            assert common([table, *[tables[key] for key in several]]) == table
            turned = common([tables[key] for key in several[::-1]])
            assert count(turned) == count(table)


def test_scales_meet() -> None:
    relu, tanh = archs.symmetry("mlp-4-8-3"), archs.symmetry("mlp-tanh-4-8-3")
    assert common([relu]) is relu and common([relu, relu]) == relu
    (group,) = common([relu, tanh]).groups
    assert group == Group("fc1", 8, Sym(), "none")
    both = Symmetry(tuple(replace(item, scale="nonzero") for item in relu.groups), relu.actions)
    assert common([both, tanh]).groups[0].scale == "sign" and common([relu, both]).groups[0].scale == "positive"


def act(tensor: str, axis: int, *segments: tuple[str, int], exponent: int = 1, **more: object) -> AxisAction:
    made, offset = [], 0
    for group, n in segments:
        made.append(Segment(group, offset, 1, n))
        offset += n
    return AxisAction(tensor, axis, tuple(made), exponent, True, "out" if exponent == 1 else "in", **more)  # pyright: ignore


def table(groups: list[Group], actions: list[AxisAction]) -> Symmetry:
    return Symmetry(tuple(groups), tuple(actions))


def test_what_one_table_ties_is_tied() -> None:
    apart = table(
        [Group("a", 4, Sym(), "positive"), Group("b", 4, Sym(), "positive")],
        [act("w", 0, ("a", 4)), act("v", 0, ("b", 4))],
    )
    tied = table([Group("c", 4, Sym(), "positive")], [act("w", 0, ("c", 4)), act("v", 0, ("c", 4))])
    for tables in ([apart, tied], [tied, apart]):
        (group,) = common(tables).groups
        assert (group.n, group.scale) == (4, "positive")
    like = table(
        [Group("a", 4, Sym(), "positive"), Group("b", 4, Like("a"), "positive")],
        [act("w", 0, ("a", 4)), act("v", 0, ("b", 4))],
    )
    assert [group.perm for group in common([apart, like]).groups] == [Sym(), Like("a")]


def test_blocks_meet_and_what_is_fixed_stays() -> None:
    def of(*perms: object, scale: str = "none") -> Symmetry:
        groups = [Group(f"g{at}", 6, perm, scale) for at, perm in enumerate(perms)]  # pyright: ignore[reportArgumentType]
        return table(groups, [act(f"w{at}", 0, (f"g{at}", 6)) for at in range(len(perms))])

    blocks = Wreath("o", 3, 2)
    met = common([of(Sym(), Sym()), of(blocks, blocks)]).groups
    assert all(isinstance(group.perm, Wreath) for group in met) and met[0].perm == met[1].perm
    # blocks of other sizes, and blocks that share a permutation with what is fixed
    assert common([of(blocks), of(Wreath("p", 2, 3))]).groups[0].perm == Fixed()
    assert [g.perm for g in common([of(blocks, blocks), of(Fixed(), Sym())]).groups] == [Fixed(), Fixed()]
    assert [g.perm for g in common([of(blocks, Wreath("p", 3, 2)), of(Fixed(), Sym())]).groups] == [
        Fixed(),
        Wreath("p", 3, 2),
    ]


def test_an_axis_that_only_some_move_stays() -> None:
    two = table(
        [Group("a", 4, Sym(), "positive"), Group("b", 4, Sym(), "positive")],
        [act("w", 0, ("a", 4)), act("v", 0, ("b", 4))],
    )
    one = table([Group("a", 4, Sym(), "positive")], [act("w", 0, ("a", 4))])
    assert common([two, one]) == one
    with pytest.raises(SymmetryError, match="some that all tables share, got none"):
        common([one, table([Group("a", 4, Sym(), "positive")], [act("v", 0, ("a", 4))])])
    with pytest.raises(SymmetryError, match="one or more, got none"):
        common([])


def test_equal_runs_of_groups_of_other_sizes_are_other_channels() -> None:
    """Two runs of two channels: four of one group, one group of two twice, or two groups of two."""

    def halves(first: Group, *second: Group) -> Symmetry:
        segments = (Segment(first.id, 0, 1, 2), Segment((second or (first,))[0].id, 2, 1, 2))
        return table([first, *second], [AxisAction("w", 0, segments, 1, True, "out")])

    four = halves(Group("a", 4, Sym(), "positive"))
    twice, two = (
        halves(Group("b", 2, Sym(), "positive"), *others) for others in ([], [Group("c", 2, Sym(), "positive")])
    )
    for tables in ([four, twice], [twice, four], [four, two], [two, four]):
        assert {(group.perm, group.scale) for group in common(tables).groups} == {(Fixed(), "none")}
    assert common([twice, two]).groups == common([two, twice]).groups == (Group("b", 2, Sym(), "positive"),)


def test_signs_need_the_gain_that_takes_them_in_every_table() -> None:
    before, after = Group("a", 4, Sym(), "nonzero"), Group("b", 4, Like("a"), "positive")
    gain = AxisAction("gain", 0, (Segment("b", 0, 1, 4),), 1, True, "gain", signs=(Segment("a", 0, 1, 4),))
    signed = table([before, after], [act("w", 0, ("a", 4)), act("x", 0, ("b", 4)), gain])
    absent = table([before, after], [act("w", 0, ("a", 4)), act("x", 0, ("b", 4))])
    for tables in ([signed, absent], [absent, signed]):
        assert common(tables)["a"].scale == "positive"
    # one that ties the gain with what it normalises, and so has no signs
    tied = table([before], [act("w", 0, ("a", 4)), act("x", 0, ("a", 4)), act("gain", 0, ("a", 4), absolute=True)])
    for tables in ([signed, tied], [tied, signed]):
        assert [group.scale for group in common(tables).groups] == ["positive"]

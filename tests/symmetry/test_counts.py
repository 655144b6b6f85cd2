"""Counts of symmetries: known answers, closed forms, and what a table or an architecture can tell."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import SpecError, SymmetryError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import Counts, GroupElement, count, counts_by_group
from ckptzoo.symmetry.tables import table_of
from tests.support.effort import examples


def _log10_factorials(*sizes: int) -> float:
    return math.fsum(math.lgamma(n + 1) for n in sizes) / math.log(10)


def test_optunet() -> None:
    found = count("optunet")
    assert found == Counts(28_800, math.log10(28_800), 12, 12, 12, 0, 11)
    assert str(found).splitlines()[0].split() == ["permutations", "28,800"]


def test_resnet18() -> None:
    found = count("resnet18-10")
    assert round(found.log10_permutations, 2) == 5934.49
    assert (found.scaling_train, found.scaling_without_eps, found.scaling_eval) == (2_880, 7_680, 12_480)
    assert (found.signs, found.softmax) == (4_800, 513)
    sizes = [n for width in (64, 128, 256, 512) for n in [width] * 3]
    assert found.permutations == math.prod(map(math.factorial, sizes))
    assert found.log10_permutations == pytest.approx(_log10_factorials(*sizes), rel=1e-12)


def test_resnet20() -> None:
    inner = [16] * 3 + [32] * 3 + [64] * 3
    for name, streams, log10, scales in (
        ("resnet20-pad-10", [16, 16, 32], 475.594, (400, 1_088, 1_776)),
        ("resnet20-conv-10", [16, 32, 64], 551.377, (448, 1_232, 2_016)),
    ):
        found = count(name)
        assert round(found.log10_permutations, 3) == log10
        assert found.permutations == math.prod(map(math.factorial, streams + inner))
        assert (found.scaling_train, found.scaling_without_eps, found.scaling_eval) == scales
        assert found.softmax == 65
    assert round(count("resnet20-pad-100").log10_permutations, 3) == 475.594


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.booleans())
def test_perceptrons_in_closed_form(widths: list[int], odd: bool) -> None:
    found = count(("mlp-tanh-" if odd else "mlp-") + "-".join(map(str, widths)))
    hidden = widths[1:-1]
    assert found.permutations == math.prod(map(math.factorial, hidden))
    assert found.log10_permutations == pytest.approx(_log10_factorials(*hidden), rel=1e-12)
    scales = 0 if odd else sum(hidden)
    assert (found.scaling_train, found.scaling_without_eps, found.scaling_eval) == (scales,) * 3
    assert found.signs == (sum(hidden) if odd else 0)
    assert found.softmax == widths[-2] + 1


@pytest.mark.parametrize(
    "groups",
    [
        (("a", Sym(), 4),),
        (("a", Sym(), 3), ("b", Like("a"), 3), ("c", Sym(), 2), ("d", Like("a"), 3)),
        (("a", Wreath("o", 2, 1), 2), ("b", Wreath("o", 2, 2), 4)),
        (("a", Wreath("o", 2, 2), 4), ("b", Like("a"), 4), ("c", Wreath("o", 2, 1), 2)),
        (("a", Wreath("o", 2, 2), 4), ("b", Wreath("p", 2, 2), 4)),
        (("a", Wreath("o", 3, 1), 3), ("b", Wreath("o", 3, 1), 3)),
        (("a", Wreath("o", 2, 2), 4), ("b", Wreath("o", 2, 2, "fixed"), 4)),
        pytest.param((("a", Wreath("o", 3, 2, "fixed"), 6), ("b", Like("a"), 6)), marks=pytest.mark.exhaustive),
        (("a", Fixed(), 4), ("b", Sym(), 3), ("c", Like("a"), 4)),
    ],
)
@pytest.mark.sampled(2)
def test_the_count_is_that_of_the_elements_which_a_table_accepts(groups) -> None:
    table = Symmetry(
        tuple(Group(name, n, perm, "none") for name, perm, n in groups),
        tuple(AxisAction(name, 0, (Segment(name, 0, 1, n),), 0, False, "bias") for name, _, n in groups),
    )
    accepted = 0
    for perms in itertools.product(*(itertools.permutations(range(n)) for _, _, n in groups)):
        element = GroupElement({name: np.array([perm]) for (name, _, _), perm in zip(groups, perms, strict=True)}, {})
        try:
            element.check(table)
        except SymmetryError:
            continue
        accepted += 1
    assert count(table).permutations == accepted


def test_scales_of_every_kind() -> None:
    table = Symmetry(
        (
            Group("conv", 5, Sym(), "positive"),
            Group("norm", 5, Like("conv"), "none"),
            Group("plain", 3, Sym(), "none"),
            Group("bare", 4, Sym(), "positive"),
            Group("odd", 2, Sym(), "sign"),
        ),
        (
            AxisAction("conv.weight", 0, (Segment("conv", 0, 1, 5),), 1, True, "out"),
            AxisAction("norm.weight", 0, (Segment("norm", 0, 1, 5),), 1, True, "gain"),
            AxisAction("norm.running_var", 0, (Segment("conv", 0, 1, 5),), 2, False, "variance", eps=1e-5),
            AxisAction("plain.weight", 0, (Segment("plain", 0, 1, 3),), 1, True, "out"),
            AxisAction("bare.running_var", 0, (Segment("bare", 0, 1, 4),), 2, False, "variance", eps=1e-5),
            AxisAction("odd.weight", 0, (Segment("odd", 0, 1, 2),), 1, True, "out"),
        ),
    )
    found = count(table)
    assert (found.scaling_train, found.scaling_without_eps, found.scaling_eval) == (0, 9, 9 + 5)
    assert (found.signs, found.softmax) == (2, None)


def test_the_last_layer_of_a_table_and_of_an_architecture() -> None:
    arch, table = archs.architecture("mlp-5-4-3"), archs.symmetry("mlp-5-4-3")
    assert [count(item).softmax for item in ("mlp-5-4-3", arch, table)] == [5, 5, 5]
    tensors = tuple(tensor for tensor in arch.tensors if tensor.name != "fc2.bias")
    assert count(Architecture("no bias", tensors, "mlp-5-4-3")).softmax == 4
    wider = tuple(Tensor("fc2.weight", (3, 9)) if tensor.name == "fc2.weight" else tensor for tensor in arch.tensors)
    assert count(Architecture("reads inputs too", wider, "mlp-5-4-3")).softmax == 10
    assert count("mlp-5-3").softmax == 6
    assert count(Symmetry((), ())) == Counts(1, 0.0, 0, 0, 0, 0, None)
    flat = Symmetry(
        (Group("c", 3, Sym(), "positive"),),
        (
            AxisAction("conv.weight", 0, (Segment("c", 0, 1, 3),), 1, True, "out"),
            AxisAction("fc.weight", 1, (Segment("c", 0, 16, 3),), -1, True, "in"),
        ),
    )
    assert count(flat).softmax == 49


def test_counts_of_thousands_of_digits_can_be_shown() -> None:
    found = count("resnet18-100")
    assert "10^5934.49" in str(found)
    assert "12,480 in evaluation mode" in str(found)
    assert "scaling_train=2880" in repr(found)
    assert "unknown" in str(count(Symmetry((), ())))


def test_the_table_of_whatever_names_a_network() -> None:
    table = archs.symmetry("resnet8-pad-3")
    assert table_of(table) is table
    assert table_of("resnet8-pad-3") == table
    arch = archs.architecture("resnet8-pad-3")
    assert table_of(arch) == table
    without = tuple(tensor for tensor in arch.tensors if not tensor.name.endswith("num_batches_tracked"))
    assert table_of(Architecture("as published", without, "resnet8-pad-3")) == table


def test_a_network_without_a_table_is_refused_with_what_to_do() -> None:
    mine = ckptzoo.Architecture("mine", (Tensor("w", (2, 2)),))
    for odd, where in ((mine, "mine"), (Architecture("mine", mine.tensors, "mlp-0"), "mine"), ("mlp-0", "mlp-0")):
        for look_up in (table_of, count):
            with pytest.raises(SymmetryError, match=f"^{where}: symmetry table: .*optunet, mlp-.*Declare .* trace"):
                look_up(odd)
    with pytest.raises(SpecError, match=r"axis 0 of 'fc1\.weight'"):
        table_of(Architecture("mine", mine.tensors, "mlp-2-3-2"))


@pytest.mark.parametrize("name", ["optunet", "mlp-5-9-8-3", "mlp-tanh-7-6-2", "resnet18-10", "resnet20-pad-10"])
def test_groups_add_up_to_the_whole_network(name: str) -> None:
    found = count(name)
    assert [(group.id, group.n) for group in found.groups] == [(g.id, g.n) for g in archs.symmetry(name).groups]
    assert math.fsum(group.log10_permutations for group in found.groups) == pytest.approx(found.log10_permutations)
    for field in ("scaling_train", "scaling_without_eps", "scaling_eval", "signs"):
        assert sum(getattr(group, field) for group in found.groups) == getattr(found, field), field


def test_a_block_permutation_counts_in_the_first_group_that_names_it() -> None:
    first, second = counts_by_group(archs.symmetry("optunet"))
    assert first.shown == ("conv1", "2", "wreath", "2", "2", "2", "0", "0")
    assert second.shown == ("conv2", "10", "wreath", "14,400", "10", "10", "0", "0")


def test_groups_of_any_size_are_counted_at_once() -> None:
    n = 2**20
    action = AxisAction("a.weight", 0, (Segment("a", 0, 1, n),), 1, True, "out")
    (group,) = counts_by_group(Symmetry((Group("a", n, Sym(), "positive"),), (action,)))
    assert group.shown == ("a", "1,048,576", "sym", "10^5857669.21", "1,048,576", "1,048,576", "0", "0")

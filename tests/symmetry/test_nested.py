"""The two tables that one with groups inside channels is made of: their elements do what the table's own do."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.learning.forms.graph import GraphForm
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, common, count, monomial, unnested
from ckptzoo.symmetry.nested import from_blocks, from_unnested, is_nested, moving_within, within_blocks
from tests.laws.test_grouped_queries import ARCHITECTURE, SHAPES, outputs, table
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.symmetry_tables import Network, networks
from tests.symmetry.matrices.every_kind import grouped_queries, weights_of

K = 2
seeds = st.integers(0, 2**32 - 1)
law = settings(max_examples=examples(100, FEW_EXAMPLES), deadline=None)


@law
@given(networks(nested=True), seeds)
def test_elements_of_both_tables_do_the_same_as_the_tables_own(net: Network, seed: int) -> None:
    weights = net.weights(K, seed)
    plain = unnested(net.table)
    assert not is_nested(plain)
    if not is_nested(net.table):
        assert plain is net.table and within_blocks(plain) is None
        return
    rng = np.random.default_rng(seed)
    made = GroupElement.random(plain, K, rng, spread=0.0)
    same_action(weights, made, plain, from_unnested(made, net.table), net.table)
    inside = within_blocks(net.table)
    if inside is None:
        return
    made = GroupElement.random(inside, K, rng)
    same_action(weights, made, inside, from_blocks(made, net.table), net.table)


def same_action(
    weights: dict[str, np.ndarray], one: GroupElement, first: Symmetry, two: GroupElement, second: Symmetry
) -> None:
    two.check(second)
    expected = apply(two, weights, second)
    for name, array in apply(one, weights, first).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@law
@given(networks(nested=True))
def test_every_permutation_is_one_of_each(net: Network) -> None:
    inside = 1
    for name in moving_within(net.table):
        perm = net.table[name].perm
        assert isinstance(perm, Wreath)
        inside *= math.factorial(perm.k) ** perm.g
    assert count(net.table).permutations == count(unnested(net.table)).permutations * inside


@pytest.mark.parametrize("rotary", [False, True])
def test_an_attention_keeps_its_outputs(rotary: bool) -> None:
    plain = unnested(table(rotary))
    assert [group.id for group in plain.groups] == ["qk", "vo"]
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((K, *shape)) for name, shape in SHAPES.items()}
    moved = apply(GroupElement.random(plain, K, rng), weights, plain)
    np.testing.assert_allclose(outputs(moved, rotary), outputs(weights, rotary), rtol=1e-9, atol=1e-12)
    # of S_2 wr S_2, the heads of queries, the exchange of blocks is left
    assert count(plain).permutations == count(table(rotary)).permutations // 4


def test_matrices_act_on_every_place_in_a_block() -> None:
    full = grouped_queries()
    plain = unnested(full)
    assert [group.id for group in plain.groups] == ["x", "qk", "vo"]
    rng = np.random.default_rng(0)
    weights = weights_of(full, K, rng)
    made = GroupElement.random(plain, K, rng, spread=0.3)
    lifted = from_unnested(made, full)
    lifted.check(full)
    expected = apply(lifted, weights, full)
    for name, array in apply(made, weights, plain).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-12, atol=1e-12)
    permutations = (count(monomial(item)).permutations for item in (full, plain))
    assert next(permutations) == 4 * next(permutations)


def test_what_takes_no_groups_inside_channels_takes_the_table() -> None:
    plain = unnested(table(False))
    weights = {name: np.random.default_rng(0).standard_normal((K, *shape)) for name, shape in SHAPES.items()}
    ordered = canonicalize(weights, plain, gauge="first-weight").weights
    np.testing.assert_allclose(outputs(ordered, False), outputs(weights, False), rtol=1e-9, atol=1e-12)
    both = common([table(False), table(True)])
    assert both == common([plain, unnested(table(True))]) and both["vo"].scale == "nonzero"
    form = GraphForm(ARCHITECTURE, plain)
    for name, array in form.decode(form.encode(weights)).items():
        np.testing.assert_array_equal(array, weights[name])


def test_a_group_that_is_elsewhere_too_moves_by_blocks_there() -> None:
    """On an axis of its own, by what is like it, and along the blocks of a convolution in groups."""
    groups = (
        Group("kv", 6, Wreath("heads", 2, 3), "none"),
        Group("q", 4, Wreath("heads", 2, 2), "none"),
        Group("gates", 4, Like("q"), "positive"),
    )
    actions = (
        AxisAction("W_q", 0, (Segment("q", 0, 3, 4, within="kv"),), 1, True, "out"),
        AxisAction("W_k", 0, (Segment("kv", 0, 1, 6),), -1, True, "out"),
        AxisAction("slopes", 0, (Segment("q", 0, 1, 4),), 1, False, "bias"),
        AxisAction("gates", 0, (Segment("gates", 0, 1, 4),), 1, True, "out"),
        AxisAction("mixed", 0, (Segment("kv", 0, 1, 6),), 1, True, "out"),
        AxisAction("mixed", 1, (Segment("q", 0, 1, 4),), -1, True, "in", blocks=2),
        AxisAction("read", 1, (Segment("gates", 0, 1, 4),), -1, True, "in", blocks=2),
        AxisAction("read", 0, (Segment("kv", 0, 1, 6),), 1, True, "out"),
    )
    full = Symmetry(groups, actions)
    plain, inside = unnested(full), within_blocks(full)
    assert inside is not None
    assert [plain[name].perm for name in ("q", "gates")] == [Wreath("heads", 2, 2, "fixed")] * 2
    assert [group.id for group in inside.groups] == ["q.0", "q.1", "gates.0", "gates.1"]
    shapes = {"W_q": (12, 5), "W_k": (6,), "slopes": (4,), "gates": (4, 2), "mixed": (6, 2), "read": (6, 2)}
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((K, *shape)) for name, shape in shapes.items()}
    for part, lifted in ((plain, from_unnested), (inside, from_blocks)):
        made = GroupElement.random(part, K, rng)
        same_action(weights, made, part, lifted(made, full), full)


def test_channels_that_are_inside_and_have_others_inside_are_refused() -> None:
    groups = tuple(Group(name, 2 * k, Wreath("o", 2, k), "none") for name, k in (("a", 2), ("b", 2), ("c", 2)))
    actions = (
        AxisAction("first", 0, (Segment("a", 0, 2, 4, within="b"),), 1, True, "out"),
        AxisAction("second", 0, (Segment("b", 0, 2, 4, within="c"),), 1, True, "out"),
    )
    both = Symmetry(groups, actions)
    with pytest.raises(
        SymmetryError, match=r"group 'b': expected channels that have others inside, or.*unnested\(table"
    ):
        within_blocks(both)
    assert [group.perm.inner for group in unnested(both).groups if isinstance(group.perm, Wreath)] == ["fixed", "free"]

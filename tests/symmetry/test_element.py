"""Group elements: legality by brute force, refusals, and their stored form."""

from itertools import permutations

import numpy as np
import pytest

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply

TABLE = archs.symmetry("optunet")
MIXED = Symmetry(
    (
        Group("a", 4, Sym(), "sign"),
        Group("b", 3, Fixed(), "positive"),
        Group("c", 6, Wreath("o", 3, 2), "none"),
    ),
    (
        AxisAction("x", 0, (Segment("a", 0, 1, 4), Segment("b", 4, 1, 3)), 1, True, "out"),
        AxisAction("x", 1, (Segment("c", 0, 1, 6),), -1, True, "in"),
    ),
)

NORMALISED = Symmetry(
    (
        Group("conv", 4, Wreath("o", 2, 2), "positive"),
        Group("norm", 4, Like("conv"), "sign"),
        Group("plain", 4, Like("conv"), "none"),
    ),
    tuple(AxisAction(name, 0, (Segment(name, 0, 1, 4),), 1, True, "out") for name in ("conv", "norm", "plain")),
)


def _legal(table: Symmetry, perms: dict[str, np.ndarray]) -> bool:
    K = len(next(iter(perms.values())))
    scales = {group.id: np.ones((K, group.n)) for group in table.groups if group.scale != "none"}
    try:
        GroupElement(perms, scales).check(table)
    except SymmetryError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.exhaustive
def test_optunet_has_28800_permutations_and_12_scales() -> None:
    rows = np.array(list(permutations(range(10))), np.int8)
    blocks = rows // 5
    together = (blocks[:, :5].max(1) == blocks[:, :5].min(1)) & (blocks[:, 5:].max(1) == blocks[:, 5:].min(1))
    count = 0
    for inputs in permutations(range(2)):
        allowed = rows[together & (blocks[:, 0] == inputs[0])]
        refused = rows[~(together & (blocks[:, 0] == inputs[0]))]
        same = np.tile(np.array(inputs), (len(allowed), 1))
        assert _legal(TABLE, {"conv1": same, "conv2": allowed})
        count += len(allowed)
        for row in refused[:: len(refused) // 50]:
            assert not _legal(TABLE, {"conv1": same[:1], "conv2": row[None]})
    assert count == 28_800
    assert sum(group.n for group in TABLE.groups if group.scale == "positive") == 12


def test_the_legal_permutations_of_a_grouped_convolution_are_those_that_keep_its_function() -> None:
    """All (4!)^2 pairs on a pointwise convolution in two groups: 2 (2!)^2 (2!)^2 = 32 of them."""
    table = Symmetry(
        (Group("i", 4, Wreath("o", 2, 2), "positive"), Group("h", 4, Wreath("o", 2, 2), "positive")),
        (
            AxisAction("first", 0, (Segment("i", 0, 1, 4),), 1, True, "out"),
            AxisAction("middle", 0, (Segment("h", 0, 1, 4),), 1, True, "out"),
            AxisAction("middle", 1, (Segment("i", 0, 1, 4),), -1, True, "in", blocks=2),
            AxisAction("last", 1, (Segment("h", 0, 1, 4),), -1, True, "in"),
        ),
    )
    rng = np.random.default_rng(0)
    first, middle, last = rng.standard_normal((4, 3)), rng.standard_normal((4, 2)), rng.standard_normal((2, 4))

    def dense(rows: np.ndarray) -> np.ndarray:
        full = np.zeros((4, 4))
        full[:2, :2], full[2:, 2:] = rows[:2], rows[2:]
        return full

    x = rng.standard_normal((3, 5))

    def outputs(first: np.ndarray, middle: np.ndarray, last: np.ndarray) -> np.ndarray:
        return last @ np.maximum(dense(middle) @ np.maximum(first @ x, 0), 0)

    expected = outputs(first, middle, last)
    keep = 0
    for p in permutations(range(4)):
        for q in permutations(range(4)):
            moved = dense(middle)[np.ix_(q, p)]
            in_blocks = not moved[:2, 2:].any() and not moved[2:, :2].any()
            assert _legal(table, {"i": np.array([p]), "h": np.array([q])}) == in_blocks
            if not in_blocks:
                continue
            keep += 1
            element = GroupElement(
                {"i": np.array([p]), "h": np.array([q])}, {"i": np.ones((1, 4)), "h": np.ones((1, 4))}
            )
            stack = {"first": first[None], "middle": middle[None], "last": last[None]}
            made = apply(element, stack, table)
            np.testing.assert_allclose(outputs(*(made[name][0] for name in made)), expected, rtol=1e-12)
    assert keep == 32


def test_random_elements_are_legal_and_reach_every_kind() -> None:
    element = GroupElement.random(MIXED, 200, np.random.default_rng(1))
    element.check(MIXED)
    assert set(np.unique(element.scales["a"])) == {-1.0, 1.0}
    assert (element.perms["b"] == np.arange(3)).all()
    assert len(np.unique(element.perms["c"], axis=0)) == 48, "3! (2!)^3"


def test_random_elements_come_from_the_generator_alone() -> None:
    one, two = (GroupElement.random(TABLE, 3, np.random.default_rng(7)).to_tensors() for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)


def test_an_element_survives_its_stored_form() -> None:
    element = GroupElement.random(MIXED, 5, np.random.default_rng(2))
    tensors = element.to_tensors()
    assert sorted(tensors) == ["a.perm", "a.scale", "b.perm", "b.scale", "c.perm"]
    again = GroupElement.from_tensors(tensors)
    again.check(MIXED)
    weights = {"x": np.random.default_rng(3).standard_normal((5, 7, 6))}
    np.testing.assert_array_equal(apply(again, weights, MIXED)["x"], apply(element, weights, MIXED)["x"])
    with pytest.raises(SymmetryError, match=r"ends in \.perm, \.scale or \.matrix"):
        GroupElement.from_tensors({"a.shift": tensors["a.scale"]})


def test_groups_that_are_like_another_take_its_permutation_and_their_own_scales() -> None:
    g, h = (GroupElement.random(NORMALISED, 6, np.random.default_rng(seed)) for seed in (0, 1))
    for made in (g, g.compose(h), g.inverse(), g[2:4], GroupElement.from_tensors(g.inverse().to_tensors())):
        made.check(NORMALISED)
        for name in ("norm", "plain"):
            np.testing.assert_array_equal(made.perms[name], made.perms["conv"])
    assert set(g.scales) == {"conv", "norm"} and not np.allclose(np.abs(g.scales["conv"]), 1)
    product = g.compose(g.inverse())
    np.testing.assert_array_equal(product.perms["norm"], np.tile(np.arange(4), (6, 1)))
    np.testing.assert_array_equal(product.scales["norm"], np.ones((6, 4)))


def test_copies_of_a_permutation_do_not_share_their_memory() -> None:
    """So that what is changed in place in one group stays there, and is found by the check."""
    g = GroupElement.random(NORMALISED, 2, np.random.default_rng(0))
    g.perms["norm"][1] = np.roll(g.perms["norm"][1], 2)
    with pytest.raises(
        SymmetryError, match=r"group 'norm': perm: expected that of 'conv', which it is like, got another"
    ):
        g.check(NORMALISED)


@pytest.mark.parametrize(
    ("perm", "says"),
    [
        (np.array([[2, 3, 0, 1]]), "'norm': perm: expected that of 'conv', which it is like, got another one"),
        (np.array([[0, 0, 0, 0]]), "'norm': perm: expected each of 0 to 3 once in every row"),
        (np.array([[0, 1, 2]]), r"'norm': perm: expected \(1, 4\) integers, got \(1, 3\)"),
    ],
)
def test_a_group_that_is_not_like_its_leader_is_refused_with_the_reason(perm: np.ndarray, says: str) -> None:
    identity = GroupElement.identity(NORMALISED, 1)
    with pytest.raises(SymmetryError, match=says):
        GroupElement({**identity.perms, "norm": perm}, identity.scales).check(NORMALISED)


def test_blocks_move_and_channels_keep_their_order_where_these_are_fixed_within() -> None:
    table = Symmetry(
        (Group("a", 6, Wreath("o", 3, 2, "fixed"), "sign"), Group("b", 3, Wreath("o", 3, 1), "none")),
        tuple(AxisAction(name, 0, (Segment(name, 0, 1, n),), 1, True, "out") for name, n in (("a", 6), ("b", 3))),
    )
    g, h = (GroupElement.random(table, 100, np.random.default_rng(seed)) for seed in (0, 1))
    for made in (g, g.compose(h), g.inverse(), GroupElement.identity(table, 2)):
        made.check(table)
        np.testing.assert_array_equal(made.perms["a"], made.perms["b"].repeat(2, axis=1) * 2 + [0, 1] * 3)
    assert len(np.unique(g.perms["a"], axis=0)) == 6
    g.perms["a"][1] = g.perms["a"][1].reshape(3, 2)[:, ::-1].ravel()
    with pytest.raises(SymmetryError, match="channels that keep their order within their block"):
        g.check(table)


def _spoilt(what: str, group: str, change) -> GroupElement:
    element = GroupElement.identity(MIXED, 2)
    parts = {"perms": dict(element.perms), "scales": dict(element.scales)}
    parts[what][group] = change(parts[what][group].copy())
    return GroupElement(**parts)


def _set(value: float):
    def change(array: np.ndarray) -> np.ndarray:
        array[1, 0] = value
        return array

    return change


@pytest.mark.parametrize(
    ("element", "says"),
    [
        (lambda: GroupElement({"a": np.zeros((1, 4), int)}, {}), "perms: expected a, b, c, got a"),
        (lambda: GroupElement(GroupElement.identity(MIXED, 1).perms, {}), "scales: expected a, b, got none"),
        (lambda: _spoilt("perms", "a", _set(2)), "each of 0 to 3 once"),
        (lambda: _spoilt("perms", "a", lambda perm: perm.astype(float)), "integers"),
        (lambda: _spoilt("perms", "a", lambda perm: perm[:1]), "expected"),
        (lambda: _spoilt("perms", "b", lambda perm: perm[:, ::-1]), "the group is Fixed"),
        (lambda: _spoilt("perms", "c", lambda perm: np.roll(perm, 1, axis=1)), "stay together"),
        (lambda: _spoilt("scales", "a", _set(2.0)), "\\+1 or -1"),
        (lambda: _spoilt("scales", "b", _set(-1.0)), "positive finite"),
        (lambda: _spoilt("scales", "b", _set(np.nan)), "positive finite"),
        (lambda: _spoilt("scales", "b", lambda scale: scale.astype(np.float32)), "float64"),
    ],
)
def test_what_is_no_element_is_refused_with_the_reason(element, says: str) -> None:
    with pytest.raises(SymmetryError, match=says):
        element().check(MIXED)


def test_groups_that_share_their_blocks_cannot_move_them_apart() -> None:
    element = GroupElement.identity(TABLE, 1)
    apart = GroupElement({**element.perms, "conv1": np.array([[1, 0]])}, element.scales)
    with pytest.raises(SymmetryError, match="block permutation 'conv2'"):
        apart.check(TABLE)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({}, "leading axes"),
        ({"x": np.zeros((2, 7, 6)), "y": np.zeros(3)}, "one number of checkpoints"),
        ({"y": np.zeros((2, 7, 6))}, "tensor 'x': expected it"),
        ({"x": np.zeros((2, 6, 6))}, "at least 7 positions on axis 0"),
        ({"x": np.zeros((2, 7))}, "at least 6 positions on axis 1"),
        ({"x": np.zeros((3, 7, 6))}, "number of elements: expected 3"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_the_reason(weights, says: str) -> None:
    with pytest.raises(SymmetryError, match=says):
        apply(GroupElement.identity(MIXED, 2), weights, MIXED)

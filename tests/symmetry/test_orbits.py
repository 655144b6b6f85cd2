"""Orbits of positions: against random group elements, and in closed form."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ckptzoo import archs
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply
from ckptzoo.symmetry.counts import orbits
from tests.support.effort import examples
from tests.support.symmetry_tables import Network, networks

Shapes = dict[str, tuple[int, ...]]


def seen(table: Symmetry, shapes: Shapes, K: int) -> dict[str, np.ndarray]:
    """Labels of what K random elements move onto each other in each tensor, numbered by first position."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    numbers = {name: np.tile(np.arange(size), (K, 1)).reshape(K, *shapes[name]) for name, size in sizes.items()}
    moved = apply(GroupElement.random(table, K, np.random.default_rng(K)), numbers, table)
    made: dict[str, np.ndarray] = {}
    for name, size in sizes.items():
        ends = np.tile(np.arange(size), K), moved[name].ravel()
        _, labels = connected_components(coo_array((np.ones(K * size, bool), ends), (size, size)), directed=False)
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        made[name] = np.argsort(np.argsort(first))[inverse].reshape(shapes[name])
    return made


def agree(table: Symmetry, shapes: Shapes, K: int) -> None:
    for name, expected in seen(table, shapes, K).items():
        found = orbits(table, name, shapes[name])
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, expected, name)


@pytest.mark.slow
@given(net=networks(nested=True))
@settings(max_examples=examples(150), deadline=None)
def test_orbits_are_what_random_elements_move_onto_each_other(net: Network) -> None:
    agree(net.table, net.shapes, 40)


@pytest.mark.parametrize(
    "name", ["optunet", "mlp-5-9-8-3", "mlp-tanh-7-6-2", "resnet8-pad-4", "resnet8-conv-4", "resnet20-pad-10"]
)
def test_orbits_of_known_architectures(name: str) -> None:
    agree(archs.symmetry(name), {tensor.name: tensor.shape for tensor in archs.architecture(name).tensors}, 12)


def counts(name: str) -> dict[str, int]:
    table = archs.symmetry(name)
    return {item.name: int(orbits(table, item.name, item.shape).max()) + 1 for item in archs.architecture(name).tensors}


def test_numbers_of_orbits_are_known() -> None:
    assert counts("mlp-8-16-1") == {"fc1.weight": 8, "fc1.bias": 1, "fc2.weight": 1, "fc2.bias": 1}
    assert counts("mlp-5-9-8-3") == {
        "fc1.weight": 5,
        "fc1.bias": 1,
        "fc2.weight": 1,
        "fc2.bias": 1,
        "fc3.weight": 3,
        "fc3.bias": 3,
    }
    assert counts("optunet") == {"conv1.weight": 16, "conv2.weight": 25, "fc.weight": 10, "fc.bias": 10}
    found = counts("resnet18-10")
    assert found["conv1.weight"] == 27 and found["layer4.1.conv2.weight"] == 9 and found["bn1.running_var"] == 1
    assert found["layer2.0.downsample.0.weight"] == 1 and found["fc.weight"] == found["fc.bias"] == 10


def test_a_tensor_that_both_axes_of_which_move_together_has_a_diagonal() -> None:
    units = Segment("u", 0, 1, 40)
    table = Symmetry(
        (Group("u", 40, Sym(), "none"),),
        (AxisAction("w", 0, (units,), 1, True, "out"), AxisAction("w", 1, (units,), -1, True, "in")),
    )
    np.testing.assert_array_equal(orbits(table, "w", (40, 40, 2))[..., 0] // 2, 1 - np.eye(40))
    np.testing.assert_array_equal(orbits(table, "other", (2, 3)), np.arange(6).reshape(2, 3))
    assert orbits(table, "scalar", ()) == 0


def test_blocks_that_move_together_are_told_from_blocks_that_move_apart() -> None:
    one, two = Segment("a", 0, 1, 6), Segment("b", 0, 1, 6)
    groups = (Group("a", 6, Wreath("o", 2, 3), "none"), Group("b", 6, Wreath("o", 2, 3), "none"))
    actions = (AxisAction("w", 0, (one,), 1, True, "out"), AxisAction("w", 1, (two,), -1, True, "in"))
    same = np.kron(np.eye(2, dtype=int), np.ones((3, 3), dtype=int))
    np.testing.assert_array_equal(orbits(Symmetry(groups, actions), "w", (6, 6)), 1 - same)
    apart = (groups[0], Group("b", 6, Wreath("other", 2, 3), "none"))
    assert (orbits(Symmetry(apart, actions), "w", (6, 6)) == 0).all()
    in_order = tuple(Group(name, 6, Wreath("o", 2, 3, "fixed"), "none") for name in "ab")
    labels = orbits(Symmetry(in_order, actions), "w", (6, 6))
    np.testing.assert_array_equal(labels, np.roll(labels, (3, 3), (0, 1)))
    assert len(np.unique(labels)) == 18
    like = (groups[0], Group("b", 6, Like("a"), "none"))
    np.testing.assert_array_equal(orbits(Symmetry(like, actions), "w", (6, 6)), 2 * (1 - same) + same - np.eye(6))
    fixed = (groups[0], Group("b", 6, Fixed(), "none"))
    np.testing.assert_array_equal(orbits(Symmetry(fixed, actions), "w", (6, 6)), np.tile(np.arange(6), (6, 1)))

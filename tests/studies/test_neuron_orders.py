"""What gauges put in order: labels of tables, ranks of group elements, and the keys that decide them."""

import numpy as np
import pytest

from ckptzoo import archs
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.neuron_orders import NeuronOrder, first_weights, keys_of, largest_weights, orders
from ckptzoo.symmetry import GroupElement, apply, canonicalize, ordering_keys


def table(*groups: Group) -> Symmetry:
    """A table in which every group is written by a matrix of its own."""
    return Symmetry(
        groups,
        tuple(
            AxisAction(f"{group.id}.weight", 0, (Segment(group.id, 0, 1, group.n),), 1, True, "out") for group in groups
        ),
    )


def test_the_orders_of_a_table() -> None:
    found = orders(
        table(
            Group("a", 4, Sym(), "positive"),
            Group("bn", 4, Like("a"), "positive"),
            Group("still", 3, Fixed(), "positive"),
            Group("one", 1, Sym(), "none"),
            Group("b", 6, Wreath("b", 3, 2), "positive"),
            Group("c", 3, Wreath("b", 3, 1), "positive"),
            Group("d", 4, Wreath("d", 1, 4), "positive"),
            Group("e", 6, Wreath("b", 3, 2, "fixed"), "positive"),
        )
    )
    assert [(order.label, order.n, order.group) for order in found] == [
        ("a", 4, "a"),
        ("blocks of b and 2 more", 3, "b"),
        ("b within its 3 blocks", 2, "b"),
        ("d", 4, "d"),
    ]


def test_ranks_are_places_within_blocks_and_of_blocks() -> None:
    inside, blocks = NeuronOrder("inside", "a", 3, 2, False), NeuronOrder("blocks", "a", 3, 2, True)
    perm = np.array([[5, 4, 0, 1, 2, 3]])
    np.testing.assert_array_equal(inside.ranks(perm), [[[0, 1], [0, 1], [1, 0]]])
    np.testing.assert_array_equal(blocks.ranks(perm), [[[1, 2, 0]]])
    plain = NeuronOrder("plain", "a", 1, 5, False)
    np.testing.assert_array_equal(plain.ranks(np.array([[3, 0, 4, 1, 2]])), [[[1, 3, 4, 0, 2]]])


def test_keys_of_blocks_are_their_smallest_or_largest() -> None:
    keys = np.array([[0.4, -0.2, 0.3, 0.9, -0.1, 0.0]])
    np.testing.assert_array_equal(NeuronOrder("", "a", 3, 2, True).keys(keys), [[[-0.2, 0.3, -0.1]]])
    np.testing.assert_array_equal(NeuronOrder("", "a", 3, 2, True).keys(keys, largest=True), [[[0.4, 0.9, 0.0]]])
    for largest in (False, True):
        inside = NeuronOrder("", "a", 3, 2, False).keys(keys, largest=largest)
        np.testing.assert_array_equal(inside, keys.reshape(1, 3, 2))


@pytest.mark.parametrize("variant", ["first-weight", "canonical"])
def test_the_keys_are_those_that_the_gauge_sorts_by(variant: str) -> None:
    symmetry, arch = archs.symmetry("optunet"), archs.architecture("optunet")
    assert symmetry is not None
    rng = np.random.default_rng(3)
    weights = {tensor.name: rng.normal(size=(50, *tensor.shape)) for tensor in arch.tensors}
    keys = keys_of(variant)(weights, symmetry)
    made = canonicalize(weights, symmetry, gauge=variant)
    for order in orders(symmetry):
        ranks = order.ranks(made.element.perms[order.group])
        found = np.argsort(np.argsort(order.keys(keys[order.group]), axis=2), axis=2)
        np.testing.assert_array_equal(found, ranks)


def test_keys_move_with_their_channels() -> None:
    symmetry, arch = archs.symmetry("optunet"), archs.architecture("optunet")
    assert symmetry is not None
    rng = np.random.default_rng(4)
    weights = {tensor.name: rng.normal(size=(9, *tensor.shape)) for tensor in arch.tensors}
    element = GroupElement.random(symmetry, 9, rng, spread=0.7)
    for function in (first_weights, ordering_keys):
        before, after = function(weights, symmetry), function(apply(element, weights, symmetry), symmetry)
        assert set(before) == {"conv1", "conv2"}
        for group, keys in before.items():
            moved = np.take_along_axis(keys, element.perms[group], 1)
            np.testing.assert_allclose(after[group], moved, rtol=1e-9, atol=1e-12)


def test_the_keys_of_known_weights() -> None:
    symmetry = table(Group("a", 3, Sym(), "positive"))
    weights = {"a.weight": np.array([[[3.0, 4.0], [-1.0, 0.0], [0.0, 2.0]]])}
    np.testing.assert_allclose(first_weights(weights, symmetry)["a"], [[0.6, -1, 0]])
    np.testing.assert_allclose(ordering_keys(weights, symmetry)["a"], [[1.4, -1, 1]])


def test_largest_weights_are_signed_and_without_scales_and_biases() -> None:
    a = Group("a", 3, Sym(), "positive")
    units = (Segment("a", 0, 1, 3),)
    bias = AxisAction("a.bias", 0, units, 1, False, "bias")
    symmetry = Symmetry((a,), (*table(a).actions, bias))
    weights = {
        "a.weight": np.array([[[3.0, 4.0], [-9.0, -1.0], [0.0, 2.0]]], np.float32),
        "a.bias": np.full((1, 3), 100, np.float32),
    }
    np.testing.assert_array_equal(largest_weights(weights, symmetry)["a"], [[4, -1, 2]])
    gain = Symmetry((a,), (AxisAction("a.gain", 0, units, 1, True, "gain"), bias))
    only = {"a.gain": np.array([[5.0, -6.0, 7.0]]), "a.bias": weights["a.bias"]}
    np.testing.assert_array_equal(largest_weights(only, gain)["a"], [[5, -6, 7]])


@pytest.mark.parametrize("name", ["resnet18-2-10", "resnet20-conv-10", "mlp-3-4-2", "optunet"])
def test_largest_weights_are_those_of_weights_in_every_network(name: str) -> None:
    symmetry, arch = archs.symmetry(name), archs.architecture(name)
    rng = np.random.default_rng(7)
    weights = {tensor.name: rng.normal(size=(2, *tensor.shape)) for tensor in arch.tensors}
    statistics = {tensor.name: np.full((2, *tensor.shape), 100.0) for tensor in arch.tensors if tensor.kind == "buffer"}
    keys = largest_weights({**weights, **statistics}, symmetry)
    assert set(keys) == {group.id for group in symmetry.groups if not isinstance(group.perm, Like)}
    assert all(values.max() < 100 for values in keys.values())


def test_channels_that_several_tensors_write_go_by_the_largest_of_all() -> None:
    units = (Segment("a", 0, 1, 2),)
    actions = tuple(AxisAction(name, 0, units, 1, True, "out") for name in ("one", "two"))
    weights = {"one": np.array([[[1.0, 2.0], [3.0, 9.0]]]), "two": np.array([[[5.0], [4.0]]])}
    found = largest_weights(weights, Symmetry((Group("a", 2, Sym(), "none"),), actions))
    np.testing.assert_array_equal(found["a"], [[5, 9]])


def test_largest_weights_of_convolutions_in_groups_are_those_of_their_filters() -> None:
    symmetry, arch = archs.symmetry("optunet"), archs.architecture("optunet")
    assert symmetry is not None
    rng = np.random.default_rng(6)
    weights = {tensor.name: rng.normal(size=(9, *tensor.shape)) for tensor in arch.tensors}
    keys = largest_weights(weights, symmetry)
    for group in ("conv1", "conv2"):
        np.testing.assert_array_equal(keys[group], weights[f"{group}.weight"].max(axis=(2, 3, 4)))
    element = GroupElement.random(symmetry, 9, rng, spread=0.0)
    moved = largest_weights(apply(element, weights, symmetry), symmetry)
    for group, values in keys.items():
        np.testing.assert_allclose(moved[group], np.take_along_axis(values, element.perms[group], 1), rtol=1e-12)

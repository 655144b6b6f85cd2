"""Descriptions that no order of channels changes, the comparison of canonical forms, and what cannot be told apart."""

import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ckptzoo.symmetry.fingerprint  # noqa: F401  # the package's attribute of this name is the function
from ckptzoo import archs
from ckptzoo.schema.symmetry import AxisAction, Group, Segment, Sym, Symmetry, Wreath
from ckptzoo.symmetry import GroupElement, apply, canonicalize
from tests.support.effort import examples
from tests.support.symmetry_tables import Network, networks

core = sys.modules["ckptzoo.symmetry.fingerprint"]
Weights = dict[str, np.ndarray]
K = 3
law = settings(max_examples=examples(100), deadline=None)
seeds = st.integers(0, 2**32 - 1)


def permutations(net: Network, seed: int, count: int = K) -> GroupElement:
    g = net.element(count, seed)
    return GroupElement(g.perms, GroupElement.identity(net.table, count).scales)


def taken(weights: Weights, row: int) -> Weights:
    return {name: array[row : row + 1] for name, array in weights.items()}


def crossed(net: Network) -> bool:
    """Whether a permutation stands on two axes of one tensor, for which the gauges' scales are not unique."""
    for name in net.shapes:
        sides = [{net.table.leader(item.group).id for item in act.segments} for act in net.table.actions_on(name)]
        if sum(map(len, sides)) > len(set().union(*sides)):
            return True
    return False


@pytest.mark.slow
@law
@given(networks(), seeds, seeds)
def test_sketches_stay_and_descriptions_move_with_their_channels(net: Network, a: int, b: int) -> None:
    weights, g = net.weights(K, a), permutations(net, b)
    one, two = (core.invariants(stack, net.table) for stack in (weights, apply(g, weights, net.table)))
    np.testing.assert_allclose(two.sketches, one.sketches, rtol=0, atol=1e-11)
    for name, values in one.channels.items():
        moved = np.take_along_axis(values, g.perms[name][:, :, None], 1)
        np.testing.assert_allclose(two.channels[name], moved, rtol=0, atol=1e-11, err_msg=name)


@law
@given(networks(), seeds, st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_weights_that_are_close_have_close_sketches(net: Network, seed: int, distance: float) -> None:
    weights, rng = net.weights(K, seed), np.random.default_rng(seed)
    near = dict(weights)
    for name, array in weights.items():
        if array.dtype.kind == "f":
            step = rng.standard_normal(array.shape).reshape(K, -1)
            step /= np.linalg.norm(step, axis=1, keepdims=True)
            step *= distance * np.linalg.norm(array.reshape(K, -1), axis=1, keepdims=True)
            near[name] = array + step.reshape(array.shape)
    one, two = (core.invariants(stack, net.table).sketches for stack in (weights, near))
    width = core.invariant_width(distance, len(weights))
    assert (np.abs(one - two) <= width).all()


def test_sketches_of_other_networks_are_far_apart() -> None:
    """200 random OptuNets: the nearest two are a hundred thousand tolerances apart."""
    rng, table = np.random.default_rng(0), archs.symmetry("optunet")
    weights = {
        tensor.name: rng.standard_normal((200, *tensor.shape)) for tensor in archs.architecture("optunet").tensors
    }
    sketches = core.invariants(canonicalize(weights, table).weights, table).sketches
    distances = np.abs(sketches[:, None] - sketches).max(axis=2) + 9 * np.eye(200)
    assert distances.min() > 1e5 * 4 * np.finfo(np.float32).eps


@pytest.mark.slow
@law
@given(networks(), seeds, seeds, st.sampled_from([np.float32, np.float64]))
def test_networks_in_any_order_are_matched_and_others_are_not(net: Network, a: int, b: int, dtype: type) -> None:
    weights = net.weights(K, a, dtype)
    one, others = taken(weights, 0), apply(permutations(net, b), weights, net.table)
    tolerance = core.rounding_tolerance((array.dtype for array in weights.values()), net.table)
    agree, _ = core.compare(one, others, net.table, tolerance)
    assert agree.tolist() == [True, False, False]
    name = next(name for name, array in others.items() if array.dtype.kind == "f" and array.size)
    flat = others[name].reshape(K, -1)
    flat[0, -1] += 3 * tolerance * np.linalg.norm(flat[0].astype(np.float64))
    assert not core.compare(one, others, net.table, tolerance)[0].any()


@pytest.mark.slow
@law
@given(networks(), seeds, seeds)
def test_scaled_copies_in_float64_agree_within_the_rounding_of_the_gauge(net: Network, a: int, b: int) -> None:
    assume(not crossed(net))
    weights = net.weights(K, a)
    one = canonicalize(weights, net.table)
    two = canonicalize(apply(net.element(K, b), weights, net.table), net.table)
    tolerance = core.rounding_tolerance((array.dtype for array in weights.values()), net.table)
    sure = ~core.ambiguous(one.weights, core.invariants(one.weights, net.table), net.table, tolerance)
    sure &= ~one.report.unresolved & ~two.report.unresolved & one.report.gauged & two.report.gauged
    for row in np.flatnonzero(sure).tolist():
        assert core.compare(taken(one.weights, row), taken(two.weights, row), net.table, tolerance)[0].all()


def test_the_tolerance_is_the_coarser_of_storage_and_scales() -> None:
    relu, tanh = archs.symmetry("mlp-4-3-2"), archs.symmetry("mlp-tanh-4-3-2")
    single, double, count = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
    assert core.rounding_tolerance([single, double, count], relu) == 4 * 2.0**-23
    assert core.rounding_tolerance([double], relu) == 8 * 2.0**-40
    assert core.rounding_tolerance([double], tanh) == 4 * 2.0**-52
    assert core.rounding_tolerance([count], relu) == core.rounding_tolerance([], relu) == 0


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_and_empty_weights(size: float) -> None:
    table = archs.symmetry("mlp-4-3-2")
    rng = np.random.default_rng(0)
    weights = {
        tensor.name: rng.standard_normal((K, *tensor.shape)) for tensor in archs.architecture("mlp-4-3-2").tensors
    }
    found = core.invariants({name: array * size for name, array in weights.items()}, table)
    np.testing.assert_allclose(found.sketches, core.invariants(weights, table).sketches, rtol=0, atol=1e-11)
    zeros = {name: array * 0 for name, array in weights.items()}
    assert (core.invariants(zeros, table).sketches == 0).all()
    none = {name: array[:0] for name, array in weights.items()}
    found = core.invariants(none, table)
    assert found.sketches.shape == (0, core.FEATURES)
    assert core.ambiguous(none, found, table, 1e-6).shape == (0,)


def chain(n: int, scale: str = "positive") -> Symmetry:
    """Two hidden layers of n channels, inputs and outputs of 3."""
    one, two = (Segment("one", 0, 1, n),), (Segment("two", 0, 1, n),)
    actions = (
        AxisAction("w0", 0, one, 1, True, "out"),
        AxisAction("w1", 0, two, 1, True, "out"),
        AxisAction("w1", 1, one, -1, True, "in"),
        AxisAction("w2", 1, two, -1, True, "in"),
    )
    return Symmetry((Group("one", n, Sym(), scale), Group("two", n, Sym(), scale)), actions)


def test_what_is_ambiguous() -> None:
    """A cycle, in which all channels look alike and are not; twins, which are; random weights, which are not alike."""
    table, rng = chain(6), np.random.default_rng(0)
    cycle = np.eye(6) + np.roll(np.eye(6), 1, axis=0)
    rows = [{"w0": np.ones((6, 3)), "w1": cycle, "w2": np.ones((3, 6))}]
    for _ in range(3):
        rows.append({"w0": rng.standard_normal((6, 3)), "w1": rng.standard_normal((6, 6)), "w2": np.ones((3, 6))})
    rows[1]["w0"][4], rows[1]["w1"][:, 4] = rows[1]["w0"][2], rows[1]["w1"][:, 2]  # twins
    rows[2]["w0"][4] = rows[2]["w0"][2] * 5  # the same incoming weights at unit norm
    weights = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    made = canonicalize(weights, table).weights
    found = core.ambiguous(made, core.invariants(made, table), table, 1e-12)
    assert found.tolist() == [True, False, False, False]


def test_a_sign_that_rounding_decides_is_ambiguous() -> None:
    table, rng = chain(4, "sign"), np.random.default_rng(1)
    shapes = {"w0": (2, 4, 3), "w1": (2, 4, 4), "w2": (2, 3, 4)}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    weights["w0"][1, 2] = [1, 1, -2 + 1e-13]
    made = canonicalize(weights, table).weights
    assert core.ambiguous(made, core.invariants(made, table), table, 1e-12).tolist() == [False, True]


def test_blocks_that_look_alike() -> None:
    """Two blocks of two channels: exchanged as they are they are the same network, and with other readers not."""
    table = Symmetry(
        (Group("h", 4, Wreath("h", 2, 2), "none"), Group("k", 4, Sym(), "none")),
        (
            AxisAction("w0", 0, (Segment("h", 0, 1, 4),), 1, True, "out"),
            AxisAction("w1", 0, (Segment("k", 0, 1, 4),), 1, True, "out"),
            AxisAction("w1", 1, (Segment("h", 0, 1, 4),), -1, True, "in"),
        ),
    )
    w0 = np.array([[1.0], [2.0], [1.0], [2.0]])
    twins = np.array([[1.0, 2.0, 1.0, 2.0]] * 4) * np.arange(1, 5)[:, None]
    cycle = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    weights = {"w0": np.stack([w0, w0]), "w1": np.stack([twins, cycle])}
    found = core.invariants(weights, table)
    assert core.ambiguous(weights, found, table, 1e-12).tolist() == [False, True]

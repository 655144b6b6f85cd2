"""The comparison of canonical forms, its tolerance, and the networks of which a copy may be missed."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import apply, canonicalize
from ckptzoo.symmetry.identity.comparison import ambiguous, distances
from ckptzoo.symmetry.identity.forms import rounding_tolerance
from ckptzoo.symmetry.identity.invariants import invariants
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.symmetry_tables import Network, crossed, networks

Weights = dict[str, np.ndarray]
K = 3
law = settings(max_examples=examples(100, FEW_EXAMPLES), deadline=None)
seeds = st.integers(0, 2**32 - 1)


def taken(weights: Weights, row: int) -> Weights:
    return {name: array[row : row + 1] for name, array in weights.items()}


@pytest.mark.slow
@law
@given(networks(nested=True), seeds, seeds, st.sampled_from([np.float32, np.float64]))
def test_networks_in_any_order_are_matched_and_others_are_not(net: Network, a: int, b: int, dtype: type) -> None:
    weights = net.weights(K, a, dtype)
    one, others = taken(weights, 0), apply(net.permutations(K, b), weights, net.table)
    tolerance = rounding_tolerance((array.dtype for array in weights.values()), net.table)
    found, _ = distances(one, others, net.table, tolerance)
    assert (found <= tolerance).tolist() == [True, False, False]
    name = next(name for name, array in others.items() if array.dtype.kind == "f" and array.size)
    flat = others[name].reshape(K, -1)
    flat[0, -1] += 3 * tolerance * np.linalg.norm(flat[0].astype(np.float64))
    assert (distances(one, others, net.table, tolerance)[0] > tolerance).all()


@pytest.mark.slow
@law
@given(networks(nested=True), seeds, seeds)
def test_scaled_copies_in_float64_agree_within_the_rounding_of_the_gauge(net: Network, a: int, b: int) -> None:
    assume(not crossed(net))
    weights = net.weights(K, a)
    one = canonicalize(weights, net.table)
    two = canonicalize(apply(net.element(K, b), weights, net.table), net.table)
    tolerance = rounding_tolerance((array.dtype for array in weights.values()), net.table)
    sure = ~ambiguous(one.weights, invariants(one.weights, net.table), net.table, tolerance)
    sure &= ~one.report.unresolved & ~two.report.unresolved & one.report.gauged & two.report.gauged
    for row in np.flatnonzero(sure).tolist():
        assert distances(taken(one.weights, row), taken(two.weights, row), net.table, tolerance)[0] <= tolerance


def test_the_tolerance_is_the_coarser_of_storage_and_scales() -> None:
    relu, tanh = archs.symmetry("mlp-4-3-2"), archs.symmetry("mlp-tanh-4-3-2")
    single, double, count = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
    assert rounding_tolerance([single, double, count], relu) == 4 * 2.0**-23
    assert rounding_tolerance([double], relu) == 8 * 2.0**-40
    assert rounding_tolerance([double], tanh) == 4 * 2.0**-52
    assert rounding_tolerance([count], relu) == rounding_tolerance([], relu) == 0


def test_no_checkpoint_is_ambiguous_where_there_is_none() -> None:
    table = archs.symmetry("mlp-4-3-2")
    none = {tensor.name: np.zeros((0, *tensor.shape)) for tensor in archs.architecture("mlp-4-3-2").tensors}
    assert ambiguous(none, invariants(none, table), table, 1e-6).shape == (0,)


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
    found = ambiguous(made, invariants(made, table), table, 1e-12)
    assert found.tolist() == [True, False, False, False]


def test_a_sign_that_rounding_decides_is_ambiguous() -> None:
    table, rng = chain(4, "sign"), np.random.default_rng(1)
    shapes = {"w0": (2, 4, 3), "w1": (2, 4, 4), "w2": (2, 3, 4)}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    weights["w0"][1, 2] = [1, 1, -2 + 1e-13]
    made = canonicalize(weights, table).weights
    assert ambiguous(made, invariants(made, table), table, 1e-12).tolist() == [False, True]


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
    found = invariants(weights, table)
    assert ambiguous(weights, found, table, 1e-12).tolist() == [False, True]

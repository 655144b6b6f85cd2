"""Laws of the group, its action and the gauges, with ties, near ties, dead units and half precisions.

Two networks: OptuNet, and four pointwise layers of which the second is in two groups and the third is dense.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.spec.symmetry import AxisAction, Group, Segment, Sym, Symmetry, Wreath
from ckptzoo.symmetry import GAUGES, Canonical, GroupElement, apply, canonicalize

K = 3
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Net:
    """A table, the shapes it acts on, which tensors' rows are neurons, and the function in numpy and float64."""

    table: Symmetry
    shapes: dict[str, tuple[int, ...]]
    neurons: tuple[str, ...]
    outputs: Callable[[Weights], np.ndarray]


def optunet_outputs(weights: Weights) -> np.ndarray:
    conv1, conv2, fc, bias = (weights[name].astype(np.float64) for name in weights)
    windows = np.lib.stride_tricks.sliding_window_view(IMAGES, (4, 4), axis=(1, 2))
    hidden = np.maximum(np.einsum("bijuv,kcuv->kbcij", windows, conv1[:, :, 0], optimize=True), 0)
    hidden = hidden[..., :24, :24].reshape(*hidden.shape[:3], 8, 3, 8, 3).max((4, 6))
    windows = np.lib.stride_tricks.sliding_window_view(hidden, (5, 5), axis=(3, 4))
    grouped = conv2.reshape(len(conv2), 2, 5, 5, 5)
    hidden = np.einsum("kbgijuv,kgouv->kbgoij", windows, grouped, optimize=True)
    hidden = np.maximum(hidden, 0).mean((4, 5)).reshape(len(conv2), -1, 10)
    return np.einsum("kbh,koh->kbo", hidden, fc) + bias[:, None]


def pointwise_outputs(weights: Weights) -> np.ndarray:
    one, two, three, four = (weights[name].astype(np.float64) for name in weights)
    hidden = np.maximum(np.einsum("koi,bi->kbo", one, IMAGES[:, 0, :3]), 0).reshape(len(one), -1, 2, 2)
    hidden = np.einsum("kgoi,kbgi->kbgo", two.reshape(len(two), 2, 3, 2), hidden)
    hidden = np.maximum(hidden.reshape(len(one), -1, 6), 0)
    hidden = np.maximum(np.einsum("koi,kbi->kbo", three, hidden), 0)
    return np.einsum("koi,kbi->kbo", four, hidden)


IMAGES = np.random.default_rng(0).random((3, 28, 28))
OPTUNET = Net(
    archs.symmetry("optunet"),
    {tensor.name: tensor.shape for tensor in archs.architecture("optunet").tensors},
    ("conv1.weight", "conv2.weight"),
    optunet_outputs,
)
POINTWISE = Net(
    Symmetry(
        (
            Group("a", 4, Wreath("two", 2, 2), "positive"),
            Group("b", 6, Wreath("two", 2, 3), "positive"),
            Group("c", 5, Sym(), "positive"),
        ),
        (
            AxisAction("one", 0, (Segment("a", 0, 1, 4),), 1, True, "out"),
            AxisAction("two", 0, (Segment("b", 0, 1, 6),), 1, True, "out"),
            AxisAction("two", 1, (Segment("a", 0, 1, 4),), -1, True, "in", blocks=2),
            AxisAction("three", 0, (Segment("c", 0, 1, 5),), 1, True, "out"),
            AxisAction("three", 1, (Segment("b", 0, 1, 6),), -1, True, "in"),
            AxisAction("four", 1, (Segment("c", 0, 1, 5),), -1, True, "in"),
        ),
    ),
    {"one": (4, 3), "two": (6, 2), "three": (5, 6), "four": (2, 5)},
    ("one", "two", "three"),
    pointwise_outputs,
)

nets = st.sampled_from([OPTUNET, POINTWISE])
seeds = st.integers(0, 2**32 - 1)
gauges = st.sampled_from(sorted(GAUGES))
floats = st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
few = settings(max_examples=100, deadline=None)


def normal(net: Net, seed: int, dtype: type = np.float64) -> Weights:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((K, *shape)).astype(dtype) for name, shape in net.shapes.items()}


@st.composite
def any_weights(draw: st.DrawFn) -> tuple[Net, Weights]:
    """Normal weights, or of few values (ties), with neurons dead or multiples of others, in any precision."""
    net = draw(nets)
    weights = normal(net, draw(seeds))
    levels = draw(st.sampled_from([None, 1, 2, 8]))
    if levels is not None:
        weights = {name: np.round(array * levels) / levels for name, array in weights.items()}
    for factor in draw(st.lists(st.sampled_from([0.0, 0.3, 3.0, 7.0]), max_size=4)):
        array = weights[draw(st.sampled_from(net.neurons))]
        one, two = (draw(st.integers(0, array.shape[1] - 1)) for _ in range(2))
        array[:, one] = factor * array[:, two]
    dtype = draw(floats)
    return net, {name: array.astype(dtype) for name, array in weights.items()}


def element(net: Net, seed: int, *, spread: float = 1.0) -> GroupElement:
    return GroupElement.random(net.table, K, np.random.default_rng(seed), spread=spread)


def assert_same_function(net: Net, one: Weights, two: Weights, tolerance: float) -> None:
    """Outputs differ by at most the tolerance times the sum of absolute contributions to them."""
    bound = net.outputs({name: np.abs(array.astype(np.float64)) for name, array in one.items()})
    gap = np.abs(net.outputs(one) - net.outputs(two))
    assert (gap <= tolerance * bound).all(), (gap / bound).max()


def assert_equal(one: Weights, two: Weights) -> None:
    for name, array in one.items():
        assert array.dtype == two[name].dtype, name
        np.testing.assert_array_equal(array, two[name], err_msg=name)


def assert_close(one: Weights, two: Weights, rtol: float) -> None:
    for name, array in one.items():
        np.testing.assert_allclose(array, two[name], rtol=rtol, atol=0, err_msg=name)


@few
@given(nets, seeds, seeds, seeds)
def test_the_action_is_a_homomorphism(net: Net, a: int, b: int, c: int) -> None:
    weights, g, h = normal(net, a), element(net, b), element(net, c)
    g.compose(h).check(net.table)
    assert_close(apply(g.compose(h), weights, net.table), apply(g, apply(h, weights, net.table), net.table), 1e-13)


@few
@given(nets, seeds, seeds, seeds, floats)
def test_permutations_compose_bit_for_bit(net: Net, a: int, b: int, c: int, dtype: type) -> None:
    weights = apply(GroupElement.identity(net.table, K), normal(net, a, dtype), net.table)
    g, h = element(net, b, spread=0), element(net, c, spread=0)
    assert_equal(apply(g.compose(h), weights, net.table), apply(g, apply(h, weights, net.table), net.table))


@few
@given(nets, seeds, seeds, seeds, seeds)
def test_composition_is_associative_with_inverses(net: Net, a: int, b: int, c: int, d: int) -> None:
    f, g, h = element(net, a), element(net, b), element(net, c)
    one, two = f.compose(g).compose(h).to_tensors(), f.compose(g.compose(h)).to_tensors()
    assert_close(one, two, 1e-15)
    for product in (f.compose(f.inverse()), f.inverse().compose(f)):
        assert_close(product.to_tensors(), GroupElement.identity(net.table, K).to_tensors(), 1e-15)
    weights = normal(net, d)
    assert_close(apply(f.inverse(), apply(f, weights, net.table), net.table), weights, 1e-14)


@few
@given(any_weights(), seeds)
def test_an_element_leaves_the_function_alone(drawn: tuple[Net, Weights], seed: int) -> None:
    net, weights = drawn
    double = {name: array.astype(np.float64) for name, array in weights.items()}
    assert_same_function(net, double, apply(element(net, seed), double, net.table), 1e-12)


@few
@given(any_weights(), gauges)
def test_a_gauge_leaves_the_function_alone(drawn: tuple[Net, Weights], gauge: str) -> None:
    net, weights = drawn
    double = {name: array.astype(np.float64) for name, array in weights.items()}
    assert_same_function(net, double, canonicalize(double, net.table, gauge=gauge).weights, 1e-12)
    assert_same_function(net, weights, canonicalize(weights, net.table, gauge=gauge).weights, 3e-6)


@few
@given(any_weights(), gauges)
def test_a_gauge_is_idempotent_bit_for_bit(drawn: tuple[Net, Weights], gauge: str) -> None:
    net, weights = drawn
    once = canonicalize(weights, net.table, gauge=gauge).weights
    assert_equal(canonicalize(once, net.table, gauge=gauge).weights, once)


@few
@given(any_weights(), gauges)
def test_the_variant_is_the_element_applied_to_raw(drawn: tuple[Net, Weights], gauge: str) -> None:
    net, weights = drawn
    made = canonicalize(weights, net.table, gauge=gauge)
    made.element.check(net.table)
    assert_equal(apply(made.element, weights, net.table), made.weights)
    assert all(array.dtype in (np.float32, np.float64) for array in made.weights.values())


@few
@given(any_weights(), gauges)
def test_raw_comes_back_from_the_variant_and_the_element(drawn: tuple[Net, Weights], gauge: str) -> None:
    net, weights = drawn
    made = canonicalize(weights, net.table, gauge=gauge)
    back = apply(made.element.inverse(), made.weights, net.table)
    for name, array in weights.items():
        rtol = 4 * np.finfo(back[name].dtype).eps
        np.testing.assert_allclose(back[name], array.astype(back[name].dtype), rtol=rtol, err_msg=name)


@few
@given(any_weights(), seeds)
def test_raw_comes_back_exactly_from_permutations(drawn: tuple[Net, Weights], seed: int) -> None:
    net, weights = drawn
    g = element(net, seed, spread=0)
    back = apply(g.inverse(), apply(g, weights, net.table), net.table)
    assert_equal({name: array.astype(weights[name].dtype) for name, array in back.items()}, weights)


def untied(made: Canonical, margin: float) -> np.ndarray:
    return (made.report.margin > margin) & (made.report.dead == 0)


@few
@given(nets, seeds, seeds, floats)
def test_the_order_is_invariant_under_permutations_bit_for_bit(net: Net, a: int, b: int, dtype: type) -> None:
    weights = normal(net, a, dtype)
    moved = {name: array.astype(dtype) for name, array in apply(element(net, b, spread=0), weights, net.table).items()}
    one, two = canonicalize(weights, net.table), canonicalize(moved, net.table)
    rows = untied(one, 0)
    assert_equal(
        {name: array[rows] for name, array in one.weights.items()},
        {name: array[rows] for name, array in two.weights.items()},
    )
    for name in ("ties", "margin", "dead"):
        np.testing.assert_array_equal(getattr(one.report, name), getattr(two.report, name))


@few
@given(nets, seeds, seeds)
def test_the_order_is_invariant_under_the_whole_group_to_rounding(net: Net, a: int, b: int) -> None:
    weights = normal(net, a)
    one, two = canonicalize(weights, net.table), canonicalize(apply(element(net, b), weights, net.table), net.table)
    rows = untied(one, 1e-10)
    assert rows.any()
    assert_close(
        {name: array[rows] for name, array in one.weights.items()},
        {name: array[rows] for name, array in two.weights.items()},
        1e-12,
    )


@few
@given(nets, seeds, seeds)
def test_unit_norm_is_invariant_under_scales_and_equivariant_under_permutations(net: Net, a: int, b: int) -> None:
    weights, g = normal(net, a), element(net, b)
    only = GroupElement(g.perms, GroupElement.identity(net.table, K).scales)
    one = apply(only, canonicalize(weights, net.table, gauge="unit-norm").weights, net.table)
    two = canonicalize(apply(g, weights, net.table), net.table, gauge="unit-norm").weights
    assert_close(one, two, 1e-12)


@few
@given(nets, seeds, seeds, floats)
def test_unit_norm_is_equivariant_under_permutations_bit_for_bit(net: Net, a: int, b: int, dtype: type) -> None:
    weights, g = normal(net, a, dtype), element(net, b, spread=0)
    moved = {name: array.astype(dtype) for name, array in apply(g, weights, net.table).items()}
    one = apply(g, canonicalize(weights, net.table, gauge="unit-norm").weights, net.table)
    assert_equal(one, canonicalize(moved, net.table, gauge="unit-norm").weights)


@few
@given(any_weights(), gauges, st.lists(st.booleans(), min_size=K, max_size=K))
def test_checkpoints_do_not_know_each_other(drawn: tuple[Net, Weights], gauge: str, rows: list[bool]) -> None:
    net, weights = drawn
    chosen = np.flatnonzero(rows)
    together = canonicalize(weights, net.table, gauge=gauge)
    apart = canonicalize({name: array[chosen] for name, array in weights.items()}, net.table, gauge=gauge)
    assert_equal({name: array[chosen] for name, array in together.weights.items()}, apart.weights)
    np.testing.assert_array_equal(together.report.margin[chosen], apart.report.margin)

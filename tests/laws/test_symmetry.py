"""Laws of the group, its action and the gauges, with ties, dead units, half precisions and odd normalisations.

Networks: OptuNet; four pointwise layers of which the second is in two groups and the third is dense; a residual
stream with BatchNorms; tanh layers, whose channels flip signs; a network of one input, whose first keys are all ties;
a linear attention of two heads with rotary embeddings, whose pairs of channels keep their order; a gated unit.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, Canonical, GroupElement, apply, canonicalize
from tests.support.effort import FEW_EXAMPLES, examples

K = 3
EPS = 1e-5
Weights = dict[str, np.ndarray]


@dataclass(frozen=True, repr=False)
class Net:
    """A table, the shapes it acts on, which tensors' rows are neurons, and the function in numpy and float64.

    ``size`` bounds the rounding of the function: the sum of the absolute contributions to every output.
    """

    table: Symmetry
    shapes: dict[str, tuple[int, ...]]
    neurons: tuple[str, ...]
    outputs: Callable[[Weights], np.ndarray]
    size: Callable[[Weights], np.ndarray]

    def __repr__(self) -> str:
        return f"Net({self.shapes})"


def absolute(outputs: Callable[[Weights], np.ndarray]) -> Callable[[Weights], np.ndarray]:
    return lambda weights: outputs({name: np.abs(array.astype(np.float64)) for name, array in weights.items()})


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
    absolute(optunet_outputs),
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
    absolute(pointwise_outputs),
)


def dense(n: int, group: str | None, name: str, *reads: tuple[str, int]) -> list[AxisAction]:
    """A linear layer's actions: what it writes, and what it reads."""
    made = [AxisAction(name, 1, (Segment(*reads[0][:1], 0, 1, reads[0][1]),), -1, True, "in")] if reads else []
    return made if group is None else [AxisAction(name, 0, (Segment(group, 0, 1, n),), 1, True, "out"), *made]


def vector(n: int, group: str, name: str, exponent: int = 1, role: str = "bias") -> AxisAction:
    eps = EPS if exponent == 2 else 0.0
    return AxisAction(name, 0, (Segment(group, 0, 1, n),), exponent, role == "gain", role, eps=eps)


def norm(n: int, before: str, after: str, name: str) -> list[AxisAction]:
    return [
        vector(n, before, f"{name}.mean", 1, "mean"),
        vector(n, before, f"{name}.var", 2, "variance"),
        replace(vector(n, after, f"{name}.gamma", 1, "gain"), signs=(Segment(before, 0, 1, n),)),
        vector(n, after, f"{name}.beta", 1, "shift"),
    ]


def normalised_outputs(weights: Weights, mean: float = 1.0) -> np.ndarray:
    held = {name: array.astype(np.float64) for name, array in weights.items()}

    def normed(name: str, values: np.ndarray) -> np.ndarray:
        shifted = values - mean * held[f"{name}.mean"][:, None]
        scaled = shifted / np.sqrt(held[f"{name}.var"][:, None] + EPS)
        return held[f"{name}.gamma"][:, None] * scaled + held[f"{name}.beta"][:, None]

    stream = np.maximum(normed("n0", np.einsum("koi,bi->kbo", held["l0"], IMAGES[:, 0, :3])), 0)
    inner = np.maximum(normed("n1", np.einsum("koi,kbi->kbo", held["l1"], stream)), 0)
    written = np.einsum("koi,kbi->kbo", held["l2"], inner) + held["l2.bias"][:, None]
    stream = np.maximum(stream + normed("n2", written), 0)
    return np.einsum("koi,kbi->kbo", held["l3"], stream)


NORMALISED = Net(
    Symmetry(
        (
            Group("l0", 4, Sym(), "nonzero"),
            Group("n0", 4, Like("l0"), "positive"),
            Group("l1", 5, Sym(), "nonzero"),
            Group("n1", 5, Like("l1"), "positive"),
            Group("l2", 4, Like("l0"), "nonzero"),
        ),
        (
            *dense(4, "l0", "l0"),
            *norm(4, "l0", "n0", "n0"),
            *dense(5, "l1", "l1", ("n0", 4)),
            *norm(5, "l1", "n1", "n1"),
            *dense(4, "l2", "l2", ("n1", 5)),
            vector(4, "l2", "l2.bias"),
            *norm(4, "l2", "n0", "n2"),
            *dense(2, None, "l3", ("n0", 4)),
        ),
    ),
    {
        "l0": (4, 3),
        "l1": (5, 4),
        "l2": (4, 5),
        "l2.bias": (4,),
        "l3": (2, 4),
        **{f"n{i}.{part}": (n,) for i, n in enumerate((4, 5, 4)) for part in ("mean", "var", "gamma", "beta")},
    },
    ("l0", "l1", "l2"),
    normalised_outputs,
    lambda weights: normalised_outputs({name: np.abs(array) for name, array in weights.items()}, -1.0),
)


def layers(sizes: tuple[int, ...], squash: Callable[[np.ndarray], np.ndarray]) -> Callable[[Weights], np.ndarray]:
    def outputs(weights: Weights) -> np.ndarray:
        held = {name: array.astype(np.float64) for name, array in weights.items()}
        values = np.repeat(IMAGES[None, :, 0, : sizes[0]], len(held["w0"]), axis=0)
        for layer in range(len(sizes) - 1):
            values = np.einsum("koi,kbi->kbo", held[f"w{layer}"], values) + held[f"b{layer}"][:, None]
            values = squash(values) if layer < len(sizes) - 2 else values
        return values

    return outputs


def mlp(sizes: tuple[int, ...], scale: str, squash: Callable[[np.ndarray], np.ndarray]) -> Net:
    last = len(sizes) - 2
    actions: list[AxisAction] = []
    for layer, n in enumerate(sizes[1:]):
        reads = ((f"h{layer - 1}", sizes[layer]),) if layer else ()
        actions += dense(n, f"h{layer}" if layer < last else None, f"w{layer}", *reads)
        actions += [vector(n, f"h{layer}", f"b{layer}")] if layer < last else []
    shapes = {f"w{layer}": (n, sizes[layer]) for layer, n in enumerate(sizes[1:])}
    return Net(
        Symmetry(tuple(Group(f"h{i}", n, Sym(), scale) for i, n in enumerate(sizes[1:-1])), tuple(actions)),
        shapes | {f"b{layer}": (n,) for layer, n in enumerate(sizes[1:])},
        tuple(f"w{layer}" for layer in range(last)),
        layers(sizes, squash),
        absolute(layers(sizes, lambda values: values)),
    )


UNSIGNED = replace(
    NORMALISED,
    table=Symmetry(
        tuple(replace(group, scale="positive") for group in NORMALISED.table.groups),
        tuple(replace(action, signs=()) for action in NORMALISED.table.actions),
    ),
)
"""The table of zoos that were written before signs in front of a BatchNorm were known."""
NORMED = (NORMALISED, UNSIGNED)
TANH = mlp((3, 4, 5, 2), "sign", np.tanh)
ONE_INPUT = mlp((1, 6, 4, 2), "positive", lambda values: np.maximum(values, 0))

ANGLES = np.arange(4)[:, None] * np.array([1.0, 0.1])
TURNS = np.stack([np.cos(ANGLES), -np.sin(ANGLES), np.sin(ANGLES)])
"""For the 2 pairs of a head at each of 4 tokens."""


def rotary_outputs(weights: Weights, turns: np.ndarray = TURNS) -> np.ndarray:
    q, k, v, o = (weights[name].astype(np.float64) for name in "qkvo")
    tokens = IMAGES[:, 0, :12].reshape(3, 4, 3)

    def rotated(rows: np.ndarray) -> np.ndarray:
        """Channel j of a head is turned with channel j + 2 of it."""
        first, second = np.einsum("kphjc,btc->pkbthj", rows.reshape(K, 2, 2, 2, 3).swapaxes(1, 2), tokens)
        cos, minus_sin, sin = turns[:, :, None]
        return np.concatenate([first * cos + second * minus_sin, second * cos + first * sin], axis=-1)

    scores = np.einsum("kbthj,kbshj->kbths", rotated(q), rotated(k))
    values = np.einsum("khjc,btc->kbthj", v.reshape(K, 2, 2, 3), tokens)
    return np.einsum("koi,kbti->kbto", o, np.einsum("kbths,kbshj->kbthj", scores, values).reshape(K, 3, 4, 4))


PAIRS = tuple(Segment("pairs", offset, 1, 2) for offset in (0, 4, 2, 6))
ROTARY = Net(
    Symmetry(
        (
            Group("pairs", 4, Wreath("heads", 2, 2, "fixed"), "nonzero"),
            Group("values", 4, Wreath("heads", 2, 2), "nonzero"),
        ),
        (
            AxisAction("q", 0, PAIRS, 1, True, "out"),
            AxisAction("k", 0, PAIRS, -1, True, "out"),
            AxisAction("v", 0, (Segment("values", 0, 1, 4),), 1, True, "out"),
            AxisAction("o", 1, (Segment("values", 0, 1, 4),), -1, True, "in"),
        ),
    ),
    {"q": (8, 3), "k": (8, 3), "v": (4, 3), "o": (2, 4)},
    ("q", "k", "v"),
    rotary_outputs,
    absolute(lambda weights: rotary_outputs(weights, np.abs(TURNS))),
)


def gated_outputs(weights: Weights, act: Callable[[np.ndarray], np.ndarray] = lambda x: np.maximum(x, 0)) -> np.ndarray:
    held = {name: array.astype(np.float64) for name, array in weights.items()}
    gate = np.einsum("koi,bi->kbo", held["gate"], IMAGES[:, 0, :3]) + held["gate.bias"][:, None]
    up = np.einsum("koi,bi->kbo", held["up"], IMAGES[:, 0, :3])
    return np.einsum("koi,kbi->kbo", held["down"], act(gate) * up)


GATED = Net(
    Symmetry(
        (Group("gate", 4, Sym(), "positive"), Group("up", 4, Like("gate"), "nonzero")),
        (
            *dense(4, "gate", "gate"),
            vector(4, "gate", "gate.bias"),
            *dense(4, "up", "up"),
            AxisAction("down", 1, (Segment("up", 0, 1, 4),), -1, True, "in", gates=(Segment("gate", 0, 1, 4),)),
        ),
    ),
    {"gate": (4, 3), "gate.bias": (4,), "up": (4, 3), "down": (2, 4)},
    ("gate", "up"),
    gated_outputs,
    absolute(lambda weights: gated_outputs(weights, lambda values: values)),
)
"""A gated unit whose gate is a ReLU."""

SIGNED = (TANH, NORMALISED, ROTARY, GATED)
"""Where sums of weights and gains vanish together, the signs of channels are not determined."""

nets = st.sampled_from([OPTUNET, POINTWISE, *NORMED, TANH, ONE_INPUT, ROTARY, GATED])
seeds = st.integers(0, 2**32 - 1)
gauges = st.sampled_from(sorted(GAUGES))
scalings = st.sampled_from(["min-mass", "unit-norm", "unit-std"])
floats = st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
many = settings(max_examples=examples(400, FEW_EXAMPLES), deadline=None)
few = settings(max_examples=examples(100, FEW_EXAMPLES), deadline=None)


def normal(net: Net, seed: int, dtype: type = np.float64) -> Weights:
    rng = np.random.default_rng(seed)
    made = {name: rng.standard_normal((K, *shape)) for name, shape in net.shapes.items()}
    made |= {name: 0.5 + np.abs(array) for name, array in made.items() if name.endswith("var")}
    return {name: array.astype(dtype) for name, array in made.items()}


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
    for name in net.shapes:
        if name.endswith((".var", ".gamma")) and draw(st.booleans()):
            odd = [0.0, 3e-6, 0.5] if name.endswith(".var") else [0.0, -1.0, -0.3]
            weights[name][:, draw(st.integers(0, net.shapes[name][0] - 1))] = draw(st.sampled_from(odd))
        if name.endswith((".beta", "bias", "b0", "b1")) and draw(st.booleans()):
            weights[name][:] = 0
    dtype = draw(floats)
    return net, {name: array.astype(dtype) for name, array in weights.items()}


def element(net: Net, seed: int, *, spread: float = 0.5) -> GroupElement:
    return GroupElement.random(net.table, K, np.random.default_rng(seed), spread=spread)


def raised(g: GroupElement, weights: Weights) -> GroupElement:
    """The element with its scales in front of BatchNorms raised to where the running variances stay positive."""
    scales = dict(g.scales)
    for group, name in (("l0", "n0"), ("l1", "n1"), ("l2", "n2")):
        least = np.sqrt(EPS / (np.take_along_axis(weights[f"{name}.var"], g.perms[group], 1) + EPS))
        scales[group] = np.sign(scales[group]) * np.maximum(np.abs(scales[group]), least)
    return GroupElement(g.perms, scales)


def assert_same_function(net: Net, one: Weights, two: Weights, tolerance: float) -> None:
    """Outputs differ by at most the tolerance times the sum of absolute contributions to them."""
    bound = net.size(one)
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
    g = element(net, seed) if net not in NORMED else raised(element(net, seed), double)
    assert_same_function(net, double, apply(g, double, net.table), 1e-12)


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
        atol = 4 * rtol * EPS if name.endswith("var") else 0
        np.testing.assert_allclose(back[name], array.astype(back[name].dtype), rtol=rtol, atol=atol, err_msg=name)


@few
@given(any_weights(), seeds)
def test_raw_comes_back_exactly_from_permutations(drawn: tuple[Net, Weights], seed: int) -> None:
    net, weights = drawn
    g = element(net, seed, spread=0)
    back = apply(g.inverse(), apply(g, weights, net.table), net.table)
    assert_equal({name: array.astype(weights[name].dtype) for name, array in back.items()}, weights)


def permuted(net: Net, weights: Weights, seed: int) -> Weights:
    g = element(net, seed, spread=0)
    return {name: array.astype(weights[name].dtype) for name, array in apply(g, weights, net.table).items()}


def rows_of(made: Canonical, rows: np.ndarray) -> Weights:
    return {name: array[rows] for name, array in made.weights.items()}


def assert_same_report(one: Canonical, two: Canonical) -> None:
    rows = ~one.report.unresolved
    np.testing.assert_array_equal(one.report.unresolved, two.report.unresolved)
    for field in fields(one.report):
        first, second = getattr(one.report, field.name), getattr(two.report, field.name)
        np.testing.assert_array_equal(first[rows], second[rows], field.name)


@many
@given(any_weights(), seeds)
def test_canonical_is_invariant_under_permutations_bit_for_bit(drawn: tuple[Net, Weights], seed: int) -> None:
    net, weights = drawn
    one, two = canonicalize(weights, net.table), canonicalize(permuted(net, weights, seed), net.table)
    assert_same_report(one, two)
    rows = ~one.report.unresolved
    assert rows.all() or net in SIGNED
    assert_equal(rows_of(one, rows), rows_of(two, rows))


@many
@given(any_weights(), seeds)
def test_canonical_is_invariant_under_the_whole_group_with_ties(drawn: tuple[Net, Weights], seed: int) -> None:
    """Scales are powers of two, which round nothing; where variances allow them."""
    net, weights = drawn
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    g = element(net, seed)
    g = GroupElement(
        g.perms, {name: np.sign(s) * 2.0 ** np.round(2 * np.log2(np.abs(s))) for name, s in g.scales.items()}
    )
    if net in NORMED:
        least = {name: 2.0 ** np.ceil(np.log2(np.abs(s))) for name, s in raised(g, weights).scales.items()}
        g = GroupElement(
            g.perms, {name: np.sign(s) * np.maximum(np.abs(s), least[name]) for name, s in g.scales.items()}
        )
    one, two = canonicalize(weights, net.table), canonicalize(apply(g, weights, net.table), net.table)
    rows = ~(one.report.unresolved | two.report.unresolved)
    assert (rows | (one.report.dead > 0)).all() or net in SIGNED
    for name, array in rows_of(one, rows).items():
        np.testing.assert_allclose(array, two.weights[name][rows], rtol=1e-12, atol=1e-12, err_msg=name)


@few
@given(nets, seeds, seeds, floats)
def test_first_weight_is_invariant_under_permutations_bit_for_bit(net: Net, a: int, b: int, dtype: type) -> None:
    weights = normal(net, a, dtype)
    one = canonicalize(weights, net.table, gauge="first-weight")
    two = canonicalize(permuted(net, weights, b), net.table, gauge="first-weight")
    assert_same_report(one, two)
    rows = one.report.ties == 0
    assert_equal(rows_of(one, rows), rows_of(two, rows))


@few
@given(nets, seeds, seeds, st.sampled_from(["canonical", "first-weight"]))
def test_orders_are_invariant_under_the_whole_group_to_rounding(net: Net, a: int, b: int, gauge: str) -> None:
    weights = normal(net, a)
    one = canonicalize(weights, net.table, gauge=gauge)
    two = canonicalize(apply(element(net, b), weights, net.table), net.table, gauge=gauge)
    rows = (one.report.margin > 1e-9) | (net is ONE_INPUT and gauge == "canonical")
    assert rows.any() or net is ONE_INPUT
    assert_close(rows_of(one, rows), rows_of(two, rows), 1e-10)


@few
@given(nets, seeds, seeds, scalings)
def test_a_scaling_is_invariant_under_scales_and_equivariant_under_permutations(
    net: Net, a: int, b: int, gauge: str
) -> None:
    weights, g = normal(net, a), element(net, b)
    if "pinned scales" in GAUGES[gauge].collapses:
        normalised = {item.group for act in net.table.actions if act.exponent == 2 for item in act.segments}
        g = GroupElement(g.perms, {name: np.ones_like(s) if name in normalised else s for name, s in g.scales.items()})
    only = GroupElement(g.perms, GroupElement.identity(net.table, K).scales)
    one = apply(only, canonicalize(weights, net.table, gauge=gauge).weights, net.table)
    two = canonicalize(apply(g, weights, net.table), net.table, gauge=gauge).weights
    assert_close(one, two, 1e-10 if gauge == "unit-norm" else 1e-7)


@few
@given(any_weights(), seeds, st.sampled_from(["unit-norm", "unit-std"]))
def test_a_scaling_is_equivariant_under_permutations_bit_for_bit(
    drawn: tuple[Net, Weights], seed: int, gauge: str
) -> None:
    net, weights = drawn
    g = GroupElement(element(net, seed).perms, GroupElement.identity(net.table, K).scales)
    moved = {name: array.astype(weights[name].dtype) for name, array in apply(g, weights, net.table).items()}
    one = apply(g, canonicalize(weights, net.table, gauge=gauge).weights, net.table)
    assert_equal(one, canonicalize(moved, net.table, gauge=gauge).weights)


@few
@given(any_weights(), seeds)
def test_min_mass_is_equivariant_under_permutations_to_rounding(drawn: tuple[Net, Weights], seed: int) -> None:
    """A checkpoint that balances to rounding before it is permuted may not do so after."""
    net, weights = drawn
    g = GroupElement(element(net, seed).perms, GroupElement.identity(net.table, K).scales)
    moved = {name: array.astype(weights[name].dtype) for name, array in apply(g, weights, net.table).items()}
    one = apply(g, canonicalize(weights, net.table, gauge="min-mass").weights, net.table)
    two = canonicalize(moved, net.table, gauge="min-mass")
    assert two.report.gauged.all()
    rtol = 1e-9 if weights[net.neurons[0]].dtype == np.float64 else 1e-5
    for name, array in one.items():
        np.testing.assert_allclose(array, two.weights[name], rtol=rtol, atol=1e-3 * rtol, err_msg=name)


@few
@given(any_weights(), gauges, st.lists(st.booleans(), min_size=K, max_size=K))
def test_checkpoints_do_not_know_each_other(drawn: tuple[Net, Weights], gauge: str, rows: list[bool]) -> None:
    net, weights = drawn
    chosen = np.flatnonzero(rows)
    together = canonicalize(weights, net.table, gauge=gauge)
    apart = canonicalize({name: array[chosen] for name, array in weights.items()}, net.table, gauge=gauge)
    assert_equal({name: array[chosen] for name, array in together.weights.items()}, apart.weights)
    for field in fields(apart.report):
        np.testing.assert_array_equal(getattr(together.report, field.name)[chosen], getattr(apart.report, field.name))

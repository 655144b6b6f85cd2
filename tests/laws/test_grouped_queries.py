"""Laws of groups that act inside the channels of others: heads of queries that share heads of keys and values.

A linear attention of four heads of queries and two of keys, with and without rotary embeddings, and the count of an
attention with and without shared heads.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.learning.forms.graph import GraphForm
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction, Group, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import (
    GroupElement,
    align,
    apply,
    canonicalize,
    count,
    fingerprint,
    pair_distances,
)
from tests.support.effort import FEW_EXAMPLES, examples

K, HEADS, SHARED, WIDTH, TOKENS = 2, 4, 2, 4, 5
Weights = dict[str, np.ndarray]
SHAPES = {
    "q": (HEADS * WIDTH, 3),
    "k": (SHARED * WIDTH, 3),
    "v": (SHARED * WIDTH, 3),
    "o": (2, HEADS * WIDTH),
}
ARCHITECTURE = Architecture("attention", tuple(Tensor(name, shape) for name, shape in SHAPES.items()))
seeds = st.integers(0, 2**32 - 1)
law = settings(max_examples=examples(100, FEW_EXAMPLES), deadline=None)


def table(rotary: bool) -> Symmetry:
    """With rotary embeddings channel j of a head is turned with channel ``j + WIDTH / 2``."""
    n = SHARED * WIDTH
    if rotary:
        half = WIDTH // 2
        pairs = Group("qk", SHARED * half, Wreath("kv", SHARED, half, "fixed"), "nonzero")
        rows = tuple(
            Segment("q", offset + head * WIDTH, half, 1, None, "qk") for offset in (0, half) for head in range(HEADS)
        )
        keys = tuple(Segment("qk", offset + head * WIDTH, 1, half) for offset in (0, half) for head in range(SHARED))
    else:
        pairs = Group("qk", n, Wreath("kv", SHARED, WIDTH), "nonzero")
        rows, keys = (Segment("q", 0, WIDTH, HEADS, None, "qk"),), (Segment("qk", 0, 1, n),)
    return Symmetry(
        (
            pairs,
            Group("vo", n, Wreath("kv", SHARED, WIDTH), "nonzero"),
            Group("q", HEADS, Wreath("kv", SHARED, HEADS // SHARED), "none"),
        ),
        (
            AxisAction("q", 0, rows, 1, True, "out"),
            AxisAction("k", 0, keys, -1, True, "out"),
            AxisAction("v", 0, (Segment("vo", 0, 1, n),), 1, True, "out"),
            AxisAction("o", 1, (Segment("q", 0, WIDTH, HEADS, None, "vo"),), -1, True, "in"),
        ),
    )


def outputs(weights: Weights, rotary: bool) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((TOKENS, 3))
    q, k, v = (np.einsum("phjc,tc->phtj", weights[name].reshape(len(weights[name]), -1, WIDTH, 3), x) for name in "qkv")
    k, v = np.repeat(k, HEADS // SHARED, 1), np.repeat(v, HEADS // SHARED, 1)
    if rotary:
        angles = np.arange(TOKENS)[:, None] * np.array([1.0, 0.1])
        cos, sin = np.cos(angles), np.sin(angles)

        def turned(values: np.ndarray) -> np.ndarray:
            first, second = np.split(values, 2, axis=-1)
            return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

        q, k = turned(q), turned(k)
    heads = (q @ k.swapaxes(2, 3)) @ v
    return np.einsum("poi,pti->pto", weights["o"], heads.swapaxes(1, 2).reshape(len(heads), TOKENS, -1))


@st.composite
def any_weights(draw: st.DrawFn) -> Weights:
    """Normal weights, or of few values so that channels and heads tie, with heads equal but for the order of channels.

    The few are positive, so that all sums have a sign.
    """
    rng = np.random.default_rng(draw(seeds))
    made = {name: rng.standard_normal((K, *shape)) for name, shape in SHAPES.items()}
    if levels := draw(st.sampled_from([0, 0, 1, 2])):
        made = {name: 1 + np.abs(np.round(array * levels)) for name, array in made.items()}
    if draw(st.booleans()):
        made["q"][:, WIDTH : 2 * WIDTH] = made["q"][:, :WIDTH]
    if draw(st.booleans()):
        made["k"][:, WIDTH:] = made["k"][:, :WIDTH][:, ::-1]
    return made


def element(seed: int, rotary: bool, spread: float) -> GroupElement:
    return GroupElement.random(table(rotary), K, np.random.default_rng(seed), spread=spread)


@law
@given(any_weights(), seeds, seeds, st.booleans())
def test_the_function_stays_and_elements_compose(weights: Weights, a: int, b: int, rotary: bool) -> None:
    g, h = element(a, rotary, 0.5), element(b, rotary, 0.5)
    expected = outputs(weights, rotary)
    moved = apply(g, weights, table(rotary))
    scale = 1e-12 * outputs({name: np.abs(array) for name, array in weights.items()}, rotary=False).max(initial=1)
    np.testing.assert_allclose(outputs(moved, rotary), expected, rtol=0, atol=scale)
    both, one = apply(h.compose(g), weights, table(rotary)), apply(h, moved, table(rotary))
    back = apply(g.inverse(), moved, table(rotary))
    for name, array in weights.items():
        np.testing.assert_allclose(both[name], one[name], rtol=1e-13)
        np.testing.assert_allclose(back[name], array, rtol=1e-13)


@law
@given(any_weights(), seeds, st.booleans())
def test_canonical_is_the_same_bits_in_every_order(weights: Weights, seed: int, rotary: bool) -> None:
    one = canonicalize(weights, table(rotary))
    two = canonicalize(apply(element(seed, rotary, 0.0), weights, table(rotary)), table(rotary))
    assert not one.report.unresolved.any() and not two.report.unresolved.any()
    for name, array in one.weights.items():
        assert (array == two.weights[name]).all(), name
    np.testing.assert_allclose(outputs(one.weights, rotary), outputs(weights, rotary), rtol=1e-9, atol=1e-9)
    again = canonicalize(one.weights, table(rotary)).weights
    assert all((again[name] == array).all() for name, array in one.weights.items())


@law
@given(seeds, seeds, seeds, st.booleans())
def test_two_random_disguises_have_one_canonical_form(a: int, b: int, c: int, rotary: bool) -> None:
    rng = np.random.default_rng(a)
    weights = {name: rng.standard_normal((K, *shape)) for name, shape in SHAPES.items()}
    one, two = (
        canonicalize(apply(element(seed, rotary, 0.5), weights, table(rotary)), table(rotary)) for seed in (b, c)
    )
    rows = one.report.margin > 1e-8
    for name, array in one.weights.items():
        np.testing.assert_allclose(array[rows], two.weights[name][rows], rtol=1e-10, atol=1e-11)


def test_a_disguise_in_single_precision_has_the_fingerprint() -> None:
    weights = {
        name: np.random.default_rng(0).standard_normal((K, *shape)).astype("f4") for name, shape in SHAPES.items()
    }
    moved = apply(element(1, True, 0.0), weights, table(True))
    prints = [fingerprint(canonicalize(item, table(True))) for item in (weights, moved)]
    assert prints[0] == prints[1] and prints[0][0] != prints[0][1] and None not in prints[0]


@pytest.mark.parametrize(("rotary", "inside"), [(False, 24**4), (True, 24**2)])
def test_the_heads_of_queries_add_a_wreath_product(rotary: bool, inside: int) -> None:
    """Of S_2 wr S_2, 8 elements, the exchange of the heads of keys and values counts with these."""
    assert count(table(rotary)).permutations == 8 * inside


def test_an_attention_with_as_many_heads_of_keys_as_of_queries() -> None:
    """The known answer for d 12, h 3, written with a group of heads inside which others act, and without."""
    block, n = Wreath("heads", 3, 4), 12
    groups = (Group("qk", n, block, "nonzero"), Group("vo", n, block, "nonzero"))
    heads = Group("q", 3, Wreath("heads", 3, 1), "none")
    found: list[int] = []
    for nested in (False, True):
        rows = Segment("q", 0, 4, 3, None, "qk") if nested else Segment("qk", 0, 1, n)
        actions = (
            AxisAction("q", 0, (rows,), 1, True, "out"),
            AxisAction("k", 0, (Segment("qk", 0, 1, n),), -1, True, "out"),
            AxisAction("v", 0, (Segment("vo", 0, 1, n),), 1, True, "out"),
        )
        made = Symmetry((*groups, heads) if nested else groups, actions)
        found.append(count(made).permutations)
        weights = {name: np.random.default_rng(0).standard_normal((1, n, 5)) for name in "qkv"}
        g = GroupElement.random(made, 1, np.random.default_rng(1))
        plain = GroupElement({name: g.perms[name] for name in ("qk", "vo")}, g.scales)
        flat = Symmetry(
            groups,
            tuple(
                AxisAction(a.tensor, 0, (Segment("vo" if a.tensor == "v" else "qk", 0, 1, n),), a.exponent, True, "out")
                for a in actions
            ),
        )
        for name, array in apply(g, weights, made).items():
            np.testing.assert_array_equal(array, apply(plain, weights, flat)[name])
    assert found == [1_146_617_856] * 2


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (
            lambda stack: canonicalize(stack, table(False), gauge="first-weight"),
            "group 'q': expected channels whose first",
        ),
        (lambda _: GraphForm(ARCHITECTURE, table(False)), "graph: group 'qk': expected each position"),
        (
            lambda stack: align(stack, stack, table(False), scales="fit"),
            "align: scales 'fit': expected a table without groups inside the channels of others",
        ),
        (
            lambda stack: align(stack, stack, table(False), method="activations", activations={}),
            r"align: method 'activations': .*unnested\(table\)",
        ),
        (
            lambda stack: pair_distances(stack, table(True)),
            r"group 'qk': expected groups that permute .*unnested\(table\)",
        ),
    ],
)
def test_what_is_not_defined_there_is_refused_by_name(act: Callable[[Weights], object], says: str) -> None:
    with pytest.raises(SymmetryError, match=says):
        act({name: np.ones((2, *shape)) for name, shape in SHAPES.items()})

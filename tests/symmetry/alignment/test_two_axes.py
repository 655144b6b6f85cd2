"""Alignment where a group is on two axes of a tensor, as in recurrent layers: planted permutations, brute force."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.derive.variant_rule import ActivationMatching, AlignmentRule
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply
from tests.support.effort import examples
from tests.support.matrix_tables import Shapes, decoder, repeated, weights_of
from tests.support.symmetry_tables import Network, networks


def recurrent(n: int, layers: int = 1, gates: int = 1, *, like: bool = False) -> tuple[Symmetry, Shapes]:
    """Layers whose states are written from themselves, with as many gates, and that are read through a copy or not."""
    groups: list[Group] = []
    actions: list[AxisAction] = []
    shapes: dict[str, tuple[int, ...]] = {}
    before, size = None, 3
    for layer in range(layers):
        state, hidden = f"state{layer}", f"hidden{layer}"
        groups.append(Group(state, n, Sym(), "none"))
        if like:
            groups.append(Group(hidden, n, Like(state), "sign"))
        read = hidden if like else state
        rows = tuple(Segment(state, gate * n, 1, n) for gate in range(gates))
        for name, source, width in ((f"in{layer}", before, size), (f"again{layer}", read, n)):
            actions.append(AxisAction(name, 0, rows, 1, True, "out"))
            if source is not None:
                actions.append(AxisAction(name, 1, (Segment(source, 0, 1, n),), -1, True, "in"))
            shapes[name] = (gates * n, width)
        before, size = read, n
    assert before is not None
    actions.append(AxisAction("out", 1, (Segment(before, 0, 1, n),), -1, True, "in"))
    return Symmetry(tuple(groups), tuple(actions)), shapes | {"out": (2, n)}


TABLES = {
    "a recurrent layer": recurrent(12),
    "gates": recurrent(12, gates=4),
    "two layers": recurrent(8, layers=2),
    "read through a copy": recurrent(8, layers=2, gates=3, like=True),
}


def heads_on_two_axes() -> Symmetry:
    """A tensor whose axes both have heads of queries, inside which a shared head of keys acts elsewhere."""
    groups = (
        Group("heads", 4, Wreath("kv", 2, 2), "none"),
        Group("qk", 4, Wreath("kv", 2, 2), "linear"),
    )
    heads = (Segment("heads", 0, 1, 4),)
    return Symmetry(
        groups,
        (
            AxisAction("q", 0, (Segment("heads", 0, 2, 4, within="qk"),), 1, True, "out"),
            AxisAction("k", 0, (Segment("qk", 0, 1, 4),), -1, True, "out"),
            AxisAction("w", 0, heads, 0, True, "out"),
            AxisAction("w", 1, heads, 0, True, "out"),
        ),
    )


def convolution_in_groups() -> tuple[Symmetry, Shapes]:
    """A convolution in groups whose third axis has the channels of the first again."""
    groups = (Group("units", 6, Wreath("o", 2, 3), "none"), Group("heads", 4, Wreath("o", 2, 2), "none"))
    units, heads = ((Segment(group.id, 0, 1, group.n),) for group in groups)
    return Symmetry(
        groups,
        (
            AxisAction("grouped", 0, heads, 1, True, "out"),
            AxisAction("grouped", 1, units, -1, True, "in", blocks=2),
            AxisAction("grouped", 2, heads, -1, True, "in"),
            AxisAction("units.bias", 0, units, 1, False, "bias"),
        ),
    ), {"grouped": (4, 3, 4), "units.bias": (6,)}


def permuted(table: Symmetry, K: int, seed: int) -> GroupElement:
    made = GroupElement.random(table, K, np.random.default_rng(seed))
    return GroupElement(made.perms, GroupElement.identity(table, K).scales)


@pytest.mark.parametrize(("name", "least"), list(zip(TABLES, (18, 18, 12, 18), strict=True)))
def test_planted_permutations_are_found(name: str, least: int) -> None:
    """Of 20 networks under noise of half the weights: all, and most where the search has to begin at another order."""
    table, shapes = TABLES[name]
    reference, g = weights_of(shapes, 1, 1, np.float32), permuted(table, 20, 2)
    noise = weights_of(shapes, 20, 3, np.float32)
    noisy = {key: value + np.float32(0.5) * noise[key] for key, value in repeated(reference, 20).items()}
    undone, counts = g.inverse(), {}
    for start in ("signature", "identity"):
        found = align(apply(g, noisy, table), reference, table, start=start)
        found.element.check(table)
        same = [(found.element.perms[key] == perm).all(axis=1) for key, perm in undone.perms.items()]
        counts[start] = int(np.all(same, axis=0).sum())
    assert counts["signature"] == 20 and counts["identity"] >= least
    exact = align(apply(g, repeated(reference, 20), table), reference, table)
    np.testing.assert_array_equal(exact.distance, 0)


@given(net=networks(), seed=st.integers(0, 2**32))
@settings(max_examples=examples(200, 10), deadline=None)
def test_the_value_rises_from_the_start_on(net: Network, seed: int) -> None:
    weights, reference = net.weights(2, seed), net.weights(1, seed + 1)
    found = align(weights, reference, net.table, start="identity")
    start = sum(
        (np.square(value - reference[name])).reshape(2, -1).sum(axis=1)
        for name, value in weights.items()
        if value.dtype.kind == "f" and name not in net.variances
    )
    assert (found.distance**2 <= start * (1 + 1e-12)).all()


@pytest.mark.parametrize("make", [convolution_in_groups, lambda: recurrent(6)])
def test_a_search_from_where_one_ended_finds_nothing_better(make: Callable[[], tuple[Symmetry, Shapes]]) -> None:
    table, shapes = make()
    reference = weights_of(shapes, 1, 1)
    found = align(weights_of(shapes, 40, 2), reference, table, start="identity")
    again = align(found.weights, reference, table, start="identity")
    assert (again.sweeps <= 1).all() and (found.sweeps > 1).any()
    np.testing.assert_array_equal(again.value, found.value)


def test_brute_force_over_a_recurrent_layer() -> None:
    """All 120 orders of five channels: none is better than the best, which is found for 21 of 40 unrelated networks."""
    table, shapes = recurrent(5)
    weights, reference = weights_of(shapes, 40, 1), weights_of(shapes, 1, 2)
    found = align(weights, reference, table)
    best = np.full(40, -np.inf)
    for order in itertools.permutations(range(5)):
        moved = apply(GroupElement({"state0": np.tile(order, (40, 1))}, {}), weights, table)
        best = np.maximum(best, sum((moved[key] * reference[key]).reshape(40, -1).sum(axis=1) for key in moved))
    assert (found.value <= best + 1e-12 * np.abs(best)).all() and (found.value <= found.bound).all()
    assert (found.value >= best - 1e-12 * np.abs(best)).sum() >= 20


def test_the_version_is_another_one_for_these_tables_alone() -> None:
    """Also where it is heads within blocks that are on two axes, beside matrices."""
    table, shapes = TABLES["gates"]
    reference = {name: value[0] for name, value in weights_of(shapes, 1, 1).items()}
    by_activations = ActivationMatching(None, "", 1, "")
    for activations, scales, version in ((None, "fixed", 4), (None, "fit", 4), (by_activations, "fixed", 1)):
        assert AlignmentRule("x", reference, "", None, activations, scales).facts(table)["version"] == version
    for name in ("optunet", "mlp-4-8-8-2", "resnet8-conv-3"):
        arch = archs.architecture(name)
        empty = {item.name: np.zeros(item.shape, item.dtype) for item in arch.tensors}
        assert AlignmentRule("x", empty, "", None).facts(archs.symmetry(name))["version"] == 1
    table, shapes = decoder(normed=True)
    empty = {name: np.zeros(shape) for name, shape in shapes.items()}
    assert AlignmentRule("x", empty, "", None).facts(table)["version"] == 3
    # only what is compared counts: not a mask of integers
    mask = AxisAction("mask", 0, (Segment("state0", 0, 1, 3),), 0, False, "out")
    both = (mask, AxisAction("mask", 1, (Segment("state0", 0, 1, 3),), 0, False, "out"))
    masked = Symmetry((Group("state0", 3, Sym(), "none"),), both)
    for dtype, version in ((np.int64, 1), (np.float32, 4)):
        assert AlignmentRule("x", {"mask": np.zeros((3, 3), dtype)}, "", None).facts(masked)["version"] == version
    assert AlignmentRule("x", {"w": np.zeros((4, 4))}, "", None).facts(heads_on_two_axes())["version"] == 4

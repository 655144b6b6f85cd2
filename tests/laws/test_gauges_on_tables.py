"""Laws of the gauges on tables of every kind: wreaths that share blocks, Like, Fixed, signs, flattened axes, ties.

The tables are drawn without a function; what is tested is the algebra alone.
"""

from dataclasses import fields

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ckptzoo.symmetry import GAUGES, GroupElement, apply, canonicalize
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.symmetry_tables import Network, Weights, crossed, networks

K = 2
many = settings(max_examples=examples(300, FEW_EXAMPLES), deadline=None)
some = settings(max_examples=examples(120, FEW_EXAMPLES), deadline=None)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Network, Weights]:
    """A table with weights of full precision, or of few values so that channels tie, in single or double precision."""
    net = draw(networks(nested=True))
    weights = net.weights(K, draw(seeds), draw(st.sampled_from([np.float32, np.float64])))
    levels = draw(st.sampled_from([0, 0, 1, 2]))
    if levels:
        rounded = {
            name: np.round(array * levels) / levels for name, array in weights.items() if array.dtype.kind == "f"
        }
        weights |= {name: np.abs(array) if name in net.variances else array for name, array in rounded.items()}
    return net, weights


def forward(net: Network) -> bool:
    """Whether all tensors write groups behind those on their other axes, as tables of networks do."""
    places = {group.id: at for at, group in enumerate(net.table.groups)}
    for name in net.shapes:
        for act in net.table.actions_on(name):
            others = [item for other in net.table.actions_on(name) if other is not act for item in other.segments]
            if act.exponent == 1 and any(
                places[net.table.leader(item.group).id] > min(places[mine.group] for mine in act.segments)
                for item in others
            ):
                return False
    return True


def weighed(net: Network) -> bool:
    """Whether every tensor's mass is that of edges: one scaled axis that writes and one that reads, at most."""
    scaled = {group.id for group in net.table.groups if group.resizes}
    scaled -= {item.group for act in net.table.actions if act.exponent == 2 for item in act.segments}
    for name in net.shapes:
        acting = [act for act in net.table.actions_on(name) if act.groups & scaled]
        exponents = [act.exponent for act in acting if act.exponent and act.in_mass]
        if len(exponents) > len(set(exponents)) or any(len(act.parts) > 1 for act in net.table.actions_on(name)):
            return False
    return True


def assert_same(one: Weights, two: Weights, rows: np.ndarray) -> None:
    for name, array in one.items():
        np.testing.assert_array_equal(array[rows], two[name][rows], err_msg=name)


@many
@given(cases(), seeds)
def test_canonical_is_invariant_under_permutations_bit_for_bit(case: tuple[Network, Weights], seed: int) -> None:
    net, weights = case
    g = net.element(K, seed)
    only = GroupElement(g.perms, GroupElement.identity(net.table, K).scales)
    one, two = canonicalize(weights, net.table), canonicalize(apply(only, weights, net.table), net.table)
    rows = ~one.report.unresolved
    np.testing.assert_array_equal(one.report.unresolved, two.report.unresolved)
    assert_same(one.weights, two.weights, rows)
    for field in fields(one.report):
        np.testing.assert_array_equal(getattr(one.report, field.name)[rows], getattr(two.report, field.name)[rows])


@many
@given(cases(), st.sampled_from(sorted(GAUGES)))
def test_gauges_are_idempotent_and_apply_their_element(case: tuple[Network, Weights], gauge: str) -> None:
    net, weights = case
    written = {item.group for action in net.table.actions if action.exponent == 1 for item in action.segments}
    ordered = written == {group.id for group in net.table.groups} and forward(net)
    nested = any(item.within for action in net.table.actions for item in action.segments)
    assume(not crossed(net) and (gauge != "first-weight" or (ordered and not nested)))
    assume(gauge != "min-mass" or weighed(net))
    made = canonicalize(weights, net.table, gauge=gauge)
    made.element.check(net.table)
    assert_same(apply(made.element, weights, net.table), made.weights, made.report.gauged)
    rows = made.report.gauged & ~made.report.unresolved
    assert_same(canonicalize(made.weights, net.table, gauge=gauge).weights, made.weights, rows)


@many
@given(networks(nested=True), seeds, seeds)
def test_canonical_collapses_scales_to_rounding(net: Network, a: int, b: int) -> None:
    assume(not crossed(net))
    weights = net.weights(K, a)
    one = canonicalize(weights, net.table)
    two = canonicalize(apply(net.element(K, b), weights, net.table), net.table)
    rows = (one.report.margin > 1e-8) & ~one.report.unresolved
    for name, array in one.weights.items():
        np.testing.assert_allclose(array[rows], two.weights[name][rows], rtol=1e-9, atol=1e-9, err_msg=name)


@some
@given(networks(nested=True), seeds, seeds)
def test_min_mass_collapses_pinned_scales_and_follows_permutations(net: Network, a: int, b: int) -> None:
    """Sizes of channels with a running variance stay, and signs that a gain takes; the rest where signs are open."""
    assume(not crossed(net) and weighed(net))
    weights, g = net.weights(K, a), net.element(K, b)
    pinned = {item.group for act in net.table.actions if act.exponent == 2 for item in act.segments}
    absorbed = {item.group for act in net.table.actions for item in act.signs}
    absorbed |= {name for name in pinned if net.table[name].scale == "nonzero"}
    scales = {name: np.sign(s) if name in pinned else s for name, s in g.scales.items()}
    g = GroupElement(g.perms, {name: np.abs(s) if name in absorbed else s for name, s in scales.items()})
    only = GroupElement(g.perms, GroupElement.identity(net.table, K).scales)
    one = apply(only, canonicalize(weights, net.table, gauge="min-mass").weights, net.table)
    two = canonicalize(apply(g, weights, net.table), net.table, gauge="min-mass")
    assert two.report.gauged.all()
    rows = ~two.report.unresolved
    assert rows.all() or any(group.flips for group in net.table.groups)
    for name, array in one.items():
        np.testing.assert_allclose(array[rows], two.weights[name][rows], rtol=1e-7, atol=1e-9, err_msg=name)

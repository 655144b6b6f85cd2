"""Laws of alignment, on networks and on tables of every kind: residual, wreaths that share blocks, nested, crossed."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ckptzoo.schema.groups import Fixed
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply
from ckptzoo.symmetry.alignment.align import Aligned, align
from ckptzoo.symmetry.alignment.nested_matching import moves_two_axes
from tests.laws.test_symmetry import K, Net, Weights, assert_same_function, element, nets, normal, raised
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.symmetry_tables import Network, networks

few = settings(max_examples=examples(150, FEW_EXAMPLES), deadline=None)
seeds = st.integers(0, 2**32 - 1)
STATISTICS = ("mean", "variance")


@st.composite
def cases(draw: st.DrawFn, *, nested: bool = True) -> tuple[Net | Network, Weights, Weights]:
    """A table with a reference (*shape) and weights (K, *shape), without ties."""
    net = draw(st.one_of(nets, networks(nested=nested)))
    if isinstance(net, Net):
        made = normal(net, draw(seeds)), normal(net, draw(seeds))
    else:
        assume(determined(net))
        made = net.weights(K, draw(seeds)), net.weights(K, draw(seeds))
    return net, {name: array[0] for name, array in made[0].items()}, made[1]


def determined(net: Network) -> bool:
    """Whether every permutation moves something that is compared."""
    names = {name for name in net.shapes if name not in net.variances | net.counts}
    moving = {group for name in names for act in net.table.actions_on(name) for group in act.listed_groups}
    followed = {net.table.leader(name).id for name in moving}
    return all(
        group.n == 1 or isinstance(group.perm, Fixed) or net.table.leader(group.id).id in followed
        for group in net.table.groups
    )


def compared(table: Symmetry, weights: Weights) -> list[str]:
    following = {action.tensor for action in table.actions if action.role in STATISTICS}
    return [name for name, array in weights.items() if array.dtype.kind == "f" and name not in following]


def product(table: Symmetry, reference: Weights, weights: Weights) -> np.ndarray:
    return np.array(
        [
            sum(float((reference[name] * weights[name][k]).sum()) for name in compared(table, weights))
            for k in range(len(next(iter(weights.values()))))
        ]
    )


def permuted(net: Net | Network, seed: int) -> GroupElement:
    return element(net, seed, spread=0.0) if isinstance(net, Net) else net.permutations(K, seed)


def unsigned(g: GroupElement) -> GroupElement:
    return GroupElement(g.perms, {name: np.ones_like(scale) for name, scale in g.scales.items()})


@few
@given(cases())
def test_what_is_said_of_the_result_is_so(drawn: tuple[Net | Network, Weights, Weights]) -> None:
    net, reference, weights = drawn
    found = align(weights, reference, net.table)
    found.element.check(net.table)
    for name, array in apply(found.element, weights, net.table).items():
        np.testing.assert_array_equal(array, found.weights[name])
    size = product(net.table, reference, {name: array[None] for name, array in reference.items()})
    tolerance = 1e-12 * (size + np.abs(found.value))
    np.testing.assert_allclose(found.value, product(net.table, reference, found.weights), rtol=0, atol=tolerance.max())
    assert (found.value <= found.bound + tolerance).all()
    distances = [
        np.sqrt(sum(((reference[name] - found.weights[name][k]) ** 2).sum() for name in compared(net.table, weights)))
        for k in range(K)
    ]
    np.testing.assert_allclose(found.distance, distances, rtol=1e-12)
    assert found.aligned.all()
    assert not found.ties.any()
    if isinstance(net, Net):
        assert_same_function(net, weights, found.weights, 1e-12)


@few
@given(cases())
def test_from_the_identity_the_value_does_not_fall(drawn: tuple[Net | Network, Weights, Weights]) -> None:
    net, reference, weights = drawn
    before = product(net.table, reference, weights)
    found = align(weights, reference, net.table, start="identity")
    assert (found.value >= before - 1e-12 * np.abs(before)).all()
    again = align(found.weights, reference, net.table, start="identity")
    assert (again.sweeps <= 1).all()
    np.testing.assert_array_equal(again.value, found.value)


@few
@given(cases(), seeds)
def test_the_result_does_not_depend_on_the_order_of_channels(
    drawn: tuple[Net | Network, Weights, Weights], seed: int
) -> None:
    net, reference, weights = drawn
    # a search where a group is on two axes of a tensor ends at a maximum that depends on where it starts
    assume(not moves_two_axes(net.table, set(reference)))
    g = unsigned(permuted(net, seed))
    assert_alike(align(weights, reference, net.table), align(apply(g, weights, net.table), reference, net.table))


@few
@given(cases())
def test_a_result_does_not_depend_on_the_others(drawn: tuple[Net | Network, Weights, Weights]) -> None:
    net, reference, weights = drawn
    together = align(weights, reference, net.table)
    for k in range(K):
        alone = align({name: array[k : k + 1] for name, array in weights.items()}, reference, net.table)
        for name, array in alone.weights.items():
            np.testing.assert_array_equal(array[0], together.weights[name][k])
        assert (alone.value[0], alone.sweeps[0]) == (together.value[k], together.sweeps[k])
        np.testing.assert_allclose(alone.bound[0], together.bound[k], rtol=1e-12)


@few
@given(cases(), seeds)
def test_copies_are_found(drawn: tuple[Net | Network, Weights, Weights], seed: int) -> None:
    net, reference, _ = drawn
    copies = {name: np.repeat(array[None], K, axis=0) for name, array in reference.items()}
    found = align(apply(unsigned(permuted(net, seed)), copies, net.table), reference, net.table)
    np.testing.assert_array_equal(found.distance, 0)
    assert (np.abs(found.gap) < 1e-14).all()


def assert_alike(one: Aligned, two: Aligned) -> None:
    for name, array in one.weights.items():
        np.testing.assert_array_equal(array, two.weights[name], err_msg=name)
    np.testing.assert_array_equal(one.value, two.value)
    np.testing.assert_allclose(one.bound, two.bound, rtol=1e-12)


@few
@given(cases(nested=False))
def test_fitted_scales_keep_the_function_and_lower_the_distance(drawn: tuple[Net | Network, Weights, Weights]) -> None:
    net, reference, weights = drawn
    start = fitted(net, reference, weights, start="identity")
    assert start.aligned.all()
    start.element.check(net.table)
    if isinstance(net, Net):
        assert_same_function(net, weights, start.weights, 1e-9)
    for name, array in apply(start.element, weights, net.table).items():
        np.testing.assert_array_equal(array, start.weights[name])
    names = compared(net.table, weights)
    for k in range(K):
        before = np.sqrt(sum(((reference[name] - weights[name][k]) ** 2).sum() for name in names))
        assert start.distance[k] <= before * (1 + 1e-12)


@pytest.mark.exhaustive
@few
@given(cases(nested=False))
def test_a_fitted_result_does_not_depend_on_the_others(drawn: tuple[Net | Network, Weights, Weights]) -> None:
    net, reference, weights = drawn
    together = fitted(net, reference, weights)
    for k in range(K):
        alone = fitted(net, reference, {name: array[k : k + 1] for name, array in weights.items()})
        for name, array in alone.weights.items():
            np.testing.assert_array_equal(array[0], together.weights[name][k])


@pytest.mark.exhaustive
@few
@given(nets, seeds, seeds, seeds)
def test_fitted_results_do_not_depend_on_order_and_scales(net: Net, first: int, second: int, seed: int) -> None:
    """Of networks: a drawn table may have scales and signs that the start does not determine."""
    reference, weights = {name: array[0] for name, array in normal(net, first).items()}, normal(net, second)
    g = element(net, seed, spread=0.3)
    g = raised(g, weights) if "n0.var" in weights else g
    one, two = fitted(net, reference, weights), fitted(net, reference, apply(g, weights, net.table))
    np.testing.assert_allclose(one.distance, two.distance, rtol=1e-6, atol=1e-6)
    for name, array in one.weights.items():
        np.testing.assert_allclose(array, two.weights[name], rtol=1e-5, atol=1e-5, err_msg=name)


def fitted(net: Net | Network, reference: Weights, weights: Weights, *, start: str = "signature") -> Aligned:
    assume(not any(action.gates for action in net.table.actions))  # which are refused
    return align(weights, reference, net.table, scales="fit", start=start)

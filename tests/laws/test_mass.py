"""Laws of the least mass: what it is, what it does not depend on, and what the certificate promises.

Networks without normalisation have a grouped, a depthwise and a flattened layer, a concatenation, residual streams
with linear shortcuts, a recurrent layer; the normalised ones are ResNets with either shortcut.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.symmetry import GroupElement, apply, min_mass
from ckptzoo.symmetry.mass.assembly import build_network
from ckptzoo.symmetry.mass.certificate import certify
from ckptzoo.symmetry.mass.formulations import FORMULATIONS, Formulation
from ckptzoo.symmetry.mass.solver import balance
from ckptzoo.symmetry.moments import Moments
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.mass_networks import NORMALISED, PLAIN, Net, mass

K = 2
CERTIFIED = 1e-14
seeds = st.integers(0, 2**32 - 1)
nets = st.sampled_from(PLAIN)
some = settings(max_examples=examples(60, FEW_EXAMPLES), deadline=None)
few = settings(max_examples=examples(12, 5), deadline=None)


@some
@given(nets, seeds, st.sampled_from([0.3, 3.0, 10.0]))
def test_the_mass_is_least_over_random_scales_and_is_certified(net: Net, seed: int, spread: float) -> None:
    """P is convex: no scales near or far lower it."""
    raw = apply(net.scalings(K, seed, spread), net.weights(K, seed), net.table)
    made = min_mass(raw, net.table)
    assert (made.gap <= CERTIFIED).all() and (made.imbalance <= 1e-14).all() and not made.degenerate.any()
    np.testing.assert_allclose(made.mass_before, mass(raw, net.table), rtol=1e-13)
    np.testing.assert_allclose(made.mass_after, mass(made.weights, net.table), rtol=1e-13)
    assert (made.mass_after <= made.mass_before * (1 + 1e-14)).all()
    for size in (1e-4, 0.1, 1.0):
        moved = apply(net.scalings(K, seed + 1, size), made.weights, net.table)
        assert (mass(moved, net.table) >= made.mass_after * (1 - 1e-14)).all()


@some
@given(nets, seeds, st.sampled_from([1.0, 10.0]))
def test_rescaled_networks_come_to_the_same_weights(net: Net, seed: int, spread: float) -> None:
    raw = net.weights(K, seed)
    expected = min_mass(raw, net.table)
    found = min_mass(apply(net.scalings(K, seed + 1, spread), raw, net.table), net.table)
    np.testing.assert_allclose(found.mass_after, expected.mass_after, rtol=1e-12)
    for name, array in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], array, rtol=1e-8, err_msg=name)


@some
@given(nets, seeds)
def test_a_rescaled_balanced_network_is_balanced_again(net: Net, seed: int) -> None:
    """The planted optimum has in = out, by the derivative of the mass in every channel's log-scale."""
    planted = min_mass(net.weights(K, seed), net.table).weights
    for group in net.table.groups:
        if group.scale != "positive":
            continue
        flows = {1: np.zeros((K, group.n)), -1: np.zeros((K, group.n))}
        for number in range(group.n):
            for sign, step in ((1, 1e-5), (-1, -1e-5)):
                scales = GroupElement.identity(net.table, K).scales
                scales = {name: s.copy() for name, s in scales.items()}
                scales[group.id][:, number] = np.exp(step)
                element = GroupElement(GroupElement.identity(net.table, K).perms, scales)
                flows[sign][:, number] = mass(apply(element, planted, net.table), net.table)
        slope = (flows[1] - flows[-1]) / 2e-5
        np.testing.assert_allclose(slope / mass(planted, net.table)[:, None], 0, atol=1e-9)
    found = min_mass(apply(net.scalings(K, seed + 1), planted, net.table), net.table)
    for name, array in planted.items():
        np.testing.assert_allclose(found.weights[name], array, rtol=1e-8, err_msg=name)


@some
@given(nets, seeds, st.sampled_from([1e-8, 1e-3, 0.05, 0.5]))
def test_the_gap_is_at_least_the_excess_of_any_scales(net: Net, seed: int, size: float) -> None:
    raw = net.weights(K, seed)
    network = build_network(Moments(raw, net.table))
    best = balance(network, 0.0).log_scales
    least = certify(network, best).mass
    moved = certify(network, best + size * np.random.default_rng(seed).standard_normal(best.shape))
    assert (moved.gap >= (moved.mass - least) / moved.mass - 1e-15).all()
    if size <= 1e-3:
        assert (moved.gap <= 1e4 * size**2).all()
    assert (least * (1 + 1e-14) >= moved.mass * (1 - moved.gap)).all(), "the bound is below the least mass"


@some
@given(nets, seeds)
def test_checkpoints_do_not_depend_on_each_other(net: Net, seed: int) -> None:
    raw = net.weights(3, seed)
    raw[next(iter(raw))][1, 0] = 0
    together = min_mass(raw, net.table)
    for row in range(3):
        alone = min_mass({name: array[row : row + 1] for name, array in raw.items()}, net.table)
        for name, array in alone.weights.items():
            np.testing.assert_array_equal(array[0], together.weights[name][row], err_msg=name)
        assert alone.gap[0] == together.gap[row] and alone.degenerate[0] == together.degenerate[row]


@some
@given(nets, seeds, st.sampled_from([np.float16, np.float32, np.float64]))
def test_a_second_application_changes_nothing(net: Net, seed: int, dtype: type) -> None:
    once = min_mass(net.weights(K, seed, dtype), net.table)
    twice = min_mass(once.weights, net.table)
    assert (twice.iterations == 0).all() and (twice.gap <= 1e-10).all()
    for name, array in once.weights.items():
        assert array.tobytes() == twice.weights[name].tobytes(), name


@few
@given(st.sampled_from(NORMALISED), seeds, st.sampled_from(FORMULATIONS))
def test_normalised_networks_in_every_formulation(net: Net, seed: int, formulation: str) -> None:
    raw = net.weights(K, seed)
    made = min_mass(raw, net.table, formulation=formulation)
    assert (made.gap <= CERTIFIED).all() and not made.degenerate.any()
    np.testing.assert_allclose(made.mass_after, mass(made.weights, net.table), rtol=1e-13)
    moved = apply(net.scalings(K, seed), raw, net.table)
    again = min_mass(moved, net.table, formulation=formulation)
    np.testing.assert_allclose(again.mass_after, made.mass_after, rtol=1e-11)
    for size in (1e-3, 0.3):
        nearby = apply(net.scalings(K, seed + 1, size), made.weights, net.table)
        assert (mass(nearby, net.table) >= made.mass_after * (1 - 1e-14)).all()


@few
@given(st.sampled_from(NORMALISED), seeds, st.sampled_from(FORMULATIONS), st.sampled_from([1e-6, 1e-2, 0.3]))
def test_the_gap_holds_in_every_formulation(net: Net, seed: int, formulation: str, size: float) -> None:
    """In layers the perturbed scales are made to add up to 0 and to keep their bounds."""
    raw = net.weights(K, seed)
    problem = Formulation.of(formulation, net.table, net.shapes)
    arrays = problem.to_table(raw)
    network = build_network(Moments(arrays, problem.table), problem.least_log_scales(arrays))
    best = balance(network, 0.0).log_scales
    moved = best + size * np.random.default_rng(seed).standard_normal(best.shape)
    for layer in network.layers:
        part = moved[:, layer.nodes] - moved[:, layer.nodes].mean(axis=1, keepdims=True)
        shrunk = np.where(part < 0, layer.least / np.where(part < 0, part, 1), np.inf).min(axis=1, keepdims=True)
        moved[:, layer.nodes] = part * np.minimum(shrunk, 1)
    least, found = certify(network, best), certify(network, moved)
    assert (found.gap >= (found.mass - least.mass) / found.mass - 1e-15).all()
    assert (least.mass <= found.mass * (1 + 1e-14)).all()

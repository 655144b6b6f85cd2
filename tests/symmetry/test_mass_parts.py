"""The equations of the solver's modules, each at generic numbers."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.symmetry.mass.assembly import build_network
from ckptzoo.symmetry.mass.certificate import certify
from ckptzoo.symmetry.mass.flow import Flow, StepFlows
from ckptzoo.symmetry.mass.network import fill_to_level, multipliers
from ckptzoo.symmetry.mass.solver import balance, damping_factor, group_log_scales, laplacian_inverse, newton_direction
from ckptzoo.symmetry.moments import Moments
from tests.support.effort import examples
from tests.support.mass_networks import PLAIN, Net, known

K = 3
seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=examples(60), deadline=None)
nets = pytest.mark.parametrize("net", PLAIN, ids=str)


def flow_of(net: Net, seed: int) -> tuple[Flow, np.ndarray, StepFlows]:
    """Flows somewhere beside the base, which is not the optimum."""
    network = build_network(Moments(net.weights(K, seed), net.table))
    rng = np.random.default_rng(seed)
    flow = Flow(network, rng.standard_normal(network.source.shape))
    step = 0.5 * rng.standard_normal(network.source.shape)
    return flow, step, flow.at_step(step)


@nets
def test_the_slope_is_twice_in_less_out_and_the_curvature_four_laplacians(net: Net) -> None:
    flow, step, at = flow_of(net, 0)
    rng = np.random.default_rng(1)
    direction = rng.standard_normal(step.shape)
    slope = (2 * (at.into - at.out_of) * direction).sum(axis=1)
    curvature = 4 * (direction * flow.laplacian(at, direction)).sum(axis=1)
    ahead, behind = (flow.mass(flow.at_step(step + size * direction)) for size in (1e-4, -1e-4))
    np.testing.assert_allclose((ahead - behind) / 2e-4, slope, rtol=1e-5, atol=1e-5 * flow.mass(at).max())
    np.testing.assert_allclose((ahead + behind - 2 * flow.mass(at)) / 1e-8, curvature, rtol=1e-4)


@nets
def test_the_laplacian_is_symmetric_and_the_newton_direction_solves_it(net: Net) -> None:
    flow, step, at = flow_of(net, 2)
    N = step.shape[1]
    dense = np.stack([flow.laplacian(at, np.tile(row, (K, 1))) for row in np.eye(N)], axis=2)
    np.testing.assert_allclose(dense, dense.transpose(0, 2, 1), rtol=1e-12, atol=1e-14)
    found = newton_direction(flow, at, step, np.ones(K, bool), np.full(K, 1e-14))
    exact = np.linalg.solve(dense, (at.out_of - at.into)[..., None])[..., 0] / 2
    np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-10)
    still = newton_direction(flow, at, step, np.array([True, False, True]), np.full(K, 1e-3))
    assert (still[1] == 0).all() and still[0].any()


@nets
def test_a_damped_step_lowers_the_mass_as_far_as_is_promised(net: Net) -> None:
    for seed in range(5):
        flow, step, at = flow_of(net, seed)
        direction = newton_direction(flow, at, step, np.ones(K, bool), np.full(K, 1e-2))
        slope = 2 * ((at.into - at.out_of) * direction).sum(axis=1)
        squares = 4 * (direction * flow.laplacian(at, direction)).sum(axis=1)
        np.testing.assert_allclose(slope, -squares, rtol=1e-9)
        length = 2 * (np.maximum(direction, 0).max(axis=1) + np.maximum(-direction, 0).max(axis=1))
        t = damping_factor(length)
        moved = flow.mass(flow.at_step(step + t[:, None] * direction)) - flow.mass(at)
        assert (moved <= (t**2 * np.exp(t * length) / 2 - t) * squares + 1e-12 * flow.mass(at)).all()


def test_the_damping_solves_its_equation() -> None:
    length = np.array([0.0, 1e-300, 1e-9, 0.1, 1.0, np.e, 30.0, 1e6, 1e300])
    t = damping_factor(length)
    assert t[0] == 1 and (np.diff(t) <= 0).all()
    np.testing.assert_allclose(np.log(t[1:]) + t[1:] * length[1:], 0, atol=1e-10)


@some
@given(seeds, st.integers(1, 6), st.booleans())
def test_one_scale_a_group_balances_the_groups(seed: int, count: int, first_held: bool) -> None:
    rng = np.random.default_rng(seed)
    between = np.exp(3 * rng.standard_normal((K, count, count))) * (rng.random((K, count, count)) < 0.6)
    source, sink = (np.exp(3 * rng.standard_normal((K, count))) for _ in range(2))
    held = np.arange(count) == 0 if first_held else np.zeros(count, bool)
    found = group_log_scales(between, source, sink, held)
    flows = np.exp(2 * found)[:, :, None] * between * np.exp(-2 * found)[:, None]
    come = source * np.exp(2 * found) + flows.sum(axis=2)
    gone = sink * np.exp(-2 * found) + flows.sum(axis=1)
    np.testing.assert_allclose(come[:, ~held], gone[:, ~held], rtol=1e-2)
    assert (found[:, held] == 0).all()


def test_the_inverse_is_right_however_far_apart_the_flows_are() -> None:
    """Beside exact fractions; a floating-point elimination loses all digits here."""
    rng = np.random.default_rng(0)
    between = 10.0 ** rng.integers(-40, 40, (2, 5, 5))
    source, sink = 10.0 ** rng.integers(-60, 0, (2, 2, 5))
    found = laplacian_inverse(between, source, sink)
    for row in range(2):
        joined = [
            [Fraction(a) + Fraction(b) for a, b in zip(*pair, strict=True)]
            for pair in zip(between[row], between[row].T, strict=True)
        ]
        ground = [Fraction(a) + Fraction(b) for a, b in zip(source[row], sink[row], strict=True)]
        matrix = [
            [sum(joined[i]) - joined[i][i] + ground[i] if i == j else -joined[i][j] for j in range(5)] for i in range(5)
        ]
        exact = inverted(matrix)
        for i in range(5):
            np.testing.assert_allclose(found[row, i], [float(value) for value in exact[i]], rtol=1e-13)


def inverted(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """The inverse by Gauss and Jordan, in fractions."""
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for k in range(n):
        rows[k] = [value / rows[k][k] for value in rows[k]]
        for i in range(n):
            if i != k:
                rows[i] = [a - rows[i][k] * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [row[n:] for row in rows]


def test_a_chain_is_balanced_by_least_squares_at_once() -> None:
    """Layers of masses e^0, e^100, e^-300, e^40 end with the geometric mean of all."""
    between, source, sink = np.zeros((1, 3, 3)), np.array([[1.0, 0, 0]]), np.array([[0, 0, np.exp(40.0)]])
    between[0, 1, 0], between[0, 2, 1] = np.exp(100.0), np.exp(-300.0)
    (found,) = group_log_scales(between, source, sink, np.zeros(3, bool))
    logs = [2 * found[0], 100 + 2 * (found[1] - found[0]), -300 + 2 * (found[2] - found[1]), 40 - 2 * found[2]]
    np.testing.assert_allclose(logs, -40, rtol=1e-12)


def test_groups_without_flows_do_no_harm() -> None:
    between, none = np.zeros((1, 2, 2)), np.zeros((1, 2))
    assert (laplacian_inverse(between, none, none) == np.eye(2)).all()
    assert (group_log_scales(between, none, none, np.zeros(2, bool)) == 0).all()


@some
@given(seeds, st.integers(1, 7), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_a_layer_is_filled_to_one_level(seed: int, n: int, unbounded: float, tight: bool) -> None:
    """2 F exp(2 u) = max(mu, 2 F exp(2 l)), and the u add up to 0."""
    rng = np.random.default_rng(seed)
    logs, least = 3 * rng.standard_normal((K, n)), -np.abs(2 * rng.standard_normal((K, n)))
    least = np.where(rng.random((K, n)) < unbounded, -np.inf, 0.0 if tight else least)
    counted = rng.random((K, n)) < 0.8
    u = fill_to_level(logs, least, counted)
    np.testing.assert_allclose(u.sum(axis=1), 0, atol=1e-12)
    assert (u >= least)[counted].all() and (u[~counted] == 0).all()
    mu, extra, rest = multipliers(np.exp(logs + 2 * u), counted)
    np.testing.assert_allclose(
        (mu[:, None] + extra) / 2 + rest, np.where(counted, np.exp(logs + 2 * u), mu[:, None] / 2)
    )
    assert (extra >= 0).all() and ((extra > 0) <= (u == least)).all() and (rest <= 1e-12 * mu[:, None]).all()


def test_the_gap_is_the_mass_less_the_dual_bound() -> None:
    """D = sum y (1 - log(y / m)), two layers: y is the outgoing flow, spread over what comes in."""
    net = known("mlp-3-5-2")
    raw = net.weights(1, 3)
    network = build_network(Moments(raw, net.table))
    logs = 0.3 * np.random.default_rng(0).standard_normal((1, 5))
    into, out_of = (np.square(raw[name][0]) for name in ("fc1.weight", "fc2.weight"))
    one, two = into * np.exp(2 * logs[0])[:, None], out_of * np.exp(-2 * logs[0])
    flow = one * (two.sum(axis=0) / one.sum(axis=1))[:, None]
    np.testing.assert_allclose(flow.sum(axis=1), two.sum(axis=0))
    bound = (flow * (1 - np.log(flow / into))).sum() + (two * (1 - np.log(two / out_of))).sum()
    found = certify(network, logs)
    mass = one.sum() + two.sum()
    np.testing.assert_allclose(found.mass, mass, rtol=1e-13)
    np.testing.assert_allclose(found.gap, (mass - bound) / mass, rtol=1e-11)
    assert bound <= certify(network, balance(network, 0.0).log_scales).mass[0] <= mass

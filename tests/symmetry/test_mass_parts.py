"""Flows that are far apart, or none, and the gap: what tests/laws/test_mass.py does not reach."""

from fractions import Fraction

import numpy as np

from ckptzoo.symmetry.mass.assembly import build_network
from ckptzoo.symmetry.mass.certificate import certify
from ckptzoo.symmetry.mass.solver import balance, group_log_scales, laplacian_inverse
from ckptzoo.symmetry.moments import Moments
from tests.support.mass_networks import known


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

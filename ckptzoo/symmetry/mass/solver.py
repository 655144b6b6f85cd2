"""The scales of least mass: matrix balancing, a convex problem in the logarithms of the scales, by Newton steps.

With u the log-scales of the nodes and 0 at ground, the mass of a scaled network is (arXiv 2310.08287, section 3.3)

    P(u) = sum over edges of w_e,    w_e = m_e exp(2 (u_head - u_tail)),

a sum of exponentials of linear functions, so that it is convex. ``dP/du_i = 2 (in_i - out_i)``, the flows into and
out of node i: at the minimum every channel's incoming mass equals its outgoing mass. The Hessian is 4 L, with L the
Laplacian of the flows (as undirected weights) in which ground is left out.

**Existence.** A direction d in which no exponent grows, ``d_head <= d_tail`` on all edges, cannot fall on a cycle:
around one the differences add up to 0. Where every edge is on a cycle through ground, P hence grows in every
direction that it is not constant in; the minimum exists, and is unique if every node is joined to ground. An edge on
no such cycle (its tail is not reached from ground, or its head reaches ground nowhere) vanishes at no cost. Those are
the edges of the nodes that are not ``kept``; the problem is that of the rest.

**Block steps.** Where no edge is within a group, its scales of least mass at given others are
``u_i += log(out_i / in_i) / 4``. Where some do, ``w exp(2 (d_i - d_j)) <= w (exp(4 d_i) + exp(-4 d_j)) / 2``, and the
minimum of that bound is ``u_i += log(out_i / in_i) / 8``; neither raises P. Two-layer networks are done after one.

**Newton steps.** For a d of conjugate gradients, ``g . d = -d . H d``, and with ``x_e = 2 (d_head - d_tail)``,
``P(u + t d) - P(u) <= (t^2 exp(t X) / 2 - t) sum w x^2`` for X the largest of the ``|x_e|``. The step is the t with
``t exp(t X) = 1``: it lowers P by ``t / 2 sum w x^2`` at least, with no search, and t goes to 1 as X goes to 0.

An iteration is a block step for every group and a Newton step. The start is scale-free: the largest incoming mass of
every node to 1, from input to output, then one scale a group (below). Where no edge joins two nodes, as in two
layers or behind BatchNorms that keep their filters, ``u = log(out / in) / 4`` is the minimum.

Nodes of a layer (``volume``) are set to their scales of least mass at the others' (network.py) after each block step,
and the Newton step is one within the layer's constraints; if P has risen all the same, as a bound was in the way, the
iteration's Newton step is left out.

**Newton directions** come from conjugate gradients on the Laplacian of the flows. ``H = 4 L`` and
``dP/du = 2 (in - out)``, so that the direction is half of the x in ``L x = out - in``. The preconditioner is the
inverse of L's diagonal plus the inverse of L on vectors that are constant on every group, which are the slow ones of a
deep network. Nodes of a layer move within ``sum x_i = 0``, those at their least scale do not: preconditioned residuals
are projected along the diagonal (Gould, Hribar and Nocedal, 2001, algorithm 2.1).

**One scale a group** is a problem with as many unknowns as there are groups, solved by dense Newton steps. The
restriction of P(u) to ``u_i = c_g`` for the channels i of group g is
``P(c) = sum A_gh exp(2 (c_g - c_h)) + sum a_g exp(2 c_g) + sum b_g exp(-2 c_g)``, with the total flows A between
groups, a from ground and b to ground. The start is the c of least squares of the logarithms of all these flows,
``min sum (log A_gh + 2 (c_g - c_h))^2 + ...``, which is exact for a chain of layers.
"""

from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.mass.flow import Flow, StepFlows, backward, forward, inner, largest
from ckptzoo.symmetry.mass.network import Network

TARGET_IMBALANCE = 1e-13
"""The imbalance at which iterations end: the largest difference of a node's flows, over their sum."""
STALL_IMBALANCE, STALL_ITERATIONS = 1e-11, 3
"""Below the first, this number of iterations without progress ends them too: the rest is rounding."""
PROGRESS = 4
"""An iteration makes progress if it divides the least imbalance so far by more than this."""
MAX_ITERATIONS, MAX_REBASES = 100, 8
MAX_LOG_STEP = 100.0
"""Masses are taken again where a log-scale has moved by more: ``exp(2 step)`` is 7e86 then, far from overflow."""
MAX_CONJUGATE_GRADIENT_STEPS = 200
RESIDUAL = 1e-2
"""Conjugate gradients reduce residuals by this factor, or by the imbalance where that is smaller."""
MAX_COARSE_STEPS = 40
MIN_LOG_STEP = 1e-3
"""Steps of the groups' common scales end where no log-scale moves by more."""


@dataclass(frozen=True, eq=False)
class Balanced:
    """Log-scales (K, N) float64 of least mass, 0 for dropped nodes, and the Newton steps (K,) int64."""

    log_scales: np.ndarray
    iterations: np.ndarray


def balance(network: Network, tolerance: float) -> Balanced:
    """Return the log-scales of least mass of K networks; none depends on the others.

    A network whose flows balance to the part ``tolerance`` of their sum at every node is left as it is, so that a
    second application changes nothing where the first one's result was rounded.

    It takes some ten iterations for random weights at any depth (benchmarks/mass.py prints them), up to 28 where
    matrices are nearly diagonal, each of some ten products of every matrix of masses with a vector; memory of two
    float64 per pair of channels beside the network.
    """
    K = len(network.source)
    result = Balanced(np.zeros(network.source.shape), np.zeros(K, np.int64))
    rows = np.flatnonzero(~_already_balanced(network, tolerance))
    if not network.edges and not network.layers:
        result.log_scales[rows] = np.where(network.kept, (network.sink - network.source) / 4, 0)[rows]
        return result
    result.log_scales[rows] = starting_log_scales(network)[rows]
    for turn in range(MAX_REBASES):
        if not len(rows):
            break
        flow = Flow(network if len(rows) == K else network[rows], result.log_scales[rows])
        step, counts, done = _iterate(flow, coarse=not turn)
        result.log_scales[rows] += step
        result.iterations[rows] += counts
        rows = rows[~done]
    return result


def _already_balanced(network: Network, tolerance: float) -> np.ndarray:
    """Return (K,) bool, the networks that are balanced already."""
    flow = Flow(network, np.zeros(network.source.shape))
    flows = flow.at_step(flow.base)
    moved = largest(np.abs(flow.fill_layers(flow.base)))
    return flow.resolved & (flow.imbalance(flows) <= tolerance) & (moved <= tolerance)


def starting_log_scales(network: Network) -> np.ndarray:
    """Return log-scales (K, N) that bring the largest mass into every node to 1, from ground or a group before it."""
    base, kept, fixed = np.zeros(network.source.shape), network.kept, network.layered_groups
    for number, place in enumerate(network.slices):
        if fixed[number]:
            continue
        largest_in = np.where(kept[:, place], network.source[:, place], -np.inf)
        for edges in network.edges:
            if edges.head == number and edges.tail < number:
                K, blocks, _, tails = edges.log_masses.shape
                down = np.where(kept[:, edges.tail_nodes], -2 * base[:, edges.tail_nodes], -np.inf)
                logs = (edges.log_masses + down.reshape(K, blocks, 1, tails)).max(axis=3).reshape(K, -1)
                largest_in = np.maximum(largest_in, np.where(kept[:, place], logs, -np.inf))
        base[:, place] = np.where(np.isfinite(largest_in), -largest_in / 2, 0)
    return base


def _iterate(flow: Flow, *, coarse: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return steps (K, N) from the flow's base, the Newton steps taken (K,), and whether the iterations are over (K,).

    Networks that are done are left out of what follows.
    """
    step = np.zeros(flow.base.shape)
    K = len(step)
    if coarse:
        flows = flow.at_step(step)
        step = step + flow.by_node(
            group_log_scales(flows.between, *flow.ground_flows(flows), flow.network.layered_groups)
        )
    result, counts, done = step.copy(), np.zeros(K, np.int64), np.ones(K, bool)
    rows, before, best = np.arange(K), step, step
    mass, least, stalled = np.full(K, np.inf), np.full(K, np.inf), np.zeros(K, np.int64)
    for _ in range(MAX_ITERATIONS):
        step = _sweep(flow, step)
        flows = flow.at_step(step)
        new_mass = flow.mass(flows)
        # Negated, so that NaN counts as risen: the step before is taken up again, without a Newton step.
        risen = ~(new_mass <= mass * (1 + TARGET_IMBALANCE))
        step = np.where(risen[:, None], before, step)
        imbalance = np.where(risen, np.inf, flow.imbalance(flows))
        better = imbalance < least
        stalled = np.where(imbalance < least / PROGRESS, 0, stalled + 1)
        best, least = np.where(better[:, None], step, best), np.where(better, imbalance, least)
        far = largest(np.abs(step)) > MAX_LOG_STEP
        result[rows], done[rows] = np.where(far[:, None], step, best), ~far
        active = ~(far | (least <= TARGET_IMBALANCE) | ((stalled >= STALL_ITERATIONS) & (least < STALL_IMBALANCE)))
        if not active.any():
            break
        before, mass = step, np.where(risen, mass, new_mass)
        if not active.all():
            flow, flows, rows = flow[active], flows[active], rows[active]
            step, before, best = step[active], before[active], best[active]
            mass, least, stalled = mass[active], least[active], stalled[active]
            risen, imbalance = risen[active], imbalance[active]
        direction = newton_direction(flow, flows, step, ~risen, imbalance)
        length = 2 * (largest(direction) + largest(-direction))
        step = step + damping_factor(length)[:, None] * direction
        counts[rows] += ~risen
    return result, counts, done


def _sweep(flow: Flow, step: np.ndarray) -> np.ndarray:
    """Take a block step for every group, from input to output, and then for every layer."""
    step, network, fixed = step.copy(), flow.network, flow.network.layered_groups
    grow, shrink = np.exp(2 * step), np.exp(-2 * step)
    for number, place in enumerate(network.slices):
        if fixed[number]:
            continue
        into, out_of = flow.source[:, place].copy(), flow.sink[:, place].copy()
        within = False
        for edges, masses in flow.pairs:
            within |= edges.head == edges.tail == number
            if edges.head == number:
                into += forward(masses, shrink[:, edges.tail_nodes])
            if edges.tail == number:
                out_of += backward(masses, grow[:, edges.head_nodes])
        # Both lack this group's own factor, so that ratio / 4 is the new step itself and not a change of it.
        both = (into > 0) & (out_of > 0)
        ratio = np.log(np.divide(out_of, into, out=np.ones_like(into), where=both))
        moved = (step[:, place] + ratio / 4) / 2 if within else ratio / 4
        step[:, place] = np.where(both, moved, step[:, place])
        grow[:, place], shrink[:, place] = np.exp(2 * step[:, place]), np.exp(-2 * step[:, place])
    return flow.fill_layers(step)


# The Newton direction.


def newton_direction(
    flow: Flow, flows: StepFlows, step: np.ndarray, active: np.ndarray, accuracy: np.ndarray
) -> np.ndarray:
    """Return the Newton directions (K, N), 0 for networks that are not ``active`` (K,).

    The flows are taken at ``step`` (K, N); ``accuracy`` (K,) is the relative size of the last residual.
    """
    diagonal = _inverse_diagonal(flow, flows, step)
    fixed = flow.network.layered_groups
    coarse = laplacian_inverse(*merge_into_ground(flows.between, *flow.ground_flows(flows), fixed))
    rest = flows.out_of - flows.into
    solution = np.zeros_like(rest)
    preconditioned = _preconditioned(flow, diagonal, coarse, fixed, rest)
    direction = preconditioned.copy()
    size = inner(rest, preconditioned)
    least = np.minimum(RESIDUAL, accuracy) ** 2 * size
    active = active & (size > 0)
    for _ in range(MAX_CONJUGATE_GRADIENT_STEPS):
        product = flow.laplacian(flows, direction)
        curvature = inner(direction, product)
        active = active & (curvature > 0)
        length = np.divide(size, curvature, out=np.zeros_like(size), where=active)
        solution += length[:, None] * direction
        rest -= length[:, None] * product
        preconditioned = _preconditioned(flow, diagonal, coarse, fixed, rest)
        before, size = size, inner(rest, preconditioned)
        active = active & (size > least)
        if not active.any():
            break
        direction = preconditioned + np.divide(size, before, out=np.zeros_like(size), where=active)[:, None] * direction
    return solution / 2


def _inverse_diagonal(flow: Flow, flows: StepFlows, step: np.ndarray) -> np.ndarray:
    """Return the inverse of the diagonal; 0 for nodes that do not move."""
    total = flows.into + flows.out_of
    result = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
    for layer in flow.network.layers:
        bound = (flow.base + step)[:, layer.nodes] <= layer.least
        result[:, layer.nodes] = np.where(bound, 0, result[:, layer.nodes])
    return result


def _preconditioned(
    flow: Flow, inverse: np.ndarray, coarse: np.ndarray, fixed: np.ndarray, rest: np.ndarray
) -> np.ndarray:
    common = np.where(fixed, 0, (coarse @ np.where(fixed, 0, flow.by_group(rest))[..., None])[..., 0])
    result = inverse * rest + np.where(inverse > 0, flow.by_node(common), 0)
    for layer in flow.network.layers:
        weight = inverse[:, layer.nodes]
        total = weight.sum(axis=1, keepdims=True)
        mean = np.divide(result[:, layer.nodes].sum(axis=1, keepdims=True), total, out=total * 0, where=total > 0)
        result[:, layer.nodes] -= weight * mean
    return result


# One scale for all channels of a group.


def laplacian_inverse(between: np.ndarray, source: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """Return the inverse (K, G, G) of the Laplacian of flows between groups (K, G, G) and ground (K, G).

    It eliminates without subtractions (Grassmann, Taksar and Heyman, 1985): diagonals are summed again from the flows
    that are left, so that every entry has a small relative error, however far apart the flows are. Groups without any
    flow count as joined to ground by 1.
    """
    count = between.shape[1]
    joined, ground = between + between.transpose(0, 2, 1), source + sink
    joined[:, np.arange(count), np.arange(count)] = 0
    ground = np.where(joined.sum(axis=2) + ground > 0, ground, 1.0)
    result = np.tile(np.eye(count), (len(between), 1, 1))
    degrees = np.ones((len(between), count))
    # Elimination of one group after the other, and back substitution from the last one.
    for k in range(count):
        degrees[:, k] = joined[:, k, k + 1 :].sum(axis=1) + ground[:, k]
        share = np.where(np.arange(count) > k, joined[:, :, k], 0) / degrees[:, k, None]
        joined[:, k + 1 :, k + 1 :] += share[:, k + 1 :, None] * joined[:, k, None, k + 1 :]
        joined[:, np.arange(count), np.arange(count)] = 0
        ground += share * ground[:, k, None]
        result += share[:, :, None] * result[:, k, None]
    for k in reversed(range(count)):
        result[:, k] += (joined[:, k, k + 1 :, None] * result[:, k + 1 :]).sum(axis=1)
        result[:, k] /= degrees[:, k, None]
    return result


def group_log_scales(between: np.ndarray, source: np.ndarray, sink: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """Return the common log-scales (K, G) of least mass, 0 for groups that are ``fixed`` (G,).

    ``between`` (K, G, G) has the flow from group h to group g at ``[:, g, h]``; ``source`` and ``sink`` (K, G) are the
    flows from and to ground.
    """
    between, source, sink = merge_into_ground(between, source, sink, fixed)
    diagonal = np.arange(between.shape[1])
    between[:, diagonal, diagonal] = 0
    scales = _least_squares(between, source, sink)
    for _ in range(MAX_COARSE_STEPS):
        grow, shrink = np.exp(2 * scales), np.exp(-2 * scales)
        flows = grow[:, :, None] * between * shrink[:, None]
        from_ground, to_ground = source * grow, sink * shrink
        slope = from_ground + flows.sum(axis=2) - to_ground - flows.sum(axis=1)
        step = -(laplacian_inverse(flows, from_ground, to_ground) @ slope[..., None])[..., 0] / 2
        length = 2 * (np.maximum(step.max(axis=1), 0) - np.minimum(step.min(axis=1), 0))
        active = length > MIN_LOG_STEP
        step *= damping_factor(length)[:, None]
        scales += np.where(active[:, None], step, 0)
        if not active.any():
            break
    return scales


def merge_into_ground(
    between: np.ndarray, source: np.ndarray, sink: np.ndarray, fixed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return flows between groups and from and to ground, where some groups (G,) count as ground."""
    between, source, sink = between.copy(), source.copy(), sink.copy()
    for group in np.flatnonzero(fixed).tolist():
        sink += between[:, group]
        source += between[:, :, group]
        between[:, group], between[:, :, group], source[:, group], sink[:, group] = 0, 0, 0, 0
    return between, source, sink


def damping_factor(length: np.ndarray) -> np.ndarray:
    """Return the t in [0, 1] with ``t exp(t length) = 1``: Lambert's W of the length, over the length."""
    positive = np.where(length > 0, length, 1.0)
    w = np.log1p(positive)
    # Newton's method for log w + w = log length.
    for _ in range(5):
        w = w * (1 + np.log(positive / w)) / (1 + w)
    return np.where(length > 0, w / positive, 1.0)


def _least_squares(between: np.ndarray, source: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """Return the log-scales at which the logarithms of all flows have the least sum of squares."""
    ones = [(flows > 0).astype(float) for flows in (between, source, sink)]
    logs = [np.log(np.where(flows > 0, flows, 1.0)) for flows in (between, source, sink)]
    slope = logs[1] - logs[2] + logs[0].sum(axis=2) - logs[0].sum(axis=1)
    return -(laplacian_inverse(*ones) @ slope[..., None])[..., 0] / 2

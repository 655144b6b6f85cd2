"""Least mass is matrix balancing: a convex problem in the logarithms of the scales, by Newton steps.

With u the log-scales of the nodes and 0 at ground, the mass of a scaled network is (arXiv 2310.08287, section 3.3)

    P(u) = sum over edges of w_e,    w_e = m_e exp(2 (u_head - u_tail)),

a sum of exponentials of linear functions, so that it is convex. ``dP/du_i = 2 (in_i - out_i)``, the flows into and
out of node i: at the minimum every channel's incoming mass equals its outgoing mass. The Hessian is 4 L, with L the
Laplacian of the flows (as undirected weights) in which ground is left out.

**Existence.** A direction d in which no exponent grows, ``d_head <= d_tail`` on all edges, cannot fall on a cycle:
around one the differences add up to 0. Where every edge lies on a cycle through ground, P hence grows in every
direction that it is not constant in; the minimum exists, and is unique if every node is joined to ground. An edge on
no such cycle (its tail is not reached from ground, or its head reaches ground nowhere) vanishes at no cost. Those are
the edges of the nodes that are not ``kept``; the problem is that of the rest.

**Block steps.** Where no edge lies within a group, its scales of least mass at given others are
``u_i += log(out_i / in_i) / 4``. Where some do, ``w exp(2 (d_i - d_j)) <= w (exp(4 d_i) + exp(-4 d_j)) / 2``, and the
minimum of that bound is ``u_i += log(out_i / in_i) / 8``; neither raises P. Two-layer networks are done after one.

**Newton steps.** For a d of conjugate gradients, ``g . d = -d . H d``, and with ``x_e = 2 (d_head - d_tail)``,
``P(u + t d) - P(u) <= (t^2 exp(t X) / 2 - t) sum w x^2`` for X the largest of the ``|x_e|``. The step is the t with
``t exp(t X) = 1``: it lowers P by ``t / 2 sum w x^2`` at least, with no search, and t goes to 1 as X goes to 0.

An iteration is a block step for every group and a Newton step. The start is scale-free: the largest incoming mass of
every node to 1, from input to output, then one scale a group (coarse.py). Where no edge joins two nodes, as in two
layers or behind BatchNorms that keep their filters, ``u = log(out / in) / 4`` is the minimum.

Nodes of a layer (``volume``) are set to their scales of least mass at the others' (layers.py) after each block step,
and the Newton step is one within the layer's constraints; if P has risen all the same, as a bound was in the way, the
iteration's Newton step is left out.

The Newton direction of K networks: conjugate gradients on the Laplacian of the flows.

``H = 4 L`` and ``dP/du = 2 (in - out)``, so that the direction is half of the x in ``L x = out - in``. The
preconditioner is the inverse of L's diagonal plus the inverse of L on vectors that are constant on every group, which
are the slow ones of a deep network. Nodes of a layer move within ``sum x_i = 0``, those at their least scale do not:
preconditioned residuals are projected along the diagonal (Gould, Hribar and Nocedal, 2001, algorithm 2.1).

One scale for all channels of a group: a network of groups, balanced by dense Newton steps.

The restriction of P(u) (solver.py) to ``u_i = c_g`` for the channels i of group g is
``P(c) = sum A_gh exp(2 (c_g - c_h)) + sum a_g exp(2 c_g) + sum b_g exp(-2 c_g)``, with the total flows A between
groups, a from ground and b to ground. From far away the start is the c of least squares of the logarithms of all
these flows, ``min sum (log A_gh + 2 (c_g - c_h))^2 + ...``, which is exact for a chain of layers.
"""

from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.mass.flow import At, Flow, backward, forward, inner, largest
from ckptzoo.symmetry.mass.network import Network

MAX_COARSE_STEPS = 40
MIN_LOG_STEP = 1e-3
"""Steps end where no log-scale moves by more."""


def inverse(between: np.ndarray, source: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """The inverse (K, G, G) of the Laplacian of flows between groups (K, G, G) and ground (K, G).

    By elimination without subtractions (Grassmann, Taksar and Heyman, 1985): diagonals are summed anew from the flows
    that are left, so that every entry has a small relative error, however far apart the flows are. Groups without any
    flow count as joined to ground by 1.
    """
    count = between.shape[1]
    joined, ground = between + between.transpose(0, 2, 1), source + sink
    joined[:, np.arange(count), np.arange(count)] = 0
    ground = np.where(joined.sum(axis=2) + ground > 0, ground, 1.0)
    made = np.tile(np.eye(count), (len(between), 1, 1))
    degrees = np.ones((len(between), count))
    for k in range(count):
        degrees[:, k] = joined[:, k, k + 1 :].sum(axis=1) + ground[:, k]
        share = np.where(np.arange(count) > k, joined[:, :, k], 0) / degrees[:, k, None]
        joined[:, k + 1 :, k + 1 :] += share[:, k + 1 :, None] * joined[:, k, None, k + 1 :]
        joined[:, np.arange(count), np.arange(count)] = 0
        ground += share * ground[:, k, None]
        made += share[:, :, None] * made[:, k, None]
    for k in reversed(range(count)):
        made[:, k] += (joined[:, k, k + 1 :, None] * made[:, k + 1 :]).sum(axis=1)
        made[:, k] /= degrees[:, k, None]
    return made


def scalars(between: np.ndarray, source: np.ndarray, sink: np.ndarray, held: np.ndarray) -> np.ndarray:
    """The common log-scales (K, G) of least mass.

    Parameters
    ----------
    between : (K, G, G), the flow from group h to group g at ``[:, g, h]``.
    source, sink : (K, G), the flows from and to ground.
    held : (G,) bool, groups whose log-scale stays 0.
    """
    between, source, sink = grounded(between, source, sink, held)
    diagonal = np.arange(between.shape[1])
    between[:, diagonal, diagonal] = 0
    found = _least_squares(between, source, sink)
    for _ in range(MAX_COARSE_STEPS):
        grow, shrink = np.exp(2 * found), np.exp(-2 * found)
        flows = grow[:, :, None] * between * shrink[:, None]
        come, gone = source * grow, sink * shrink
        slope = come + flows.sum(axis=2) - gone - flows.sum(axis=1)
        step = -(inverse(flows, come, gone) @ slope[..., None])[..., 0] / 2
        length = 2 * (np.maximum(step.max(axis=1), 0) - np.minimum(step.min(axis=1), 0))
        going = length > MIN_LOG_STEP
        step *= damping(length)[:, None]
        found += np.where(going[:, None], step, 0)
        if not going.any():
            break
    return found


def grounded(
    between: np.ndarray, source: np.ndarray, sink: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flows between groups and from and to ground, where some groups (G,) are a part of ground."""
    between, source, sink = between.copy(), source.copy(), sink.copy()
    for group in np.flatnonzero(held).tolist():
        sink += between[:, group]
        source += between[:, :, group]
        between[:, group], between[:, :, group], source[:, group], sink[:, group] = 0, 0, 0, 0
    return between, source, sink


def damping(length: np.ndarray) -> np.ndarray:
    """The t in [0, 1] with ``t exp(t length) = 1``: Lambert's W of the length, over the length."""
    held = np.where(length > 0, length, 1.0)
    w = np.log1p(held)
    for _ in range(5):
        w = w * (1 + np.log(held / w)) / (1 + w)
    return np.where(length > 0, w / held, 1.0)


def _least_squares(between: np.ndarray, source: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """The log-scales at which the logarithms of all flows have the least sum of squares."""
    ones = [(flows > 0).astype(float) for flows in (between, source, sink)]
    logs = [np.log(np.where(flows > 0, flows, 1.0)) for flows in (between, source, sink)]
    slope = logs[1] - logs[2] + logs[0].sum(axis=2) - logs[0].sum(axis=1)
    return -(inverse(*ones) @ slope[..., None])[..., 0] / 2


MAX_NEWTON_STEPS = 200
LOOSE = 1e-2
"""Residuals are reduced by this factor, or by the imbalance where that is smaller."""


def newton(flow: Flow, at: At, step: np.ndarray, going: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """The Newton directions (K, N).

    Parameters
    ----------
    flow, at : the networks and their flows.
    step : (K, N), where these are.
    going : (K,) bool; the others' direction is 0.
    accuracy : (K,) relative size of the last residual.
    """
    diagonal = _inverse(flow, at, step)
    held = flow.network.held
    coarse = inverse(*grounded(at.between, *flow.outer(at), held))
    rest = at.out_of - at.into
    found = np.zeros_like(rest)
    aimed = _preconditioned(flow, diagonal, coarse, held, rest)
    direction = aimed.copy()
    size = inner(rest, aimed)
    least = np.minimum(LOOSE, accuracy) ** 2 * size
    going = going & (size > 0)
    for _ in range(MAX_NEWTON_STEPS):
        pushed = flow.laplacian(at, direction)
        curvature = inner(direction, pushed)
        going = going & (curvature > 0)
        length = np.divide(size, curvature, out=np.zeros_like(size), where=going)
        found += length[:, None] * direction
        rest -= length[:, None] * pushed
        aimed = _preconditioned(flow, diagonal, coarse, held, rest)
        before, size = size, inner(rest, aimed)
        going = going & (size > least)
        if not going.any():
            break
        direction = aimed + np.divide(size, before, out=np.zeros_like(size), where=going)[:, None] * direction
    return found / 2


def _inverse(flow: Flow, at: At, step: np.ndarray) -> np.ndarray:
    """The inverse of the diagonal; 0 for nodes that do not move."""
    total = at.into + at.out_of
    made = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
    for layer in flow.network.layers:
        bound = (flow.base + step)[:, layer.nodes] <= layer.least
        made[:, layer.nodes] = np.where(bound, 0, made[:, layer.nodes])
    return made


def _preconditioned(
    flow: Flow, inverse: np.ndarray, coarse: np.ndarray, held: np.ndarray, rest: np.ndarray
) -> np.ndarray:
    common = np.where(held, 0, (coarse @ np.where(held, 0, flow.by_group(rest))[..., None])[..., 0])
    made = inverse * rest + np.where(inverse > 0, flow.by_node(common), 0)
    for layer in flow.network.layers:
        weight = inverse[:, layer.nodes]
        total = weight.sum(axis=1, keepdims=True)
        mean = np.divide(made[:, layer.nodes].sum(axis=1, keepdims=True), total, out=total * 0, where=total > 0)
        made[:, layer.nodes] -= weight * mean
    return made


AIM = 1e-13
"""Iterations end where no node's flows differ by more than this part of their sum."""
ENOUGH, PATIENCE = 1e-11, 3
"""Below the first, so many iterations without progress end them too: what is left is rounding."""
MOST_ITERATIONS, MOST_BASES = 100, 8
MAX_LOG_STEP = 100.0
"""Masses are taken anew where a log-scale has moved by more."""
PROGRESS = 4


@dataclass(frozen=True, eq=False)
class Balanced:
    """Log-scales of least mass.

    Parameters
    ----------
    logs : (K, N) float64, of dropped nodes 0.
    iterations : (K,) int64, Newton steps.
    """

    logs: np.ndarray
    iterations: np.ndarray


def balance(network: Network, tolerance: float) -> Balanced:
    """The log-scales of least mass of K networks, each for itself.

    Parameters
    ----------
    network : what ``network_of`` made.
    tolerance : a network whose flows balance to this part of their sum at every node is left as it is, so that a
        second application changes nothing where the first one's result was rounded.

    Notes
    -----
    Some ten iterations whatever the depth (benchmarks/mass.py prints them), each of some ten products of every matrix
    of masses with a vector; memory of two float64 per pair of channels beside the network. Laws:
    tests/laws/test_mass.py.
    """
    K = len(network.source)
    made = Balanced(np.zeros(network.source.shape), np.zeros(K, np.int64))
    rows = np.flatnonzero(~_balanced(network, tolerance))
    if not network.edges and not network.layers:
        made.logs[rows] = np.where(network.kept, (network.sink - network.source) / 4, 0)[rows]
        return made
    made.logs[rows] = start(network)[rows]
    for turn in range(MOST_BASES):
        if not len(rows):
            break
        flow = Flow(network if len(rows) == K else network[rows], made.logs[rows])
        step, counts, done = _descend(flow, coarse=not turn)
        made.logs[rows] += step
        made.iterations[rows] += counts
        rows = rows[~done]
    return made


def _balanced(network: Network, tolerance: float) -> np.ndarray:
    """Which networks (K,) are balanced as they are."""
    flow = Flow(network, np.zeros(network.source.shape))
    at = flow.at(flow.base)
    moved = largest(np.abs(flow.fill(flow.base)))
    return flow.whole & (flow.imbalance(at) <= tolerance) & (moved <= tolerance)


def start(network: Network) -> np.ndarray:
    """Log-scales (K, N) that bring the largest mass into every node to 1, from ground or a group before it."""
    base, kept, held = np.zeros(network.source.shape), network.kept, network.held
    for number, place in enumerate(network.places):
        if held[number]:
            continue
        most = np.where(kept[:, place], network.source[:, place], -np.inf)
        for edges in network.edges:
            if edges.head == number and edges.tail < number:
                K, blocks, _, tails = edges.logs.shape
                down = np.where(kept[:, edges.out_of], -2 * base[:, edges.out_of], -np.inf)
                logs = (edges.logs + down.reshape(K, blocks, 1, tails)).max(axis=3).reshape(K, -1)
                most = np.maximum(most, np.where(kept[:, place], logs, -np.inf))
        base[:, place] = np.where(np.isfinite(most), -most / 2, 0)
    return base


def _descend(flow: Flow, *, coarse: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps (K, N) from the flow's base, the Newton steps taken (K,), and whether that is all (K,).

    Networks that are done are left out of what follows.
    """
    step = np.zeros(flow.base.shape)
    K = len(step)
    if coarse:
        at = flow.at(step)
        step = step + flow.by_node(scalars(at.between, *flow.outer(at), flow.network.held))
    found, counts, done = step.copy(), np.zeros(K, np.int64), np.ones(K, bool)
    rows, before, best = np.arange(K), step, step
    mass, least, waited = np.full(K, np.inf), np.full(K, np.inf), np.zeros(K, np.int64)
    for _ in range(MOST_ITERATIONS):
        step = _sweep(flow, step)
        at = flow.at(step)
        here = flow.mass(at)
        risen = ~(here <= mass * (1 + AIM))
        step = np.where(risen[:, None], before, step)
        imbalance = np.where(risen, np.inf, flow.imbalance(at))
        better = imbalance < least
        waited = np.where(imbalance < least / PROGRESS, 0, waited + 1)
        best, least = np.where(better[:, None], step, best), np.where(better, imbalance, least)
        far = largest(np.abs(step)) > MAX_LOG_STEP
        found[rows], done[rows] = np.where(far[:, None], step, best), ~far
        going = ~(far | (least <= AIM) | ((waited >= PATIENCE) & (least < ENOUGH)))
        if not going.any():
            break
        before, mass = step, np.where(risen, mass, here)
        if not going.all():
            flow, at, rows = flow[going], at[going], rows[going]
            step, before, best = step[going], before[going], best[going]
            mass, least, waited = mass[going], least[going], waited[going]
            risen, imbalance = risen[going], imbalance[going]
        direction = newton(flow, at, step, ~risen, imbalance)
        length = 2 * (largest(direction) + largest(-direction))
        step = step + damping(length)[:, None] * direction
        counts[rows] += ~risen
    return found, counts, done


def _sweep(flow: Flow, step: np.ndarray) -> np.ndarray:
    """A block step for every group, from input to output, and then for every layer."""
    step, network, held = step.copy(), flow.network, flow.network.held
    grow, shrink = np.exp(2 * step), np.exp(-2 * step)
    for number, place in enumerate(network.places):
        if held[number]:
            continue
        into, out_of = flow.source[:, place].copy(), flow.sink[:, place].copy()
        within = False
        for edges, masses in flow.pairs:
            within |= edges.head == edges.tail == number
            if edges.head == number:
                into += forward(masses, shrink[:, edges.out_of])
            if edges.tail == number:
                out_of += backward(masses, grow[:, edges.into])
        there = (into > 0) & (out_of > 0)
        ratio = np.log(np.divide(out_of, into, out=np.ones_like(into), where=there))
        moved = (step[:, place] + ratio / 4) / 2 if within else ratio / 4
        step[:, place] = np.where(there, moved, step[:, place])
        grow[:, place], shrink[:, place] = np.exp(2 * step[:, place]), np.exp(-2 * step[:, place])
    return flow.fill(step)

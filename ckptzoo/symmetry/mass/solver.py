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
"""

from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.mass.coarse import damping, scalars
from ckptzoo.symmetry.mass.flow import Flow, backward, forward, largest
from ckptzoo.symmetry.mass.network import Network
from ckptzoo.symmetry.mass.newton import newton

AIM = 1e-13
"""Iterations end where no node's flows differ by more than this part of their sum."""
ENOUGH, PATIENCE = 1e-11, 3
"""Below the first, so many iterations without progress end them too: what is left is rounding."""
MOST_ITERATIONS, MOST_BASES = 100, 8
FAR = 100.0
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
        far = largest(np.abs(step)) > FAR
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

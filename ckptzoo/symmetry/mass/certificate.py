"""How far above the least mass the mass at given scales can be: a bound by duality, whatever found the scales.

For any circulation y >= 0 on the edges, one whose flows into and out of every node are the same, and any u,
``m exp(x) >= y (1 - log(y / m)) + y x`` (Fenchel and Young) adds up to

    P(u) >= D(y) = sum over edges of y (1 - log(y / m)),

as ``sum y 2 (u_head - u_tail) = 2 sum u_i (in_i(y) - out_i(y)) = 0``. So D(y) bounds the least mass from below. For
y = w (1 + z), w the flows at the given scales, the gap is free of differences of large numbers:

    P(u) - D(y) = sum w phi(z),    phi(z) = (1 + z) log(1 + z) - z >= 0.

y is made by one pass from output to input. A node's flow out is known when all the nodes that it goes to are done; the
flows into it from ground and from nodes before it are multiplied with one factor ``f = 1 + z``, such that
``in = out``. Which nodes come before which is the order of groups, as long as 1/1024 of a node's flow comes from
before; a node that gets less (a residual stream that its first layer does not write) is put behind the block that it
gets most from. Edges against the order keep their flow, and no factor is below 1/1024.

What y misses at node i, ``b_i = in_i(y) - out_i(y)``, is rounding but for that, and costs ``2 |u*_i - u_i| |b_i|`` at
the u* of least mass. No flow is more than all of them at u*, ``w_e exp(2 (d_head - d_tail)) <= P(u*) <= P(u)`` with
``d = u* - u``, so that d rises by ``log(P / w_e) / 2`` at most along an edge: ``|d_i| <= U_i``, the larger of such sums
along a way from ground to node i and along one from there to ground. The gap has ``2 sum U_i |b_i|`` in it. Below 2^-52
it means nothing beside the rounding of P, and is given as that.

In a layer (``volume``) the bound has two more terms, ``D = sum y (1 - log(y / m)) + sum lambda_i l_i`` for any mu and
``lambda_i >= 0`` with ``in_i = (mu + lambda_i) / 2``: by ``sum u_i = 0`` and ``u_i >= l_i``,
``2 sum u_i in_i = sum u_i (mu + lambda_i) >= sum lambda_i l_i``. The flows into a layer stay as they are, and the gap
grows by ``mu sum u_i + sum lambda_i (u_i - l_i)``, which is 0 at scales that fill it. There ``d_i >= l_i - u_i``, and
``d_i >= -sum U_j`` over the others.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.mass.flow import Flow, StepFlows, backward, forward, largest
from ckptzoo.symmetry.mass.network import Edges, Network, multipliers

SHARE = 2.0**-10
"""The least part of a node's flow from the nodes before it, and the least factor of that."""
FLOOR = 2.0**-52
"""The least gap that is reported: the relative rounding of the mass itself."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """Bounds on the least mass of K checkpoints.

    Parameters
    ----------
    mass
        (K,) float64, of what is on a way from input to output, and what no scale changes.
    gap
        (K,) float64, ``(P - D) / P``.
    imbalance
        (K,) float64, the largest of ``|in - out| / (in + out)`` over the nodes, of the flows y of the bound.
    """

    mass: np.ndarray
    gap: np.ndarray
    imbalance: np.ndarray


def total_masses(network: Network, logs: np.ndarray) -> np.ndarray:
    """Return the masses (K,) at log-scales (K, N), of what is on a way from input to output or no scale changes."""
    flow = Flow(network, logs)
    return (flow.mass(flow.at_step(np.zeros_like(logs))) + np.exp(network.constant - flow.shift)) * np.exp(flow.shift)


def certify(network: Network, logs: np.ndarray) -> Certificate:
    """Bound the least mass at log-scales (K, N).

    This takes three products of every matrix of masses with a vector, and one exponential and two logarithms of every
    mass.
    """
    flow = Flow(network, logs)
    flows = flow.at_step(np.zeros_like(logs))
    levels = _levels(flow, flows)
    circulation = _Circulation(flow, flows, levels)
    constant = np.exp(network.constant - flow.shift)
    mass = flow.mass(flows)
    excess, residual = circulation.excess, np.abs(circulation.residual)
    for layer in network.layers:
        u, counted = logs[:, layer.nodes], network.kept[:, layer.nodes]
        mu, extra, residual[:, layer.nodes] = multipliers(flows.into[:, layer.nodes], counted)
        slack = np.where(extra > 0, extra * (u - layer.least), 0).sum(axis=1)
        excess = excess + np.abs(mu * np.where(counted, u, 0).sum(axis=1)) + slack
    total = mass + constant
    rounding = np.where(residual > 0, residual * _bounds(flow, mass, logs), 0).sum(axis=1)
    gap = np.divide(excess + 2 * rounding, total, out=np.zeros_like(total), where=total > 0)
    gap = np.where(np.isnan(gap) & np.isfinite(total), 1.0, np.clip(gap, FLOOR, 1.0))
    return Certificate(total * np.exp(flow.shift), gap, circulation.imbalance)


def _levels(flow: Flow, flows: StepFlows) -> np.ndarray:
    """Return the place (K, N) of every node in the order, counted from 0: rounds of all groups, one after the other."""
    network, count = flow.network, len(flow.network.groups)
    kept = network.kept
    levels = np.where(kept, -1, 0)
    share = np.full(len(kept), SHARE)
    for turn in itertools.count():
        open_nodes = levels < 0
        if not open_nodes.any():
            break
        before = levels.copy()
        for number, place in enumerate(network.slices):
            todo = open_nodes[:, place] & (levels[:, place] < 0)
            if not todo.any():
                continue
            known = flow.source[:, place] * flows.grow[:, place]
            for edges, masses in flow.pairs:
                if edges.head == number:
                    tails = (
                        flows.shrink[:, edges.tail_nodes]
                        * (levels[:, edges.tail_nodes] >= 0)
                        * kept[:, edges.tail_nodes]
                    )
                    known = known + flows.grow[:, place] * forward(masses, tails)
            ready = todo & (known > 0) & (known >= share[:, None] * flows.into[:, place])
            levels[:, place] = np.where(ready, turn * count + number, levels[:, place])
        idle = (levels == before).all(axis=1) & open_nodes.any(axis=1)
        lost = idle & (share == 0)
        # Where no node of a network is ready, any flow from before is enough from now on; where there is none either,
        # the nodes that are left come first.
        share = np.where(idle, 0.0, share)
        levels = np.where(lost[:, None] & (levels < 0), 0, levels)
    return levels


def _bounds(flow: Flow, mass: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Return U (K, N), the largest distance of the log-scales of least mass from these."""
    network = flow.network
    up, down = (_rise(masses, mass) for masses in (flow.source, flow.sink))
    largest_step, done = np.full_like(up, np.inf), np.zeros(len(up), bool)
    for _ in range(len(network.groups) + 1):
        for edges, masses in flow.pairs:
            K, blocks, _, tails = masses.shape
            ways = _rise(masses, mass) + up[:, edges.tail_nodes].reshape(K, blocks, 1, tails)
            up[:, edges.head_nodes] = np.minimum(up[:, edges.head_nodes], ways.min(axis=3).reshape(K, -1))
        for layer in network.layers:
            counted = network.kept[:, layer.nodes]
            bounds = np.where(counted, up[:, layer.nodes], 0)
            others = bounds.sum(axis=1, keepdims=True) - bounds
            own = np.minimum(others, logs[:, layer.nodes] - layer.least)
            down[:, layer.nodes] = np.where(counted, np.maximum(own, 0), np.inf)
        for edges, masses in reversed(flow.pairs):
            K, blocks, heads, _ = masses.shape
            ways = _rise(masses, mass) + down[:, edges.head_nodes].reshape(K, blocks, heads, 1)
            down[:, edges.tail_nodes] = np.minimum(down[:, edges.tail_nodes], ways.min(axis=2).reshape(K, -1))
        largest_step = np.where(done[:, None], largest_step, np.maximum(up, down))
        done = np.all(np.isfinite(largest_step) | ~network.kept, axis=1)
        if done.all():
            break
    return largest_step


def _rise(masses: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return ``log(P / w) / 2``, infinite where there is no edge."""
    with np.errstate(divide="ignore"):
        return np.log(mass.reshape(-1, *[1] * (masses.ndim - 1)) / masses) / 2


class _Circulation:
    """The circulation y near the flows, and its excess over them.

    ``excess`` (K,) is the sum of w phi(z), ``residual`` (K, N) is in - out at every node, and ``imbalance`` (K,) its
    largest share of a node's flow.
    """

    def __init__(self, flow: Flow, flows: StepFlows, levels: np.ndarray) -> None:
        self._flow, self._flows, self._levels = flow, flows, levels
        network, layered = flow.network, flow.network.layered_nodes
        self._ordered = [self._forward(edges, masses) for edges, masses in flow.pairs]
        first = flow.source * flows.grow
        fixed_in, out_of = np.zeros_like(first), flow.sink * flows.shrink
        for (edges, masses), ordered in zip(flow.pairs, self._ordered, strict=True):
            if ordered is not None:
                first[:, edges.head_nodes] += flows.grow[:, edges.head_nodes] * forward(
                    ordered, flows.shrink[:, edges.tail_nodes]
                )
            if ordered is not masses:
                fixed = masses if ordered is None else masses - ordered
                fixed_in[:, edges.head_nodes] += flows.grow[:, edges.head_nodes] * forward(
                    fixed, flows.shrink[:, edges.tail_nodes]
                )
                out_of[:, edges.tail_nodes] += flows.shrink[:, edges.tail_nodes] * backward(
                    fixed, flows.grow[:, edges.head_nodes]
                )
        factor = np.ones_like(first)
        count = max(len(network.groups), 1)
        for level in range(int(levels.max(initial=-1)), -1, -1):
            number = level % count
            place = network.slices[number]
            here = (levels[:, place] == level) & network.kept[:, place] & ~layered[place]
            if not here.any():
                continue
            adjustable = here & (first[:, place] > 0)
            needed = np.divide(
                out_of[:, place] - fixed_in[:, place], first[:, place], out=np.ones(here.shape), where=adjustable
            )
            factor[:, place] = np.where(adjustable, np.maximum(needed, SHARE), factor[:, place])
            sent = np.where(here, flows.grow[:, place] * factor[:, place], 0)
            for (edges, _), ordered in zip(flow.pairs, self._ordered, strict=True):
                if edges.head == number and ordered is not None:
                    out_of[:, edges.tail_nodes] += flows.shrink[:, edges.tail_nodes] * backward(ordered, sent)
        into = fixed_in + factor * first
        nodes = network.kept & ~layered
        self.residual = np.where(nodes, into - out_of, 0)
        total = into + out_of
        part = np.divide(np.abs(self.residual), total, out=np.zeros_like(total), where=nodes & (total > 0))
        self.imbalance = largest(part)
        self.excess = np.where(nodes, first * _phi(factor - 1), 0).sum(axis=1)

    def _forward(self, edges: Edges, masses: np.ndarray) -> np.ndarray | None:
        """Return the masses of the edges that go with the order; None where there is none, all of them unchanged."""
        network = self._flow.network
        if network.layered_groups[edges.head]:
            return None
        K, blocks, heads, tails = masses.shape
        up = np.where(network.kept[:, edges.head_nodes], self._levels[:, edges.head_nodes], edges.head)
        down = np.where(network.kept[:, edges.tail_nodes], self._levels[:, edges.tail_nodes], edges.tail)
        if up.min(initial=np.iinfo(np.int64).max) > down.max(initial=-1):
            return masses
        if up.max(initial=-1) <= down.min(initial=np.iinfo(np.int64).max):
            return None
        return masses * (up.reshape(K, blocks, heads, 1) > down.reshape(K, blocks, 1, tails))


def _phi(z: np.ndarray) -> np.ndarray:
    """Return ``(1 + z) log(1 + z) - z``, by its series where z is small; 1 at z = -1."""
    series = z * z * (1 / 2 - z * (1 / 6 - z * (1 / 12 - z / 20)))
    safe = np.where(z > -1, z, 0)
    exact = np.where(z > -1, (1 + safe) * np.log1p(safe) - safe, 1.0)
    # the exact form cancels near 0; the first term that the series lacks is z^6 / 30
    return np.where(np.abs(z) < 1e-3, series, exact)

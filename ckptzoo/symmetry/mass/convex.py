"""Least mass by cvxpy, one network after the other: the reference that the solver is compared with.

``minimize log sum exp(c_e + 2 (u_head - u_tail))`` over the kept nodes, with the logarithms c of the masses after the
largest incoming mass of every node has been brought to 1. The logarithm leaves the minimum where it is and the
exponential cones in range. Layers of ``volume`` add ``sum u = 0`` and ``u >= l``.
"""

import warnings

import numpy as np

from ckptzoo.errors import require
from ckptzoo.symmetry.mass.network import Network
from ckptzoo.symmetry.mass.solver import Balanced, starting_log_scales


def balance_by_cvxpy(network: Network, tolerance: float) -> Balanced:
    """Return log-scales of least mass by Clarabel; 0 where it fails, and the certificate says by how much.

    ``tolerance`` is not used: every network is solved. Raises ``MissingExtraError`` where cvxpy is not installed.
    """
    cvxpy, sparse = require("cvxpy", "convex"), require("scipy.sparse", "convex")
    base = starting_log_scales(network)
    result = Balanced(np.zeros(base.shape), np.zeros(len(base), np.int64))
    for row in range(len(base)):
        nodes = np.flatnonzero(network.kept[row])
        if not len(nodes):
            continue
        logs, heads, tails = _edges(network, row)
        step = cvxpy.Variable(len(nodes))
        exponents, slopes = logs.copy(), []
        for ends, sign in ((heads, 2.0), (tails, -2.0)):
            chosen = np.flatnonzero(ends >= 0)
            exponents[chosen] += sign * base[row, ends[chosen]]
            places = chosen, np.searchsorted(nodes, ends[chosen])
            slopes.append(sparse.csr_array((np.full(len(chosen), sign), places), (len(logs), len(nodes))))
        constraints = []
        for layer in network.layers:
            counted = network.kept[row, layer.nodes]
            kept = layer.nodes[counted]
            places = np.searchsorted(nodes, kept)
            if len(places):
                bounds = layer.least[row, counted] - base[row, kept]
                bounded = np.isfinite(bounds)
                constraints.append(cvxpy.sum(step[places]) == -base[row, kept].sum())
                if bounded.any():
                    constraints.append(step[places[bounded]] >= bounds[bounded])
        problem = cvxpy.Problem(
            cvxpy.Minimize(cvxpy.log_sum_exp(exponents - exponents.max() + sum(slopes) @ step)), constraints
        )
        # cvxpy warns where a solution may be inaccurate: the certificate says by how much.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                problem.solve(solver=cvxpy.CLARABEL)
            except cvxpy.SolverError:
                continue
        if step.value is not None and np.isfinite(step.value).all():
            result.log_scales[row, nodes] = base[row, nodes] + step.value
            result.iterations[row] = problem.solver_stats.num_iters or 0
    return result


def _edges(network: Network, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges of one network between kept nodes and ground: log masses, heads and tails; -1 for ground."""
    kept = network.kept[row]
    nodes = np.arange(len(kept))
    ground = np.full(len(kept), -1)
    all_edges = [(network.source[row], nodes, ground), (network.sink[row], ground, nodes)]
    for edges in network.edges:
        _, blocks, heads, tails = edges.log_masses.shape
        into, out_of = (
            nodes[edges.head_nodes].reshape(blocks, heads, 1),
            nodes[edges.tail_nodes].reshape(blocks, 1, tails),
        )
        ends = (np.broadcast_to(side, edges.log_masses.shape[1:]).ravel() for side in (into, out_of))
        all_edges.append((edges.log_masses[row].ravel(), *ends))
    logs, into, out_of = (np.concatenate(parts) for parts in zip(*all_edges, strict=True))
    chosen = (logs > -np.inf) & ((into < 0) | kept[into]) & ((out_of < 0) | kept[out_of])
    return logs[chosen], into[chosen], out_of[chosen]

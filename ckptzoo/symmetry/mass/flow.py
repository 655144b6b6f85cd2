"""The flows of K networks at given scales: the sums into and out of every node, and the Laplacian of the flows.

Masses are taken at log-scales ``base`` once and divided by the largest of their checkpoint; those at ``base + step``
follow from factors of the nodes alone, ``w_ij = m_ij exp(2 (step_i - step_j))``. All sums are of positive numbers, so
that every one of them has a small relative error, however small it is compared with the others.
"""

from copy import copy
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.mass.network import Edges, Network, fill_to_level

MIN_LOG_MASS = -690.0
"""Logarithm of the smallest mass relative to the largest; smaller ones count as this until their scale is found.

It is about 2e-300; float64 loses digits below 2e-308.
"""
SMALL_MATRIX = 64
"""Matrices of at most this number of elements are summed by ``einsum``, not by a call of BLAS."""


@dataclass(frozen=True, eq=False)
class StepFlows:
    """Flows at a step from the base: ``into`` and ``out_of`` every node, (K, N).

    ``grow`` and ``shrink`` (K, N) are the factors ``exp(2 step)`` and ``exp(-2 step)``. ``between`` (K, G, G) is the
    flow from the channels of one group (second axis) to those of another (first axis).
    """

    grow: np.ndarray
    shrink: np.ndarray
    into: np.ndarray
    out_of: np.ndarray
    between: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> "StepFlows":
        """Return the flows of some of the K networks."""
        parts = (self.grow, self.shrink, self.into, self.out_of, self.between)
        return StepFlows(*(part[rows] for part in parts))


class Flow:
    """K networks with their masses at log-scales ``base`` (K, N), dropped nodes left out."""

    def __init__(self, network: Network, base: np.ndarray) -> None:
        self.network, self.base = network, base
        kept = network.kept
        source = np.where(kept, network.source + 2 * base, -np.inf)
        sink = np.where(kept, network.sink - 2 * base, -np.inf)
        all_logs = [_shifted(edges, base, kept) for edges in network.edges]
        peaks = [logs.reshape(len(base), -1).max(axis=1, initial=-np.inf) for logs in (source, sink, *all_logs)]
        peak = np.maximum.reduce(peaks)
        self.shift = np.where(np.isfinite(peak), peak, 0.0)
        """(K,) logarithms of the factors by which all flows are to be multiplied."""
        self.resolved = np.ones(len(base), bool)
        """(K,) bool: no mass is below ``MIN_LOG_MASS``."""
        self.source, self.sink = self._masses(source), self._masses(sink)
        self.matrices = [self._masses(logs) for logs in all_logs]
        self._free = ~network.layered_nodes

    def __getitem__(self, rows: np.ndarray) -> "Flow":
        """Return some of the K networks, at the same base."""
        part = copy(self)
        part.network, part.base = self.network.without_masses(rows), self.base[rows]
        part.shift, part.resolved = self.shift[rows], self.resolved[rows]
        part.source, part.sink = self.source[rows], self.sink[rows]
        part.matrices = [masses[rows] for masses in self.matrices]
        return part

    @property
    def pairs(self) -> list[tuple[Edges, np.ndarray]]:
        """The edges between groups with their masses (K, blocks, heads, tails)."""
        return list(zip(self.network.edges, self.matrices, strict=True))

    def at_step(self, step: np.ndarray) -> StepFlows:
        """Return the flows at ``base + step``."""
        grow, shrink = np.exp(2 * step), np.exp(-2 * step)
        into, out_of = self.source * grow, self.sink * shrink
        K, count = len(step), len(self.network.groups)
        between = np.zeros((K, count, count))
        for edges, masses in self.pairs:
            received = grow[:, edges.head_nodes] * forward(masses, shrink[:, edges.tail_nodes])
            into[:, edges.head_nodes] += received
            out_of[:, edges.tail_nodes] += shrink[:, edges.tail_nodes] * backward(masses, grow[:, edges.head_nodes])
            between[:, edges.head, edges.tail] += received.sum(axis=1)
        return StepFlows(grow, shrink, into, out_of, between)

    def laplacian(self, flows: StepFlows, values: np.ndarray) -> np.ndarray:
        """Return ``(L x)_i``, the sum of ``w (x_i - x_j)`` over the edges at node i, with x = 0 at ground."""
        product = (flows.into + flows.out_of) * values
        grown, shrunk = flows.grow * values, flows.shrink * values
        for edges, masses in self.pairs:
            product[:, edges.head_nodes] -= flows.grow[:, edges.head_nodes] * forward(
                masses, shrunk[:, edges.tail_nodes]
            )
            product[:, edges.tail_nodes] -= flows.shrink[:, edges.tail_nodes] * backward(
                masses, grown[:, edges.head_nodes]
            )
        return product

    def imbalance(self, flows: StepFlows) -> np.ndarray:
        """Return (K,) the largest of ``|in - out| / (in + out)``; 0 for nodes without any flow and those in layers."""
        total = flows.into + flows.out_of
        share = np.divide(np.abs(flows.into - flows.out_of), total, out=np.zeros_like(total), where=total > 0)
        share = np.where(self._free, share, 0)
        return np.where(np.isfinite(total).all(axis=1), largest(share), np.nan)

    def ground_flows(self, flows: StepFlows) -> tuple[np.ndarray, np.ndarray]:
        """Return (K, G) flows from ground and to ground, by group."""
        source, sink = self.source * flows.grow, self.sink * flows.shrink
        return self.by_group(source), self.by_group(sink)

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Return sums (K, G) of the nodes' values."""
        starts = [place.start for place in self.network.slices]
        return np.add.reduceat(values, starts, axis=1) if starts else np.zeros((len(values), 0))

    def by_node(self, values: np.ndarray) -> np.ndarray:
        """Return the groups' values (K, G), at each of their nodes."""
        return np.repeat(values, [group.n for group in self.network.groups], axis=1)

    def fill_layers(self, step: np.ndarray) -> np.ndarray:
        """Return the step with the nodes of every layer at their scales of least mass."""
        if not self.network.layers:
            return step
        step = step.copy()
        shrink = np.exp(-2 * step)
        raw = self.source.copy()
        for edges, masses in self.pairs:
            if self.network.layered_groups[edges.head]:
                raw[:, edges.head_nodes] += forward(masses, shrink[:, edges.tail_nodes])
        for layer in self.network.layers:
            base = self.base[:, layer.nodes]
            logs = np.log(np.where(raw[:, layer.nodes] > 0, raw[:, layer.nodes], 1)) - 2 * base
            step[:, layer.nodes] = fill_to_level(logs, layer.least, self.network.kept[:, layer.nodes]) - base
        return step

    def mass(self, flows: StepFlows) -> np.ndarray:
        """Return (K,) the sum of all flows; times ``exp(shift)`` it is the mass without what is constant."""
        return flows.into.sum(axis=1) + (self.sink * flows.shrink).sum(axis=1)

    def _masses(self, logs: np.ndarray) -> np.ndarray:
        logs = logs - self.shift.reshape(-1, *[1] * (logs.ndim - 1))
        positive = logs > -np.inf
        self.resolved &= ~(positive & (logs < MIN_LOG_MASS)).any(axis=tuple(range(1, logs.ndim)))
        return np.where(positive, np.exp(np.maximum(logs, MIN_LOG_MASS)), 0.0)


def forward(masses: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Return sums over tails: (K, B, H, T) with values (K, B T) to (K, B H)."""
    K, blocks, heads, count = masses.shape
    values = tails.reshape(K, blocks, count)
    if heads * count <= SMALL_MATRIX:
        return np.einsum("kbht,kbt->kbh", masses, values).reshape(K, -1)
    return np.matmul(masses, values[..., None]).reshape(K, -1)


def backward(masses: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Return sums over heads: (K, B, H, T) with values (K, B H) to (K, B T)."""
    K, blocks, count, tails = masses.shape
    values = heads.reshape(K, blocks, count)
    if tails * count <= SMALL_MATRIX:
        return np.einsum("kbht,kbh->kbt", masses, values).reshape(K, -1)
    return np.matmul(values[:, :, None], masses).reshape(K, -1)


def inner(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return inner products (K,) of rows (K, N)."""
    return np.einsum("kn,kn->k", left, right)


def largest(values: np.ndarray) -> np.ndarray:
    """Return the largest entries (K,) of rows (K, N), at least 0."""
    # Rows are short and many: a maximum along the first axis goes through them side by side.
    return np.ascontiguousarray(values.T).max(axis=0, initial=0)


def _shifted(edges: Edges, base: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return log masses at the base, -inf at dropped nodes."""
    K, blocks, heads, tails = edges.log_masses.shape
    up = np.where(kept[:, edges.head_nodes], 2 * base[:, edges.head_nodes], -np.inf).reshape(K, blocks, heads, 1)
    down = np.where(kept[:, edges.tail_nodes], -2 * base[:, edges.tail_nodes], -np.inf).reshape(K, blocks, 1, tails)
    return edges.log_masses + up + down

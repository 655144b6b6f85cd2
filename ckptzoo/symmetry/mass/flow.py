"""The flows of K networks at given scales: what goes in and out of every node, and the Laplacian of the flows.

Masses are taken at log-scales ``base`` once and divided by the largest of their checkpoint; those at ``base + step``
follow from factors of the nodes alone, ``w_ij = m_ij exp(2 (step_i - step_j))``. All sums are of positive numbers, so
that every one of them has a small relative error, however small it is beside the others.
"""

from copy import copy
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.mass.network import Edges, Network, filled

LEAST = -690.0
"""Logarithm of the smallest mass beside the largest; what is smaller counts as this until its scale has been found."""
SMALL = 64
"""Matrices of at most so many elements are summed without a library's product."""


@dataclass(frozen=True, eq=False)
class At:
    """Flows at a step from the base.

    Parameters
    ----------
    grow, shrink : (K, N) factors ``exp(2 step)`` and ``exp(-2 step)``.
    into, out_of : (K, N) flow into and out of every node.
    between : (K, G, G), flow from the channels of one group (second axis) to those of another (first axis).
    """

    grow: np.ndarray
    shrink: np.ndarray
    into: np.ndarray
    out_of: np.ndarray
    between: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> "At":
        """The flows of some of the K networks."""
        parts = (self.grow, self.shrink, self.into, self.out_of, self.between)
        return At(*(part[rows] for part in parts))


class Flow:
    """K networks with their masses at log-scales, dropped nodes left out.

    Parameters
    ----------
    network : what to look at.
    base : (K, N) log-scales.
    """

    def __init__(self, network: Network, base: np.ndarray) -> None:
        self.network, self.base = network, base
        kept = network.kept
        source = np.where(kept, network.source + 2 * base, -np.inf)
        sink = np.where(kept, network.sink - 2 * base, -np.inf)
        all_logs = [_shifted(edges, base, kept) for edges in network.edges]
        peaks = [logs.reshape(len(base), -1).max(axis=1, initial=-np.inf) for logs in (source, sink, *all_logs)]
        peak = np.maximum.reduce(peaks)
        self.shift = np.where(np.isfinite(peak), peak, 0.0)
        """(K,) logarithms of what all flows are to be multiplied with."""
        self.whole = np.ones(len(base), bool)
        """(K,) no mass is below the smallest that is told apart."""
        self.source, self.sink = self._masses(source), self._masses(sink)
        self.matrices = [self._masses(logs) for logs in all_logs]
        self._free = ~network.layered

    def __getitem__(self, rows: np.ndarray) -> "Flow":
        """Some of the K networks, at the same base."""
        made = copy(self)
        made.network, made.base = self.network.bare(rows), self.base[rows]
        made.shift, made.whole = self.shift[rows], self.whole[rows]
        made.source, made.sink = self.source[rows], self.sink[rows]
        made.matrices = [masses[rows] for masses in self.matrices]
        return made

    @property
    def pairs(self) -> list[tuple[Edges, np.ndarray]]:
        """The edges between groups with their masses (K, blocks, heads, tails)."""
        return list(zip(self.network.edges, self.matrices, strict=True))

    def at(self, step: np.ndarray) -> At:
        """Everything that flows at ``base + step``."""
        grow, shrink = np.exp(2 * step), np.exp(-2 * step)
        into, out_of = self.source * grow, self.sink * shrink
        K, count = len(step), len(self.network.groups)
        between = np.zeros((K, count, count))
        for edges, masses in self.pairs:
            received = grow[:, edges.into] * forward(masses, shrink[:, edges.out_of])
            into[:, edges.into] += received
            out_of[:, edges.out_of] += shrink[:, edges.out_of] * backward(masses, grow[:, edges.into])
            between[:, edges.head, edges.tail] += received.sum(axis=1)
        return At(grow, shrink, into, out_of, between)

    def laplacian(self, at: At, values: np.ndarray) -> np.ndarray:
        """``(L x)_i``, the sum of ``w (x_i - x_j)`` over the edges at node i, with x = 0 at ground."""
        made = (at.into + at.out_of) * values
        risen, sunk = at.grow * values, at.shrink * values
        for edges, masses in self.pairs:
            made[:, edges.into] -= at.grow[:, edges.into] * forward(masses, sunk[:, edges.out_of])
            made[:, edges.out_of] -= at.shrink[:, edges.out_of] * backward(masses, risen[:, edges.into])
        return made

    def imbalance(self, at: At) -> np.ndarray:
        """(K,) the largest of ``|in - out| / (in + out)``; 0 for nodes without any flow and those in layers."""
        total = at.into + at.out_of
        share = np.divide(np.abs(at.into - at.out_of), total, out=np.zeros_like(total), where=total > 0)
        share = np.where(self._free, share, 0)
        return np.where(np.isfinite(total).all(axis=1), largest(share), np.nan)

    def outer(self, at: At) -> tuple[np.ndarray, np.ndarray]:
        """(K, G) flows from ground and to ground, by group."""
        source, sink = self.source * at.grow, self.sink * at.shrink
        return self.by_group(source), self.by_group(sink)

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Sums (K, G) of the nodes' values."""
        starts = [place.start for place in self.network.places]
        return np.add.reduceat(values, starts, axis=1) if starts else np.zeros((len(values), 0))

    def by_node(self, values: np.ndarray) -> np.ndarray:
        """The groups' values (K, G), at each of their nodes."""
        return np.repeat(values, [group.n for group in self.network.groups], axis=1)

    def fill(self, step: np.ndarray) -> np.ndarray:
        """The step with the nodes of every layer at their scales of least mass."""
        if not self.network.layers:
            return step
        step = step.copy()
        shrink = np.exp(-2 * step)
        raw = self.source.copy()
        for edges, masses in self.pairs:
            if self.network.held[edges.head]:
                raw[:, edges.into] += forward(masses, shrink[:, edges.out_of])
        for layer in self.network.layers:
            base = self.base[:, layer.nodes]
            logs = np.log(np.where(raw[:, layer.nodes] > 0, raw[:, layer.nodes], 1)) - 2 * base
            step[:, layer.nodes] = filled(logs, layer.least, self.network.kept[:, layer.nodes]) - base
        return step

    def mass(self, at: At) -> np.ndarray:
        """(K,) the sum of all flows; times ``exp(shift)`` it is the mass without what is constant."""
        return at.into.sum(axis=1) + (self.sink * at.shrink).sum(axis=1)

    def _masses(self, logs: np.ndarray) -> np.ndarray:
        logs = logs - self.shift.reshape(-1, *[1] * (logs.ndim - 1))
        there = logs > -np.inf
        self.whole &= ~(there & (logs < LEAST)).any(axis=tuple(range(1, logs.ndim)))
        return np.where(there, np.exp(np.maximum(logs, LEAST)), 0.0)


def forward(masses: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Sums over tails: (K, B, H, T) with values (K, B T) to (K, B H)."""
    K, blocks, heads, count = masses.shape
    values = tails.reshape(K, blocks, count)
    if heads * count <= SMALL:
        return np.einsum("kbht,kbt->kbh", masses, values).reshape(K, -1)
    return np.matmul(masses, values[..., None]).reshape(K, -1)


def backward(masses: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Sums over heads: (K, B, H, T) with values (K, B H) to (K, B T)."""
    K, blocks, count, tails = masses.shape
    values = heads.reshape(K, blocks, count)
    if tails * count <= SMALL:
        return np.einsum("kbht,kbh->kbt", masses, values).reshape(K, -1)
    return np.matmul(values[:, :, None], masses).reshape(K, -1)


def inner(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Inner products (K,) of rows (K, N)."""
    return np.einsum("kn,kn->k", one, two)


def largest(values: np.ndarray) -> np.ndarray:
    """The largest entries (K,) of rows (K, N), at least 0; rows are short, and there are many of them."""
    return np.ascontiguousarray(values.T).max(axis=0, initial=0)


def _shifted(edges: Edges, base: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Log masses at the base, -inf at dropped nodes."""
    K, blocks, heads, tails = edges.logs.shape
    up = np.where(kept[:, edges.into], 2 * base[:, edges.into], -np.inf).reshape(K, blocks, heads, 1)
    down = np.where(kept[:, edges.out_of], -2 * base[:, edges.out_of], -np.inf).reshape(K, blocks, 1, tails)
    return edges.logs + up + down

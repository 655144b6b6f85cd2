"""Stacked checkpoints as flow networks: channels are nodes, sums of squared weights are masses of edges.

A node is a channel of a group whose scale is positive. Everything else is ground: inputs, outputs, channels of other
groups, positions that are in no segment. The mass of the edge from a channel j that a tensor reads to a channel i
that it writes is ``m_ij``, the sum of the squares of its elements at both, over windows and whatever else shares both
ends; scaled by ``s = exp(u)`` it is ``m_ij exp(2 (u_i - u_j))``.

Masses are kept as logarithms: no square overflows or vanishes.

In a layer (``volume``) the log-scales add up to 0 and have lower bounds. No edge goes from its nodes to other nodes, so
that at given tails their mass is ``sum F_i exp(2 u_i)``, to be minimised under
``sum u_i = 0`` and ``u_i >= l_i``. Its Lagrangian has ``2 F_i exp(2 u_i) = mu + lambda_i`` with ``lambda_i >= 0``, and
``lambda_i = 0`` where ``u_i > l_i``: all flows into the layer are ``mu / 2``, but for the nodes whose flow at the
least scale is larger, ``2 F_i exp(2 u_i) = max(mu, 2 F_i exp(2 l_i))``. The sum of the u is increasing in the
logarithm of mu and linear between the values at which a node leaves its bound, so that mu follows from a sort.
"""

from dataclasses import dataclass, replace

import numpy as np

from ckptzoo.schema.groups import Group

NEAR = 1e-12
"""Flows that exceed the level by at most this part of it are at the level, up to rounding."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Log masses of the edges from the channels of one group to those of one group, per checkpoint.

    ``head`` and ``tail`` are numbers of the groups among the network's, ``head_nodes`` and ``tail_nodes`` the positions
    of their nodes among all nodes. ``log_masses`` are (K, blocks, heads of a block, tails of a block), -inf where there
    is no edge; a node has edges within its block only.
    """

    head: int
    tail: int
    head_nodes: slice
    tail_nodes: slice
    log_masses: np.ndarray


@dataclass(frozen=True, eq=False)
class Layer:
    """Nodes without edges to other nodes, whose log-scales add up to 0 and have a lower bound each.

    ``nodes`` (n,) int64 are their numbers among all nodes, ``least`` (K, n) float64 the bounds, at most 0.
    """

    nodes: np.ndarray
    least: np.ndarray


@dataclass(frozen=True, eq=False)
class Network:
    """K flow networks of one table.

    Parameters
    ----------
    groups
        those whose channels are nodes, in the table's order.
    slices
        the positions of each group's nodes among all N nodes.
    source, sink
        (K, N) float64, logarithms of the masses of the edges from ground and to ground.
    loops
        (K, N) float64, logarithms of the masses between a channel and itself, which no scale changes.
    fixed
        (K,) float64, logarithm of the mass between ground and ground.
    edges
        all others.
    kept
        (K, N) bool, nodes that are on a cycle through ground; those of a layer count as ground there.
    layers
        of nodes that are scaled together (``volume``).
    """

    groups: tuple[Group, ...]
    slices: tuple[slice, ...]
    source: np.ndarray
    sink: np.ndarray
    loops: np.ndarray
    fixed: np.ndarray
    edges: tuple[Edges, ...]
    kept: np.ndarray
    layers: tuple[Layer, ...] = ()

    def __getitem__(self, rows: np.ndarray) -> "Network":
        """Return the networks of some of the K checkpoints."""
        return replace(
            self,
            source=self.source[rows],
            sink=self.sink[rows],
            loops=self.loops[rows],
            fixed=self.fixed[rows],
            edges=tuple(replace(edges, log_masses=edges.log_masses[rows]) for edges in self.edges),
            kept=self.kept[rows],
            layers=tuple(replace(layer, least=layer.least[rows]) for layer in self.layers),
        )

    def without_masses(self, rows: np.ndarray) -> "Network":
        """Return some of the K networks without their masses: only which groups are joined to which."""
        none = np.zeros((0, 0))
        return replace(
            self,
            source=none,
            sink=none,
            loops=none,
            fixed=none,
            edges=tuple(replace(edges, log_masses=none) for edges in self.edges),
            kept=self.kept[rows],
            layers=tuple(replace(layer, least=layer.least[rows]) for layer in self.layers),
        )

    @property
    def layered_nodes(self) -> np.ndarray:
        """(N,) bool, the nodes that are in a layer."""
        layered = np.zeros(self.kept.shape[1], bool)
        for layer in self.layers:
            layered[layer.nodes] = True
        return layered

    @property
    def layered_groups(self) -> np.ndarray:
        """(G,) bool, the groups whose nodes are in a layer."""
        layered = self.layered_nodes
        return np.array([bool(layered[place].any()) for place in self.slices], bool)

    @property
    def constant(self) -> np.ndarray:
        """(K,) logarithm of the mass that no scale of a kept node changes."""
        return np.logaddexp.reduce(
            np.concatenate([self.fixed[:, None], np.where(self.kept, self.loops, -np.inf)], axis=1), axis=1
        )


def fill_to_level(logs: np.ndarray, least: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the log-scales (K, n) of least mass in a layer, at inflows with logarithms ``logs`` (K, n).

    ``least`` (K, n) is l, at most 0, -inf where there is no bound. Nodes that are not ``counted`` (K, n) get 0.
    """
    # The level at which each node leaves its bound; as the level rises, nodes leave in this order.
    leaves = np.where(counted, logs + 2 * least, np.inf)
    order = np.argsort(leaves, axis=1, kind="stable")
    rising = np.take_along_axis(leaves, order, 1)
    bounds = np.take_along_axis(np.where(counted, least, 0), order, 1)
    free = np.cumsum(np.take_along_axis(np.where(counted, logs, 0), order, 1), axis=1)
    bound = _sums_of_later(bounds)
    level = (free - 2 * bound) / np.arange(1, logs.shape[1] + 1)
    valid = (rising <= level) & (level < np.inf)
    last = logs.shape[1] - 1 - np.argmax(np.flip(valid, 1), axis=1)
    level = np.take_along_axis(level, last[:, None], 1)
    level = np.where(valid.any(axis=1)[:, None], level, 0)
    return np.where(counted, np.maximum(least, (level - logs) / 2), 0)


def multipliers(flows: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mu (K,), lambda (K, n) and remainder (K, n) of flows: ``flow = (mu + lambda) / 2 + remainder``."""
    mu = 2 * np.where(counted, flows, np.inf).min(axis=1, initial=np.inf)
    mu = np.where(np.isfinite(mu), mu, 0)
    excess = np.where(counted, 2 * flows - mu[:, None], 0)
    near = excess <= NEAR * mu[:, None]
    return mu, np.where(near, 0, excess), np.where(near, excess / 2, 0)


def _sums_of_later(bounds: np.ndarray) -> np.ndarray:
    """Return sums of the entries after every entry, without differences of infinities."""
    after = np.zeros_like(bounds)
    after[:, :-1] = np.flip(np.cumsum(np.flip(bounds[:, 1:], 1), axis=1), 1)
    return after

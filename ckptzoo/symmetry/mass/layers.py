"""Layers whose log-scales add up to 0: the scales of least mass, by filling up to one level.

Nothing leaves the nodes of a layer, so that at given tails their mass is ``sum F_i exp(2 u_i)``, to be minimised under
``sum u_i = 0`` and ``u_i >= l_i``. Its Lagrangian has ``2 F_i exp(2 u_i) = mu + lambda_i`` with ``lambda_i >= 0``, and
``lambda_i = 0`` where ``u_i > l_i``: all flows into the layer are ``mu / 2``, but for the nodes whose flow at the
least scale is larger, ``2 F_i exp(2 u_i) = max(mu, 2 F_i exp(2 l_i))``. The sum of the u is increasing in the
logarithm of mu and linear between the values at which a node leaves its bound, so that mu follows from a sort.
"""

import numpy as np

NEAR = 1e-12
"""Flows that exceed the level by at most this part of it are at the level, but for rounding."""


def filled(logs: np.ndarray, least: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The log-scales (K, n) of least mass.

    Parameters
    ----------
    logs : (K, n), logarithms of F.
    least : (K, n), l, at most 0; -inf where there is no bound.
    counted : (K, n) bool, the nodes that take part; the others get 0.
    """
    leaves = np.where(counted, logs + 2 * least, np.inf)
    order = np.argsort(leaves, axis=1, kind="stable")
    rising = np.take_along_axis(leaves, order, 1)
    bounds = np.take_along_axis(np.where(counted, least, 0), order, 1)
    free = np.cumsum(np.take_along_axis(np.where(counted, logs, 0), order, 1), axis=1)
    bound = _behind(bounds)
    level = (free - 2 * bound) / np.arange(1, logs.shape[1] + 1)
    valid = (rising <= level) & (level < np.inf)
    last = logs.shape[1] - 1 - np.argmax(np.flip(valid, 1), axis=1)
    found = np.take_along_axis(level, last[:, None], 1)
    found = np.where(valid.any(axis=1)[:, None], found, 0)
    return np.where(counted, np.maximum(least, (found - logs) / 2), 0)


def multipliers(flows: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The level mu (K,), lambda (K, n) and what is left of the flows (K, n): ``flow = (mu + lambda) / 2 + rest``."""
    mu = 2 * np.where(counted, flows, np.inf).min(axis=1, initial=np.inf)
    mu = np.where(np.isfinite(mu), mu, 0)
    excess = np.where(counted, 2 * flows - mu[:, None], 0)
    near = excess <= NEAR * mu[:, None]
    return mu, np.where(near, 0, excess), np.where(near, excess / 2, 0)


def _behind(bounds: np.ndarray) -> np.ndarray:
    """Sums of what stands behind every entry, without differences of infinities."""
    after = np.zeros_like(bounds)
    after[:, :-1] = np.flip(np.cumsum(np.flip(bounds[:, 1:], 1), axis=1), 1)
    return after

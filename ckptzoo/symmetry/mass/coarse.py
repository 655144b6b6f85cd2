"""One scale for all channels of a group: a network of groups, balanced by dense Newton steps.

The restriction of P(u) (solver.py) to ``u_i = c_g`` for the channels i of group g is
``P(c) = sum A_gh exp(2 (c_g - c_h)) + sum a_g exp(2 c_g) + sum b_g exp(-2 c_g)``, with the total flows A between
groups, a from ground and b to ground. From far away the start is the c of least squares of the logarithms of all
these flows, ``min sum (log A_gh + 2 (c_g - c_h))^2 + ...``, which is exact for a chain of layers.
"""

import numpy as np

MOST = 40
FAR = 1e-3
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
    for _ in range(MOST):
        grow, shrink = np.exp(2 * found), np.exp(-2 * found)
        flows = grow[:, :, None] * between * shrink[:, None]
        come, gone = source * grow, sink * shrink
        slope = come + flows.sum(axis=2) - gone - flows.sum(axis=1)
        step = -(inverse(flows, come, gone) @ slope[..., None])[..., 0] / 2
        length = 2 * (np.maximum(step.max(axis=1), 0) - np.minimum(step.min(axis=1), 0))
        going = length > FAR
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

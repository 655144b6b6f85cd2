"""The Newton direction of K networks: conjugate gradients on the Laplacian of the flows.

``H = 4 L`` and ``dP/du = 2 (in - out)``, so that the direction is half of the x in ``L x = out - in``. The
preconditioner is the inverse of L's diagonal plus the inverse of L on vectors that are constant on every group, which
are the slow ones of a deep network. Nodes of a layer move within ``sum x_i = 0``, those at their least scale do not:
preconditioned residuals are projected along the diagonal (Gould, Hribar and Nocedal, 2001, algorithm 2.1).
"""

import numpy as np

from ckptzoo.symmetry.mass.coarse import grounded, inverse
from ckptzoo.symmetry.mass.flow import At, Flow, inner

MOST = 200
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
    for _ in range(MOST):
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

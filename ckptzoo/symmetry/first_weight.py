"""Unit norms, and the paper's order by the first weight.

Groups are taken from input to output. A channel's incoming weights are its slice of the group's first writer
(the first tensor of the table with exponent +1 that counts in the mass), with every group before it already in
its gauge. Then

- scale: ``s_i = 1 / ||w_i||_2`` where the group scales by positive numbers; a channel with ``||w_i|| = 0`` is dead
  and keeps ``s_i = 1``;
- order: ascending in the key ``s_i * w_i[0]``, the first element of the slice in memory order, ties in the order
  found (arXiv 2310.08287, appendix C.2 and table 1). In a wreath group the channels of a block are ordered so
  first. Blocks are then ordered by the key of their first, smallest channel; the first group that names a block
  permutation decides it, for all groups that share it. A Fixed group keeps its order.

The order is not tie-safe: equal keys keep the order of the raw weights, and are counted. Norms are sums over
sorted squares, so that they do not depend on the order of the channels before. A norm within 8 units of the
stored precision of 1 counts as 1, so that a second application changes nothing.
"""

import math
from collections.abc import Mapping

import numpy as np

from ckptzoo.errors import SymmetryError
from ckptzoo.spec.symmetry import AxisAction, Fixed, Group, Symmetry, Wreath
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.element import GroupElement, block_move
from ckptzoo.symmetry.layout import by_channel, positions, stored_dtype
from ckptzoo.symmetry.report import Report


def solve(arrays: Mapping[str, np.ndarray], symmetry: Symmetry, *, order: bool) -> tuple[GroupElement, Report]:
    """The elements that bring K finite checkpoints to unit norms and, with ``order``, to ascending keys."""
    for action in symmetry.actions:
        if action.exponent == 2:
            raise SymmetryError(
                f"gauge: tensor {action.tensor!r}: expected a table without running variances, got one. "
                "Use a gauge that is defined for normalised layers."
            )
    K = len(next(iter(arrays.values())))
    element = GroupElement.identity(symmetry, K)
    perms, scales = dict(element.perms), dict(element.scales)
    element = GroupElement(perms, scales)
    report = Report.blank(K)
    outers: set[str] = set()
    for group in symmetry.groups:
        incoming, precision = _incoming(group, arrays, symmetry, element)
        norm = _norm(incoming)
        report.dead[:] += (norm == 0).sum(axis=1)
        scale = np.ones_like(norm)
        if group.scale == "positive":
            np.divide(1, norm, out=scale, where=(norm != 0) & (np.abs(norm - 1) > 8 * precision))
            scales[group.id] = scale
        if not order or isinstance(group.perm, Fixed):
            continue
        perm = group.perm if isinstance(group.perm, Wreath) else Wreath("", 1, group.n)
        inside, outer = _orders((incoming[:, :, 0] * scale).reshape(K, perm.g, perm.k), report, perm.outer in outers)
        if isinstance(group.perm, Wreath) and outer is not None:
            outers.add(perm.outer)
            for other in symmetry.groups:
                if isinstance(other.perm, Wreath) and other.perm.outer == perm.outer:
                    perms[other.id] = block_move(other.perm, outer)
            scale = np.take_along_axis(scale, block_move(perm, outer), 1)
            inside = np.take_along_axis(inside, outer[:, :, None], 1)
        within = (inside + perm.k * np.arange(perm.g)[:, None]).reshape(K, group.n)
        perms[group.id] = np.take_along_axis(perms[group.id], within, 1)
        if group.id in scales:
            scales[group.id] = np.take_along_axis(scale, within, 1)
    return element, report


def _incoming(
    group: Group, arrays: Mapping[str, np.ndarray], symmetry: Symmetry, element: GroupElement
) -> tuple[np.ndarray, float]:
    """Each channel's slice of its first writer, (K, n, fan_in) float64, and the stored precision."""
    action = _writer(group, symmetry)
    array = arrays[action.tensor]
    moved = transform(array, symmetry.actions_on(action.tensor), element, symmetry)
    channels = by_channel(moved.astype(np.float64, copy=False), action)
    fan_in = math.prod(channels.shape[3:])
    channels = channels.reshape(len(array), channels.shape[1] * channels.shape[2], fan_in)
    places = next(places for name, places in positions(action, symmetry) if name == group.id)
    if not np.array_equal(places.ravel(), np.arange(channels.shape[1])):
        channels = channels[:, places.ravel()]
    precision = float(np.finfo(stored_dtype(array.dtype)).eps)
    return channels.reshape(len(array), group.n, places.shape[1] * fan_in), precision


def _writer(group: Group, symmetry: Symmetry) -> AxisAction:
    for action in symmetry.actions:
        if action.exponent == 1 and action.in_mass and any(item.group == group.id for item in action.segments):
            return action
    raise SymmetryError(
        f"gauge: group {group.id!r}: expected a tensor that writes it and counts in the mass, got none. "
        "Add the axis action to the symmetry table."
    )


def _norm(values: np.ndarray) -> np.ndarray:
    """Euclidean norms along the last axis, without overflow and whatever the order of the values."""
    _, exponent = np.frexp(np.abs(values).max(axis=-1, keepdims=True))
    squares = np.ldexp(values, -exponent) ** 2
    squares.sort(axis=-1)
    return np.ldexp(np.sqrt(squares.sum(axis=-1)), exponent[..., 0])


def _orders(keys: np.ndarray, report: Report, decided: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Ascending order within blocks (K, g, k) and, unless decided, of the blocks (K, g); counts ties and margins."""
    inside = np.argsort(keys, axis=2, kind="stable")
    keys = np.take_along_axis(keys, inside, 2)
    report.compare(np.diff(keys, axis=2))
    if decided:
        return inside, None
    outer = np.argsort(keys[:, :, 0], axis=1, kind="stable")
    report.compare(np.diff(np.take_along_axis(keys[:, :, 0], outer, 1), axis=1))
    return inside, outer

"""The paper's order: neurons ascending in their first incoming weight (arXiv 2310.08287, appendix C.2 and table 1).

Groups are taken from input to output; the key of a channel is ``s_i * w_i[0]``, the first element in memory order
of its slice of the first tensor that writes it, with every group before it already in order. In a wreath group
the channels of a block are ordered so first. Blocks are then ordered by the key of their first, smallest channel;
the first group that names a block permutation decides it, for all groups that share it. A Fixed group keeps its
order.

The order is not tie-safe: equal keys keep the order of the raw weights, and are counted.
"""

import numpy as np

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.layout import by_channel, positions
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import Order, leaders
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales


def order(moments: Moments, found: Scales, report: Report) -> dict[str, np.ndarray]:
    """Permutations (K, n) by group, ascending in the first weight."""
    made = Order(moments.symmetry, moments.K, report)
    for group in leaders(moments.symmetry):
        keys = _first(group.id, moments, found, made.perms)
        raw = np.empty_like(keys)
        np.put_along_axis(raw, made.perms[group.id], keys, 1)
        made.decide(group, raw)
    return made.perms


def _first(group: str, moments: Moments, found: Scales, perms: dict[str, np.ndarray]) -> np.ndarray:
    """The first element of each channel's slice, scaled, all channels in the order that they have so far."""
    writers = moments.writers(group)
    if not writers:
        raise SymmetryError(
            f"gauge: group {group!r}: expected a tensor that writes it, got none. "
            "Add the axis action to the symmetry table."
        )
    action = writers[0]
    scales = {name: np.take_along_axis(scale, perms[name], 1) for name, scale in found.scales.items()}
    element = GroupElement(perms, scales)
    array = moments.arrays[action.tensor]
    moved = transform(array, moments.symmetry.actions_on(action.tensor), element, moments.symmetry)
    channels = by_channel(moved, action)
    places = next(places for name, places in positions(action, moments.symmetry) if name == group)
    first = channels.reshape(len(array), channels.shape[1] * channels.shape[2], -1)[:, places[:, 0], 0]
    return first.astype(np.float64)

"""Orders of channels (neurons) by their keys, the permutations that follow from them, and the first-weight order.

Ties, that is, channels with equal keys, are broken in ``tie_breaking.py``, for the complete order.

The paper's order, ``first_weight_order``: neurons ascending in their first incoming weight (arXiv 2310.08287, appendix
C.2 and table 1).

Groups are taken from input to output; the key of a channel is ``s_i * w_i[0]``, the first element in memory order
of its slice of the first tensor that writes it, with every group before it already in order. In a wreath group
the channels of a block are ordered so first. Blocks are then ordered by the key of their first, smallest channel;
the first group that names a block permutation decides it, for all groups that share it. A Fixed group keeps its
order, and so do the channels of a block where they are fixed within it.

This order is not tie-safe: equal keys keep the order of the raw weights, and are counted.
"""

import numpy as np

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import Group, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.arrays import by_channel, positions
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.registry import permutations_of
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales

KEYS = 2.0**36
"""Keys are rounded to multiples of the inverse of this number."""


def leaders(symmetry: Symmetry) -> list[Group]:
    """Return the groups that have a permutation of their own, in order."""
    return [group for group in symmetry.groups if symmetry.leader(group.id) is group]


def sum_keys(moments: Moments) -> dict[str, np.ndarray]:
    """Return the sum of each channel's incoming weights, (K, n), for every group that leads a permutation.

    The weights are scaled, as they are stored, so that the order of the result is the same again. Sums are rounded to
    multiples of 2 ** -36: those that are equal but for rounding, such as 1 for a channel with one input, are ties.
    """
    found: dict[str, np.ndarray] = {}
    for group in leaders(moments.symmetry):
        writers = moments.writers(group.id)
        keys = moments.sums(writers[0], group.id, {}, rounded=_rounded) if writers else np.zeros((moments.K, group.n))
        found[group.id] = _rounded(keys)
    return found


def _rounded(keys: np.ndarray) -> np.ndarray:
    return np.round(keys * KEYS) / KEYS


def shape_of(group: Group) -> Wreath:
    """Return the group's blocks; one block where it has none."""
    return group.perm if isinstance(group.perm, Wreath) else Wreath("", 1, group.n)


class Order:
    """The permutations of K checkpoints, decided group by group; ties and margins are counted into a report."""

    def __init__(self, symmetry: Symmetry, K: int, report: Report) -> None:
        self._symmetry, self._report = symmetry, report
        self._shared: dict[str, np.ndarray] = {}
        self.perms = {group.id: np.tile(np.arange(group.n), (K, 1)) for group in symmetry.groups}

    def decide(self, group: Group, keys: np.ndarray) -> None:
        """Settle a group's permutation by keys (K, n), and move all that shares a part of it."""
        before = set(self._shared)
        perm, gaps = permutations_of(group).settle(group, keys, self._shared)
        for gap in gaps:
            self._report.compare(gap)
        if fresh := {name: value for name, value in self._shared.items() if name not in before}:
            for other in leaders(self._symmetry):
                if (along := permutations_of(other).moved_along(other, fresh)) is not None:
                    self._set(other, along)
        self._set(group, perm)

    def replace(self, group: Group, row: int, perm: np.ndarray) -> None:
        """Give one checkpoint another permutation (n,) of a group and of those that are like it."""
        for other in self._symmetry.family(group.id):
            self.perms[other.id][row] = perm

    def _set(self, group: Group, perm: np.ndarray) -> None:
        for other in self._symmetry.family(group.id):
            self.perms[other.id] = perm


def first_weight_order(moments: Moments, scaled: Moments, found: Scales, report: Report) -> dict[str, np.ndarray]:
    """Return permutations (K, n) by group, ascending in the first weight; ties and margins are counted into the report.

    First weights are scaled without rounding, so that those of ``scaled`` do not enter.

    Raises ``SymmetryError`` where no tensor writes a group, or a group permutes positions inside the channels of
    another, whose first weight it moves.
    """
    for group, inside in moments.symmetry.nested:
        raise SymmetryError(
            f"gauge: group {group!r}: expected channels whose first weight no other group moves, "
            f"got {inside!r} inside them. Use the gauge 'canonical', or keep the order of these channels: "
            "ckptzoo.symmetry.unnested(table)."
        )
    order = Order(moments.symmetry, moments.K, report)
    for group in leaders(moments.symmetry):
        keys = _first_weights(group.id, moments, found, order.perms)
        raw = np.empty_like(keys)
        np.put_along_axis(raw, order.perms[group.id], keys, 1)
        order.decide(group, raw)
    return order.perms


def _first_weights(group: str, moments: Moments, found: Scales, perms: dict[str, np.ndarray]) -> np.ndarray:
    """Return the first element of each channel's slice, scaled, all channels in the order that they have so far."""
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

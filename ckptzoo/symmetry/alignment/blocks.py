"""The best permutations of joint groups: one assignment, or channels in each pair of blocks and then blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.symmetry.alignment.joint_groups import JointGroups, Pair
from ckptzoo.symmetry.kinds.assignment import assign, by_block, gained, greatest
from ckptzoo.symmetry.kinds.registry import permutations_of

_MAX_TURNS = 50
"""The largest number of times that the groups within a pair of blocks take turns."""

Gains = Mapping[str, NDArray[np.floating]]
"""Group id to (K, n, n)."""
Perms = dict[str, NDArray[np.int64]]
"""Group id to (K, n)."""
_Inside = dict[str, NDArray[np.int64]]
"""Group id to (K, g, g, k): the permutation within each pair of blocks."""


@dataclass(frozen=True, eq=False)
class PairSlices:
    """One tensor in which two groups, ``rows`` and ``columns``, meet within blocks.

    ``reference`` is (1 or K, g, k of rows, k of columns, features), ``array`` the same with K in front.
    """

    rows: str
    columns: str
    reference: NDArray[np.floating]
    array: NDArray[np.floating]

    @classmethod
    def of(cls, pair: Pair, g: int, reference: NDArray[np.floating], array: NDArray[np.floating]) -> "PairSlices":
        """Return the slices of a tensor (1 or K, *shape) of the reference and of the networks."""
        return cls(pair.rows.leader, pair.columns.leader, _split(pair, g, reference), _split(pair, g, array))

    def gains(self, group: str, inside: _Inside) -> NDArray[np.floating]:
        """Return the gains (K, g, g, k, k) of one of the two groups, for the permutations of the other one."""
        if group == self.rows:
            return _gains(self.reference, self.array, inside[self.columns])
        return _gains(self.reference.swapaxes(2, 3), self.array.swapaxes(2, 3), inside[self.rows])

    def sorted_gains(self, group: str) -> NDArray[np.floating]:
        """Return ``gains`` with the channels of the other group sorted on both sides, which no permutation changes."""
        sides = [side if group == self.rows else side.swapaxes(2, 3) for side in (self.reference, self.array)]
        first, second = (np.sort(side, axis=3).reshape(*side.shape[:3], -1) for side in sides)
        return first[:, :, None] @ second[:, None].swapaxes(3, 4)


def greatest_jointly(joint: JointGroups, gains: Gains) -> NDArray[np.float64]:
    """Return only the values (K,) of ``assign_jointly`` without pairs."""
    by_pair = [
        permutations_of(group).greatest(group, by_block(gains[group.id], joint.g)).astype(np.float64)
        for group in joint.groups
    ]
    return greatest(np.sum(by_pair, axis=0)).astype(np.float64, copy=False)


def assign_jointly(
    joint: JointGroups, gains: Gains, pairs: Sequence[PairSlices], before: Perms | None
) -> tuple[Perms, NDArray[np.float64], NDArray[np.float64]]:
    """Return the best permutations of joint groups, their values (K,), and the values of ``before`` (zeros without).

    Channels are assigned within every pair of blocks, and blocks by the values that this gives. ``gains`` are those of
    each group from the tensors in which it is alone, ``pairs`` the tensors in which two groups meet within blocks.
    Pairs of blocks that ``before`` matches start from its permutations within them.
    """
    if joint.g == 1 and len(joint.groups) == 1:  # no blocks to assign
        ((name, gain),) = gains.items()
        best = permutations_of(joint.groups[0]).best(joint.groups[0], gain)
        return {name: best}, gained(gain, best), np.zeros(len(gain)) if before is None else gained(gain, before[name])
    split = {group.id: by_block(gains[group.id], joint.g) for group in joint.groups}
    K, blocks = len(next(iter(split.values()))), np.arange(joint.g)
    inside: _Inside = {}
    for group in joint.groups:
        total = split[group.id]
        for pair in (pair for pair in pairs if group.id in (pair.rows, pair.columns)):
            total = total + pair.sorted_gains(group.id)
        inside[group.id] = permutations_of(group).best(group, total)
    value = np.zeros(K)
    if before is not None and not pairs:
        value = sum((gained(gains[name], perm) for name, perm in before.items()), value)
    elif before is not None:
        outer = before[joint.groups[0].id].reshape(K, joint.g, -1)[:, :, 0] // (joint.groups[0].n // joint.g)
        for group in joint.groups:
            k = group.n // joint.g
            inside[group.id][np.arange(K)[:, None], blocks, outer] = before[group.id].reshape(K, joint.g, k) % k
        value = np.take_along_axis(_values(split, pairs, inside), outer[:, :, None], 2).sum(axis=(1, 2))
    if pairs:
        free = {group.id: split[group.id] for group in joint.groups if not permutations_of(group).keeps_order(group)}
        _take_turns(free, pairs, inside)
    values = _values(split, pairs, inside)
    outer = assign(values)
    found: Perms = {}
    for group in joint.groups:
        k = group.n // joint.g
        within = np.take_along_axis(inside[group.id], outer[:, :, None, None], 2)[:, :, 0]
        found[group.id] = (outer[:, :, None] * k + within).reshape(K, group.n)
    return found, gained(values, outer), value


def _take_turns(split: Gains, pairs: Sequence[PairSlices], inside: _Inside) -> None:
    """Improve the permutations within every pair of blocks, in place, group by group, until none is better."""
    for _ in range(_MAX_TURNS):
        changed = False
        for name, total in split.items():
            for pair in (pair for pair in pairs if name in (pair.rows, pair.columns)):
                total = total + pair.gains(name, inside)
            found = assign(total)
            # the present permutation stays where another is only equal, so that the loop ends
            better = gained(total, found) > gained(total, inside[name])
            inside[name][better] = found[better]
            changed |= bool(better.any())
        if not changed:
            return


def _values(split: Gains, pairs: Sequence[PairSlices], inside: _Inside) -> NDArray[np.float64]:
    """Return the values (K, g, g) of every pair of blocks."""
    alone = sum(gained(gain, inside[name]) for name, gain in split.items())
    together = sum(gained(pair.gains(pair.rows, inside), inside[pair.rows]) for pair in pairs)
    return np.asarray(alone + together, np.float64)


def _gains(
    reference: NDArray[np.floating], array: NDArray[np.floating], others: NDArray[np.int64]
) -> NDArray[np.floating]:
    """Return (K, g, g, k, k) of the third axis, the fourth of ``array`` in the order of ``others`` (K, g, g, m)."""
    K, g, k, m, features = array.shape
    found = np.empty((K, g, g, k, k), array.dtype)
    first = np.broadcast_to(reference, (K, *reference.shape[1:])).reshape(K, g, k, m * features)
    # network by network, block by block: all pairs at once would take g times the tensor's memory
    for row in range(K):
        for block in range(g):
            moved = np.take_along_axis(array[row], others[row, block][:, None, :, None], axis=2)
            found[row, block] = first[row, block] @ moved.reshape(g, k, m * features).swapaxes(1, 2)
    return found


def _split(pair: Pair, g: int, array: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return a tensor (K, *shape) as (K, g, k of rows, k of columns, features)."""
    rows, columns = pair.rows.listings[0], pair.columns.listings[0]
    array = np.moveaxis(array, pair.columns.action.axis + 1, 2)
    sizes = len(rows) // g, rows.shape[1], len(columns) // g, columns.shape[1]
    split = array.reshape(len(array), g, *sizes, -1)
    return split.transpose(0, 1, 2, 4, 3, 5, 6).reshape(len(array), g, sizes[0], sizes[2], -1)

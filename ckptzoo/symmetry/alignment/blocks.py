"""The best elements of joint groups: those of one block, or of each pair of blocks and then an assignment of blocks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import Group
from ckptzoo.symmetry.alignment.joint_groups import JointGroups, Pair
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.assignment import assign, by_block, gained, greatest
from ckptzoo.symmetry.kinds.kind import BlockKind
from ckptzoo.symmetry.kinds.registry import permutations_of, within_blocks_of

_MAX_TURNS = 50
"""The largest number of times that the groups within a pair of blocks take turns."""

Gains = Mapping[str, NDArray[Any]]
"""Group id to (K, n, n); complex for complex numbers: real and imaginary parts of the products of pairs."""
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
    joint: JointGroups,
    gains: Gains,
    pairs: Sequence[PairSlices],
    before: GroupElement | None,
    apart: Collection[str] = (),
) -> tuple[GroupElement, NDArray[np.float64], NDArray[np.float64]]:
    """Return the best elements of joint groups, their values (K,), and the values of ``before`` (zeros without).

    Each kind finds what is best within every pair of blocks, and blocks are assigned by the values that this gives.
    ``gains`` are those of each group from the tensors in which it is alone, ``pairs`` the tensors in which two groups
    meet within blocks. Pairs of blocks that ``before`` matches start from its permutations within them; its values are
    without those of groups that are ``apart``.
    """
    g, K = joint.g, len(next(iter(gains.values())))
    kinds = {group.id: (group, within_blocks_of(group)) for group in joint.groups}
    split = {name: by_block(gain, g) for name, gain in gains.items()}
    present = {} if before is None else {name: _present(*kind, before, g) for name, kind in kinds.items()}
    alone = (
        kinds[name][1].value(_chosen(split[name], outer), inside)
        for name, (outer, inside) in present.items()
        if (name in apart) == bool(pairs)
    )
    value_before = sum(alone, np.zeros(K))
    best: Mapping[str, NDArray[Any] | None]
    if pairs:
        within = _within_pairs(joint, split, pairs)
        for name, (outer, inside) in present.items():
            within[name][np.arange(K)[:, None], np.arange(g), outer] = inside
        if present:
            outer = present[joint.groups[0].id][0]
            whole = np.take_along_axis(_values(split, pairs, within), outer[:, :, None], 2).sum(axis=(1, 2))
            value_before = whole - value_before
        _take_turns(joint, split, pairs, within)
        best, values = within, _values(split, pairs, within)
    elif g == 1 and len(kinds) == 1:  # no blocks to assign
        ((name, (group, kind)),) = kinds.items()
        chosen = split[name][:, 0]
        found = kind.best(group, chosen)
        return _element(kinds, np.zeros((K, 1), np.int64), {name: found}), kind.value(chosen, found), value_before
    else:
        of_pairs = {name: kind.of_pairs(group, split[name]) for name, (group, kind) in kinds.items()}
        best = {name: found for name, (found, _) in of_pairs.items()}
        values = np.asarray(sum(reached for _, reached in of_pairs.values()), np.float64)
    outer = assign(values)
    placed: dict[str, NDArray[Any]] = {}
    for name, (group, kind) in kinds.items():
        found = best[name]
        if found is None:
            placed[name] = kind.best(group, _chosen(split[name], outer))
        else:
            placed[name] = np.take_along_axis(found, outer[:, :, None, None], 2)[:, :, 0]
    return _element(kinds, outer, placed), gained(values, outer), value_before


def _present(group: Group, kind: BlockKind, element: GroupElement, g: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the order of blocks (K, g) that an element has, and its values within them."""
    perm, k = element.perms[group.id].reshape(len(element), g, -1), group.n // g
    return perm[:, :, 0] // k, element.matrices[group.id] if kind.part == "matrices" else perm % k


def _chosen(split: NDArray[Any], outer: NDArray[np.int64]) -> NDArray[Any]:
    """Return the gains (K, g, k, k) of each block with the one that comes in its place."""
    if outer.shape[1] == 1:
        return split[:, 0]
    return np.ascontiguousarray(np.take_along_axis(split, outer[:, :, None, None, None], 2)[:, :, 0])


def _element(
    kinds: Mapping[str, tuple[Group, BlockKind]], outer: NDArray[np.int64], inside: Mapping[str, NDArray[Any]]
) -> GroupElement:
    """Return the element of an order of blocks (K, g) and values within them; channels of matrices are in order."""
    perms: Perms = {}
    matrices: dict[str, NDArray[Any]] = {}
    for name, (group, kind) in kinds.items():
        k = group.n // outer.shape[1]
        within = np.arange(k)
        if kind.part == "matrices":
            matrices[name] = inside[name]
        else:
            within = inside[name]
        perms[name] = (outer[:, :, None] * k + within).reshape(len(outer), group.n)
    return GroupElement(perms, {}, matrices)


def _within_pairs(joint: JointGroups, split: Gains, pairs: Sequence[PairSlices]) -> _Inside:
    """Return the best permutations within every pair of blocks, by what the other groups' do not change."""
    inside: _Inside = {}
    for group in joint.groups:
        total = split[group.id]
        for pair in (pair for pair in pairs if group.id in (pair.rows, pair.columns)):
            total = total + pair.sorted_gains(group.id)
        inside[group.id] = permutations_of(group).best(group, total)
    return inside


def _take_turns(joint: JointGroups, split: Gains, pairs: Sequence[PairSlices], inside: _Inside) -> None:
    """Improve the permutations within every pair of blocks, in place, group by group, until none is better."""
    free = [group.id for group in joint.groups if not permutations_of(group).keeps_order(group)]
    for _ in range(_MAX_TURNS):
        changed = False
        for name in free:
            total = split[name]
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

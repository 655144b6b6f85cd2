"""Coordinate ascent: joint groups in turn take the permutation that fits the reference best while all others stay.

Maximises ``<A, g B> = sum_t <A_t, (g B)_t>``, so that it minimises ``||A - g B||`` (git re-basin's weight matching,
arXiv 2209.04836, section 3.2), for any table. The Gram matrix of a group, ``C[i, j] = sum <a_i, b_j>`` over its views
with a_i the slices of A and b_j those of B under the other permutations, makes the best permutation of a symmetric
group a linear assignment. For the wreath groups of one block permutation, each pair of blocks is matched inside, and
blocks are assigned by the values; exact where no tensor has two of the groups with several channels a block.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.alignment.blocks import PairSlices, Perms, assign_jointly
from ckptzoo.symmetry.alignment.joint_groups import Arrays, JointGroups, joint_groups_of, moved, put
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.registry import permutations_of
from ckptzoo.symmetry.tables import take_rows

_PIECE = 2**18
"""Elements that are multiplied in float64 at a time."""
MAX_SWEEPS = 100
"""The largest number of sweeps through all groups; ten are rarely needed."""
_ROUNDING = 8.0
"""The rounding of a gain over the sum of absolute gains: a permutation is taken only where it is better by more."""


@dataclass(frozen=True, eq=False)
class Matched:
    """Permutations of K networks, with all scales 1, and an upper bound (K,) on ``<A, g B>``.

    ``sweeps`` (K,) are those through the groups. ``ties`` (K,) counts channels of B whose sorted slices equal those of
    another one of their group.
    """

    element: GroupElement
    bound: NDArray[np.float64]
    sweeps: NDArray[np.int64]
    ties: NDArray[np.int64]


Improved = Callable[[int, Arrays, GroupElement, NDArray[np.int64]], tuple[GroupElement, NDArray[np.bool_]]]
"""Maps the number of a turn, its tensors of some networks, the elements so far and the numbers of these networks to
elements of the groups that take the turn, and which of them are better."""


class Ascent:
    """Coordinate ascent: groups in turn take a better element while all others stay, until none has one.

    ``reference`` is A: tensor name to (1, *shape), for all networks, or (K, *shape), one for each; finite floats.
    Tensors that are not in it do not count. ``turns`` are in their order the names of the tensors that are moved, and
    whether one visit finds the best element while the others stay.
    """

    def __init__(self, reference: Arrays, symmetry: Symmetry, turns: Iterable[tuple[Collection[str], bool]]) -> None:
        self.symmetry = symmetry
        self._reference = reference
        self._turns = [(set(tensors), is_exact) for tensors, is_exact in turns]
        self._neighbours = [
            [other for other, (names, _) in enumerate(self._turns) if other != place and names & tensors]
            for place, (tensors, _) in enumerate(self._turns)
        ]

    def _ascend(
        self, arrays: Arrays, element: GroupElement, waiting: NDArray[np.bool_], improved: Improved
    ) -> NDArray[np.int64]:
        """Improve elements in place until no turn finds a better one, and return the sweeps (K,).

        ``waiting`` (K, turns) says which turns may find a better one; it is overwritten.
        """
        sweeps = np.zeros(len(waiting), np.int64)
        for _ in range(MAX_SWEEPS):
            sweeps += waiting.any(axis=1)
            for place, (tensors, is_exact) in enumerate(self._turns):
                rows = np.flatnonzero(waiting[:, place])
                if not len(rows):
                    continue
                waiting[rows, place] = False
                some = take_rows({name: arrays[name] for name in sorted(tensors)}, rows)
                found, better = improved(place, some, element[rows], rows)
                risen = rows[better]
                put(element, found[better], risen, self.symmetry)
                waiting[risen[:, None], self._neighbours[place]] = True
                # the element is the best while the others stay, unless two groups or two axes depend on each other
                waiting[risen, place] = not is_exact
            if not waiting.any():
                break
        return sweeps

    def _placed(
        self, array: NDArray[np.floating], actions: Sequence[AxisAction], element: GroupElement
    ) -> NDArray[np.floating]:
        """Return a stacked tensor under some of its actions."""
        return moved(array, actions, element, self.symmetry)

    def _objective(
        self, tensors: Iterable[str], arrays: Arrays, element: GroupElement, rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return ``<A, g B>`` (rows,) over these tensors."""
        total = np.zeros(len(rows))
        for name in sorted(tensors):
            placed = self._placed(arrays[name], self.symmetry.actions_on(name), element)
            total += products(self._rows(name, rows), placed)
        return total

    def _pairs(
        self, joint: JointGroups, arrays: Arrays, element: GroupElement, rows: NDArray[np.int64]
    ) -> list[PairSlices]:
        """Return the tensors in which two of the joint groups meet, all others in their places."""
        return [
            PairSlices.of(
                pair,
                joint.g,
                self._rows(tensor := pair.rows.action.tensor, rows),
                self._placed(arrays[tensor], pair.rows.applied, element),
            )
            for pair in joint.pairs
        ]

    def _rows(self, tensor: str, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return a tensor of the references of some networks."""
        array = self._reference[tensor]
        return array if len(array) == 1 else array[rows]


class Matcher(Ascent):
    """Matches networks to references by permutations; parameters are those of ``Ascent``."""

    def __init__(self, reference: Arrays, symmetry: Symmetry) -> None:
        self.joint_groups = joint_groups_of(symmetry, reference.keys())
        super().__init__(reference, symmetry, ((joint.tensors, joint.is_exact) for joint in self.joint_groups))
        self._slices: dict[tuple[int, str], NDArray[np.floating]] = {}

    def bound(self, arrays: Arrays) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return ``Matched.bound`` and ``Matched.ties`` of K networks."""
        _, bound, ties = self._signatures(arrays)
        return bound, ties

    def match(self, arrays: Arrays, *, start: str = "signature") -> Matched:
        """Match K networks (K, *shape); a network's result does not depend on the others.

        ``start`` is ``signature``, or ``identity`` for the order that the networks have.
        """
        K = len(next(iter(arrays.values())))
        element, bound, ties = self._signatures(arrays)
        one = GroupElement.identity(self.symmetry, K)
        if start != "signature":
            element = GroupElement(one.perms, {})
        # signatures give the best permutations of groups that are alone
        waiting = np.tile([not (start == "signature" and joint.is_alone) for joint in self.joint_groups], (K, 1))
        sweeps = self._ascend(arrays, element, waiting, self._improved)
        return Matched(GroupElement(element.perms, one.scales), bound, sweeps, ties)

    def ascend(self, arrays: Arrays, perms: Perms) -> Perms:
        """Return permutations that no group alone improves, found from given ones."""
        made = GroupElement(perms, {}).copy()
        self._ascend(arrays, made, np.ones((len(made), len(self.joint_groups)), bool), self._improved)
        return dict(made.perms)

    def _signatures(self, arrays: Arrays) -> tuple[GroupElement, NDArray[np.float64], NDArray[np.int64]]:
        """Return permutations by sorted slices, with the bound and the ties that these show."""
        K = len(next(iter(arrays.values())))
        element = GroupElement(GroupElement.identity(self.symmetry, K).perms, {})
        bound, ties = self._still(arrays), np.zeros(K, np.int64)
        for joint in self.joint_groups:
            first, most, alike = self._by_signature(joint, arrays)
            put(element, GroupElement(first, {}), slice(None), self.symmetry)
            bound, ties = bound + most, ties + alike
        return element, bound, ties

    def _improved(
        self, place: int, arrays: Arrays, element: GroupElement, rows: NDArray[np.int64]
    ) -> tuple[GroupElement, NDArray[np.bool_]]:
        """Return better permutations of joint groups, and which networks have one."""
        joint = self.joint_groups[place]
        gains: dict[str, NDArray[np.floating]] = {}
        for group in joint.groups:
            slices = [
                view.slices(self._placed(arrays[view.action.tensor], view.applied, element))
                for view in joint.views[group.id]
            ]
            if not slices:
                gains[group.id] = np.zeros((len(rows), group.n, group.n))
                continue
            joined = slices[0] if len(slices) == 1 else np.concatenate(slices, axis=2)
            gains[group.id] = self._reference_slices(place, group, rows) @ joined.swapaxes(1, 2)
        before = {group.id: element.perms[group.id] for group in joint.groups}
        found, value, value_before = assign_jointly(joint, gains, self._pairs(joint, arrays, element, rows), before)
        rise = value - value_before
        sizes = sum(np.abs(gain).sum(axis=(1, 2), dtype=np.float64) / gain.shape[1] for gain in gains.values())
        precision = np.finfo(next(iter(gains.values())).dtype).eps
        better = rise > _ROUNDING * precision * (sizes + np.abs(value))
        if joint.quadratic:
            # the versions of ``aligned`` that zoos hold leave such groups where they start: a better permutation of
            # the tangent may be a worse one, and accepting those that raise the objective changes stored weights
            better[:] = False
        return GroupElement(found, {}), better

    def _reference_slices(self, place: int, group: Group, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the slices (1 or rows, n, features) of a group's views, one after the other."""
        key = place, group.id
        if key not in self._slices:
            views = self.joint_groups[place].views[group.id]
            parts = [view.slices(self._reference[view.action.tensor]) for view in views]
            self._slices[key] = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
        held = self._slices[key]
        return held if len(held) == 1 else held[rows]

    def _by_signature(self, joint: JointGroups, arrays: Arrays) -> tuple[Perms, NDArray[np.float64], NDArray[np.int64]]:
        """Return permutations by sorted slices, which no other permutation changes; their part of the bound; ties."""
        K = len(next(iter(arrays.values())))
        dtype = np.result_type(*(arrays[name] for name in joint.tensors))
        gains = {group.id: np.zeros((K, group.n, group.n), dtype) for group in joint.groups}
        bounding = [self._bounding[view.action.tensor] is view.action for view in joint.all_views()]
        most = gains if all(bounding) else {name: gain.copy() for name, gain in gains.items()}
        keys = {group.id: np.zeros((K, group.n)) for group in joint.groups}
        for number, view in enumerate(joint.all_views()):
            name = view.action.tensor
            ours = view.sorted_slices(arrays[name], self.symmetry)
            gain = view.sorted_slices(self._reference[name], self.symmetry) @ ours.swapaxes(1, 2)
            gains[view.leader] += gain
            if most is not gains and bounding[number]:
                most[view.leader] += gain
            # sums along the last axis are taken in one order for all channels, so that equal slices have equal keys
            keys[view.leader] += (ours * weights_of(number, ours.shape[2])).sum(axis=2, dtype=np.float64)
        found, bound, _ = assign_jointly(joint, gains, (), None)
        if most is not gains:
            _, bound, _ = assign_jointly(joint, most, (), None)
        return found, bound, count_ties(joint, keys)

    @cached_property
    def _bounding(self) -> Mapping[str, AxisAction]:
        """For each tensor the axis by whose channels its product is bounded: the first that moves."""
        chosen: dict[str, AxisAction] = {}
        for view in (view for joint in self.joint_groups for view in joint.all_views()):
            found = chosen.setdefault(view.action.tensor, view.action)
            if view.action.axis < found.axis:
                chosen[view.action.tensor] = view.action
        return chosen

    def _still(self, arrays: Arrays) -> NDArray[np.float64]:
        """Return (K,) the bound's part from tensors that nothing moves, and from positions that stay on its axes."""
        moving = self._bounding
        total = np.zeros(len(next(iter(arrays.values()))))
        for name in sorted(self._reference.keys() - moving.keys()):
            total += products(self._reference[name], arrays[name])
        for name, action in moving.items():
            views = [view for joint in self.joint_groups for view in joint.all_views() if view.action is action]
            size = arrays[name].shape[action.axis + 1] * action.blocks
            places = np.setdiff1d(np.arange(size), np.concatenate([p.ravel() for view in views for p in view.listings]))
            if len(places):
                rest = replace(views[0], listings=(places[:, None],))
                sides = [rest.sorted_slices(given[name], self.symmetry) for given in (self._reference, arrays)]
                total += products(*sides)
        return total


def count_ties(joint: JointGroups, keys: Mapping[str, NDArray[np.float64]]) -> NDArray[np.int64]:
    """Count (K,) channels of a block with the key of another one there, and blocks with the keys of another one."""
    ties, blocks = np.zeros(1, np.int64), np.zeros(1)
    kept = {group.id for group in joint.groups if permutations_of(group).keeps_order(group)}
    for number, (name, key) in enumerate(keys.items()):
        ordered = key.reshape(len(key), joint.g, -1)
        if name not in kept:
            ordered = np.sort(ordered, axis=2)
            ties = ties + (np.diff(ordered, axis=2) == 0).sum(axis=(1, 2))
        blocks = blocks + (ordered * weights_of(number, ordered.shape[2])).sum(axis=2)
    return ties + (np.diff(np.sort(blocks, axis=1), axis=1) == 0).sum(axis=1)


def weights_of(number: int, count: int) -> NDArray[np.float64]:
    """Return random weights of features, always the same."""
    # a fixed seed, so that a network's keys do not depend on the call
    return np.random.default_rng(np.random.SeedSequence(0, spawn_key=(number,))).uniform(0.5, 1.5, count)


def products(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return (K,) inner products of stacked tensors, summed in float64; the first may be (1, *shape)."""
    one, other = (array.reshape(len(array), -1) for array in (first, second))
    found, step = np.empty(len(other)), max(1, _PIECE // max(1, other.shape[1]))
    for start in range(0, len(other), step):
        some = slice(start, start + step)
        # a sum along contiguous rows adds each row in an order of its own; einsum's depends on the number of rows
        found[some] = (one[some if len(one) > 1 else slice(1)].astype(np.float64) * other[some]).sum(axis=1)
    return found

"""Where alignment starts: permutations and bases from what no other element changes, in whatever order networks come.

Sorted slices of channels say which may belong together, with the norms of blocks along the axes that matrices act on,
and moduli where signs are open. Without matrices they bound the value of all permutations, too. A stream starts at the
matrix of the tensors on which no other group acts, and where these leave directions open, at the eigenvectors of what
is written into it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.alignment.blocks import assign_jointly
from ckptzoo.symmetry.alignment.joint_groups import Arrays, ChannelView, JointGroups, is_moved, products, put
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.kind import Turn
from ckptzoo.symmetry.kinds.orthogonal import Orthogonal, basis_of_stream
from ckptzoo.symmetry.kinds.registry import matrix_kind_of, permutations_of
from ckptzoo.symmetry.matrix_action import mixed_channels

_OPEN = 1e-6
"""The weight of a stream's eigenvectors, relative to the norm of the products that determine the stream's matrix."""


class Signatures:
    """The starts of networks that are matched to references, and what bounds their values.

    ``reference`` (1 or K, *shape) is A; ``signed`` are the groups whose signs are open.
    """

    def __init__(
        self, reference: Arrays, symmetry: Symmetry, joint_groups: Sequence[JointGroups], signed: Collection[str]
    ) -> None:
        self._reference, self._symmetry, self._joint_groups, self._signed = reference, symmetry, joint_groups, signed

    def start(self, arrays: Arrays, element: GroupElement) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Put the starts of K networks in place, but for blocks; return ``Matched.bound`` and ``Matched.ties``."""
        ties = np.zeros(len(element), np.int64)
        if mixing := self._symmetry.has_matrices:
            flipping = (group for group in self._symmetry.groups if group.flips and group.id not in self._signed)
            ties += sum(group.n for group in flipping)
        bound = self.norms(arrays) if mixing else self._still(arrays)
        for joint in self._joint_groups:
            if joint.turn is Turn.STREAM:
                element.matrices[joint.groups[0].id][:], alike = self._of_stream(joint, arrays)
                ties += alike
            elif joint.turn is Turn.CHANNELS:
                found, most, alike = self._of_channels(joint, arrays)
                put(element, found, slice(None), self._symmetry)
                bound, ties = bound if mixing else bound + most, ties + alike
        return bound, ties

    def norms(self, arrays: Arrays) -> NDArray[np.float64]:
        """Return (K,) the sums of the products of the tensors' norms."""
        total = np.zeros(len(next(iter(arrays.values()))))
        for name, reference in self._reference.items():
            total += np.sqrt(products(reference, reference)) * np.sqrt(products(arrays[name], arrays[name]))
        return total

    def _of_channels(
        self, joint: JointGroups, arrays: Arrays
    ) -> tuple[GroupElement, NDArray[np.float64], NDArray[np.int64]]:
        """Return permutations by sorted slices, which no other element changes; their part of the bound; ties."""
        K = len(next(iter(arrays.values())))
        dtype = np.result_type(*(arrays[name] for name in joint.tensors))
        gains = {group.id: np.zeros((K, group.n, group.n), dtype) for group in joint.groups}
        bounding = [self._bounding[view.action.tensor] is view.action for view in joint.all_views()]
        is_bound = all(bounding) or self._symmetry.has_matrices  # where matrices act, norms are the bound
        most = gains if is_bound else {name: gain.copy() for name, gain in gains.items()}
        keys = {group.id: np.zeros((K, group.n)) for group in joint.groups}
        for number, view in enumerate(joint.all_views()):
            name = view.action.tensor
            ours, theirs = (self._invariant(given[name], view) for given in (arrays, self._reference))
            gain = theirs @ ours.swapaxes(1, 2)
            gains[view.leader] += gain
            if most is not gains and bounding[number]:
                most[view.leader] += gain
            # sums are taken in one order for all channels, so that equal slices have equal keys
            features = ours.shape[2]
            keys[view.leader] += products(weights_of(number, features)[None], ours.reshape(-1, features)).reshape(K, -1)
        found, bound, _ = assign_jointly(joint, gains, (), None)
        if most is not gains:
            _, bound, _ = assign_jointly(joint, most, (), None)
        return found, bound, count_ties(joint, keys)

    def _invariant(self, array: NDArray[np.floating], view: ChannelView) -> NDArray[np.floating]:
        """Return sorted slices (K, n, features) with norms of what matrices mix, and moduli where signs are open."""
        for mixed in mixed_channels(view.others, self._symmetry) if self._symmetry.has_matrices else ():
            array = array.copy()
            moved = np.moveaxis(array, mixed.axis + 1, 1)
            norms = np.linalg.norm(moved[:, mixed.places], axis=2)
            moved[:, mixed.places] = 0
            moved[:, mixed.places[:, 0]] = norms
        acting = (view.action, *view.others)
        names = {segment.group for action in acting for segment in (*action.segments, *action.signs)}
        if not names.isdisjoint(self._signed):
            array = np.abs(array)
        return view.sorted_slices(array, self._symmetry)

    @cached_property
    def _bounding(self) -> Mapping[str, AxisAction]:
        """For each tensor the axis by whose channels its product is bounded: the first that moves."""
        chosen: dict[str, AxisAction] = {}
        for view in (view for joint in self._joint_groups for view in joint.all_views()):
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
            views = [view for joint in self._joint_groups for view in joint.all_views() if view.action is action]
            size = arrays[name].shape[action.axis + 1] * action.blocks
            places = np.setdiff1d(np.arange(size), np.concatenate([p.ravel() for view in views for p in view.listings]))
            if len(places):
                rest = replace(views[0], listings=(places[:, None],))
                sides = [rest.sorted_slices(given[name], self._symmetry) for given in (self._reference, arrays)]
                total += products(*sides)
        return total

    def _of_stream(self, joint: JointGroups, arrays: Arrays) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return a stream's matrices (K, 1, n, n) by what no other group changes, and the count of open channels."""
        (group,) = joint.groups
        kind = matrix_kind_of(group)
        assert isinstance(kind, Orthogonal)
        K = len(next(iter(arrays.values())))
        total = np.zeros((K, 1, group.n, group.n))
        for view in joint.views_of(group):
            if not any(self._acts(action) for action in view.others):
                name = view.action.tensor
                total[:, 0] += view.slices(self._reference[name]) @ view.slices(arrays[name]).swapaxes(1, 2)
        ours, theirs = (basis_of_stream(given, group, self._symmetry)[0].matrix for given in (arrays, self._reference))
        size = np.linalg.norm(total, axis=(-1, -2), keepdims=True)
        untold = kind.undetermined(total[:, 0], _OPEN * np.maximum(size[:, 0, :, 0], 1e-300))
        total += np.where(size > 0, _OPEN * size, 1) * (theirs.swapaxes(-1, -2) @ ours)
        return kind.best(group, total), untold

    def _acts(self, action: AxisAction) -> bool:
        """Whether elements change anything on an axis."""
        if any(segment.group in self._signed for segment in action.segments):
            return True
        found = [self._symmetry.leader(segment.group) for segment in action.segments]
        return any(matrix_kind_of(group) or is_moved(group) for group in found)


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


@lru_cache(maxsize=256)
def weights_of(number: int, count: int) -> NDArray[np.float64]:
    """Return random weights of features, always the same."""
    # a fixed seed, so that a network's keys do not depend on the call
    return np.random.default_rng(np.random.SeedSequence(0, spawn_key=(number,))).uniform(0.5, 1.5, count)

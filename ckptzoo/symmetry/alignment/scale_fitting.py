"""Coordinate descent over permutations and scales together: groups in turn take those that fit the reference best.

Minimises ``||A - g B||`` over permutations and scales. While all other groups stay, each pair of channels has the least
cost over all scales (``scale_costs``), so that one assignment on these costs is exact for a group. Channels that
normalisations read, or that nothing reads or writes, have the norm of the reference's channel: their distance is least
for a scale that has nothing to do with the network, down to 0. Where a normalisation's gain takes a channel's sign, the
gain has the sign of the reference's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.alignment.blocks import assign_jointly
from ckptzoo.symmetry.alignment.joint_groups import Arrays, ChannelView, JointGroups, joint_groups_of, products
from ckptzoo.symmetry.alignment.matching import Ascent
from ckptzoo.symmetry.alignment.scale_costs import least_costs
from ckptzoo.symmetry.arrays import by_channel, positions
from ckptzoo.symmetry.element import GroupElement

_Doubles = Mapping[str, NDArray[np.float64]]
"""Tensor name to (K, *shape)."""
_LEAST_FALL = 1e-9
"""The fall of the squared distance, over the squared norms of a step's tensors, above which it is taken."""
_BELOW_LEAST = 1 - 2.0**-51
"""The rounding of the scale at which a running variance is 0: a variance is exactly 0 down to this much below it."""


@dataclass(frozen=True, eq=False)
class _Family:
    """Groups that are permuted together, and those that are like them.

    ``joint`` holds their permutations, None where channels stay in place; ``members`` all groups that take the
    permutation of a leading one; ``tensors`` the names of those that they permute or scale. ``is_exact`` says whether
    they act on one axis of each tensor, so that one step is exact while all others stay.
    """

    joint: JointGroups | None
    members: Mapping[str, Sequence[Group]]
    tensors: tuple[str, ...]
    is_exact: bool


@dataclass(frozen=True, eq=False)
class _Sums:
    """A group's terms in the costs of pairs of channels: (K or 1, n, 1) of A, (K, 1, n) of B, (K, n, n) of both.

    ``own`` and ``own_reference`` are squared norms; ``signed`` and ``absolute`` products, by whether the channel's sign
    acts.
    """

    own: NDArray[np.float64]
    own_reference: NDArray[np.float64]
    signed: NDArray[np.float64]
    absolute: NDArray[np.float64]


class ScaleFitter(Ascent):
    """Fits permutations and scales to references.

    ``reference`` is A: tensor name to (1, *shape), for all networks, or (K, *shape), float64; tensors that are not in
    it do not count.
    """

    def __init__(self, reference: _Doubles, symmetry: Symmetry) -> None:
        self._families = tuple(_families(symmetry, set(reference)))
        super().__init__(reference, symmetry, ((family.tensors, family.is_exact) for family in self._families))

    def fit(self, arrays: _Doubles, start: GroupElement) -> tuple[GroupElement, NDArray[np.int64]]:
        """Return better elements than those of the start, and the sweeps (K,).

        ``arrays`` is B: all floating tensors (K, *shape), float64, with running variances.
        """
        least = least_scales(arrays, self.symmetry)
        element = not_below(start, least).copy()
        placed = {name: self._moved(name, arrays[name], element) for name in self._reference}

        def improved(
            place: int, some: Arrays, current: GroupElement, rows: NDArray[np.int64]
        ) -> tuple[GroupElement, NDArray[np.bool_]]:
            bounds = {name: bound[rows] for name, bound in least.items()}
            step = self._step(self._families[place], {name: placed[name][rows] for name in some}, current, bounds, rows)
            after = not_below(step.compose(current), bounds)
            moved = {name: self._moved(name, array, after) for name, array in some.items()}
            fall, size = np.zeros(len(rows)), np.zeros(len(rows))
            for name, array in moved.items():
                reference, before = self._rows(name, rows), placed[name][rows]
                fall += _squared(reference - before) - _squared(reference - array)
                size += _squared(before) + _squared(reference)
            better = fall > _LEAST_FALL * size
            for name, array in moved.items():
                placed[name][rows[better]] = array[better]
            return after, better

        return element, self._ascend(arrays, element, np.ones((len(start), len(self._families)), bool), improved)

    def _moved(self, name: str, array: NDArray[np.floating], element: GroupElement) -> NDArray[np.float64]:
        """Return a tensor under permutations and scales, in memory of its own."""
        made = transform(array, self.symmetry.actions_on(name), element, self.symmetry)
        return made.copy() if made is array else made

    def _step(
        self,
        family: _Family,
        arrays: _Doubles,
        element: GroupElement,
        least: Mapping[str, NDArray[np.float64]],
        rows: NDArray[np.int64],
    ) -> GroupElement:
        """Return the best permutations and scales of a family, starting from the present ones."""
        K = len(rows)
        gains: dict[str, NDArray[np.float64]] = {}
        pair_scales: dict[str, NDArray[np.float64]] = {}
        for leader, members in family.members.items():
            n = self.symmetry[leader].n
            total = np.zeros((K, n, n))
            for group in members:
                bound = None
                if group.id in least:
                    now = np.abs(element.scales[group.id])
                    bound = np.take_along_axis(least[group.id], element.perms[group.id], 1) / now
                costs, scale = self._pair_costs(group, arrays, bound, rows)
                total += costs
                if group.scaled:
                    pair_scales[group.id] = scale
            gains[leader] = -total
        if family.joint is None:
            perms = {leader: np.tile(np.arange(gain.shape[1]), (K, 1)) for leader, gain in gains.items()}
        else:
            perms = assign_jointly(family.joint, gains, (), None)[0].perms
        step = GroupElement.identity(self.symmetry, K)
        for leader, members in family.members.items():
            for group in members:
                step.perms[group.id][:] = perms[leader]
                if group.id in pair_scales:
                    chosen = np.take_along_axis(pair_scales[group.id], perms[leader][..., None], -1)
                    step.scales[group.id][:] = chosen[..., 0]
        return step

    def _pair_costs(
        self, group: Group, arrays: _Doubles, bound: NDArray[np.float64] | None, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return costs and scales (K, n, n) of all pairs of channels, without the terms that no scale changes."""
        written, read, still = (self._sums(group, exponent, arrays, rows) for exponent in (1, -1, 0))
        if not group.scaled:
            unscaled = np.sum([part.signed + part.absolute for part in (written, read, still)], axis=0)
            return -2 * unscaled, np.ones_like(still.signed)
        # what tensors that are only permuted add: no scale changes it
        costs = -2 * (still.signed + still.absolute)
        signs = [np.ones_like(costs)]
        if group.flips:
            by_gain = self._signs_of_gains(group, arrays, rows)
            signs = [signs[0], -signs[0]]
            if by_gain is not None:
                fallback = np.where(written.signed < 0, -1.0, 1.0)
                signs = [np.where(by_gain == 0, fallback, by_gain)]
        best: NDArray[np.float64] | None = None
        scales = signs[0]
        for sign in signs:
            u, v = sign * written.signed + written.absolute, sign * read.signed + read.absolute
            found = _sizes(group, written, u, read, v, bound)
            size = found * np.ones_like(costs)
            with np.errstate(divide="ignore", invalid="ignore"):
                made = written.own * size**2 - 2 * u * size + read.own / size**2 - 2 * v / size
            if best is None:
                best, scales = made, sign * size
            else:
                scales, best = np.where(made < best, sign * size, scales), np.minimum(made, best)
        assert best is not None
        return costs + best, scales

    def _sums(self, group: Group, exponent: int, arrays: _Doubles, rows: NDArray[np.int64]) -> _Sums:
        K, R = len(rows), max((len(self._rows(name, rows)) for name in arrays), default=1)
        own, own_reference = np.zeros((K, 1, group.n)), np.zeros((R, group.n, 1))
        signed, absolute = np.zeros((K, group.n, group.n)), np.zeros((K, group.n, group.n))
        for action in (part for whole in self.symmetry.actions for part in whole.parts):
            if action.tensor not in arrays or action.exponent != exponent:
                continue
            listed = tuple(places for name, places in positions(action, self.symmetry) if name == group.id)
            if not listed:
                continue
            view = ChannelView(action, group.id, listed, (), ())
            first, second = (
                view.slices(self._of_gain(action, array)).astype(np.float64, copy=False)
                for array in (self._rows(action.tensor, rows), arrays[action.tensor])
            )
            own += np.square(second).sum(axis=2)[:, None]
            own_reference += np.square(first).sum(axis=2)[:, :, None]
            (absolute if action.absolute else signed)[...] += first @ second.swapaxes(1, 2)
        return _Sums(own, own_reference, signed, absolute)

    def _of_gain(self, action: AxisAction, array: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return a gain without the signs that it takes: they will be those of the reference's."""
        flipped = [places for name, places in _sign_positions(action, self.symmetry) if self.symmetry[name].flips]
        if not flipped:
            return array
        array = array.copy()
        places = np.concatenate([listing.ravel() for listing in flipped])
        view = by_channel(array, action)[:, 0]
        view[:, places] = np.abs(view[:, places])
        return array

    def _signs_of_gains(self, group: Group, arrays: _Doubles, rows: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return (K, n, n) signs that give gains the sign of the reference; None where no gain takes them."""
        for action in self.symmetry.actions:
            if action.tensor not in arrays:
                continue
            for name, places in _sign_positions(action, self.symmetry):
                if name == group.id:
                    ours, theirs = (
                        np.sign(by_channel(array, action)[:, 0].reshape(len(array), -1)[:, places[:, 0]])
                        for array in (arrays[action.tensor], self._rows(action.tensor, rows))
                    )
                    return theirs[:, :, None] * ours[:, None, :]
        return None


def least_scales(arrays: _Doubles, symmetry: Symmetry) -> dict[str, NDArray[np.float64]]:
    """Return by group the scales (K, n) at which a running variance becomes 0, where normalisations read it."""
    found: dict[str, NDArray[np.float64]] = {}
    for action in symmetry.actions:
        for name, places in positions(action, symmetry) if action.exponent == 2 and action.eps else ():
            if not symmetry[name].resizes:
                continue
            variance = np.asarray(arrays[action.tensor], np.float64)
            least = np.sqrt(action.eps / (variance[:, places].max(axis=2) + action.eps))
            found[name] = np.maximum(found.get(name, 0.0), least)
    return found


def not_below(element: GroupElement, least: Mapping[str, NDArray[np.float64]]) -> GroupElement:
    """Return the element with scales of at least ``least_scales`` of the networks' channels."""
    scales = dict(element.scales)
    for name, bound in least.items():
        if name in scales:
            placed = np.take_along_axis(bound, element.perms[name], 1)
            placed = np.where(placed < 1, placed * _BELOW_LEAST, placed)
            scales[name] = np.sign(scales[name]) * np.maximum(np.abs(scales[name]), placed)
    return GroupElement(element.perms, scales)


def _sizes(
    group: Group,
    written: _Sums,
    u: NDArray[np.float64],
    read: _Sums,
    v: NDArray[np.float64],
    bound: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Return the sizes (K, n, n) of the scales of all pairs."""
    if not group.resizes:
        return np.ones_like(u)
    p, q = (np.broadcast_to(part.own, u.shape) for part in (written, read))
    reference_p, reference_q = (np.broadcast_to(part.own_reference, u.shape) for part in (written, read))
    sizes = np.ones(u.shape)
    both = (p > 0) & (q > 0)
    sizes[both], _ = least_costs(p[both], u[both], q[both], v[both])
    for alone, own, reference, power in ((p > 0, p, reference_p, -0.5), (q > 0, q, reference_q, 0.5)):
        one = alone & ~both
        sizes[one] = (own[one] / np.where(reference[one] > 0, reference[one], 1.0)) ** power
    return sizes if bound is None else np.maximum(sizes, bound[:, None, :])


def _sign_positions(action: AxisAction, symmetry: Symmetry) -> list[tuple[str, NDArray[np.int64]]]:
    """Return ``positions`` of the signs that an axis takes."""
    if not action.signs:
        return []
    bare = AxisAction(action.tensor, action.axis, action.signs, action.exponent, action.in_mass, action.role)
    return positions(bare, symmetry)


def _squared(array: NDArray[np.floating]) -> NDArray[np.float64]:
    return products(array, array)


def _families(symmetry: Symmetry, tensors: set[str]) -> Iterator[_Family]:
    """Yield the families in the order of the table: groups that move, and those that stay and are scaled."""
    moving = joint_groups_of(symmetry, tensors)
    joints = {group.id: joint for joint in moving for group in joint.groups}
    done: set[str] = set()
    for group in symmetry.groups:
        leader = symmetry.leader(group.id)
        if leader.id in done:
            continue
        joint = joints.get(leader.id)
        leaders = (leader,) if joint is None else joint.groups
        done |= {item.id for item in leaders}
        members = {item.id: symmetry.family(item.id) for item in leaders}
        whole = _family(joint, members, symmetry, tensors)
        if whole.tensors and (joint is not None or _scales(members)):
            yield whole
        # where two of them meet in a tensor, a step of all may be none: so scales one after the other, too
        for name, listed in members.items() if not whole.is_exact and len(members) > 1 else ():
            alone = _family(None, {name: listed}, symmetry, tensors)
            if alone.tensors and _scales(alone.members):
                yield alone


def _family(
    joint: JointGroups | None, members: Mapping[str, Sequence[Group]], symmetry: Symmetry, tensors: set[str]
) -> _Family:
    ids = {group.id for listed in members.values() for group in listed}
    touched = [action.tensor for action in symmetry.actions if action.groups & ids and action.tensor in tensors]
    return _Family(joint, members, tuple(sorted(set(touched))), len(touched) == len(set(touched)))


def _scales(members: Mapping[str, Sequence[Group]]) -> bool:
    return any(group.scaled for listed in members.values() for group in listed)

"""Coordinate ascent: joint groups in turn take what fits the reference best while all others stay.

Maximises ``<A, g B> = sum_t <A_t, (g B)_t>``, so that it minimises ``||A - g B||`` (git re-basin's weight matching,
arXiv 2209.04836, section 3.2), for any table. The Gram matrix of a group, ``C[i, j] = sum <a_i, b_j>`` over its views
with a_i the slices of A and b_j those of B under the other groups, gives the best permutation of a symmetric group as a
linear assignment. For groups of one block permutation, each pair of blocks is matched inside, and blocks are assigned
by the values; exact where no tensor has two of the groups with several channels a block. Where a tensor has a group on
two axes, C holds for a permutation of one of them, and what it gives is taken where the value rises.

On weights whose blocks are balanced (ckptzoo/symmetry/kinds/linear.py) what is left of an invertible matrix is an
orthogonal one, and of a complex number its phase, so that the group is compact there too:

- a block of matrices has the orthogonal Procrustes solution (kinds/orthogonal.py), of value the nuclear norm of its
  part of C; blocks are assigned by these, summed over the groups that share the block permutation, such as queries with
  keys and values with outputs;
- a stream under RMSNorm or LayerNorm has the same of all its channels;
- a complex number has the phase of ``sum a conj(b)``, of value its modulus;
- channels that may change their signs are assigned by the moduli, and where gains take them, by the greatest sums
  (joint_signs.py).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.alignment.blocks import PairSlices, Perms, assign_jointly
from ckptzoo.symmetry.alignment.joint_groups import (
    Arrays,
    ChannelView,
    JointGroups,
    joint_groups_of,
    mixed,
    placed,
    products,
    put,
)
from ckptzoo.symmetry.alignment.joint_signs import (
    best_signs,
    by_signs,
    greatest,
    signed_groups,
    signs_on,
    signs_that_meet,
    value_of,
)
from ckptzoo.symmetry.alignment.signatures import Signatures
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.kind import Turn
from ckptzoo.symmetry.kinds.registry import within_blocks_of
from ckptzoo.symmetry.tables import take_rows

MAX_SWEEPS = 100
"""The largest number of sweeps through all groups; ten are rarely needed."""
_ROUNDING = 8.0
"""The rounding of a gain over the sum of absolute gains: another element is taken only where it is better by more."""


@dataclass(frozen=True, eq=False)
class Matched:
    """Elements of K networks, of whose scales signs alone are not 1, and an upper bound (K,) on ``<A, g B>``.

    ``sweeps`` (K,) are those through the groups. ``ties`` (K,) counts channels of B whose sorted slices equal those of
    another one of their group, and those of which signs or orthogonal matrices stay open.
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

    def _objective(
        self, tensors: Iterable[str], arrays: Arrays, element: GroupElement, rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return ``<A, g B>`` (rows,) over these tensors."""
        total = np.zeros(len(rows))
        for name in sorted(tensors):
            moved = placed(arrays[name], self.symmetry.actions_on(name), element, self.symmetry)
            total += products(self._rows(name, rows), moved)
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
                placed(arrays[tensor], pair.rows.applied, element, self.symmetry),
            )
            for pair in joint.pairs
        ]

    def _rows(self, tensor: str, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return a tensor of the references of some networks."""
        array = self._reference[tensor]
        return array if len(array) == 1 else array[rows]


class Matcher(Ascent):
    """Matches networks to references by all that a table allows but sizes; parameters are those of ``Ascent``.

    Where groups have matrices, references and networks are float64 with balanced blocks, and signs count too. Raises
    ``SymmetryError`` where blocks of matrices move with those of a convolution in groups.
    """

    def __init__(self, reference: Arrays, symmetry: Symmetry) -> None:
        self._mixing = symmetry.has_matrices
        joints = joint_groups_of(symmetry, reference.keys(), in_place=self._mixing)
        self.joint_groups = tuple(sorted(joints, key=lambda joint: joint.turn))
        super().__init__(reference, symmetry, ((joint.tensors, joint.is_exact) for joint in self.joint_groups))
        for joint in self.joint_groups:
            if joint.pairs and joint.turn is not Turn.CHANNELS:
                what, step = (
                    f"group {joint.groups[0].id!r}",
                    "Align by permutations alone: ckptzoo.symmetry.monomial(table).",
                )
                raise SymmetryError(Problem("align", what, "blocks of matrices alone", "a convolution in groups", step))
        # without matrices signs are left to gauges, as in all versions of aligned variants
        self._signed = {name for joint in self.joint_groups for name in signed_groups(joint) if self._mixing}
        self._signatures = Signatures(reference, symmetry, self.joint_groups, self._signed)
        self._joined: dict[str, NDArray[np.floating]] = {}

    def bound(self, arrays: Arrays) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return ``Matched.bound`` and ``Matched.ties`` of K networks that start in their own order."""
        K = len(next(iter(arrays.values())))
        if self._mixing:
            return self._signatures.norms(arrays), np.zeros(K, np.int64)
        return self._signatures.start(arrays, GroupElement(GroupElement.identity(self.symmetry, K).perms, {}))

    def match(self, arrays: Arrays, *, start: str = "signature") -> Matched:
        """Match K networks (K, *shape); a network's result does not depend on the others.

        ``start`` is ``signature``, or ``identity`` for the order that the networks have.
        """
        K = len(next(iter(arrays.values())))
        one, best = GroupElement.identity(self.symmetry, K), list[int]()
        element = GroupElement(one.perms, {name: one.scales[name] for name in sorted(self._signed)}, one.matrices)
        if start != "signature":
            bound, ties = self.bound(arrays)
        else:
            bound, ties = self._signatures.start(arrays, element)
            # signatures give the best permutations of groups that are alone
            alone = [place for place, joint in enumerate(self.joint_groups) if joint.is_alone]
            best = self._start_blocks(arrays, element) if self._mixing else alone
        waiting = np.ones((K, len(self.joint_groups)), bool)
        waiting[:, best] = False
        sweeps = self._ascend(arrays, element, waiting, self._improving(arrays, element))
        found = GroupElement(element.perms, {**one.scales, **element.scales}, element.matrices)
        return Matched(found, bound, sweeps, ties)

    def ascend(self, arrays: Arrays, perms: Perms) -> Perms:
        """Return permutations that no group alone improves, found from given ones."""
        made = GroupElement(perms, {}).copy()
        waiting = np.ones((len(made), len(self.joint_groups)), bool)
        self._ascend(arrays, made, waiting, self._improving(arrays, made))
        return dict(made.perms)

    def _improving(self, arrays: Arrays, element: GroupElement) -> Improved:
        """Return the function that finds better elements of joint groups, from the values of the present ones."""
        least = [max(within_blocks_of(group).least_fall for group in joint.groups) for joint in self.joint_groups]
        squares, value = np.zeros((2, len(element)))
        if any(least) or any(joint.quadratic for joint in self.joint_groups):
            for name, reference in self._reference.items():
                squares += products(reference, reference) + products(arrays[name], arrays[name])
            value = self._objective(self._reference, arrays, element, np.arange(len(element)))

        def improved(
            place: int, some: Arrays, current: GroupElement, rows: NDArray[np.int64]
        ) -> tuple[GroupElement, NDArray[np.bool_]]:
            joint = self.joint_groups[place]
            if any(action.blocks > 1 for name in joint.quadratic for action in self.symmetry.actions_on(name)):
                found, rise, rounding = self._visit_moved(joint, some, current, rows)
            else:
                found, rise, rounding = self._visit(joint, some, current, rows)
            better = rise > rounding
            if least[place]:
                better &= rise > least[place] / 2 * (squares - 2 * value)[rows]
            if joint.quadratic and better.any():
                after = current.copy()
                put(after, found, slice(None), self.symmetry)
                rise = self._objective(joint.tensors, some, after, rows)
                rise -= self._objective(joint.tensors, some, current, rows)
                # where two axes of a tensor move at once a step may lower the objective; less than this is rounding
                better &= rise > 1e-12 * squares[rows]
            value[rows[better]] += rise[better]
            return found, better

        return improved

    def _visit(
        self, joint: JointGroups, arrays: Arrays, current: GroupElement, rows: NDArray[np.int64]
    ) -> tuple[GroupElement, NDArray[np.float64], NDArray[np.float64]]:
        """Return the best elements of joint groups while all others stay, the rise of the value, and its rounding."""
        # channels that may change signs are assigned by the greatest sums over signs
        terms = {group.id: made for group in joint.groups if (made := self._terms(joint, group, arrays, current, rows))}
        gains = {
            group.id: greatest(terms[group.id])
            if group.id in terms
            else self._gains(tuple(joint.views_of(group)), group, arrays, current, rows)
            for group in joint.groups
        }
        pairs = self._pairs(joint, arrays, current, rows)
        found, value, before = assign_jointly(joint, gains, pairs, current, terms)
        scales: dict[str, NDArray[np.float64]] = {}
        for name, several in terms.items():
            chosen, held = (
                {names: np.take_along_axis(term, at[:, :, None], 2)[:, :, 0] for names, term in several.items()}
                for at in (found.perms[name], current.perms[name])
            )
            scales |= best_signs(chosen)
            before = before + value_of(held, current.scales).sum(axis=1)
        sizes = sum(np.abs(gain).sum(axis=(1, 2), dtype=np.float64) / gain.shape[1] for gain in gains.values())
        precision = np.finfo(next(iter(gains.values())).dtype).eps
        return replace(found, scales=scales), value - before, _ROUNDING * precision * (sizes + np.abs(value))

    def _visit_moved(
        self, joint: JointGroups, arrays: Arrays, current: GroupElement, rows: NDArray[np.int64]
    ) -> tuple[GroupElement, NDArray[np.float64], NDArray[np.float64]]:
        """Return the same from networks that are moved to where they are now.

        Blocks of one axis that are those of another move with it, so that the channels of each would be counted from
        where the other axis has brought them.
        """
        moved = {
            name: placed(array, self.symmetry.actions_on(name), current, self.symmetry)
            for name, array in arrays.items()
        }
        found, rise, rounding = self._visit(joint, moved, GroupElement.identity(self.symmetry, len(rows)), rows)
        held = GroupElement({group.id: current.perms[group.id] for group in joint.groups}, {})
        return found.compose(held), rise, rounding

    def _terms(
        self, joint: JointGroups, group: Group, arrays: Arrays, current: GroupElement, rows: NDArray[np.int64]
    ) -> dict[frozenset[str], NDArray[np.float64]]:
        """Return C (rows, n, n) of a group and those that are like it, by the groups whose signs multiply it.

        Empty where no signs of these are open.
        """
        terms: dict[frozenset[str], NDArray[np.float64]] = {}
        family = self.symmetry.family(group.id) if self._signed else ()
        for item in family if any(other.id in self._signed for other in family) else ():
            views: dict[frozenset[str], list[ChannelView]] = {}
            for view in joint.views_of(group, item.id):
                for names, part in by_signs(view, item.id, self._signed):
                    views.setdefault(names, []).append(part)
            for names, some in views.items():
                made = self._gains(some, group, arrays, current, rows)
                terms[names] = terms[names] + made if names in terms else made
        return terms

    def _gains(
        self,
        views: Sequence[ChannelView],
        group: Group,
        arrays: Arrays,
        current: GroupElement,
        rows: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Return C (rows, n, n) of some views of a group, without matrices of all."""
        moved = (placed(arrays[view.action.tensor], view.applied, current, self.symmetry) for view in views)
        if views and not self._mixing:  # one product of all, on whose order the bits of a sum depend
            slices = [view.slices(array) for view, array in zip(views, moved, strict=True)]
            return self._reference_slices(group.id, views, rows) @ _joined(slices).swapaxes(1, 2)
        total: NDArray[Any] = np.zeros((len(rows), group.n, group.n))
        beside = within_blocks_of(group).beside(group, len(rows))
        for view, array in zip(views, moved, strict=True):
            reference = view.slices(self._rows(view.action.tensor, rows))
            total = total + reference @ view.slices(array).swapaxes(1, 2)
            for factor, value in beside.items():
                turned = mixed(array, (view.action,), {group.id: value}, self.symmetry)
                total = total + factor * (reference @ view.slices(turned).swapaxes(1, 2))
        return total

    def _reference_slices(
        self, group: str, views: Sequence[ChannelView], rows: NDArray[np.int64]
    ) -> NDArray[np.floating]:
        """Return the slices (1 or rows, n, features) of a group's views, one after the other."""
        if group not in self._joined:
            self._joined[group] = _joined([view.slices(self._reference[view.action.tensor]) for view in views])
        held = self._joined[group]
        return held if len(held) == 1 else held[rows]

    def _start_blocks(self, arrays: Arrays, element: GroupElement) -> list[int]:
        """Find blocks in place, one after the other, from the tensors in which only groups meet that are known.

        Returns the numbers of the joint groups for which these are all their tensors.
        """
        best: list[int] = []
        turns = [joint.turn for joint in self.joint_groups]
        open_groups = {group.id for joint in self.joint_groups if joint.turn is Turn.BLOCKS for group in joint.groups}
        open_groups |= self._signed

        def visit(joint: JointGroups, known: Mapping[str, tuple[ChannelView, ...]]) -> None:
            some = {name: arrays[name] for name in sorted(joint.tensors)}
            found, _, _ = self._visit(replace(joint, views=known), some, element, np.arange(len(element)))
            put(element, found, slice(None), self.symmetry)

        for joint in self.joint_groups:
            # what is read behind a gain tells its signs with those of heads alone: first what does without
            if joint.turn is Turn.CHANNELS and self._takes_signs(joint):
                own = {item.id for item in self.symmetry.family(joint.groups[0].id)}
                visit(joint, _known(joint, open_groups - own))
                open_groups -= own
        meeting = signs_that_meet(self.symmetry) & open_groups & self._signed
        waiting = [
            at for at, joint in enumerate(self.joint_groups) if turns[at] is Turn.BLOCKS or joint.family & meeting
        ]
        if meeting:  # signs that meet heads or others in a tensor come first, where some tensor tells them
            waiting.sort(key=lambda at: turns[at] is not Turn.CHANNELS)
        while waiting:
            place = self._next(waiting, open_groups) if meeting else waiting[0]
            waiting.remove(place)
            joint = self.joint_groups[place]
            known = _known_now(joint, open_groups)
            if any(known.values()):
                visit(joint, known)
            if known == dict(joint.views) and not joint.quadratic and joint.turn is not Turn.CHANNELS:
                best.append(place)
            open_groups -= joint.family
        return best

    def _takes_signs(self, joint: JointGroups) -> bool:
        """Whether gains take signs of these groups beside their own."""
        taking = (view for view in joint.all_views() if view.action.signs)
        return any(signs_on(view.action, view.leader, self._signed) for view in taking)

    def _next(self, waiting: Sequence[int], open_groups: set[str]) -> int:
        """Return the first joint group with known views, of every group where matrices act, else the best known one."""
        unknown: dict[int, tuple[bool, bool]] = {}
        for place in waiting:
            joint = self.joint_groups[place]
            known = _known_now(joint, open_groups)
            unknown[place] = not any(known.values()), joint.turn is not Turn.CHANNELS and not all(known.values())
            if not any(unknown[place]):
                return place
        return min(waiting, key=unknown.__getitem__)


def _known(joint: JointGroups, open_groups: set[str]) -> dict[str, tuple[ChannelView, ...]]:
    """Return the views of joint groups in whose tensors no open group acts on other axes."""
    return {
        name: tuple(view for view in views if not _groups(view.others, joint.symmetry) & open_groups)
        for name, views in joint.views.items()
    }


def _known_now(joint: JointGroups, open_groups: set[str]) -> dict[str, tuple[ChannelView, ...]]:
    """Return the known views of joint groups, in whose tensors their own signs are no others'."""
    return _known(joint, open_groups - joint.family if joint.turn is Turn.CHANNELS else open_groups)


def _groups(actions: Sequence[AxisAction], symmetry: Symmetry) -> set[str]:
    names = {segment.group for action in actions for segment in action.segments}
    return names | {symmetry.leader(name).id for name in names}


def _joined(slices: Sequence[NDArray[np.floating]]) -> NDArray[np.floating]:
    """Return slices (K, n, features) one after the other."""
    return slices[0] if len(slices) == 1 else np.concatenate(slices, axis=2)

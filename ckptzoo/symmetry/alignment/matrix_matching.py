"""Coordinate ascent over permutations, orthogonal matrices, phases and signs, for tables with matrices.

On weights whose blocks are balanced (ckptzoo/symmetry/kinds/linear.py) what is left of an invertible matrix is an
orthogonal one, and of a complex number its phase, so that ``<A, g B>`` is to be maximised over a compact group, as in
matching.py. While all other groups stay, ``C[i, j] = sum <a_i, b_j>`` over the slices of all tensors that a group acts
on gives its best element:

- a block of matrices: the orthogonal Procrustes solution (kinds/orthogonal.py), of value the nuclear norm of the
  block of C; blocks are assigned by these values, summed over the groups that share the block permutation, such as
  queries with keys and values with outputs;
- a stream under RMSNorm or LayerNorm: the same of all its channels;
- a complex number: the phase of ``sum a conj(b)``, of value its modulus;
- channels that may change their signs: assignment on the moduli, and where gains take them, on the greatest sums
  (joint_signs.py).

The start is made of what none of the others changes: of a stream the tensors that no other group acts on, and where
these leave directions open, the eigenvectors of what is written into it; of ordinary channels their sorted slices, with
the norms of blocks along the axes that matrices act on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.alignment.blocks import assign_jointly
from ckptzoo.symmetry.alignment.joint_groups import Arrays, ChannelView, JointGroups, is_moved, joint_groups_of, put
from ckptzoo.symmetry.alignment.joint_signs import (
    best_signs,
    greatest,
    is_forest,
    signs_on,
    signs_that_meet,
    takes_signs,
    value_of,
)
from ckptzoo.symmetry.alignment.matching import Ascent, Improved, Matched, count_ties, products, weights_of
from ckptzoo.symmetry.arrays import positions
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.assignment import assign, by_block, gained
from ckptzoo.symmetry.kinds.orthogonal import basis_of_stream, procrustes
from ckptzoo.symmetry.kinds.permutation import block_move
from ckptzoo.symmetry.kinds.registry import matrix_kind_of, within_blocks_of
from ckptzoo.symmetry.matrix_action import mixed_channels, multiply

LEAST_FALL = 1e-6
"""The relative fall of the squared distance below which matrices are not taken."""
_ROUNDING = 8.0 * float(np.finfo(np.float64).eps)
"""The rounding of a gain over the sum of absolute gains: an element is taken only where it is better by more."""
_OPEN = 1e-6
"""The weight of a stream's eigenvectors, relative to the norm of the products that determine the stream's matrix."""
_STREAMS = ("orthogonal", "orthogonal_mean")
_Gains = Mapping[str, NDArray[Any]]
"""Group id to (K, n, n); complex for complex numbers: real and imaginary parts of the products of pairs."""


@dataclass(frozen=True, eq=False)
class _Step:
    """The result of one visit to joint groups: elements, their values, and the values of the elements so far."""

    found: GroupElement
    value: NDArray[np.float64]
    before: NDArray[np.float64]


class MatrixMatcher(Ascent):
    """Matches networks to references, as ``Matcher``, for a table with matrices.

    ``reference`` is A: tensor name to (1 or K, *shape), finite float64, with balanced blocks; tensors that are not in
    it do not count. Raises ``SymmetryError`` where blocks of matrices move with those of a convolution in groups.
    """

    def __init__(self, reference: Arrays, symmetry: Symmetry) -> None:
        # what depends on a start least comes first: heads, which one visit solves, and streams last
        joints = joint_groups_of(symmetry, reference.keys(), in_place=True)
        self.joint_groups = tuple(sorted(joints, key=lambda joint: _turn(joint.groups)))
        super().__init__(reference, symmetry, ((joint.tensors, joint.is_exact) for joint in self.joint_groups))
        for joint in self.joint_groups:
            if joint.pairs and _is_mixed(joint):
                what, step = (
                    f"group {joint.groups[0].id!r}",
                    "Align by permutations alone: ckptzoo.symmetry.monomial(table).",
                )
                raise SymmetryError(Problem("align", what, "blocks of matrices alone", "a convolution in groups", step))
        self._signed = {name for joint in self.joint_groups for name in _signed(joint, symmetry)}
        self._unsettled = sum(group.n for group in symmetry.groups if group.flips and group.id not in self._signed)

    def match(self, arrays: Arrays, *, start: str = "signature") -> Matched:
        """Match K networks (K, *shape) float64; a network's result does not depend on the others."""
        K = len(next(iter(arrays.values())))
        element, ties = GroupElement.identity(self.symmetry, K), np.zeros(K, np.int64)
        for joint in self.joint_groups if start == "signature" else ():
            if _is_stream(joint.groups):
                element.matrices[joint.groups[0].id][:], untold = self._stream_start(joint, arrays)
                ties += untold
            elif not _is_mixed(joint) and is_moved(joint.groups[0]):
                perms, alike = self._by_signature(joint, arrays)
                ties += alike
                put(element, GroupElement(perms, {}), slice(None), self.symmetry)
        ties += self._unsettled if start == "signature" else 0
        best = self._heads_start(arrays, element) if start == "signature" else []
        waiting = np.ones((K, len(self.joint_groups)), bool)
        waiting[:, best] = False
        sweeps = self._ascend(arrays, element, waiting, self._improving(arrays, element))
        norms = (np.sqrt(products(self._reference[name], self._reference[name])) for name in self._reference)
        own = (np.sqrt(products(arrays[name], arrays[name])) for name in self._reference)
        bound = sum((one * other for one, other in zip(norms, own, strict=True)), np.zeros(K))
        return Matched(element, bound, sweeps, ties)

    def _improving(self, arrays: Arrays, element: GroupElement) -> Improved:
        """Return the function that finds better elements of joint groups, from the values of the present ones."""
        squares = np.zeros(len(element))
        for name, reference in self._reference.items():
            squares += products(reference, reference) + products(arrays[name], arrays[name])
        value = self._objective(self._reference, arrays, element, np.arange(len(element)))

        def improved(
            place: int, some: Arrays, current: GroupElement, rows: NDArray[np.int64]
        ) -> tuple[GroupElement, NDArray[np.bool_]]:
            joint = self.joint_groups[place]
            step = self._visit(joint, some, current, rows)
            rise = step.value - step.before
            better = rise > _ROUNDING * (np.abs(step.value) + np.abs(step.before))
            if _is_mixed(joint):
                better &= rise > LEAST_FALL / 2 * (squares - 2 * value)[rows]
            if joint.quadratic and better.any():
                after = current.copy()
                put(after, step.found, slice(None), self.symmetry)
                rise = self._objective(joint.tensors, some, after, rows)
                rise -= self._objective(joint.tensors, some, current, rows)
                # where two axes of a tensor move at once a step may lower the objective; less than this is rounding
                better &= rise > 1e-12 * squares[rows]
            value[rows[better]] += rise[better]
            return step.found, better

        return improved

    def _visit(self, joint: JointGroups, arrays: Arrays, current: GroupElement, rows: NDArray[np.int64]) -> _Step:
        """Return the best elements of joint groups while all others stay."""
        terms = {
            group.id: self._terms(joint, group, arrays, current, rows)
            for group in joint.groups
            if self._signed & {item.id for item in self.symmetry.family(group.id)}
        }
        # channels that may change signs are assigned by the greatest sums over signs
        gains = {
            group.id: greatest(terms[group.id])
            if group.id in terms
            else self._gains(group.id, joint, arrays, current, rows)
            for group in joint.groups
        }
        matrices = dict[str, NDArray[np.float64]]()
        if _is_mixed(joint):
            outer = assign(
                np.sum(
                    [
                        within_blocks_of(group).greatest(group, by_block(gains[group.id], joint.g))
                        for group in joint.groups
                    ],
                    axis=0,
                )
            )
            perms, value, before = dict[str, NDArray[np.int64]](), *np.zeros((2, len(rows)))
            for group in joint.groups:
                kind, whole = within_blocks_of(group), block_move(Wreath("", joint.g, group.n // joint.g), outer)
                chosen = _of_blocks(gains[group.id], outer)
                inside = kind.best(group, chosen)
                value += kind.value(chosen, inside)
                perms[group.id] = whole
                if kind.part == "matrices":
                    matrices[group.id] = inside
                else:
                    perms[group.id] = np.take_along_axis(whole.reshape(inside.shape), inside, 2).reshape(whole.shape)
                if group.id not in terms:
                    before += _present_value(group, gains[group.id], current, joint.g)
        else:
            perms, value, before = self._assigned(joint, gains, arrays, current, rows)
        scales: dict[str, NDArray[np.float64]] = {}
        for name, several in terms.items():
            chosen, held = (
                {names: np.take_along_axis(term, at[:, :, None], 2)[:, :, 0] for names, term in several.items()}
                for at in (perms[name], current.perms[name])
            )
            scales |= best_signs(chosen)
            before = before + value_of(held, current.scales).sum(axis=1)
        return _Step(GroupElement(perms, scales, matrices), value, before)

    def _assigned(
        self,
        joint: JointGroups,
        gains: _Gains,
        arrays: Arrays,
        current: GroupElement,
        rows: NDArray[np.int64],
    ) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.float64], NDArray[np.float64]]:
        """Return permutations of blocks and within these, their values, and those of the present ones without signs."""
        held = {group.id: current.perms[group.id] for group in joint.groups}
        perms, value, before = assign_jointly(joint, gains, self._pairs(joint, arrays, current, rows), held)
        for group in joint.groups:
            if self._signed & {item.id for item in self.symmetry.family(group.id)}:
                before = before - gained(gains[group.id], held[group.id])
        return perms, value, before

    def _terms(
        self, joint: JointGroups, group: Group, arrays: Arrays, current: GroupElement, rows: NDArray[np.int64]
    ) -> dict[frozenset[str], NDArray[np.float64]]:
        """Return C (rows, n, n) of a group and those that are like it, by the groups whose signs multiply it."""
        terms: dict[frozenset[str], NDArray[np.float64]] = {}
        for item in self.symmetry.family(group.id):
            views: dict[frozenset[str], list[ChannelView]] = {}
            for view in _views(joint, group, self.symmetry, {item.id}):
                for names, part in _by_signs(view, item.id, self._signed):
                    views.setdefault(names, []).append(part)
            for names, some in views.items():
                made = self._gains_of(some, group, arrays, current, rows)
                terms[names] = terms[names] + made if names in terms else made
        return terms

    def _takes_signs(self, joint: JointGroups) -> bool:
        """Whether gains take signs of these groups beside their own."""
        return any(
            len(signs_on(view.action, view.leader, self._signed)) for view in joint.all_views() if view.action.signs
        )

    def _gains(
        self,
        leader: str,
        joint: JointGroups,
        arrays: Arrays,
        current: GroupElement,
        rows: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Return C (rows, n, n) of a group and of those that are like it."""
        group = self.symmetry[leader]
        return self._gains_of(_views(joint, group, self.symmetry), group, arrays, current, rows)

    def _gains_of(
        self,
        views: Iterable[ChannelView],
        group: Group,
        arrays: Arrays,
        current: GroupElement,
        rows: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Return C (rows, n, n) of some views."""
        leader = group.id
        total: NDArray[Any] = np.zeros((len(rows), group.n, group.n))
        for view in views:
            name = view.action.tensor
            placed = self._placed(arrays[name], view.applied, current)
            reference = view.slices(self._rows(name, rows))
            total = total + reference @ view.slices(placed).swapaxes(1, 2)
            if group.scale == "complex":
                quarter = {leader: np.tile([0.0, 1.0], (len(rows), group.n, 1))}
                turned = self._mixed(placed, (view.action,), quarter)
                total = total + 1j * (reference @ view.slices(turned).swapaxes(1, 2))
        return total

    def _placed(
        self, array: NDArray[np.floating], actions: Sequence[AxisAction], element: GroupElement
    ) -> NDArray[np.floating]:
        """Return a stacked tensor under the permutations, signs and matrices of some of its actions."""
        names = sorted({name for action in actions for name in action.groups})
        if not names:
            return array
        signs = {name: element.scales[name] for name in names if name in self._signed}
        moving = GroupElement({name: element.perms[name] for name in names}, signs)
        return self._mixed(transform(array, actions, moving, self.symmetry), actions, element.matrices)

    def _mixed(
        self,
        array: NDArray[np.floating],
        actions: Sequence[AxisAction],
        matrices: Mapping[str, NDArray[np.float64]],
    ) -> NDArray[np.floating]:
        """Return a stacked tensor with mixed channels: orthogonal matrices are their own inverse transposes."""
        mixed = [replace(item, inverted=False) for item in mixed_channels(actions, self.symmetry)]
        mixed = [item for item in mixed if item.group in matrices]
        if not mixed:
            return array
        work = np.array(array, np.float64, order="C")
        multiply(work, mixed, matrices)
        return work

    def _stream_start(self, joint: JointGroups, arrays: Arrays) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return a stream's matrices (K, 1, n, n) by what no other group changes, and the count of open channels."""
        (group,) = joint.groups
        K = len(next(iter(arrays.values())))
        total = np.zeros((K, 1, group.n, group.n))
        for view in _views(joint, group, self.symmetry):
            if not any(self._acts(action) for action in view.others):
                name = view.action.tensor
                total[:, 0] += view.slices(self._reference[name]) @ view.slices(arrays[name]).swapaxes(1, 2)
        ours, theirs = (basis_of_stream(given, group, self.symmetry)[0].matrix for given in (arrays, self._reference))
        size = np.linalg.norm(total, axis=(-1, -2), keepdims=True)
        mean = group.scale == "orthogonal_mean"
        values = np.linalg.svd(total[:, 0] - total[:, 0].mean(axis=-1, keepdims=True) * mean, compute_uv=False)
        untold = group.n - mean - (values > _OPEN * np.maximum(size[:, 0, :, 0], 1e-300)).sum(axis=-1)
        total += np.where(size > 0, _OPEN * size, 1) * (theirs.swapaxes(-1, -2) @ ours)
        return procrustes(total, mean=mean), untold

    def _heads_start(self, arrays: Arrays, element: GroupElement) -> list[int]:
        """Find blocks in place, one after the other, from the tensors in which only groups meet that are known.

        Returns the numbers of the joint groups for which these are all their tensors.
        """
        best: list[int] = []
        open_groups = {group.id for joint in self.joint_groups if not _turn(joint.groups) for group in joint.groups}
        open_groups |= self._signed
        rows = np.arange(len(element))
        for joint in self.joint_groups:
            # what is read behind a gain tells its signs with those of heads alone: first what does without
            if not _is_mixed(joint) and self._takes_signs(joint):
                own = {item.id for item in self.symmetry.family(joint.groups[0].id)}
                if views := self._known(joint, open_groups - own):
                    some = {name: arrays[name] for name in sorted(joint.tensors)}
                    known = replace(joint, views=views)
                    put(element, self._visit(known, some, element, rows).found, slice(None), self.symmetry)
                    open_groups -= own
        meeting = signs_that_meet(self.symmetry) & open_groups & self._signed
        waiting = [
            at for at, joint in enumerate(self.joint_groups) if not _turn(joint.groups) or self._own(joint) & meeting
        ]
        if meeting:  # signs that meet heads or others in a tensor come first, where some tensor tells them
            waiting.sort(key=lambda at: _is_mixed(self.joint_groups[at]))
        while waiting:
            place = self._next(waiting, open_groups) if meeting else waiting[0]
            waiting.remove(place)
            joint, known = self.joint_groups[place], self._known_now(place, open_groups)
            if any(known.values()):
                some = {name: arrays[name] for name in sorted(joint.tensors)}
                found = self._visit(replace(joint, views=known), some, element, rows).found
                put(element, found, slice(None), self.symmetry)
            if known == dict(joint.views) and not joint.quadratic and _is_mixed(joint):
                best.append(place)
            open_groups -= self._own(joint)
        return best

    def _own(self, joint: JointGroups) -> set[str]:
        """Return the groups of a joint group, and those that are like them."""
        return {item.id for group in joint.groups for item in self.symmetry.family(group.id)}

    def _known_now(self, place: int, open_groups: set[str]) -> dict[str, tuple[ChannelView, ...]]:
        """Return the known views of a joint group, in whose tensors its own signs are no others'."""
        joint = self.joint_groups[place]
        return self._known(joint, open_groups if _is_mixed(joint) else open_groups - self._own(joint))

    def _next(self, waiting: Sequence[int], open_groups: set[str]) -> int:
        """Return the first joint group with known views, of every group where matrices act, else the best known one."""
        unknown: dict[int, tuple[bool, bool]] = {}
        for place in waiting:
            known, mixed = self._known_now(place, open_groups), _is_mixed(self.joint_groups[place])
            unknown[place] = not any(known.values()), mixed and not all(known.values())
            if not any(unknown[place]):
                return place
        return min(waiting, key=unknown.__getitem__)

    def _known(self, joint: JointGroups, open_groups: set[str]) -> dict[str, tuple[ChannelView, ...]]:
        """Return the views of joint groups in whose tensors no open group acts on other axes."""
        return {
            name: tuple(view for view in views if not _groups(view.others, self.symmetry) & open_groups)
            for name, views in joint.views.items()
        }

    def _acts(self, action: AxisAction) -> bool:
        """Whether elements change anything on an axis."""
        if self._signed & {segment.group for segment in action.segments}:
            return True
        found = [self.symmetry.leader(segment.group) for segment in action.segments]
        return any(matrix_kind_of(group) or is_moved(group) for group in found)

    def _by_signature(
        self, joint: JointGroups, arrays: Arrays
    ) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64]]:
        """Return permutations by sorted slices, which no other group changes; and ties."""
        K = len(next(iter(arrays.values())))
        gains = {group.id: np.zeros((K, group.n, group.n)) for group in joint.groups}
        keys = {group.id: np.zeros((K, group.n)) for group in joint.groups}
        for number, view in enumerate(joint.all_views()):
            name = view.action.tensor
            ours, theirs = (self._invariant(given[name], view) for given in (arrays, self._reference))
            gains[view.leader] += theirs @ ours.swapaxes(1, 2)
            keys[view.leader] += (ours * weights_of(number, ours.shape[2])).sum(axis=2)
        found, _, _ = assign_jointly(joint, gains, (), None)
        return found, count_ties(joint, keys)

    def _invariant(self, array: NDArray[np.floating], view: ChannelView) -> NDArray[np.floating]:
        """Return sorted slices (K, n, features) with norms of what matrices mix, and moduli where signs are open."""
        made = np.array(array, np.float64)
        for mixed in mixed_channels(view.others, self.symmetry):
            moved = np.moveaxis(made, mixed.axis + 1, 1)
            norms = np.linalg.norm(moved[:, mixed.places], axis=2)
            moved[:, mixed.places] = 0
            moved[:, mixed.places[:, 0]] = norms
        acting = (view.action, *view.others)
        names = {segment.group for action in acting for segment in (*action.segments, *action.signs)}
        if names & self._signed:
            np.abs(made, out=made)
        return view.sorted_slices(made, self.symmetry)


def _turn(groups: Sequence[Group]) -> int:
    """Return the order of a turn: heads and pairs first, streams last."""
    return 2 if _is_stream(groups) else 0 if any(map(matrix_kind_of, groups)) else 1


def _is_stream(groups: Sequence[Group]) -> bool:
    return groups[0].scale in _STREAMS and isinstance(groups[0].perm, Sym)


def _is_mixed(joint: JointGroups) -> bool:
    return any(map(matrix_kind_of, joint.groups))


def _groups(actions: Sequence[AxisAction], symmetry: Symmetry) -> set[str]:
    names = {segment.group for action in actions for segment in action.segments}
    return names | {symmetry.leader(name).id for name in names}


def _signed(joint: JointGroups, symmetry: Symmetry) -> list[str]:
    """Return the groups that may change signs, among those that are permuted together."""
    if joint.quadratic:
        return []
    members = [member for group in joint.groups for member in symmetry.family(group.id)]
    found: list[str] = []
    for member in members:
        own = [action for action in symmetry.actions if member.id in action.groups]
        plain = all(
            act.exponent in (1, -1, 2) and not act.absolute and (not act.signs or takes_signs(act, members))
            for act in own
        )
        # beside a gate with signs of its own no sign can be chosen alone
        others = frozenset[str]().union(*(act.multiplied for act in own)) - {member.id}
        if member.flips and plain and not any(symmetry[name].flips for name in others):
            found.append(member.id)
    taking = [action for action in symmetry.actions if action.signs and action.groups & set(found)]
    return (
        found
        if is_forest(taking, set(found))
        else [name for name in found if all(name not in act.groups for act in taking)]
    )


def _views(joint: JointGroups, group: Group, symmetry: Symmetry, only: set[str] | None = None) -> Iterator[ChannelView]:
    """Yield the views of a group, or of some that are like it, without gains, on which matrices do not act."""
    for view in joint.views[group.id]:
        if matrix_kind_of(group) and view.action.role == "gain":
            continue
        if only is None:
            yield view
        elif listed := tuple(places for name, places in positions(view.action, symmetry) if name in only):
            yield replace(view, listings=listed)


def _by_signs(view: ChannelView, group: str, signed: set[str]) -> Iterator[tuple[frozenset[str], ChannelView]]:
    """Split a view of a group's channels by the groups whose signs multiply them, by listing where these differ."""
    found = [signs_on(view.action, group, signed, int(places[0, 0])) for places in view.listings]
    if len(set(found)) == 1:
        yield found[0], view
    else:
        for names, places in zip(found, view.listings, strict=True):
            yield names, replace(view, listings=(places,))


def _present_value(group: Group, gains: NDArray[Any], element: GroupElement, g: int) -> NDArray[np.float64]:
    """Return (K,) the sum of the products of a group's slices under an element."""
    kind, perm = within_blocks_of(group), element.perms[group.id]
    inside = perm.reshape(len(perm), g, -1)
    value = element.matrices[group.id] if kind.part == "matrices" else inside % (group.n // g)
    return kind.value(_of_blocks(gains, inside[:, :, 0] // (group.n // g)), value)


def _of_blocks(gains: NDArray[Any], outer: NDArray[np.int64]) -> NDArray[Any]:
    """Return (K, g, k, k) of each block with the one that comes in its place."""
    split = by_block(gains, outer.shape[1])
    return np.ascontiguousarray(np.take_along_axis(split, outer[:, :, None, None, None], 2)[:, :, 0])

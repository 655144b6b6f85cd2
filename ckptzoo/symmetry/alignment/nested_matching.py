"""Alignment where groups act inside the channels of others, such as heads of queries that share heads of keys.

Every element is one that keeps these heads in order within their blocks, and a permutation within the blocks behind it
(ckptzoo/symmetry/nested.py). The first are matched as those of any table, with matrices or without; the others are one
assignment a block, exact while everything else stays. They take turns until neither is better.

The start does not depend on the order of the heads: each of those of a block counts as their mean, which every
other symmetry takes along. It is the middle of their orders, as ``<A, P B> = <A, mean B>`` for P the mean of all
permutations within blocks.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.alignment.joint_groups import Arrays, joint_groups_of, placed, products
from ckptzoo.symmetry.alignment.matching import Matched, Matcher
from ckptzoo.symmetry.arrays import by_channel, listings
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.nested import from_blocks, from_unnested, moving_within, unnested, within_blocks
from ckptzoo.symmetry.tables import take_rows

MAX_TURNS = 50
"""The largest number of turns of heads within blocks and everything else; five are rarely needed."""
_LEAST_RISE = 1e-12
"""The rise, relative to the squared norms, by which an element must be better to be taken."""


class NestedMatcher:
    """Matches networks to references by any table, as ``Matcher`` does without groups inside the channels of others.

    ``reference`` is A: tensor name to (1 or K, *shape), finite; float64 with balanced blocks where the table has
    matrices; tensors that are not in it do not count. Raises ``SymmetryError`` as ``Matcher``, and where channels
    inside which others act are inside others, too.
    """

    def __init__(self, reference: Arrays, symmetry: Symmetry) -> None:
        self.symmetry = symmetry
        self._reference = reference
        self._unnested, self._within = unnested(symmetry), within_blocks(symmetry)
        moved = {action.tensor for action in self._within.actions} if self._within else set[str]()
        self._permuted = sorted(moved & reference.keys())
        """Tensors that heads within blocks permute."""
        self._matcher = Matcher(self._with_means(reference), self._unnested)

    def match(self, arrays: Arrays, *, start: str = "signature") -> Matched:
        """Match K networks (K, *shape); a network's result does not depend on the others."""
        if not self._permuted:
            found = self._matcher.match(arrays, start=start)
            is_same = self._unnested is self.symmetry
            return found if is_same else replace(found, element=from_unnested(found.element, self.symmetry))
        K = len(next(iter(arrays.values())))
        element, squares = GroupElement.identity(self.symmetry, K), np.zeros(K)
        for name, reference in self._reference.items():
            squares += products(reference, reference) + products(arrays[name], arrays[name])
        means = self._with_means(arrays)
        if start == "signature":
            found = self._matcher.match(means)
            element, ties = from_unnested(found.element, self.symmetry), found.ties
        else:
            _, ties = self._matcher.bound(means)
        heads = self._matched_heads(self._placed(arrays, element), self._reference, start)
        element = from_blocks(heads.element, self.symmetry).compose(element)
        sweeps = self._take_turns(arrays, element, squares, heads.sweeps)
        return Matched(element, self._bound(arrays), sweeps, ties + heads.ties)

    def _take_turns(
        self, arrays: Arrays, element: GroupElement, squares: NDArray[np.float64], swept: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Improve elements in place until no turn finds a better one, and return the sweeps (K,).

        ``swept`` (K,) is the number of sweeps so far in which the heads were the best ones while all others stay.
        """
        rows, sweeps = np.arange(len(element)), np.zeros(len(element), np.int64)
        value = self._value(self._placed(arrays, element), rows)
        for _ in range(MAX_TURNS):
            better, others_swept = self._turn(self._others, arrays, element, value, squares, rows)
            sweeps[rows] += np.maximum(swept, others_swept)
            rows = rows[better]  # where the others stayed the heads are still the best
            if not len(rows):
                break
            better, swept = self._turn(self._heads, arrays, element, value, squares, rows)
            rows, swept = rows[better], swept[better]  # and where the heads stayed the others are
            if not len(rows):
                break
        return sweeps

    def _turn(
        self,
        better_ones: Callable[[Arrays, Arrays], tuple[GroupElement, NDArray[np.int64]]],
        arrays: Arrays,
        element: GroupElement,
        value: NDArray[np.float64],
        squares: NDArray[np.float64],
        rows: NDArray[np.int64],
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Improve the elements and values of some networks in place; return which of them rose, and sweeps."""
        some, current = take_rows(arrays, rows), element[rows]
        found, sweeps = better_ones(self._placed(some, current), self._rows(rows))
        after = found.compose(current)
        reached = self._value(self._placed(some, after), rows)
        better = reached - value[rows] > _LEAST_RISE * squares[rows]
        element.put(rows[better], after[better])
        value[rows[better]] = reached[better]
        return better, sweeps

    def _heads(self, arrays: Arrays, reference: Arrays) -> tuple[GroupElement, NDArray[np.int64]]:
        """Return better orders of heads within blocks: the best with others fixed, where no tensor has them twice."""
        found = self._matched_heads(arrays, reference, "identity")
        return from_blocks(found.element, self.symmetry), found.sweeps

    def _matched_heads(self, arrays: Arrays, reference: Arrays, start: str) -> Matched:
        assert self._within is not None
        theirs, ours = ({name: given[name] for name in self._permuted} for given in (reference, arrays))
        return Matcher(theirs, self._within).match(ours, start=start)

    def _others(self, arrays: Arrays, reference: Arrays) -> tuple[GroupElement, NDArray[np.int64]]:
        """Return better elements that keep the order of heads within blocks."""
        found = Matcher(reference, self._unnested).match(arrays, start="identity")
        return from_unnested(found.element, self.symmetry), found.sweeps

    def _bound(self, arrays: Arrays) -> NDArray[np.float64]:
        """Return (K,) an upper bound on ``<A, g B>``: with matrices the sum of the products of the tensors' norms."""
        total = np.zeros(len(next(iter(arrays.values()))))
        if self._unnested.has_matrices:
            for name, reference in self._reference.items():
                total += np.sqrt(products(reference, reference) * products(arrays[name], arrays[name]))
            return total
        others = {name: array for name, array in self._reference.items() if name not in self._permuted}
        if others:
            total += Matcher(others, self._unnested).bound({name: arrays[name] for name in others})[0]
        for name in self._permuted:
            ordered = (np.sort(given[name].reshape(len(given[name]), -1)) for given in (self._reference, arrays))
            total += products(*ordered)
        return total

    def _with_means(self, arrays: Arrays) -> dict[str, NDArray[np.floating]]:
        """Return the networks with the mean of the heads of a block in place of each."""
        made, moving = dict(arrays), moving_within(self.symmetry)
        for name in self._permuted:
            array = arrays[name].copy()
            for action in self.symmetry.actions_on(name):
                channels = by_channel(array, action)
                size = channels.shape[2]
                for item in listings(action, self.symmetry):
                    if (leader := self.symmetry.leader(item.group)).id not in moving:
                        continue
                    index = slice(None), item.places // size, item.places % size
                    held = channels[index]
                    by_block = held.reshape(len(array), getattr(leader.perm, "g", 1), -1, *held.shape[2:])
                    mean = np.broadcast_to(by_block.mean(axis=2, keepdims=True), by_block.shape)
                    channels[index] = mean.reshape(held.shape)
            made[name] = array
        return made

    def _placed(self, arrays: Arrays, element: GroupElement) -> dict[str, NDArray[np.floating]]:
        """Return the networks under elements."""
        return {
            name: placed(array, self.symmetry.actions_on(name), element, self.symmetry, orthogonal=False)
            for name, array in arrays.items()
        }

    def _value(self, arrays: Arrays, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``<A, B>`` (rows,)."""
        return sum((products(array, arrays[name]) for name, array in self._rows(rows).items()), np.zeros(len(rows)))

    def _rows(self, rows: NDArray[np.int64]) -> Arrays:
        """Return the references of some networks."""
        shared = len(next(iter(self._reference.values()))) == 1
        return self._reference if shared else take_rows(self._reference, rows)


def moves_two_axes(symmetry: Symmetry, tensors: Collection[str]) -> bool:
    """Whether one of these tensors has permutations, without matrices, of a group on two axes, as of recurrent layers.

    Version 1 of aligned variants left such groups in the order in which they started.
    """
    within = within_blocks(symmetry)
    tables = [*([] if symmetry.has_matrices else [unnested(symmetry)]), *([within] if within else [])]
    return any(joint.quadratic for table in tables for joint in joint_groups_of(table, tensors))

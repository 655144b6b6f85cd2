"""Signs of groups that are permuted together, where a gain takes the sign of what it normalises beside its own.

A stream under RMSNorm with channels x and a gain g has the products ``e <a, x>``, ``e n <b, g>`` and ``n <c, y>`` with
a reference, for the signs e of the stream and n of the gain's own channels y. The groups, joined by the gains that two
of them share, are a graph. Where it is a forest, the best signs follow from its leaves, channel pair by channel pair.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import AxisAction, Fixed, Group, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.kinds.registry import is_balanced

Terms = Mapping[frozenset[str], NDArray[np.float64]]
"""The products of channels with a reference's, by the groups (none, one or two) whose signs multiply them."""


def takes_signs(action: AxisAction, members: Sequence[Group]) -> bool:
    """Whether an action's signs are those of groups that move with the other ones, channel by channel."""
    places = [{(item.offset, item.inner, item.count) for item in items} for items in (action.segments, action.signs)]
    return places[0] == places[1] and action.groups <= {member.id for member in members}


def signs_on(action: AxisAction, group: str, signed: set[str], position: int | None = None) -> frozenset[str]:
    """Return the groups whose signs multiply the channels that a group has on an axis, or those around one position."""
    taken = (
        item.group for item in action.signs if position is None or 0 <= position - item.offset < item.inner * item.count
    )
    return frozenset({group, *taken}) & signed


def signs_that_meet(symmetry: Symmetry) -> set[str]:
    """Return the groups that may be -1 in a tensor with blocks of matrices, or other signs, on another axis."""
    found: set[str] = set()
    for name in dict.fromkeys(action.tensor for action in symmetry.actions):
        for one, other in itertools.permutations(symmetry.actions_on(name), 2):
            beside = [symmetry[item] for item in other.groups]
            if any(is_balanced(symmetry.leader(item.id)) or item.flips for item in beside):
                found |= {item for item in one.groups if symmetry[item].flips}
    return found


def moved_signs(symmetry: Symmetry) -> bool:
    """Whether a table with matrices has signs of which version 1 of alignment missed some, in disguised copies too.

    So it has where gains take them; where they meet blocks or other signs in a tensor; or where they are of channels
    that keep their order, or that are permuted in blocks with others.
    """
    if not symmetry.has_matrices:
        return False
    taken = {item.group for action in symmetry.actions for item in action.signs}
    alone = [
        group.id
        for group in symmetry.groups
        if group.flips and (isinstance(symmetry.leader(group.id).perm, Fixed | Wreath) or group.n == 1)
    ]
    return bool(alone or signs_that_meet(symmetry)) or any(symmetry[name].flips for name in taken)


def is_forest(actions: Sequence[AxisAction], signed: set[str]) -> bool:
    """Whether the graph of the signs that two groups share on these axes has no circle."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while name in root:
            name = root[name]
        return name

    pairs = {
        signs_on(action, item.group, signed, item.offset)
        for action in actions
        if action.signs
        for item in action.segments
    }
    for pair in pairs:
        if len(pair) == 2:
            first, second = map(find, pair)
            if first == second:
                return False
            root[first] = second
    return True


def greatest(terms: Terms) -> NDArray[np.float64]:
    """Return the greatest sum of terms under any signs, entry by entry."""
    return _solve(terms)[0]


def best_signs(terms: Terms) -> dict[str, NDArray[np.float64]]:
    """Return the signs of each group that make the sum greatest, entry by entry; 1 where both are as good."""
    return _solve(terms)[1]


def value_of(terms: Terms, scales: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the sum of terms under signs."""
    total = np.zeros(next(iter(terms.values())).shape)
    for names, term in terms.items():
        factor = np.ones_like(term)
        for name in names:
            factor = factor * scales[name]
        total += factor * term
    return total


def _solve(terms: Terms) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    shape = next(iter(terms.values())).shape
    zero = np.zeros(shape)
    names = sorted(set[str]().union(*terms))
    joined: dict[str, list[str]] = {name: [] for name in names}
    for pair in (pair for pair in terms if len(pair) == 2):
        first, second = sorted(pair)
        joined[first].append(second)
        joined[second].append(first)
    # each group behind the one by which it was reached, so that leaves come last
    parents: dict[str, str | None] = {}
    for name in names:
        if name not in parents:
            parents[name] = None
            waiting = [name]
            while waiting:
                here = waiting.pop()
                for other in joined[here]:
                    if other not in parents:
                        parents[other] = here
                        waiting.append(other)
    order = list(parents)
    # each group's sums for the signs 1 and -1
    own = {name: [terms.get(frozenset({name}), zero).copy(), -terms.get(frozenset({name}), zero)] for name in names}
    total = terms.get(frozenset(), zero).copy()
    for name in reversed(order):
        parent = parents[name]
        if parent is None:
            total += np.maximum(*own[name])
            continue
        shared = terms[frozenset({name, parent})]
        own[parent][0] += np.maximum(own[name][0] + shared, own[name][1] - shared)
        own[parent][1] += np.maximum(own[name][0] - shared, own[name][1] + shared)
    found: dict[str, NDArray[np.float64]] = {}
    for name in order:
        plus, minus = own[name]
        parent = parents[name]
        if parent is not None:
            shared = terms[frozenset({name, parent})] * found[parent]
            plus, minus = plus + shared, minus - shared
        found[name] = np.where(minus > plus, -1.0, 1.0)
    return total, found

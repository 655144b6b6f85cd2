"""Signs of groups that are permuted together, where a gain takes the sign of what it normalises beside its own.

A stream under RMSNorm with channels x and a gain g has the products ``e <a, x>``, ``e n <b, g>`` and ``n <c, y>`` with
a reference, for the signs e of the stream and n of the gain's own channels y. The groups and the gains that two of them
share are a graph, in which signs that are best together follow from its leaves, channel pair by channel pair.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.schema.symmetry import Symmetry

Terms = Mapping[frozenset[str], NDArray[np.float64]]
"""By the groups whose signs multiply them, none, one or two, the products of channels with a reference's."""


def takes_signs(action: AxisAction, members: Sequence[Group], symmetry: Symmetry) -> bool:
    """Whether an action's signs are those of one group that moves with the other one, channel by channel."""
    own, others = ({item.group for item in items} for items in (action.segments, action.signs))
    places = [[(item.offset, item.inner, item.count) for item in items] for items in (action.segments, action.signs)]
    together = {member.id for member in members}
    return len(own) == len(others) == 1 and own | others <= together and places[0] == places[1]


def signs_on(action: AxisAction, group: str, signed: set[str]) -> frozenset[str]:
    """The groups whose signs multiply the channels that a group has on an axis."""
    return frozenset({group, *(item.group for item in action.signs)}) & signed


def moved_signs(symmetry: Symmetry) -> bool:
    """Whether gains of a table take the signs of other groups that may be -1."""
    return (
        any(symmetry[item.group].flips for action in symmetry.actions for item in action.signs)
        and symmetry.has_matrices
    )


def is_forest(actions: Sequence[AxisAction], signed: set[str]) -> bool:
    """Whether the signs that two groups share on these axes join no groups in a circle."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while name in root:
            name = root[name]
        return name

    for pair in {signs_on(action, action.segments[0].group, signed) for action in actions if action.signs}:
        if len(pair) == 2:
            first, second = map(find, pair)
            if first == second:
                return False
            root[first] = second
    return True


def greatest(terms: Terms) -> NDArray[np.float64]:
    """The greatest sum of terms under any signs, entry by entry."""
    return _solve(terms)[0]


def best_signs(terms: Terms) -> dict[str, NDArray[np.float64]]:
    """The signs of each group that make the sum the greatest, entry by entry; 1 where both are as good."""
    return _solve(terms)[1]


def value_of(terms: Terms, scales: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """The sum of terms under signs."""
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
    # of each group's sums for the signs 1 and -1
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

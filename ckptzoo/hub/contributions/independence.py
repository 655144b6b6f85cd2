"""Whether contributed checkpoints started from the initial weights of a member of the zoo."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ckptzoo.derive.independence import IndependenceTest
from ckptzoo.derive.near_copies import origins
from ckptzoo.errors import ZooError
from ckptzoo.hub.contributions.report import Check
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.permutation_tests import holm, independence_of_all
from ckptzoo.text import Progress, counted, counter

NAME = "independence"
LEVEL = 0.01
"""The level of what is told, over all contributed checkpoints together."""
MAX_MEMBERS, MAX_TESTED = 512, 64
"""Members of the zoo, and contributed checkpoints, that are compared at most: spread evenly."""
MAX_PERMUTATIONS = 9_999
_SHOWN = 8
"""Pairs that are named."""


def check_independence(
    zoo: Zoo, target: TargetZoo, *, without: Collection[str] = (), progress: Progress | None = None
) -> Check | None:
    """Test contributed checkpoints against the members of a zoo, one of each origin; None where this cannot be done.

    ``without`` are contributed checkpoints that are known to be copies. What depends on a member passes, as fine-tuned
    networks and draws may: the check says so, as studies of posteriors take members for independent ones.
    """
    kept = _last([row for row, name in enumerate(zoo.ids) if name not in without], zoo, MAX_TESTED)
    if not len(kept) or not len(target.zoo) or not target.small:
        return None
    try:
        test = IndependenceTest(target.zoo, permutations=min(MAX_PERMUTATIONS, max(999, 100 * len(kept))), seed=0)
        advance = counter(len(kept), progress)
        members = _last(list(range(len(target.zoo))), target.zoo, MAX_MEMBERS)
        theirs = test.unit(target.zoo, members)
        found: list[tuple[float, int]] = []
        for number, row in enumerate(kept):
            mine = test.unit(zoo, np.array([row]))
            found.append(independence_of_all(test.neurons.similarities(mine, theirs), test.orders, seed=number))
            advance()
    except ZooError:
        # without a table, with too few neurons, and of Gaussians nothing can be tested
        return None
    adjusted = holm(np.array([p for p, _ in found]))
    ids, names = zoo.ids, target.zoo.ids
    dependent = [
        f"{ids[kept[at]]} and {names[members[found[at][1]]]} (p {adjusted[at]:.2g})"
        for at in np.argsort(adjusted, kind="stable").tolist()
        if adjusted[at] <= LEVEL
    ]
    compared = f"{counted(len(kept), 'checkpoint')} against {counted(len(members), 'member')}"
    if not dependent:
        return Check(NAME, "passed", f"no sign of initial weights shared with members of the zoo: {compared}")
    more = f"; and {len(dependent) - _SHOWN:,} more" if len(dependent) > _SHOWN else ""
    said = f"not independent of a member, as checkpoints that started from one: {'; '.join(dependent[:_SHOWN])}{more}"
    return Check(NAME, "passed", f"{said}. Studies of posteriors should count each such pair once")


def _last(rows: list[int], zoo: Zoo, limit: int) -> NDArray[np.int64]:
    """Return the last of some rows of each origin, of at most so many origins, spread evenly."""
    every = np.array(rows, np.int64)
    if not len(every):
        return every
    _, last = np.unique(origins(zoo)[every][::-1], return_index=True)
    every = np.sort(every[len(every) - 1 - last])
    return every[np.unique(np.linspace(0, len(every) - 1, min(len(every), limit)).round().astype(np.int64))]

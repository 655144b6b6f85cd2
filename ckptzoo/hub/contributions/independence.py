"""Whether contributed checkpoints started from the initial weights of a member of the zoo."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ckptzoo.derive.independence import IndependenceTest
from ckptzoo.derive.near_copies import origins
from ckptzoo.errors import RemoteError, ZooError
from ckptzoo.hub.contributions.report import ReviewCheck
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from ckptzoo.loader.flags import usable_rows
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.permutation_tests import holm, independence_of_all
from ckptzoo.text import Progress, counted, counter

NAME = "independence"
LEVEL = 0.01
"""The level of what is reported, over all contributed checkpoints together."""
MAX_MEMBERS, MAX_TESTED = 512, 64
"""Members of the zoo, and contributed checkpoints, that are compared at most: spread evenly."""
MAX_PERMUTATIONS = 9_999
_SHOWN = 8
"""Pairs that are named."""


def check_independence(
    zoo: Zoo, target: TargetZoo, *, without: Collection[str] = (), progress: Progress | None = None
) -> ReviewCheck | None:
    """Test contributed checkpoints against the members of a zoo, one of each origin; None where no test exists.

    ``without`` are contributed checkpoints that are known to be copies; they are left out, as is what is not finite or
    diverged. The check is not done where something cannot be read, or no p-value could be small enough. What depends
    on a member passes, as fine-tuned networks and draws may: the check says so, as studies of posteriors take members
    for independent ones.
    """
    rows = zip(zoo.ids, usable_rows(zoo).tolist(), strict=True)
    kept = _last([row for row, (name, used) in enumerate(rows) if used and name not in without], zoo, MAX_TESTED)
    if not len(kept) or not target.small:
        return None
    members = _last(np.flatnonzero(usable_rows(target.zoo)).tolist(), target.zoo, MAX_MEMBERS)
    if not len(members):
        return None
    try:
        test = IndependenceTest(target.zoo, permutations=min(MAX_PERMUTATIONS, max(999, 100 * len(kept))), seed=0)
    except RemoteError as error:
        return ReviewCheck(NAME, "not done", str(error))
    except ZooError:
        # without a table, with too few neurons, and of Gaussians nothing can be tested
        return None
    # 10**log10 is above the greatest float from 171 neurons on
    permutations = round(min(len(test.orders[0]), 10 ** min(test.neurons.log10, 18)))
    if len(kept) / permutations > LEVEL:
        said = f"{counted(len(kept), 'checkpoint')} and {permutations:,} permutations of neurons"
        return ReviewCheck(
            NAME, "not done", f"{said}: no p-value can be {LEVEL:g} or less, adjusted for all checkpoints"
        )
    advance = counter(len(kept), progress)
    found: list[tuple[float, int]] = []
    try:
        theirs = test.unit(target.zoo, members)
        for number, row in enumerate(kept):
            mine = test.unit(zoo, np.array([row]))
            found.append(independence_of_all(test.neurons.similarities(mine, theirs), test.orders, seed=number))
            advance()
    except ZooError as error:
        return ReviewCheck(NAME, "not done", str(error))
    adjusted = holm(np.array([p for p, _ in found]))
    ids, names = zoo.ids, target.zoo.ids
    dependent = [
        f"{ids[kept[at]]} and {names[members[found[at][1]]]} (p {adjusted[at]:.2g})"
        for at in np.argsort(adjusted, kind="stable").tolist()
        if adjusted[at] <= LEVEL
    ]
    compared = f"{counted(len(kept), 'checkpoint')} against {counted(len(members), 'member')}"
    if not dependent:
        return ReviewCheck(NAME, "passed", f"no sign of initial weights shared with members of the zoo: {compared}")
    more = f"; and {len(dependent) - _SHOWN:,} more" if len(dependent) > _SHOWN else ""
    said = f"not independent of a member, as checkpoints that started from one: {'; '.join(dependent[:_SHOWN])}{more}"
    return ReviewCheck(NAME, "passed", f"{said}. Studies of posteriors should count each such pair once")


def _last(rows: list[int], zoo: Zoo, limit: int) -> NDArray[np.int64]:
    """Return the last of some rows of each origin, of at most ``limit`` origins, spread evenly."""
    every = np.array(rows, np.int64)
    if not len(every):
        return every
    _, last = np.unique(origins(zoo)[every][::-1], return_index=True)
    every = np.sort(every[len(every) - 1 - last])
    return every[np.unique(np.linspace(0, len(every) - 1, min(len(every), limit)).round().astype(np.int64))]

"""Steps that are missing from a series of steps at regular distances or ratios."""

import itertools
from collections import Counter
from collections.abc import Sequence

_MOST = 5
"""Steps in a row that may be missing for the two around them to tell which."""
_EQUAL = 3
"""Equal distances or ratios elsewhere that make a series regular, where one side of a gap has no neighbour."""


def missing_steps(steps: Sequence[int]) -> list[int]:
    """Return the steps that a series lacks.

    Between two neighbours steps are missing where their distance is a whole multiple of both distances beside it,
    which are equal, or, with ratios in place of distances, a whole power. At the ends, where one side has no neighbour,
    all other distances (or ratios) must be equal. Steps that grow more distant, as from powers of two to multiples of
    1,000, are regular.

    >>> missing_steps([0, 100, 200, 400, 500]), missing_steps([1, 2, 4, 16, 32])
    ([300], [8])
    >>> missing_steps([0, 1, 2, 4, 8, 16, 512, 1000, 2000, 3000, 3200])
    []
    """
    ordered = sorted(set(steps))
    found = set[int]()
    for at in range(len(ordered) - 1):
        found.update(_by_distance(ordered, at) or _by_ratio(ordered, at))
    return sorted(found)


def missing_beside(runs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each run the steps that it lacks, and that more than half of the runs have; three runs at least."""
    if len(runs) < 3:
        return [[] for _ in runs]
    counts = Counter(step for run in runs for step in set(run))
    common = {step for step, count in counts.items() if 2 * count > len(runs)}
    return [sorted(common - set(run)) if run and common else [] for run in runs]


def _by_distance(steps: Sequence[int], at: int) -> list[int]:
    distances = [b - a for a, b in itertools.pairwise(steps)]
    beside = [distances[other] for other in (at - 1, at + 1) if 0 <= other < len(distances)]
    if len(beside) == 1:
        others = [*distances[:at], *distances[at + 1 :]]
        beside = beside if len(others) >= _EQUAL and len(set(others)) == 1 else []
    if not beside or len(set(beside)) > 1:
        return []
    times, rest = divmod(distances[at], beside[0])
    return [steps[at] + beside[0] * number for number in range(1, times)] if not rest and 1 < times <= _MOST + 1 else []


def _by_ratio(steps: Sequence[int], at: int) -> list[int]:
    low, high = steps[at], steps[at + 1]
    before, after = steps[at - 1] if at else 0, steps[at + 2] if at + 2 < len(steps) else 0
    if before <= 0 and after <= 0:
        return []
    if before > 0 and after > 0:
        # the ratio of large numbers is rounded least
        ratio = after / high
        if abs(low - before * ratio) > 1 + ratio:
            return []
    else:
        positive = [step for step in steps if step > 0]
        others = [b / a for a, b in itertools.pairwise(positive) if a != low]
        ratio = others[-1] if len(others) >= _EQUAL else 0.0
        if not ratio or max(others) - min(others) > 0.02 * ratio:
            return []
    if low <= 0 or ratio <= 1:
        return []
    for times in range(2, _MOST + 2):
        slack = 1 + ratio**times
        between = [round(low * ratio**number) for number in range(1, times)]
        # whole powers are exact; elsewhere rounding must not explain that one is missing
        is_exact = ratio == int(ratio) and high == low * ratio**times
        if is_exact or (abs(high - low * ratio**times) <= slack and (between[0] - low) > 2 * (1 + ratio)):
            return between
    return []

"""Test accuracies of members along their training."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.explorer.columns import numbers, sampled
from ckptzoo.loader.zoo import Zoo

MAX_MEMBERS = 256
"""Members that are drawn; of more a sample is taken."""
MIN_STEPS = 2
"""The smallest number of measured steps of a member that are a trajectory."""


@dataclass(frozen=True, eq=False)
class MemberTrajectories:
    """Accuracies of some members at their steps.

    ``rows`` (M,) are the positions of the members' last steps among those of the page; ``steps`` (S,) int64 rise;
    ``values`` (M, S) float64 are NaN where a member has no such checkpoint or nothing was measured. ``total`` counts
    the members of the page with several steps.
    """

    rows: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    total: int


def trajectories(zoo: Zoo, shown: Zoo) -> MemberTrajectories | None:
    """Return the trajectories of a zoo with every checkpoint, for the last steps ``shown`` of the members of the page;
    None where no member has ``MIN_STEPS`` measured steps.
    """
    accuracies, _ = numbers(zoo.column("test_accuracy"))
    step, without_step = numbers(zoo.column("step"))
    members = np.array(zoo.column("member").to_pylist(), dtype=object)
    is_known = np.isfinite(accuracies) & ~without_step
    counts: dict[str, int] = {}
    for member in members[is_known]:
        counts[member] = counts.get(member, 0) + 1
    own = shown.column("member").to_pylist()
    moving = np.array([counts.get(member, 0) >= MIN_STEPS for member in own], bool)
    positions = np.flatnonzero(moving)
    if not len(positions):
        return None
    rows = positions[sampled(shown.column("id").filter(pa.array(moving)), MAX_MEMBERS)]
    number = {own[row]: index for index, row in enumerate(rows)}
    owners = np.array([number.get(member, -1) for member in members])
    is_drawn = is_known & (owners >= 0)
    steps, column = np.unique(step[is_drawn].astype(np.int64), return_inverse=True)
    values = np.full((len(rows), len(steps)), np.nan)
    values[owners[is_drawn], column] = accuracies[is_drawn]
    return MemberTrajectories(rows, steps, values, len(positions))

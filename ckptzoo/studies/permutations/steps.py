"""Which steps of which members a zoo keeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import ZooError
from ckptzoo.loader.zoo import Zoo

Pair = tuple[int, int]
"""Two steps, the earlier one first."""


@dataclass(frozen=True, eq=False)
class Kept:
    """The kept steps of the members of a zoo.

    Parameters
    ----------
    steps : all of them, ascending.
    rows : (M, S) the checkpoint of each member at each step, as its place in the zoo; -1 where there is none. Members
        are those with two steps or more, in the order of the zoo.
    """

    steps: tuple[int, ...]
    rows: NDArray[np.int64]


def compared(steps: Sequence[int]) -> dict[str, list[Pair]]:
    """Which of these ascending steps are compared: each with the one before, the first with all, all with the last."""
    first, last = steps[0], steps[-1]
    return {
        "from the one before": list(pairwise(steps)),
        "from the first": [(first, step) for step in steps[1:]],
        "to the last": [(step, last) for step in steps[:-1]],
    }


def kept(zoo: Zoo) -> Kept:
    """The kept steps of a zoo, all of whose checkpoints have a step.

    Raises
    ------
    ZooError
        No member has two, or one has two checkpoints of one step.
    """
    names = zoo.metadata["member"].combine_chunks().dictionary_encode()
    members, every = names.indices.to_numpy(), zoo.metadata["step"].to_numpy()
    steps, places = np.unique(every, return_inverse=True)
    count = len(names.dictionary)
    rows = np.full((count, len(steps)), -1, np.int64)
    rows[members, places] = np.arange(len(zoo))
    if (rows >= 0).sum() < len(zoo):
        again = np.setdiff1d(np.arange(len(zoo)), rows)[0]
        raise ZooError(
            f"{zoo.name}: member {names[int(again)].as_py()!r}: expected one checkpoint of step {every[again]}, got "
            "several. Select one of them with --where."
        )
    several = (rows >= 0).sum(axis=1) > 1
    if not several.any():
        raise ZooError(
            f"{zoo.name}: kept steps: expected a member with two or more, got one step of each of {count} members. "
            "Build a zoo that keeps more: python -m builders build ... --keep-steps 0,10,100."
        )
    used = (rows[several] >= 0).any(axis=0)
    return Kept(tuple(steps[used].tolist()), rows[several][:, used])

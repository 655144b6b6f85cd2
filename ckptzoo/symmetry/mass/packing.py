"""Splits tensors of which one axis both writes and reads channels, such as packed queries, keys and values."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ckptzoo.schema.groups import AxisAction, Segment
from ckptzoo.schema.symmetry import Symmetry


def unpacked(arrays: Mapping[str, np.ndarray], symmetry: Symmetry) -> tuple[dict[str, np.ndarray], Symmetry]:
    """Return weights (K, *shape) and table with each such tensor cut in two: what writes channels, and what reads them.

    The parts have ``:written`` and ``:read`` behind the tensor's name, and are views of it where they are slices; the
    table has the same groups. Both are the given ones where nothing is packed.
    """
    actions = list(symmetry.actions)
    if all(len(action.parts) == 1 for action in actions):
        return dict(arrays), symmetry
    made = dict(arrays)
    while (action := next((item for item in actions if len(item.parts) > 1), None)) is not None:
        array = made.pop(action.tensor)
        own = [act for act in actions if act.tensor == action.tensor]
        actions = [act for act in actions if act.tensor != action.tensor]
        written, read = sorted(action.parts, key=lambda part: -part.exponent)
        inverse = _positions(read)
        # positions that nothing acts on go with what writes
        for part, name, places in (
            (written, "written", np.setdiff1d(np.arange(array.shape[action.axis + 1]), inverse)),
            (read, "read", inverse),
        ):
            tensor = f"{action.tensor}:{name}"
            made[tensor] = _taken(array, places, action.axis + 1)
            actions += [_moved(part, places) if act is action else act for act in own]
            actions[-len(own) :] = [replace(act, tensor=tensor) for act in actions[-len(own) :]]
    return made, Symmetry(symmetry.groups, tuple(actions))


def _positions(action: AxisAction) -> np.ndarray:
    """Return all positions that an action's segments have, in order."""
    runs = [item.offset + np.arange(item.inner * item.count) for item in action.segments]
    return np.sort(np.concatenate(runs))


def _moved(action: AxisAction, places: np.ndarray) -> AxisAction:
    """Return the action where its positions are numbered among these places."""
    segments: list[Segment] = []
    for item in action.segments:
        segments.append(replace(item, offset=int(np.searchsorted(places, item.offset))))
    return replace(action, segments=tuple(segments))


def _taken(array: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """Return some positions of an axis, without a copy where they stand side by side."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return array[(slice(None),) * axis + (slice(int(places[0]), int(places[-1]) + 1),)]
    return np.take(array, places, axis=axis)

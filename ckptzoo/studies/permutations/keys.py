"""The keys by which gauges order channels, from raw weights."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ckptzoo.spec.symmetry import Like, Symmetry
from ckptzoo.symmetry import canonicalize, ordering_keys
from ckptzoo.symmetry.layout import Stacked, by_channel, positions

Keys = dict[str, NDArray[np.float64]]
"""Group id to (K, n), for raw channels in their raw order; groups that are ``Like`` another are left out."""


def keys_of(variant: str) -> Callable[[Stacked, Symmetry], Keys]:
    """The keys that decide a variant's orders: first weights for ``first-weight``, else those of ``canonical``."""
    return first_weights if variant == "first-weight" else ordering_keys


def first_weights(weights: Stacked, symmetry: Symmetry) -> Keys:
    """The first of each channel's incoming weights of unit norm, the channels before it in order.

    Parameters
    ----------
    weights : raw tensors by name, (K, *shape), all finite.

    Raises
    ------
    SymmetryError
        The gauge ``first-weight`` is not defined for the table.
    """
    made = canonicalize(weights, symmetry, gauge="first-weight")
    found: Keys = {}
    for group in symmetry.groups:
        if isinstance(group.perm, Like):
            continue
        writers = [
            action
            for action in symmetry.actions
            if action.exponent == 1 and any(item.group == group.id for item in action.segments)
        ]
        action = min(writers, key=lambda action: action.role not in ("out", "gain"))
        channels = by_channel(np.asarray(made.weights[action.tensor]), action)
        places = next(places for name, places in positions(action, symmetry) if name == group.id)
        first = channels.reshape(len(channels), channels.shape[1] * channels.shape[2], -1)[:, places[:, 0], 0]
        keys = np.empty(first.shape)
        np.put_along_axis(keys, made.element.perms[group.id], first.astype(np.float64), 1)
        found[group.id] = keys
    return found

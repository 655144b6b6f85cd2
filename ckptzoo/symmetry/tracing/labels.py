"""What is known of a tensor's entries: which channel they belong to, how they scale, and how they came about."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.tracing.forest import Atoms


@dataclass(frozen=True)
class Labels:
    """Labels of a tensor's entries, in arrays that broadcast to its shape: of size 1 along axes where nothing varies.

    Parameters
    ----------
    channel : atoms of channels; -1 where the entry does not depend on the order of any.
    scale : atoms of scales; -1 where no scale changes the entry.
    path : numbers that are equal where the same operations led from parameters and inputs to the entry.
    power : the entries are multiplied by their scales to this power.
    """

    channel: Atoms
    scale: Atoms
    path: Atoms
    power: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of channels and scales together."""
        return np.broadcast_shapes(self.channel.shape, self.scale.shape)

    @property
    def varying(self) -> tuple[int, ...]:
        """Axes along which channels or scales differ."""
        return tuple(axis for axis, size in enumerate(self.shape) if size > 1)

    @property
    def free(self) -> bool:
        """Whether no symmetry changes any entry."""
        return bool((self.channel < 0).all() and (self.scale < 0).all())

    def each(self, change: Callable[[Atoms], Atoms]) -> "Labels":
        """The same change of all three arrays."""
        return Labels(change(self.channel), change(self.scale), change(self.path), self.power)

    def aligned(self, ndim: int) -> "Labels":
        """With axes of size 1 in front, as in broadcasting."""
        return self.each(lambda item: item.reshape((1,) * (ndim - item.ndim) + item.shape))

    def line(self, axis: int, size: int) -> "Labels":
        """One-dimensional labels along one axis, where they vary along no other one."""
        return self.each(lambda item: np.broadcast_to(np.moveaxis(item, axis, -1).reshape(-1), size))

    def across(self, axis: int, ndim: int) -> "Labels":
        """One-dimensional labels as those of a tensor along one of its axes."""
        return self.each(lambda item: item.reshape([-1 if at == axis else 1 for at in range(ndim)]))


def still(ndim: int, path: int = 0) -> Labels:
    """Labels of what no symmetry changes."""
    none = np.full((1,) * ndim, -1, np.int64)
    return Labels(none, none, np.full((1,) * ndim, path, np.int64))


class Paths:
    """Numbers for histories: the same steps from the same starts have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {(): 0}

    def of(self, *facts: Hashable) -> int:
        """The number of one history."""
        return self._numbers.setdefault(facts, len(self._numbers))

    def step(self, what: Hashable, *befores: Atoms) -> Atoms:
        """The histories of an operation's results, entry by entry, from those of what it takes."""
        arrays = np.broadcast_arrays(*befores)
        rows = np.stack([array.ravel() for array in arrays], axis=1)
        different, index = np.unique(rows, axis=0, return_inverse=True)
        numbers = np.array([self.of(what, *row) for row in different.tolist()], np.int64)
        return numbers[index.ravel()].reshape(arrays[0].shape)

"""What a trace learns on its way: which channels and scales are tied, where they sit in the tensors, and why.

What is known of a tensor's entries: which channel they belong to, how they scale, and how they came about.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.tracing.union_find import NodeIds, UnionFind


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

    channel: NodeIds
    scale: NodeIds
    path: NodeIds
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

    def each(self, change: Callable[[NodeIds], NodeIds]) -> "Labels":
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


def constant_labels(ndim: int, path: int = 0) -> Labels:
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

    def step(self, what: Hashable, *befores: NodeIds) -> NodeIds:
        """The histories of an operation's results, entry by entry, from those of what it takes."""
        arrays = np.broadcast_arrays(*befores)
        rows = np.stack([array.ravel() for array in arrays], axis=1)
        different, index = np.unique(rows, axis=0, return_inverse=True)
        numbers = np.array([self.of(what, *row) for row in different.tolist()], np.int64)
        return numbers[index.ravel()].reshape(arrays[0].shape)


FIXED, OUTPUT = 0, 1
"""Marks of channels: in place for a reason, and an output of the network."""
POSITIVE, SIGN, DEAD = 0, 1, 2
"""Marks of scales: positive factors alone, signs alone, none at all."""


@dataclass
class AxisPlacement:
    """Where channels sit on an axis of a tensor.

    Parameters
    ----------
    tensor, axis : whose axis.
    channel, scale, path : labels of its positions, through all blocks.
    exponent, role, in_mass, blocks, eps : as in ``AxisAction``.
    """

    tensor: str
    axis: int
    channel: NodeIds
    scale: NodeIds
    path: NDArray[np.int64]
    exponent: int
    role: str
    in_mass: bool
    blocks: int
    eps: float


@dataclass
class ChannelBlocks:
    """Channels that an operation takes in blocks: those of one block stay together.

    Parameters
    ----------
    name : of the module or tensor.
    members : (blocks, channels a block) of each side, one or two.
    places : the tensor's axes that are read and written in blocks; none where no tensor has them.
    """

    name: str
    members: tuple[NodeIds, ...]
    places: tuple[tuple[str, int], ...] = ()


@dataclass
class Constraints:
    """Everything that is known, and the words of the operation that is being looked at."""

    here: str = ""
    channels: UnionFind = field(default_factory=lambda: UnionFind(2))
    scales: UnionFind = field(default_factory=lambda: UnionFind(3))
    paths: Paths = field(default_factory=Paths)
    places: dict[tuple[str, int], AxisPlacement] = field(default_factory=dict)
    blocks: list[ChannelBlocks] = field(default_factory=list)
    sums: list[Labels] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def alive(self, scale: NodeIds) -> NDArray[np.bool_]:
        """Which scales some factor other than 1 is left for."""
        dead, positive, sign = (self.scales.marks(scale, kind) >= 0 for kind in (DEAD, POSITIVE, SIGN))
        return (scale >= 0) & ~dead & ~(positive & sign)

    def forbid_scale(self, scale: NodeIds, why: str) -> None:
        """No factors for these scales."""
        self.scales.mark(scale, DEAD, self.reason(why))

    def only(self, scale: NodeIds, kind: int, why: str) -> None:
        """Factors of one kind for these scales: ``POSITIVE`` or ``SIGN``."""
        self.scales.mark(scale, kind, self.reason(why))

    def fix(self, channel: NodeIds, why: str) -> None:
        """These channels stay in place."""
        self.channels.mark(channel, FIXED, self.reason(why))

    def reason(self, why: str) -> int:
        """The number of a reason: what the operation at hand does."""
        self.reasons.append(f"{self.here} {why}")
        return len(self.reasons) - 1

    def tie_channels(self, one: NodeIds, two: NodeIds, why: str) -> NodeIds:
        """Channels that move together; one beside none stays in place."""
        one, two = np.broadcast_arrays(one, two)
        both = (one >= 0) & (two >= 0)
        self.channels.union(one[both], two[both])
        if (lone := (one >= 0) != (two >= 0)).any():
            self.fix(np.maximum(one, two)[lone], why)
        return np.maximum(one, two) if lone.any() else one

    def tie_scales(self, one: NodeIds, two: NodeIds, why: str) -> NodeIds:
        """Scales that must be the same; one beside none is none."""
        one, two = np.broadcast_arrays(one, two)
        first, second = self.alive(one), self.alive(two)
        both = first & second
        self.scales.union(one[both], two[both])
        if (lone := first != second).any():
            self.forbid_scale(np.where(first, one, two)[lone], why)
        return np.where(both, one, -1)

    def together(self, labels: Labels, axes: tuple[int, ...]) -> Labels:
        """Labels that are the same along some axes, after what lies in line there is tied."""
        if not axes:
            return labels
        why, shape = "takes channels together that lie in line", np.broadcast_shapes(labels.shape, labels.path.shape)
        kept = [size if axis not in axes else 1 for axis, size in enumerate(shape)]
        channel, scale, path = (
            np.moveaxis(np.broadcast_to(item, shape), axes, range(-len(axes), 0)).reshape(math.prod(kept), -1)
            for item in (labels.channel, labels.scale, labels.path)
        )
        channel = self.tie_channels(channel[:, :1], channel, why)[:, 0]
        scale = self.tie_scales(scale[:, :1], scale, why)[:, 0]
        made = Labels(channel, scale, self.paths.step("together", *path.T), labels.power)
        return made.each(lambda item: item.reshape(kept))

    def place(
        self,
        tensor: str,
        axis: int,
        labels: Labels,
        exponent: int,
        role: str,
        *,
        in_mass: bool = False,
        blocks: int = 1,
        eps: float = 0.0,
    ) -> None:
        """Put channels on an axis of a tensor, and tie them to those that sit there already.

        Parameters
        ----------
        labels : one-dimensional, one a position.
        """
        channel, scale, path = (
            np.array(item) for item in np.broadcast_arrays(labels.channel, labels.scale, labels.path)
        )
        if (found := self.places.get((tensor, axis))) is None:
            made = AxisPlacement(tensor, axis, channel, scale, path, exponent, role, in_mass, blocks, eps)
            self.places[tensor, axis] = made
            return
        if found.blocks != blocks:
            raise SymmetryError(
                f"symmetry.trace: {self.here}: expected {found.blocks} groups, as where {tensor!r} was used before, "
                f"got {blocks}. Declare the table by hand, as a ckptzoo.schema.symmetry.Symmetry."
            )
        found.channel = self.tie_channels(found.channel, channel, f"uses {tensor!r} once more, for what stays in place")
        found.path = self.paths.step("again", found.path, path)
        self._scale_again(found, scale, exponent)

    def write(self, tensor: str, axis: int, size: int, role: str, *, in_mass: bool = False, blocks: int = 1) -> Labels:
        """The channels that an axis of a tensor writes, one-dimensional: new ones where nothing is known of it."""
        path = np.array([self.paths.of("written", tensor, axis)])
        if (tensor, axis) not in self.places:
            made = Labels(self.channels.new(size), self.scales.new(size), path)
            self.place(tensor, axis, made, 1, role, in_mass=in_mass, blocks=blocks)
            return made
        found = self.places[tensor, axis]
        held = np.full(size, -1) if found.exponent == 0 else found.scale
        self.place(tensor, axis, Labels(found.channel, held, path), 1, role, blocks=blocks)
        return Labels(found.channel, held, path)

    def fresh(self, where: NDArray[np.bool_]) -> Labels:
        """Channels that nothing is known of, where there shall be some: zeros, which may be taken for anything."""
        channel, scale = (
            np.where(where, forest.new(where.size).reshape(where.shape), -1) for forest in (self.channels, self.scales)
        )
        return Labels(channel, scale, np.zeros(where.shape, np.int64))

    def held(self, count: int, why: str) -> NodeIds:
        """Channels that stay in place."""
        made = self.channels.new(count)
        self.fix(made, why)
        return made

    def ground(self, tensor: str, axis: int, size: int, role: str = "bias") -> None:
        """An axis along which nothing may move."""
        none = np.full(size, -1)
        self.place(tensor, axis, Labels(none, none, np.zeros(1, np.int64)), 1, role)

    def sum_over(self, labels: Labels) -> None:
        """Something that treats the entries alike, such as a sum, loses their channels from sight."""
        self.sums.append(labels)

    def _scale_again(self, found: AxisPlacement, scale: NodeIds, exponent: int) -> None:
        again = f"uses {found.tensor!r} once more"
        if exponent == found.exponent == 0:
            return
        if abs(exponent) != abs(found.exponent):
            for other, its in ((scale, exponent), (found.scale, found.exponent)):
                if its:
                    self.forbid_scale(other, f"{again}, in another way")
            return
        found.scale = self.tie_scales(found.scale, scale, f"{again}, for values that cannot be scaled")
        if exponent != found.exponent:
            self.only(found.scale, SIGN, f"{again}, where it reads what it wrote or writes what it read")

"""The results of a trace: labels of a value's entries, and the constraints that operations put on channels and scales.

``Labels`` belong to one value while the module is traced: which channel each entry is of, which scale multiplies it,
and by which operations it was made. ``Constraints`` outlive the values: which channels move together, which scales are
the same, what may not move or be scaled and why, and on which axes of the state dict's tensors the channels are. The
groups are made of them in ``groups.py``, the symmetry table in ``table.py``.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.tracing.graph import DECLARE_BY_HAND
from ckptzoo.symmetry.tracing.union_find import NodeIds, UnionFind


@dataclass(frozen=True)
class Labels:
    """Labels of a tensor's entries, in arrays that broadcast to its shape: of size 1 along axes where nothing varies.

    Parameters
    ----------
    channel
        nodes of channels; -1 where the entry does not depend on the order of any.
    scale
        nodes of scales; -1 where no scale changes the entry.
    path
        numbers that are equal where the same operations led from parameters and inputs to the entry.
    power
        the entries are multiplied by their scales to this power.
    modulus
        whether they are multiplied by the moduli of their scales, as absolute values are.
    experts
        nodes of channels that stand for experts, of size 1 along all axes but one; None where there are none.
    """

    channel: NodeIds
    scale: NodeIds
    path: NodeIds
    power: float = 1.0
    modulus: bool = False
    experts: NodeIds | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of channels and scales together."""
        return np.broadcast_shapes(self.channel.shape, self.scale.shape)

    @property
    def varying_axes(self) -> tuple[int, ...]:
        """The axes along which channels or scales differ."""
        return tuple(axis for axis, size in enumerate(self.shape) if size > 1)

    @property
    def expert_axes(self) -> tuple[int, ...]:
        """The axis along which experts differ; empty where there are none."""
        return () if self.experts is None else tuple(at for at, size in enumerate(self.experts.shape) if size > 1)

    @property
    def invariant(self) -> bool:
        """Whether no symmetry changes any entry."""
        return bool((self.channel < 0).all() and (self.scale < 0).all())

    def map(self, change: Callable[[NodeIds], NodeIds]) -> "Labels":
        """Return the labels with the same change made to all arrays."""
        experts = None if self.experts is None else change(self.experts)
        channel, scale, path = (change(item) for item in (self.channel, self.scale, self.path))
        return replace(self, channel=channel, scale=scale, path=path, experts=experts)

    def with_ndim(self, ndim: int) -> "Labels":
        """Return the labels with axes of size 1 in front, as in broadcasting."""
        return self.map(lambda item: item.reshape((1,) * (ndim - item.ndim) + item.shape))

    def along_axis(self, axis: int, size: int) -> "Labels":
        """Return the labels along one axis, one-dimensional, where they vary along no other axis."""
        line = replace(self, experts=None)
        return line.map(lambda item: np.broadcast_to(np.moveaxis(item, axis, -1).reshape(-1), size))

    def on_axis(self, axis: int, ndim: int) -> "Labels":
        """Return one-dimensional labels as labels of a tensor of ``ndim`` axes that vary along one of them."""
        return self.map(lambda item: item.reshape([-1 if other == axis else 1 for other in range(ndim)]))


def constant_labels(ndim: int, path: int = 0) -> Labels:
    """Return the labels of what no symmetry changes."""
    none = np.full((1,) * ndim, -1, np.int64)
    return Labels(none, none, np.full((1,) * ndim, path, np.int64))


class Paths:
    """Numbers for histories: the same operations on the same starts have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {(): 0}

    def id_of(self, *facts: Hashable) -> int:
        """Return the number of one history."""
        return self._numbers.setdefault(facts, len(self._numbers))

    def extend(self, operation: Hashable, *paths: NodeIds) -> NodeIds:
        """Return the histories of an operation's results, entry by entry, from those of its arguments."""
        arrays = np.broadcast_arrays(*paths)
        rows = np.stack([array.ravel() for array in arrays], axis=1)
        unique_rows, index = np.unique(rows, axis=0, return_inverse=True)
        numbers = np.array([self.id_of(operation, *row) for row in unique_rows.tolist()], np.int64)
        # numpy 2.0 gives the inverse with an axis another shape than the versions before and after
        return numbers[index.ravel()].reshape(arrays[0].shape)


class ChannelMark(IntEnum):
    """Marks of a channel."""

    FIXED = 0
    """It is fixed for a reason."""
    OUTPUT = 1
    """It is an output of the network."""
    SINGLE = 2
    """An operation that is not linear takes it by itself, so that no matrix may mix it with others."""
    NORMED = 3
    """A norm, or a product with itself, takes it together with others, as orthogonal matrices keep it."""


class ScaleMark(IntEnum):
    """Marks of a scale; one that is positive only and a sign only is none."""

    POSITIVE = 0
    """It is a positive factor."""
    SIGN = 1
    """It is a sign."""
    FORBIDDEN = 2
    """It is 1."""
    NONZERO = 3
    """Its sign counts beside its size, unless another mark forbids it."""


FIXED, OUTPUT, SINGLE, NORMED = ChannelMark
POSITIVE, SIGN, FORBIDDEN, NONZERO = ScaleMark


@dataclass
class AxisPlacement:
    """The channels on one axis of a tensor.

    ``channel``, ``scale`` and ``path`` are labels of its positions, through all blocks; ``exponent``, ``role``,
    ``in_mass``, ``blocks`` and ``eps`` are as in ``AxisAction``. ``uses`` is how often the tensor is used; ``signs``
    are the scales by whose signs the positions of a gain are multiplied, in ``sign_uses`` of the uses. ``gate`` are the
    scales that multiply those in ``scale``, -1 where there is none; None until products are settled
    (scale_products.py), and where no position has one. ``absolute`` says whether the moduli of the scales act, as where
    absolute values are read.
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
    uses: int = 1
    signs: NodeIds | None = None
    sign_uses: int = 0
    gate: NodeIds | None = None
    absolute: bool = False

    @property
    def scales(self) -> tuple[NodeIds, ...]:
        """The scales of values, and of gates where there are some."""
        return (self.scale,) if self.gate is None else (self.scale, self.gate)


@dataclass(frozen=True, eq=False)
class ScaleProduct:
    """Scales of products of two values that are scaled apart, by the ``operation`` that multiplies them.

    ``scale``, ``first`` and ``second`` are the products' own scales, and those of the two values. ``keeps`` says which
    of the two, 0 or 1, keeps its scale where the product has none of its own, -1 for neither; ``value`` which of the
    two a table lists as what the other one, the gate, multiplies; ``apart`` whether no axis of a tensor has the scales
    of both.
    """

    operation: str
    scale: NodeIds
    first: NodeIds
    second: NodeIds
    keeps: int
    value: int
    apart: bool

    @property
    def value_and_gate(self) -> tuple[NodeIds, NodeIds]:
        """Both values, the one that is a gate last."""
        return (self.second, self.first) if self.value else (self.first, self.second)


@dataclass
class ChannelBlocks:
    """Channels that an operation, named by its module or tensor, takes in blocks: those of one block stay together.

    ``members`` are (blocks, channels a block) of each side, one or two; ``axes`` the tensor's axes that are read and
    written in blocks, none where no tensor has them. With ``heads`` they are the heads of an attention: any number of
    sides, which move their blocks together, and among them sides of one channel a block that stand for the heads alone
    and may be on no tensor.
    """

    name: str
    members: tuple[NodeIds, ...]
    axes: tuple[tuple[str, int], ...] = ()
    heads: bool = False


@dataclass
class Constraints:
    """All constraints found so far, by the ``operation`` that is traced at present, as messages and notes name it.

    ``channels`` and ``scales`` say which of them are tied, with their marks, which are numbers of ``reasons``.
    ``blocks`` are those of grouped operations. Of histories, numbered by ``paths``, ``products`` end in a product with
    a weight, without a bias, and ``without_shift`` in a LayerNorm with gains and without shifts. ``products_of_scales``
    are those of values that are scaled apart; ``sums`` are labels of what was summed over, whose channels are in no
    tensor after that; ``notes`` are sentences on the result, for the user; ``shapes`` are those of the tensors of the
    state dict. ``index_bounds`` maps the number of an input that is an index of embeddings to the number of rows of the
    smallest of them. ``head_vectors`` are gains and shifts of the channels in heads, one for all heads: their names and
    roles, in the order of operations.
    """

    operation: str = ""
    channels: UnionFind = field(default_factory=lambda: UnionFind(4))
    scales: UnionFind = field(default_factory=lambda: UnionFind(4))
    paths: Paths = field(default_factory=Paths)
    placements: dict[tuple[str, int], AxisPlacement] = field(default_factory=dict)
    blocks: list[ChannelBlocks] = field(default_factory=list)
    products: set[int] = field(default_factory=set)
    products_of_scales: list[ScaleProduct] = field(default_factory=list)
    sums: list[Labels] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    index_bounds: dict[int, int] = field(default_factory=dict)
    head_vectors: list[tuple[str, str]] = field(default_factory=list)
    without_shift: set[int] = field(default_factory=set)

    def can_scale(self, scale: NodeIds) -> NDArray[np.bool_]:
        """Return which scales may still have a factor other than 1."""
        forbidden, positive, sign = (self.scales.marks(scale, kind) >= 0 for kind in (FORBIDDEN, POSITIVE, SIGN))
        return (scale >= 0) & ~forbidden & ~(positive & sign)

    def any_sign(self, scale: NodeIds) -> NDArray[np.bool_]:
        """Return which scales may be any number but 0, as far as is known."""
        marks = (self.scales.marks(scale, kind) >= 0 for kind in (FORBIDDEN, POSITIVE, SIGN))
        return (scale >= 0) & ~np.logical_or.reduce(tuple(marks))

    def keeps_positive(self, scale: NodeIds) -> NDArray[np.bool_]:
        """Return which scales may be positive numbers alone."""
        return self.can_scale(scale) & (self.scales.marks(scale, POSITIVE) >= 0)

    def keeps_sign(self, scale: NodeIds) -> NDArray[np.bool_]:
        """Return which scales may be 1 and -1 alone."""
        return self.can_scale(scale) & (self.scales.marks(scale, SIGN) >= 0)

    def written_together(self, first: NodeIds, second: NodeIds) -> bool:
        """Whether one axis of a tensor has scales of both."""
        roots = [np.unique(self.scales.find(item[item >= 0])) for item in (first, second)]
        return any(
            all(np.isin(item, self.scales.find(place.scale)).any() for item in roots)
            for place in self.placements.values()
        )

    def written_by_gain(self, scale: NodeIds) -> bool:
        """Whether a gain is the first tensor with these scales."""
        roots = np.unique(self.scales.find(scale[scale >= 0]))
        places = (place for place in self.placements.values() if np.isin(self.scales.find(place.scale), roots).any())
        first = next(places, None)
        return first is not None and first.role == "gain"

    def forbid_scale(self, scale: NodeIds, why: str) -> None:
        """Leave no factor but 1 for these scales."""
        self.scales.mark(scale, FORBIDDEN, self.reason(why))

    def restrict_scale(self, scale: NodeIds, kind: int, why: str) -> None:
        """Leave factors of one kind for these scales: ``POSITIVE`` or ``SIGN``."""
        self.scales.mark(scale, kind, self.reason(why))

    def mark_normed(self, channel: NodeIds, why: str) -> None:
        """Note that an operation takes these channels together, so that orthogonal matrices may mix them."""
        self.channels.mark(channel, NORMED, self.reason(why))

    def fix(self, channel: NodeIds, why: str) -> None:
        """Keep these channels in place."""
        self.channels.mark(channel, FIXED, self.reason(why))

    def reason(self, why: str) -> int:
        """Return the number of a new reason: the effect of the present operation."""
        self.reasons.append(f"{self.operation} {why}")
        return len(self.reasons) - 1

    def tie_channels(self, first: NodeIds, second: NodeIds, why: str) -> NodeIds:
        """Make channels move together; a channel beside none (-1) is fixed. Returns the tied channels."""
        first, second = np.broadcast_arrays(first, second)
        both = (first >= 0) & (second >= 0)
        self.channels.union(first[both], second[both])
        if (lone := (first >= 0) != (second >= 0)).any():
            self.fix(np.maximum(first, second)[lone], why)
        return np.maximum(first, second) if lone.any() else first

    def tie_scales(self, first: NodeIds, second: NodeIds, why: str) -> NodeIds:
        """Make scales the same; a scale beside none is forbidden. Returns the tied scales."""
        first, second = np.broadcast_arrays(first, second)
        first_free, second_free = self.can_scale(first), self.can_scale(second)
        both = first_free & second_free
        # s = 1 / s leaves 1 and -1
        own_inverse = self.scales.union(first[both], second[both])
        self.restrict_scale(own_inverse, SIGN, f"{why}, or with their inverses")
        if (lone := first_free != second_free).any():
            self.forbid_scale(np.where(first_free, first, second)[lone], why)
        return np.where(both, first, -1)

    def tie_inverse_scales(self, first: NodeIds, second: NodeIds, why: str) -> None:
        """Make each scale the inverse of another one, of either sign; a scale beside none is forbidden."""
        first, second = np.broadcast_arrays(first, second)
        first_free, second_free = self.can_scale(first), self.can_scale(second)
        both = first_free & second_free
        own_inverse = self.scales.union(first[both], second[both], inverse=True)
        self.restrict_scale(own_inverse, SIGN, f"{why} that have the same scale")
        self.restrict_scale(first[both], NONZERO, why)
        if (lone := first_free != second_free).any():
            self.forbid_scale(np.where(first_free, first, second)[lone], f"{why}, one of which cannot be scaled")

    def tie_along(self, labels: Labels, axes: tuple[int, ...]) -> Labels:
        """Return labels without these axes' variation: the channels and scales along them are tied."""
        if not axes:
            return labels
        why, shape = "takes channels together that are in line", np.broadcast_shapes(labels.shape, labels.path.shape)
        reduced = [size if axis not in axes else 1 for axis, size in enumerate(shape)]
        channel, scale, path = (
            np.moveaxis(np.broadcast_to(item, shape), axes, range(-len(axes), 0)).reshape(math.prod(reduced), -1)
            for item in (labels.channel, labels.scale, labels.path)
        )
        channel = self.tie_channels(channel[:, :1], channel, why)[:, 0]
        scale = self.tie_scales(scale[:, :1], scale, why)[:, 0]
        tied = Labels(channel, scale, self.paths.extend("together", *path.T), labels.power)
        return tied.map(lambda item: item.reshape(reduced))

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
        """Put channels (one-dimensional labels of positions) on an axis of a tensor, and tie them to those there."""
        channel, scale, path = (
            np.array(item) for item in np.broadcast_arrays(labels.channel, labels.scale, labels.path)
        )
        if (earlier := self.placements.get((tensor, axis))) is None:
            self.placements[tensor, axis] = AxisPlacement(
                tensor, axis, channel, scale, path, exponent, role, in_mass, blocks, eps, absolute=labels.modulus
            )
            return
        if earlier.blocks != blocks:
            expected = f"{earlier.blocks} groups, as where {tensor!r} was used before"
            raise SymmetryError(Problem("symmetry.trace", self.operation, expected, str(blocks), DECLARE_BY_HAND))
        earlier.uses += 1
        if earlier.absolute != labels.modulus:
            for scales in (scale, earlier.scale):
                self.restrict_scale(scales, POSITIVE, f"uses {tensor!r} once more, for absolute values")
            earlier.absolute = False
        again = f"uses {tensor!r} once more, for what stays in place"
        earlier.channel = self.tie_channels(earlier.channel, channel, again)
        earlier.path = self.paths.extend("again", earlier.path, path)
        self._tie_repeated_scale(earlier, scale, exponent)

    def write(self, tensor: str, axis: int, size: int, role: str, *, in_mass: bool = False, blocks: int = 1) -> Labels:
        """Return the channels that an axis of a tensor writes, one-dimensional: new ones at its first use."""
        path = np.array([self.paths.id_of("written", tensor, axis)])
        if (tensor, axis) not in self.placements:
            labels = Labels(self.channels.new(size), self.scales.new(size), path)
            self.place(tensor, axis, labels, 1, role, in_mass=in_mass, blocks=blocks)
            return labels
        earlier = self.placements[tensor, axis]
        scale = np.full(size, -1) if earlier.exponent == 0 else earlier.scale
        labels = Labels(earlier.channel, scale, path)
        self.place(tensor, axis, labels, 1, role, blocks=blocks)
        return labels

    def absorb_signs(self, tensor: str, axis: int, scale: NodeIds) -> None:
        """Let a gain, which is placed already, take the signs of the scales (one a position) that it normalises."""
        place = self.placements[tensor, axis]
        place.sign_uses += 1
        if place.signs is None:
            place.signs = np.array(scale)
        else:
            place.signs = self.tie_scales(place.signs, scale, f"uses {tensor!r} once more, for values without a sign")

    def settle_signs(self) -> None:
        """Leave positive factors where a gain cannot take the signs, or would take those of its own scales."""
        for place in self.placements.values():
            if place.signs is None:
                continue
            self.operation = f"{place.tensor!r}"
            if place.sign_uses != place.uses:
                self.restrict_scale(place.signs, POSITIVE, "is used elsewhere too, where its sign counts")
                place.signs = None
                continue
            if (self.scales.signs(place.scale)[self.can_scale(place.scale)] < 0).any():
                self.restrict_scale(place.signs, POSITIVE, "is scaled by inverses, as for keys, which leaves no signs")
                place.signs = None
                continue
            own = (place.signs >= 0) & (self.scales.find(place.signs) == self.scales.find(place.scale))
            if own.all() and self.keeps_sign(place.scale).all():
                # Each sign comes twice: the gain stays as it is.
                place.scale, place.signs, place.exponent = np.full_like(place.scale, -1), None, 0
                continue
            self.restrict_scale(place.signs[own], POSITIVE, "is scaled with what it normalises")

    def heads_of(self, labels: Labels, axes: tuple[int, ...], name: str) -> Labels:
        """Return labels of the heads of values whose channels vary along ``axes`` within each head. Along the other
        axes that vary the values' labels are in heads. ``name`` is that of the heads, where they move.
        """
        shape = labels.shape
        outer = tuple(axis for axis in labels.varying_axes if axis not in axes)
        channel = np.moveaxis(np.broadcast_to(labels.channel, shape), axes, range(-len(axes), 0))
        reduced = [size if axis in outer else 1 for axis, size in enumerate(shape)]
        rows = self.channels.find(channel.reshape(math.prod(reduced), -1))
        distinct, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        # in the order in which they are met: np.unique sorts
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        rows = distinct[order]
        if (rows < 0).all():
            return constant_labels(len(shape))
        # Channels may be tied within a head, as the pairs of a rotary embedding are, but not across heads.
        members = [list(dict.fromkeys(row)) for row in rows.tolist()]
        flat = [root for row in members for root in row]
        # heads of several sizes, or with channels in common, do not move as blocks
        if len({len(row) for row in members}) > 1 or len(set(flat)) < len(flat) or min(flat) < 0:
            self.fix(channel, "sums over channels of several heads at once")
            return constant_labels(len(shape))
        rows = np.array(members, np.int64)
        nodes = self._head_nodes(rows, name)
        path = np.broadcast_to(labels.path, shape)
        path = np.moveaxis(path, axes, range(-len(axes), 0)).reshape(math.prod(reduced), -1)
        heads = nodes[rank[index.ravel()]].reshape(reduced)
        # sorted, because the order of channels within a head is no property of the head
        paths = self.paths.extend("heads", *np.sort(path, axis=1).T).reshape(reduced)
        return Labels(heads, np.full(reduced, -1), paths)

    def _head_nodes(self, rows: NodeIds, name: str) -> NodeIds:
        for blocks in self.blocks:
            if blocks.heads and any(
                side.shape == rows.shape and np.array_equal(self.channels.find(side), rows)
                for side in blocks.members[1:]
            ):
                return blocks.members[0][:, 0]
        nodes = self.channels.new(len(rows))
        self.blocks.append(ChannelBlocks(name, (nodes[:, None], rows), heads=True))
        return nodes

    def join_heads(self, heads: NodeIds, channel: NodeIds, axes: tuple[int, ...], name: str) -> None:
        """Tie heads to values in heads, so that the values' heads move with them. ``heads`` are labels of size 1 along
        ``axes``, those within a head, and ``channel`` the values'. ``name`` is that of the heads, where they move.
        """
        none = np.full((1,) * channel.ndim, -1)
        values = self.heads_of(Labels(channel, none, none), axes, name)
        self.tie_channels(heads, values.channel, "meets heads that stay in place")

    def unconstrained(self, mask: NDArray[np.bool_]) -> Labels:
        """Return new channels where ``mask`` holds, -1 elsewhere: for zeros, which no symmetry changes."""
        channel, scale = (
            np.where(mask, sets.new(mask.size).reshape(mask.shape), -1) for sets in (self.channels, self.scales)
        )
        return Labels(channel, scale, np.zeros(mask.shape, np.int64))

    def fixed_channels(self, count: int, why: str) -> NodeIds:
        """Return new channels that stay in place."""
        channels = self.channels.new(count)
        self.fix(channels, why)
        return channels

    def fix_axis(self, tensor: str, axis: int, size: int, role: str = "bias") -> None:
        """Keep all positions along an axis in place and unscaled."""
        none = np.full(size, -1)
        self.place(tensor, axis, Labels(none, none, np.zeros(1, np.int64)), 1, role)

    def record_sum(self, labels: Labels) -> None:
        """Note that the channels of these entries go into one result that treats them alike, such as a sum."""
        self.sums.append(labels)

    def _tie_repeated_scale(self, earlier: AxisPlacement, scale: NodeIds, exponent: int) -> None:
        again = f"uses {earlier.tensor!r} once more"
        if exponent == earlier.exponent == 0:
            return
        if abs(exponent) != abs(earlier.exponent):
            for scales, power in ((scale, exponent), (earlier.scale, earlier.exponent)):
                if power:
                    self.forbid_scale(scales, f"{again}, in another way")
            return
        earlier.scale = self.tie_scales(earlier.scale, scale, f"{again}, for values that cannot be scaled")
        # Where the same tensor is multiplied by s and by 1 / s, s = 1 / s, so that s is a sign.
        if exponent != earlier.exponent:
            self.restrict_scale(earlier.scale, SIGN, f"{again}, where it reads what it wrote or writes what it read")

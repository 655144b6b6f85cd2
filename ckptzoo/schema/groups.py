"""Groups of channels that move together, and what they do to the axes of tensors: what a symmetry table is made of."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

MATRICES = ("linear", "orthogonal", "orthogonal_mean", "complex")
SCALES = ("positive", "sign", "nonzero", "none")
INNERS = ("free", "fixed")
ROLES = ("out", "in", "bias", "gain", "shift", "mean", "variance")
"""``out`` writes the channel, ``in`` reads it; the others are per-channel vectors beside the weights."""


class Perm:
    """How a group's channels may be permuted: a frozen dataclass for each kind, whose fields files hold."""

    @classmethod
    def kind(cls) -> str:
        """The name in files and counts: ``sym``, ``wreath``, ``like`` or ``fixed``."""
        return cls.__name__.lower()


@dataclass(frozen=True)
class Sym(Perm):
    """Any permutation of the group's channels."""


@dataclass(frozen=True)
class Fixed(Perm):
    """No permutation."""


@dataclass(frozen=True)
class Wreath(Perm):
    """``g`` blocks of ``k`` channels: whole blocks move, and channels move within their block where ``inner`` is free.

    Groups that name the same ``outer`` move their blocks by one shared permutation. So do the two sides of a
    convolution in ``g`` groups (``k = C / g`` in, ``k = Cout / g`` out).

    Parameters
    ----------
    outer
        a name for the permutation of the blocks.
    g
        blocks.
    k
        channels of a block.
    inner
        ``"free"``, or ``"fixed"`` where channels keep their order within their block, as those of attention heads do
        under rotary embeddings.
    """

    outer: str
    g: int
    k: int
    inner: str = "free"


@dataclass(frozen=True)
class Like(Perm):
    """The permutation of another group: channels that are permuted together but scaled apart.

    So are the two sides of a BatchNorm. The other group comes before in the table and is not ``Like`` itself.

    Parameters
    ----------
    group
        the id of the other group.
    """

    group: str


@dataclass(frozen=True)
class Group:
    """Channels that move together.

    Parameters
    ----------
    id
        a name that is unique in the table; groups are in topological order, from input to output.
    n
        number of channels.
    perm
        ``Sym()``, ``Wreath(outer, g, k)``, ``Like(group)`` or ``Fixed()``.
    scale
        ``"positive"`` (ReLU), ``"sign"`` (odd activations), ``"nonzero"`` (both: in front of a BatchNorm whose gain
        takes the sign) or ``"none"``. Or a kind of matrices, one for each block of a ``Wreath`` or one for all
        channels: ``"linear"`` (any invertible matrix: queries and keys, values and outputs), ``"orthogonal"`` (what
        RMSNorm reads), ``"orthogonal_mean"`` (orthogonal, and the vector of ones stays: what LayerNorm reads), or
        ``"complex"`` (a number other than 0 for each channel, which is a pair of positions: rotary embeddings).

    Notes
    -----
    The permutation of a group with matrices moves whole blocks. Groups that are ``Like`` one with orthogonal matrices
    take these as they would take its permutation, and are not scaled: the gains of the normalisations in between must
    be 1, to which ``fold`` brings them.
    """

    id: str
    n: int
    perm: Perm
    scale: str

    @property
    def scaled(self) -> bool:
        """Whether each of its channels has a scale of its own."""
        return self.scale != "none" and self.scale not in MATRICES

    @property
    def matrix_shape(self) -> tuple[int, ...] | None:
        """The shape of its matrices in one element: (blocks, k, k), (n, 2) for complex numbers, or None without any."""
        if self.scale not in MATRICES:
            return None
        if self.scale == "complex":
            return (self.n, 2)
        # without blocks one matrix mixes all channels
        g, k = (self.perm.g, self.perm.k) if isinstance(self.perm, Wreath) else (1, self.n)
        return (g, k, k)

    @property
    def resizes(self) -> bool:
        """Whether its channels may be multiplied by positive numbers other than 1."""
        return self.scale in ("positive", "nonzero")

    @property
    def flips(self) -> bool:
        """Whether its channels may be multiplied by -1."""
        return self.scale in ("sign", "nonzero")


@dataclass(frozen=True)
class Segment:
    """A run of channels on an axis: the i-th takes ``inner`` positions from ``offset + i * inner`` on.

    Several segments of one group list its channels in order, each going on where the last one ended, and
    start over after channel ``n - 1`` (a concatenation of a tensor with itself).

    Parameters
    ----------
    group
        the group's id.
    offset
        the first position.
    inner
        positions a channel takes; height times width after a flatten, else 1.
    count
        channels in this segment.
    exponent
        1 or -1 where it is another one than the action's, as on an axis that holds queries and keys; else None.
    part
        of a group of complex numbers, this one or the one ``within`` it: 0 where the segment has the real parts of its
        channels, 1 for the imaginary parts; None where both take turns, so that each channel has an even number of
        positions.
    within
        a group that permutes and scales the positions inside each channel; else None. Both groups are ``Wreath`` of one
        block permutation (the inner one may be ``Like`` such a group), and this segment's has no scales: heads of
        queries that share keys, say, and the channels of these heads of keys. Of a channel in block b with
        ``inner = t * m`` positions, where that group has m channels a block, the positions from ``j * t`` on are those
        of its channel ``b * m + j``.
    """

    group: str
    offset: int
    inner: int
    count: int
    exponent: int | None = None
    within: str | None = None
    part: int | None = None


@dataclass(frozen=True)
class AxisAction:
    """The action of a group element on one axis of one tensor; positions in no segment stay as they are.

    Parameters
    ----------
    tensor, axis
        whose axis; axes are counted without the leading axis of stacked checkpoints.
    segments
        which channels sit where.
    exponent
        +1 where the channel is written, -1 where it is read, 0 where it is only permuted, +2 for a running variance.
    in_mass
        whether the tensor counts in the mass (the sum of squared weights without biases).
    role
        one of ``ROLES``.
    blocks
        more than 1 where the axis is read within equal blocks of axis 0 (the input axis of a grouped convolution):
        position j in block b of axis 0 is position ``b * size + j`` of the segments.
    eps
        with exponent +2 only: the normalisation's eps. The variance becomes ``scale ** 2 * (variance + eps) - eps``,
        which keeps the function exactly, and must not be negative.
    signs
        of a gain: which channels are normalised there, listed as in ``segments``. The gain is multiplied by the signs
        of their scales too, so that ``gain * (x - mean) / std`` stays as it is when x and the mean change sign.
    absolute
        whether the moduli of the scales act, as on standard deviations, which have no sign; with exponent 1 or -1 and
        without ``signs``.
    gates
        channels that multiply those of ``segments``, listed alike, as in a gated unit: their scales act here too, with
        the same exponent. Some of the segments, in their order, with other groups.
    """

    tensor: str
    axis: int
    segments: tuple[Segment, ...]
    exponent: int
    in_mass: bool
    role: str
    blocks: int = 1
    eps: float = 0.0
    signs: tuple[Segment, ...] = ()
    absolute: bool = False
    gates: tuple[Segment, ...] = ()

    @property
    def groups(self) -> set[str]:
        """The groups that permute or scale the axis."""
        return self.listed_groups | {segment.group for segments in self.beside for segment in segments}

    @property
    def of_gates(self) -> "AxisAction":
        """The same action with segments and gates exchanged."""
        return replace(self, segments=self.gates, gates=self.segments)

    @property
    def is_bare(self) -> bool:
        """Whether it has neither blocks, moduli, signs nor gates."""
        return self.blocks == 1 and not (self.absolute or self.signs or self.gates)

    @property
    def acting(self) -> "tuple[AxisAction, ...]":
        """The action, and where it has gates the same one as theirs."""
        return (self, self.of_gates) if self.gates else (self,)

    @property
    def beside(self) -> "tuple[tuple[Segment, ...], tuple[Segment, ...]]":
        """The channels whose signs act on the axis too, and those whose scales do."""
        return self.signs, self.gates

    @property
    def without_others_inside(self) -> "AxisAction":
        """The action on the channels that have no others inside."""
        return replace(self, segments=tuple(segment for segment in self.segments if segment.within is None))

    @property
    def multiplied(self) -> "frozenset[str]":
        """The groups whose scales multiply each other on the axis; none where there are no gates."""
        return frozenset(item.group for item in (*self.segments, *self.gates)) if self.gates else frozenset()

    @property
    def listed_groups(self) -> set[str]:
        """The groups whose channels the segments list, and those that act inside these."""
        inside = {segment.within for segment in self.segments if segment.within is not None}
        return inside | {segment.group for segment in self.segments}

    @property
    def parts(self) -> "tuple[AxisAction, ...]":
        """The action as one or two whose segments all have the action's exponent."""
        own = tuple(replace(item, exponent=None) for item in self.segments if item.exponent is not None)
        if not own:
            return (self,)
        others = tuple(item for item in self.segments if item.exponent is None)
        # where a scale and the inverse of one act on the same axis
        inverse = replace(self, segments=own, exponent=-self.exponent)
        return (replace(self, segments=others), inverse) if others else (inverse,)


def with_scaled_gates(actions: Iterable[AxisAction], groups: Iterable[Group]) -> tuple[AxisAction, ...]:
    """The actions with gates of scaled groups alone, as where some groups of a table lose their scales. ``actions`` are
    the table's; ``groups`` are all of its groups before the change.
    """
    scaled = {group.id for group in groups if group.scaled}
    return tuple(
        replace(action, gates=tuple(segment for segment in action.gates if segment.group in scaled))
        if action.gates
        else action
        for action in actions
    )

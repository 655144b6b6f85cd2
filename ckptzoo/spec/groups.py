"""What a symmetry table is made of: groups of channels, and where their channels sit in the tensors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sym:
    """Any permutation of the group's channels."""


@dataclass(frozen=True)
class Fixed:
    """No permutation."""


@dataclass(frozen=True)
class Wreath:
    """``g`` blocks of ``k`` channels: whole blocks move, and channels move within their block.

    Groups that name the same ``outer`` move their blocks by one shared permutation. So do the two sides of a
    convolution in ``g`` groups (``k = C / g`` in, ``k = Cout / g`` out).
    """

    outer: str
    g: int
    k: int


@dataclass(frozen=True)
class Like:
    """The permutation of another group: channels that are permuted together but scaled apart.

    So are the two sides of a BatchNorm. The other group stands before in the table and is not ``Like`` itself.
    """

    group: str


Perm = Sym | Wreath | Like | Fixed


@dataclass(frozen=True)
class Group:
    """Channels that move together.

    Parameters
    ----------
    id : a name that is unique in the table; groups stand in topological order, from input to output.
    n : number of channels.
    perm : ``Sym()``, ``Wreath(outer, g, k)``, ``Like(group)`` or ``Fixed()``.
    scale : ``"positive"`` (ReLU), ``"sign"`` (odd activations) or ``"none"``.
    """

    id: str
    n: int
    perm: Perm
    scale: str


@dataclass(frozen=True)
class Segment:
    """A run of channels on an axis: the i-th takes ``inner`` positions from ``offset + i * inner`` on.

    Several segments of one group list its channels in order, each going on where the last one ended, and
    start over after channel ``n - 1`` (a concatenation of a tensor with itself).

    Parameters
    ----------
    group : the group's id.
    offset : the first position.
    inner : positions a channel takes; height times width after a flatten, else 1.
    count : channels in this segment.
    """

    group: str
    offset: int
    inner: int
    count: int


@dataclass(frozen=True)
class AxisAction:
    """What a group element does to one axis of one tensor; positions in no segment stay as they are.

    Parameters
    ----------
    tensor, axis : whose axis; axes are counted without the leading axis of stacked checkpoints.
    segments : which channels sit where.
    exponent : +1 where the channel is written, -1 where it is read, 0 where it is only permuted, +2 for a
        running variance.
    in_mass : whether the tensor counts in the mass (the sum of squared weights without biases).
    role : one of ``ROLES``.
    blocks : more than 1 where the axis is read within equal blocks of axis 0 (the input axis of a grouped
        convolution): position j in block b of axis 0 is position ``b * size + j`` of the segments.
    eps : with exponent +2 only: the normalisation's eps. The variance becomes
        ``scale ** 2 * (variance + eps) - eps``, which keeps the function exactly, and must not be negative.
    """

    tensor: str
    axis: int
    segments: tuple[Segment, ...]
    exponent: int
    in_mass: bool
    role: str
    blocks: int = 1
    eps: float = 0.0


SCALES = ("positive", "sign", "none")
ROLES = ("out", "in", "bias", "gain", "shift", "mean", "variance")
"""``out`` writes the channel, ``in`` reads it; the others are per-channel vectors beside the weights."""

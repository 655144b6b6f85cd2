"""Declaring a network layer by layer: its tensors, its groups of channels, and what the groups do to the tensors."""

from collections import Counter
from dataclasses import dataclass, replace

from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry

_EPS = 1e-5
"""The eps of ``torch.nn.BatchNorm2d``."""


@dataclass(frozen=True)
class Channels:
    """The channels that flow from layer to layer. ``n`` is the number of channels; ``segments`` say where the groups'
    channels are; none for inputs and logits, which nothing may move.
    """

    n: int
    segments: tuple[Segment, ...] = ()

    @property
    def groups(self) -> dict[str, int]:
        """Group id to its number of channels, by first appearance."""
        counts: Counter[str] = Counter()
        for segment in self.segments:
            counts[segment.group] += segment.count
        return counts


def channels(group: str, n: int) -> Channels:
    """The n channels of one group, in order."""
    return Channels(n, (Segment(group, 0, 1, n),))


def padded(inside: Channels, group: str, n: int) -> Channels:
    """Channels in the middle of n, as zero-padding leaves them; those on both sides make up one other group."""
    # half of the zeros on either side, as option A of He et al. in the code whose names are used
    before = (n - inside.n) // 2
    end = before + inside.n
    moved = tuple(replace(segment, offset=segment.offset + before) for segment in inside.segments)
    return Channels(n, (Segment(group, 0, 1, before), *moved, Segment(group, end, 1, n - end)))


class Draft:
    """A network that is being declared: layers in the order of the state dict, and from input to output."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._groups: dict[str, Group] = {}
        self._actions: list[AxisAction] = []

    def linear(self, name: str, reads: Channels, writes: Channels, *, scale: str = "positive") -> None:
        """A linear layer with a bias, and the groups that it is the first to write."""
        for group, n in writes.groups.items():
            self._groups.setdefault(group, Group(group, n, Sym(), scale))
        self._weight(name, (), reads, writes)
        self._vector(f"{name}.bias", writes, +1, "bias")

    def conv_norm(self, conv: str, norm: str, size: int, reads: Channels, writes: Channels) -> None:
        """A square convolution without bias and its BatchNorm, and the groups that they are the first to write.

        What the convolution writes, before the normalisation, is scaled apart from what the BatchNorm writes, by
        numbers whose signs its gain takes, and permuted with it. Those groups are named after the convolution. A group
        that is known must be one that a BatchNorm wrote first.
        """
        before = self._before(conv, writes)
        for group, n in writes.groups.items():
            self._groups.setdefault(group, Group(group, n, Like(_own(conv, group, writes)), "positive"))
        self._weight(conv, (size, size), reads, before)
        self._vector(f"{norm}.weight", writes, +1, "gain", signs=before.segments)
        self._vector(f"{norm}.bias", writes, +1, "shift")
        self._vector(f"{norm}.running_mean", before, +1, "mean")
        # a variance goes with the square of what it normalises, and eps beside it does not
        self._vector(f"{norm}.running_var", before, +2, "variance")
        # torch counts batches in int64, behind the statistics
        self._tensors.append(Tensor(f"{norm}.num_batches_tracked", (), "int64", "buffer"))

    def finish(self, name: str, input_shape: tuple[int, ...]) -> tuple[Architecture, Symmetry]:
        """The declaration of a network whose forward function has the same name."""
        arch = Architecture(name, tuple(self._tensors), name, input_shape)
        return arch, Symmetry(tuple(self._groups.values()), tuple(self._actions))

    def _before(self, conv: str, writes: Channels) -> Channels:
        """The convolution's own groups, one for each that its BatchNorm writes; new ones lead their BatchNorm's."""
        for group, n in writes.groups.items():
            own, known = _own(conv, group, writes), self._groups.get(group)
            self._groups[own] = Group(own, n, Sym() if known is None else known.perm, "nonzero")
        return replace(
            writes,
            segments=tuple(replace(item, group=_own(conv, item.group, writes)) for item in writes.segments),
        )

    def _weight(self, name: str, window: tuple[int, ...], reads: Channels, writes: Channels) -> None:
        weight = f"{name}.weight"
        self._tensors.append(Tensor(weight, (writes.n, reads.n, *window)))
        if writes.segments:
            self._actions.append(AxisAction(weight, 0, writes.segments, +1, True, "out"))
        if reads.segments:
            self._actions.append(AxisAction(weight, 1, reads.segments, -1, True, "in"))

    def _vector(
        self, name: str, channels: Channels, exponent: int, role: str, *, signs: tuple[Segment, ...] = ()
    ) -> None:
        kind = "buffer" if role in ("mean", "variance") else "parameter"
        eps = _EPS if role == "variance" else 0.0
        self._tensors.append(Tensor(name, (channels.n,), kind=kind))
        if channels.segments:
            action = AxisAction(name, 0, channels.segments, exponent, role == "gain", role, eps=eps, signs=signs)
            self._actions.append(action)


def _own(conv: str, group: str, writes: Channels) -> str:
    """The name of what a convolution writes of a group."""
    return conv if len(writes.groups) == 1 else f"{conv}:{group}"

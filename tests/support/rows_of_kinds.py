"""Tables of layers in a row whose channels are of any kinds, and weights for them; no functions go with them."""

from collections.abc import Sequence

import numpy as np

from ckptzoo.schema.groups import AxisAction, Group, Like, Perm, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry

Weights = dict[str, np.ndarray]
Segments = tuple[Segment, ...]
_Read = tuple[int, Segments, Segments]
"""What a layer reads: how many channels, which, and the gates that multiply some."""
UNITS = ("none", "positive", "sign", "nonzero", "linear")
STREAMS = ("orthogonal", "orthogonal_mean", "bare", "moved", "tied")
TWICE = tuple(f"twice {scale}" for scale in ("none", "sign", "positive", "linear"))
KINDS = (*UNITS, "blocks", "attention", "rotary", "shared", "gates", "scaled gates", *STREAMS, *TWICE)
"""Units with each scale, blocks of matrices, heads with matrices, with complex numbers and shared ones, gates without
and with scales of their own, streams with unit gains, without gains, with gains that take their signs and with
embeddings, and layers that are used twice."""


class _Row:
    """A table that is being made."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.actions: list[AxisAction] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def act(
        self, tensor: str, axis: int, segments: Segments, exponent: int, role: str, *, gates: Segments = ()
    ) -> None:
        mass = role in ("out", "in", "gain")
        self.actions.append(AxisAction(tensor, axis, segments, exponent, mass, role, gates=gates))

    def group(self, name: str, n: int, perm: Perm, scale: str) -> Segments:
        self.groups.append(Group(name, n, perm, scale))
        return (Segment(name, 0, 1, n),)

    def layer(self, name: str, n: int, out: Segments, read: _Read, exponent: int = 1, *, bias: bool = False) -> None:
        size, segments, gates = read
        self.shapes[name] = (n, size)
        self.act(name, 0, out, exponent, "out")
        if segments:
            self.act(name, 1, segments, -1, "in", gates=gates)
        if bias:
            self.shapes[f"{name}.bias"] = (n,)
            self.act(f"{name}.bias", 0, out, exponent, "bias")

    def units(self, kind: str, name: str, read: _Read, n: int, *, bias: bool) -> _Read:
        """Units, some with a layer of their own behind them that reads what it writes."""
        made = self.group(name, n, Sym(), kind.removeprefix("twice "))
        self.layer(f"{name}.weight", n, made, read, bias=bias)
        if kind in TWICE:
            self.layer(f"{name}.again", n, made, (n, made, ()), bias=bias)
        return n, made, ()

    def heads(self, kind: str, name: str, read: _Read, *, bias: bool) -> _Read:
        """Heads of queries, keys and values."""
        if kind == "shared":
            self.group(f"{name}.heads", 4, Wreath(f"{name}.kv", 2, 2), "none")
            keys = self.group(f"{name}.qk", 4, Wreath(f"{name}.kv", 2, 2), "linear")
            values = self.group(f"{name}.vo", 6, Wreath(f"{name}.kv", 2, 3), "linear")
            self.layer(f"{name}.q", 8, (Segment(f"{name}.heads", 0, 2, 4, within=f"{name}.qk"),), read, bias=bias)
            self.layer(f"{name}.k", 4, keys, read, -1)
            self.layer(f"{name}.v", 6, values, read, bias=bias)
            return 12, (Segment(f"{name}.heads", 0, 3, 4, within=f"{name}.vo"),), ()
        n = 6
        if kind == "rotary":
            n = 12
            self.group(f"{name}.qk", 6, Wreath(f"{name}.heads", 3, 2, "fixed"), "complex")
            parts = ((head, part) for head in range(3) for part in (0, 1))
            keys = tuple(Segment(f"{name}.qk", 4 * head + 2 * part, 1, 2, part=part) for head, part in parts)
        else:
            keys = self.group(f"{name}.qk", 6, Wreath(f"{name}.heads", 3, 2), "linear")
        values = self.group(f"{name}.vo", 6, Wreath(f"{name}.heads", 3, 2), "linear")
        self.layer(f"{name}.q", n, keys, read, bias=bias)
        self.layer(f"{name}.k", n, keys, read, -1)
        self.layer(f"{name}.v", 6, values, read, bias=bias)
        return 6, values, ()

    def gated(self, kind: str, name: str, read: _Read, *, bias: bool) -> _Read:
        """Units that gates multiply."""
        scales = ("positive", "nonzero") if kind == "scaled gates" else ("none", "sign")
        gates = self.group(f"{name}.gate", 4, Sym(), scales[0])
        values = self.group(f"{name}.up", 4, Like(f"{name}.gate"), scales[1])
        self.layer(f"{name}.gate", 4, gates, read, bias=bias)
        self.layer(f"{name}.up", 4, values, read, bias=bias)
        return 4, values, gates if kind == "scaled gates" else ()

    def stream(self, kind: str, name: str, read: _Read, *, told: bool) -> _Read:
        """A stream and a norm that reads it; ``told`` with a tensor on which nothing else acts."""
        scales = {"moved": ("sign", "nonzero"), "tied": ("orthogonal", "none"), "bare": ("orthogonal", "none")}
        scale, scale_behind = scales.get(kind, (kind, "none"))
        stream = self.group(name, 5, Sym(), scale)
        self.layer(f"{name}.weight", 5, stream, read)
        if kind == "bare":
            self.layer(f"{name}.embed", 5, stream, (7, (), ()))
            return 5, stream, ()
        normed = self.group(f"{name}.norm", 5, Like(name), scale_behind)
        if told and kind != "tied":
            self.layer(f"{name}.embed", 5, stream, (7, (), ()))
        elif kind == "tied":
            self.shapes[f"{name}.embed"] = (7, 5)
            self.act(f"{name}.embed", 1, stream, 1, "out")
        self.shapes[f"{name}.gain"] = (5,)
        signs = stream if kind == "moved" else ()
        self.actions.append(AxisAction(f"{name}.gain", 0, normed, 1, True, "gain", signs=signs))
        return 5, normed, ()

    def add(self, kind: str, name: str, read: _Read, rng: np.random.Generator) -> _Read:
        """Layers of a kind behind what is read; what the next ones read."""
        bias = bool(rng.random() < 0.5)
        if kind in (*UNITS, *TWICE):
            return self.units(kind, name, read, int(rng.integers(2, 6)), bias=bias)
        if kind == "blocks":
            made = self.group(name, 6, Wreath(f"{name}.blocks", 2, 3), "linear")
            self.layer(f"{name}.weight", 6, made, read, bias=bias)
            return 6, made, ()
        if kind in STREAMS:
            return self.stream(kind, name, read, told=bias)
        if kind.endswith("gates"):
            return self.gated(kind, name, read, bias=bias)
        return self.heads(kind, name, read, bias=bias)


def row_of(kinds: Sequence[str], seed: int) -> tuple[Symmetry, dict[str, tuple[int, ...]]]:
    """The table of layers of these kinds in a row, of random sizes, and the shapes of its tensors."""
    rng, row = np.random.default_rng(seed), _Row()
    read: _Read = (5, (), ())
    for number, kind in enumerate(kinds):
        read = row.add(kind, f"layer{number}", read, rng)
    row.shapes |= {"out": (4, read[0]), "out.bias": (4,)}
    row.act("out", 1, read[1], -1, "in", gates=read[2])
    return Symmetry(tuple(row.groups), tuple(row.actions)), row.shapes


def weights_of(table: Symmetry, shapes: dict[str, tuple[int, ...]], K: int, seed: int) -> Weights:
    """Normal weights of K networks; gains are 1 where they must be, and no mean is written where there is none."""
    rng = np.random.default_rng(seed)
    streams = {group.id: group.scale for group in table.groups}
    made: Weights = {}
    for name, shape in shapes.items():
        value = rng.standard_normal((K, *shape))
        for action in table.actions_on(name):
            scales = {streams[table.leader(segment.group).id] for segment in action.segments}
            if action.role == "gain":
                value = np.ones_like(value) if scales & {"orthogonal", "orthogonal_mean"} else np.abs(value) + 0.5
            elif action.role == "out" and "orthogonal_mean" in scales:
                value -= value.mean(axis=action.axis + 1, keepdims=True)
        made[name] = value
    return made

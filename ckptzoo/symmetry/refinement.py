"""Colour refinement of one checkpoint's channels: what can be told apart without naming any channel.

The channels of every group that leads a permutation, and the blocks of every block permutation, are the vertices
of a graph; each tensor joins the channels on its axes by edges that bear weights. A colouring is refined until it
stays: two vertices keep one colour as long as their edges bear the same weights to the same colours. Sums modulo
2 ** 64 of mixed bits stand for multisets, so that no order of vertices enters; two multisets that differ share a sum
with a chance of about 2 ** -64.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ckptzoo.spec.symmetry import AxisAction, Fixed, Symmetry, Wreath
from ckptzoo.symmetry.layout import by_channel, positions
from ckptzoo.symmetry.ordering import leaders, shape_of

Colours = np.ndarray
"""(V,) int64, a colour per vertex; vertices of different groups never share one."""


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble uint64 bits (splitmix64's finaliser; Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class _Side:
    """One axis of a tensor: for every edge its vertex (-1 for none), and a code for the place it has there."""

    vertex: np.ndarray
    code: np.ndarray


@dataclass(frozen=True, eq=False)
class _Edges:
    """A tensor's edges over its moving axes, their weights as mixed bits, and its sides."""

    bits: np.ndarray
    sides: tuple[_Side, ...]


class Graph:
    """The weighted graph of one checkpoint.

    Parameters
    ----------
    weights : tensor name to (*shape), scaled, in the dtype in which they are stored.
    symmetry : the table.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], symmetry: Symmetry) -> None:
        self.symmetry = symmetry
        self.start: dict[str, int] = {}
        """Where each leading group's vertices begin; those of a block permutation under ``*<name>``."""
        self.kind: list[int] = []
        """For each vertex the number of its group, in order of appearance."""
        for group in leaders(symmetry):
            if isinstance(group.perm, Wreath) and f"*{group.perm.outer}" not in self.start:
                self._add(f"*{group.perm.outer}", group.perm.g)
            self._add(group.id, group.n)
        self.size = len(self.kind)
        self.dense: set[frozenset[int]] = set()
        """Pairs of groups (by number) whose channels meet on two axes of a tensor without blocks."""
        self._edges = [
            self._joined(number, name, weights[name])
            for number, name in enumerate(sorted({action.tensor for action in symmetry.actions}))
        ]
        self.members = [self._membership(group.id) for group in leaders(symmetry)]
        """For each leading group the block of each of its channels, None without blocks, and the channels."""

    def fixed(self) -> np.ndarray:
        """A first colouring: vertices of one group alike, but for those of Fixed groups, which are all told apart."""
        colours = np.array(self.kind, np.int64) * (self.size + 1)
        for group in leaders(self.symmetry):
            if isinstance(group.perm, Fixed):
                at = self.start[group.id]
                colours[at : at + group.n] += np.arange(group.n)
        return dense(colours[:, None])

    def signatures(self, colours: Colours) -> np.ndarray:
        """(V,) uint64: every vertex's edges, summed with the colours at their other ends."""
        salt = mix(colours.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        found = np.zeros(self.size, np.uint64)
        for edges in self._edges:
            ends = [self._end(side, salt) for side in edges.sides]
            for number, side in enumerate(edges.sides):
                value = edges.bits
                for other, end in enumerate(ends):
                    if other != number:
                        value = value * end
                value = mix(value + side.code)
                vertex = np.broadcast_to(side.vertex, value.shape)
                np.add.at(found, vertex[vertex >= 0], value[vertex >= 0])
        for block, channel in self.members:
            if block is not None:
                np.add.at(found, block, mix(salt[channel]))
                found[channel] += mix(salt[block] + np.uint64(1))
        return found

    def refine(self, colours: Colours) -> Colours:
        """The coarsest stable colouring below this one; its colours are ranks that depend on no order."""
        count = int(colours.max(initial=-1)) + 1
        while True:
            colours = dense(colours[:, None], self.signatures(colours))
            if (found := int(colours.max(initial=-1)) + 1) == count:
                return colours
            count = found

    @property
    def edges(self) -> int:
        """Number of edges of all tensors."""
        return sum(edges.bits.size for edges in self._edges)

    def _add(self, name: str, count: int) -> None:
        self.start[name] = len(self.kind)
        self.kind += [len(self.start)] * count

    def _membership(self, group: str) -> tuple[np.ndarray | None, np.ndarray]:
        perm = shape_of(self.symmetry[group])
        channel = self.start[group] + np.arange(self.symmetry[group].n)
        if not perm.outer:
            return None, channel
        return self.start[f"*{perm.outer}"] + np.arange(self.symmetry[group].n) // perm.k, channel

    def _joined(self, number: int, name: str, array: np.ndarray) -> _Edges:
        actions = self.symmetry.actions_on(name)
        blocked = {0} if any(action.blocks > 1 for action in actions) else set[int]()
        axes = sorted(blocked | {action.axis for action in actions})
        still = [axis for axis in range(array.ndim) if axis not in axes]
        moved = np.ascontiguousarray(array.transpose(*axes, *still))
        moved = moved.reshape(*moved.shape[: len(axes)], -1)
        if any(group.scale == "sign" for group in self.symmetry.groups):
            moved = moved + moved.dtype.type(0)  # a flipped sign turns 0 into -0
        raw = moved.view(f"u{moved.dtype.itemsize}").astype(np.uint64)
        place = mix(np.arange(raw.shape[-1], dtype=np.uint64) + np.uint64((number + 1) << 40))
        bits = mix(mix(raw) + place).sum(axis=-1)
        for at, axis in enumerate(axes):
            if all(action.axis != axis for action in actions):
                rows = np.arange(bits.shape[at], dtype=np.uint64)
                bits = mix(bits + mix(rows).reshape([-1 if at == other else 1 for other in range(bits.ndim)]))
        sides = tuple(self._side(number, replace(action, axis=axes.index(action.axis)), bits) for action in actions)
        kinds = [{self.kind[vertex] for vertex in np.unique(side.vertex) if vertex >= 0} for side in sides]
        for (first, ones), (second, twos) in combinations(zip(sides, kinds, strict=True), 2):
            if not blocked:
                self.dense |= {frozenset((one, two)) for one in ones for two in twos}
            if ones & twos:
                bits = mix(bits + (first.vertex == second.vertex).astype(np.uint64))
        return _Edges(mix(bits) | np.uint64(1), sides)

    def _side(self, number: int, action: AxisAction, bits: np.ndarray) -> _Side:
        """Vertex and code of every position of an axis, laid out to broadcast against the edges."""
        size = bits.shape[action.axis] * action.blocks
        vertex, code = np.full(size, -1), np.arange(size, dtype=np.uint64)
        listed: dict[str, int] = {}
        for name, places in positions(action, self.symmetry):
            leader = self.symmetry.leader(name).id
            repeat = listed.setdefault(name, 0)
            listed[name] += 1
            vertex[places] = self.start[leader] + np.arange(len(places))[:, None]
            code[places] = np.arange(places.shape[1], dtype=np.uint64) + np.uint64((repeat + 1) << 32)
        code = mix(code + mix(np.array([64 * number + action.axis], np.uint64)))
        return _Side(self._spread(vertex, action, bits), self._spread(code, action, bits))

    def _spread(self, values: np.ndarray, action: AxisAction, bits: np.ndarray) -> np.ndarray:
        """Values at the positions of an axis, broadcastable against the edges."""
        if action.blocks == 1:
            return values.reshape([-1 if axis == action.axis else 1 for axis in range(bits.ndim)])
        full = np.empty(bits.shape, values.dtype)
        view = by_channel(full[None], action)
        view[...] = values.reshape(1, action.blocks, -1, *[1] * (view.ndim - 3))
        return full

    def _end(self, side: _Side, salt: np.ndarray) -> np.ndarray:
        """What an edge sees at one of its ends: the colour there, or the position where no channel moves."""
        seen = np.where(side.vertex >= 0, salt[side.vertex], np.uint64(0))
        return mix(seen + side.code) | np.uint64(1)


def dense(*keys: np.ndarray) -> Colours:
    """Ranks of rows, by the first key (its columns in order), then the next: equal rows have equal ranks."""
    columns = [column for key in keys for column in (key.T if key.ndim == 2 else [key])]
    order = np.lexsort(columns[::-1])
    differs = np.zeros(len(order), bool)
    for column in columns:
        differs[1:] |= column[order][1:] != column[order][:-1]
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(differs)
    return ranks

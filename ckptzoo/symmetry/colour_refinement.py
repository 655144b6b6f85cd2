"""Colour refinement: a network as a graph of channels, and colourings that are refined until they are stable."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import by_channel, listings
from ckptzoo.symmetry.kinds.registry import permutations_of
from ckptzoo.symmetry.ordering import leaders

Colours = np.ndarray
"""(V,) int64, a colour per vertex; vertices of different groups never share one."""
ROUND = 2**16
"""The cost of a pass over edges beside the edges themselves, counted in edges: about the time of numpy's calls."""


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble uint64 bits (splitmix64's finaliser; Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class _Side:
    """One axis of a tensor: for every edge its vertex (-1 for none), and an odd code for its position there."""

    vertex: np.ndarray
    code: np.ndarray
    salt: np.uint64


@dataclass(frozen=True, eq=False)
class _Matrix:
    """Edges between two lists of vertices (sorted, each once): hashed weights, and a factor for each direction."""

    rows: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    transposed: np.ndarray
    salts: tuple[np.uint64, np.uint64]


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges one by one: hashed weights (E,), and for each side a vertex (E,), -1 for none."""

    weights: np.ndarray
    vertices: tuple[np.ndarray, ...]
    salts: tuple[np.uint64, ...]


class ChannelGraph:
    """The weighted graph of one checkpoint, from scaled weights (tensor name to (*shape)) in the dtype that is stored.

    Attributes
    ----------
    work
        edges that were looked at so far, and a constant for every look.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], symmetry: Symmetry) -> None:
        self.symmetry = symmetry
        self.start: dict[str, int] = {}
        """The first vertex of each leading group, and of those that its permutations have beside channels."""
        kinds: list[int] = []
        ties = {group.id: permutations_of(group).ties(group) for group in leaders(symmetry)}
        for name, tie in ties.items():
            for shared, count in tie.vertices.items():
                if shared not in self.start:
                    self._add(shared, count, kinds)
            self._add(name, symmetry[name].n, kinds)
        self.kind = np.array(kinds, np.int64)
        """For each vertex the number of its group, in order of appearance."""
        self.size = len(self.kind)
        self.meeting: set[frozenset[int]] = set()
        """Pairs of groups (by number) whose channels meet on two axes of a tensor without blocks."""
        self.meeting_in_blocks: set[frozenset[int]] = set()
        """Pairs of groups (by number) whose channels meet on two axes of a tensor with blocks."""
        self.work = 0
        self.weights_apart: list[int] = []
        """For each tensor the number of different weights."""
        self._base = np.zeros(self.size, np.uint64)
        self._matrices: list[_Matrix] = []
        self._sparse: list[_Edges] = []
        for number, name in enumerate(sorted({action.tensor for action in symmetry.actions})):
            self._join(number, name, weights[name])
        self.members: list[tuple[np.ndarray | None, np.ndarray]] = []
        """For each leading group the block of each of its channels, None without blocks, and the channels.

        Where channels keep their order within a block, each place in a block is listed apart."""
        self._ties = ties
        for name, tie in ties.items():
            channel, block = self.start[name] + np.arange(symmetry[name].n), None
            for other, ends, joined in tie.edges:
                far, near = self.start[other] + ends, self.start[name] + joined
                # 2^50 keeps the salts of ties apart from those of tensors; 2^49 gives edges of channels a direction
                salts = self.kind[[far[0], near[0]]].astype(np.uint64) + np.uint64(1 << 50)
                if other == name:
                    salts[0] += np.uint64(1 << 49)
                    self.meeting.add(frozenset((int(self.kind[near[0]]),)))
                else:
                    block = far
                self._sparse.append(_Edges(np.ones(len(far), np.uint64), (far, near), tuple(mix(salts) | np.uint64(1))))
            self.members += [
                (None if block is None else block[place :: tie.places], channel[place :: tie.places])
                for place in range(tie.places)
            ]

    def channels(self, name: str) -> slice:
        """Return the vertices of a leading group, or of what its permutations have beside channels."""
        first = self.start[name]
        return slice(first, first + int((self.kind == self.kind[first]).sum()))

    @property
    def edges(self) -> int:
        """The number of edges of all tensors that join vertices."""
        return sum(item.weights.size for item in (*self._matrices, *self._sparse))

    def fixed(self) -> np.ndarray:
        """Return a first colouring: vertices of one group alike, but for those that nothing can exchange."""
        colours = self.kind * (self.size + 1)
        for name, tie in self._ties.items():
            colours[self.channels(name)] += tie.colours
        return dense(colours[:, None])

    def sums(self, hashes: np.ndarray) -> np.ndarray:
        """Return (V,) uint64: every vertex's edges, times the hashes (V,) of what is at their other ends."""
        sums = self._base.copy()
        for item in self._matrices:
            sums[item.rows] += item.salts[0] * np.einsum("ij,j->i", item.weights, hashes[item.columns])
            sums[item.columns] += item.salts[1] * np.einsum("ij,j->i", item.transposed, hashes[item.rows])
            self.work += 2 * item.weights.size
        self.work += ROUND + self.size
        return sums

    def sparse_sums(self, hashes: np.ndarray) -> np.ndarray | None:
        """Return what the edges of tensors with blocks, or with more than two axes that move, add to ``sums``."""
        if not self._sparse:
            return None
        ends = np.append(hashes, np.uint64(1))
        sums = np.zeros(self.size, np.uint64)
        for item in self._sparse:
            for side, (vertex, salt) in enumerate(zip(item.vertices, item.salts, strict=True)):
                values = item.weights * salt
                for other, far in enumerate(item.vertices):
                    if other != side:
                        values = values * ends[far]
                here = vertex >= 0
                np.add.at(sums, vertex[here], values[here])
            self.work += len(item.vertices) * item.weights.size
        return sums

    def change(self, sums: np.ndarray, vertices: np.ndarray, difference: np.ndarray) -> None:
        """Update ``sums`` in place where the hashes of some vertices (sorted) change by a difference."""
        for item in self._matrices:
            for ends, lines, far_ends, salt in (
                (item.columns, item.transposed, item.rows, item.salts[0]),
                (item.rows, item.weights, item.columns, item.salts[1]),
            ):
                position = np.minimum(np.searchsorted(ends, vertices), len(ends) - 1)
                present = ends[position] == vertices
                if present.any():
                    factors = salt * difference[present]
                    sums[far_ends] += (lines[position[present]] * factors[:, None]).sum(axis=0)
                    self.work += len(factors) * len(far_ends)
        self.work += ROUND + self.size

    def components(self, colours: Colours) -> np.ndarray:
        """Return (V,) the smallest colour of each vertex's component; -1 for vertices with a colour of their own.

        Two cells are joined where the edges between them differ. The colouring must be stable, so that one vertex of a
        cell stands for all of them.
        """
        shared = np.bincount(colours, minlength=self.size) > 1
        label = np.where(shared, np.arange(self.size), -1)
        joined: list[np.ndarray] = []
        for item in self._matrices:
            rows, columns = colours[item.rows], colours[item.columns]
            cells, first = np.unique(rows, return_index=True)
            first = first[shared[cells]]
            order = np.argsort(columns, kind="stable")
            order = order[shared[columns[order]]]
            if not len(first) or not len(order):
                continue
            ends = columns[order]
            starts = np.flatnonzero(np.append(True, ends[1:] != ends[:-1]))
            lines = item.weights[np.ix_(first, order)]
            differ = np.minimum.reduceat(lines, starts, axis=1) != np.maximum.reduceat(lines, starts, axis=1)
            here, there = np.nonzero(differ)
            joined.append(np.stack([rows[first[here]], ends[starts[there]]], axis=1))
            self.work += lines.size
        for item in self._sparse:
            for one, two in combinations(item.vertices, 2):
                both = (one >= 0) & (two >= 0)
                pairs = np.unique(np.stack([colours[one[both]], colours[two[both]]], axis=1), axis=0)
                joined.append(pairs[shared[pairs].all(axis=1)])
        self.work += ROUND + self.size
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *joined])
        while True:
            least = np.minimum(label[pairs[:, 0]], label[pairs[:, 1]])
            before = label.copy()
            np.minimum.at(label, pairs[:, 0], least)
            np.minimum.at(label, pairs[:, 1], least)
            if (label == before).all():
                return label[colours]

    def _add(self, name: str, count: int, kinds: list[int]) -> None:
        self.start[name] = len(kinds)
        kinds += [len(self.start)] * count

    def _join(self, number: int, name: str, array: np.ndarray) -> None:
        """Hash a tensor's weights, and add the edges that they are on."""
        actions = self.symmetry.actions_on(name)
        blocked = {0} if any(action.blocks > 1 for action in actions) else set[int]()
        axes = sorted(blocked | {action.axis for action in actions})
        still = [axis for axis in range(array.ndim) if axis not in axes]
        moved = np.ascontiguousarray(array.transpose(*axes, *still))
        moved = moved.reshape(*moved.shape[: len(axes)], -1)
        if any(group.flips for group in self.symmetry.groups):
            moved = moved + moved.dtype.type(0)  # a flipped sign turns 0 into -0
        raw = moved.view(f"u{moved.dtype.itemsize}").astype(np.uint64)
        place = mix(np.arange(raw.shape[-1], dtype=np.uint64) + np.uint64((number + 1) << 40))
        bits = mix(mix(raw) + place).sum(axis=-1)
        for at, axis in enumerate(axes):
            if all(action.axis != axis for action in actions):
                rows = np.arange(bits.shape[at], dtype=np.uint64)
                bits = mix(bits + mix(rows).reshape([-1 if at == other else 1 for other in range(bits.ndim)]))
        placed = [replace(action, axis=axes.index(action.axis)) for action in actions]
        sides = tuple(side for action in placed for side in self._sides(number, action, bits))
        kinds = [set(self.kind[np.unique(side.vertex[side.vertex >= 0])].tolist()) for side in sides]
        for (first, ones), (second, twos) in combinations(zip(sides, kinds, strict=True), 2):
            pairs = {frozenset((one, two)) for one in ones for two in twos}
            if blocked:
                self.meeting_in_blocks |= pairs
            else:
                self.meeting |= pairs
            if ones & twos:
                bits = mix(bits + (first.vertex == second.vertex).astype(np.uint64))
        weights = mix(bits) | np.uint64(1)
        ordered = np.sort(weights, axis=None)
        self.weights_apart.append(int((ordered[1:] != ordered[:-1]).sum()))
        for side in sides:
            weights = weights * side.code
        if len(sides) == 1:
            vertex = np.broadcast_to(sides[0].vertex, weights.shape)
            np.add.at(self._base, vertex[vertex >= 0], weights[vertex >= 0])
        elif len(sides) == 2 and not blocked and weights.ndim == 2:
            self._join_two(weights, sides)
        else:
            ends = tuple(np.broadcast_to(side.vertex, weights.shape).ravel() for side in sides)
            self._sparse.append(_Edges(weights.ravel(), ends, tuple(side.salt for side in sides)))

    def _join_two(self, weights: np.ndarray, sides: tuple[_Side, ...]) -> None:
        """Add edges between two axes, with those of one vertex that takes several positions summed."""
        rows, columns = (side.vertex.ravel() for side in sides)
        np.add.at(self._base, rows[rows >= 0], sides[0].salt * weights[rows >= 0][:, columns < 0].sum(axis=1))
        np.add.at(self._base, columns[columns >= 0], sides[1].salt * weights[:, columns >= 0][rows < 0].sum(axis=0))
        rows, weights = _added(rows, weights)
        columns, transposed = _added(columns, np.ascontiguousarray(weights.T))
        if len(rows) and len(columns):
            weights = np.ascontiguousarray(transposed.T)
            self._matrices.append(_Matrix(rows, columns, weights, transposed, (sides[0].salt, sides[1].salt)))

    def _sides(self, number: int, action: AxisAction, bits: np.ndarray) -> list[_Side]:
        """Return vertex and code of every position of an axis, shaped to broadcast against the edges.

        Where a group acts inside the channels of others, its vertices are a second side of the axis.
        """
        size = bits.shape[action.axis] * action.blocks
        vertex, code = np.full(size, -1), np.arange(size, dtype=np.uint64)
        nested = np.full(size, -1)
        listed: dict[str, int] = {}
        for item in listings(action, self.symmetry):
            places, inside = item.places, item.inside
            leader = self.symmetry.leader(item.group).id
            repeat = listed.setdefault(item.group, 0)
            listed[item.group] += 1
            vertex[places] = self.start[leader] + np.arange(len(places))[:, None]
            slots = np.arange(places.shape[1])
            if inside is not None:
                nested[places] = self.start[inside[0]] + inside[1]
                # positions that it exchanges inside a channel look alike
                slots %= int((inside[1][0] == inside[1][0, 0]).sum())
            # the slot is in the low 32 bits, the number of the listing in the others
            code[places] = slots.astype(np.uint64) + np.uint64((repeat + 1) << 32)
        salt = mix(np.array([64 * number + action.axis], np.uint64))
        code = mix(code + salt) | np.uint64(1)
        salt = (mix(salt + np.uint64(1)) | np.uint64(1))[0]
        sides = [_Side(self._spread(vertex, action, bits), self._spread(code, action, bits), salt)]
        if (nested >= 0).any():
            other_salt = (mix(np.array([salt + np.uint64(2)])) | np.uint64(1))[0]
            sides.append(_Side(self._spread(nested, action, bits), np.ones((1,) * bits.ndim, np.uint64), other_salt))
        return sides

    def _spread(self, values: np.ndarray, action: AxisAction, bits: np.ndarray) -> np.ndarray:
        """Return values at the positions of an axis, broadcastable against the edges."""
        if action.blocks == 1:
            return values.reshape([-1 if axis == action.axis else 1 for axis in range(bits.ndim)])
        full = np.empty(bits.shape, values.dtype)
        view = by_channel(full[None], action)
        view[...] = values.reshape(1, action.blocks, -1, *[1] * (view.ndim - 3))
        return full


def _added(vertices: np.ndarray, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices sorted and each once, and the sums of their lines; lines of no vertex (-1) are dropped."""
    order = np.argsort(vertices, kind="stable")
    order = order[vertices[order] >= 0]
    distinct, starts = np.unique(vertices[order], return_index=True)
    if len(distinct) == len(vertices) and (order == np.arange(len(order))).all():
        return distinct, lines
    return distinct, np.add.reduceat(lines[order], starts, axis=0) if len(order) else lines[:0]


def dense(*keys: np.ndarray) -> Colours:
    """Return the ranks of rows, by the first key (its columns in order), then the next: equal rows have equal ranks."""
    columns = [column for key in keys for column in (key.T if key.ndim == 2 else [key])]
    order = np.lexsort(columns[::-1])
    differs = np.zeros(len(order), bool)
    for column in columns:
        differs[1:] |= column[order][1:] != column[order][:-1]
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(differs)
    return ranks


def split(colours: Colours, values: np.ndarray) -> Colours:
    """Split every cell by values (V,), larger parts first; the same object where nothing is split.

    A colour is the number of vertices of smaller colours, so that a cell's first part keeps its colour and no other
    cell's colour changes.
    """
    shared = np.flatnonzero(np.bincount(colours, minlength=len(colours))[colours] > 1)
    if not len(shared):
        return colours
    cell, value = colours[shared], values[shared]
    order = np.lexsort((value, cell))
    cell, value = cell[order], value[order]
    starts = np.flatnonzero(np.append(True, (cell[1:] != cell[:-1]) | (value[1:] != value[:-1])))
    if len(starts) == 1 + (cell[1:] != cell[:-1]).sum():
        return colours
    sizes, run_cell = np.diff(np.append(starts, len(cell))), cell[starts]
    rank = np.lexsort((value[starts], -sizes, run_cell))
    before = np.cumsum(sizes[rank]) - sizes[rank]
    first = np.append(True, run_cell[rank][1:] != run_cell[rank][:-1])
    offset = before - np.maximum.accumulate(np.where(first, before, 0))
    fresh = np.empty(len(starts), np.int64)
    fresh[rank] = run_cell[rank] + offset
    finer = colours.copy()
    finer[shared[order]] = np.repeat(fresh, sizes)
    return finer


class EdgeSums:
    """The sums of a graph's edges under a colouring, updated from one colouring to the next."""

    def __init__(self, graph: ChannelGraph) -> None:
        self.graph = graph
        # ``mix`` maps 0 to 0: the increment of splitmix64 keeps colour 0 from having no weight
        self._hashes = mix(np.arange(graph.size, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        self._colours: Colours | None = None
        self._sums = np.zeros(0, np.uint64)
        self._total = np.zeros(0, np.uint64)

    def of(self, colours: Colours) -> np.ndarray:
        """Return (V,) uint64, equal for vertices whose edges carry the same weights to the same colours."""
        hashes = self._hashes[colours]
        if self._colours is None:
            self._sums = self.graph.sums(hashes)
        else:
            changed = np.flatnonzero(colours != self._colours)
            if not len(changed):
                return self._total
            if 4 * len(changed) > self.graph.size:
                self._sums = self.graph.sums(hashes)
            else:
                self.graph.change(self._sums, changed, hashes[changed] - self._hashes[self._colours[changed]])
        sparse = self.graph.sparse_sums(hashes)
        self._colours, self._total = colours, self._sums.copy() if sparse is None else self._sums + sparse
        return self._total

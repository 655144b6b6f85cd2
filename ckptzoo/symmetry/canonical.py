"""The complete order: every checkpoint of an orbit comes to the same weights, ties and all.

A channel's key is the sum of its incoming scaled weights, which does not depend on the order of any channels.
Channels are sorted by it. Where two keys of a checkpoint are equal, its channels are sorted by the key, then by the
sum of what else writes them, then by the sum of what reads them; what is still alike is told apart by colour
refinement and a bounded search. Beyond the bound the checkpoint is reported as unresolved.

Tell apart what refinement cannot: individualise a vertex, refine, and search, within a bound.

Refinement leaves cells of channels that look alike. Where they are interchangeable one by one (twins), any order
will do. Otherwise each channel of the first such cell is named in turn and the colouring refined again, down to
colourings in which every vertex stands alone; the smallest certificate among these leaves is the canonical one.
Two leaves with one certificate are an automorphism, which spares the search whatever it maps to what was seen
(McKay and Piperno, Practical graph isomorphism II, 2014). True ties are graph canonicalisation: the search is
exponential at worst, so it stops at a number of nodes that depends on the network's size alone.

Colour refinement of one checkpoint's channels: what can be told apart without naming any channel.

The channels of every group that leads a permutation, and the blocks of every block permutation, are the vertices
of a graph; each tensor joins the channels on its axes by edges that bear weights. A colouring is refined until it
stays: two vertices keep one colour as long as their edges bear the same weights to the same colours. Sums modulo
2 ** 64 of mixed bits stand for multisets, so that no order of vertices enters; two multisets that differ share a sum
with a chance of about 2 ** -64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ckptzoo.schema.symmetry import AxisAction, Fixed, Symmetry, Wreath
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.arrays import by_channel, positions
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import KEYS, Order, leaders, shape_of, sum_keys
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales

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


EDGES = 2**28
NODES = (64, 4096)
"""A search may look at so many edges, over all its nodes, but at least and at most at so many nodes."""


class Search:
    """A canonical colouring of a graph in which every vertex stands alone.

    Parameters
    ----------
    graphs : one graph at several precisions, the exact one last; what a rougher one tells apart comes first, so
        that rounding decides only what nothing else does.
    colours : (V,) where to start from; must not depend on the order of channels.

    Attributes
    ----------
    best : (V,) the colouring found: a rank for every vertex.
    complete : whether the search came to its end, so that the colouring is canonical.
    """

    def __init__(self, graphs: Sequence[Graph], colours: Colours) -> None:
        self._graphs, self._graph = graphs, graphs[-1]
        self._left = min(NODES[1], max(NODES[0], EDGES // max(1, self._graph.edges)))
        self._leaves: list[tuple[bytes, Colours, tuple[int, ...]]] = []
        self._automorphisms: list[np.ndarray] = []
        self._jump: int | None = None
        self.complete = True
        self._descend(colours, ())
        self.best = min(self._leaves, key=lambda leaf: leaf[0])[1]

    def _descend(self, colours: Colours, path: tuple[int, ...]) -> None:
        self._left -= 1
        colours = self._refine(colours)
        while (cell := _first_cell(colours)) is not None:
            told = self._tell_twins(colours, cell)
            if told is None:
                break
            colours = self._refine(told)
        if cell is None:
            self._leaf(colours, path)
            return
        tried: list[int] = []
        for vertex in cell.tolist():
            if self._in_orbit(vertex, tried, path):
                continue
            if self._left <= 0 and self._leaves:
                self.complete = False
                return
            tried.append(vertex)
            named = colours * 2 + 1
            named[vertex] -= 1
            self._descend(dense(named[:, None]), (*path, vertex))
            if self._jump is not None and self._jump < len(path):
                return
            self._jump = None

    def _refine(self, colours: Colours) -> Colours:
        for graph in self._graphs:
            colours = graph.refine(colours)
        return colours

    def _leaf(self, colours: Colours, path: tuple[int, ...]) -> None:
        order = np.argsort(colours)
        certificate = b"".join(graph.signatures(colours)[order].tobytes() for graph in self._graphs)
        for known, others, other_path in self._leaves:
            if known == certificate:
                moved = np.empty_like(colours)
                moved[np.argsort(others)] = order
                self._automorphisms.append(moved)
                shared = (one == two for one, two in zip(path, other_path, strict=False))
                self._jump = next((depth for depth, same in enumerate(shared) if not same), 0)
                return
        self._leaves = [
            *self._leaves[:1],
            min([*self._leaves[1:], (certificate, colours, path)], key=lambda leaf: leaf[0]),
        ]

    def _in_orbit(self, vertex: int, tried: list[int], path: tuple[int, ...]) -> bool:
        """Whether automorphisms that leave the path alone map a vertex that was tried to this one."""
        keeping = [moved for moved in self._automorphisms if all(moved[step] == step for step in path)]
        reached, edge = set(tried), list(tried)
        while edge:
            at = edge.pop()
            for moved in keeping:
                if (image := int(moved[at])) not in reached:
                    reached.add(image)
                    edge.append(image)
        return vertex in reached

    def _tell_twins(self, colours: Colours, cell: np.ndarray) -> Colours | None:
        """Number the twins of a cell in any order; None where it has none."""
        roles = self._units(cell)
        if roles is None:
            return None
        exact = np.arange(len(colours)) + len(roles)
        for number, vertices in enumerate(roles):
            exact[vertices] = number
        found = self._graph.signatures(dense(exact[:, None]))
        classes = dense(np.stack([found[vertices] for vertices in roles], axis=1))
        order = np.argsort(classes, kind="stable")
        ranks = np.empty(len(classes), np.int64)
        starts = np.flatnonzero(np.diff(classes[order], prepend=-1))
        ranks[order] = np.arange(len(classes)) - np.repeat(starts, np.diff(np.append(starts, len(classes))))
        if not ranks.any():
            return None
        within = np.zeros(len(colours), np.int64)
        within[cell] = ranks
        return dense(np.stack([colours, within], axis=1))

    def _units(self, cell: np.ndarray) -> list[np.ndarray] | None:
        """What moves with each vertex of a cell: for blocks of single channels, these too. None where they meet."""
        graph = self._graph
        roles = [cell]
        for block, channel in graph.members:
            if block is None or graph.kind[block[0]] != graph.kind[cell[0]]:
                continue
            if len(np.unique(block)) != len(block):
                return None
            roles.append(channel[cell - block[0]])
        kinds = [graph.kind[vertices[0]] for vertices in roles]
        if any(frozenset((one, two)) in graph.dense for one in kinds for two in kinds):
            return None
        return roles


def _first_cell(colours: Colours) -> np.ndarray | None:
    """The vertices of the smallest colour that several have, in the order of their numbers."""
    counts = np.bincount(colours)
    shared = np.flatnonzero(counts > 1)
    return np.flatnonzero(colours == shared[0]) if len(shared) else None


ROUGH = 2.0**16
"""Weights are first compared as multiples of its inverse."""


def order(moments: Moments, found: Scales, report: Report) -> dict[str, np.ndarray]:
    """Permutations (K, n) by group, ascending in the keys, ties resolved."""
    symmetry = moments.symmetry
    usable = {name: np.where(np.isfinite(scale) & (scale != 0), scale, 1) for name, scale in found.scales.items()}
    still = GroupElement(GroupElement.identity(symmetry, moments.K).perms, usable)
    scaled = Moments(apply(still, moments.arrays, symmetry, threads=1), symmetry)
    keys = sum_keys(scaled)
    made = Order(symmetry, moments.K, report)
    for group in leaders(symmetry):
        made.decide(group, keys[group.id])
    for row in np.flatnonzero(report.ties).tolist():
        _resolve(row, scaled, keys, made, report)
    report.unresolved[:] |= found.unsigned
    return made.perms


def _resolve(row: int, scaled: Moments, keys: dict[str, np.ndarray], made: Order, report: Report) -> None:
    """Order one checkpoint that has ties."""
    symmetry = scaled.symmetry
    one = Moments({name: array[row : row + 1] for name, array in scaled.arrays.items()}, symmetry)
    graph = Graph({name: array[0] for name, array in one.arrays.items()}, symmetry)
    rough = Graph({name: np.round(array[0] * ROUGH) for name, array in one.arrays.items()}, symmetry)
    columns = np.zeros((graph.size, 3))
    decided: set[str] = set()
    for group in leaders(symmetry):
        at, perm = graph.start[group.id], shape_of(group)
        mine = columns[at : at + group.n]
        mine[:, 0] = keys[group.id][row]
        mine[:, 1:] = _further(group.id, one)
        if perm.outer and perm.outer not in decided:
            decided.add(perm.outer)
            at = graph.start[f"*{perm.outer}"]
            columns[at : at + perm.g, 0] = mine[:, 0].reshape(perm.g, perm.k).min(axis=1)
    search = Search((rough, graph), dense(graph.fixed()[:, None], columns))
    report.unresolved[row] = not search.complete
    for group in leaders(symmetry):
        at, perm = graph.start[group.id], shape_of(group)
        ranks = search.best[at : at + group.n].reshape(perm.g, perm.k)
        start = graph.start.get(f"*{perm.outer}", 0)
        outer = np.argsort(search.best[start : start + perm.g]) if perm.outer else np.zeros(1, np.int64)
        inside = np.argsort(ranks, axis=1)[outer] + perm.k * outer[:, None]
        made.replace(group, row, inside.reshape(group.n))


def _further(group: str, one: Moments) -> np.ndarray:
    """Sums of everything but the first tensor that writes a group's channels, and of what reads them: (n, 2)."""
    found = np.zeros((one.symmetry[group].n, 2))
    for number, actions in enumerate((one.writers(group)[1:], one.readers(group))):
        for action in actions:
            found[:, number] += one.sums(action, group, {})[0]
    return np.round(found * KEYS) / KEYS

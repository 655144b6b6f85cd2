"""The complete order of channels (neurons), ties broken: every checkpoint of an orbit comes to the same weights.

A channel's key is the sum of its incoming scaled weights, which does not depend on the order of any channels. Channels
are sorted by it (``ordering.py``). Where two keys of a checkpoint are equal, its channels are sorted by the key, then
by the sum of what else writes them, then by the sum of what reads them; what is still alike is distinguished by colour
refinement (``colour_refinement.py``) and a bounded search. Beyond the bound the checkpoint is reported as unresolved.

The channels of every group that leads a permutation, and the blocks of every block permutation, are the vertices
of a graph; each tensor joins the channels on its axes by edges that carry weights. A colouring is refined until it
is stable: two vertices keep one colour as long as their edges carry the same weights to the same colours. Sums modulo
2 ** 64 of hashed weights times hashed colours represent multisets, so that no order of vertices enters and a round
costs one multiplication and one addition an edge; two multisets that differ have equal sums with a chance of about
2 ** -64.

Refinement leaves cells of channels that look alike. Where they are interchangeable one by one (twins), any order
will do. Otherwise each channel of one such cell is individualised in turn and the colouring refined again, down
to colourings in which every vertex has its own colour. The smallest of these leaves is canonical; leaves are compared
by what refinement saw on the way (their trace) and then by their weights. Branches whose trace is larger than that of
the best leaf are skipped, and so is whatever an automorphism maps to what was seen. Automorphisms come from two equal
leaves, and from inner nodes that differ from the first path by a permutation of a few vertices (McKay and Piperno,
Practical graph isomorphism II, 2014; Darga, Sakallah and Markov, Faster symmetry discovery using sparsity of
symmetries, 2008). Ties are graph canonicalisation: the search is exponential at worst, so it stops after an amount of
work that depends on the network's size alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.colour_refinement import ChannelGraph, Colours, EdgeSums, dense, mix, split
from ckptzoo.symmetry.kinds.registry import permutations_of
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import KEYS, Order, leaders, sum_keys
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales

WORK = 2**30
"""The number of edges that a search may look at: some seconds of work."""
WORK_PER_EDGE = 64
"""The number of looks at each edge in large networks, whose first refinement needs some rounds."""
MAX_BYTES = 2**28
"""Bytes of the colourings on the way to a leaf."""
MAX_AUTOMORPHISMS = 256
"""Automorphisms kept to prune branches off the first path; on the first path all count, in the orbits."""
ROUGH = 2.0**16
"""Weights are first compared as multiples of the inverse of this number."""


def complete_order(raw: Moments, scaled: Moments, found: Scales, report: Report) -> dict[str, np.ndarray]:
    """Return permutations (K, n) by group: channels of scaled weights ascending in their keys, ties broken.

    ``found`` are the scales. Ties and margins are counted into ``report``, and checkpoints whose ties are left are
    marked unresolved, in place.
    """
    symmetry = raw.symmetry
    keys = sum_keys(scaled)
    order = Order(symmetry, raw.K, report)
    for group in leaders(symmetry):
        order.decide(group, keys[group.id])
    for row in np.flatnonzero(report.ties).tolist():
        _break_ties(row, scaled, keys, order, report)
    report.unresolved[:] |= found.unsigned
    return order.perms


def _break_ties(row: int, scaled: Moments, keys: dict[str, np.ndarray], order: Order, report: Report) -> None:
    """Order one checkpoint that has ties."""
    symmetry = scaled.symmetry
    arrays = {name: array[row : row + 1] for name, array in scaled.arrays.items()}
    checkpoint = Moments(arrays, symmetry, cubes=scaled.cubes)
    graph = ChannelGraph({name: array[0] for name, array in checkpoint.arrays.items()}, symmetry)
    rough = ChannelGraph({name: np.round(array[0] * ROUGH) for name, array in checkpoint.arrays.items()}, symmetry)
    columns = np.zeros((graph.size, 3))
    for group in reversed(leaders(symmetry)):  # blocks that several groups share have the keys of the first one
        channels = columns[graph.channels(group.id)]
        channels[:, 0] = keys[group.id][row]
        channels[:, 1:] = _other_sums(group.id, checkpoint)
        for name, ends, joined in permutations_of(group).ties(group).edges:
            if name != group.id:
                columns[graph.channels(name), 0] = np.inf
                np.minimum.at(columns[:, 0], graph.start[name] + ends, channels[joined, 0])
    # Where rounding merges no two weights both graphs say the same, and the search need not go through both.
    graphs = (rough,) if rough.weights_apart == graph.weights_apart else (rough, graph)
    search = Search(graphs, dense(graph.fixed()[:, None], columns))
    report.unresolved[row] |= not search.complete
    ranks = {name: search.best[graph.channels(name)] for name in graph.start}
    for group in leaders(symmetry):
        order.replace(group, row, permutations_of(group).by_ranks(group, ranks[group.id], ranks))


def _other_sums(group: str, checkpoint: Moments) -> np.ndarray:
    """Return sums of everything but the first tensor that writes a group's channels, and of what reads them: (n, 2)."""
    sums = np.zeros((checkpoint.symmetry[group].n, 2))
    for number, actions in enumerate((checkpoint.writers(group)[1:], checkpoint.readers(group))):
        for action in actions:
            sums[:, number] += checkpoint.sums(action, group, {})[0]
    return np.round(sums * KEYS) / KEYS


@dataclass(frozen=True, eq=False)
class _Node:
    """A refined colouring, and for each graph a number that depends on no order of vertices."""

    colours: Colours
    traces: tuple[int, ...]
    cell: np.ndarray | None


@dataclass(eq=False)
class _Frame:
    """A node on the way to the present one.

    ``tried`` lists the vertices of its cell that were individualised, and ``alike`` says whether the traces down to
    here are those of the first path.
    """

    node: _Node
    tried: list[int]
    alike: bool


class Search:
    """A canonical colouring of a graph in which every vertex has its own colour.

    Parameters
    ----------
    graphs
        one graph at several precisions, the exact one last; what a rougher one distinguishes comes first, so that
        rounding decides only what nothing else does.
    colours
        (V,) the first colouring; must not depend on the order of channels.

    Attributes
    ----------
    best
        (V,) the colouring found: a rank for every vertex.
    complete
        whether the search came to its end, so that the colouring is canonical.
    """

    def __init__(self, graphs: Sequence[ChannelGraph], colours: Colours) -> None:
        self._graph = graphs[-1]
        self._signatures = [EdgeSums(graph) for graph in graphs]
        self._limit = max(WORK, WORK_PER_EDGE * self._graph.edges)
        self._twins: dict[int, np.ndarray | None] = {}
        self._orbits = np.arange(self._graph.size)
        self._automorphisms: list[np.ndarray] = []
        # hashes of vertices, apart from those of colours
        self._probe = mix(np.arange(self._graph.size, dtype=np.uint64) + np.uint64(0xD1B54A32D192ED03))
        self._probed: tuple[np.ndarray, np.ndarray | None] | None = None
        self._path: list[int] = []
        self._traces: list[tuple[int, ...]] = []
        self._first: list[_Node] = []
        self._first_path: list[int] = []
        self._best: tuple[_Node, list[int], list[tuple[int, ...]], list[bytes]] | None = None
        self.complete = True
        counts = np.bincount(colours)
        self._run((np.cumsum(counts) - counts)[colours])

    def _run(self, colours: Colours) -> None:
        frames: list[_Frame] = []
        node: _Node | None = self._node(colours)
        while node is not None:
            self._visit(node, frames)
            node = None
            while frames and node is None:
                frame = frames[-1]
                vertex = self._next(frame, len(frames) - 1)
                if vertex is None:
                    frames.pop()
                    continue
                if self._stopped(len(frames)):
                    self.complete = False
                    break
                frame.tried.append(vertex)
                depth = len(frames) - 1
                self._path[depth:] = [vertex]
                self._traces[depth + 1 :] = []
                named = frame.node.colours.copy()
                named[vertex] += len(frame.node.cell if frame.node.cell is not None else ()) - 1
                node = self._node(named)
        if self._best is not None:
            self.best = self._best[0].colours
        else:
            last = self._first[-1].colours
            self.best = np.argsort(np.argsort(last, kind="stable"), kind="stable")

    def _stopped(self, depth: int) -> bool:
        spent = sum(item.graph.work for item in self._signatures)
        return spent > self._limit or 8 * depth * self._graph.size > MAX_BYTES

    def _node(self, colours: Colours) -> _Node:
        """Refine a colouring and number the twins of its first cells."""
        colours = self._refine(colours)
        while (cell := self._cell(colours)) is not None:
            finer = self._number_twins(colours, cell)
            if finer is colours:
                break
            colours = self._refine(finer)
        traces = tuple(
            int(mix(item.of(colours) + mix(colours.astype(np.uint64))).sum(dtype=np.uint64))
            for item in self._signatures
        )
        return _Node(colours, traces, cell)

    def _refine(self, colours: Colours) -> Colours:
        """Return the coarsest stable colouring below this one; its colours depend on no order."""
        for item in self._signatures:
            while (finer := split(colours, item.of(colours))) is not colours:
                colours = finer
                if item.graph.work > 2 * self._limit:
                    self.complete = False
                    break
        return colours

    def _visit(self, node: _Node, frames: list[_Frame]) -> None:
        """Continue below a node, or at the node to return to."""
        depth = len(frames)
        self._traces[depth:] = [node.traces]
        if self._best is None:
            self._first.append(node)
            if node.cell is None:
                self._first_path = list(self._path)
                self._keep(node)
                return
            frames.append(_Frame(node, [], True))
            return
        alike = frames[-1].alike and depth < len(self._first) and node.traces == self._first[depth].traces
        if alike and (moved := self._early_automorphism(self._first[depth].colours, node.colours)) is not None:
            self._found(moved, self._first_path, frames)
            return
        if node.cell is None:
            self._leaf(node, alike, frames)
            return
        _, _, traces, _ = self._best
        mine, known = ([item[0] for item in items[: depth + 1]] for items in (self._traces, traces))
        if alike or mine <= known:
            frames.append(_Frame(node, [], alike))

    def _leaf(self, node: _Node, alike: bool, frames: list[_Frame]) -> None:
        assert self._best is not None
        certificates = self._certificates(node)
        if alike and certificates == self._certificates(self._first[-1]):
            self._found(_mapping(self._first[-1].colours, node.colours), self._first_path, frames)
            return
        best, path, traces, known = self._best
        mine, theirs = self._key(self._traces, certificates), self._key(traces, known)
        if mine == theirs:
            self._found(_mapping(best.colours, node.colours), path, frames)
        elif mine < theirs:
            self._keep(node)

    def _key(self, traces: list[tuple[int, ...]], certificates: list[bytes]) -> list[tuple[list[int], bytes]]:
        return [([trace[number] for trace in traces], certificate) for number, certificate in enumerate(certificates)]

    def _keep(self, node: _Node) -> None:
        self._best = node, list(self._path), list(self._traces), self._certificates(node)

    def _certificates(self, node: _Node) -> list[bytes]:
        order = np.argsort(node.colours)
        return [item.of(node.colours)[order].tobytes() for item in self._signatures]

    def _found(self, moved: np.ndarray, path: list[int], frames: list[_Frame]) -> None:
        """Keep an automorphism that maps one path to the present one, and go back to where the two part."""
        pairs = np.stack([self._orbits, self._orbits[moved]], axis=1)
        for one, two in np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).tolist():
            one, two = sorted(self._orbits[[one, two]].tolist())
            if one != two:
                self._orbits[self._orbits == two] = one
        self._automorphisms = [*self._automorphisms[-MAX_AUTOMORPHISMS + 1 :], moved]
        depth = len(self._path) - 1
        if self._path[:depth] != path[:depth]:
            shared = (one == two for one, two in zip(self._path, path, strict=False))
            depth = next((depth for depth, same in enumerate(shared) if not same), 0)
        del frames[depth + 1 :]

    def _next(self, frame: _Frame, depth: int) -> int | None:
        """Return the next vertex of a frame's cell that no automorphism maps one to that was tried."""
        cell = frame.node.cell
        if cell is None or not frame.tried:
            return None if cell is None else int(cell[0])
        if self._path[:depth] == self._first_path[:depth]:  # every automorphism so far leaves this path alone
            seen = np.isin(self._orbits[cell], self._orbits[frame.tried])
        else:
            seen = np.isin(cell, self._images(frame.tried, depth))
        left = np.flatnonzero(~seen)
        return int(cell[left[0]]) if len(left) else None

    def _images(self, vertices: list[int], depth: int) -> list[int]:
        """Return the images of some vertices under the automorphisms that fix the path down to a depth."""
        path = np.array(self._path[:depth], np.int64)
        keeping = [moved for moved in self._automorphisms if (moved[path] == path).all()]
        reached, edge = set(vertices), list(vertices)
        while edge:
            vertex = edge.pop()
            for moved in keeping:
                if (image := int(moved[vertex])) not in reached:
                    reached.add(image)
                    edge.append(image)
        return list(reached)

    def _early_automorphism(self, first: Colours, other: Colours) -> np.ndarray | None:
        """Return an automorphism that maps one colouring of an inner node to another, if a simple guess is one.

        Vertices with a colour of their own are mapped by colour, and most others to themselves.
        """
        size = len(first)
        counts = np.bincount(first, minlength=size)
        if (counts != np.bincount(other, minlength=size)).any():
            return None
        alone, alone_other = (np.flatnonzero(counts[colours] == 1) for colours in (first, other))
        sources = alone[np.argsort(first[alone])]
        images = alone_other[np.argsort(other[alone_other])]
        moved, back = np.arange(size), np.full(size, -1)
        moved[sources] = images
        back[images] = sources
        left = np.flatnonzero((first != other) & (counts[first] > 1))
        guess = back[left]
        if (guess < 0).any() or (other[guess] != first[left]).any():
            return None
        moved[left] = guess
        if (np.bincount(moved, minlength=size) != 1).any() or (other[moved] != first).any():
            return None
        return moved if self._is_automorphism(moved) else None

    def _is_automorphism(self, moved: np.ndarray) -> bool:
        graph, probe = self._graph, self._probe
        if self._probed is None:
            self._probed = graph.sums(probe), graph.sparse_sums(probe)
        sums, sparse = self._probed
        hashes = np.empty_like(probe)
        hashes[moved] = probe
        changed = np.flatnonzero(hashes != probe)
        if 4 * len(changed) > graph.size:
            image = graph.sums(hashes)
        else:
            image = sums.copy()
            graph.change(image, changed, hashes[changed] - probe[changed])
        if (image[moved] != sums).any():
            return False
        image_sparse = graph.sparse_sums(hashes)
        return image_sparse is None or sparse is None or bool((image_sparse[moved] == sparse).all())

    def _cell(self, colours: Colours) -> np.ndarray | None:
        """Return the vertices of the first cell of the smallest component, in the order of their numbers.

        In the smallest one the consequences of an individualised vertex are used up before another component begins.
        """
        counts = np.bincount(colours, minlength=len(colours))
        shared = np.flatnonzero(counts > 1)
        if not len(shared):
            return None
        chosen = shared[0]
        if len(shared) > 2:
            component = self._graph.components(colours)
            sizes = np.bincount(component[component >= 0])
            sizes = np.where(sizes == 0, len(colours) + 1, sizes)
            chosen = np.argmin(sizes)
        return np.flatnonzero(colours == chosen)

    def _number_twins(self, colours: Colours, cell: np.ndarray) -> Colours:
        """Number the twins of a cell in any order; return the same colouring where it has none."""
        kind = int(self._graph.kind[cell[0]])
        if kind not in self._twins:
            self._twins[kind] = self._twin_classes(kind)
        classes = self._twins[kind]
        if classes is None:
            return colours
        mine = classes[cell]
        order = np.argsort(mine, kind="stable")
        starts = np.flatnonzero(np.append(True, np.diff(mine[order]) != 0))
        values = np.zeros(len(colours), np.int64)
        values[cell[order]] = np.arange(len(mine)) - np.repeat(starts, np.diff(np.append(starts, len(mine))))
        return split(colours, values)

    def _twin_classes(self, kind: int) -> np.ndarray | None:
        """Return (V,) numbers, equal for vertices of a kind that may change places alone; None where these meet."""
        graph = self._graph
        vertices = np.flatnonzero(graph.kind == kind)
        roles = [vertices]
        for block, channel in graph.members:
            if block is None or graph.kind[block[0]] != kind:
                continue
            if len(np.unique(block)) != len(block):
                return None
            roles.append(channel)
        kinds = [int(graph.kind[role[0]]) for role in roles]
        pairs = {frozenset((one, two)) for one in kinds for two in kinds}
        if pairs & graph.meeting or (len(roles) == 1 and pairs & graph.meeting_in_blocks):
            return None
        hashes = self._probe.copy()
        for number, role in enumerate(roles):
            hashes[role] = mix(np.array([number], np.uint64))
        sums, sparse = graph.sums(hashes), graph.sparse_sums(hashes)
        sums = sums if sparse is None else sums + sparse
        classes = np.full(graph.size, -1)
        classes[vertices] = dense(np.stack([sums[role] for role in roles], axis=1))
        return classes


def _mapping(colours: Colours, other: Colours) -> np.ndarray:
    """Return the permutation that maps one colouring to another, in both of which every vertex has its own colour."""
    moved = np.empty_like(colours)
    moved[np.argsort(colours)] = np.argsort(other)
    return moved

"""Tell apart what refinement cannot: individualise a vertex, refine, and search, within a bound.

Refinement leaves cells of channels that look alike. Where they are interchangeable one by one (twins), any order
will do. Otherwise each channel of the first such cell is named in turn and the colouring refined again, down to
colourings in which every vertex stands alone; the smallest certificate among these leaves is the canonical one.
Two leaves with one certificate are an automorphism, which spares the search whatever it maps to what was seen
(McKay and Piperno, Practical graph isomorphism II, 2014). True ties are graph canonicalisation: the search is
exponential at worst, so it stops at a number of nodes that depends on the network's size alone.
"""

from collections.abc import Sequence

import numpy as np

from ckptzoo.symmetry.refinement import Colours, Graph, dense

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

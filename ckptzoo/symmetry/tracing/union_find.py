"""Disjoint sets of nodes: channels or scales, each on its own until an operation ties it to another."""

import numpy as np
from numpy.typing import NDArray

NodeIds = NDArray[np.int64]
"""Numbers of nodes, of channels or of scales; -1 where there is none."""


class UnionFind:
    """Disjoint sets of numbered nodes, each with marks; the root of a set is its lowest number.

    Parameters
    ----------
    marks
        how many kinds of marks a set can carry; a mark is a number, and the first one of its kind stays.
    """

    def __init__(self, marks: int) -> None:
        self._size = 0
        self._parent = np.empty(64, np.int64)
        self._marks = np.full((64, marks), -1, np.int64)

    def new(self, count: int) -> NodeIds:
        """This number of new nodes, each in a set of its own."""
        start, self._size = self._size, self._size + count
        while self._size > len(self._parent):
            self._parent = np.concatenate([self._parent, np.empty_like(self._parent)])
            self._marks = np.concatenate([self._marks, np.full_like(self._marks, -1)])
        nodes = np.arange(start, self._size)
        self._parent[start : self._size] = nodes
        return nodes

    def find(self, nodes: NodeIds) -> NodeIds:
        """The roots of the nodes' sets; -1 stays -1."""
        none = nodes < 0
        roots = np.where(none, 0, nodes)
        if not none.all():
            while ((parents := self._parent[roots]) != roots).any():
                roots = parents
        return np.where(none, -1, roots)

    def union(self, first: NodeIds, second: NodeIds) -> None:
        """Make one set of the sets of each pair of nodes."""
        for left, right in zip(self.find(first).ravel().tolist(), self.find(second).ravel().tolist(), strict=True):
            self._union_pair(left, right)

    def mark(self, nodes: NodeIds, kind: int, mark: int) -> None:
        """Mark the nodes' sets, except those that have a mark of this kind already; -1 is left out."""
        roots = self.find(nodes[nodes >= 0])
        self._marks[roots[self._marks[roots, kind] < 0], kind] = mark

    def marks(self, nodes: NodeIds, kind: int) -> NodeIds:
        """The marks of the nodes' sets; -1 where there is none."""
        return np.where(nodes < 0, -1, self._marks[self.find(nodes), kind])

    def _root(self, node: int) -> int:
        while (parent := int(self._parent[node])) != node:
            # Path halving: every second node on the way is linked to its grandparent.
            self._parent[node] = node = int(self._parent[parent])
        return node

    def _union_pair(self, left: int, right: int) -> None:
        left, right = sorted((self._root(left), self._root(right)))
        if left != right:
            self._parent[right] = left
            self._marks[left] = np.where(self._marks[left] < 0, self._marks[right], self._marks[left])

"""Disjoint sets of nodes: channels or scales, each on its own until an operation ties it to another."""

import numpy as np
from numpy.typing import NDArray

NodeIds = NDArray[np.int64]
"""Numbers of nodes, of channels or of scales; -1 where there is none."""


class UnionFind:
    """Disjoint sets of numbered nodes, each with marks; the root of a set is its lowest number.

    Each node has a sign against its root: -1 where it stands for the inverse of what the root stands for. ``marks`` is
    the number of kinds of marks; a mark is a number, and the first one of its kind stays.
    """

    def __init__(self, marks: int) -> None:
        self._size = 0
        self._parent = np.empty(64, np.int64)
        self._sign = np.ones(64, np.int64)
        self._signed = False
        self._marks = np.full((64, marks), -1, np.int64)

    def new(self, count: int) -> NodeIds:
        """Return this number of new nodes, each in a set of its own."""
        start, self._size = self._size, self._size + count
        # doubled, so that nodes are copied once on average
        while self._size > len(self._parent):
            self._parent = np.concatenate([self._parent, np.empty_like(self._parent)])
            self._sign = np.concatenate([self._sign, np.ones_like(self._sign)])
            self._marks = np.concatenate([self._marks, np.full_like(self._marks, -1)])
        nodes = np.arange(start, self._size)
        self._parent[start : self._size] = nodes
        return nodes

    def find(self, nodes: NodeIds) -> NodeIds:
        """Return the roots of the nodes' sets; -1 stays -1."""
        none = nodes < 0
        roots = np.where(none, 0, nodes)
        if not none.all():
            while ((parents := self._parent[roots]) != roots).any():
                roots = parents
        return np.where(none, -1, roots)

    def signs(self, nodes: NodeIds) -> NodeIds:
        """Return 1 where a node stands for the same as its root, -1 where it stands for the inverse; 1 for -1."""
        signs = np.ones(nodes.shape, np.int64)
        if self._signed:
            roots = np.where(nodes < 0, 0, nodes)
            while ((parents := self._parent[roots]) != roots).any():
                signs *= np.where(parents != roots, self._sign[roots], 1)
                roots = parents
        return np.where(nodes < 0, 1, signs)

    def union(self, first: NodeIds, second: NodeIds, *, inverse: bool = False) -> NodeIds:
        """Make one set of the sets of each pair of nodes, the second the inverse of the first where ``inverse``.

        Returns those of the first nodes that are in one set with the second already, with the other sign: each of them
        is its own inverse.
        """
        self._signed |= inverse
        own_inverse: list[int] = []
        for left, right in zip(first.ravel().tolist(), second.ravel().tolist(), strict=True):
            if not self._union_pair(left, right, -1 if inverse else 1):
                own_inverse.append(left)
        return np.array(own_inverse, np.int64)

    def mark(self, nodes: NodeIds, kind: int, mark: int) -> None:
        """Mark the nodes' sets, except those that have a mark of this kind already; -1 is left out."""
        roots = self.find(nodes[nodes >= 0])
        self._marks[roots[self._marks[roots, kind] < 0], kind] = mark

    def marks(self, nodes: NodeIds, kind: int) -> NodeIds:
        """Return the marks of the nodes' sets; -1 where there is none."""
        return np.where(nodes < 0, -1, self._marks[self.find(nodes), kind])

    def _root(self, node: int) -> tuple[int, int]:
        """Return the root of a node's set, and the node's sign against it."""
        sign = 1
        while (parent := int(self._parent[node])) != node:
            # Path halving: every second node on the way is linked to its grandparent.
            grandparent = int(self._parent[parent])
            if grandparent != parent:
                self._sign[node] *= self._sign[parent]
                self._parent[node] = grandparent
            sign *= int(self._sign[node])
            node = grandparent
        return node, sign

    def _union_pair(self, left: int, right: int, sign: int) -> bool:
        # the lowest number is the root, whatever the order of unions
        (low, low_sign), (high, high_sign) = sorted((self._root(left), self._root(right)))
        sign *= low_sign * high_sign
        if low == high:
            return sign == 1
        self._parent[high], self._sign[high] = low, sign
        self._marks[low] = np.where(self._marks[low] < 0, self._marks[high], self._marks[low])
        return True

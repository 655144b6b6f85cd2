"""Disjoint sets of atoms: what moves, or scales, on its own until an operation ties it to something else."""

import numpy as np
from numpy.typing import NDArray

NodeIds = NDArray[np.int64]
"""Numbers of atoms; -1 where there is none."""


class UnionFind:
    """Disjoint sets of numbered atoms, each set led by its lowest number and carrying marks.

    Parameters
    ----------
    marks : how many kinds of marks a set can carry; a mark is a number, and the first one of its kind stays.
    """

    def __init__(self, marks: int) -> None:
        self._size = 0
        self._parent = np.empty(64, np.int64)
        self._marks = np.full((64, marks), -1, np.int64)

    def new(self, count: int) -> NodeIds:
        """So many atoms, each in a set of its own."""
        start, self._size = self._size, self._size + count
        while self._size > len(self._parent):
            self._parent = np.concatenate([self._parent, np.empty_like(self._parent)])
            self._marks = np.concatenate([self._marks, np.full_like(self._marks, -1)])
        atoms = np.arange(start, self._size)
        self._parent[start : self._size] = atoms
        return atoms

    def find(self, atoms: NodeIds) -> NodeIds:
        """The leaders of the atoms' sets; -1 stays."""
        none = atoms < 0
        found = np.where(none, 0, atoms)
        if not none.all():
            while ((above := self._parent[found]) != found).any():
                found = above
        return np.where(none, -1, found)

    def union(self, one: NodeIds, two: NodeIds) -> None:
        """Make one set of the sets of each pair of atoms."""
        for left, right in zip(self.find(one).ravel().tolist(), self.find(two).ravel().tolist(), strict=True):
            self._unite(left, right)

    def mark(self, atoms: NodeIds, kind: int, mark: int) -> None:
        """Mark the atoms' sets, but for those that carry a mark of this kind; -1 is passed over."""
        leaders = self.find(atoms[atoms >= 0])
        self._marks[leaders[self._marks[leaders, kind] < 0], kind] = mark

    def marks(self, atoms: NodeIds, kind: int) -> NodeIds:
        """The marks of the atoms' sets; -1 where there is none."""
        return np.where(atoms < 0, -1, self._marks[self.find(atoms), kind])

    def _leader(self, atom: int) -> int:
        while (above := int(self._parent[atom])) != atom:
            self._parent[atom] = atom = int(self._parent[above])
        return atom

    def _unite(self, left: int, right: int) -> None:
        left, right = sorted((self._leader(left), self._leader(right)))
        if left != right:
            self._parent[right] = left
            self._marks[left] = np.where(self._marks[left] < 0, self._marks[right], self._marks[left])

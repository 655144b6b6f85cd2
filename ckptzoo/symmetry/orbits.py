"""Which elements of a tensor the permutations of a symmetry table can exchange."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ckptzoo.spec.symmetry import Sym, Symmetry, Wreath
from ckptzoo.symmetry.moves import Move, sources

_Perms = dict[str, np.ndarray]


def orbits(symmetry: Symmetry, tensor: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    r"""Label the positions of a tensor by their orbits under the table's permutation group.

    .. math:: i \sim j \iff \exists\, \pi \in P: \; (\pi \cdot \theta)_i = \theta_j

    for all weights :math:`\theta`, with scales left at 1. Weights at two positions of one orbit have equal marginals in
    every distribution over weights that the permutations leave as it is (arXiv 2310.08287, section 3: such is the
    posterior, as the likelihood and a prior with independent and equally distributed weights stay the same).

    Parameters
    ----------
    symmetry : the table.
    tensor : a name; one that the table does not name has every position by itself.
    shape : of the tensor in one checkpoint.

    Returns
    -------
    (*shape) int64: positions have the same label if and only if they share an orbit; labels count from 0 in the order
    of the orbits' first positions.

    Notes
    -----
    Two generators for each symmetric group (a cycle and an exchange), four for each wreath product, and the connected
    components of what they do to the positions. Time and memory a few passes over the axes that move, for each
    generator. Against random group elements: tests/symmetry/test_orbits.py.
    """
    move = Move.of(shape, symmetry.actions_on(tensor), symmetry)
    rows, columns, elements = move.shape
    parent = np.arange(rows * columns)
    edges = list(_edges(move, symmetry))
    while True:
        before = parent.copy()
        for first, second in edges:
            one, other = parent[first], parent[second]
            np.minimum.at(parent, np.maximum(one, other), np.minimum(one, other))
            while (parent != (above := parent[parent])).any():
                parent = above
        if (parent == before).all():
            break
    _, labels = np.unique(parent, return_inverse=True)
    return (labels[:, None] * elements + np.arange(elements)).reshape(shape)


def _edges(move: Move, symmetry: Symmetry) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For each generator the entries that it moves, and where they come from."""
    rows, columns, _ = move.shape
    for perms in _generators(move.groups, symmetry):
        row, column = move.rows(perms), move.columns(perms)
        found = sources(row, column, slice(0, rows), move.shape)[0]
        if column is None:
            found = found[:, None] * columns + np.arange(columns)
        found = found.ravel()
        moved = np.flatnonzero(found != np.arange(len(found)))
        yield moved, found[moved]


def _generators(groups: set[str], symmetry: Symmetry) -> Iterator[_Perms]:
    """Elements that generate what the table's permutations do to these groups: group to (1, n)."""
    leaders = {name: symmetry.leader(name) for name in sorted(groups)}
    for leader in dict.fromkeys(leaders.values()):
        names = [name for name, other in leaders.items() if other == leader]
        if isinstance(leader.perm, Sym):
            inside, n = leader.n, leader.n
        elif isinstance(leader.perm, Wreath):
            inside, n = leader.perm.k, leader.n
        else:
            continue
        for perm in _symmetric(inside):
            moved = np.concatenate([perm, np.arange(inside, n)])[None]
            yield dict.fromkeys(names, moved)
    outers = {leader.perm.outer: leader.perm.g for leader in leaders.values() if isinstance(leader.perm, Wreath)}
    for outer, g in outers.items():
        for perm in _symmetric(g):
            yield {
                name: (perm[:, None] * leader.perm.k + np.arange(leader.perm.k)).reshape(1, leader.n)
                for name, leader in leaders.items()
                if isinstance(leader.perm, Wreath) and leader.perm.outer == outer
            }


def _symmetric(n: int) -> list[np.ndarray]:
    """A cycle and an exchange, which generate all permutations of n things."""
    if n < 2:
        return []
    exchange = np.arange(n)
    exchange[:2] = 1, 0
    return [np.roll(np.arange(n), 1), exchange]

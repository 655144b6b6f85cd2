"""The complete order: every checkpoint of an orbit comes to the same weights, ties and all.

A channel's key is the sum of its incoming scaled weights, which does not depend on the order of any channels.
Channels are sorted by it. Where two keys of a checkpoint are equal, its channels are sorted by the key, then by the
sum of what else writes them, then by the sum of what reads them; what is still alike is told apart by colour
refinement and a bounded search. Beyond the bound the checkpoint is reported as unresolved.
"""

import numpy as np

from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import KEYS, Order, leaders, shape_of, sum_keys
from ckptzoo.symmetry.refinement import Graph, dense
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales
from ckptzoo.symmetry.search import Search

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

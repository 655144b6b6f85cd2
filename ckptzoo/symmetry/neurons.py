"""Cosines of the incoming weights of neurons of two networks, and permutations under which their sums are known.

A permutation of a layer's neurons also moves what the next layer reads, so that the cosines there depend on both. Of
groups of neurons that meet in no tensor each can be permuted by itself, and the sum of all cosines is a sum of one
matrix a group.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.alignment.joint_groups import Arrays, ChannelView, JointGroups, joint_groups_of
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.gauges import canonicalize
from ckptzoo.symmetry.kinds.registry import permutations_of
from ckptzoo.symmetry.matrices.tables import monomial
from ckptzoo.symmetry.nested import unnested

LEAST = 100
"""The least number of permutations with which a pair can be called dependent at a level of 0.01."""


@dataclass(frozen=True, eq=False)
class Neurons:
    """The neurons of a table that are permuted, and how they are compared.

    ``table`` has permutations and scales alone, ``groups`` are the ids of the permuted groups, and ``views`` those of
    the tensors that they write or read, group by group. ``log10`` is the decimal logarithm of the number of their
    permutations. ``rows`` maps tensors to the axis of the neurons that they are the incoming weights of.
    """

    table: Symmetry
    groups: tuple[str, ...]
    views: tuple[tuple[ChannelView, ...], ...]
    rows: dict[str, int]
    log10: float

    def orders(self, count: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Draw elements: (count, n) uniform permutations of each group."""
        perms = GroupElement.random(self.table, count, rng, spread=0.0).perms
        return [np.asarray(perms[group], np.int64) for group in self.groups]

    def unit(self, weights: Arrays) -> dict[str, NDArray[np.float32]]:
        """Return the incoming weights (K, *shape) with norm 1 for each neuron, whatever the scales.

        Scales of the neurons that a layer reads are settled first, as they would change the cosines there.
        """
        if any(group.scaled for group in self.table.groups):
            weights = canonicalize(weights, self.table, gauge="unit-norm").weights
        found: dict[str, NDArray[np.float32]] = {}
        for name, axis in self.rows.items():
            array = np.asarray(weights[name], np.float64)
            others = tuple(other for other in range(1, array.ndim) if other != axis + 1)
            norms = np.sqrt(np.square(array).sum(axis=others, keepdims=True))
            # a neuron without incoming weights, or with some that are not finite, is similar to none
            usable = (norms > 0) & np.isfinite(norms)
            found[name] = np.divide(array, norms, out=np.zeros_like(array), where=usable).astype(np.float32)
        return found

    def similarities(self, first: Arrays, second: Arrays) -> list[Any]:
        """Return for each group (P, n, n): what places i and j add to the sum of cosines, for ``unit`` weights."""
        return [
            sum(_products(view, first[view.action.tensor], second[view.action.tensor]) for view in views)
            for views in self.views
        ]


def neurons_of(symmetry: Symmetry, floats: Sequence[str], *, location: str) -> Neurons:
    """Return the neurons of a table to permute, of which no two groups meet in a tensor, and as many as possible.

    ``floats`` are names of the floating tensors, ``location`` is what messages call the zoo. Tensors that one group
    reads and writes, or in which two groups meet within blocks, are not compared. Raises ``SymmetryError`` where there
    are less than ``LEAST`` permutations.
    """
    table = unnested(monomial(symmetry))
    known = set(floats)
    # an axis with blocks has a position for several neurons
    writing = (action for action in table.actions if action.role == "out" and action.blocks == 1)
    rows = {action.tensor: action.axis for action in writing if action.tensor in known}
    joints = [(joint, _views(joint)) for joint in joint_groups_of(table, rows)]
    joints = [(joint, {name: some for name, some in views.items() if some}) for joint, views in joints]
    sizes = [_log10(joint) if views else 0.0 for joint, views in joints]
    meeting = [
        sum(bool(joint.tensors & other.tensors) for other, _ in joints if other is not joint) for joint, _ in joints
    ]
    order = sorted(range(len(joints)), key=lambda at: (-sizes[at] / (1 + meeting[at]), at))
    taken, chosen = set[str](), list[int]()
    for at in order:
        if sizes[at] > 0 and not taken & joints[at][0].tensors:
            taken |= joints[at][0].tensors
            chosen.append(at)
    log10 = sum(sizes[at] for at in chosen)
    # not 10**log10, which is above the greatest float from 171 neurons on
    if log10 < math.log10(LEAST - 0.5):
        got = "no group of them" if not chosen else f"{round(10**log10):,}"
        step = "Test networks with more hidden neurons; dedupe finds copies of these."
        raise SymmetryError(Problem(location, "permutations of neurons", f"{LEAST} or more", got, step))
    views = {name: some for at in sorted(chosen) for name, some in joints[at][1].items()}
    compared = {view.action.tensor for some in views.values() for view in some}
    return Neurons(
        table, tuple(views), tuple(views.values()), {name: rows[name] for name in rows if name in compared}, log10
    )


def _products(view: ChannelView, first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return (P, n, n) products of the channels of a tensor in two sets of networks."""
    return view.slices(first) @ view.slices(second).swapaxes(1, 2)


def _views(joint: JointGroups) -> dict[str, tuple[ChannelView, ...]]:
    """Return by group the views of tensors that are linear in the permutations of these groups."""
    return {
        name: tuple(view for view in views if view.action.tensor not in joint.quadratic)
        for name, views in joint.views.items()
    }


def _log10(joint: JointGroups) -> float:
    """Return the decimal logarithm of the number of permutations of these groups."""
    counted: set[str] = set()
    found = [item for group in joint.groups for item in permutations_of(group).factorials(group, counted)]
    return sum(times * math.lgamma(n + 1) for n, times in found) / math.log(10)

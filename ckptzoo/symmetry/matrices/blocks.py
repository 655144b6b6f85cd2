"""Balanced blocks while scales stay: what is left of invertible matrices is orthogonal then, and of numbers a phase."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.matrices.gauge import BLOCKS, STILL, balance_once
from ckptzoo.symmetry.matrix_action import mixed_channels

MAX_ROUNDS = 200
"""The largest number of turns of blocks that meet in a tensor."""


def balance_blocks(arrays: dict[str, NDArray[Any]], symmetry: Symmetry, *, rounds: int = MAX_ROUNDS) -> GroupElement:
    """Give the blocks of invertible matrices, and complex numbers, equal norms on both sides, in place.

    ``arrays`` maps tensor names to (K, *shape), finite, writeable, at least float32; they are overwritten in their
    dtype. Orthogonal matrices, scales and permutations stay. Returns the element that leads there, with NaN in the
    matrices of blocks that have none (``matrices.gauge.Settled.element``). Raises ``SymmetryError`` where a group's
    matrices act on two axes of one tensor.

    One pass is enough unless two blocks meet in a tensor, as in a chain of linear layers. Then they take at most
    ``rounds`` turns: each lowers the sum of squares, which is convex along one-parameter subgroups, so that the limit
    is the least (Kempf and Ness 1979). Rounds do not depend on how many networks are stacked.
    """
    table = _blocks_alone(symmetry)
    K = len(next(iter(arrays.values())))
    element = GroupElement.identity(symmetry, K)
    if not any(group.scale in BLOCKS for group in symmetry.groups):
        return element
    waiting = np.arange(K)
    for _ in range(rounds if _meet(symmetry) else 1):
        some = {name: array[waiting] for name, array in arrays.items()}
        step = balance_once(some, table).element(table)
        for name, array in some.items():
            arrays[name][waiting] = array
        whole = GroupElement.identity(symmetry, len(waiting))
        whole = GroupElement(whole.perms, whole.scales, {**whole.matrices, **step.matrices})
        changed = _changes(step)
        # a block that is degenerate in the first round has no element from then on
        composed = whole.compose(element[waiting])
        for name, matrix in element.matrices.items():
            matrix[waiting] = composed.matrices[name]
        waiting = waiting[changed]
        if not len(waiting):
            break
    return element


def _changes(step: GroupElement) -> NDArray[np.bool_]:
    """Return (K,) whether some matrix is not orthogonal, or some number not of modulus 1; NaN does not count."""
    found = np.zeros(len(step), bool)
    for matrix in step.matrices.values():
        if matrix.ndim == 3:
            off = np.abs((matrix * matrix).sum(axis=-1) - 1).reshape(len(found), -1)
        else:
            square = matrix @ matrix.swapaxes(-1, -2) - np.eye(matrix.shape[-1])
            off = np.abs(square).reshape(len(found), -1)
        found |= np.nan_to_num(off).max(axis=1, initial=0) > STILL
    return found


def _blocks_alone(symmetry: Symmetry) -> Symmetry:
    """Return the table whose only scales are invertible matrices and complex numbers."""
    groups = (group if group.scale in BLOCKS else replace(group, scale="none") for group in symmetry.groups)
    return Symmetry(tuple(groups), tuple(replace(action, signs=(), gates=()) for action in symmetry.actions))


def _meet(symmetry: Symmetry) -> bool:
    """Whether two axes of one tensor have such blocks.

    Raises ``SymmetryError`` where they have the same blocks: what balances is no quadratic equation then.
    """
    found = False
    for name in dict.fromkeys(action.tensor for action in symmetry.actions):
        axes = {
            (mixed.axis, mixed.group)
            for mixed in mixed_channels(symmetry.actions_on(name), symmetry)
            if symmetry[mixed.group].scale in BLOCKS
        }
        if len(axes) > len({group for _, group in axes}):
            step = "Use the table of permutations and scales alone: ckptzoo.symmetry.monomial(table)."
            got = "one on two"
            raise SymmetryError(Problem(f"tensor {name!r}", "matrices", "those of a group on one axis", got, step))
        found |= len({axis for axis, _ in axes}) > 1
    return found

"""Tables without matrices beside one that has them, and elements of these tables as elements of that one.

The generalised permutation matrices, of one entry other than 0 in each row and column, are permutations with scales:
``monomial`` is the table of that subgroup, which every study of permutations and scales takes. ``residual`` is the
table of what is left where the matrices are settled up to signs.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ckptzoo.schema.symmetry import MATRICES, Fixed, Group, Segment, Sym, Symmetry, Wreath
from ckptzoo.symmetry.element import GroupElement


def mixes(symmetry: Symmetry) -> bool:
    """Whether a table has matrices."""
    return any(group.scale in MATRICES for group in symmetry.groups)


def monomial(symmetry: Symmetry) -> Symmetry:
    """The table of the permutations and scales among a table's matrices; the table itself where it has none.

    Blocks of invertible matrices have channels that are permuted and scaled by any number but 0; orthogonal matrices
    are permuted, without signs; complex numbers are real.
    """
    return _changed(symmetry, _monomial_group)


def residual(symmetry: Symmetry) -> Symmetry:
    """The table of what is left where sizes of scales, and matrices up to signs of channels, are known.

    Whole blocks are permuted, and their channels keep their order; orthogonal matrices are known wholly.
    """
    signs = {"nonzero": "sign", "sign": "sign"}

    def change(group: Group) -> Group:
        made = _residual_group(group)
        return replace(made, scale=signs.get(made.scale, "none"))

    return _changed(symmetry, change)


def unmixed(symmetry: Symmetry) -> Symmetry:
    """The table without matrices and signs: permutations, and positive scales of the other groups."""
    scales = {"nonzero": "positive", "positive": "positive"}
    return _changed(symmetry, lambda group: replace(_residual_group(group), scale=scales.get(group.scale, "none")))


def lifted(element: GroupElement, symmetry: Symmetry) -> GroupElement:
    """An element of ``monomial`` or ``residual`` as an element of the table itself, with the same action.

    Parameters
    ----------
    element
        K elements, of numpy.
    symmetry
        the table with matrices.
    """
    perms, matrices = dict(element.perms), {}
    ones = {group.id: np.ones(perms[group.id].shape) for group in symmetry.groups}
    scales = {group.id: element.scales.get(group.id, ones[group.id]) for group in symmetry.groups if group.scaled}
    for group in symmetry.groups:
        if (shape := group.matrix_shape) is None:
            continue
        perm = perms[group.id]
        K, n = perm.shape
        scale = element.scales.get(group.id, ones[group.id])
        if len(shape) == 2:
            matrices[group.id] = np.stack([scale, np.zeros((K, n))], axis=-1)
            continue
        blocks, k = shape[:2]
        inside = perm.reshape(K, blocks, k)
        made = np.zeros((K, *shape))
        np.put_along_axis(made, (inside % k)[..., None], scale.reshape(K, blocks, k)[..., None], axis=3)
        matrices[group.id] = made
        perms[group.id] = (inside[..., :1] // k * k + np.arange(k)).reshape(K, n)
    for group in symmetry.groups:  # those that are like one with matrices take these
        perms[group.id] = perms[symmetry.leader(group.id).id]
    return GroupElement(perms, scales, matrices)


def _changed(symmetry: Symmetry, change: Callable[[Group], Group]) -> Symmetry:
    if not mixes(symmetry):
        return symmetry
    groups = tuple(change(group) for group in symmetry.groups)
    flipped = {group.id for group in groups if group.flips}
    actions = (
        replace(
            action,
            # all real parts before the imaginary ones: one listing of the channels ends before the other starts
            segments=tuple(replace(item, part=None) for item in sorted(action.segments, key=_part)),
            signs=tuple(segment for segment in action.signs if segment.group in flipped),
        )
        for action in symmetry.actions
    )
    return replace(symmetry, groups=groups, actions=tuple(actions))


def _part(segment: Segment) -> int:
    return segment.part or 0


def _monomial_group(group: Group) -> Group:
    kinds = {"linear": "nonzero", "complex": "nonzero", "orthogonal": "none", "orthogonal_mean": "none"}
    return replace(group, scale=kinds.get(group.scale, group.scale))


def _residual_group(group: Group) -> Group:
    if group.scale not in MATRICES:
        return group
    perm = group.perm
    if isinstance(perm, Wreath):
        perm = replace(perm, inner="fixed") if group.scale != "complex" else perm
    elif isinstance(perm, Sym) and group.scale != "complex":
        perm = Fixed()
    return replace(group, perm=perm, scale="sign" if group.scale in ("linear", "complex") else "none")

"""Tables without matrices beside one that has them, and elements of these tables as elements of that one.

Generalised permutation matrices, of one entry other than 0 in each row and column, are permutations with scales:
``among`` is the table of these, and ``monomial`` has those too that need no gains of 1, which every study of
permutations and scales takes. ``residual`` is the table of what is left where matrices are settled up to signs.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.schema.groups import MATRICES, AxisAction, Fixed, Group, Segment, Sym, Wreath, with_scaled_gates
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.matrix_action import gains_at_one
from ckptzoo.symmetry.tables import Arch, table_of


def mixes(symmetry: Symmetry) -> bool:
    """Whether a table has matrices."""
    return any(group.scale in MATRICES for group in symmetry.groups)


@checked
def monomial(symmetry: Arch) -> Symmetry:
    """The table of all permutations and scales that keep the function; the table itself where it has no matrices.

    Blocks of invertible matrices have channels that are permuted and scaled by any number but 0; channels of orthogonal
    matrices are permuted, and those behind RMSNorm have signs, which the gains take; complex numbers are real. Gains
    need not be 1: they have scales of their own.

    Parameters
    ----------
    symmetry
        the table, or whatever names a network, as for ``canonicalize``.
    """
    symmetry = table_of(symmetry)
    gains = {gain.group for gain in gains_at_one(symmetry)}
    table = among(symmetry)
    groups = tuple(
        replace(group, scale="nonzero")
        if group.id in gains
        else replace(group, scale="sign" if symmetry[group.id].scale == "orthogonal" else group.scale)
        for group in table.groups
    )
    actions: list[AxisAction] = []
    for action in table.actions:
        leaders = [symmetry.leader(segment.group) for segment in action.segments]
        if action.role == "gain" and all(leader.scale == "orthogonal" for leader in leaders):
            signs = zip(action.segments, leaders, strict=True)
            action = replace(action, signs=tuple(replace(segment, group=leader.id) for segment, leader in signs))
        actions.append(action)
    turned = any(group.scale == "orthogonal" for group in symmetry.groups)
    return replace(table, groups=groups, actions=tuple(actions)) if gains or turned else table


def among(symmetry: Symmetry, *, keep: Collection[str] = ()) -> Symmetry:
    """The table of the permutations and scales among a table's matrices, a subgroup; gains stay 1 where they must.

    Parameters
    ----------
    symmetry
        the table.
    keep
        kinds of matrices that stay as they are.
    """
    kinds = {"linear": "nonzero", "complex": "nonzero", "orthogonal": "none", "orthogonal_mean": "none"}
    kinds = {kind: scale for kind, scale in kinds.items() if kind not in keep}
    return _changed(symmetry, lambda group: replace(group, scale=kinds.get(group.scale, group.scale)))


def residual(symmetry: Symmetry) -> Symmetry:
    """The table of what is left where sizes of scales, and matrices up to signs of channels, are known.

    Whole blocks are permuted, and their channels keep their order; orthogonal matrices are known wholly.
    """
    signs = {"nonzero": "sign", "sign": "sign"}

    def change(group: Group) -> Group:
        made = _residual_group(group)
        return replace(made, scale=signs.get(made.scale, "none"))

    return _changed(symmetry, change)


def without_matrices(symmetry: Symmetry) -> Symmetry:
    """The table of what is left where the matrices are known: whole blocks are permuted, other groups are as before."""
    return _changed(
        symmetry,
        lambda group: replace(_residual_group(group), scale="none") if group.scale in MATRICES else group,
    )


def unmixed(symmetry: Symmetry) -> Symmetry:
    """The table without matrices and signs: permutations, and positive scales of the other groups."""
    scales = {"nonzero": "positive", "positive": "positive"}
    return _changed(symmetry, lambda group: replace(_residual_group(group), scale=scales.get(group.scale, "none")))


def lifted(element: GroupElement, symmetry: Symmetry) -> GroupElement:
    """An element of ``among`` or ``residual`` as an element of the table itself, with the same action.

    Matrices that it has stay.

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
        if group.id in element.matrices:
            matrices[group.id] = element.matrices[group.id]
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
    pairs = {group.id for group in groups if group.scale == "complex"}
    actions = (
        replace(
            action,
            segments=action.segments if action.groups & pairs else _without_parts(action),
            signs=tuple(segment for segment in action.signs if segment.group in flipped),
        )
        for action in symmetry.actions
    )
    return replace(symmetry, groups=groups, actions=with_scaled_gates(actions, groups))


def _without_parts(action: AxisAction) -> tuple[Segment, ...]:
    """All real parts list the channels of a group once, and then all imaginary parts."""
    ordered = sorted(action.segments, key=lambda segment: segment.part or 0)
    return tuple(replace(segment, part=None) for segment in ordered)


def _residual_group(group: Group) -> Group:
    if group.scale not in MATRICES:
        return group
    perm = group.perm
    if isinstance(perm, Wreath):
        perm = replace(perm, inner="fixed") if group.scale != "complex" else perm
    elif isinstance(perm, Sym) and group.scale != "complex":
        perm = Fixed()
    return replace(group, perm=perm, scale="sign" if group.scale in ("linear", "complex") else "none")

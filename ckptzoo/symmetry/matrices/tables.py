"""Tables without matrices beside one that has them, and elements of these tables as elements of that one.

Generalised permutation matrices, of one entry other than 0 in each row and column, are permutations with scales:
``among`` is the table of these, and ``monomial`` has those too that need no gains of 1, which every study of
permutations and scales takes. ``residual`` is the table of what is left where matrices are settled up to signs.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Segment, Wreath, with_scaled_gates
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.kind import Kind
from ckptzoo.symmetry.kinds.registry import FACTORS, matrix_kind_of
from ckptzoo.symmetry.matrix_action import gains_at_one
from ckptzoo.symmetry.tables import Arch, table_of


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
    scales = {group.id: kind.beside_gains for group in symmetry.groups if (kind := FACTORS.get(group.scale))}
    scales |= dict.fromkeys(gains, "nonzero")
    groups = tuple(replace(group, scale=scales.get(group.id, group.scale)) for group in table.groups)
    actions: list[AxisAction] = []
    for action in table.actions:
        leaders = [symmetry.leader(segment.group) for segment in action.segments]
        if action.role == "gain" and all(map(_turns_gains, leaders)):
            signs = zip(action.segments, leaders, strict=True)
            action = replace(action, signs=tuple(replace(segment, group=leader.id) for segment, leader in signs))
        actions.append(action)
    turned = any(map(_turns_gains, symmetry.groups))
    return replace(table, groups=groups, actions=tuple(actions)) if gains or turned else table


def among(symmetry: Symmetry, *, keep: Callable[[Group], bool] = lambda group: False) -> Symmetry:
    """Return the table of the permutations and scales among a table's matrices, a subgroup; some gains stay 1.

    Matrices of the groups for which ``keep`` is true stay.
    """
    return _changed(symmetry, lambda group, kind: group if keep(group) else replace(group, scale=kind.among))


def residual(symmetry: Symmetry) -> Symmetry:
    """Return the table of what is left where sizes of scales, and matrices up to signs of channels, are known.

    Whole blocks are permuted, and their channels keep their order; orthogonal matrices are known completely.
    """
    return _changed(symmetry, lambda group, kind: replace(_in_order(group), scale=kind.signs))


def without_matrices(symmetry: Symmetry) -> Symmetry:
    """Return the table for known matrices: whole blocks are permuted, other groups are unchanged."""
    return _changed(
        symmetry, lambda group, _: replace(_in_order(group), scale="none") if matrix_kind_of(group) else group
    )


def unmixed(symmetry: Symmetry) -> Symmetry:
    """Return the table without matrices and signs: permutations, and positive scales of the other groups."""
    return _changed(symmetry, lambda group, kind: replace(_in_order(group), scale=kind.sizes))


def lifted(element: GroupElement, symmetry: Symmetry) -> GroupElement:
    """Return an element of ``among`` or ``residual`` (K, numpy) as one of the whole table, with the same action.

    Matrices that it has stay.
    """
    if not symmetry.has_matrices:
        return element
    perms, matrices = dict(element.perms), {}
    ones = {group.id: np.ones(perms[group.id].shape) for group in symmetry.groups}
    scales = {group.id: element.scales.get(group.id, ones[group.id]) for group in symmetry.groups if group.scaled}
    for group in symmetry.groups:
        if (kind := matrix_kind_of(group)) is None:
            continue
        if group.id in element.matrices:
            matrices[group.id] = element.matrices[group.id]
            continue
        scale = element.scales.get(group.id, ones[group.id])
        matrices[group.id], perms[group.id] = kind.monomial(group, perms[group.id], scale)
    for group in symmetry.groups:  # those that are like one with matrices take these
        perms[group.id] = perms[symmetry.leader(group.id).id]
    return GroupElement(perms, scales, matrices)


def _turns_gains(group: Group) -> bool:
    """Whether signs are among a group's matrices that gains take alone."""
    kind = matrix_kind_of(group)
    return kind is not None and kind.beside_gains == "sign"


def _changed(symmetry: Symmetry, change: Callable[[Group, Kind], Group]) -> Symmetry:
    if not symmetry.has_matrices:
        return symmetry
    groups = tuple(change(group, kind) if (kind := FACTORS.get(group.scale)) else group for group in symmetry.groups)
    flipped = {group.id for group in groups if group.flips}
    pairs = {group.id for group in groups if (kind := matrix_kind_of(group)) and kind.one_by_one}
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
    """Put all real parts first, then all imaginary parts, as two listings of the channels of a group."""
    ordered = sorted(action.segments, key=lambda segment: segment.part or 0)
    return tuple(replace(segment, part=None) for segment in ordered)


def _in_order(group: Group) -> Group:
    """Return the group whose channels keep their order within blocks where real matrices permute them too."""
    perm, kind = group.perm, matrix_kind_of(group)
    if kind is None or kind.one_by_one:
        return group
    return replace(group, perm=replace(perm, inner="fixed") if isinstance(perm, Wreath) else Fixed())

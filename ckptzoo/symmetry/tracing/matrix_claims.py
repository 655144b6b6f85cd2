"""Candidates for matrices in the place of scales in the table of a trace, which are then verified with numbers.

A block of channels that no operation takes one by one may be mixed by any invertible matrix; places of blocks that keep
their order and come in pairs, by complex numbers; the stream that normalisations read, by orthogonal matrices.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace

from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath, with_scaled_gates
from ckptzoo.schema.symmetry import Symmetry


def matrix_kind(symmetry: Symmetry, group: Group, mixable: Container[str]) -> str | None:
    """Return the kind of matrices that may replace the scales of a group in a table without matrices; None for none.
    ``mixable`` are the groups that no operation takes channel by channel.
    """
    if group.id not in mixable or not group.resizes or isinstance(group.perm, Like):
        return None
    if any(isinstance(other.perm, Like) and other.perm.group == group.id for other in symmetry.groups):
        return None
    actions = [action for action in symmetry.actions if group.id in action.groups]
    plain = all(action.exponent in (1, -1) and action.is_bare for action in actions)
    in_order = isinstance(group.perm, Fixed) or group.n == 1
    if isinstance(group.perm, Wreath):
        in_order = group.perm.inner == "fixed" or group.perm.k == 1
    # the matrices that commute with the rotations of a pair are the complex numbers
    if plain and in_order and all(_in_pairs(action, group) for action in actions):
        return "complex"
    return "linear" if plain and not in_order else None


def may_be_turned(symmetry: Symmetry, group: Group) -> bool:
    """Whether a table can express that orthogonal matrices mix the channels of a group that has none."""
    free = isinstance(group.perm, Sym) or (isinstance(group.perm, Wreath) and group.perm.inner == "free")
    alone = not any(isinstance(other.perm, Like) and other.perm.group == group.id for other in symmetry.groups)
    actions = [action for action in symmetry.actions if group.id in action.groups]
    plain = all(action.exponent in (1, -1) and action.is_bare for action in actions)
    return free and alone and plain and group.n > 1


def normalised_streams(
    symmetry: Symmetry, shapes: Mapping[str, tuple[int, ...]], normed: Container[str] = ()
) -> list[str]:
    """Return the groups that orthogonal matrices may mix: normalisations read them, with gains that can be 1 or none.

    The table has no matrices, ``shapes`` are those of its tensors, and ``normed`` the groups whose channels an
    operation takes together.
    """
    found: list[str] = []
    for leader in symmetry.groups:
        likes = {
            group.id for group in symmetry.groups if isinstance(group.perm, Like) and group.perm.group == leader.id
        }
        own, others = (
            [action for action in symmetry.actions if _listed(action) & names] for names in ({leader.id}, likes)
        )
        plain = all(
            action.exponent in (1, -1)
            and replace(action, signs=()).is_bare
            and {segment.group for segment in action.signs} <= {leader.id}
            for action in (*own, *others)
        )
        # the basis of a stream without gains is determined by what writes it and nothing else
        told = any(action.role == "out" and len(symmetry.actions_on(action.tensor)) == 1 for action in own)
        bare = leader.id in normed and not likes and told
        gains = {name for action in others if action.role == "gain" for name in _listed(action)}
        scaled = {group.id for group in symmetry.groups if group.id in likes and group.resizes}
        right = {action.role for action in own} <= {"out", "in", "bias"} and (bool(gains) or bare) and gains <= scaled
        right &= {action.role for action in others} <= {"gain", "shift", "in", "bias"}
        # the gauge takes the basis from the weights that write the stream, and a table of vectors alone is none
        right &= any(action.role == "out" for action in own)
        # a gain of another size would be one for several channels, which the matrices mix
        right &= all(math.prod(shapes[action.tensor]) == leader.n for action in others if action.role == "gain")
        if isinstance(leader.perm, Sym) and leader.n > 1 and not leader.resizes and plain and right:
            found.append(leader.id)
    return found


def with_kinds(symmetry: Symmetry, kinds: Mapping[str, str]) -> Symmetry:
    """Return a table without matrices with these kinds by group; what is like one with matrices is not scaled."""
    groups = tuple(
        replace(group, scale="none")
        if isinstance(group.perm, Like) and group.perm.group in kinds
        else _with_kind(group, kinds.get(group.id, group.scale))
        for group in symmetry.groups
    )
    pairs = {name for name, kind in kinds.items() if kind == "complex"}
    actions = (
        replace(action, signs=tuple(segment for segment in action.signs if segment.group not in kinds))
        for action in symmetry.actions
    )
    actions = (_with_parts(action, symmetry, pairs) if pairs & action.groups else action for action in actions)
    return replace(symmetry, groups=groups, actions=with_scaled_gates(actions, groups))


def _with_kind(group: Group, kind: str) -> Group:
    if kind == "complex" and isinstance(group.perm, Wreath):  # with one pair in each block it makes no difference
        group = replace(group, perm=replace(group.perm, inner="fixed"))
    return replace(group, scale=kind)


def _in_pairs(action: AxisAction, group: Group) -> bool:
    """Whether each of a group's channels has an even number of positions, those of each exponent apart."""
    counts: Counter[int | None] = Counter()
    for segment in action.segments:
        if segment.group == group.id:
            counts[segment.exponent] += segment.count * segment.inner
    return all(count % (2 * group.n) == 0 for count in counts.values())


def _listed(action: AxisAction) -> set[str]:
    return {segment.group for segment in action.segments}


def _with_parts(action: AxisAction, symmetry: Symmetry, pairs: set[str]) -> AxisAction:
    """Return an action whose listings of these groups are real and imaginary parts in turns."""
    listed: Counter[tuple[str, int | None]] = Counter()
    segments: list[Segment] = []
    for segment in action.segments:
        key = segment.group, segment.exponent
        halves = segment.group in pairs and segment.inner % 2
        part = listed[key] // symmetry[segment.group].n % 2 if halves else None
        listed[key] += segment.count
        segments.append(replace(segment, part=part))
    return replace(action, segments=tuple(segments))

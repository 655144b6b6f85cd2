"""What must hold of a symmetry table, on its own and against an architecture."""

import math
from collections.abc import Iterator
from typing import Any

from ckptzoo.errors import Problem
from ckptzoo.spec.architecture import Architecture, name_problem
from ckptzoo.spec.groups import ROLES, SCALES, AxisAction, Fixed, Group, Like, Perm, Segment, Wreath

WHERE = "symmetry"
STEP = "Correct the symmetry table."
MAX_ITEMS = 100_000
MAX_CHANNELS = 2**31
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def _problem(what: str, expected: str, got: object) -> Problem:
    return Problem(WHERE, what, expected, str(got), STEP)


def _natural(value: Any, least: int = 1) -> bool:
    return type(value) is int and least <= value <= MAX_CHANNELS


def problems(groups: tuple[Group, ...], actions: tuple[AxisAction, ...]) -> Iterator[Problem]:
    """Everything wrong with a table, whatever the architecture.

    Problems of single groups and actions come first; how they fit together is looked at when those are right.
    """
    for what, items in (("groups", groups), ("actions", actions)):
        if len(items) > MAX_ITEMS:
            yield _problem(what, f"at most {MAX_ITEMS}", len(items))
            return
    found = [item for group in groups for item in _of_group(group)]
    found += [item for action in actions for item in _of_action(action)]
    yield from found or _together(groups, actions)


def _of_group(group: Group) -> Iterator[Problem]:
    what = f"group {group.id!r}"
    if (refused := name_problem(group.id)) is not None:
        yield _problem(what, "an id that could name a tensor", refused)
    if not _natural(group.n):
        yield _problem(f"{what}: n", f"1 to {MAX_CHANNELS}", repr(group.n))
    if group.scale not in SCALES:
        yield _problem(f"{what}: scale", " or ".join(SCALES), repr(group.scale))
    if isinstance(group.perm, Wreath):
        outer: Any = group.perm.outer
        g, k = group.perm.g, group.perm.k
        if not isinstance(outer, str) or not outer:
            yield _problem(f"{what}: outer", "the name of a block permutation", repr(outer))
        if not _natural(g) or not _natural(k) or g * k != group.n:
            yield _problem(f"{what}: wreath", f"g * k = {group.n!r}", f"g = {g!r}, k = {k!r}")


def _of_action(action: AxisAction) -> Iterator[Problem]:
    what = f"axis {action.axis!r} of {action.tensor!r}"
    if (refused := name_problem(action.tensor)) is not None:
        yield _problem(what, "the name of a tensor", refused)
    if not _natural(action.axis, 0):
        yield _problem(f"{what}: axis", "0 or more", repr(action.axis))
    if type(action.exponent) is not int or action.exponent not in (1, -1, 0, 2):
        yield _problem(f"{what}: exponent", "1, -1, 0 or 2", repr(action.exponent))
    if type(action.in_mass) is not bool:
        yield _problem(f"{what}: in_mass", "true or false", repr(action.in_mass))
    if action.role not in ROLES:
        yield _problem(f"{what}: role", "one of " + ", ".join(ROLES), repr(action.role))
    if not _natural(action.blocks) or (action.blocks > 1 and action.axis == 0):
        yield _problem(f"{what}: blocks", "1, or more on an axis other than 0", repr(action.blocks))
    if type(action.eps) not in (int, float) or not 0 <= action.eps < math.inf:
        yield _problem(f"{what}: eps", "a finite number, 0 or more", repr(action.eps))
    elif action.eps and action.exponent != 2:
        yield _problem(f"{what}: eps", "0 where the exponent is not 2", repr(action.eps))
    if not 1 <= len(action.segments) <= MAX_ITEMS:
        yield _problem(f"{what}: segments", f"1 to {MAX_ITEMS}", len(action.segments))
    for segment in action.segments:
        sizes = (segment.inner, segment.count)
        if not _natural(segment.offset, 0) or not all(_natural(size) for size in sizes):
            yield _problem(f"{what}: segment", "offset >= 0, inner >= 1, count >= 1", repr(segment))


def _together(table: tuple[Group, ...], actions: tuple[AxisAction, ...]) -> Iterator[Problem]:
    groups: dict[str, Group] = {}
    outers: dict[str, int] = {}
    for group in table:
        if group.id in groups:
            yield _problem(f"group {group.id!r}", "each id once", "it stands twice")
        if isinstance(group.perm, Like):
            leader = groups.get(group.perm.group)
            what = f"group {group.id!r}: like {group.perm.group!r}"
            if leader is None or isinstance(leader.perm, Like):
                yield _problem(what, "a group before it that is not like another", "none" if leader is None else "one")
                return
            if leader.n != group.n:
                yield _problem(what, f"{leader.n} channels, as there", group.n)
        groups[group.id] = group
        if isinstance(group.perm, Wreath):
            blocks = outers.setdefault(group.perm.outer, group.perm.g)
            if blocks != group.perm.g:
                what = f"group {group.id!r}: blocks of {group.perm.outer!r}"
                yield _problem(what, f"{blocks}, as the first group that names it", group.perm.g)
    seen: dict[tuple[str, int], AxisAction] = {}
    used: set[str] = set()
    for action in actions:
        what = f"axis {action.axis} of {action.tensor!r}"
        if (action.tensor, action.axis) in seen:
            yield _problem(what, "one action", "two")
        seen[action.tensor, action.axis] = action
        used |= {segment.group for segment in action.segments}
        unknown = [segment.group for segment in action.segments if segment.group not in groups]
        if unknown:
            yield _problem(what, "segments of known groups", f"unknown group {unknown[0]!r}")
        else:
            yield from _layout(what, action, groups)
    for name in groups.keys() - used:
        yield _problem(f"group {name!r}", "at least one axis action", "none")
    if used <= groups.keys():
        for action in actions:
            if action.blocks > 1:
                yield from _blocks(action, seen.get((action.tensor, 0)), groups)


def _layout(what: str, action: AxisAction, groups: dict[str, Group]) -> Iterator[Problem]:
    end = 0
    for segment in sorted(action.segments, key=lambda item: item.offset):
        if segment.offset < end:
            yield _problem(what, "segments apart", f"{segment.group!r} at {segment.offset} before {end}")
        end = segment.offset + segment.inner * segment.count
    ends: dict[str, tuple[int, int]] = {}
    for segment in action.segments:
        n = groups[segment.group].n
        start, inner = ends.get(segment.group, (0, segment.inner))
        if start + segment.count > n:
            yield _problem(what, f"segments that end at the last of {n} channels", repr(segment))
        if start and inner != segment.inner:
            yield _problem(what, f"inner {inner} for every channel of {segment.group!r}", segment.inner)
        ends[segment.group] = ((start + segment.count) % n, segment.inner)
    for name, (start, _) in ends.items():
        if start:
            yield _problem(what, f"every channel of {name!r}", f"the first {start} of {groups[name].n}")


def _blocks(action: AxisAction, rows: AxisAction | None, groups: dict[str, Group]) -> Iterator[Problem]:
    """The rows and the columns of a blocked tensor must move their blocks together."""
    what = f"axis {action.axis} of {action.tensor!r}: {action.blocks} blocks"
    total = sum(segment.inner * segment.count for segment in action.segments)
    if total % action.blocks or total != max(_end(segment) for segment in action.segments):
        yield _problem(what, "segments that fill equal blocks without a hole", f"{total} positions")
        return
    sides = [_mover(action.segments, action.blocks, total, groups), "nothing"]
    if rows is not None:
        size = max(_end(segment) for segment in rows.segments)
        sides[1] = _mover(rows.segments, action.blocks, size, groups)
    if None in sides or sides[0] != sides[1]:
        got = " and ".join("channels across blocks" if side is None else side for side in sides)
        yield _problem(what, "the same block permutation on this axis and on axis 0", got)


def _end(segment: Segment) -> int:
    return segment.offset + segment.inner * segment.count


def _mover(segments: tuple[Segment, ...], blocks: int, size: int, groups: dict[str, Group]) -> str | None:
    """What moves an axis' blocks: the name of an outer permutation, nothing, or None where channels cross."""
    perm = _perm(segments[0].group, groups)
    if len(segments) == 1 and isinstance(perm, Wreath) and perm.g == blocks and size % blocks == 0:
        return perm.outer if segments[0].offset == 0 else None
    homes: dict[str, set[int]] = {}
    for segment in segments:
        if not isinstance(_perm(segment.group, groups), Fixed):
            ends = {segment.offset * blocks // size, (_end(segment) - 1) * blocks // size}
            homes.setdefault(segment.group, set()).update(ends)
    return "nothing" if all(len(home) == 1 for home in homes.values()) else None


def _perm(group: str, groups: dict[str, Group]) -> Perm:
    perm = groups[group].perm
    return groups[perm.group].perm if isinstance(perm, Like) else perm


def problems_with(actions: tuple[AxisAction, ...], arch: Architecture) -> Iterator[Problem]:
    """Everything that does not fit between a table and an architecture."""
    for action in actions:
        what = f"axis {action.axis} of {action.tensor!r}"
        if action.tensor not in arch:
            yield _problem(what, f"a tensor of {arch.name}", "no such tensor")
            continue
        tensor = arch[action.tensor]
        if action.axis >= len(tensor.shape):
            yield _problem(what, f"an axis of shape {tensor.shape}", action.axis)
            continue
        size = tensor.shape[action.axis] * action.blocks
        end = max(_end(segment) for segment in action.segments)
        if end > size or (action.blocks > 1 and end != size):
            yield _problem(what, f"segments within {size} positions", f"an end at {end}")
        if tensor.shape[0] % action.blocks:
            yield _problem(what, f"a number of blocks that divides {tensor.shape[0]}", action.blocks)
        if action.exponent and tensor.dtype not in _FLOATS:
            yield _problem(what, "a floating-point tensor, or exponent 0", tensor.dtype)

"""Whether a symmetry table can be right: each group and action, how they fit together, and with an architecture."""

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

from ckptzoo.errors import Problem
from ckptzoo.schema.architecture import Architecture, name_problem
from ckptzoo.schema.groups import INNERS, MATRICES, ROLES, SCALES, AxisAction, Fixed, Group, Like, Perm, Segment, Wreath
from ckptzoo.text import excerpt

MAX_ITEMS = 100_000
"""The maximum number of groups, of actions, and of segments of one action."""
MAX_CHANNELS = 2**31  # permutations are stored as int32
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def _problem(what: str, expected: str, got: object) -> Problem:
    return Problem("symmetry", what, expected, str(got), "Correct the symmetry table.")


def _natural(value: Any, least: int = 1) -> bool:
    return type(value) is int and least <= value <= MAX_CHANNELS


def problems(groups: tuple[Group, ...], actions: tuple[AxisAction, ...]) -> Iterator[Problem]:
    """Everything wrong with a table, whatever the architecture. Problems of single groups and actions come first; how
    they fit together is looked at when those are right.
    """
    for what, items in (("groups", groups), ("actions", actions)):
        if len(items) > MAX_ITEMS:
            yield _problem(what, f"at most {MAX_ITEMS}", len(items))
            return
    are_right = True
    for problem in chain.from_iterable(chain(map(_of_group, groups), map(_of_action, actions))):
        are_right = False
        yield problem
    if are_right:
        yield from _together(groups, actions)


def _of_group(group: Group) -> Iterator[Problem]:
    what = f"group {excerpt(group.id)!r}"
    # a variant's shards name tensors after groups: <group>.perm, <group>.scale
    if (got := name_problem(group.id)) is not None:
        yield _problem(what, "an id that could name a tensor", got)
    if not _natural(group.n):
        yield _problem(f"{what}: n", f"1 to {MAX_CHANNELS}", repr(group.n))
    if group.scale not in (*SCALES, *MATRICES):
        yield _problem(f"{what}: scale", " or ".join((*SCALES, *MATRICES)), repr(group.scale))
    if isinstance(group.perm, Wreath):
        outer: Any = group.perm.outer
        g, k = group.perm.g, group.perm.k
        if not isinstance(outer, str) or not outer:
            yield _problem(f"{what}: outer", "the name of a block permutation", repr(outer))
        if not _natural(g) or not _natural(k) or g * k != group.n:
            yield _problem(f"{what}: wreath", f"g * k = {group.n!r}", f"g = {g!r}, k = {k!r}")
        if group.perm.inner not in INNERS:
            yield _problem(f"{what}: inner", " or ".join(INNERS), repr(group.perm.inner))
    if group.scale in MATRICES and isinstance(group.perm, Like):
        yield _problem(f"{what}: scale", "scales, as the group is like another", repr(group.scale))
    # the pairs of a block are rotated by different angles, and cannot change places
    if group.scale == "complex" and isinstance(group.perm, Wreath) and group.perm.inner == "free":
        yield _problem(f"{what}: inner", "fixed, for complex numbers in blocks", "free")
    if group.scale in ("linear", "orthogonal", "orthogonal_mean") and isinstance(group.perm, Fixed):
        yield _problem(f"{what}: perm", f"sym or wreath, for {group.scale} matrices", "fixed")


def _of_action(action: AxisAction) -> Iterator[Problem]:
    what = f"axis {excerpt(action.axis)} of {excerpt(action.tensor)!r}"
    if (got := name_problem(action.tensor)) is not None:
        yield _problem(what, "the name of a tensor", got)
    if not _natural(action.axis, 0):
        yield _problem(f"{what}: axis", "0 or more", repr(action.axis))
    if type(action.exponent) is not int or action.exponent not in (1, -1, 0, 2):
        yield _problem(f"{what}: exponent", "1, -1, 0 or 2", repr(action.exponent))
    if type(action.in_mass) is not bool:
        yield _problem(f"{what}: in_mass", "true or false", repr(action.in_mass))
    if action.role not in ROLES:
        yield _problem(f"{what}: role", "one of " + ", ".join(ROLES), repr(action.role))
    # the weight of a grouped convolution has the channels of all groups on axis 0
    if not _natural(action.blocks) or (action.blocks > 1 and action.axis == 0):
        yield _problem(f"{what}: blocks", "1, or more on an axis other than 0", repr(action.blocks))
    if type(action.eps) not in (int, float) or not 0 <= action.eps < math.inf:
        yield _problem(f"{what}: eps", "a finite number, 0 or more", repr(action.eps))
    # eps is added to variances alone
    elif action.eps and action.exponent != 2:
        yield _problem(f"{what}: eps", "0 where the exponent is not 2", repr(action.eps))
    if not 1 <= len(action.segments) <= MAX_ITEMS:
        yield _problem(f"{what}: segments", f"1 to {MAX_ITEMS}", len(action.segments))
    if len(action.signs) > MAX_ITEMS:
        yield _problem(f"{what}: signs", f"at most {MAX_ITEMS}", len(action.signs))
    # behind a normalisation a gain can take the sign of what is normalised
    if action.signs and (action.role, action.exponent, action.blocks) != ("gain", 1, 1):
        yield _problem(f"{what}: signs", "none, but for a gain of exponent 1", f"some for a {action.role}")
    if type(action.absolute) is not bool or (action.absolute and (action.exponent not in (1, -1) or action.signs)):
        got = f"{action.absolute!r} with exponent {action.exponent!r}{' and signs' if action.signs else ''}"
        yield _problem(f"{what}: absolute", "true only with exponent 1 or -1 and without signs", got)
    if len(action.gates) > MAX_ITEMS:
        yield _problem(f"{what}: gates", f"at most {MAX_ITEMS}", len(action.gates))
    if action.gates:
        plain = (action.blocks, action.signs, action.absolute) == (1, (), False) and action.exponent in (1, -1)
        own = ("exponent", "within", "part")
        if not plain or any(
            getattr(item, name) is not None for item in (*action.segments, *action.gates) for name in own
        ):
            expected = "exponent 1 or -1 beside them, and no blocks, signs, moduli, nor fields of single segments"
            yield _problem(f"{what}: gates", expected, "another action")
    for segment in (*action.segments, *action.signs, *action.gates):
        if segment.part is not None and (type(segment.part) is not int or segment.part not in (0, 1)):
            yield _problem(f"{what}: part of a segment", "0 or 1", repr(segment.part))
        sizes = (segment.inner, segment.count)
        if not _natural(segment.offset, 0) or not all(_natural(size) for size in sizes):
            yield _problem(f"{what}: segment", "offset >= 0, inner >= 1, count >= 1", repr(segment))
        if (own := segment.exponent) is not None:
            if type(own) is not int or own not in (1, -1) or own != -action.exponent or segment in action.signs:
                yield _problem(f"{what}: exponent of a segment", "1 or -1, the inverse of the action's", repr(own))
            elif action.signs or action.blocks > 1 or action.absolute:
                yield _problem(f"{what}: exponent of a segment", "none beside signs, blocks and moduli", repr(own))
        if segment.within is not None:
            within: Any = segment.within
            if not isinstance(within, str) or segment in action.signs:
                yield _problem(f"{what}: within", "the id of a group, and none in signs", repr(within))
            elif action.signs or action.blocks > 1 or action.absolute or action.exponent == 2:
                expected = "none beside signs, blocks, moduli and variances"
                yield _problem(f"{what}: within", expected, repr(segment.within))


def _together(table: tuple[Group, ...], actions: tuple[AxisAction, ...]) -> Iterator[Problem]:
    groups: dict[str, Group] = {}
    outers: dict[str, int] = {}
    for group in table:
        if group.id in groups:
            yield _problem(f"group {group.id!r}", "each id once", "it twice")
        if isinstance(group.perm, Like):
            leader = groups.get(group.perm.group)
            what = f"group {group.id!r}: like {group.perm.group!r}"
            # leaders come first, so that one pass over the groups knows every permutation
            if leader is None or isinstance(leader.perm, Like):
                yield _problem(what, "a group before it that is not like another", "none" if leader is None else "one")
                return
            if leader.n != group.n:
                yield _problem(what, f"{leader.n} channels, as there", group.n)
            if leader.scale in ("linear", "complex"):
                yield _problem(what, "a group without such matrices", leader.scale)
            elif leader.scale in MATRICES and group.scale != "none":
                yield _problem(f"group {group.id!r}: scale", f"none, as {leader.id!r} has matrices", group.scale)
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
        used |= action.groups
        if unknown := sorted(action.groups - groups.keys()):
            yield _problem(what, "segments of known groups", f"unknown group {unknown[0]!r}")
            continue
        for part in action.parts:
            yield from _layout(what, part.segments, groups)
        yield from _with_matrices(what, action, groups)
        for segment in action.segments:
            yield from _inside(what, segment, groups)
        if len(action.parts) > 1:
            yield from _apart(what, action.segments)
        if action.signs:
            yield from _layout(f"{what}: signs", action.signs, groups)
            yield from _signs(f"{what}: signs", action, groups)
        if action.gates:
            yield from _gates(f"{what}: gates", action, groups)
    for name in groups.keys() - used:
        yield _problem(f"group {name!r}", "at least one axis action", "none")
    # groups that are not known were named above
    if used <= groups.keys():
        for action in actions:
            if action.blocks > 1:
                yield from _blocks(action, seen.get((action.tensor, 0)), groups)


def _apart(what: str, segments: tuple[Segment, ...]) -> Iterator[Problem]:
    end = 0
    for segment in sorted(segments, key=lambda item: item.offset):
        if segment.offset < end:
            yield _problem(what, "segments apart", f"{segment.group!r} at {segment.offset} before {end}")
        end = _end(segment)


def _inside(what: str, segment: Segment, groups: dict[str, Group]) -> Iterator[Problem]:
    """Check that what moves positions inside channels moves them with the blocks that the channels are in."""
    if segment.within is None:
        return
    own, other = groups[segment.group], groups[segment.within]
    what = f"{what}: {segment.group!r} within {segment.within!r}"
    perms = own.perm, _perm(other.id, groups)
    if not (isinstance(perms[0], Wreath) and isinstance(perms[1], Wreath) and perms[0].outer == perms[1].outer):
        yield _problem(what, "two groups of one block permutation", " and ".join(map(repr, perms)))
    elif own.id == other.id or own.scale != "none":
        yield _problem(what, "another group, and one without scales that it is within", own.scale)
    elif segment.inner % perms[1].k:
        yield _problem(what, f"inner a multiple of the {perms[1].k} channels of a block", segment.inner)


def _layout(what: str, segments: tuple[Segment, ...], groups: dict[str, Group]) -> Iterator[Problem]:
    end = 0
    for segment in sorted(segments, key=lambda item: item.offset):
        if segment.offset < end:
            yield _problem(what, "segments apart", f"{segment.group!r} at {segment.offset} before {end}")
        end = segment.offset + segment.inner * segment.count
    ends: dict[tuple[str, int | None], tuple[int, int, str | None]] = {}
    for segment in segments:
        n, key = groups[segment.group].n, (segment.group, segment.part)
        start, inner, within = ends.get(key, (0, segment.inner, segment.within))
        if start + segment.count > n:
            yield _problem(what, f"segments that end at the last of {n} channels", repr(segment))
        if start and inner != segment.inner:
            yield _problem(what, f"inner {inner} for every channel of {segment.group!r}", segment.inner)
        if start and within != segment.within:
            yield _problem(what, f"within {within!r} for every channel of {segment.group!r}", repr(segment.within))
        # modulo n: a tensor concatenated with itself lists the channels again
        ends[key] = ((start + segment.count) % n, segment.inner, segment.within)
    for (name, _), (start, *_) in ends.items():
        if start:
            yield _problem(what, f"every channel of {name!r}", f"the first {start} of {groups[name].n}")


def _with_matrices(what: str, action: AxisAction, groups: dict[str, Group]) -> Iterator[Problem]:
    """Check that matrices mix whole channels, where these are written or read; complex numbers have two parts."""
    kinds = {name: groups[name].scale for name in action.groups}
    mixing = {name for name, kind in kinds.items() if kind in MATRICES}
    if mixing and (action.exponent not in (1, -1) or action.blocks > 1 or action.absolute or action.signs):
        got = f"exponent {action.exponent}, {action.blocks} blocks"
        yield _problem(what, f"exponent 1 or -1 alone for the matrices of {min(mixing)!r}", got)
    positions: dict[tuple[str, int | None, int | None], int] = {}
    for segment in action.segments:
        name = segment.within or segment.group
        if segment.part is not None and kinds[name] != "complex":
            yield _problem(f"{what}: part of a segment", "none but of complex numbers", f"one of {name!r}")
        if kinds[name] == "complex":
            perm = _perm(name, groups)
            channels = perm.k if segment.within is not None and isinstance(perm, Wreath) else 1
            if segment.part is None and segment.inner // channels % 2:
                yield _problem(what, f"real and imaginary parts in turns for {name!r}", repr(segment))
            key = name, segment.exponent, segment.part
            positions[key] = positions.get(key, 0) + segment.inner * segment.count
    for (name, exponent, part), count in positions.items():
        if part is not None and positions.get((name, exponent, 1 - part)) != count:
            yield _problem(what, f"as many imaginary as real parts of {name!r}", f"{count} of part {part}")


def _signs(what: str, action: AxisAction, groups: dict[str, Group]) -> Iterator[Problem]:
    """Check that a gain and what it normalises are permuted together, and scaled apart."""
    if both := {segment.group for segment in action.signs} & {segment.group for segment in action.segments}:
        yield _problem(what, "other groups than those of the gain", repr(min(both)))
    for name in sorted({segment.group for segment in action.signs}):
        if not groups[name].flips:
            yield _problem(what, "groups whose scales have signs", f"{name!r} of scale {groups[name].scale!r}")
    yield from _permuted_together(what, action.signs, action.segments, groups)


def _gates(what: str, action: AxisAction, groups: dict[str, Group]) -> Iterator[Problem]:
    """Check that gates and the channels that they multiply are permuted together, and scaled apart."""
    if both := {segment.group for segment in action.gates} & {segment.group for segment in action.segments}:
        yield _problem(what, "other groups than those that they multiply", repr(min(both)))
        return
    for name in sorted({segment.group for segment in action.gates}):
        if not groups[name].scaled:
            yield _problem(what, "groups with scales", f"{name!r} of scale {groups[name].scale!r}")
    for name in sorted({segment.group for segment in action.segments}):
        if groups[name].scale in MATRICES:
            yield _problem(what, "groups without matrices beside them", f"{name!r} of scale {groups[name].scale!r}")
    yield from _layout(what, action.gates, groups)
    multiplied = dict(_runs(action.segments, groups))
    listings: dict[tuple[str, int], tuple[str, int] | None] = {}
    for (run, listing), segment in zip(_runs(action.gates, groups), action.gates, strict=True):
        found = multiplied.get(run)
        if found is None or listings.setdefault(listing, found) != found:
            yield _problem(what, "channels that are listed as those that they multiply", repr(segment))
            return
    yield from _permuted_together(what, action.gates, action.segments, groups)


def _runs(segments: tuple[Segment, ...], groups: dict[str, Group]) -> Iterator[tuple[tuple[int, ...], tuple[str, int]]]:
    """Which channels are where, whatever the groups are called; and the group, with the number of its listing."""
    starts: dict[str, int] = {}
    for item in segments:
        n, start = groups[item.group].n, starts.get(item.group, 0)
        starts[item.group] = start + item.count
        yield (item.offset, item.inner, item.count, start % n, n), (item.group, start // n)


def _permuted_together(
    what: str, segments: tuple[Segment, ...], others: tuple[Segment, ...], groups: dict[str, Group]
) -> Iterator[Problem]:
    moving = _intervals(others, groups)
    for key, intervals in _intervals(segments, groups).items():
        for start, stop in intervals:
            if not any(first <= start and stop <= last for first, last in moving.get(key, ())):
                yield _problem(what, "channels that are permuted with those of the axis", f"others from {start} on")


def _intervals(
    segments: tuple[Segment, ...], groups: dict[str, Group]
) -> dict[tuple[object, ...], list[tuple[int, int]]]:
    """Intervals of positions that one permutation moves, by its group and by which channel is where.

    Channel c takes the positions from ``base + c * inner`` on; blocks whose channels keep their order count as
    channels. Positions that nothing moves are together.
    """
    intervals: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    starts: dict[str, int] = {}
    for segment in segments:
        group = groups[segment.group]
        start = starts.get(segment.group, 0)
        starts[segment.group] = (start + segment.count) % group.n
        mover, perm = group.perm.group if isinstance(group.perm, Like) else group.id, _perm(group.id, groups)
        taken, stays = segment.inner, isinstance(perm, Fixed)
        if isinstance(perm, Wreath) and (perm.k == 1 or perm.inner == "fixed"):  # the block permutation alone
            mover, taken, stays = f"*{perm.outer}", segment.inner * perm.k, perm.g == 1
        key = (mover, taken, segment.offset - start * segment.inner)
        # one channel has no other to change places with
        joined = intervals.setdefault(() if stays or group.n == 1 else key, [])
        first, last = segment.offset, _end(segment)
        beside = [item for item in joined if item[1] == first or item[0] == last]
        for item in beside:
            joined.remove(item)
            first, last = min(first, item[0]), max(last, item[1])
        joined.append((first, last))
    return intervals


def _blocks(action: AxisAction, rows: AxisAction | None, groups: dict[str, Group]) -> Iterator[Problem]:
    """Check that the rows and the columns of a blocked tensor move their blocks together."""
    what = f"axis {action.axis} of {action.tensor!r}: {action.blocks} blocks"
    total = sum(segment.inner * segment.count for segment in action.segments)
    # blocks are equal runs of positions: a hole would shift all behind it
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
    """The mover of an axis' blocks: the name of an outer permutation, nothing, or None where channels cross."""
    perm = _perm(segments[0].group, groups)
    if len(segments) == 1 and isinstance(perm, Wreath) and perm.g == blocks and size % blocks == 0:
        return perm.outer if segments[0].offset == 0 else None
    blocks_of: dict[str, set[int]] = {}
    for segment in segments:
        if not isinstance(_perm(segment.group, groups), Fixed):
            ends = {segment.offset * blocks // size, (_end(segment) - 1) * blocks // size}
            blocks_of.setdefault(segment.group, set()).update(ends)
    return "nothing" if all(len(numbers) == 1 for numbers in blocks_of.values()) else None


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
        end = max(_end(segment) for segment in (*action.segments, *action.signs, *action.gates))
        # the axis has the channels of one block, the segments those of all
        if end > size or (action.blocks > 1 and end != size):
            yield _problem(what, f"segments within {size} positions", f"an end at {end}")
        if tensor.shape[0] % action.blocks:
            yield _problem(what, f"a number of blocks that divides {tensor.shape[0]}", action.blocks)
        if action.exponent and tensor.dtype not in _FLOATS:
            yield _problem(what, "a floating-point tensor, or exponent 0", tensor.dtype)

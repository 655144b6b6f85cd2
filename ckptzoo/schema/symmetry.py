"""The symmetry table: which permutations and scalings of a network's channels leave its function as it is.

A group is a set of channels that move together. An element g of the table's symmetry group gives each group a
permutation and, where the activation allows it, a scale per channel: ``new[i] = scale[i] * old[perm[i]]`` for
the channels' values, and the factor ``scale[i] ** exponent`` for the slices of every axis in the table. Where nothing
treats channels one by one, as in the heads of an attention, a matrix G for each block of them takes the place of
scales: ``new = G old`` for what writes them, and ``new = G^-T old`` for what reads them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ckptzoo.errors import Problem, SpecError
from ckptzoo.schema.architecture import Architecture, name_problem
from ckptzoo.schema.documents import Document, digest_of
from ckptzoo.schema.folds import Fold, fold_from_json, fold_problems, fold_problems_with, fold_to_json

MATRICES = ("linear", "orthogonal", "orthogonal_mean", "complex")
SCALES = ("positive", "sign", "nonzero", "none")
INNERS = ("free", "fixed")
ROLES = ("out", "in", "bias", "gain", "shift", "mean", "variance")
"""``out`` writes the channel, ``in`` reads it; the others are per-channel vectors beside the weights."""
MAX_ITEMS = 100_000
"""Groups, actions, and segments of one action."""
MAX_CHANNELS = 2**31  # permutations are stored as int32
_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Sym:
    """Any permutation of the group's channels."""


@dataclass(frozen=True)
class Fixed:
    """No permutation."""


@dataclass(frozen=True)
class Wreath:
    """``g`` blocks of ``k`` channels: whole blocks move, and channels move within their block where ``inner`` is free.

    Groups that name the same ``outer`` move their blocks by one shared permutation. So do the two sides of a
    convolution in ``g`` groups (``k = C / g`` in, ``k = Cout / g`` out).

    Parameters
    ----------
    outer
        a name for the permutation of the blocks.
    g
        blocks.
    k
        channels of a block.
    inner
        ``"free"``, or ``"fixed"`` where channels keep their order within their block, as those of attention heads do
        under rotary embeddings.
    """

    outer: str
    g: int
    k: int
    inner: str = "free"


@dataclass(frozen=True)
class Like:
    """The permutation of another group: channels that are permuted together but scaled apart.

    So are the two sides of a BatchNorm. The other group comes before in the table and is not ``Like`` itself.

    Parameters
    ----------
    group
        the id of the other group.
    """

    group: str


Perm = Sym | Wreath | Like | Fixed


@dataclass(frozen=True)
class Group:
    """Channels that move together.

    Parameters
    ----------
    id
        a name that is unique in the table; groups are in topological order, from input to output.
    n
        number of channels.
    perm
        ``Sym()``, ``Wreath(outer, g, k)``, ``Like(group)`` or ``Fixed()``.
    scale
        ``"positive"`` (ReLU), ``"sign"`` (odd activations), ``"nonzero"`` (both: in front of a BatchNorm whose gain
        takes the sign) or ``"none"``. Or a kind of matrices, one for each block of a ``Wreath`` or one for all
        channels: ``"linear"`` (any invertible matrix: queries and keys, values and outputs), ``"orthogonal"`` (what
        RMSNorm reads), ``"orthogonal_mean"`` (orthogonal, and the vector of ones stays: what LayerNorm reads), or
        ``"complex"`` (a number other than 0 for each channel, which is a pair of positions: rotary embeddings).

    Notes
    -----
    The permutation of a group with matrices moves whole blocks. Groups that are ``Like`` one with orthogonal matrices
    take these as they would take its permutation, and are not scaled: the gains of the normalisations in between must
    be 1, to which ``fold`` brings them.
    """

    id: str
    n: int
    perm: Perm
    scale: str

    @property
    def scaled(self) -> bool:
        """Whether each of its channels has a scale of its own."""
        return self.scale != "none" and self.scale not in MATRICES

    @property
    def matrix_shape(self) -> tuple[int, ...] | None:
        """Of its matrices in one element: (blocks, k, k), or (n, 2) for complex numbers; None where it has none."""
        if self.scale not in MATRICES:
            return None
        if self.scale == "complex":
            return (self.n, 2)
        g, k = (self.perm.g, self.perm.k) if isinstance(self.perm, Wreath) else (1, self.n)
        return (g, k, k)

    @property
    def resizes(self) -> bool:
        """Whether its channels may be multiplied by positive numbers other than 1."""
        return self.scale in ("positive", "nonzero")

    @property
    def flips(self) -> bool:
        """Whether its channels may be multiplied by -1."""
        return self.scale in ("sign", "nonzero")


@dataclass(frozen=True)
class Segment:
    """A run of channels on an axis: the i-th takes ``inner`` positions from ``offset + i * inner`` on.

    Several segments of one group list its channels in order, each going on where the last one ended, and
    start over after channel ``n - 1`` (a concatenation of a tensor with itself).

    Parameters
    ----------
    group
        the group's id.
    offset
        the first position.
    inner
        positions a channel takes; height times width after a flatten, else 1.
    count
        channels in this segment.
    exponent
        1 or -1 where it is another one than the action's, as on an axis that holds queries and keys; else None.
    part
        of a group of complex numbers, this one or the one ``within`` it: 0 where the segment has the real parts of its
        channels, 1 for the imaginary parts; None where both take turns, so that each channel has an even number of
        positions.
    within
        a group that permutes and scales the positions inside each channel; else None. Both groups are ``Wreath`` of one
        block permutation (the inner one may be ``Like`` such a group), and this segment's has no scales: heads of
        queries that share keys, say, and the channels of these heads of keys. Of a channel in block b with
        ``inner = t * m`` positions, where that group has m channels a block, the positions from ``j * t`` on are those
        of its channel ``b * m + j``.
    """

    group: str
    offset: int
    inner: int
    count: int
    exponent: int | None = None
    within: str | None = None
    part: int | None = None


@dataclass(frozen=True)
class AxisAction:
    """What a group element does to one axis of one tensor; positions in no segment stay as they are.

    Parameters
    ----------
    tensor, axis
        whose axis; axes are counted without the leading axis of stacked checkpoints.
    segments
        which channels sit where.
    exponent
        +1 where the channel is written, -1 where it is read, 0 where it is only permuted, +2 for a running variance.
    in_mass
        whether the tensor counts in the mass (the sum of squared weights without biases).
    role
        one of ``ROLES``.
    blocks
        more than 1 where the axis is read within equal blocks of axis 0 (the input axis of a grouped convolution):
        position j in block b of axis 0 is position ``b * size + j`` of the segments.
    eps
        with exponent +2 only: the normalisation's eps. The variance becomes ``scale ** 2 * (variance + eps) - eps``,
        which keeps the function exactly, and must not be negative.
    signs
        of a gain: which channels are normalised there, listed as in ``segments``. The gain is multiplied by the signs
        of their scales too, so that ``gain * (x - mean) / std`` stays as it is when x and the mean change sign.
    absolute
        whether the moduli of the scales act, as on standard deviations, which have no sign; with exponent 1 or -1 and
        without ``signs``.
    gates
        channels that multiply those of ``segments``, listed alike, as in a gated unit: their scales act here too, with
        the same exponent. Some of the segments, in their order, with other groups.
    """

    tensor: str
    axis: int
    segments: tuple[Segment, ...]
    exponent: int
    in_mass: bool
    role: str
    blocks: int = 1
    eps: float = 0.0
    signs: tuple[Segment, ...] = ()
    absolute: bool = False
    gates: tuple[Segment, ...] = ()

    @property
    def groups(self) -> set[str]:
        """The groups that permute or scale the axis."""
        return self.listed_groups | {segment.group for segment in (*self.signs, *self.gates)}

    @property
    def of_gates(self) -> "AxisAction":
        """The same action with segments and gates exchanged."""
        return replace(self, segments=self.gates, gates=self.segments)

    @property
    def listed_groups(self) -> set[str]:
        """The groups whose channels the segments list, and those that act inside these."""
        inside = {segment.within for segment in self.segments if segment.within is not None}
        return inside | {segment.group for segment in self.segments}

    @property
    def parts(self) -> "tuple[AxisAction, ...]":
        """The action as one or two whose segments all have the action's exponent."""
        own = tuple(replace(item, exponent=None) for item in self.segments if item.exponent is not None)
        if not own:
            return (self,)
        others = tuple(item for item in self.segments if item.exponent is None)
        inverse = replace(self, segments=own, exponent=-self.exponent)
        return (replace(self, segments=others), inverse) if others else (inverse,)


def with_scaled_gates(actions: Iterable[AxisAction], groups: Iterable[Group]) -> tuple[AxisAction, ...]:
    """The actions with gates of scaled groups alone, as where some groups of a table lose their scales.

    Parameters
    ----------
    actions
        of the table.
    groups
        all of its groups, as they are now.
    """
    scaled = {group.id for group in groups if group.scaled}
    return tuple(
        replace(action, gates=tuple(segment for segment in action.gates if segment.group in scaled))
        if action.gates
        else action
        for action in actions
    )


def _problem(what: str, expected: str, got: object) -> Problem:
    return Problem("symmetry", what, expected, str(got), "Correct the symmetry table.")


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
    single = [problem for group in groups for problem in _of_group(group)]
    single += [problem for action in actions for problem in _of_action(action)]
    yield from single or _together(groups, actions)


def _of_group(group: Group) -> Iterator[Problem]:
    what = f"group {group.id!r}"
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
    if group.scale == "complex" and isinstance(group.perm, Wreath) and group.perm.inner == "free":
        yield _problem(f"{what}: inner", "fixed, for complex numbers in blocks", "free")
    if group.scale in ("linear", "orthogonal", "orthogonal_mean") and isinstance(group.perm, Fixed):
        yield _problem(f"{what}: perm", f"sym or wreath, for {group.scale} matrices", "fixed")


def _of_action(action: AxisAction) -> Iterator[Problem]:
    what = f"axis {action.axis!r} of {action.tensor!r}"
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
    if not _natural(action.blocks) or (action.blocks > 1 and action.axis == 0):
        yield _problem(f"{what}: blocks", "1, or more on an axis other than 0", repr(action.blocks))
    if type(action.eps) not in (int, float) or not 0 <= action.eps < math.inf:
        yield _problem(f"{what}: eps", "a finite number, 0 or more", repr(action.eps))
    elif action.eps and action.exponent != 2:
        yield _problem(f"{what}: eps", "0 where the exponent is not 2", repr(action.eps))
    if not 1 <= len(action.segments) <= MAX_ITEMS:
        yield _problem(f"{what}: segments", f"1 to {MAX_ITEMS}", len(action.segments))
    if len(action.signs) > MAX_ITEMS:
        yield _problem(f"{what}: signs", f"at most {MAX_ITEMS}", len(action.signs))
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
    """What moves positions inside channels must move them with the blocks that the channels are in."""
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
        ends[key] = ((start + segment.count) % n, segment.inner, segment.within)
    for (name, _), (start, *_) in ends.items():
        if start:
            yield _problem(what, f"every channel of {name!r}", f"the first {start} of {groups[name].n}")


def _with_matrices(what: str, action: AxisAction, groups: dict[str, Group]) -> Iterator[Problem]:
    """Matrices mix whole channels, where these are written or read; complex numbers have two parts."""
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
    """A gain and what it normalises must be permuted together, and be scaled apart."""
    if both := {segment.group for segment in action.signs} & {segment.group for segment in action.segments}:
        yield _problem(what, "other groups than those of the gain", repr(min(both)))
    for name in sorted({segment.group for segment in action.signs}):
        if not groups[name].flips:
            yield _problem(what, "groups whose scales have signs", f"{name!r} of scale {groups[name].scale!r}")
    yield from _permuted_together(what, action.signs, action.segments, groups)


def _gates(what: str, action: AxisAction, groups: dict[str, Group]) -> Iterator[Problem]:
    """Gates and the channels that they multiply must be permuted together, and be scaled apart."""
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
        if end > size or (action.blocks > 1 and end != size):
            yield _problem(what, f"segments within {size} positions", f"an end at {end}")
        if tensor.shape[0] % action.blocks:
            yield _problem(what, f"a number of blocks that divides {tensor.shape[0]}", action.blocks)
        if action.exponent and tensor.dtype not in _FLOATS:
            yield _problem(what, "a floating-point tensor, or exponent 0", tensor.dtype)


@dataclass(frozen=True)
class Symmetry:
    """The groups of a network in topological order, and what they do to its tensors.

    Parameters
    ----------
    groups
        of channels that move together; a group comes before those that are like it.
    actions
        what the groups do to the axes of tensors, one for each axis.
    folds
        additive freedoms, in an order in which each leaves as it is what those before it have fixed.

    Raises
    ------
    SpecError
        With every problem found.
    """

    groups: tuple[Group, ...]
    actions: tuple[AxisAction, ...]
    folds: tuple[Fold, ...] = ()
    _by_id: dict[str, Group] = field(init=False, repr=False, compare=False)
    _by_tensor: dict[str, tuple[AxisAction, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if found := [*problems(self.groups, self.actions), *fold_problems(self.folds)]:
            raise SpecError(found)
        by_tensor: dict[str, list[AxisAction]] = {}
        for action in self.actions:
            by_tensor.setdefault(action.tensor, []).append(action)
        ordered = {name: tuple(sorted(items, key=lambda item: item.axis)) for name, items in by_tensor.items()}
        object.__setattr__(self, "_by_id", {group.id: group for group in self.groups})
        object.__setattr__(self, "_by_tensor", ordered)

    def check(self, arch: Architecture) -> None:
        """Check the table against an architecture: tensors, axes and sizes.

        Parameters
        ----------
        arch
            whose tensors the table is for.

        Raises
        ------
        SpecError
            With every problem found.
        """
        if found := [*problems_with(self.actions, arch), *fold_problems_with(self.folds, arch)]:
            raise SpecError(found)

    def __getitem__(self, group: str) -> Group:
        return self._by_id[group]

    def leader(self, group: str) -> Group:
        """The group whose permutation this group takes: itself, unless it is ``Like`` another.

        Parameters
        ----------
        group
            a group's id.
        """
        found = self._by_id[group]
        return self._by_id[found.perm.group] if isinstance(found.perm, Like) else found

    def actions_on(self, tensor: str) -> tuple[AxisAction, ...]:
        """The actions on one tensor, by axis; none where the table does not name it.

        Parameters
        ----------
        tensor
            a tensor's name.
        """
        return self._by_tensor.get(tensor, ())

    @property
    def has_matrices(self) -> bool:
        """Whether some group has matrices."""
        return any(group.scale in MATRICES for group in self.groups)

    @property
    def digest(self) -> str:
        """``sha256:...`` of the content."""
        return digest_of(self.to_json())

    def to_json(self) -> Document:
        """The content of ``symmetry.json``."""
        return {
            "groups": [
                {"id": group.id, "n": group.n, "perm": _perm_to_json(group.perm), "scale": group.scale}
                for group in self.groups
            ],
            "actions": [
                {
                    "tensor": action.tensor,
                    "axis": action.axis,
                    "segments": [_segment_to_json(segment) for segment in action.segments],
                    "exponent": action.exponent,
                    "in_mass": action.in_mass,
                    "role": action.role,
                    "blocks": action.blocks,
                    "eps": action.eps,
                    # left out where there are none, so that tables without signs keep the digests that zoos pin
                    **({"signs": [_segment_to_json(segment) for segment in action.signs]} if action.signs else {}),
                    **({"absolute": True} if action.absolute else {}),
                    **({"gates": [_segment_to_json(segment) for segment in action.gates]} if action.gates else {}),
                }
                for action in self.actions
            ],
            **({"folds": [fold_to_json(fold) for fold in self.folds]} if self.folds else {}),
        }

    @classmethod
    def from_json(cls, content: Document, *, location: str = "symmetry.json") -> "Symmetry":
        """Read the content of ``symmetry.json``.

        Parameters
        ----------
        content
            of the document, without its digest.
        location
            what messages call it.

        Raises
        ------
        SpecError
            With every problem found.
        """
        try:
            _only(content, "groups", "actions", *({"folds"} & content.keys()))
            return cls(
                tuple(_group(item) for item in content["groups"]),
                tuple(_action(item) for item in content["actions"]),
                tuple(fold_from_json(item) for item in content.get("folds", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            got = f"{type(error).__name__} {error}"
            step = "Write the file again with ckptzoo."
            raise SpecError(Problem(location, "fields", "those of docs/format.md", got, step)) from error


def _perm_to_json(perm: Perm) -> Document:
    if isinstance(perm, Like):
        return {"kind": "like", "group": perm.group}
    if isinstance(perm, Wreath):
        # left out where it is free, so that tables from before it keep the digests that zoos pin
        inner = {} if perm.inner == "free" else {"inner": perm.inner}
        return {"kind": "wreath", "outer": perm.outer, "g": perm.g, "k": perm.k, **inner}
    return {"kind": "sym" if isinstance(perm, Sym) else "fixed"}


def _segment_to_json(segment: Segment) -> Document:
    # left out where there is none, so that tables without it keep the digests that zoos pin
    optional = ("exponent", "part", "within")
    own = {name: value for name in optional if (value := getattr(segment, name)) is not None}
    return {"group": segment.group, "offset": segment.offset, "inner": segment.inner, "count": segment.count, **own}


def _only(item: Document, *keys: str) -> None:
    if set(item) != set(keys):
        raise KeyError(f"{', '.join(sorted(item))} instead of {', '.join(keys)}")


_PERMS: dict[str, tuple[Callable[..., Perm], tuple[str, ...]]] = {
    "sym": (Sym, ()),
    "fixed": (Fixed, ()),
    "wreath": (Wreath, ("outer", "g", "k")),
    "like": (Like, ("group",)),
}


def _group(item: Document) -> Group:
    _only(item, "id", "n", "perm", "scale")
    perm: Document = item["perm"]
    make, keys = _PERMS[perm["kind"]]
    keys += ("inner",) if make is Wreath and "inner" in perm else ()
    _only(perm, "kind", *keys)
    return Group(item["id"], item["n"], make(*(perm[key] for key in keys)), item["scale"])


def _action(item: Document) -> AxisAction:
    optional = {"signs", "absolute", "gates"} & item.keys()
    _only(item, "tensor", "axis", "segments", "exponent", "in_mass", "role", "blocks", "eps", *optional)
    listed = {name: tuple(map(_segment, item[name])) for name in ("segments", "signs", "gates") if name in item}
    fields: dict[str, Any] = {**item, **listed}
    return AxisAction(**fields)


def _segment(item: dict[str, Any]) -> Segment:
    _only(item, "group", "offset", "inner", "count", *({"exponent", "part", "within"} & item.keys()))
    return Segment(**item)

"""Heads of queries that share heads of keys and values: a group of their own, inside whose channels those act.

In the table of a trace the channels of a head of keys are listed once where the keys are written, and once for each
head of queries that shares them where the queries are written and the outputs read. So these heads keep their order.
Here each such axis lists the heads of queries instead, and ``Segment.within`` says whose channels are inside.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import SpecError
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import listings
from ckptzoo.symmetry.tracing.groups import unique_name

_Key = tuple[str, int | None, int | None]
"""A group, the exponent of its segments where they have one of their own, and the part of complex numbers."""
_Positions = Mapping[_Key, NDArray[np.int64]]
"""The positions (n, times) of each channel on an axis, in order."""


def shared_heads(symmetry: Symmetry) -> list[tuple[str, ...]]:
    """Return sets of groups in whose blocks may be heads that others share, to be tried in this order.

    In the table the heads that share others keep their order. Groups of one block permutation belong together, such as
    queries with keys and values with outputs, and those that are on axes of queries alone, such as a gate for each
    head; or without these. Where all heads share one there are no blocks, so that pairs of groups next to each other
    are tried.
    """
    outers: dict[str, list[str]] = {}
    single: list[str] = []
    repeated: set[str] = set()
    for group in symmetry.groups:
        if len(_counts(_on_axes(symmetry, {group.id}).values()).get(group.id, ())) > 1:
            repeated.add(group.id)
        if isinstance(symmetry.leader(group.id).perm, Wreath):
            outers.setdefault(_wreath(symmetry, group.id).outer, []).append(group.id)
        elif group.id in repeated and not isinstance(group.perm, Like):
            single.append(group.id)
    candidates: list[tuple[str, ...]] = []
    for names in outers.values():
        shared = tuple(name for name in names if name in repeated)
        candidates += (
            [tuple(names), shared] if any(not isinstance(symmetry[name].perm, Like) for name in shared) else []
        )
    for pair in itertools.pairwise(single):
        likes = (group.id for group in symmetry.groups if isinstance(group.perm, Like) and group.perm.group in pair)
        candidates += [(*pair, *likes), pair]
    return [names for names in dict.fromkeys(candidates) if with_heads_exchanged(symmetry, names) is not symmetry]


def with_heads_exchanged(symmetry: Symmetry, names: tuple[str, ...]) -> Symmetry:
    """Return the table with a group of the heads that share those of the groups ``names``, a set of ``shared_heads``.
    It is the given one where there are none of these heads, which keep their order in it.
    """
    found = _on_axes(symmetry, names)
    counts = _counts(found.values())
    # heads of queries for each head of keys
    times = max((max(numbers) // min(numbers) for numbers in counts.values()), default=1)
    if times == 1:
        return symmetry
    # a group that is as often everywhere is on axes of queries alone
    least = {name: min(numbers) if len(numbers) > 1 else min(numbers) // times for name, numbers in counts.items()}
    perms = _perms(symmetry, names)
    outer, g = next((perm.outer, perm.g) for perm in perms.values())
    head = unique_name(outer, [group.id for group in symmetry.groups])
    changed: dict[AxisAction, AxisAction] = {}
    for action, listed in found.items():
        repeated = {key: positions for key, positions in listed.items() if positions.shape[1] != least[key[0]]}
        if not repeated:
            continue
        plain = action.is_bare and action.exponent != 2
        if not plain or any(item.shape[1] != times * least[name] for (name, _, _), item in repeated.items()):
            return symmetry
        segments = [segment for segment in action.segments if _key(segment) not in repeated]
        for key, positions in repeated.items():
            heads = list(_segments(head, key, positions.reshape(g, -1, times, least[key[0]])))
            if not heads:
                return symmetry
            segments += heads
        changed[action] = replace(action, segments=tuple(segments))
    groups = [replace(group, perm=perms.get(group.id, group.perm)) for group in symmetry.groups]
    first = min(at for at, group in enumerate(groups) if group.id in names)
    groups.insert(first, Group(head, g * times, Wreath(outer, g, times), "none"))
    actions = tuple(changed.get(action, action) for action in symmetry.actions)
    try:
        return replace(symmetry, groups=tuple(groups), actions=actions)
    except SpecError:  # such as queries whose heads move with those of another layer
        return symmetry


def _wreath(symmetry: Symmetry, name: str) -> Wreath:
    perm = symmetry.leader(name).perm
    assert isinstance(perm, Wreath)
    return perm


def _perms(symmetry: Symmetry, names: tuple[str, ...]) -> dict[str, Wreath]:
    """Return the permutations of these groups that are not like another; of one block where there are no blocks."""
    taken = [group.perm.outer for group in symmetry.groups if isinstance(group.perm, Wreath)]
    parts = zip(*(name.split(".") for name in names), strict=False)
    shared = [part for part, *_ in itertools.takewhile(lambda item: len(set(item)) == 1, parts)]
    outer = unique_name(".".join(shared) or "heads", taken)
    perms: dict[str, Wreath] = {}
    for group in (symmetry[name] for name in names):
        inner = "fixed" if isinstance(group.perm, Fixed) or group.scale == "complex" else "free"
        if not isinstance(group.perm, Like):
            perms[group.id] = group.perm if isinstance(group.perm, Wreath) else Wreath(outer, 1, group.n, inner)
    return perms


def _key(segment: Segment) -> _Key:
    return segment.group, segment.exponent, segment.part


def _on_axes(symmetry: Symmetry, names: Collection[str]) -> dict[AxisAction, _Positions]:
    """Return the positions of these groups' channels on every axis, but for those inside channels of others."""
    found: dict[AxisAction, _Positions] = {}
    for action in symmetry.actions:
        if not any(segment.group in names and segment.within is None for segment in action.segments):
            continue
        listed: dict[_Key, list[NDArray[np.int64]]] = {}
        for item in listings(action, symmetry):
            if item.group in names and item.inside is None:
                key = item.group, -action.exponent if item.inverse else None, item.part
                listed.setdefault(key, []).append(item.places)
        found[action] = {key: np.concatenate(places, axis=1) for key, places in listed.items()}
    return found


def _counts(found: Iterable[_Positions]) -> dict[str, set[int]]:
    """Return how many positions of an axis each channel of a group has."""
    counts: dict[str, set[int]] = {}
    for listed in found:
        for (name, _, _), positions in listed.items():
            counts.setdefault(name, set()).add(positions.shape[1])
    return counts


def _segments(head: str, key: _Key, positions: NDArray[np.int64]) -> Iterator[Segment]:
    """Yield segments of heads; none where the positions of a head, or of a part of it, are not one after the other.
    ``positions`` are (blocks, channels of a block, heads that share it, positions of a channel in a head).
    """
    group, exponent, part = key
    g, k, times, width = positions.shape
    by_head = positions.swapaxes(1, 2).reshape(g * times, k, width)
    column = 0
    while column < width:  # positions of a channel beside each other, as of pairs, are inside a head together
        last = column + 1
        while last < width and (by_head[:, :, last] == by_head[:, :, last - 1] + 1).all():
            last += 1
        rows = by_head[:, :, column:last].reshape(g * times, -1)
        if (np.diff(rows, axis=1) != 1).any():
            return
        inner = rows.shape[1]
        cuts = [0, *(np.flatnonzero(np.diff(rows[:, 0]) != inner) + 1).tolist(), len(rows)]
        for start, stop in itertools.pairwise(cuts):
            yield Segment(head, int(rows[start, 0]), inner, stop - start, exponent, group, part)
        column = last

"""Gains of queries and of keys that all heads share, as behind a norm in each head: only their products count.

The table of a trace leaves such vectors alone, as no group of channels has one gain for several heads. Where queries
and keys meet entry by entry, an entry of the queries' gain may be multiplied by any number other than 0 and that of the
keys' gain divided by it, with their shifts; under rotary embeddings both entries of a pair together. The layout of the
pairs is found by trial with numbers.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Segment
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.tracing.groups import unique_name

LAYOUTS = ("entries", "halves", "turns")
"""The entries that have one scale: each its own; those at the same place in both halves; two beside each other."""


@dataclass(frozen=True)
class PairedGains:
    """Gains of queries and keys, each ``size`` entries with shifts behind; their names come gain first."""

    multiplied: tuple[str, ...]
    divided: tuple[str, ...]
    size: int


def paired_gains(symmetry: Symmetry, arch: Architecture, vectors: Iterable[tuple[str, str]]) -> list[PairedGains]:
    """Return pairs of gains that come one after the other, are used once, and which no group moves or scales.
    ``vectors`` are names of gains and shifts of the channels in heads and their roles, in the order of the operations.
    """
    listed = list(vectors)
    uses = Counter(name for name, _ in listed)
    runs: list[list[str]] = []
    for name, role in listed:
        # a gain in two norms would have to change for both
        usable = uses[name] == 1 and len(arch[name].shape) == 1 and _stay(name, symmetry)
        if role == "gain":
            runs.append([])
        if usable and runs and role in ("gain", "shift"):
            runs[-1].append(name)
        else:
            runs.append([])  # no later vector continues this run
    found: list[PairedGains] = []
    for first, second in itertools.pairwise(runs):
        shapes = [{arch[name].shape for name in names} for names in (first, second)]
        taken = bool(found) and found[-1].divided == tuple(first)
        if first and second and not taken and len(shapes[0]) == 1 and shapes[0] == shapes[1]:
            found.append(PairedGains(tuple(first), tuple(second), arch[first[0]].shape[0]))
    return found


def unpaired_gains(symmetry: Symmetry, arch: Architecture, vectors: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return gains one after the other of which the second has signs of single channels, as of keys of one head. No
    table expresses what may go from one to the other, as the signs of queries act there.
    """
    gains = [name for name, role in vectors if role == "gain"]
    return [
        (first, second)
        for first, second in itertools.pairwise(gains)
        if gains.count(first) == gains.count(second) == 1
        and arch[first].shape == arch[second].shape
        and _stay(first, symmetry)
        and not _stay(second, symmetry)
        and all(symmetry[name].n == 1 for action in symmetry.actions_on(second) for name in action.groups)
    ]


def _stay(name: str, symmetry: Symmetry) -> bool:
    """Whether no group moves or scales a vector."""
    acting = [symmetry[group] for action in symmetry.actions_on(name) for group in action.groups]
    return all(
        group.scale == "none" and (group.n == 1 or isinstance(symmetry.leader(group.id).perm, Fixed))
        for group in acting
    )


def with_paired_gains(symmetry: Symmetry, arch: Architecture, pairs: Sequence[PairedGains], layout: str) -> Symmetry:
    """Return the table with scales for the ``paired_gains``, or as it is where a size does not fit with the layout."""
    taken = {name for pair in pairs for name in (*pair.multiplied, *pair.divided)}
    groups, actions = list(symmetry.groups), [action for action in symmetry.actions if action.tensor not in taken]
    for pair in pairs:
        n = pair.size if layout == "entries" else pair.size // 2
        if layout != "entries" and pair.size % 2:
            return symmetry
        module, _, tensor = pair.multiplied[0].rpartition(".")
        name = unique_name(module or tensor, [group.id for group in groups])
        groups.append(Group(name, n, Fixed(), "nonzero"))
        # rotary embeddings rotate entries i and i + n / 2 (Llama), or 2 i and 2 i + 1 (RoFormer)
        segments = {
            "entries": (Segment(name, 0, 1, n),),
            "halves": (Segment(name, 0, 1, n), Segment(name, n, 1, n)),
            "turns": (Segment(name, 0, 2, n),),
        }[layout]
        for names, exponent in ((pair.multiplied, 1), (pair.divided, -1)):
            for number, vector in enumerate(names):
                role = "shift" if number else "gain"
                actions.append(AxisAction(vector, 0, segments, exponent, role == "gain", role))
    order = {tensor: number for number, tensor in enumerate(arch.names)}
    actions.sort(key=lambda action: (order[action.tensor], action.axis))
    return Symmetry(tuple(groups), tuple(actions), symmetry.folds)

"""Every kind of symmetry, by what a table calls it."""

from typing import Any

from ckptzoo.schema.groups import Fixed, Group, Like, Perm, Sym, Wreath
from ckptzoo.symmetry.kinds.complex import Complex
from ckptzoo.symmetry.kinds.kind import BlockKind, Kind, PermutationKind
from ckptzoo.symmetry.kinds.linear import Linear
from ckptzoo.symmetry.kinds.matrix import Matrix
from ckptzoo.symmetry.kinds.orthogonal import Orthogonal
from ckptzoo.symmetry.kinds.permutation import Blocks, OfAnother, Symmetric, Unmoved
from ckptzoo.symmetry.kinds.scale import Scale

PERMUTATIONS: dict[type[Perm], PermutationKind] = {
    Sym: Symmetric(),
    Wreath: Blocks(),
    Like: OfAnother(),
    Fixed: Unmoved(),
}
"""The kinds of permutations by the declaration of a group's permutation."""

FACTORS: dict[str, Kind] = {
    "positive": Scale("positive", "positive finite numbers", resizes=True, flips=False),
    "sign": Scale("sign", "+1 or -1", resizes=False, flips=True),
    "nonzero": Scale("nonzero", "finite numbers other than 0", resizes=True, flips=True),
    "linear": Linear(),
    "orthogonal": Orthogonal(mean=False),
    "orthogonal_mean": Orthogonal(mean=True),
    "complex": Complex(),
}
"""The kinds of what multiplies channels by a group's ``scale``; "none" has none."""


def permutations_of(group: Group) -> PermutationKind:
    """Return the kind of a group's permutations."""
    return PERMUTATIONS[type(group.perm)]


def kinds_of(group: Group) -> tuple[Kind, ...]:
    """Return the kinds of a group, in the order in which random elements are drawn: seeds depend on it."""
    factor = FACTORS.get(group.scale)
    if factor is None:
        return (permutations_of(group),)
    return (factor, permutations_of(group)) if factor.part == "matrices" else (permutations_of(group), factor)


def matrix_kind_of(group: Group) -> Matrix | None:
    """Return the kind of a group's matrices; None where it has none."""
    factor = FACTORS.get(group.scale)
    return factor if isinstance(factor, Matrix) else None


def is_balanced(group: Group) -> bool:
    """Whether a group has matrices of which what is written and what is read must be balanced."""
    kind = matrix_kind_of(group)
    return kind is not None and kind.balances


def within_blocks_of(group: Group) -> BlockKind:
    """Return the kind of what a group has within its blocks: matrices, or else permutations."""
    return matrix_kind_of(group) or permutations_of(group)


def arithmetic(part: str, value: Any) -> Kind:
    """Return a kind that composes, inverts and moves the values of a part as all of its kinds do."""
    if part == "perms":
        return PERMUTATIONS[Sym]
    if part == "scales":
        return FACTORS["positive"]
    return FACTORS["linear" if value.ndim == 4 else "complex"]

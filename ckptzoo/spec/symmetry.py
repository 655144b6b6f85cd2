"""The symmetry table: which permutations and scalings of a network's channels leave its function as it is.

A group is a set of channels that move together. An element g of the table's symmetry group gives each group a
permutation and, where the activation allows it, a scale per channel: ``new[i] = scale[i] * old[perm[i]]`` for
the channels' values, and the factor ``scale[i] ** exponent`` for the slices of every axis in the table.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ckptzoo.errors import Problem, SpecError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.document import Document, digest_of
from ckptzoo.spec.groups import AxisAction, Fixed, Group, Like, Perm, Segment, Sym, Wreath
from ckptzoo.spec.symmetry_check import problems, problems_with

__all__ = ["AxisAction", "Fixed", "Group", "Like", "Segment", "Sym", "Symmetry", "Wreath"]


@dataclass(frozen=True)
class Symmetry:
    """The groups of a network in topological order, and what they do to its tensors.

    Raises
    ------
    SpecError
        With every problem found.
    """

    groups: tuple[Group, ...]
    actions: tuple[AxisAction, ...]
    _by_id: dict[str, Group] = field(init=False, repr=False, compare=False)
    _by_tensor: dict[str, tuple[AxisAction, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if found := list(problems(self.groups, self.actions)):
            raise SpecError(found)
        by_tensor: dict[str, list[AxisAction]] = {}
        for action in self.actions:
            by_tensor.setdefault(action.tensor, []).append(action)
        ordered = {name: tuple(sorted(items, key=lambda item: item.axis)) for name, items in by_tensor.items()}
        object.__setattr__(self, "_by_id", {group.id: group for group in self.groups})
        object.__setattr__(self, "_by_tensor", ordered)

    def check(self, arch: Architecture) -> None:
        """Hold the table against an architecture: tensors, axes and sizes.

        Raises
        ------
        SpecError
            With every problem found.
        """
        if found := list(problems_with(self.actions, arch)):
            raise SpecError(found)

    def __getitem__(self, group: str) -> Group:
        return self._by_id[group]

    def leader(self, group: str) -> Group:
        """The group whose permutation this group takes: itself, unless it is ``Like`` another."""
        found = self._by_id[group]
        return self._by_id[found.perm.group] if isinstance(found.perm, Like) else found

    def actions_on(self, tensor: str) -> tuple[AxisAction, ...]:
        """The actions on one tensor, by axis; none where the table does not name it."""
        return self._by_tensor.get(tensor, ())

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
                    "segments": [
                        {
                            "group": segment.group,
                            "offset": segment.offset,
                            "inner": segment.inner,
                            "count": segment.count,
                        }
                        for segment in action.segments
                    ],
                    "exponent": action.exponent,
                    "in_mass": action.in_mass,
                    "role": action.role,
                    "blocks": action.blocks,
                    "eps": action.eps,
                }
                for action in self.actions
            ],
        }

    @classmethod
    def from_json(cls, content: Document, *, where: str = "symmetry.json") -> "Symmetry":
        """Read the content of ``symmetry.json``.

        Raises
        ------
        SpecError
            With every problem found.
        """
        try:
            _only(content, "groups", "actions")
            return cls(
                tuple(_group(item) for item in content["groups"]),
                tuple(_action(item) for item in content["actions"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            got = f"{type(error).__name__} {error}"
            step = "Write the file again with ckptzoo."
            raise SpecError(Problem(where, "fields", "those of docs/format.md", got, step)) from error


def _perm_to_json(perm: Perm) -> Document:
    if isinstance(perm, Like):
        return {"kind": "like", "group": perm.group}
    if isinstance(perm, Wreath):
        return {"kind": "wreath", "outer": perm.outer, "g": perm.g, "k": perm.k}
    return {"kind": "sym" if isinstance(perm, Sym) else "fixed"}


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
    _only(perm, "kind", *keys)
    return Group(item["id"], item["n"], make(*(perm[key] for key in keys)), item["scale"])


def _action(item: Document) -> AxisAction:
    _only(item, "tensor", "axis", "segments", "exponent", "in_mass", "role", "blocks", "eps")
    fields: dict[str, Any] = {**item, "segments": tuple(_segment(segment) for segment in item["segments"])}
    return AxisAction(**fields)


def _segment(item: dict[str, Any]) -> Segment:
    _only(item, "group", "offset", "inner", "count")
    return Segment(**item)

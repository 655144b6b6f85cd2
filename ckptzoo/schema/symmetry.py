"""The symmetry table: which permutations and scalings of a network's channels leave its function as it is.

A group is a set of channels that move together. An element g of the table's symmetry group gives each group a
permutation and, where the activation allows it, a scale per channel: ``new[i] = scale[i] * old[perm[i]]`` for
the channels' values, and the factor ``scale[i] ** exponent`` for the slices of every axis in the table. Where nothing
treats channels one by one, as in the heads of an attention, a matrix G for each block of them takes the place of
scales: ``new = G old`` for what writes them, and ``new = G^-T old`` for what reads them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from ckptzoo.errors import MAX_PROBLEMS, Problem, SpecError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import Document, digest_of
from ckptzoo.schema.folds import Fold, fold_from_json, fold_problems, fold_problems_with, fold_to_json
from ckptzoo.schema.groups import MATRICES, AxisAction, Fixed, Group, Like, Perm, Segment, Sym, Wreath
from ckptzoo.schema.symmetry_checks import problems, problems_with

_SHOWN = 8
"""Groups that ``repr`` names."""


@dataclass(frozen=True, repr=False)
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
        if found := tuple(
            islice(chain(problems(self.groups, self.actions), fold_problems(self.folds)), MAX_PROBLEMS + 1)
        ):
            raise SpecError(found)
        by_tensor: dict[str, list[AxisAction]] = {}
        for action in self.actions:
            by_tensor.setdefault(action.tensor, []).append(action)
        ordered = {name: tuple(sorted(items, key=lambda item: item.axis)) for name, items in by_tensor.items()}
        object.__setattr__(self, "_by_id", {group.id: group for group in self.groups})
        object.__setattr__(self, "_by_tensor", ordered)

    def __repr__(self) -> str:
        groups = [f"{group.id} ({_perm_to_json(group.perm)['kind']} {group.n}, {group.scale})" for group in self.groups]
        more = f" and {len(groups) - _SHOWN:,} more" if len(groups) > _SHOWN else ""
        return f"<symmetry: {', '.join(groups[:_SHOWN]) or 'no groups'}{more}>"

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
        if found := tuple(
            islice(chain(problems_with(self.actions, arch), fold_problems_with(self.folds, arch)), MAX_PROBLEMS + 1)
        ):
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

"""The symmetry table: which permutations and scalings of a network's channels leave its function as it is.

A group is a set of channels that move together. An element g of the table's symmetry group gives each group a
permutation and, where the activation allows it, a scale per channel: ``new[i] = scale[i] * old[perm[i]]`` for
the channels' values, and the factor ``scale[i] ** exponent`` for the slices of every axis in the table. Where nothing
treats channels one by one, as in the heads of an attention, a matrix G for each block of them takes the place of
scales: ``new = G old`` for what writes them, and ``new = G^-T old`` for what reads them.
"""

from dataclasses import MISSING, Field, dataclass, field, fields
from itertools import chain, islice
from typing import Any, cast

from ckptzoo.errors import MAX_PROBLEMS, Problem, SpecError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import Document, digest_of
from ckptzoo.schema.folds import Fold, fold_from_json, fold_problems, fold_problems_with, fold_to_json
from ckptzoo.schema.groups import AxisAction, Group, Like, Perm, Segment
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
    tied
        other names of tensors, each with the one that the table has. Files leave them to the architecture.

    Raises
    ------
    SpecError
        With every problem found.
    """

    groups: tuple[Group, ...]
    actions: tuple[AxisAction, ...]
    folds: tuple[Fold, ...] = ()
    tied: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    _by_id: dict[str, Group] = field(init=False, repr=False, compare=False)
    _by_tensor: dict[str, tuple[AxisAction, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # a table may have thousands of problems: as many as are shown, and one more
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

    def family(self, group: str) -> tuple[Group, ...]:
        """A group and those that are ``Like`` it, in the table's order.

        Parameters
        ----------
        group
            a group's id.
        """
        return tuple(other for other in self.groups if other.id == group or other.perm == Like(group))

    @property
    def nested(self) -> tuple[tuple[str, str], ...]:
        """The groups inside whose channels another one acts, each with that one; in the order of the actions."""
        segments = (segment for action in self.actions for segment in action.segments)
        return tuple(dict.fromkeys((item.group, item.within) for item in segments if item.within is not None))

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
        return any(group.matrix_shape is not None for group in self.groups)

    @property
    def has_gates(self) -> bool:
        """Whether scales of some channels act where others are listed."""
        return any(action.gates for action in self.actions)

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
    # what is as by default is left out, so that tables from before it keep the digests that zoos pin
    own = {
        item.name: getattr(perm, item.name) for item in _fields(type(perm)) if getattr(perm, item.name) != item.default
    }
    return {"kind": perm.kind(), **own}


def _segment_to_json(segment: Segment) -> Document:
    # left out where there is none, so that tables without it keep the digests that zoos pin
    optional = ("exponent", "part", "within")
    own = {name: value for name in optional if (value := getattr(segment, name)) is not None}
    return {"group": segment.group, "offset": segment.offset, "inner": segment.inner, "count": segment.count, **own}


def _only(item: Document, *keys: str) -> None:
    if set(item) != set(keys):
        raise KeyError(f"{', '.join(sorted(item))} instead of {', '.join(keys)}")


def _fields(perm: type[Perm]) -> tuple[Field[Any], ...]:
    return fields(cast("Any", perm))


def _group(item: Document) -> Group:
    _only(item, "id", "n", "perm", "scale")
    perm: Document = item["perm"]
    # kinds that other modules derive from ``Perm`` are read, too
    make = {kind.kind(): kind for kind in Perm.__subclasses__()}[perm["kind"]]
    _only(perm, "kind", *(own.name for own in _fields(make) if own.default is MISSING or own.name in perm))
    return Group(item["id"], item["n"], make(**{name: perm[name] for name in perm if name != "kind"}), item["scale"])


def _action(item: Document) -> AxisAction:
    optional = {"signs", "absolute", "gates"} & item.keys()
    _only(item, "tensor", "axis", "segments", "exponent", "in_mass", "role", "blocks", "eps", *optional)
    listed = {name: tuple(map(_segment, item[name])) for name in ("segments", "signs", "gates") if name in item}
    fields: dict[str, Any] = {**item, **listed}
    return AxisAction(**fields)


def _segment(item: dict[str, Any]) -> Segment:
    _only(item, "group", "offset", "inner", "count", *({"exponent", "part", "within"} & item.keys()))
    return Segment(**item)

"""``common``: the symmetries that several networks of the same tensors share, such as those of other activations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Perm, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.matrices.tables import monomial
from ckptzoo.symmetry.nested import unnested
from ckptzoo.symmetry.tables import Arch, table_of

_Key = tuple[int, str]
"""A group of one of the tables: the table's number and the group's id."""


@checked
def common(tables: Iterable[Arch]) -> Symmetry:
    """The table of a group all of whose elements are elements of every table's.

    Members of a zoo whose networks differ in activations alone share their permutations, and the scales that all
    activations allow: of ReLU and tanh none. Groups are matched by the positions of the tensors that they move,
    whatever they are called. Where one table ties what another leaves apart, it is tied; an axis that only some tables
    move, or that they move in blocks of other sizes, stays.

    Parameters
    ----------
    tables
        one or more, of networks whose tensors have equal names and shapes.

    Returns
    -------
    Symmetry
        groups have the ids of the first table. Of one table, that table; of several with matrices the permutations and
        scales among them, and heads that share others keep their order (``unnested``).

    Raises
    ------
    SymmetryError
        There is no table, or nothing is left that all share.

    Notes
    -----
    Where tables move one axis by different block systems, or list its channels in different runs, it is taken as
    fixed: the result is a group that all share, which then may not be the largest. Tested in
    tests/symmetry/test_common.py: elements of the result keep the outputs of every network.

    Examples
    --------
    >>> from ckptzoo import archs
    >>> relu, tanh = archs.symmetry("mlp-4-8-3"), archs.symmetry("mlp-tanh-4-8-3")
    >>> [(group.id, group.n, group.scale) for group in common([relu, tanh]).groups]
    [('fc1', 8, 'none')]
    """
    listed = tuple(map(table_of, tables))
    if not listed:
        raise SymmetryError(Problem("common", "tables", "one or more", "none", "Give the tables of the networks."))
    if len(listed) > 1:
        listed = tuple(unnested(monomial(table)) for table in listed)
    return listed[0] if len(listed) == 1 else _Meet(listed).table()


class _Classes:
    """Classes of names that must mean one thing, each represented by one of its names."""

    def __init__(self) -> None:
        self._leaders: dict[_Key, _Key] = {}

    def __getitem__(self, item: _Key) -> _Key:
        leader = self._leaders.setdefault(item, item)
        if leader != item:
            leader = self._leaders[item] = self[leader]
        return leader

    def join(self, first: _Key, second: _Key) -> None:
        """Join the classes of two things."""
        self._leaders[self[second]] = self[first]


class _Meet:
    """The groups of several tables that move together, and the symmetries that all tables allow them."""

    def __init__(self, tables: Sequence[Symmetry]) -> None:
        self.tables = tables
        self.actions = [{(action.tensor, action.axis): action for action in table.actions} for table in tables]
        self.groups = {(number, group.id): group for number, table in enumerate(tables) for group in table.groups}
        self.scaled_together = _Classes()
        self.moved_together = _Classes()
        self.outers = _Classes()
        self.fixed: set[_Key] = set()
        self.without_sizes: set[_Key] = set()
        self.without_signs: set[_Key] = set()
        for key, group in self.groups.items():
            if isinstance(group.perm, Like):
                self.moved_together.join((key[0], group.perm.group), key)
        for axis in dict.fromkeys(axis for actions in self.actions for axis in actions):
            self._compare([actions.get(axis) for actions in self.actions])
        self._drop_within_classes()
        self._tie_blocks()

    def _compare(self, actions: Sequence[AxisAction | None]) -> None:
        """Match the groups of one axis, and note what the tables do not share there."""
        present = [(number, action) for number, action in enumerate(actions) if action is not None]
        (first_number, first), *others = present
        same = len(present) == len(actions) and all(
            first.blocks == action.blocks
            and _runs(first.segments, self.tables[first_number]) == _runs(action.segments, self.tables[number])
            for number, action in others
        )
        if not same:
            for number, action in present:
                for segment in action.segments:
                    self._keep((number, segment.group))
                for drop, segments in zip((self.without_signs.update, self._drop_scales), action.beside, strict=True):
                    drop((number, segment.group) for segment in segments)
            return
        for number, action in others:
            for one, two in zip(first.segments, action.segments, strict=True):
                self.scaled_together.join((first_number, one.group), (number, two.group))
                self.moved_together.join((first_number, one.group), (number, two.group))
            keys = {(number, segment.group) for segment in action.segments}
            if first.exponent != action.exponent:
                self.without_sizes |= keys
                self.without_signs |= keys
            if first.eps != action.eps:  # a scale of modulus 1 does not change the variance
                self.without_sizes |= keys
            if first.absolute != action.absolute:
                self.without_signs |= keys
            self._compare_beside(first_number, first, number, action)

    def _compare_beside(self, first_number: int, first: AxisAction, number: int, action: AxisAction) -> None:
        """Compare channels whose signs or scales act too: of the same channels in both tables, or of none."""
        for signs, ours, theirs in zip((True, False), first.beside, action.beside, strict=True):
            if _runs(ours, self.tables[first_number]) == _runs(theirs, self.tables[number]):
                for one, two in zip(ours, theirs, strict=True):
                    self.scaled_together.join((first_number, one.group), (number, two.group))
                if signs or first.exponent == action.exponent:
                    continue
            keys = {(first_number, item.group) for item in ours} | {(number, item.group) for item in theirs}
            (self.without_signs.update if signs else self._drop_scales)(keys)

    def _drop_within_classes(self) -> None:
        """Drop signs of gains that are scaled with what they normalise, and gates' scales of what they multiply.

        A table cannot express these.
        """
        for number, table in enumerate(self.tables):
            for action in table.actions:
                own, normalised, gates = (
                    {self.scaled_together[number, segment.group] for segment in segments}
                    for segments in (action.segments, *action.beside)
                )
                self._drop_scales(own & gates)
                self.without_signs |= own & normalised

    def _keep(self, key: _Key) -> None:
        """Exclude a group from permutations and scales."""
        self.fixed.add(key)
        self._drop_scales([key])

    def _drop_scales(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            self.without_sizes.add(key)
            self.without_signs.add(key)

    def _tie_blocks(self) -> None:
        """Make block permutations of one class one; what shares blocks with a fixed group is fixed."""
        for members in self._classes(self.moved_together):
            wreaths = [(key, group.perm) for key, group in members if isinstance(group.perm, Wreath)]
            sizes = {(perm.g, perm.k) for _, perm in wreaths}
            if len(sizes) > 1 or any(isinstance(group.perm, Fixed) for _, group in members):
                self.fixed |= {key for key, _ in members}
            for (key, one), (other_key, two) in pairwise(wreaths):
                self.outers.join((key[0], one.outer), (other_key[0], two.outer))
        changed = True
        while changed:
            before = len(self.fixed)
            fixed = {self.moved_together[key] for key in self.fixed}
            blocks = {
                self.outers[key[0], group.perm.outer]
                for key, group in self.groups.items()
                if isinstance(group.perm, Wreath) and self.moved_together[key] in fixed
            }
            self.fixed |= {
                key
                for key, group in self.groups.items()
                if self.moved_together[key] in fixed
                or (isinstance(group.perm, Wreath) and self.outers[key[0], group.perm.outer] in blocks)
            }
            changed = len(self.fixed) > before

    def _classes(self, classes: _Classes) -> Iterator[list[tuple[_Key, Group]]]:
        found: dict[_Key, list[tuple[_Key, Group]]] = {}
        for key, group in self.groups.items():
            found.setdefault(classes[key], []).append((key, group))
        yield from found.values()

    def table(self) -> Symmetry:
        """Return the result, in the order of the first table."""
        ids: dict[_Key, str] = {}
        scales: dict[_Key, str] = {}
        for members in self._classes(self.scaled_together):
            leader = self.scaled_together[members[0][0]]
            ids[leader], scales[leader] = members[0][1].id, self._scale(members)
        actions = [self._action(action, ids, scales) for axis, action in self.actions[0].items() if self._shared(axis)]
        used = {name for action in actions for name in action.groups}
        groups: list[Group] = []
        leaders: dict[_Key, str] = {}
        for group in self.tables[0].groups:
            name = ids[self.scaled_together[0, group.id]]
            if name != group.id or name not in used:
                continue
            moved = self.moved_together[0, group.id]
            perm: Perm = Like(leaders[moved]) if moved in leaders else self._perm(moved)
            leaders.setdefault(moved, name)
            groups.append(Group(name, group.n, perm, scales[self.scaled_together[0, group.id]]))
        if not groups:
            step = "Give tables of networks with the same tensors, or split the zoo."
            raise SymmetryError(Problem("common", "symmetries", "some that all tables share", "none", step))
        return Symmetry(tuple(groups), tuple(actions))

    def _shared(self, axis: tuple[str, int]) -> bool:
        return all(axis in actions for actions in self.actions)

    def _action(self, action: AxisAction, ids: dict[_Key, str], scales: dict[_Key, str]) -> AxisAction:
        def renamed(segment: Segment) -> Segment:
            return replace(segment, group=ids[self.scaled_together[0, segment.group]])

        signs, gates = (
            tuple(renamed(item) for item in segments if scales[self.scaled_together[0, item.group]] in taking)
            for segments, taking in zip(
                action.beside, (("sign", "nonzero"), ("positive", "sign", "nonzero")), strict=True
            )
        )
        return replace(action, segments=tuple(map(renamed, action.segments)), signs=signs, gates=gates)

    def _scale(self, members: Sequence[tuple[_Key, Group]]) -> str:
        """Return the scale that all members allow: ``nonzero`` is positive scales and signs."""
        sizes = all(group.resizes and key not in self.without_sizes for key, group in members)
        signs = all(group.flips and key not in self.without_signs for key, group in members)
        return {(True, True): "nonzero", (True, False): "positive", (False, True): "sign"}.get((sizes, signs), "none")

    def _perm(self, moved: _Key) -> Perm:
        members = [(key, group) for key, group in self.groups.items() if self.moved_together[key] == moved]
        if any(key in self.fixed for key, _ in members):
            return Fixed()
        wreaths = [(key[0], group.perm) for key, group in members if isinstance(group.perm, Wreath)]
        if not wreaths:
            return Sym()
        number, perm = wreaths[0]
        inner = "fixed" if any(wreath.inner == "fixed" for _, wreath in wreaths) else "free"
        return replace(perm, outer=self._outer(number, perm.outer), inner=inner)

    def _outer(self, number: int, outer: str) -> str:
        """Return the name of a block permutation: that of the first table, where it is one of its own."""
        leader = self.outers[number, outer]
        named = (
            group.perm.outer
            for (table, _), group in self.groups.items()
            if table == 0 and isinstance(group.perm, Wreath) and self.outers[0, group.perm.outer] == leader
        )
        return next(named, f"{leader[0]}:{leader[1]}")


def _runs(segments: Sequence[Segment], table: Symmetry) -> list[tuple[int, ...]]:
    """Return the channels by position, whatever their groups are called: first channel and length of each run."""
    starts: dict[str, int] = {}
    found: list[tuple[int, ...]] = []
    for segment in segments:
        n, start = table[segment.group].n, starts.get(segment.group, 0)
        starts[segment.group] = (start + segment.count) % n
        found.append((segment.offset, segment.inner, segment.count, start, n, segment.exponent or 0))
    return found

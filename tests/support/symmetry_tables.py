"""Small random symmetry tables with everything that a table can say, and weights for them."""

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from ckptzoo.schema.groups import INNERS, SCALES, AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """A table and the shapes of its tensors in one checkpoint; no function goes with it.

    ``variances`` names the tensors that an exponent of 2 acts on, ``counts`` those that hold integers.
    """

    table: Symmetry
    shapes: dict[str, tuple[int, ...]]
    variances: frozenset[str]
    counts: frozenset[str]

    def weights(self, K: int, seed: int, dtype: type = np.float64) -> Weights:
        """Normal weights, variances from 0.5 to 2, integers as int64."""
        rng = np.random.default_rng(seed)
        made: Weights = {}
        for name, shape in self.shapes.items():
            if name in self.counts:
                made[name] = rng.integers(0, 100, (K, *shape))
            elif name in self.variances:
                made[name] = rng.uniform(0.5, 2.0, (K, *shape)).astype(dtype)
            else:
                made[name] = rng.standard_normal((K, *shape)).astype(dtype)
        return made

    def element(self, K: int, seed: int, *, spread: float = 0.3) -> GroupElement:
        """A random element whose scales every variance of ``weights`` can bear."""
        return GroupElement.random(self.table, K, np.random.default_rng(seed), spread=spread)

    def permutations(self, K: int, seed: int) -> GroupElement:
        """A random element that permutes and does not scale."""
        return GroupElement(self.element(K, seed).perms, GroupElement.identity(self.table, K).scales)


def crossed(net: Network) -> bool:
    """Whether a permutation is on two axes of one tensor: no order of the axes comes first, nor are scales unique."""
    for name in net.shapes:
        sides = [{net.table.leader(group).id for group in act.groups} for act in net.table.actions_on(name)]
        if sum(map(len, sides)) > len(set().union(*sides)):
            return True
    return False


class _Plan:
    """A table that is being drawn."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.groups: list[Group] = []
        self.actions: list[AxisAction] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.variances: set[str] = set()
        self.counts: set[str] = set()

    def natural(self, most: int) -> int:
        return self.draw(st.integers(1, most))

    def chance(self) -> bool:
        return self.draw(st.booleans())

    def add_groups(self) -> None:
        """Up to five groups; two of them share the blocks of a grouped convolution where there are any."""
        scales = st.sampled_from(SCALES)
        for at in range(self.natural(4)):
            scale = self.draw(scales)
            leaders = [group for group in self.groups if not isinstance(group.perm, Like)]
            kind = self.draw(st.sampled_from(["sym", "sym", "fixed", "like"]))
            if kind == "like" and leaders:
                other = self.draw(st.sampled_from(leaders))
                self.groups.append(Group(f"g{at}", other.n, Like(other.id), scale))
            else:
                perm = Fixed() if kind == "fixed" else Sym()
                self.groups.append(Group(f"g{at}", self.natural(4), perm, scale))
        if self.chance():
            g = self.draw(st.integers(2, 3))
            for name in ("w0", "w1"):
                k = self.natural(3)
                self.groups.insert(
                    self.natural(len(self.groups)),
                    Group(name, g * k, Wreath("o", g, k, self.draw(st.sampled_from(INNERS))), self.draw(scales)),
                )

    def segments(self) -> tuple[tuple[Segment, ...], int]:
        """Listings of some groups, whole or in two runs, with holes between; and the length of the axis."""
        runs: list[tuple[str, int, int]] = []
        for group in self.draw(st.lists(st.sampled_from(self.groups), min_size=1, max_size=3)):
            inner = self.natural(2)
            first = self.natural(group.n)
            runs += [(group.id, inner, count) for count in (first, group.n - first) if count]
        offsets, end = [0] * len(runs), 0
        for at in self.draw(st.permutations(range(len(runs)))):
            end += self.draw(st.sampled_from([0, 0, 1]))
            offsets[at] = end
            end += runs[at][1] * runs[at][2]
        made = (Segment(name, offset, inner, count) for (name, inner, count), offset in zip(runs, offsets, strict=True))
        return tuple(made), end + self.draw(st.sampled_from([0, 0, 2]))

    def add_vector(self, group: Group) -> None:
        """Every group is on some axis: a bias, or a running variance with or without eps."""
        name, exponent = f"{group.id}.vector", self.draw(st.sampled_from([1, 2]))
        eps = self.draw(st.sampled_from([0.0, 1e-5, 1e-2])) if exponent == 2 else 0.0
        role = "variance" if exponent == 2 else "bias"
        self.shapes[name] = (group.n,)
        self.variances |= {name} if exponent == 2 else set()
        self.actions.append(AxisAction(name, 0, (Segment(group.id, 0, 1, group.n),), exponent, False, role, eps=eps))

    def add_gains(self) -> None:
        """A gain of one group for some group before a normalisation: of the same channels, or of none that move."""
        for group in [group for group in self.groups if group.flips and self.chance()]:
            leader = group.perm.group if isinstance(group.perm, Like) else group.id
            like = [other for other in self.groups if leader in (other.id, getattr(other.perm, "group", None))]
            if not (after := [other for other in like if other is not group]):
                continue
            gain, name = self.draw(st.sampled_from(after)), f"{group.id}.gain"
            first = self.natural(group.n)
            runs = [(0, first), (first, group.n - first)] if first < group.n and self.chance() else [(0, group.n)]
            signs = tuple(Segment(group.id, offset, 1, count) for offset, count in runs)
            self.shapes[name] = (group.n + self.draw(st.sampled_from([0, 1])),)
            self.actions.append(AxisAction(name, 0, (Segment(gain.id, 0, 1, gain.n),), 1, True, "gain", signs=signs))

    def add_tensor(self, name: str) -> None:
        """Up to three axes, each with or without channels, and up to one axis behind them."""
        shape: list[int] = []
        integers = self.draw(st.integers(0, 5)) == 0
        for axis in range(self.natural(3)):
            length = self.natural(2)
            if self.chance():
                segments, length = self.segments()
                exponent = 0 if integers else self.draw(st.sampled_from([1, -1, 0]))
                self.actions.append(AxisAction(name, axis, segments, exponent, True, "out"))
            shape.append(length)
        self.counts |= {name} if integers else set()
        self.shapes[name] = (*shape, *self.draw(st.sampled_from([(), (3,), (1, 2)])))

    def add_gated(self) -> None:
        """A tensor that reads, or writes, products of channels of two groups that one permutation moves."""
        pairs = [
            (value, gate)
            for value in self.groups
            for gate in self.groups
            if value is not gate and gate.scale != "none" and value.n == gate.n and _mover(value) == _mover(gate)
        ]
        if not pairs:
            return
        value, gate = self.draw(st.sampled_from(pairs))
        others, end = self.segments() if self.chance() else ((), self.draw(st.sampled_from([0, 1])))
        runs = [item for item in others if item.group != gate.id]
        gated: list[Segment] = []
        for _ in range(self.natural(2)):
            inner, first = self.natural(2), self.natural(value.n)
            for count in (first, value.n - first):
                if count:
                    gated.append(Segment(value.id, end, inner, count))
                    end += inner * count
        gates = tuple(Segment(gate.id, item.offset, item.inner, item.count) for item in gated)
        axis, shape = self.draw(st.sampled_from([0, 1])), [self.natural(3), self.natural(2)]
        shape[axis] = end + self.draw(st.sampled_from([0, 2]))
        exponent = self.draw(st.sampled_from([1, -1, -1]))
        self.actions.append(AxisAction("gated", axis, (*runs, *gated), exponent, True, "out", gates=gates))
        if self.chance():
            segments, shape[1 - axis] = self.segments()
            self.actions.append(
                AxisAction("gated", 1 - axis, segments, self.draw(st.sampled_from([1, -1, 0])), True, "out")
            )
        self.shapes["gated"] = tuple(shape)

    def add_grouped(self) -> None:
        """A grouped convolution: wreath groups on both axes, or groups within their block; channels behind or not."""
        wreaths = [group for group in self.groups if isinstance(group.perm, Wreath)]
        if wreaths:
            read, write = self.draw(st.sampled_from(wreaths)), self.draw(st.sampled_from(wreaths))
            blocks, inner = wreaths[0].perm.g, self.natural(2)
            rows = (Segment(write.id, 0, inner, write.n),)
            columns = (Segment(read.id, 0, 1, read.n),)
            height, width = write.n * inner, read.n // blocks
        else:
            blocks, height = 2, 2
            rows, columns, width = (), (), self.natural(3)
            for at, name in enumerate(("left", "right")):
                self.groups.append(Group(name, width, Sym(), "positive"))
                columns += (Segment(name, at * width, 1, width),)
        if rows:
            self.actions.append(AxisAction("grouped", 0, rows, 1, True, "out"))
        self.actions.append(AxisAction("grouped", 1, columns, -1, True, "in", blocks=blocks))
        window = self.draw(st.sampled_from([(), (2, 2)]))
        if self.chance():
            segments, length = self.segments()
            self.actions.append(AxisAction("grouped", 2, segments, self.draw(st.sampled_from([1, -1, 0])), True, "out"))
            window = (length, *window)
        self.shapes["grouped"] = (height, width, *window)

    def add_nested(self) -> None:
        """A tensor of blocks' channels inside which another group of the same blocks acts, once or twice on an axis."""
        inside = [group for group in self.groups if isinstance(group.perm, Wreath)]
        if not inside:
            return
        other = self.draw(st.sampled_from(inside))
        assert isinstance(other.perm, Wreath)
        n = other.perm.g * self.natural(3)
        perm = Wreath("o", other.perm.g, n // other.perm.g, self.draw(st.sampled_from(INNERS)))
        self.groups.insert(self.natural(len(self.groups)), Group("heads", n, perm, "none"))
        inner = self.natural(2) * other.perm.k
        exponent = self.draw(st.sampled_from([1, -1, 0]))
        runs, end = [], self.draw(st.sampled_from([0, 1]))
        for number in range(self.natural(2)):
            own = -exponent if exponent and number and self.chance() else None
            first = self.natural(n)
            for count in (first, n - first):
                if count:
                    runs.append(Segment("heads", end, inner, count, own, other.id))
                    end += inner * count
        axis, shape = self.draw(st.sampled_from([0, 1])), [self.natural(3), self.natural(2)]
        shape[axis] = end + self.draw(st.sampled_from([0, 2]))
        self.actions.append(AxisAction("nested", axis, tuple(runs), exponent, True, "out"))
        if self.chance():
            segments, shape[1 - axis] = self.segments()
            self.actions.append(
                AxisAction("nested", 1 - axis, segments, self.draw(st.sampled_from([1, -1, 0])), True, "out")
            )
        self.shapes["nested"] = tuple(shape)


def _mover(group: Group) -> str:
    """What moves a group's channels: the group itself or the one that it is like; nothing where it stays in place."""
    return group.perm.group if isinstance(group.perm, Like) else "" if isinstance(group.perm, Fixed) else group.id


@st.composite
def networks(draw: st.DrawFn, *, nested: bool = False) -> Network:
    """Tables with every kind of group and scale, listings in runs, holes, flattened axes, blocks and variances.

    With ``nested`` also groups that act inside the channels of others, which some of the functions refuse.
    """
    plan = _Plan(draw)
    plan.add_groups()
    if nested:
        plan.add_nested()
    for group in plan.groups:
        plan.add_vector(group)
    plan.add_gains()
    for at in range(plan.natural(3)):
        plan.add_tensor(f"t{at}")
    if plan.chance():
        plan.add_gated()
    if plan.chance():
        plan.add_grouped()
    plan.shapes |= {"free": (2,), "steps": ()}
    plan.counts |= {"steps"}
    order = draw(st.permutations(sorted(plan.shapes)))
    assume(all(math.prod(shape) < 100_000 for shape in plan.shapes.values()))  # larger ones take long and show no more
    table = Symmetry(tuple(plan.groups), tuple(plan.actions))
    return Network(
        table, {name: plan.shapes[name] for name in order}, frozenset(plan.variances), frozenset(plan.counts)
    )

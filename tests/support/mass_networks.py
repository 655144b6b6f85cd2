"""Networks whose mass tests minimise: tables with shapes, weights for them, and the mass by its definition."""

from dataclasses import dataclass

import numpy as np

from ckptzoo import archs
from ckptzoo.archs.draft import Channels, Draft, channels, padded
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Net:
    """A table and the shapes of its tensors in one checkpoint."""

    name: str
    table: Symmetry
    shapes: dict[str, tuple[int, ...]]

    def __repr__(self) -> str:
        return self.name

    def weights(self, K: int, seed: int, dtype: type = np.float64) -> Weights:
        """Normal weights, positive running variances."""
        rng = np.random.default_rng(seed)
        weights: Weights = {}
        for name, shape in self.shapes.items():
            drawn = rng.standard_normal((K, *shape))
            weights[name] = (np.square(drawn) + 0.05 if name.endswith("var") else drawn).astype(dtype)
            if name.endswith("tracked"):
                weights[name] = np.zeros((K, *shape), np.int64)
        return weights

    def scalings(self, K: int, seed: int, spread: float = 1.0) -> GroupElement:
        """Random scales of what no BatchNorm reads, and no permutation."""
        drawn = GroupElement.random(self.table, K, np.random.default_rng(seed), spread=spread)
        behind = {item.group for act in self.table.actions if act.exponent == 2 for item in act.segments}
        scales = {name: np.ones_like(s) if name in behind else s for name, s in drawn.scales.items()}
        return GroupElement(GroupElement.identity(self.table, K).perms, scales)


def mass(weights: Weights, table: Symmetry) -> np.ndarray:
    """The mass (K,): squares of what counts in the table, and of what it does not name and has two axes or more."""
    counted = {action.tensor: False for action in table.actions}
    for action in table.actions:
        counted[action.tensor] |= action.in_mass
    total = 0.0
    for name, array in weights.items():
        if counted.get(name, array.ndim > 2):
            total = total + np.square(array.astype(np.float64)).reshape(len(array), -1).sum(axis=1)
    return np.asarray(total)


def known(name: str) -> Net:
    """A network of the registry."""
    return Net(name, archs.symmetry(name), {item.name: item.shape for item in archs.architecture(name).tensors})


def whole(group: str, n: int, inner: int = 1) -> tuple[Segment, ...]:
    """All channels of a group, in order."""
    return (Segment(group, 0, inner, n),)


def layer(name: str, write: tuple[str, int] | None, read: tuple[str, int] | None) -> list[AxisAction]:
    """A linear layer between two groups."""
    actions = [AxisAction(name, 0, whole(*write), 1, True, "out")] if write else []
    return actions + ([AxisAction(name, 1, whole(*read), -1, True, "in")] if read else [])


def residual(depth: int, n: int, inner: int) -> Net:
    """A stream without normalisation: blocks of two layers beside it, and a linear layer from it to itself."""
    groups, stream = [Group("s", n, Sym(), "positive")], ("s", n)
    actions, shapes = layer("first", stream, None), {"first": (n, 4)}
    for number in range(depth):
        hidden = (f"h{number}", inner)
        groups.append(Group(*hidden, Sym(), "positive"))
        actions += layer(f"a{number}", hidden, stream) + layer(f"b{number}", stream, hidden)
        shapes |= {f"a{number}": (inner, n), f"b{number}": (n, inner)}
    actions += layer("jump", stream, stream) + layer("last", None, stream)
    return Net(f"residual-{depth}", Symmetry(tuple(groups), tuple(actions)), shapes | {"jump": (n, n), "last": (3, n)})


def stages(n: int, m: int) -> Net:
    """Two streams with a linear shortcut between them: input, block, second stream, output."""
    one, two, hidden = ("one", n), ("two", m), ("h", n)
    groups = tuple(Group(*item, Sym(), "positive") for item in (one, hidden, two))
    actions = [
        *layer("first", one, None),
        *layer("a", hidden, one),
        *layer("b", two, hidden),
        *layer("shortcut", two, one),
        *layer("last", None, two),
    ]
    shapes = {"first": (n, 3), "a": (n, n), "b": (m, n), "shortcut": (m, n), "last": (2, m)}
    return Net("stages", Symmetry(groups, tuple(actions)), shapes)


def recurrent(n: int) -> Net:
    """A hidden state that is written from itself."""
    state = ("h", n)
    actions = layer("in", state, None) + layer("again", state, state) + layer("out", None, state)
    return Net(
        "recurrent",
        Symmetry((Group("h", n, Sym(), "positive"),), tuple(actions)),
        {"in": (n, 3), "again": (n, n), "out": (2, n)},
    )


def mixed() -> Net:
    """A grouped and a depthwise convolution, a concatenation with a constant, a flatten, a listing twice, a sign."""
    groups = (
        Group("a", 4, Wreath("two", 2, 2), "positive"),
        Group("b", 6, Wreath("two", 2, 3), "positive"),
        Group("t", 2, Sym(), "sign"),
        Group("c", 5, Wreath("deep", 5, 1), "positive"),
        Group("d", 5, Wreath("deep", 5, 1), "positive"),
    )
    joined = (Segment("b", 0, 1, 6), Segment("a", 7, 1, 4), Segment("t", 11, 1, 2))
    actions = (
        AxisAction("one", 0, whole("a", 4), 1, True, "out"),
        AxisAction("one.bias", 0, whole("a", 4), 1, False, "bias"),
        AxisAction("two", 0, whole("b", 6), 1, True, "out"),
        AxisAction("two", 1, whole("a", 4), -1, True, "in", blocks=2),
        AxisAction("sign", 0, whole("t", 2), 1, True, "out"),
        AxisAction("three", 0, whole("c", 5), 1, True, "out"),
        AxisAction("three", 1, joined, -1, True, "in"),
        AxisAction("deep", 0, whole("d", 5), 1, True, "out"),
        AxisAction("deep", 1, whole("c", 5), -1, True, "in", blocks=5),
        AxisAction("four", 1, (Segment("d", 0, 3, 5), Segment("d", 15, 3, 5)), -1, True, "in"),
    )
    shapes = {
        "one": (4, 3, 2, 2),
        "one.bias": (4,),
        "two": (6, 2, 3, 1),
        "deep": (5, 1, 3, 3),
        "sign": (2, 3),
        "three": (5, 13),
        "four": (2, 30),
        "free": (2, 2),
        "free.bias": (3,),
    }
    return Net("mixed", Symmetry(groups, actions), shapes)


def small(shortcut: str) -> Net:
    """A residual network with BatchNorms and few channels, and a second stage with a shortcut of either kind."""
    draft, one, inner = Draft(), channels("one", 3), channels("inner", 4)
    draft.conv_norm("conv1", "bn1", 2, Channels(2), one)
    draft.conv_norm("conv2", "bn2", 2, one, inner)
    draft.conv_norm("conv3", "bn3", 2, inner, one)
    two = padded(one, "two", 5) if shortcut == "pad" else channels("two", 5)
    draft.conv_norm("conv4", "bn4", 1, one, two)
    if shortcut == "conv":
        draft.conv_norm("conv5", "bn5", 1, one, two)
    draft.linear("last", two, Channels(3))
    arch, table = draft.finish(f"small-{shortcut}", (2, 8, 8))
    return Net(arch.name, table, {item.name: item.shape for item in arch.tensors})


SMALL = (small("pad"), small("conv"))
PLAIN = (
    known("optunet"),
    known("mlp-3-5-2"),
    known("mlp-3-4-5-4-2"),
    known("mlp-3-2-2-2-2-2-2-2-2"),
    residual(2, 4, 3),
    stages(3, 5),
    recurrent(4),
    mixed(),
)
NORMALISED = (known("resnet8-pad-10"), known("resnet8-conv-10"))

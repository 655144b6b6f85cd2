"""A table with every kind of group, and networks of which two are one orbit or nearly one."""

from typing import Any

import numpy as np

from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry

D, HEADS = 6, 3
Weights = dict[str, np.ndarray]


def table(stream: str = "orthogonal", *, packed: bool = False) -> Symmetry:
    """A stream with heads of complex queries and keys and linear values, units with each scale, and a low-rank pair."""
    blocks = Wreath("heads", HEADS, 4)
    groups = (
        Group("x", D, Sym(), stream),
        Group("norm", D, Like("x"), "none"),
        Group("qk", 2 * HEADS, Wreath("heads", HEADS, 2, "fixed"), "complex"),
        Group("vo", 4 * HEADS, blocks, "linear"),
        Group("low", 2, Sym(), "linear"),
        Group("odd", 5, Sym(), "sign"),
        Group("gated", 4, Sym(), "nonzero"),
        Group("relu", 3, Sym(), "positive"),
    )
    sizes = {group.id: group.n for group in groups}

    def one(name: str, offset: int = 0, **options: Any) -> tuple[Segment, ...]:
        return (Segment(name, offset, 1, sizes[name], **options),)

    def pairs(offset: int = 0, **options: Any) -> tuple[Segment, ...]:
        """Two real and then two imaginary parts for each head."""
        starts = ((head, part) for head in range(HEADS) for part in (0, 1))
        return tuple(Segment("qk", offset + 4 * head + 2 * part, 1, 2, part=part, **options) for head, part in starts)

    def act(tensor: str, axis: int, segments: tuple[Segment, ...], exponent: int, role: str = "out") -> AxisAction:
        return AxisAction(tensor, axis, segments, exponent, role in ("out", "in"), role)

    norm = one("norm")
    if packed:
        inner = pairs() + pairs(12, exponent=-1) + one("vo", 24)
        attention = [act("qkv", 0, inner, 1), act("qkv", 1, norm, -1, "in"), act("qkv.bias", 0, inner, 1, "bias")]
    else:
        attention = [act(name, 1, norm, -1, "in") for name in "qkv"]
        attention += [act("q", 0, pairs(), 1), act("q.bias", 0, pairs(), 1, "bias"), act("k", 0, pairs(), -1)]
        attention += [act("v", 0, one("vo"), 1), act("v.bias", 0, one("vo"), 1, "bias")]
    units = [
        action
        for name in ("low", "odd", "gated", "relu")
        for action in (
            act(f"{name}.in", 0, one(name), 1),
            act(f"{name}.in", 1, norm, -1, "in"),
            act(f"{name}.out", 0, one("x"), 1),
            act(f"{name}.out", 1, one(name), -1, "in"),
        )
    ]
    biases = [act(f"{name}.bias", 0, one(name), 1, "bias") for name in ("odd", "relu")]
    others = [act("embed", 1, one("x"), 1), act("gain", 0, norm, 1, "gain"), act("head", 1, norm, -1, "in")]
    output = [act("o", 0, one("x"), 1), act("o", 1, one("vo"), -1, "in")]
    return Symmetry(groups, tuple(others + attention + output + units + biases))


def grouped_queries(*, halves: bool = False) -> Symmetry:
    """Four heads of queries, two for each pair of keys and values, whose matrices act within the heads.

    Their real and imaginary parts take turns, or real parts come first in each head.
    """
    groups = (
        Group("x", D, Sym(), "orthogonal"),
        Group("heads", 4, Wreath("kv", 2, 2), "none"),
        Group("qk", 4, Wreath("kv", 2, 2, "fixed"), "complex"),
        Group("vo", 6, Wreath("kv", 2, 3), "linear"),
    )
    pairs = tuple(Segment("qk", 4 * head + 2 * part, 1, 2, part=part) for head in range(2) for part in (0, 1))
    queries = (Segment("heads", 0, 4, 4, within="qk"),)
    if halves:
        queries = tuple(
            Segment("heads", 4 * head + 2 * part, 2, 1, within="qk", part=part) for part in (0, 1) for head in range(4)
        )
    listed = {
        "q": (queries, 1),
        "k": (pairs, -1),
        "v": ((Segment("vo", 0, 1, 6),), 1),
    }
    actions = [AxisAction("embed", 1, (Segment("x", 0, 1, D),), 1, True, "out")]
    actions += [AxisAction("head", 1, (Segment("x", 0, 1, D),), -1, True, "in")]
    for name, (segments, exponent) in listed.items():
        actions.append(AxisAction(name, 0, segments, exponent, True, "out"))
        actions.append(AxisAction(name, 1, (Segment("x", 0, 1, D),), -1, True, "in"))
    actions.append(AxisAction("o", 0, (Segment("x", 0, 1, D),), 1, True, "out"))
    actions.append(AxisAction("o", 1, (Segment("heads", 0, 3, 4, within="vo"),), -1, True, "in"))
    return Symmetry(groups, tuple(actions))


def weights_of(symmetry: Symmetry, K: int, rng: np.random.Generator) -> Weights:
    """Random networks; those behind a norm with a mean have no part along the ones, and gains are 1."""
    sizes = {
        (action.tensor, action.axis): sum(segment.inner * segment.count for segment in action.segments)
        for action in symmetry.actions
    }
    shapes = {"embed": (7, D), "head": (4, D), "head.bias": (4,)}
    for name, _ in sizes:
        if name not in shapes:
            shapes[name] = tuple(sizes[name, axis] for axis in (0, 1) if (name, axis) in sizes)
    made = {name: rng.standard_normal((K, *shape)) for name, shape in shapes.items()}
    if "gain" in made:
        made["gain"][...] = 1
    return made


def changed(weights: Weights, name: str, size: float, rng: np.random.Generator) -> Weights:
    """The networks with noise of this relative norm on one tensor."""
    array = weights[name].astype(np.float64)
    noise = rng.standard_normal(array.shape)
    norms = [np.linalg.norm(values.reshape(len(array), -1), axis=1) for values in (array, noise)]
    factors = (size * norms[0] / norms[1]).reshape(-1, *[1] * (array.ndim - 1))
    return {**weights, name: (array + factors * noise).astype(weights[name].dtype)}

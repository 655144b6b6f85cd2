"""Tables with every kind of matrices, and random weights for them."""

from collections.abc import Mapping

import numpy as np

from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement

Weights = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]


def _acts(tensor: str, axis: int, group: str, n: int, exponent: int, role: str, *, inner: int = 1) -> AxisAction:
    weight = role in ("out", "in", "gain")
    return AxisAction(tensor, axis, (Segment(group, 0, inner, n),), exponent, weight, role)


def decoder(
    d: int = 8,
    heads: int = 3,
    k: int = 4,
    hidden: int = 7,
    words: int = 11,
    stream: str = "orthogonal",
    *,
    normed: bool = False,
) -> tuple[Symmetry, Shapes]:
    """A layer with rotary embeddings and gated units between norms of unit gains.

    Queries and keys are complex numbers with their halves apart, values and outputs invertible matrices, the stream
    is turned by orthogonal ones, heads move with a bias of their own, and values of gated units change signs. With
    norms of queries and keys these change signs alone.
    """
    half, n = k // 2, heads * k
    pairs = tuple(Segment("qk", h * k + part * half, 1, half, part=part) for h in range(heads) for part in (0, 1))
    qk = Group("qk", heads * half, Wreath("heads", heads, half, "fixed"), "complex")
    if normed:
        qk, pairs = Group("qk", n, Wreath("heads", heads, k, "fixed"), "sign"), (Segment("qk", 0, 1, n),)
    groups = (
        Group("x", d, Sym(), stream),
        Group("norm", d, Like("x"), "none"),
        qk,
        Group("vo", n, Wreath("heads", heads, k), "linear"),
        Group("bias", heads, Wreath("heads", heads, 1), "none"),
        Group("gate", hidden, Sym(), "none"),
        Group("up", hidden, Like("gate"), "sign"),
    )
    actions = (
        _acts("embed", 1, "x", d, 1, "out"),
        _acts("gain", 0, "norm", d, 1, "gain"),
        AxisAction("q", 0, pairs, 1, True, "out"),
        AxisAction("k", 0, pairs, -1, True, "out"),
        _acts("v", 0, "vo", n, 1, "out"),
        _acts("v.bias", 0, "vo", n, 1, "bias"),
        _acts("relative", 1, "bias", heads, 1, "bias"),
        _acts("o", 0, "x", d, 1, "out"),
        _acts("o", 1, "vo", n, -1, "in"),
        _acts("gate", 0, "gate", hidden, 1, "out"),
        _acts("up", 0, "up", hidden, 1, "out"),
        _acts("down", 0, "x", d, 1, "out"),
        _acts("down", 1, "up", hidden, -1, "in"),
        *(_acts(name, 1, "norm", d, -1, "in") for name in ("q", "k", "v", "gate", "up", "head")),
    )
    shapes = {"embed": (words, d), "gain": (d,), "q": (n, d), "k": (n, d), "v": (n, d), "v.bias": (n,), "o": (d, n)}
    shapes |= {"relative": (9, heads), "gate": (hidden, d), "up": (hidden, d), "down": (d, hidden), "head": (words, d)}
    return Symmetry(groups, actions), shapes


def packed(d: int = 8, heads: int = 3, k: int = 4, hidden: int = 6) -> tuple[Symmetry, Shapes]:
    """Queries, keys and values as one tensor, a stream that is permuted, and scaled gains in front of them."""
    n = heads * k
    groups = (
        Group("x", d, Sym(), "none"),
        Group("norm", d, Like("x"), "positive"),
        Group("qk", n, Wreath("heads", heads, k), "linear"),
        Group("vo", n, Wreath("heads", heads, k), "linear"),
        Group("norm2", d, Like("x"), "positive"),
        Group("hidden", hidden, Sym(), "positive"),
    )
    rows = (Segment("qk", 0, 1, n), Segment("qk", n, 1, n, exponent=-1), Segment("vo", 2 * n, 1, n))
    actions = (
        _acts("embed", 1, "x", d, 1, "out"),
        _acts("gain", 0, "norm", d, 1, "gain"),
        AxisAction("qkv", 0, rows, 1, True, "out"),
        _acts("qkv", 1, "norm", d, -1, "in"),
        AxisAction("qkv.bias", 0, rows, 1, False, "bias"),
        _acts("o", 0, "x", d, 1, "out"),
        _acts("o", 1, "vo", n, -1, "in"),
        _acts("gain2", 0, "norm2", d, 1, "gain"),
        _acts("up", 0, "hidden", hidden, 1, "out"),
        _acts("up", 1, "norm2", d, -1, "in"),
        _acts("down", 0, "x", d, 1, "out"),
        _acts("down", 1, "hidden", hidden, -1, "in"),
        _acts("head", 1, "x", d, -1, "in"),
    )
    shapes = {"embed": (9, d), "gain": (d,), "qkv": (3 * n, d), "qkv.bias": (3 * n,), "o": (d, n), "gain2": (d,)}
    return Symmetry(groups, actions), {**shapes, "up": (hidden, d), "down": (d, hidden), "head": (5, d)}


def low_rank(n: int = 6, rank: int = 3) -> tuple[Symmetry, Shapes]:
    """An update ``B A`` of a weight between scaled channels, and two more linear layers behind it."""
    groups = (
        Group("first", n, Sym(), "positive"),
        Group("rank", rank, Sym(), "linear"),
        Group("second", n, Sym(), "positive"),
        Group("one", rank, Sym(), "linear"),
        Group("two", rank, Sym(), "linear"),
        Group("fixed", 4, Fixed(), "none"),
    )
    actions = (
        _acts("in", 0, "first", n, 1, "out"),
        _acts("weight", 0, "second", n, 1, "out"),
        _acts("weight", 1, "first", n, -1, "in"),
        _acts("A", 0, "rank", rank, 1, "out"),
        _acts("A", 1, "first", n, -1, "in"),
        _acts("B", 0, "second", n, 1, "out"),
        _acts("B", 1, "rank", rank, -1, "in"),
        _acts("chain1", 0, "one", rank, 1, "out"),
        _acts("chain1", 1, "second", n, -1, "in"),
        _acts("chain2", 0, "two", rank, 1, "out"),
        _acts("chain2", 1, "one", rank, -1, "in"),
        _acts("out", 0, "fixed", 4, 1, "out"),
        _acts("out", 1, "two", rank, -1, "in"),
    )
    shapes = {"in": (n, 5), "weight": (n, n), "A": (rank, n), "B": (n, rank)}
    return Symmetry(groups, actions), {**shapes, "chain1": (rank, n), "chain2": (rank, rank), "out": (4, rank)}


def weights_of(shapes: Shapes, K: int, seed: int, dtype: type = np.float64) -> Weights:
    """Normal weights, with gains of 1."""
    rng = np.random.default_rng(seed)
    made = {name: rng.standard_normal((K, *shape)).astype(dtype) for name, shape in shapes.items()}
    return {name: np.ones_like(value) if name.startswith("gain") else value for name, value in made.items()}


def disguise(table: Symmetry, K: int, seed: int, *, spread: float = 0.5, resized: bool = False) -> GroupElement:
    """A random element; positive scales only with ``resized``."""
    made = GroupElement.random(table, K, np.random.default_rng(seed), spread=spread)
    if resized:
        return made
    return GroupElement(made.perms, {name: np.sign(scale) for name, scale in made.scales.items()}, made.matrices)


def repeated(weights: Weights, K: int, noise: float = 0.0, seed: int = 0) -> Weights:
    """K copies of one network, each entry but gains with relative noise of its own."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, value in weights.items():
        copies = np.repeat(value, K, axis=0)
        off = np.zeros(copies.shape) if name.startswith("gain") else noise * rng.standard_normal(copies.shape)
        made[name] = (copies * (1 + off)).astype(value.dtype)
    return made

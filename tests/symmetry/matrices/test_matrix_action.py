"""Elements with matrices: their laws, their action against its definition, functions that stay, and refusals."""

from typing import Any

import numpy as np
import pytest
import torch

from ckptzoo.errors import SpecError, SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply

D, HEADS, K_HEAD, HIDDEN = 6, 3, 2, 5


def _act(tensor: str, axis: int, group: str, exponent: int, role: str = "out", **segment: Any) -> AxisAction:
    n = {"qk": HEADS * K_HEAD, "vo": HEADS * K_HEAD, "x": D, "norm": D, "pairs": HEADS, "low": 2}[group]
    return AxisAction(tensor, axis, (Segment(group, 0, segment.pop("inner", 1), n),), exponent, True, role)


def attention(kind: str = "linear") -> Symmetry:
    """Queries, keys, values and outputs between tokens; the stream under RMSNorm is rotated too."""
    blocks = Wreath("heads", HEADS, K_HEAD)
    groups = [
        Group("x", D, Sym(), "orthogonal"),
        Group("norm", D, Like("x"), "none"),
        Group("qk", HEADS * K_HEAD, blocks, kind),
        Group("vo", HEADS * K_HEAD, blocks, "linear"),
    ]
    actions = [
        _act("embed", 1, "x", 1),
        _act("gain", 0, "norm", 1, "gain"),
        *(_act(name, 1, "norm", -1, "in") for name in ("q", "k", "v", "head")),
        _act("q", 0, "qk", 1),
        _act("q.bias", 0, "qk", 1, "bias"),
        _act("k", 0, "qk", -1),
        _act("v", 0, "vo", 1),
        _act("o", 0, "x", 1),
        _act("o", 1, "vo", -1, "in"),
    ]
    return Symmetry(tuple(groups), tuple(actions))


def weights_of(K: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"embed": (7, D), "gain": (D,), "q": (D, D), "q.bias": (D,), "k": (D, D), "v": (D, D), "o": (D, D)}
    made = {name: rng.standard_normal((K, *shape)) for name, shape in {**shapes, "head": (4, D)}.items()}
    return {**made, "gain": np.ones((K, D))}


def outputs(weights: dict[str, np.ndarray]) -> np.ndarray:
    """Logits of all tokens in one attention layer, for each checkpoint."""

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], HEADS, K_HEAD).swapaxes(1, 2)

    def normed(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True)) * weights["gain"][:, None]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[name].swapaxes(1, 2)

    x = weights["embed"]
    y = normed(x)
    q, k, v = heads(linear(y, "q") + weights["q.bias"][:, None]), heads(linear(y, "k")), heads(linear(y, "v"))
    scores = np.exp(q @ k.swapaxes(2, 3) / 4)
    mixed = (scores / scores.sum(-1, keepdims=True)) @ v
    x = x + linear(mixed.swapaxes(1, 2).reshape(x.shape), "o")
    return linear(normed(x), "head")


TABLE = attention()


def test_a_random_element_keeps_the_function() -> None:
    rng = np.random.default_rng(0)
    weights = weights_of(4, rng)
    element = GroupElement.random(TABLE, 4, rng)
    element.check(TABLE)
    moved = apply(element, weights, TABLE)
    expected = outputs(weights)
    np.testing.assert_allclose(outputs(moved), expected, atol=1e-11 * np.abs(expected).max())
    assert np.abs(moved["q"] - weights["q"]).max() > 0.1


def test_the_action_is_its_definition() -> None:
    rng = np.random.default_rng(1)
    weights, element = weights_of(2, rng), GroupElement.random(TABLE, 2, rng)
    moved = apply(element, weights, TABLE)
    for row in range(2):
        G = np.zeros((D, D))
        for block in range(HEADS):
            here = slice(K_HEAD * block, K_HEAD * block + K_HEAD)
            there = element.perms["qk"][row, here]
            G[np.ix_(np.arange(D)[here], there)] = element.matrices["qk"][row, block]
        Q = element.matrices["x"][row, 0]
        np.testing.assert_allclose(moved["q"][row], G @ weights["q"][row] @ Q.T, atol=1e-12)
        np.testing.assert_allclose(moved["q.bias"][row], G @ weights["q.bias"][row], atol=1e-12)
        np.testing.assert_allclose(moved["k"][row], np.linalg.inv(G).T @ weights["k"][row] @ Q.T, atol=1e-11)
        np.testing.assert_allclose(moved["embed"][row], weights["embed"][row] @ Q.T, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "orthogonal", "orthogonal_mean"])
def test_compose_inverse_and_identity(kind: str) -> None:
    table, rng = attention(kind), np.random.default_rng(2)
    table = Symmetry((Group("x", D, Sym(), "orthogonal_mean"), *table.groups[1:]), table.actions)
    g, h = (GroupElement.random(table, 3, rng) for _ in range(2))
    weights = weights_of(3, rng)
    for made in (g.compose(h), g.inverse(), g[1:], GroupElement.from_tensors(g.to_tensors())):
        made.check(table)
    twice, once = apply(g, apply(h, weights, table), table), apply(g.compose(h), weights, table)
    back = apply(g.inverse(), apply(g, weights, table), table)
    same = apply(GroupElement.identity(table, 3), weights, table)
    for name, value in weights.items():
        np.testing.assert_allclose(twice[name], once[name], atol=1e-10)
        np.testing.assert_allclose(back[name], value, atol=1e-10)
        np.testing.assert_array_equal(same[name], value)


@pytest.mark.parametrize("layout", ["turns", "halves"])
def test_complex_numbers_turn_pairs(layout: str) -> None:
    if layout == "turns":
        segments = [(Segment("pairs", 0, 2, HEADS),)] * 2
        order = np.arange(2 * HEADS).reshape(HEADS, 2)
    else:
        segments = [(Segment("pairs", 0, 1, HEADS, part=0), Segment("pairs", HEADS, 1, HEADS, part=1))] * 2
        order = np.arange(2 * HEADS).reshape(2, HEADS).T
    table = Symmetry(
        (Group("pairs", HEADS, Sym(), "complex"),),
        (
            AxisAction("q", 0, segments[0], 1, True, "out"),
            AxisAction("k", 0, segments[1], -1, True, "out"),
        ),
    )
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal((2, 2 * HEADS, 4)) for name in "qk"}
    g, h = (GroupElement.random(table, 2, rng) for _ in range(2))
    moved = apply(g, weights, table)
    angle = rng.uniform(0, 6, HEADS)

    def scores(arrays: dict[str, np.ndarray]) -> np.ndarray:
        q, k = (arrays[name][:, order[:, 0]] + 1j * arrays[name][:, order[:, 1]] for name in "qk")
        return np.einsum("bpi,p,bpj->bij", q, np.exp(1j * angle), k.conj()).real

    np.testing.assert_allclose(scores(moved), scores(weights), atol=1e-11)
    q, c = weights["q"], g.matrices["pairs"]
    z = (q[:, order[:, 0]] + 1j * q[:, order[:, 1]])[np.arange(2)[:, None], g.perms["pairs"]]
    z = z * (c[..., 0] + 1j * c[..., 1])[:, :, None]
    np.testing.assert_allclose(moved["q"][:, order[:, 0]], z.real, atol=1e-12)
    np.testing.assert_allclose(moved["q"][:, order[:, 1]], z.imag, atol=1e-12)
    twice, once = apply(g, apply(h, weights, table), table), apply(g.compose(h), weights, table)
    back = apply(g.inverse(), moved, table)
    for name in "qk":
        np.testing.assert_allclose(twice[name], once[name], atol=1e-11)
        np.testing.assert_allclose(back[name], weights[name], atol=1e-11)
    g.inverse().check(table)


def test_packed_queries_and_keys_take_the_matrix_and_its_inverse_transpose() -> None:
    segments = (Segment("qk", 0, 1, 6), Segment("qk", 6, 1, 6, exponent=-1))
    packed = Symmetry(
        (Group("qk", 6, Wreath("heads", 3, 2), "linear"),), (AxisAction("in", 0, segments, 1, True, "out"),)
    )
    rng = np.random.default_rng(4)
    weights, element = {"in": rng.standard_normal((3, 12, 5))}, GroupElement.random(packed, 3, rng)
    moved = apply(element, weights, packed)["in"]
    q, k = (moved[:, part].reshape(3, 3, 2, 5) for part in (slice(0, 6), slice(6, 12)))
    before = [weights["in"][:, part].reshape(3, 3, 2, 5) for part in (slice(0, 6), slice(6, 12))]
    blocks = element.perms["qk"][:, ::2] // 2
    kept = np.take_along_axis(before[0].swapaxes(2, 3) @ before[1], blocks[:, :, None, None], 1)
    np.testing.assert_allclose(q.swapaxes(2, 3) @ k, kept, atol=1e-11)


def test_torch_and_numpy_agree_and_half_precisions_give_float32() -> None:
    rng = np.random.default_rng(5)
    weights, element = weights_of(2, rng), GroupElement.random(TABLE, 2, rng)
    expected = apply(element, weights, TABLE)
    moved = apply(element, {name: torch.from_numpy(value) for name, value in weights.items()}, TABLE)
    for name, value in expected.items():
        np.testing.assert_allclose(moved[name].numpy(), value, rtol=1e-12, atol=1e-12)
    half = {name: value.astype(np.float16) for name, value in weights.items()}
    made = apply(element, half, TABLE)
    assert made["q"].dtype == np.float32
    wide = apply(element, {name: value.astype(np.float64) for name, value in half.items()}, TABLE)
    np.testing.assert_array_equal(made["q"], wide["q"].astype(np.float32))


def test_large_tensors_are_mixed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    weights, element = weights_of(3, rng), GroupElement.random(TABLE, 3, rng)
    whole = apply(element, weights, TABLE)
    monkeypatch.setattr("ckptzoo.symmetry.matrix_action.PIECE", 10)
    monkeypatch.setattr("ckptzoo.symmetry.action.MIX", 10)
    for name, value in apply(element, weights, TABLE).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-13, atol=1e-13)


def _with(element: GroupElement, group: str, value: np.ndarray) -> GroupElement:
    return GroupElement(element.perms, element.scales, {**element.matrices, group: value})


def test_what_is_no_element_is_refused() -> None:
    element = GroupElement.identity(TABLE, 2)
    qk = element.matrices["qk"]
    nan = qk.copy()
    nan[0, 0, 0, 0] = np.nan
    for value, message in (
        (np.zeros_like(qk), "an invertible matrix"),
        (nan, "finite numbers"),
        (qk[:, :, :1], r"expected \(2, 3, 2, 2\) float64"),
        (qk.astype(np.float32), "float64"),
    ):
        with pytest.raises(SymmetryError, match=message):
            _with(element, "qk", value).check(TABLE)
    with pytest.raises(SymmetryError, match="an orthogonal matrix"):
        _with(element, "x", 2 * element.matrices["x"]).check(TABLE)
    mean = Symmetry((Group("x", D, Sym(), "orthogonal_mean"), *TABLE.groups[1:]), TABLE.actions)
    with pytest.raises(SymmetryError, match="keeps the vector of ones"):
        _with(element, "x", -element.matrices["x"]).check(mean)
    inside = {**element.perms, "qk": np.tile([1, 0, 2, 3, 4, 5], (2, 1))}
    with pytest.raises(SymmetryError, match="stay in order"):
        GroupElement(inside, element.scales, element.matrices).check(TABLE)
    with pytest.raises(SymmetryError, match="expected x, qk, vo, got x"):
        GroupElement(element.perms, element.scales, {"x": element.matrices["x"]}).check(TABLE)


def test_gains_other_than_1_are_refused_where_orthogonal_matrices_act() -> None:
    rng = np.random.default_rng(7)
    weights, element = weights_of(2, rng), GroupElement.random(TABLE, 2, rng)
    weights["gain"][1, 2] = 1.5
    with pytest.raises(SymmetryError, match=r"tensor 'gain': expected gains of 1, .* differs by 0\.5"):
        apply(element, weights, TABLE)
    still = GroupElement(element.perms, element.scales, {**element.matrices, "x": np.tile(np.eye(D), (2, 1, 1, 1))})
    apply(still, weights, TABLE)


def test_tables_with_matrices_are_checked_and_read_back() -> None:
    assert Symmetry.from_json(TABLE.to_json()) == TABLE
    halves = Symmetry(
        (Group("pairs", 3, Sym(), "complex"),),
        (AxisAction("q", 0, (Segment("pairs", 0, 1, 3, part=0), Segment("pairs", 3, 1, 3, part=1)), 1, True, "out"),),
    )
    assert Symmetry.from_json(halves.to_json()) == halves
    with pytest.raises(SpecError, match="none, as 'x' has matrices"):
        Symmetry((TABLE.groups[0], Group("norm", D, Like("x"), "nonzero"), *TABLE.groups[2:]), TABLE.actions)
    linear = Group("a", 4, Sym(), "linear")

    def table(group: Group, *actions: AxisAction, others: tuple[Group, ...] = ()) -> Symmetry:
        return Symmetry((group, *others), actions)

    whole = AxisAction("w", 0, (Segment("a", 0, 1, 4),), 1, True, "out")
    assert table(linear, whole)["a"].matrix_shape == (1, 4, 4)
    for actions, message in (
        ((AxisAction("w", 0, (Segment("a", 0, 1, 4),), 0, True, "out"),), "exponent 1 or -1 alone"),
        ((AxisAction("w", 0, (Segment("a", 0, 1, 4),), 2, True, "variance"),), "exponent 1 or -1 alone"),
        ((AxisAction("w", 0, (Segment("a", 0, 1, 4),), 1, True, "out", absolute=True),), "exponent 1 or -1 alone"),
        ((AxisAction("w", 0, (Segment("a", 0, 1, 4, part=1),), 1, True, "out"),), "none but of complex numbers"),
    ):
        with pytest.raises(SpecError, match=message):
            table(linear, *actions)
    with pytest.raises(SpecError, match="a group without such matrices"):
        table(linear, whole, others=(Group("b", 4, Like("a"), "none"),))
    number = Group("a", 4, Sym(), "complex")
    with pytest.raises(SpecError, match="in turns"):
        table(number, whole)
    with pytest.raises(SpecError, match="as many imaginary as real parts"):
        table(number, AxisAction("w", 0, (Segment("a", 0, 1, 4, part=0),), 1, True, "out"))

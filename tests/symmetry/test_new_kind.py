"""Kinds of symmetry that the package does not know, cyclic shifts and triangular matrices, each one class and one line.

The hidden channels of the first network go around a circle: each is mixed with its neighbours by a kernel that is the
same everywhere, so that a shift of all channels leaves the function, and another permutation does not. In the second
one, nothing treats the channels of a narrow layer one by one, so that any invertible matrix keeps the function, and
the triangular ones among them are declared.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import declare, dedupe
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import MATRICES, AxisAction, Fixed, Group, Like, Perm, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, canonicalize, count, orbits
from ckptzoo.symmetry.kinds.kind import Counts, PermutationKind, Shared, Ties, refused
from ckptzoo.symmetry.kinds.matrix import Basis, Matrix, matrix_shape
from ckptzoo.symmetry.kinds.registry import FACTORS, PERMUTATIONS
from ckptzoo.symmetry.matrix_action import Arrays, joined_rows
from ckptzoo.symmetry.transpositions import most_transpositions

N = 6


@dataclass(frozen=True)
class Cyclic(Perm):
    """Shifts of all channels around a circle."""


class Shifts(PermutationKind):
    """The n shifts: ``perm[i] = i + s`` modulo n."""

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        return (np.arange(group.n) + rng.integers(0, group.n, (K, 1))) % group.n

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        super().check(group, value, perm, K, shared)
        if ((value - value[:, :1] - np.arange(group.n)) % group.n).any():
            raise refused(f"group {group.id!r}: perm", "a shift", "another permutation")

    def factorials(self, group: Group, counted: set[str]) -> Counts:
        return [(group.n, 1), (group.n - 1, -1)]

    def generators(self, group: Group) -> dict[str, np.ndarray]:
        return {group.id: np.roll(np.arange(group.n), 1)}

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        channels = np.arange(group.n)
        shifts = (channels[:, None] + channels) % group.n
        return shifts[gains[..., channels, shifts].sum(axis=-1).argmax(axis=-1)]

    def settle(self, group: Group, keys: np.ndarray, shared: Shared) -> tuple[np.ndarray, list[np.ndarray]]:
        ordered = np.sort(keys, axis=1)
        return (keys.argmin(axis=1)[:, None] + np.arange(group.n)) % group.n, [np.diff(ordered[:, :2], axis=1)]

    def ties(self, group: Group) -> Ties:
        channels = np.arange(group.n)
        return Ties(np.zeros(group.n, np.int64), edges=[(group.id, np.roll(channels, -1), channels)])

    def by_ranks(self, group: Group, ranks: np.ndarray, shared: object) -> np.ndarray:
        return (ranks.argmin() + np.arange(group.n)) % group.n


class Triangular(Matrix):
    """Lower triangular matrices L with a positive diagonal; of ``A = L Q`` with orthonormal rows of Q a gauge takes Q."""

    among = "positive"
    whitens = True

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        made = np.tril(spread * rng.standard_normal((K, *matrix_shape(group))), -1)
        return made + np.exp(spread * rng.standard_normal(made.shape[:-1]))[..., None] * np.eye(made.shape[-1])

    def check_matrices(self, what: str, value: np.ndarray) -> None:
        diagonal = np.diagonal(value, axis1=-2, axis2=-1)
        if not (diagonal > 0).all() or np.abs(np.triu(value, 1)).max(initial=0) > 1e-12 * np.abs(value).max():
            raise refused(what, "a lower triangular matrix with a positive diagonal", "another one")

    def dimensions(self, group: Group) -> int:
        return group.n * (group.n + 1) // 2

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.eye(group.n), gains.shape)

    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        return np.trace(gains, axis1=-2, axis2=-1)

    def settle(self, group: Group, arrays: Arrays, symmetry: Symmetry, precision: float) -> Basis:
        written = joined_rows(arrays, group, symmetry, inverted=False)
        _, upper = np.linalg.qr(written.swapaxes(-1, -2))
        upper = upper * np.sign(np.diagonal(upper, axis1=-2, axis2=-1))[..., None]
        none = np.zeros(upper.shape[:2], np.int64)
        left = np.tril(np.linalg.inv(upper.swapaxes(-1, -2)))
        return Basis(left, upper, np.ones(none.shape), none, np.zeros(none.shape, bool))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the registry, and the names that tables may have, for the time of a test."""
    monkeypatch.setitem(PERMUTATIONS, Cyclic, Shifts())
    monkeypatch.setitem(FACTORS, "triangular", Triangular())
    for module in ("groups", "symmetry_checks"):
        monkeypatch.setattr(f"ckptzoo.schema.{module}.MATRICES", (*MATRICES, "triangular"))


def _table() -> Symmetry:
    """Channels on a circle, those behind the kernel, which move with them, and a hidden layer of the usual kind."""
    return Symmetry(
        (
            Group("circle", N, Cyclic(), "positive"),
            Group("mixed", N, Like("circle"), "none"),
            Group("plain", 4, Sym(), "positive"),
        ),
        (
            AxisAction("W1", 0, (Segment("mixed", 0, 1, N),), 0, True, "out"),
            AxisAction("b1", 0, (Segment("mixed", 0, 1, N),), 0, False, "bias"),
            AxisAction("scale", 0, (Segment("circle", 0, 1, N),), 1, True, "out"),
            AxisAction("W2", 1, (Segment("circle", 0, 1, N),), -1, True, "in"),
            AxisAction("W2", 0, (Segment("plain", 0, 1, 4),), 1, True, "out"),
            AxisAction("b2", 0, (Segment("plain", 0, 1, 4),), 1, False, "bias"),
            AxisAction("W3", 1, (Segment("plain", 0, 1, 4),), -1, True, "in"),
        ),
    )


def _weights(K: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"W1": (N, 3), "b1": (N,), "scale": (N,), "W2": (4, N), "b2": (4,), "W3": (2, 4)}
    return {name: rng.standard_normal((K, *shape)) for name, shape in shapes.items()}


def _outputs(weights: dict[str, np.ndarray]) -> np.ndarray:
    """Of all K networks on the same inputs: ``W3 relu(W2 relu(scale * kernel * tanh(W1 x + b1)) + b2)``."""
    x = np.random.default_rng(99).standard_normal((3, 5))
    first = np.tanh(weights["W1"] @ x + weights["b1"][..., None])
    around = first + 0.5 * np.roll(first, 1, axis=1) - 0.25 * np.roll(first, -1, axis=1)
    held = np.maximum(weights["scale"][..., None] * around, 0)
    return weights["W3"] @ np.maximum(weights["W2"] @ held + weights["b2"][..., None], 0)


def test_its_elements_keep_the_function_and_are_a_group() -> None:
    table, weights = _table(), _weights(20, 0)
    g, h = (GroupElement.random(table, 20, np.random.default_rng(seed)) for seed in (1, 2))
    for element in (g, h, g.compose(h), g.inverse()):
        element.check(table)
        np.testing.assert_allclose(_outputs(apply(element, weights, table)), _outputs(weights), rtol=1e-9, atol=1e-12)
    assert len(np.unique(g.perms["circle"], axis=0)) == N
    both, one_by_one = apply(g.compose(h), weights, table), apply(g, apply(h, weights, table), table)
    for name, array in one_by_one.items():
        np.testing.assert_allclose(both[name], array, rtol=1e-12)
    swapped = GroupElement.identity(table, 20)
    swapped.perms["circle"][:, :2] = swapped.perms["mixed"][:, :2] = [1, 0]
    with pytest.raises(SymmetryError, match="group 'circle': perm: expected a shift, got another permutation"):
        swapped.check(table)


def test_it_is_counted_and_stored() -> None:
    table = _table()
    counts = count(table)
    assert counts.permutations == N * 24 and counts.scaling_eval == N + 4
    assert [group.kind for group in counts.groups] == ["cyclic", "like", "sym"]
    assert counts.groups[0].log10_permutations == pytest.approx(np.log10(N))
    assert Symmetry.from_json(table.to_json()) == table
    assert len(np.unique(orbits(table, "b1", (N,)))) == 1
    assert len(np.unique(orbits(table, "W1", (N, 3)))) == 3
    assert most_transpositions(table) == 3, "no two channels of a circle change places alone"


@pytest.mark.parametrize("tied", [False, True])
def test_copies_have_the_same_canonical_form_and_others_another(tied: bool) -> None:
    table, weights = _table(), _weights(8, 3)
    if tied:  # the keys of channels are equal, and the circle alone tells them apart
        weights["scale"][:] = 1
        weights["W1"][:] = weights["W1"][:, :1]
        weights["b1"][:] = np.tile([0.0, 1.0, 0.0, 1.0, 1.0, 0.0], (8, 1))
        weights["W2"][:] = weights["W2"][:, :, :1]
    element = GroupElement.random(table, 8, np.random.default_rng(4), spread=0.0)
    one, two = canonicalize(weights, table), canonicalize(apply(element, weights, table), table)
    one.element.check(table)
    assert (one.report.ties > 0).all() == tied and not one.report.unresolved.any()
    for name, array in one.weights.items():
        np.testing.assert_array_equal(array, two.weights[name])
    swapped = {name: array.copy() for name, array in weights.items()}
    for name, axis in (("W1", 1), ("b1", 1), ("scale", 1), ("W2", 2)):
        moved = np.moveaxis(swapped[name], axis, 1)
        moved[:, :2] = moved[:, 1::-1].copy()
    other = canonicalize(swapped, table).weights
    assert all(any((other[name][row] != one.weights[name][row]).any() for name in other) for row in range(8))


@pytest.mark.parametrize("start", ["signature", "identity"])
def test_copies_are_aligned_and_the_best_shift_of_others_is_found(start: str) -> None:
    table, reference = _table(), _weights(1, 5)
    copies = {name: np.repeat(array, 10, axis=0) for name, array in reference.items()}
    element = GroupElement.random(table, 10, np.random.default_rng(6), spread=0.0)
    found = align(apply(element, copies, table), reference, table, start=start)
    found.element.check(table)
    if start == "signature":
        np.testing.assert_allclose(found.distance, 0, atol=1e-6)
    one = replace(
        table, groups=table.groups[:2], actions=tuple(act for act in table.actions if "plain" not in act.groups)
    )
    others = _weights(10, 7)
    best = align(others, reference, one, start=start)
    for row in range(10):
        distances = [
            np.sqrt(sum(np.square(shifted[name][0] - reference[name][0]).sum() for name in shifted))
            for shift in range(N)
            for shifted in [_shifted({name: array[row : row + 1] for name, array in others.items()}, shift)]
        ]
        assert best.distance[row] == pytest.approx(min(distances))
        assert best.gap[row] >= -1e-12


@pytest.mark.parametrize("kind", ["shifts", "triangular"])
def test_disguised_copies_in_a_zoo_are_found(kind: str, tmp_path: Path) -> None:
    """The table is read from its file, so that the name of the kind is known there too."""
    table, weights = (_table(), _weights(3, 8)) if kind == "shifts" else (_flag(), _narrow(3, 8))
    copies = apply(GroupElement.random(table, 3, np.random.default_rng(9), spread=0.3), weights, table)
    both = {name: np.concatenate([array, copies[name]]).astype(np.float32) for name, array in weights.items()}
    arch = Architecture("circle", tuple(Tensor(name, array.shape[1:]) for name, array in both.items()))
    with ckptzoo.create(tmp_path / "zoo", arch=arch, card=ckptzoo.Card("circle", "Networks and disguises.")) as writer:
        writer.add(both, [{"id": f"n{number}"} for number in range(6)])
    declare(tmp_path / "zoo", table)
    assert dedupe(ckptzoo.open(tmp_path / "zoo")).groups == (("n0", "n3"), ("n1", "n4"), ("n2", "n5"))


def _shifted(weights: dict[str, np.ndarray], shift: int) -> dict[str, np.ndarray]:
    axes = {"W1": 1, "b1": 1, "scale": 1, "W2": 2}
    return {name: np.roll(array, shift, axes[name]) if name in axes else array for name, array in weights.items()}


def _flag() -> Symmetry:
    """A narrow layer, and a hidden one of the usual kind that reads it."""
    return Symmetry(
        (Group("narrow", 4, Fixed(), "triangular"), Group("plain", 6, Sym(), "positive")),
        (
            AxisAction("W1", 0, (Segment("narrow", 0, 1, 4),), 1, True, "out"),
            AxisAction("b1", 0, (Segment("narrow", 0, 1, 4),), 1, False, "bias"),
            AxisAction("W2", 1, (Segment("narrow", 0, 1, 4),), -1, True, "in"),
            AxisAction("W2", 0, (Segment("plain", 0, 1, 6),), 1, True, "out"),
            AxisAction("b2", 0, (Segment("plain", 0, 1, 6),), 1, False, "bias"),
            AxisAction("W3", 1, (Segment("plain", 0, 1, 6),), -1, True, "in"),
        ),
    )


def _narrow(K: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"W1": (4, 5), "b1": (4,), "W2": (6, 4), "b2": (6,), "W3": (2, 6)}
    return {name: rng.standard_normal((K, *shape)) for name, shape in shapes.items()}


def _values(weights: dict[str, np.ndarray]) -> np.ndarray:
    """Outputs of all K networks on the same inputs: ``W3 relu(W2 (W1 x + b1) + b2)``."""
    x = np.random.default_rng(99).standard_normal((5, 7))
    first = weights["W1"] @ x + weights["b1"][..., None]
    return weights["W3"] @ np.maximum(weights["W2"] @ first + weights["b2"][..., None], 0)


def test_copies_by_a_new_kind_of_matrices_have_one_canonical_form() -> None:
    table, weights, values = _flag(), _narrow(8, 0), _values(_narrow(8, 0))
    g, h = (GroupElement.random(table, 8, np.random.default_rng(seed), spread=0.3) for seed in (1, 2))
    for element in (g, h, g.compose(h), g.inverse()):
        element.check(table)
        np.testing.assert_allclose(_values(apply(element, weights, table)), values, rtol=1e-9, atol=1e-9)
    assert count(table).continuous == (("scales", 6), ("triangular", 10))
    one, two = (canonicalize(apply(element, weights, table), table) for element in (g, h))
    assert one.report.gauged.all() and not one.report.unresolved.any()
    for made, element in ((one, g), (two, h)):
        made.element.check(table)
        np.testing.assert_allclose(_values(made.weights), values, rtol=1e-9, atol=1e-9)
        again = apply(made.element, apply(element, weights, table), table)
        for name, array in made.weights.items():
            np.testing.assert_allclose(again[name], array, rtol=1e-9, atol=1e-9)
    for name, array in one.weights.items():
        np.testing.assert_allclose(array, two.weights[name], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(
        one.weights["W1"] @ one.weights["W1"].swapaxes(1, 2), np.tile(np.eye(4), (8, 1, 1)), atol=1e-12
    )
    other = canonicalize(_narrow(8, 3), table).weights["W2"]
    assert (np.abs(other - one.weights["W2"]).max(axis=(1, 2)) > 0.01).all()
    wrong = GroupElement.identity(table, 8)
    wrong.matrices["narrow"][:, 0, 0, 1] = 1
    with pytest.raises(SymmetryError, match="expected a lower triangular matrix with a positive diagonal"):
        wrong.check(table)

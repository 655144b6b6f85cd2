"""Alignment of heads of queries that share heads of keys: copies, noise, brute force, and what a result depends on."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, barycentre, unnested
from ckptzoo.symmetry.alignment import nested_matching
from ckptzoo.symmetry.alignment.align import Aligned
from ckptzoo.symmetry.alignment.matching import Matcher
from ckptzoo.symmetry.alignment.nested_matching import NestedMatcher
from tests.laws import test_grouped_queries
from tests.support.matrix_tables import Shapes, Weights, repeated, weights_of
from tests.symmetry.matrices.every_kind import grouped_queries
from tests.symmetry.matrices.every_kind import weights_of as weights_for


def attention(
    kv: int,
    shared: int,
    d: int = 12,
    k: int = 4,
    *,
    queries: str = "complex",
    values: str = "linear",
    stream: str = "orthogonal",
    packed: bool = False,
) -> tuple[Symmetry, Shapes]:
    """Of each head of keys and values, as many heads of queries; real and imaginary parts take turns."""
    heads, n = kv * shared, kv * k
    turning = queries == "complex"
    channels = k // 2 if turning else k
    qk = Group("qk", kv * channels, Wreath("kv", kv, channels, "fixed" if turning else "free"), queries)
    groups = (
        Group("x", d, Fixed() if stream == "fixed" else Sym(), "none" if stream == "fixed" else stream),
        Group("heads", heads, Wreath("kv", kv, shared), "none"),
        qk,
        Group("vo", n, Wreath("kv", kv, k), values),
    )

    def columns(tensor: str) -> AxisAction:
        return AxisAction(tensor, 1, (Segment("x", 0, 1, d),), -1, True, "in")

    def rows(offset: int, exponent: int | None) -> Segment:
        return Segment("qk", offset, 2 if turning else 1, qk.n, exponent)

    queried = Segment("heads", 0, k, heads, within="qk")
    if packed:
        segments = (queried, rows(heads * k, -1), Segment("vo", heads * k + n, 1, n))
        actions = [AxisAction("qkv", 0, segments, 1, True, "out"), columns("qkv")]
        shapes = {"qkv": (heads * k + 2 * n, d)}
    else:
        actions = [
            AxisAction("q", 0, (queried,), 1, True, "out"),
            AxisAction("k", 0, (rows(0, None),), -1, True, "out"),
        ]
        actions += [AxisAction("v", 0, (Segment("vo", 0, 1, n),), 1, True, "out"), *map(columns, "qkv")]
        shapes = {"q": (heads * k, d), "k": (n, d), "v": (n, d)}
    actions.append(AxisAction("o", 0, (Segment("x", 0, 1, d),), 1, True, "out"))
    actions.append(AxisAction("o", 1, (Segment("heads", 0, k, heads, within="vo"),), -1, True, "in"))
    actions.append(AxisAction("embed", 1, (Segment("x", 0, 1, d),), 1, True, "out"))
    return Symmetry(groups, tuple(actions)), {**shapes, "o": (d, heads * k), "embed": (2 * d, d)}


PLAIN: dict[str, Any] = {"queries": "none", "values": "none", "stream": "none"}
TABLES = {
    "complex": attention(2, 2),
    "three heads of queries": attention(4, 3),
    "one head of keys": attention(1, 3),
    "four heads of keys": attention(4, 2, stream="orthogonal_mean"),
    "linear": attention(3, 3, queries="linear"),
    "orthogonal": attention(3, 4, queries="orthogonal", values="orthogonal"),
    "a stream that is permuted": attention(2, 4, stream="none"),
    "permutations": attention(4, 3, **PLAIN),
    "permutations, one head of keys": attention(1, 4, **PLAIN),
    "packed": attention(4, 3, packed=True),
    "packed permutations": attention(4, 3, **PLAIN, packed=True),
}


def disguise(table: Symmetry, K: int, seed: int) -> GroupElement:
    return GroupElement.random(table, K, np.random.default_rng(seed), spread=0.5)


def relative(found: Aligned) -> np.ndarray:
    return found.distance / np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in found.reference.values()))


def same_permutations(found: GroupElement, planted: GroupElement) -> np.ndarray:
    """(K,) whether elements undo others, apart from matrices."""
    undone = planted.inverse()
    return np.all([(perm == undone.perms[name]).all(axis=1) for name, perm in found.perms.items()], axis=0)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sampled(2)
def test_a_disguise_of_the_reference_is_undone(name: str) -> None:
    table, shapes = TABLES[name]
    reference, g = weights_of(shapes, 1, 1), disguise(table, 6, 2)
    weights = apply(g, repeated(reference, 6), table)
    found = align(weights, reference, table)
    found.element.check(table)
    assert (relative(found) < 1e-9).all() and (np.abs(found.gap) < 1e-12).all()
    if not table.has_matrices:
        np.testing.assert_array_equal(found.distance, 0)
    assert same_permutations(found.element, g).all() and not found.ties.any()
    for key, value in apply(found.element, weights, table).items():
        np.testing.assert_allclose(value, found.weights[key], atol=1e-8)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sampled(2)
def test_noise_of_a_tenth_leaves_the_heads_where_they_belong(name: str) -> None:
    """Found in all 20 networks of each table; 19 are asked for."""
    table, shapes = TABLES[name]
    reference, g = weights_of(shapes, 1, 1), disguise(table, 20, 2)
    weights = apply(g, repeated(reference, 20, noise=0.1, seed=3), table)
    found = align(weights, reference, table)
    assert same_permutations(found.element, g).sum() >= 19
    assert np.median(relative(found)) < 0.2  # a basis that balances noisy products is noisier
    assert (found.value <= found.bound).all()


def test_rotary_embeddings_with_their_halves_apart() -> None:
    """Queries are listed once for each half of a head."""
    table = test_grouped_queries.table(True)
    reference = weights_of(test_grouped_queries.SHAPES, 1, 1)
    g = GroupElement.random(table, 20, np.random.default_rng(2), spread=0.0)
    unsigned = GroupElement(g.perms, GroupElement.identity(table, 20).scales)
    weights = apply(unsigned, repeated(reference, 20, noise=0.1, seed=3), table)
    assert same_permutations(align(weights, reference, table).element, unsigned).sum() >= 19


@pytest.mark.parametrize("halves", [False, True])
def test_every_kind_of_matrices_beside_each_other(halves: bool) -> None:
    table = grouped_queries(halves=halves)
    reference, g = weights_for(table, 1, np.random.default_rng(1)), disguise(table, 6, 2)
    found = align(apply(g, repeated(reference, 6), table), reference, table)
    assert (relative(found) < 1e-9).all() and same_permutations(found.element, g).all()


@pytest.mark.parametrize(("noise", "least"), [(1.0, 39), (np.inf, 20)])
def test_brute_force_over_all_permutations(noise: float, least: int) -> None:
    """Two heads of keys of two channels, each with two heads of queries.

    The optimum for 40 of 40 networks that are the reference under as much noise as it has itself, and for 25 of 40
    unrelated ones, whose best permutations are a hard problem.
    """
    table, shapes = attention(2, 2, 3, 2, queries="none", values="none", stream="fixed")
    reference = weights_of(shapes, 1, 1)
    weights = weights_of(shapes, 40, 2)
    if np.isfinite(noise):
        weights = apply(disguise(table, 40, 3), repeated(reference, 40, noise=noise, seed=4), table)
    found = align(weights, reference, table)
    swaps = list(itertools.permutations(range(2)))
    best = np.full(40, -np.inf)
    for outer, *inside in itertools.product(swaps, repeat=7):
        perms = {
            name: np.concatenate([2 * outer[block] + np.array(inside[2 * number + block]) for block in range(2)])
            for number, name in enumerate(("heads", "qk", "vo"))
        }
        perms["x"] = np.arange(3)
        element = GroupElement({name: np.tile(perm, (40, 1)) for name, perm in perms.items()}, {})
        moved = apply(element, weights, table)
        best = np.maximum(best, sum((moved[key] * reference[key]).reshape(40, -1).sum(axis=1) for key in moved))
    assert (found.value <= best + 1e-12 * np.abs(best)).all()
    assert (found.value >= best - 1e-12 * np.abs(best)).sum() >= least


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sampled(8)
def test_the_distance_never_rises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of unrelated networks, against the identity and from turn to turn."""
    table, shapes = TABLES[name]
    weights, reference = weights_of(shapes, 3, 1), weights_of(shapes, 1, 2)
    # both sides with balanced blocks, from which the distance falls
    balanced, target = align(weights, weights, table).reference, align(weights, reference, table).reference
    square = sum(((balanced[key] - target[key]) ** 2).reshape(3, -1).sum(axis=1) for key in balanced)
    distances = [np.sqrt(square)]
    for turns in (1, 2, 50):
        monkeypatch.setattr(nested_matching, "MAX_TURNS", turns)
        found = align(weights, reference, table, start="identity")
        distances.append(found.distance)
        assert (found.value <= found.bound).all()
    assert (np.diff(distances, axis=0) <= 1e-10 * distances[0]).all()
    assert (distances[1] < distances[0]).all()
    if not table.has_matrices:  # balanced blocks have another basis once they are balanced again
        again = align(found.weights, found.reference, table, start="identity")
        np.testing.assert_array_equal(again.distance, found.distance)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["three heads of queries", "packed", "permutations"])
@pytest.mark.parametrize("own", [False, True], ids=["one reference", "one each"])
@pytest.mark.sampled(5)
def test_a_result_depends_neither_on_the_others_nor_on_threads(name: str, own: bool) -> None:
    table, shapes = TABLES[name]
    weights, reference = weights_of(shapes, 3, 1), weights_of(shapes, 3 if own else 1, 2)
    weights = {key: np.concatenate([value[:1], reference[key][:1], value[1:2]]) for key, value in weights.items()}
    found = align(weights, reference, table, threads=1)
    threaded = align(weights, reference, table, threads=4)
    for row in range(3):
        target = {key: value[row : row + 1] for key, value in reference.items()} if own else reference
        alone = align({key: value[row : row + 1] for key, value in weights.items()}, target, table)
        for key, value in alone.weights.items():
            np.testing.assert_array_equal(value[0], found.weights[key][row])
            np.testing.assert_array_equal(value[0], threaded.weights[key][row])
        assert (alone.sweeps[0], alone.ties[0]) == (found.sweeps[row], found.ties[row])


@pytest.mark.parametrize("name", ["packed permutations", "three heads of queries", "permutations"])
@pytest.mark.sampled(3)
def test_the_result_does_not_depend_on_the_disguise(name: str) -> None:
    table, shapes = TABLES[name]
    weights, reference = weights_of(shapes, 6, 1), weights_of(shapes, 1, 2)
    found = align(weights, reference, table)
    other = align(apply(disguise(table, 6, 3), weights, table), reference, table)
    np.testing.assert_allclose(other.distance, found.distance, rtol=1e-5)


def test_equal_heads_are_ties() -> None:
    table, shapes = attention(2, 3, **PLAIN)
    weights, reference = weights_of(shapes, 2, 1), weights_of(shapes, 1, 2)
    weights["q"][1, 4:8], weights["o"][1, :, 4:8] = weights["q"][1, :4], weights["o"][1, :, :4]
    np.testing.assert_array_equal(align(weights, reference, table).ties, [0, 1])


def test_as_many_heads_of_keys_as_of_queries_are_those_of_an_ordinary_table() -> None:
    for options in (PLAIN, {}):
        table, shapes = attention(4, 1, **options)
        weights, reference = weights_of(shapes, 3, 1), weights_of(shapes, 1, 2)
        nested, plain = (align(weights, reference, item) for item in (table, unnested(table)))
        channels = table["qk"].n // 4
        np.testing.assert_array_equal(
            nested.element.perms["heads"], plain.element.perms["qk"][:, ::channels] // channels
        )
        for key, value in plain.weights.items():
            np.testing.assert_array_equal(nested.weights[key], value)
        np.testing.assert_array_equal(nested.bound, plain.bound)


def test_a_table_without_such_groups_is_matched_as_before() -> None:
    table, shapes = unnested(TABLES["permutations"][0]), TABLES["permutations"][1]
    weights, reference = weights_of(shapes, 4, 1), weights_of(shapes, 1, 2)
    one, two = (make(reference, table).match(weights) for make in (Matcher, NestedMatcher))
    for name, perm in one.element.perms.items():
        np.testing.assert_array_equal(two.element.perms[name], perm)
    np.testing.assert_array_equal([one.bound, one.sweeps, one.ties], [two.bound, two.sweeps, two.ties])


def test_single_precision_and_networks_that_are_not_finite() -> None:
    for name in ("three heads of queries", "permutations"):
        table, shapes = TABLES[name]
        reference: Weights = weights_of(shapes, 1, 1, np.float32)
        g = disguise(table, 3, 2)
        weights = apply(g, repeated(reference, 3), table)
        weights["embed"][1, 0, 0] = np.nan
        found = align(weights, reference, table)
        np.testing.assert_array_equal(found.aligned, [True, False, True])
        assert (relative(found)[[0, 2]] < 1e-4).all() and np.isnan(found.distance[1])
        assert same_permutations(found.element, g)[[0, 2]].all()
        assert all(value.dtype == np.float32 for value in found.weights.values())


def test_the_barycentre_of_copies_is_that_network() -> None:
    table, shapes = TABLES["permutations"]
    copies = apply(disguise(table, 5, 2), repeated(weights_of(shapes, 1, 1, np.float32), 5), table)
    found = barycentre(lambda: [copies], table)
    assert max(float(std.max()) for std in found.std.values()) == 0
    noisy = apply(disguise(table, 5, 2), repeated(weights_of(shapes, 1, 1), 5, noise=0.5, seed=3), table)
    found = barycentre(lambda: [noisy], table)
    assert (np.diff(found.objective) >= 0).all()
    found.element.check(table)


def test_the_disguise_in_the_golden_zoo_is_undone_in_a_gauge() -> None:
    """Its channels have scales, which alignment leaves to the gauge."""
    zoo = ckptzoo.open(Path(__file__).parents[2] / "golden" / "v1-rotary")
    assert zoo.symmetry is not None
    weights = {name: np.asarray(zoo[name]) for name in zoo.arch.names}
    found = align(weights, {name: array[:1] for name, array in weights.items()}, zoo.symmetry, gauge="canonical")
    assert (relative(found)[:2] < 1e-6).all() and relative(found)[2] > 0.1

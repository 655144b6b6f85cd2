"""Ties that are graph canonicalisation: cycles, designs, regular graphs, dead and doubled channels."""

import time

import numpy as np
import pytest

from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, colour_refinement, fingerprint, tie_breaking
from tests.support.effort import examples

Weights = dict[str, np.ndarray]
COPIES = 8


def mlp(sizes: tuple[int, ...]) -> Symmetry:
    last = len(sizes) - 2
    actions: list[AxisAction] = []
    for layer, n in enumerate(sizes[1:]):
        if layer < last:
            actions.append(AxisAction(f"w{layer}", 0, (Segment(f"h{layer}", 0, 1, n),), 1, True, "out"))
            actions.append(AxisAction(f"b{layer}", 0, (Segment(f"h{layer}", 0, 1, n),), 1, False, "bias"))
        if layer:
            actions.append(AxisAction(f"w{layer}", 1, (Segment(f"h{layer - 1}", 0, 1, sizes[layer]),), -1, True, "in"))
    return Symmetry(tuple(Group(f"h{i}", n, Sym(), "positive") for i, n in enumerate(sizes[1:-1])), tuple(actions))


def between(middle: np.ndarray) -> tuple[Symmetry, Weights]:
    """Two hidden layers whose channels are all alike but for the weights between them."""
    rows, columns = middle.shape
    weights = {"w0": np.ones((columns, 3)), "b0": np.zeros(columns), "w1": middle}
    return mlp((3, columns, rows, 2)), weights | {"b1": np.zeros(rows), "w2": np.ones((2, rows))}


def cycles(*lengths: int) -> np.ndarray:
    """Weights that join two layers in cycles of these lengths."""
    made, start = np.zeros((sum(lengths) // 2,) * 2), 0
    for half in (length // 2 for length in lengths):
        for step in range(half):
            made[start + step, [start + step, start + (step + 1) % half]] = 1
        start += half
    return made


def plane(p: int) -> np.ndarray:
    """Points and lines of the affine plane over p elements."""
    points = [(x, y) for x in range(p) for y in range(p)]
    upright = [[float(x == c) for x, _ in points] for c in range(p)]
    return np.array(
        upright + [[float((m * x + c - y) % p == 0) for x, y in points] for m in range(p) for c in range(p)]
    )


def regular(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return sum((np.eye(n)[rng.permutation(n)] for _ in range(3)), np.zeros((n, n)))


def disguised(weights: Weights, table: Symmetry, *, scaled: bool, seed: int = 0) -> Weights:
    """Copies of a network under random elements; scales are powers of two, which round nothing."""
    stacked = {name: np.repeat(array[None], COPIES, 0).astype(np.float32) for name, array in weights.items()}
    g = GroupElement.random(table, COPIES, np.random.default_rng(seed), spread=2.0 if scaled else 0.0)
    return apply(
        GroupElement(g.perms, {name: 2.0 ** np.round(np.log2(s)) for name, s in g.scales.items()}), stacked, table
    )


def assert_all_the_same(table: Symmetry, weights: Weights) -> None:
    for scaled in (False, True):
        made = canonicalize(disguised(weights, table, scaled=scaled), table)
        assert made.report.ties.all() and not made.report.unresolved.any()
        for name, array in made.weights.items():
            assert (array == array[0]).all(), name
        assert len(set(fingerprint(made))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(6,), (4, 6), (6, 6), (4, 4, 4), (8, 10, 12), (4,) * 10])
@pytest.mark.sampled(2)
def test_cycles(lengths: tuple[int, ...]) -> None:
    """A 6-cycle, and a 4-cycle beside a 6-cycle: refinement tells no two channels apart."""
    assert_all_the_same(*between(cycles(*lengths)))


@pytest.mark.slow
@pytest.mark.parametrize("middle", [plane(2), plane(3), plane(5), *(regular(n, n) for n in (7, 10, 20, 40))])
@pytest.mark.sampled(2)
def test_designs_and_regular_graphs(middle: np.ndarray) -> None:
    assert_all_the_same(*between(middle))


@pytest.mark.slow
def test_random_graphs_of_few_values() -> None:
    for seed in range(examples(100, 4)):
        rng = np.random.default_rng(seed)
        rows, columns = rng.integers(3, 9, 2)
        assert_all_the_same(*between(rng.integers(1, 3, (rows, columns)).astype(np.float64) / 2))


def test_channels_that_are_dead_or_double() -> None:
    rng = np.random.default_rng(0)
    n = 64
    table = mlp((3, n, n, 2))
    weights = {
        name: rng.standard_normal(shape)
        for name, shape in {"w0": (n, 3), "b0": (n,), "w1": (n, n), "b1": (n,), "w2": (2, n)}.items()
    }
    weights["w0"][10:40], weights["b0"][10:40] = 0, 0
    weights["w1"][:, 25:40] = 0
    for name in ("w0", "b0"):
        weights[name][50:60] = weights[name][50]
    weights["w1"][:, 50:60] = weights["w1"][:, 50:51]
    weights["w1"][5:30], weights["b1"][5:30] = 0, 0
    weights["w2"][:, 20:30] = 0
    assert_all_the_same(table, weights)


def test_blocks_of_a_depthwise_convolution_that_are_alike() -> None:
    n = 24
    block = Segment("a", 0, 1, n)
    table = Symmetry(
        (Group("a", n, Wreath("d", n, 1), "positive"), Group("b", n, Wreath("d", n, 1), "positive")),
        (
            AxisAction("one", 0, (block,), 1, True, "out"),
            AxisAction("two", 0, (Segment("b", 0, 1, n),), 1, True, "out"),
            AxisAction("two", 1, (block,), -1, True, "in", blocks=n),
            AxisAction("three", 1, (Segment("b", 0, 1, n),), -1, True, "in"),
        ),
    )
    rng = np.random.default_rng(0)
    weights = {
        "one": rng.standard_normal((n, 3)),
        "two": rng.standard_normal((n, 1)),
        "three": rng.standard_normal((2, n)),
    }
    weights["one"][:12], weights["two"][:12], weights["three"][:, :12] = 0, 1, 0
    weights["one"][12:18], weights["two"][12:18], weights["three"][:, 12:18] = 1, -1, 2
    assert_all_the_same(table, weights)


@pytest.mark.exhaustive
def test_heads_that_are_alike_and_heads_whose_channels_are_in_another_order() -> None:
    """Channels keep their order within a head: four heads are 0, four others have the same channels reversed in two."""
    heads, k = 12, 4
    n = heads * k
    block = (Segment("a", 0, 1, n),)
    table = Symmetry(
        (Group("a", n, Wreath("heads", heads, k, "fixed"), "none"), Group("b", n, Wreath("heads", heads, k), "none")),
        (
            AxisAction("one", 0, block, 1, True, "out"),
            AxisAction("two", 0, block, -1, True, "out"),
            AxisAction("three", 0, (Segment("b", 0, 1, n),), 1, True, "out"),
            AxisAction("four", 1, (Segment("b", 0, 1, n),), -1, True, "in"),
        ),
    )
    rng = np.random.default_rng(0)
    shapes = {"one": (heads, k, 3), "two": (heads, k, 3), "three": (heads, k, 2), "four": (2, heads, k)}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    weights["three"][:8], weights["four"][:, :8] = 1, 1
    for name in ("one", "two"):
        weights[name][:4] = 0
        weights[name][4:6] = weights[name][4]
        weights[name][6:8] = weights[name][4, ::-1]
    weights["four"] = weights["four"].reshape(2, n)
    flat = {name: array.reshape(2, n) if name == "four" else array.reshape(n, -1) for name, array in weights.items()}
    assert_all_the_same(table, flat)


def test_different_graphs_stay_different() -> None:
    """A 12-cycle and two 6-cycles look alike to refinement."""
    table, one = between(cycles(12))
    _, two = between(cycles(6, 6))
    both = {name: np.stack([one[name], two[name]]) for name in one}
    made = canonicalize(both, table)
    assert (made.weights["w1"][0] != made.weights["w1"][1]).any()
    assert len(set(fingerprint(made))) == 2


def test_beyond_the_bound_the_search_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tie_breaking, "WORK", 0)
    monkeypatch.setattr(tie_breaking, "WORK_PER_EDGE", 0)
    table, weights = between(cycles(6, 6))
    stacked = disguised(weights, table, scaled=False)
    made = canonicalize(stacked, table)
    assert made.report.unresolved.all() and made.report.gauged.all()
    assert fingerprint(made) == [None] * COPIES
    again = apply(made.element, stacked, table)
    assert all((again[name] == made.weights[name]).all() for name in again)


def projective_plane(p: int) -> np.ndarray:
    """Points and lines of the projective plane over p elements."""
    points = [(1, x, y) for x in range(p) for y in range(p)] + [(0, 1, x) for x in range(p)] + [(0, 0, 1)]
    table = np.array(points)
    return (table @ table.T % p == 0).astype(np.float64)


def hadamard(order: int) -> np.ndarray:
    """Sylvester's matrix of signs."""
    made = np.ones((1, 1))
    while len(made) < order:
        made = np.block([[made, made], [made, -made]])
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("middle", "seconds"),
    [
        (hadamard(512), 5.0),
        (np.eye(512)[np.random.default_rng(0).permutation(512)], 10.0),
        (projective_plane(7), 2.0),
        (cycles(*[8] * 64), 5.0),
    ],
    ids=["a Hadamard matrix", "a permutation", "a projective plane", "64 cycles"],
)
@pytest.mark.sampled(3)
def test_large_ties_by_construction_are_resolved_within_seconds(middle: np.ndarray, seconds: float) -> None:
    """Limits several times above what is measured; a search without automorphisms of inner nodes takes minutes."""
    table, weights = between(middle)
    stacked = {name: array[:2] for name, array in disguised(weights, table, scaled=False).items()}
    start = time.process_time()
    made = canonicalize(stacked, table, threads=1)
    assert time.process_time() - start < 2 * seconds
    assert made.report.ties.all() and not made.report.unresolved.any()
    assert all((array[0] == array[1]).all() for array in made.weights.values())


def test_the_work_of_a_search_is_bounded_and_a_hopeless_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on edges looked at, not on time: the same search stops at the same place."""
    table, weights = between(cycles(*[8] * 16))
    looked: list[int] = []
    for limit in (2**40, 2**21, 2**21):
        monkeypatch.setattr(tie_breaking, "WORK", limit)
        graph = colour_refinement.ChannelGraph(weights, table)
        search = tie_breaking.Search([graph], graph.fixed())
        assert sorted(search.best.tolist()) == list(range(graph.size))
        assert search.complete == (limit == 2**40)
        looked.append(graph.work)
    assert looked[1] == looked[2] < 2 * 2**21 < looked[0]

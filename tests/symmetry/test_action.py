"""The action on random tables: what it is by definition, that it is an action, and that no bit depends on how."""

import itertools
import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, backends
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.scales import scaled_variance
from tests.support.effort import examples
from tests.support.symmetry_tables import Network, Weights, networks

seeds = st.integers(0, 2**32 - 1)
floats = st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
laws = settings(max_examples=examples(100), deadline=None)


def assert_same_bits(one: Weights, two: Weights) -> None:
    assert one.keys() == two.keys()
    for name, array in one.items():
        assert array.dtype == two[name].dtype and array.shape == two[name].shape, name
        assert array.tobytes() == two[name].tobytes(), name


def assert_close(one: Weights, two: Weights, rtol: float) -> None:
    for name, array in one.items():
        np.testing.assert_allclose(array, two[name], rtol=rtol, atol=0, err_msg=name)


def stored(weights: Weights) -> Weights:
    """Half precisions as float32."""
    return {
        name: array.astype(np.float32) if array.dtype.itemsize == 2 else array.copy() for name, array in weights.items()
    }


def channels_of(segments: tuple[Segment, ...], table: Symmetry) -> dict[int, tuple[str, int, int, int]]:
    """Position to group, listing, channel and place within the channel, read off the segments one by one."""
    found: dict[int, tuple[str, int, int, int]] = {}
    so_far: dict[str, int] = {}
    for segment in segments:
        for at in range(segment.count * segment.inner):
            n = table[segment.group].n
            listing, channel = divmod(so_far.get(segment.group, 0) + at // segment.inner, n)
            found[segment.offset + at] = (segment.group, listing, channel, at % segment.inner)
        so_far[segment.group] = so_far.get(segment.group, 0) + segment.count
    return found


def by_definition(net: Network, g: GroupElement, weights: Weights) -> Weights:
    """``new[i] = scale[i] ** exponent * old[perm[i]]`` along every axis, entry by entry, in Python's floats."""
    made = stored(weights)
    for name, array in weights.items():
        actions = net.table.actions_on(name)
        channels = [channels_of(action.segments, net.table) for action in actions]
        places = [{where: at for at, where in held.items()} for held in channels]
        for k, *index in itertools.product(*(range(size) for size in array.shape)):
            source, factors = list(index), []
            for action, held, place in zip(actions, channels, places, strict=True):
                size = array.shape[1 + action.axis]
                block = index[0] * action.blocks // array.shape[1]
                at = block * size + index[action.axis] if action.axis else index[0]
                if at not in held:
                    continue
                group, listing, channel, inside = held[at]
                (segment,) = (s for s in action.segments if s.offset <= at < s.offset + s.count * s.inner)
                scaling = group, channel
                if segment.within is not None:
                    heads, other = net.table[group].perm, net.table[segment.within].perm
                    each = segment.inner // other.k
                    number = channel // heads.k * other.k + inside // each
                    scaling = segment.within, number
                    inside = int(g.perms[segment.within][k, number]) % other.k * each + inside % each
                came = place[group, listing, int(g.perms[group][k, channel]), inside]
                source[action.axis] = came % size if action.axis else came
                scaled = [scaling]
                if (gate := channels_of(action.gates, net.table).get(at)) is not None:
                    scaled.append((gate[0], gate[2]))
                found = [float(g.scales[name][k, number]) for name, number in scaled if name in g.scales]
                if action.exponent and found:
                    factor = math.prod(found)
                    factors.append((action, factor if segment.exponent is None else 1 / factor))
                if (signed := channels_of(action.signs, net.table).get(at)) is not None:
                    factors.append((action, math.copysign(1, float(g.scales[signed[0]][k, signed[2]]))))
                if action.blocks > 1:
                    rows = [item for item in actions if item.axis == 0]
                    moved = by_row(index[0], k, g, rows, channels, places)
                    assert came // size == moved * action.blocks // array.shape[1], "blocks of rows and columns part"
            value = array[(k, *source)]
            if factors:
                value = np.float64(value)
                for action, factor in sorted(factors, key=lambda item: item[0].exponent):
                    if action.exponent == 2:
                        value = scaled_variance(np.array(value), np.array(factor), action.eps, 1e-7, name)[()]
                    else:
                        value = value / factor if action.exponent == -1 else value * factor
            made[name][(k, *index)] = value
    return made


def by_row(row: int, k: int, g: GroupElement, rows: list, channels: list, places: list) -> int:
    """Where a row comes from."""
    if not rows or row not in channels[0]:
        return row
    group, listing, channel, inside = channels[0][row]
    return places[0][group, listing, int(g.perms[group][k, channel]), inside]


@settings(max_examples=examples(150), deadline=None)
@given(networks(nested=True), seeds, floats, st.sampled_from([0.0, 0.3]))
def test_the_action_is_its_definition_bit_for_bit(net: Network, seed: int, dtype: type, spread: float) -> None:
    weights, g = net.weights(2, seed, dtype), net.element(2, seed + 1, spread=spread)
    assert_same_bits(apply(g, weights, net.table), by_definition(net, g, weights))


@pytest.mark.slow
@laws
@given(networks(nested=True), seeds)
def test_the_action_is_a_homomorphism_with_inverses(net: Network, seed: int) -> None:
    weights = net.weights(3, seed)
    g, h = net.element(3, seed + 1, spread=0.1), net.element(3, seed + 2, spread=0.1)
    once = apply(h, weights, net.table)
    g.compose(h).check(net.table)
    assert_close(apply(g.compose(h), weights, net.table), apply(g, once, net.table), 1e-13)
    assert_close(apply(h.inverse(), once, net.table), weights, 1e-13)
    identity = GroupElement.identity(net.table, 3)
    assert_same_bits(apply(identity, weights, net.table), weights)


@laws
@given(networks(nested=True), seeds, floats)
def test_permutations_are_exact_whatever_the_bits(net: Network, seed: int, dtype: type) -> None:
    """Every bit pattern, NaNs with their payload among them; half precisions by the values that float32 gives them."""
    rng = np.random.default_rng(seed)
    weights = net.weights(2, seed, dtype)
    if np.dtype(dtype).itemsize > 2:
        weights = {name: np.frombuffer(rng.bytes(a.nbytes), a.dtype).reshape(a.shape) for name, a in weights.items()}
    g, h = net.element(2, seed + 1, spread=0), net.element(2, seed + 2, spread=0)
    one = {group.id: np.ones((2, group.n)) for group in net.table.groups if group.scale != "none"}
    g, h = GroupElement(g.perms, one), GroupElement(h.perms, one)
    once = apply(h, weights, net.table)
    assert_same_bits(apply(g.compose(h), weights, net.table), apply(g, once, net.table))
    assert_same_bits(apply(h.inverse(), once, net.table), stored(weights))


@laws
@given(networks(nested=True), seeds, floats, st.lists(st.integers(0, 4), max_size=6), st.integers(0, 4))
def test_checkpoints_do_not_know_each_other(net: Network, seed: int, dtype: type, rows: list[int], still: int) -> None:
    weights, g = net.weights(5, seed, dtype), net.element(5, seed + 1)
    for scale in g.scales.values():
        scale[still] = 1
    together = apply(g, weights, net.table)
    apart = apply(g[np.array(rows, int)], {name: array[rows] for name, array in weights.items()}, net.table)
    assert_same_bits({name: array[rows] for name, array in together.items()}, apart)


@pytest.mark.slow
@laws
@given(networks(nested=True), seeds, floats, st.sampled_from([1, 7, 40]), st.integers(1, 3))
def test_pieces_threads_and_strides_change_no_bit(
    net: Network, seed: int, dtype: type, size: int, threads: int
) -> None:
    weights, g = net.weights(4, seed, dtype), net.element(4, seed + 1)
    expected = apply(g, weights, net.table, threads=1)
    spread = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in weights.items()}
    reversed_ = {name: array[::-1].copy()[::-1] for name, array in weights.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "NUMPY_CHUNK", size)
        patch.setattr(backends, "TASK", 3 * size)
        for same in (weights, spread, reversed_):
            assert_same_bits(apply(g, same, net.table, threads=threads), expected)


@laws
@given(networks(nested=True), seeds, floats)
def test_the_result_goes_where_it_is_wanted_and_the_weights_stay(net: Network, seed: int, dtype: type) -> None:
    weights, g = net.weights(3, seed, dtype), net.element(3, seed + 1)
    before = {name: array.copy() for name, array in weights.items()}
    expected = apply(g, weights, net.table)
    out = {name: np.full_like(array, 77) for name, array in list(expected.items())[::2]}
    made = apply(g, weights, net.table, out=out)
    assert list(made) == list(weights) and all(made[name] is out[name] for name in out)
    assert_same_bits(made, expected)
    assert_same_bits(weights, before)
    assert not any(np.may_share_memory(made[name], weights[name]) for name in weights)


@laws
@given(networks(nested=True), seeds, floats)
def test_one_tensor_alone_is_transformed_without_rounding(net: Network, seed: int, dtype: type) -> None:
    weights, g = net.weights(2, seed, dtype), net.element(2, seed + 1)
    whole = apply(g, {name: array.astype(np.float64) for name, array in weights.items()}, net.table)
    for name, array in weights.items():
        moved = transform(array, net.table.actions_on(name), g, net.table)
        assert moved.dtype in (array.dtype, np.float64)
        assert moved.astype(np.float64).tobytes() == whole[name].tobytes(), name


def test_every_feature_is_drawn() -> None:
    """What the strategy promises is in some of its tables."""
    seen: set[str] = set()

    @settings(max_examples=examples(150, 50), deadline=None, database=None, derandomize=True)
    @given(networks(nested=True))
    def look(net: Network) -> None:
        seen.update(type(group.perm).__name__ for group in net.table.groups)
        seen.update(group.scale for group in net.table.groups)
        for action in net.table.actions:
            names = [segment.group for segment in action.segments]
            listed = [name for name in set(names) if _listings(action, name, net.table) > 1]
            seen.update({"again"} if listed else set())
            seen.update({"runs"} if len(names) > len(set(names)) else set())
            seen.update({"inner"} if any(segment.inner > 1 for segment in action.segments) else set())
            seen.update({"blocks"} if action.blocks > 1 else set())
            seen.update({f"exponent {action.exponent} {action.eps > 0}"})
            end = sum(segment.inner * segment.count for segment in action.segments)
            seen.update({"holes"} if end < net.shapes[action.tensor][action.axis] * action.blocks else set())

    look()
    assert seen >= {"Sym", "Wreath", "Like", "Fixed", "positive", "sign", "none"}
    assert seen >= {
        "again",
        "runs",
        "inner",
        "blocks",
        "holes",
        "exponent 2 True",
        "exponent 2 False",
        "exponent 0 False",
    }


def _listings(action: AxisAction, group: str, table: Symmetry) -> int:
    return sum(segment.count for segment in action.segments if segment.group == group) // table[group].n


TABLE = Symmetry(
    (Group("a", 4, Wreath("o", 2, 2), "positive"), Group("b", 6, Wreath("o", 2, 3), "positive"), Group("c", 5, Sym(), "none")),
    (
        AxisAction("one", 0, (Segment("a", 0, 1, 4),), 1, True, "out"),
        AxisAction("two", 0, (Segment("b", 0, 1, 6),), 1, True, "out"),
        AxisAction("two", 1, (Segment("a", 0, 1, 4),), -1, True, "in", blocks=2),
        AxisAction("three", 0, (Segment("c", 0, 1, 5),), 1, True, "out"),
        AxisAction("three", 1, (Segment("b", 0, 1, 6),), -1, True, "in"),
        AxisAction("var", 0, (Segment("a", 0, 1, 4),), 2, False, "variance", eps=1e-5),
    ),
)  # fmt: skip


def example(K: int = 2, rows: int = 1) -> Weights:
    rng = np.random.default_rng(0)
    shapes = {"one": (4, 3, rows), "two": (6, 2), "three": (5, 6), "var": (4,)}
    return {name: rng.uniform(0.5, 2, (K, *shape)).astype("f4") for name, shape in shapes.items()}


def test_a_known_answer() -> None:
    """Blocks swapped, channels of a block turned; the reader divides by the scales that the writer multiplies with."""
    g = GroupElement(
        {"a": np.array([[3, 2, 0, 1]]), "b": np.array([[4, 5, 3, 1, 2, 0]]), "c": np.array([[4, 3, 2, 1, 0]])},
        {"a": np.array([[2.0, 4.0, 8.0, 16.0]]), "b": np.array([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])},
    )
    weights = {
        "one": np.arange(4.0).reshape(1, 4, 1),
        "two": np.arange(12.0).reshape(1, 6, 2),
        "three": np.arange(30.0).reshape(1, 5, 6),
        "var": np.ones((1, 4)),
    }
    made = apply(g, weights, TABLE)
    assert made["one"].ravel().tolist() == [6, 8, 0, 16]
    assert made["two"][0].tolist() == [
        [9 / 2, 8 / 4], [22 / 2, 20 / 4], [28 / 2, 24 / 4], [16 / 8, 24 / 16], [64 / 8, 80 / 16], [0, 32 / 16],
    ]  # fmt: skip
    assert made["three"][0, 0].tolist() == [28 / 1, 29 / 2, 27 / 4, 25 / 8, 26 / 16, 24 / 32]
    np.testing.assert_allclose(made["var"][0], np.array([4, 16, 64, 256]) * (1 + 1e-5) - 1e-5, rtol=1e-15)


def test_memory_beside_the_output_is_bounded() -> None:
    weights = example(4, rows=200_000)
    g = GroupElement.random(TABLE, 4, np.random.default_rng(0), spread=0.1)
    for group in ("a", "b"):
        np.maximum(g.scales[group], 1, out=g.scales[group])
    out = {name: np.empty_like(array) for name, array in weights.items()}
    tracemalloc.start()
    apply(g, weights, TABLE, out=out, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert weights["one"].nbytes > 38e6 and peak < 12e6


def test_a_scale_that_would_make_a_variance_negative_stops_every_thread(monkeypatch) -> None:
    monkeypatch.setattr(backends, "TASK", 4)
    g = GroupElement.identity(TABLE, 50)
    g.scales["a"][30, 2] = 1e-3
    with pytest.raises(
        SymmetryError, match=r"tensor 'var': scales: expected at least sqrt.*got a variance of -[0-9.e-]+ after"
    ):
        apply(g, example(50), TABLE, threads=2)


def test_warnings_of_the_caller_hold_in_every_thread(monkeypatch) -> None:
    monkeypatch.setattr(backends, "TASK", 4)
    g, weights = GroupElement.identity(TABLE, 50), example(50)
    g.scales["a"][:] = 1e30
    weights["one"] *= 1e30
    with pytest.raises(RuntimeWarning, match="overflow"):
        apply(g, weights, TABLE, threads=2)
    with np.errstate(all="ignore"):
        assert np.isinf(apply(g, weights, TABLE, threads=2)["one"]).all()


def test_checkpoints_that_are_not_finite_keep_their_bits_where_the_scales_are_one(monkeypatch) -> None:
    """Signalling NaNs too, which arithmetic would turn into quiet ones; beside others, and in torch."""
    g, weights = GroupElement.random(TABLE, 3, np.random.default_rng(0), spread=0.01), example(3)
    for scale in g.scales.values():
        scale[1] = 1
    for perm, identity in zip(g.perms.values(), GroupElement.identity(TABLE, 3).perms.values(), strict=True):
        perm[1] = identity[1]
    weights["one"].view(np.uint32)[1] = 0x7FA01234
    held = {name: torch.from_numpy(array) for name, array in weights.items()}
    for stack in (weights, held):
        made = np.asarray(apply(g, stack, TABLE)["one"])
        assert made[1].tobytes() == weights["one"][1].tobytes() and (made[0] != weights["one"][0]).any()
    monkeypatch.setattr("ckptzoo.symmetry.action.in_memory", lambda array: isinstance(array, np.ndarray))
    assert apply(g, held, TABLE)["one"][1].numpy().tobytes() == weights["one"][1].tobytes()


def test_a_scale_at_the_limit_by_float32_gives_a_variance_of_zero_everywhere(monkeypatch) -> None:
    weights, g = example(), GroupElement.identity(TABLE, 2)
    g.scales["a"][:] = np.sqrt(1e-5 / (weights["var"].astype(np.float64) + 1e-5)) * (1 - 1e-8)
    assert (apply(g, weights, TABLE)["var"] == 0).all()
    assert (transform(weights["var"], TABLE.actions_on("var"), g, TABLE) == 0).all()
    monkeypatch.setattr("ckptzoo.symmetry.action.in_memory", lambda array: isinstance(array, np.ndarray))
    held = {name: torch.from_numpy(array) for name, array in weights.items()}
    assert (apply(g, held, TABLE)["var"] == 0).all()
    with pytest.raises(SymmetryError, match="scales: expected at least sqrt"):
        apply(g, {name: array.astype(np.float64) for name, array in weights.items()}, TABLE)


def test_integers_are_moved_and_never_scaled() -> None:
    g = GroupElement.random(TABLE, 2, np.random.default_rng(0))
    weights = {**example(), "one": np.arange(24).reshape(2, 4, 3, 1)}
    made = apply(g, weights, TABLE)["one"]
    np.testing.assert_array_equal(made, np.take_along_axis(weights["one"], g.perms["a"][:, :, None, None], 1))
    assert made.dtype == weights["one"].dtype


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ({"four": np.empty((2, 4))}, "tensor 'four': expected a name among the weights, got none"),
        ({"two": np.empty((2, 6, 2))}, r"\(2, 6, 2\) float32 of numpy on cpu, got \(2, 6, 2\) float64 of numpy on cpu"),
        ({"two": np.empty((6, 2, 2), "f4")}, r"\(2, 6, 2\) float32 of numpy on cpu, got \(6, 2, 2\) float32"),
        ({"two": [[0.0]]}, "got list"),
        ({"two": np.empty((2, 2, 6), "f4").swapaxes(1, 2)}, "a contiguous array that may be written"),
        ({"two": np.broadcast_to(np.float32(0), (2, 6, 2))}, "a contiguous array that may be written"),
    ],
)
def test_places_that_do_not_fit_are_refused_with_the_reason(out, says: str) -> None:
    with pytest.raises(SymmetryError, match=says):
        apply(GroupElement.identity(TABLE, 2), example(), TABLE, out=out)


def test_weights_are_not_overwritten_in_place() -> None:
    weights = example()
    with pytest.raises(SymmetryError, match="tensor 'two': expected memory apart from the weights"):
        apply(GroupElement.identity(TABLE, 2), weights, TABLE, out={"two": weights["two"]})

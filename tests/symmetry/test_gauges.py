"""Gauges on known answers: unit norms, the order, what is reported, and what is left as it was."""

import time
from dataclasses import replace
from types import MappingProxyType
from typing import get_args

import numpy as np
import pytest
import torch

from ckptzoo import archs
from ckptzoo.errors import SymmetryError, UnknownNameError
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import (
    GAUGES,
    GaugeName,
    GroupElement,
    apply,
    canonicalize,
    fingerprint,
    ordering_keys,
    remove_softmax_shift,
)

TABLE = archs.symmetry("optunet")
ARCH = archs.architecture("optunet")
MLP = Symmetry(
    (Group("h", 3, Sym(), "positive"),),
    (
        AxisAction("a.weight", 0, (Segment("h", 0, 1, 3),), 1, True, "out"),
        AxisAction("a.bias", 0, (Segment("h", 0, 1, 3),), 1, False, "bias"),
        AxisAction("b.weight", 1, (Segment("h", 0, 1, 3),), -1, True, "in"),
    ),
)
SMALL = {
    "a.weight": np.array([[[3.0, 4.0], [0.0, -2.0], [-6.0, 8.0]]], np.float32),
    "a.bias": np.array([[10.0, 4.0, 20.0]], np.float32),
    "b.weight": np.array([[[1.0, 1.0, 1.0]]], np.float32),
    "b.bias": np.array([[7.0]], np.float32),
}


def _optunets(K: int, dtype: type = np.float32, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {tensor.name: rng.standard_normal((K, *tensor.shape)).astype(dtype) for tensor in ARCH.tensors}


def test_editors_offer_every_gauge() -> None:
    assert get_args(GaugeName) == tuple(GAUGES)


def test_a_small_network_by_hand() -> None:
    made = canonicalize(SMALL, MLP, gauge="first-weight")
    np.testing.assert_allclose(made.weights["a.weight"][0], [[-0.6, 0.8], [0, -1], [0.6, 0.8]], rtol=1e-7)
    np.testing.assert_allclose(made.weights["a.bias"][0], [2, 2, 2], rtol=1e-7)
    np.testing.assert_allclose(made.weights["b.weight"][0], [[10, 2, 5]], rtol=1e-7)
    assert made.weights["b.bias"].tolist() == [[7.0]]
    assert made.element.perms["h"].tolist() == [[2, 1, 0]]
    np.testing.assert_allclose(made.element.scales["h"], [[0.1, 0.5, 0.2]])
    assert made.report.ties.tolist() == [0] and made.report.dead.tolist() == [0]
    np.testing.assert_allclose(made.report.margin, 0.6)


def test_unit_norm_keeps_the_order() -> None:
    made = canonicalize(SMALL, MLP, gauge="unit-norm")
    np.testing.assert_allclose(made.weights["a.weight"][0], [[0.6, 0.8], [0, -1], [-0.6, 0.8]], rtol=1e-7)
    assert made.report.margin.tolist() == [np.inf]


def test_every_neuron_but_the_last_layers_has_unit_norm() -> None:
    for gauge in ("canonical", "first-weight", "unit-norm"):
        weights = canonicalize(_optunets(64), TABLE, gauge=gauge).weights
        for name in ("conv1.weight", "conv2.weight"):
            norms = np.sqrt((weights[name].astype(np.float64) ** 2).sum((2, 3, 4)))
            np.testing.assert_allclose(norms, 1, rtol=1e-6)


def test_the_order_of_a_grouped_network() -> None:
    """The first layer decides the blocks; the second layer's channels are ordered within them."""
    raw = _optunets(64)
    made = canonicalize(raw, TABLE, gauge="first-weight")
    first = made.weights["conv1.weight"][:, :, 0, 0, 0]
    second = made.weights["conv2.weight"][:, :, 0, 0, 0].reshape(64, 2, 5)
    assert (np.diff(first, axis=1) > 0).all()
    assert (np.diff(second, axis=2) > 0).all()
    swapped = made.element.perms["conv1"][:, 0] == 1
    assert 0 < swapped.sum() < 64
    assert ((made.element.perms["conv2"][:, 0] >= 5) == swapped).all()
    gaps = np.concatenate([np.diff(first, axis=1), np.diff(second, axis=2).reshape(64, -1)], axis=1)
    np.testing.assert_allclose(made.report.margin, gaps.min(axis=1), rtol=1e-4)


def test_ties_and_dead_units_are_counted() -> None:
    raw = _optunets(4)
    raw["conv2.weight"][1, 3] = 0
    raw["conv2.weight"][1, 7] = 0
    raw["conv2.weight"][2, 1] = raw["conv2.weight"][2, 4]
    raw["conv2.weight"][3, 6] = 2 * raw["conv2.weight"][3, 8]
    raw["conv1.weight"][3, 0] = raw["conv1.weight"][3, 1]
    made = canonicalize(raw, TABLE, gauge="first-weight")
    assert made.report.dead.tolist() == [0, 2, 0, 0]
    assert made.report.ties.tolist() == [0, 0, 1, 2]
    assert made.report.margin[0] > 0 and made.report.margin[2] == 0
    dead = made.element.perms["conv2"][1] % 4 == 3  # raw channels 3 and 7
    readers = np.linalg.norm(made.weights["fc.weight"][1], axis=0)
    np.testing.assert_allclose(readers[dead], 1, rtol=1e-6)


def test_dead_units_in_one_block_tie_with_each_other() -> None:
    raw = _optunets(1)
    raw["conv2.weight"][0, :3] = 0
    assert canonicalize(raw, TABLE).report.ties.tolist() == [2]


def test_near_ties_are_ordered_by_the_weights_as_they_come_out() -> None:
    raw = _optunets(4096, np.float64)
    raw["conv2.weight"][:, 3] = 3 * raw["conv2.weight"][:, 1]
    once = canonicalize(raw, TABLE, gauge="first-weight").weights
    assert (np.diff(once["conv2.weight"][:, :, 0, 0, 0].reshape(-1, 2, 5), axis=2) >= 0).all()
    twice = canonicalize(once, TABLE, gauge="first-weight").weights
    assert all((twice[name] == once[name]).all() for name in raw)


def test_a_fixed_group_keeps_its_order_and_an_unscaled_one_its_norms() -> None:
    fixed = Symmetry((Group("h", 3, Fixed(), "none"),), MLP.actions)
    made = canonicalize(SMALL, fixed)
    assert all((made.weights[name] == SMALL[name]).all() for name in SMALL)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("gauge", GAUGES)
@pytest.mark.sampled(2)
def test_diverged_checkpoints_come_back_as_they_are_and_touch_no_other(bad: float, gauge: str) -> None:
    raw = _optunets(6)
    alone = canonicalize(raw, TABLE, gauge=gauge)
    spoilt = {name: array.copy() for name, array in raw.items()}
    spoilt["conv2.weight"][2] = bad
    spoilt["fc.bias"][4, 3] = bad
    made = canonicalize(spoilt, TABLE, gauge=gauge)
    assert made.report.gauged.tolist() == [True, True, False, True, False, True]
    assert np.isnan(made.report.margin[[2, 4]]).all()
    for name in raw:
        for row in (2, 4):
            assert made.weights[name][row].tobytes() == spoilt[name][row].tobytes()
        for row in (0, 1, 3, 5):
            assert made.weights[name][row].tobytes() == alone.weights[name][row].tobytes()
    assert (made.element.perms["conv2"][2] == np.arange(10)).all()
    assert (made.element.scales["conv1"][[2, 4]] == 1).all()


def test_weights_that_would_overflow_in_the_gauge_stay_as_they_are() -> None:
    raw = _optunets(3)
    raw["conv1.weight"][1] *= 1e20
    raw["conv2.weight"][1] *= 1e20
    made = canonicalize(raw, TABLE)
    assert made.report.gauged.tolist() == [True, False, True]
    assert all((made.weights[name][1] == raw[name][1]).all() for name in raw)


def test_tiny_and_huge_neurons_are_normalised_without_underflow_or_overflow() -> None:
    raw = _optunets(2, np.float64)
    raw["conv1.weight"][0] *= 1e-200
    raw["conv1.weight"][1] *= 1e200
    made = canonicalize(raw, TABLE, gauge="unit-norm")
    norms = np.sqrt((made.weights["conv1.weight"] ** 2).sum((2, 3, 4)))
    np.testing.assert_allclose(norms, 1, rtol=1e-12)
    assert made.report.gauged.all() and not made.report.dead.any()


def test_nothing_but_diverged_checkpoints_and_no_checkpoint_at_all() -> None:
    raw = {name: np.full_like(array, np.nan) for name, array in _optunets(2).items()}
    assert not canonicalize(raw, TABLE).report.gauged.any()
    none = canonicalize({name: array[:0] for name, array in raw.items()}, TABLE)
    assert len(none.element) == 0 and none.weights["fc.weight"].shape == (0, 10, 10)


def test_raw_weights_are_never_changed() -> None:
    raw = _optunets(3)
    before = {name: array.copy() for name, array in raw.items()}
    canonicalize(MappingProxyType(raw), TABLE)
    assert all((raw[name] == before[name]).all() for name in raw)


def test_an_unknown_gauge_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="first-weight"):
        canonicalize(SMALL, MLP, gauge="first-weigth")


def test_first_weight_needs_a_tensor_that_writes_the_group() -> None:
    with pytest.raises(SymmetryError, match="group 'h': expected a tensor that writes it"):
        readers = Symmetry(MLP.groups, MLP.actions[2:])
        canonicalize(SMALL, readers, gauge="first-weight")


def test_thousands_of_checkpoints_take_a_moment() -> None:
    raw = _optunets(8192)
    canonicalize({name: array[:8] for name, array in raw.items()}, TABLE)
    start = time.process_time()
    made = canonicalize(raw, TABLE)
    assert time.process_time() - start < 1.0
    assert made.report.gauged.all()
    same = apply(made.element, raw, TABLE)
    assert all(same[name].tobytes() == made.weights[name].tobytes() for name in raw)


def test_canonical_by_hand() -> None:
    """Sums of unit-norm incoming weights: 1.4, -1 and 0.2."""
    made = canonicalize(SMALL, MLP)
    np.testing.assert_allclose(made.weights["a.weight"][0], [[0, -1], [-0.6, 0.8], [0.6, 0.8]], rtol=1e-7)
    assert made.element.perms["h"].tolist() == [[1, 2, 0]]
    np.testing.assert_allclose(made.report.margin, 1.2, rtol=1e-7)
    np.testing.assert_allclose(ordering_keys(SMALL, MLP)["h"], [[1.4, -1, 0.2]], rtol=1e-7)


def test_unit_std_by_hand() -> None:
    made = canonicalize(SMALL, MLP, gauge="unit-std")
    np.testing.assert_allclose(made.weights["a.weight"].std(axis=2), 1, rtol=1e-6)
    np.testing.assert_allclose(made.element.scales["h"], [[2, 1, 1 / 7]])


NORMED = Symmetry(
    (Group("c", 2, Sym(), "positive"), Group("n", 2, Like("c"), "positive")),
    (
        AxisAction("conv", 0, (Segment("c", 0, 1, 2),), 1, True, "out"),
        AxisAction("mean", 0, (Segment("c", 0, 1, 2),), 1, False, "mean"),
        AxisAction("var", 0, (Segment("c", 0, 1, 2),), 2, False, "variance", eps=0.5),
        AxisAction("gamma", 0, (Segment("n", 0, 1, 2),), 1, True, "gain"),
        AxisAction("beta", 0, (Segment("n", 0, 1, 2),), 1, False, "shift"),
        AxisAction("last", 1, (Segment("n", 0, 1, 2),), -1, True, "in"),
    ),
)


def test_a_normalised_network_by_hand() -> None:
    """Filter 0 is clamped at sqrt(0.5 / (1.5 + 0.5)) = 1/2; gamma 0 leaves the shift to scale channel 1."""
    weights = {
        "conv": np.array([[[3.0, 4.0], [0.0, 0.5]]]),
        "mean": np.array([[2.0, 1.0]]),
        "var": np.array([[1.5, 1.0]]),
        "gamma": np.array([[-4.0, 0.0]]),
        "beta": np.array([[2.0, 5.0]]),
        "last": np.array([[[1.0, 2.0]]]),
    }
    made = canonicalize(weights, NORMED, gauge="unit-norm")
    assert made.report.clamped.tolist() == [1] and made.report.dead.tolist() == [0]
    expected = {
        "conv": [[1.5, 2], [0, 1]],
        "mean": [1, 2],
        "var": [0, 5.5],
        "gamma": [-1, 0],
        "beta": [0.5, 1],
        "last": [[4, 10]],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(made.weights[name][0], values, rtol=1e-12, err_msg=name)
    assert canonicalize(weights, NORMED).element.perms["n"].tolist() == [[1, 0]]


SIGNED = Symmetry(
    (Group("c", 2, Sym(), "nonzero"), Group("n", 2, Like("c"), "positive")),
    tuple(
        replace(action, signs=(Segment("c", 0, 1, 2),)) if action.role == "gain" else action
        for action in NORMED.actions
    ),
)
"""The same network; the gains take the signs of what they normalise."""


def test_gains_become_positive_and_take_the_filters_along() -> None:
    """Where a gain is 0 the sum of the filter becomes positive; a filter whose sum is 0 then has no sign."""
    weights = {
        "conv": np.array([[[3.0, 4.0], [0.0, -1.0]]]),
        "mean": np.array([[2.0, 1.0]]),
        "var": np.array([[25.0, 1.0]]),
        "gamma": np.array([[-4.0, 0.0]]),
        "beta": np.array([[2.0, 5.0]]),
        "last": np.array([[[1.0, 2.0]]]),
    }
    made = canonicalize(weights, SIGNED, gauge="unit-norm")
    np.testing.assert_allclose(made.element.scales["c"], [[-0.2, -1]])
    expected = {"conv": [[-0.6, -0.8], [0, 1]], "mean": [-0.4, -1], "gamma": [1, 0], "beta": [0.5, 1]}
    for name, values in expected.items():
        np.testing.assert_allclose(made.weights[name][0], values, rtol=1e-12, err_msg=name)
    assert not made.report.unresolved.any()
    weights["conv"][0, 1] = 1, -1
    assert not canonicalize(weights, SIGNED).report.unresolved.any()  # the running mean decides
    weights["mean"][0, 1] = 0
    assert canonicalize(weights, SIGNED).report.unresolved.tolist() == [True]
    weights["gamma"][0, 1] = -1e-300
    assert not canonicalize(weights, SIGNED).report.unresolved.any()


def test_a_zero_filter_takes_its_size_from_the_variance() -> None:
    weights = {name: np.zeros((1, *shape)) for name, shape in {"conv": (2, 3), "last": (1, 2)}.items()}
    weights |= {name: np.zeros((1, 2)) for name in ("mean", "gamma", "beta")} | {"var": np.array([[0.0, 4.0]])}
    made = canonicalize(weights, NORMED, gauge="unit-norm")
    np.testing.assert_allclose(made.weights["var"], [[1, 1]], rtol=1e-11)
    assert made.report.dead.tolist() == [2]


def test_an_odd_activation_makes_every_sum_positive() -> None:
    table = Symmetry((Group("h", 3, Sym(), "sign"),), MLP.actions)
    made = canonicalize(SMALL, table)
    assert made.weights["a.weight"][0].tolist() == [[0, 2], [-6, 8], [3, 4]]
    assert made.weights["a.bias"].tolist() == [[-4, 20, 10]] and made.weights["b.weight"].tolist() == [[[-1, 1, 1]]]
    opposite = {**SMALL, "a.weight": np.array([[[1.0, -1.0], [0, 1], [0, 1]]]), "a.bias": np.zeros((1, 3))}
    assert canonicalize(opposite, table).report.unresolved.tolist() == [True]


def test_the_softmax_shift_is_removed_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    raw = _optunets(3)
    shifted = dict(raw)
    shifted["fc.weight"] = raw["fc.weight"] + rng.standard_normal((3, 1, 10)).astype(np.float32)
    shifted["fc.bias"] = raw["fc.bias"] + rng.standard_normal((3, 1)).astype(np.float32)
    one, two = (remove_softmax_shift(weights, "optunet") for weights in (raw, shifted))
    for name in raw:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one["fc.weight"].sum(axis=1), 0, atol=1e-5)
    assert one["conv2.weight"].tobytes() == raw["conv2.weight"].tobytes()
    difference = raw["fc.weight"] - one["fc.weight"]
    np.testing.assert_allclose(difference, np.broadcast_to(difference[:, :1], difference.shape), atol=1e-6)
    with pytest.raises(SymmetryError, match="the last layer"):
        remove_softmax_shift(raw, Symmetry(TABLE.groups[:0], ()))


def test_a_network_without_hidden_channels_has_nothing_to_canonicalize() -> None:
    with pytest.raises(SymmetryError, match="at least one group"):
        canonicalize({"fc1.weight": np.ones((2, 2, 3)), "fc1.bias": np.ones((2, 2))}, "mlp-3-2")


def test_torch_weights_come_back_as_tensors_with_the_same_bits() -> None:
    raw = _optunets(3)
    made = canonicalize({name: torch.from_numpy(array) for name, array in raw.items()}, "optunet")
    for name, array in canonicalize(raw, TABLE).weights.items():
        assert made.weights[name].numpy().tobytes() == array.tobytes()
    halves = {name: torch.from_numpy(array).bfloat16() for name, array in raw.items()}
    assert canonicalize(halves, "optunet").weights["fc.weight"].dtype == torch.float32


@pytest.mark.parametrize("gauge", GAUGES)
def test_a_checkpoint_whose_scales_have_no_number_stays_as_it_is_beside_others(gauge: str) -> None:
    raw = _optunets(3, np.float64)
    raw["conv1.weight"][1] = 5e-324
    made = canonicalize(raw, TABLE, gauge=gauge)
    assert made.report.gauged.tolist() == [True, False, True]
    assert all((made.weights[name][1] == raw[name][1]).all() for name in raw)


def _shared(n: int) -> Symmetry:
    """relu(i x), then relu(w .) twice with the same weights and bias, then a layer of two channels and a last one."""
    h, v = Segment("h", 0, 1, n), Segment("v", 0, 1, 2)
    return Symmetry(
        (Group("h", n, Sym(), "positive"), Group("v", 2, Sym(), "positive")),
        (
            AxisAction("i.weight", 0, (h,), 1, True, "out"),
            AxisAction("i.bias", 0, (h,), 1, False, "bias"),
            AxisAction("w.weight", 0, (h,), 1, True, "out"),
            AxisAction("w.weight", 1, (h,), -1, True, "in"),
            AxisAction("w.bias", 0, (h,), 1, False, "bias"),
            AxisAction("v.weight", 0, (v,), 1, True, "out"),
            AxisAction("v.weight", 1, (h,), -1, True, "in"),
            AxisAction("o.weight", 1, (v,), -1, True, "in"),
        ),
    )


# For each case the channels that nothing but the shared weight writes, and which channels write which by it.
_LOOPS = {
    "one": ([2], {}),
    "a chain": ([1, 2], {1: [2, 3], 2: [4]}),
    "itself and the next layer": ([2], {2: [2]}),
    "itself and one that is settled later": ([1, 2], {1: [1], 2: [1, 2]}),
    "two that write each other": ([1, 2], {1: [2], 2: [1]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("case", _LOOPS)
def test_channels_that_only_a_shared_weight_writes_have_one_scale(case: str, silent: bool) -> None:
    n, copies = 5, 4
    rng, table = np.random.default_rng(0), _shared(n)
    shapes = {"i.weight": (n, 3), "i.bias": (n,), "w.weight": (n, n), "w.bias": (n,), "v.weight": (2, n)}
    raw = {name: rng.standard_normal((1, *shape)) for name, shape in {**shapes, "o.weight": (2, 2)}.items()}
    loose, writers = _LOOPS[case]
    for name in ("i.weight", "i.bias", "w.bias"):
        raw[name][:, loose] = 0
    for channel, others in writers.items():
        raw["w.weight"][:, channel, [other for other in range(n) if other not in others]] = 0
    if silent:
        raw["v.weight"][:, :, loose] = 0
        raw["w.weight"][:, :, loose] = np.where(np.isin(np.arange(n), loose)[:, None], raw["w.weight"][:, :, loose], 0)
    stacked = {name: np.repeat(array, copies, 0) for name, array in raw.items()}
    g = GroupElement.random(table, copies, np.random.default_rng(1))
    made = canonicalize(apply(g, stacked, table), table)
    cut_off = silent and case in ("itself and one that is settled later", "two that write each other")
    assert made.report.unresolved.tolist() == [cut_off] * copies
    if not cut_off:
        assert len(set(fingerprint(made))) == 1
        for name, array in made.weights.items():
            np.testing.assert_allclose(array, np.broadcast_to(array[:1], array.shape), rtol=1e-9, err_msg=name)
    for gauge in ("canonical", "unit-norm"):
        once = canonicalize(stacked, table, gauge=gauge).weights
        again = canonicalize(once, table, gauge=gauge).weights
        assert all((again[name] == once[name]).all() for name in once)

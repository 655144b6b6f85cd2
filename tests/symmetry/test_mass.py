"""The least mass on known answers: closed forms, equal layers, degenerate channels, rounding, and what is refused."""

import numpy as np
import pytest
import torch

from ckptzoo.errors import SymmetryError, UnknownNameError
from ckptzoo.schema.groups import AxisAction, Group, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import apply, canonicalize, min_mass
from tests.support.mass_networks import PLAIN, Net, Weights, known, layer, mass, residual, whole


def test_two_layers_are_one_step() -> None:
    """Every hidden unit ends at the mean of its two norms: sum 2 |w_in| |w_out|."""
    net = known("mlp-5-7-3")
    raw = net.weights(4, 0)
    made = min_mass(raw, net.table)
    into = np.linalg.norm(raw["fc1.weight"], axis=2)
    out_of = np.linalg.norm(raw["fc2.weight"], axis=1)
    np.testing.assert_allclose(made.scales["fc1"], np.sqrt(out_of / into), rtol=1e-14)
    np.testing.assert_allclose(made.mass_after, 2 * (into * out_of).sum(axis=1), rtol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(made.weights["fc1.weight"], axis=2), np.sqrt(into * out_of), rtol=1e-14)
    np.testing.assert_allclose(made.weights["fc1.bias"], raw["fc1.bias"] * made.scales["fc1"], rtol=1e-14)
    assert made.gap.tolist() == [2.0**-52] * 4 and made.iterations.tolist() == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3, 5, 10, 20, 50])
@pytest.mark.parametrize("width", [1, 3, 24])
@pytest.mark.sampled(2)
def test_all_layers_of_a_perceptron_have_equal_norms(depth: int, width: int) -> None:
    net = known("mlp-4" + f"-{width}" * (depth - 1) + "-3")
    raw = apply(net.scalings(2, 1, 10.0), net.weights(2, 0), net.table)
    made = min_mass(raw, net.table)
    norms = [np.square(array).sum(axis=(1, 2)) for name, array in made.weights.items() if name.endswith("weight")]
    np.testing.assert_allclose(norms, np.broadcast_to(norms[0], np.shape(norms)), rtol=1e-10)
    assert (made.gap <= 1e-13).all() and made.iterations.max() <= 12


def test_a_chain_of_single_channels_has_the_geometric_mean() -> None:
    net = known("mlp-1-1-1-1")
    raw = {name: np.full((1, *shape), 1.0) for name, shape in net.shapes.items()}
    raw |= {"fc1.weight": np.full((1, 1, 1), 2.0), "fc2.weight": np.full((1, 1, 1), 27.0)}
    raw |= {"fc3.weight": np.full((1, 1, 1), -4.0)}
    np.testing.assert_allclose(min_mass(raw, net.table).mass_after, 3 * (2 * 27 * 4) ** (2 / 3), rtol=1e-14)


def test_tensors_that_the_table_does_not_name_count_where_they_have_two_axes() -> None:
    net = known("mlp-3-4-2")
    raw = net.weights(1, 0)
    made = min_mass({**raw, "other": np.full((1, 2, 3), 2.0), "other.bias": np.full((1, 5), 9.0)}, net.table)
    plain = min_mass(raw, net.table)
    np.testing.assert_allclose(made.mass_after - plain.mass_after, 24, rtol=1e-12)
    assert made.weights["other"].tolist() == np.full((1, 2, 3), 2.0).tolist()


def dead(net: Net) -> tuple[Weights, int]:
    """A deep perceptron with one channel of each kind that has no least mass: 1 dead, 1 constant, 1 unread, 2 behind."""
    raw = net.weights(2, 3)
    raw["fc1.weight"][:, 0] = raw["fc1.bias"][:, 0] = 0  # nothing writes it
    raw["fc1.weight"][:, 1] = 0  # a constant
    raw["fc2.weight"][:, :, 2] = 0  # nothing reads it
    raw["fc2.weight"][:, 3, 3:] = 0  # reads the dead and the constant alone
    raw["fc3.weight"][:, 0, :3] = raw["fc3.weight"][:, 0, 4:] = 0  # reads that one alone
    return raw, 5


def test_degenerate_channels_are_dropped_and_their_scale_does_not_matter() -> None:
    net = known("mlp-3-6-5-4-2")
    raw, count = dead(net)
    made = min_mass(raw, net.table)
    assert made.degenerate.tolist() == [count] * 2 and (made.gap <= 1e-15).all()
    for name, number in (("fc1", 0), ("fc1", 1), ("fc1", 2), ("fc2", 3), ("fc3", 0)):
        scales = {group.id: np.ones((2, group.n)) for group in net.table.groups}
        scales[name][:, number] = 10.0
        element = net.scalings(2, 0)
        again = min_mass(apply(type(element)(element.perms, scales), raw, net.table), net.table)
        np.testing.assert_allclose(again.mass_after, made.mass_after, rtol=1e-13)
        for tensor, array in made.weights.items():
            np.testing.assert_allclose(again.weights[tensor], array, rtol=1e-9, atol=1e-12, err_msg=tensor)
    np.testing.assert_allclose(np.linalg.norm(made.weights["fc2.weight"][:, :, 0], axis=1), 1)  # who reads the dead
    np.testing.assert_allclose(np.abs(made.weights["fc1.bias"][:, 1]), 1)
    np.testing.assert_allclose(np.linalg.norm(made.weights["fc1.weight"][:, 2], axis=1), 1)


def test_the_mass_of_what_is_left_is_that_of_the_smaller_network() -> None:
    net, small = known("mlp-3-6-5-4-2"), known("mlp-3-3-4-3-2")
    raw, _ = dead(net)
    rows, columns = {"1": [3, 4, 5], "2": [0, 1, 2, 4], "3": [1, 2, 3], "4": [0, 1]}, {"1": [0, 1, 2]}
    columns |= {"2": rows["1"], "3": rows["2"], "4": rows["3"]}
    cut = {f"fc{i}.weight": raw[f"fc{i}.weight"][:, rows[i]][:, :, columns[i]] for i in rows}
    cut |= {f"fc{i}.bias": raw[f"fc{i}.bias"][:, rows[i]] for i in rows}
    one, two = min_mass(raw, net.table), min_mass(cut, small.table)
    np.testing.assert_allclose(one.mass_after, two.mass_after, rtol=1e-13)
    np.testing.assert_allclose(one.mass_before, mass(cut, small.table), rtol=1e-13)
    assert two.degenerate.tolist() == [0, 0]


def test_a_stream_that_its_first_layer_does_not_write_is_certified() -> None:
    """The order of groups does not say where such a channel gets its mass from."""
    net = residual(3, 6, 4)
    raw = net.weights(2, 1)
    raw["first"][0, 2] = raw["jump"][0, 2] = 0
    raw["first"][1, 3] *= 1e-20
    raw["jump"][1, 3] *= 1e-20
    made = min_mass(raw, net.table)
    assert (made.gap <= 1e-14).all() and made.degenerate.tolist() == [0, 0]


def test_an_all_zero_network_is_left_alone() -> None:
    net = known("mlp-3-4-4-2")
    made = min_mass({name: np.zeros((1, *shape)) for name, shape in net.shapes.items()}, net.table)
    assert made.degenerate.tolist() == [8] and made.mass_after.tolist() == [0.0] and made.gap.tolist() == [2.0**-52]


@pytest.mark.parametrize("factor", [1e150, 1e-150, 1e60])
def test_no_square_overflows_or_vanishes(factor: float) -> None:
    net = known("mlp-3-4-5-4-2")
    raw = net.weights(2, 1)
    expected = min_mass(raw, net.table)
    rescaled = {**raw, "fc1.weight": raw["fc1.weight"] * factor, "fc3.weight": raw["fc3.weight"] / factor}
    rescaled |= {"fc1.bias": raw["fc1.bias"] * factor, "fc2.bias": raw["fc2.bias"] * factor}
    made = min_mass(rescaled, net.table)
    np.testing.assert_allclose(made.mass_after, expected.mass_after, rtol=1e-12)
    for name, array in expected.weights.items():
        np.testing.assert_allclose(made.weights[name], array, rtol=1e-8, err_msg=name)


def test_elements_of_one_tensor_may_differ_by_more_than_squares_can_hold() -> None:
    net = known("mlp-3-4-2")
    raw = net.weights(1, 0)
    raw["fc1.weight"][:, 0] *= 1e-150
    raw["fc1.weight"][:, 1] *= 1e150
    made = min_mass(raw, net.table)
    into, out_of = np.linalg.norm(raw["fc1.weight"] / [[[1e-150], [1e150], [1], [1]]], axis=2), raw["fc2.weight"]
    expected = 2 * (into * [[1e-150, 1e150, 1, 1]] * np.linalg.norm(out_of, axis=1)).sum(axis=1)
    np.testing.assert_allclose(made.mass_after, expected, rtol=1e-13)
    assert made.degenerate.tolist() == [0]
    np.testing.assert_allclose(
        np.linalg.norm(made.weights["fc1.weight"][0, 0]), np.linalg.norm(made.weights["fc2.weight"][0, :, 0]), rtol=1e-9
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_diverged_checkpoint_stays_as_it_was_and_touches_no_other(bad: float) -> None:
    net = known("optunet")
    raw = net.weights(5, 0, np.float32)
    alone = min_mass(raw, net.table)
    spoilt = {name: array.copy() for name, array in raw.items()}
    spoilt["conv2.weight"][1, 3] = bad
    spoilt["fc.bias"][3, 0] = bad
    made = min_mass(spoilt, net.table)
    assert np.isnan(made.gap).tolist() == [False, True, False, True, False]
    for figure in (made.mass_before, made.mass_after, made.imbalance):
        assert np.isnan(figure[[1, 3]]).all() and np.isfinite(figure[[0, 2, 4]]).all()
    for name in raw:
        for row in (1, 3):
            assert made.weights[name][row].tobytes() == spoilt[name][row].tobytes()
        for row in (0, 2, 4):
            assert made.weights[name][row].tobytes() == alone.weights[name][row].tobytes()


def test_weights_that_would_overflow_stay_as_they_are() -> None:
    net = known("mlp-1-2-1")
    raw = {name: np.ones((2, *shape), np.float32) for name, shape in net.shapes.items()}
    raw["fc1.bias"][1], raw["fc2.weight"][1] = 1e38, 1e10
    made = min_mass(raw, net.table)
    assert np.isnan(made.gap).tolist() == [False, True]
    assert all((made.weights[name][1] == raw[name][1]).all() for name in raw)
    assert (made.scales["fc1"][1] == 1).all()


def test_torch_and_halves_and_threads() -> None:
    net = known("optunet")
    raw = net.weights(3, 0, np.float32)
    expected = min_mass(raw, "optunet", threads=1)
    made = min_mass({name: torch.from_numpy(array) for name, array in raw.items()}, "optunet", threads=2)
    for name, array in expected.weights.items():
        assert made.weights[name].numpy().tobytes() == array.tobytes()
    halves = min_mass({name: torch.from_numpy(array).bfloat16() for name, array in raw.items()}, "optunet")
    assert halves.weights["fc.weight"].dtype == torch.float32 and (halves.gap <= 1e-14).all()


def test_the_gauge_has_the_same_weights() -> None:
    for net in PLAIN:
        raw = net.weights(3, 0, np.float32)
        raw["one" if "one" in raw else next(iter(raw))][1, 0] = 0
        made, gauge = min_mass(raw, net.table), canonicalize(raw, net.table, gauge="min-mass")
        for name, array in made.weights.items():
            assert gauge.weights[name].tobytes() == array.tobytes(), (net, name)
        assert gauge.report.dead.tolist() == made.degenerate.tolist()
        assert not gauge.report.unresolved.any()


def test_a_variational_network_is_scaled_for_the_sum_of_both_squares() -> None:
    """Means and deviations are along a last axis: m = mean^2 + deviation^2."""
    net = known("mlp-3-4-4-2")
    mean, deviation = net.weights(2, 0), net.weights(2, 1)
    both = {name: np.stack([mean[name], np.abs(deviation[name])], axis=-1) for name in mean}
    made = min_mass(both, net.table)
    joined = {name: np.sqrt(np.square(array).sum(axis=-1)) for name, array in both.items()}
    plain = min_mass(joined, net.table)
    for group, scale in plain.scales.items():
        np.testing.assert_allclose(made.scales[group], scale, rtol=1e-10)
    np.testing.assert_allclose(made.weights["fc2.weight"][..., 0], apply_one(made.scales, mean), rtol=1e-14)


def apply_one(scales: dict[str, np.ndarray], mean: Weights) -> np.ndarray:
    return mean["fc2.weight"] / scales["fc1"][:, None] * scales["fc2"][:, :, None]


def test_what_is_no_network_of_channels_is_refused() -> None:
    group, other = Group("h", 2, Sym(), "positive"), Group("g", 2, Sym(), "positive")
    actions = (*layer("a", ("h", 2), None), AxisAction("a", 1, whole("g", 2), 1, True, "out"))
    with pytest.raises(SymmetryError, match="at most one that writes channels"):
        min_mass({"a": np.ones((1, 2, 2))}, Symmetry((group, other), actions))
    with pytest.raises(UnknownNameError, match="newton"):
        min_mass({}, "optunet", engine="newtown")
    with pytest.raises(UnknownNameError, match="eval_chain"):
        min_mass(known("optunet").weights(1, 0), "optunet", formulation="eval-chain")
    with pytest.raises(SymmetryError, match="at least one group"):
        min_mass({"fc1.weight": np.ones((2, 2, 3)), "fc1.bias": np.ones((2, 2))}, "mlp-3-2")

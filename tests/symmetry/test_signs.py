"""Signs in front of a BatchNorm: a filter, its bias, its running mean and its gain change sign together."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ckptzoo import archs
from ckptzoo.errors import SpecError, SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, count, fingerprint

ARCH = "resnet8-pad-3"
K = 6


def weights_of(seed: int) -> dict[str, np.ndarray]:
    """K random networks with running statistics and gains of both signs."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for tensor in archs.architecture(ARCH).tensors:
        values = rng.standard_normal((K, *tensor.shape))
        if tensor.name.endswith("running_var"):
            values = 0.5 + np.abs(values)
        made[tensor.name] = np.zeros((K, *tensor.shape), np.int64) if "tracked" in tensor.name else values
    return made


def signs_alone(table: Symmetry, seed: int) -> GroupElement:
    """Random signs; no channel is moved or resized."""
    rng, made = np.random.default_rng(seed), GroupElement.identity(table, K)
    for group in table.groups:
        if group.flips:
            made.scales[group.id][:] = rng.choice([-1.0, 1.0], (K, group.n))
    return made


def test_a_resnet18_has_as_many_signs_as_channels_in_front_of_batch_norms() -> None:
    counts = count("resnet18-100")
    filters = sum(tensor.shape[0] for tensor in archs.architecture("resnet18-100").tensors if len(tensor.shape) == 4)
    assert counts.signs == filters == 4800
    assert {group.signs for group in counts.groups if group.scaling_train} == {0}
    assert count("optunet").signs == 0


@pytest.mark.parametrize("training", [False, True])
def test_the_function_stays_as_it_is_in_both_modes(training: bool) -> None:
    """Exactly but for the order of sums: a factor of -1 rounds nothing, and the variance of -x is that of x."""
    table, raw = archs.symmetry(ARCH), weights_of(0)
    turned = apply(signs_alone(table, 1), raw, table)
    images = torch.from_numpy(np.random.default_rng(2).standard_normal((4, 3, 32, 32)))
    model = archs.get(ARCH)().double().train(training)
    for row in range(2):
        outputs = []
        for stack in (raw, turned):
            model.load_state_dict({name: torch.from_numpy(np.array(array[row])) for name, array in stack.items()})
            with torch.no_grad():
                outputs.append(model(images).numpy())
        np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-11, atol=1e-11 * np.abs(outputs[0]).max())
    assert any((turned[name] != raw[name]).any() for name in raw if name.endswith("bn1.weight"))
    for name in raw:
        if name.endswith("running_var"):
            np.testing.assert_array_equal(turned[name], raw[name])


def test_networks_in_disguise_come_to_the_same_bits() -> None:
    table, raw = archs.symmetry(ARCH), weights_of(3)
    plain = canonicalize(raw, ARCH)
    for seed in range(3):
        made = canonicalize(apply(signs_alone(table, seed), raw, table), ARCH)
        for name, array in plain.weights.items():
            np.testing.assert_array_equal(made.weights[name], array, name)
        assert fingerprint(made) == fingerprint(plain)
    gains = [name for name, array in plain.weights.items() if name.endswith("weight") and array.ndim == 2]
    assert gains and all((plain.weights[name] > 0).all() for name in gains)
    assert not plain.report.unresolved.any()


TABLE = Symmetry(
    (Group("before", 3, Sym(), "nonzero"), Group("after", 3, Like("before"), "positive")),
    (
        AxisAction("w", 0, (Segment("before", 0, 1, 3),), 1, True, "out"),
        AxisAction("gain", 0, (Segment("after", 0, 1, 3),), 1, True, "gain", signs=(Segment("before", 0, 1, 3),)),
    ),
)


def test_a_table_with_signs_comes_back_from_json_and_one_without_has_no_such_field() -> None:
    content = TABLE.to_json()
    assert Symmetry.from_json(content) == TABLE and content["actions"][1]["signs"][0]["group"] == "before"
    assert not any("signs" in action for action in archs.symmetry("optunet").to_json()["actions"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"segments": (Segment("before", 0, 1, 3),)}, "other groups than those of the gain, got 'before'"),
        ({"signs": (Segment("nobody", 0, 1, 3),)}, "unknown group 'nobody'"),
        ({"signs": (Segment("after", 0, 1, 3),)}, "groups whose scales have signs, got 'after' of scale 'positive'"),
        ({"signs": (Segment("before", 1, 1, 3),)}, "channels that are permuted with those of the axis"),
        ({"signs": (Segment("before", 0, 1, 2),)}, "every channel of 'before', got the first 2 of 3"),
        ({"signs": (Segment("other", 0, 1, 3),)}, "channels that are permuted with those of the axis"),
        ({"role": "bias"}, "none, but for a gain of exponent 1"),
        ({"exponent": -1}, "none, but for a gain of exponent 1"),
    ],
)
def test_signs_that_make_no_sense_are_refused(change: dict, expected: str) -> None:
    other = Group("other", 3, Sym(), "sign")
    action = AxisAction("v", 0, (Segment("other", 0, 1, 3),), 1, True, "out")
    with pytest.raises(SpecError, match=expected):
        Symmetry((*TABLE.groups, other), (TABLE.actions[0], replace(TABLE.actions[1], **change), action))


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_scales_of_either_sign_are_finite_and_not_zero(value: float) -> None:
    element = GroupElement.identity(TABLE, 1)
    element.scales["before"][0] = -0.5
    element.check(TABLE)
    made = apply(element, {"w": np.ones((1, 3, 2)), "gain": np.ones((1, 3))}, TABLE)
    assert (made["w"] == -0.5).all() and (made["gain"] == -1).all()
    element.scales["before"][0, 1] = value
    with pytest.raises(SymmetryError, match="finite numbers other than 0"):
        element.check(TABLE)

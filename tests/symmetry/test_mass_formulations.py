"""What moves in front of BatchNorms: the functions stay, closed forms, constraints, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, min_mass, trace
from ckptzoo.symmetry.arrays import positions
from ckptzoo.symmetry.mass.formulations import FORMULATIONS
from tests.support.mass_networks import PLAIN, SMALL, Net, Weights, known, layer, mass, small, whole


def trained(net: Net, K: int, seed: int) -> Weights:
    """Weights as after training: negative and zero gains, tiny variances, filters of zeros."""
    rng = np.random.default_rng(seed)
    made = net.weights(K, seed)
    for name, array in made.items():
        if name.endswith("running_var"):
            array[:, rng.integers(array.shape[1])] = 3e-6
        if name.endswith("running_mean"):
            array *= 0.1
    return made


def outputs(module: nn.Module, weights: Weights, row: int, images: torch.Tensor) -> np.ndarray:
    state = {name: torch.tensor(array[row]) for name, array in weights.items()}
    with torch.no_grad():
        return torch.func.functional_call(module.double().eval(), state, (images,)).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("resnet18-10", marks=pytest.mark.exhaustive), "resnet20-pad-10", "resnet20-conv-10"]
)
def test_every_formulation_keeps_the_function_in_evaluation_mode(name: str) -> None:
    net, module = known(name), archs.get(name)()
    raw = trained(net, 1, 0)
    images = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3, 8, 8)))
    expected = outputs(module, raw, 0, images)
    found = {}
    for formulation in FORMULATIONS:
        made = min_mass(raw, net.table, formulation=formulation)
        assert (made.gap <= 1e-13).all() and made.iterations.max() <= 15
        np.testing.assert_allclose(made.mass_after, mass(made.weights, net.table), rtol=1e-12)
        found[formulation] = made.mass_after[0]
        gap = np.abs(outputs(module, made.weights, 0, images) - expected).max()
        assert gap <= 1e-10 * np.abs(expected).max(), formulation
    assert found["eval_chain"] < found["volume"] < found["pinned"] < mass(raw, net.table)[0]


@pytest.mark.parametrize("net", SMALL, ids=str)
def test_pinned_is_the_closed_form(net: Net) -> None:
    raw = trained(net, 3, 1)
    made = min_mass(raw, net.table)
    pinned = {item.group for act in net.table.actions if act.exponent == 2 for item in act.segments}
    expected = np.square(raw["conv1.weight"]).reshape(3, -1).sum(axis=1)  # reads inputs alone
    for group in net.table.groups:
        if group.id in pinned:
            assert (made.scales[group.id] == 1).all()
            continue
        into, out_of = np.zeros((2, 3, group.n))
        for act in net.table.actions:
            if not act.in_mass or act.exponent == 0:
                continue
            squares = np.square(raw[act.tensor])
            flat = np.moveaxis(squares, act.axis + 1, 1).reshape(3, squares.shape[act.axis + 1], -1).sum(axis=2)
            for name, places in positions(act, net.table):
                if name == group.id:
                    (into if act.exponent == 1 else out_of)[:] += flat[:, places[:, 0]]
        expected = expected + 2 * np.sqrt(into * out_of).sum(axis=1)
        np.testing.assert_allclose(made.scales[group.id], (out_of / into) ** 0.25, rtol=1e-13)
    np.testing.assert_allclose(made.mass_after, expected, rtol=1e-13)
    for name in ("conv2.weight", "conv1.weight"):
        scale = made.scales["one"][:, None, :, None, None] if name == "conv2.weight" else 1
        np.testing.assert_allclose(made.weights[name], raw[name] / scale, rtol=1e-15)


@pytest.mark.parametrize("net", SMALL, ids=str)
def test_volume_fills_every_layer_to_one_level_above_its_bounds(net: Net) -> None:
    raw = trained(net, 4, 2)
    raw["bn2.running_var"][:, 1] = 0.0  # its filter cannot shrink at all
    made = min_mass(raw, net.table, formulation="volume")
    clamped = 0
    for act in net.table.actions:
        if act.exponent != 2:
            continue
        listed = positions(act, net.table)
        scale = np.concatenate([made.scales[name] for name, _ in listed], axis=1)
        order = np.concatenate([places[:, 0] for _, places in listed])
        np.testing.assert_allclose(np.log(scale).sum(axis=1), 0, atol=1e-12)
        variance = raw[act.tensor][:, order]
        least = np.sqrt(act.eps / (variance + act.eps))
        assert (scale >= least * (1 - 1e-15)).all() and (made.weights[act.tensor] >= 0).all()
        conv = made.weights[act.tensor.replace("bn", "conv").replace("running_var", "weight")][:, order]
        flow = np.square(conv).reshape(*conv.shape[:2], -1).sum(axis=2)
        free = scale > least * (1 + 1e-12)
        clamped += (~free).sum()
        for row in range(4):
            level = flow[row][free[row]].mean()
            np.testing.assert_allclose(flow[row][free[row]], level, rtol=1e-11)
            assert (flow[row] >= level * (1 - 1e-11)).all()
    assert clamped > 0
    element = GroupElement(GroupElement.identity(net.table, 4).perms, made.scales)
    for name, array in apply(element, raw, net.table).items():
        np.testing.assert_array_equal(array, made.weights[name], err_msg=name)


def test_gains_and_filters_of_zeros_in_every_formulation() -> None:
    """A gain of 0 cuts its filter off in eval_chain, a filter of zeros has no share in a layer's volume."""
    net = small("conv")
    raw = net.weights(2, 5)
    raw["bn2.weight"][:, 0] = 0
    raw["conv2.weight"][:, 2] = 0
    pinned = min_mass(raw, net.table)
    assert pinned.degenerate.tolist() == [1, 1]  # what bn2 writes to channel 0
    chain = min_mass(raw, net.table, formulation="eval_chain")
    assert chain.degenerate.tolist() == [4, 4]  # both channels of both sides of bn2
    norms = np.linalg.norm(chain.weights["conv2.weight"].reshape(2, 4, -1), axis=2)
    np.testing.assert_allclose(norms[:, 0], 1, rtol=1e-10)
    volume = min_mass(raw, net.table, formulation="volume")
    assert (volume.scales["conv2"][:, 2] == 1).all() and (volume.degenerate > 0).all()
    for made in (pinned, chain, volume):
        assert (made.gap <= 1e-13).all()


def test_scaling_a_filter_that_is_cut_off_does_not_matter_in_eval_chain() -> None:
    net = small("pad")
    raw = net.weights(2, 5)
    raw["bn3.weight"][:, 1] = 0
    scaled = {name: array.copy() for name, array in raw.items()}
    scaled["conv3.weight"][:, 1] *= 10
    scaled["bn3.running_mean"][:, 1] *= 10
    one, two = (min_mass(weights, net.table, formulation="eval_chain") for weights in (raw, scaled))
    for name, array in one.weights.items():
        np.testing.assert_allclose(two.weights[name], array, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("net", PLAIN, ids=str)
@pytest.mark.sampled(2)
def test_without_running_variances_all_formulations_are_the_same(net: Net) -> None:
    raw = net.weights(2, 0)
    one = min_mass(raw, net.table)
    for formulation in ("volume", "eval_chain"):
        two = min_mass(raw, net.table, formulation=formulation)
        assert all(two.weights[name].tobytes() == array.tobytes() for name, array in one.weights.items())


def test_halves_and_torch_come_through_eval_chain() -> None:
    net = small("conv")
    raw = {name: torch.from_numpy(array) for name, array in net.weights(2, 0, np.float32).items()}
    made = min_mass(raw, net.table, formulation="eval_chain")
    assert made.weights["bn1.weight"].shape == (2, 3) and made.weights["bn1.weight"].dtype == torch.float32
    halves = {name: array.half() if array.is_floating_point() else array for name, array in raw.items()}
    assert min_mass(halves, net.table, formulation="eval_chain").weights["bn1.weight"].dtype == torch.float32
    assert (made.weights["bn1.running_var"] == raw["bn1.running_var"]).all()


class Bare(nn.Module):
    """A BatchNorm without gain behind the first convolution, one with gain behind the second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, affine=False)
        self.conv2, self.norm2 = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
        self.last = nn.Linear(5, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm1(self.conv1(images)))
        return self.last(torch.relu(self.norm2(self.conv2(hidden))).mean(dim=(2, 3)))


def test_a_traced_network_with_a_norm_without_gain() -> None:
    module = Bare().double()
    traced = trace(module, torch.randn(2, 2, 8, 8))
    raw = {name: value.detach().numpy()[None] for name, value in module.state_dict().items()}
    images = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    expected = outputs(module, raw, 0, images)
    for formulation in FORMULATIONS:
        made = min_mass(raw, traced, formulation=formulation)
        assert (made.gap <= 1e-13).all() and made.mass_after < made.mass_before
        np.testing.assert_allclose(outputs(module, made.weights, 0, images), expected, rtol=1e-10, atol=1e-12)


def test_what_a_formulation_cannot_tell_is_refused() -> None:
    groups = (Group("c", 2, Sym(), "positive"), Group("n", 2, Sym(), "positive"))
    norm = (
        AxisAction("m.var", 0, whole("c", 2), 2, False, "variance", eps=1e-5),
        AxisAction("m.gain", 0, whole("n", 2), 1, True, "gain"),
        AxisAction("m.again", 0, whole("n", 2), 1, True, "gain"),
    )
    weights = {name: np.ones((1, 2, 2)) for name in ("a", "b", "skip")} | {
        name: np.ones((1, 2)) for name in ("m.var", "m.gain", "m.again")
    }
    ends = (*layer("a", ("c", 2), None), *layer("b", None, ("n", 2)))
    with pytest.raises(SymmetryError, match="one gain in its module"):
        min_mass(weights, Symmetry(groups, (*ends, *norm)), formulation="eval_chain")
    with pytest.raises(SymmetryError, match="BatchNorms alone to read it, got 'skip'"):
        min_mass(weights, Symmetry(groups, (*ends, *norm, *layer("skip", None, ("c", 2)))), formulation="volume")

"""Every declared table leaves its network alone: random elements, generic weights, float64."""

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.symmetry import GroupElement, apply

Weights = dict[str, np.ndarray]


def _generic(name: str, seed: int) -> tuple[nn.Module, Weights]:
    """A network with gains of both signs and positive variances, and its weights as a stack of one."""
    torch.manual_seed(seed)
    model = archs.get(name)().double()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if key.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            elif value.is_floating_point() and value.ndim == 1:
                value.normal_()
    return model, {key: value.numpy()[None] for key, value in model.state_dict().items()}


def _outputs(model: nn.Module, weights: Weights, inputs: torch.Tensor) -> np.ndarray:
    state = {key: torch.from_numpy(np.array(value[0])) for key, value in weights.items()}
    with torch.no_grad():
        return torch.func.functional_call(model, state, (inputs,)).numpy()


def _stays(name: str, model: nn.Module, weights: Weights, inputs: torch.Tensor, seed: int) -> None:
    table = archs.symmetry(name)
    element = GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.3)
    moved = apply(element, weights, table)
    acted_on = {action.tensor for action in table.actions}
    assert {key for key, value in weights.items() if value.size > 1 and (value != moved[key]).any()} == acted_on
    expected, found = _outputs(model, weights, inputs), _outputs(model, moved, inputs)
    assert np.ptp(expected, axis=0).min() > 0
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def _images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, dtype=torch.float64)


SMALL = ["optunet", "mlp-5-9-8-3", "mlp-tanh-5-9-8-3"]
SMALL += ["optunet-3-5-2-7-4-1", "optunet-4-4-3-6-5-2", "optunet-3-7-4-9-5-3-8"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.sampled(2)
def test_tables_of_small_networks(name: str, seed: int) -> None:
    model, weights = _generic(name, seed)
    _stays(name, model, weights, torch.randn(6, *archs.architecture(name).input_shape, dtype=torch.float64), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20-conv-4", "resnet20-pad-4", "resnet44-pad-2", "resnet18-3", "resnet18-4-3"])
def test_tables_of_residual_networks_in_evaluation_mode(name: str) -> None:
    model, weights = _generic(name, 1)
    _stays(name, model.eval(), weights, _images(4), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20-conv-4", "resnet20-pad-4", "resnet18-3", "resnet18-4-3"])
def test_tables_of_residual_networks_in_training_mode_at_eps_0(name: str) -> None:
    model, weights = _generic(name, 2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-300  # torch refuses 0; added to any variance this is 0
    _stays(name, model.train(), weights, _images(4), 2)


def test_scales_after_the_normalisation_hold_in_training_mode_with_eps_and_those_before_do_not() -> None:
    name = "resnet8-pad-4"
    model, weights = _generic(name, 3)
    table, images = archs.symmetry(name), _images(4)
    element = GroupElement.random(table, 1, np.random.default_rng(3), spread=0.3)
    before = {segment.group for action in table.actions if action.role == "variance" for segment in action.segments}
    for kept, holds in ((element.scales.keys() - before, True), (before, False)):
        scales = {key: value if key in kept else np.ones_like(value) for key, value in element.scales.items()}
        moved = apply(GroupElement(element.perms, scales), weights, table)
        expected, found = (_outputs(model.train(), state, images) for state in (weights, moved))
        gap = np.abs(found - expected).max() / np.abs(expected).max()
        assert gap < 1e-9 if holds else gap > 1e-7

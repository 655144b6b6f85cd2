"""Gaussians over the weights of known networks: their tensors, their outputs, and that symmetries leave both alone."""

import numpy as np
import pytest
import torch

from ckptzoo import archs
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry import GroupElement, apply, count, remove_softmax_shift

BASES = ("optunet", "mlp-5-9-8-3", "mlp-tanh-5-9-8-3", "resnet8-pad-4", "resnet20-conv-10")


@pytest.mark.parametrize("base", BASES)
def test_the_declaration_is_that_of_the_module_and_counts_as_the_base(base: str) -> None:
    name = f"gaussian-{base}"
    arch, of_base = archs.architecture(name), archs.architecture(base)
    module = archs.get(name)()
    assert archs.known(name) and archs.base_of(name) == base and archs.base_of(base) is None
    read = Architecture.of(module.state_dict(), name=name, forward=name, input_shape=of_base.input_shape)
    assert arch == read
    archs.symmetry(name).check(arch)
    assert count(name) == count(base)
    doubled = {tensor.name for tensor in of_base.tensors if tensor.kind == "parameter"}
    assert set(arch.names) == {*of_base.names, *(f"{tensor}_std" for tensor in doubled)}
    assert arch.parameters == 2 * of_base.parameters
    assert tuple(tensor for tensor in arch.names if not tensor.endswith("_std")) == of_base.names


@pytest.mark.parametrize("name", ["gaussian-", "gaussian-gaussian-optunet", "gaussian-mlp-3", "optunet-gaussian", None])
def test_other_names_are_unknown(name: str | None) -> None:
    assert not archs.known(name) and archs.base_of(name) is None
    assert archs.names()[-1] == "gaussian-<another name>"


def test_the_outputs_of_a_linear_network_are_exact() -> None:
    """Independent weights: var(W x + b) = S^2 x^2 + s^2, exactly."""
    torch.manual_seed(0)
    module = archs.get("gaussian-mlp-5-3")().double()
    state = {name: torch.rand_like(value) for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    inputs = torch.randn(7, 5, dtype=torch.float64)
    with torch.no_grad():
        found = module(inputs)
    mean = inputs @ state["fc1.weight"].T + state["fc1.bias"]
    variance = inputs.square() @ state["fc1.weight_std"].square().T + state["fc1.bias_std"].square()
    torch.testing.assert_close(found, torch.cat([mean, variance.sqrt()], dim=1))


@pytest.mark.parametrize("base", ["optunet", "mlp-tanh-5-4-3"])
def test_the_deviations_are_those_of_draws_to_first_order(base: str) -> None:
    torch.manual_seed(0)
    module = archs.get(f"gaussian-{base}")().double()
    network = archs.get(base)().double()
    small, count_of_draws = 1e-4, 4000
    state = module.state_dict()
    state |= {name: small * torch.rand_like(value) for name, value in state.items() if name.endswith("_std")}
    module.load_state_dict(state)
    means = {name: state[name] for name in network.state_dict()}
    drawn = {
        name: mean + state[f"{name}_std"] * torch.randn(count_of_draws, *mean.shape, dtype=torch.float64)
        for name, mean in means.items()
    }
    shape = archs.architecture(base).input_shape
    assert shape is not None
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    with torch.no_grad():
        found = module(inputs)
        outputs = torch.func.vmap(lambda weights: torch.func.functional_call(network, weights, (inputs,)))(drawn)
        network.load_state_dict(means)
        width = found.shape[1] // 2
        torch.testing.assert_close(found[:, :width], network(inputs))
    # the standard error of a standard deviation is 1 / sqrt(2 n) of it
    ratio = outputs.std(dim=0) / found[:, width:]
    assert (ratio - 1).abs().max() < 5 / (2 * count_of_draws) ** 0.5


def generic(base: str, seed: int) -> dict[str, np.ndarray]:
    """One Gaussian with positive deviations and variances, gains of both signs, in float64."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    for tensor in archs.architecture(f"gaussian-{base}").tensors:
        if tensor.dtype == "int64":
            weights[tensor.name] = np.full((1, *tensor.shape), 7)
            continue
        values = rng.standard_normal((1, *tensor.shape))
        positive = tensor.name.endswith(("_std", "running_var"))
        weights[tensor.name] = np.exp(0.5 * values) if positive else values / np.sqrt(max(1, np.prod(tensor.shape[1:])))
    return weights


@pytest.mark.parametrize("base", ["optunet", "mlp-5-9-8-3", "mlp-tanh-5-9-8-3", "resnet8-pad-4", "resnet8-conv-4"])
def test_symmetries_leave_the_outputs_alone(base: str) -> None:
    name = f"gaussian-{base}"
    table, weights = archs.symmetry(name), generic(base, 1)
    element = GroupElement.random(table, 1, np.random.default_rng(2), spread=0.3)
    normalised = {item.group for act in table.actions if act.exponent == 2 for item in act.segments}
    scales = {key: np.sign(s) * np.maximum(np.abs(s), 1 / np.abs(s)) if key in normalised else s
              for key, s in element.scales.items()}  # fmt: skip
    moved = apply(GroupElement(element.perms, scales), weights, table)
    assert all((moved[tensor] >= 0).all() for tensor in moved if tensor.endswith("_std")), "a deviation has no sign"
    module = archs.get(name)().double().eval()
    shape = (3, 8, 8) if base.startswith("resnet") else archs.architecture(base).input_shape
    assert shape is not None
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    found = []
    for held in (weights, moved):
        state = {key: torch.from_numpy(np.array(value[0])) for key, value in held.items()}
        with torch.no_grad():
            found.append(torch.func.functional_call(module, state, (inputs,)).numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9 * np.abs(found[0]).max())
    width = found[0].shape[1] // 2
    assert found[0][:, width:].min() > 0 and np.ptp(found[0], axis=0).min() > 0


def test_a_softmax_shift_is_removed_from_the_mean_alone() -> None:
    weights = generic("mlp-5-9-8-3", 0)
    made = remove_softmax_shift(weights, "gaussian-mlp-5-9-8-3")
    changed = {name for name, array in made.items() if (array != weights[name]).any()}
    assert changed == {"fc3.weight", "fc3.bias"}


@pytest.mark.parametrize("name", ["mlp-4-5-3", "mlp-tanh-4-5-3", "optunet", "resnet20-pad-10"])
def test_drawing_commutes_with_permutations_and_signs(name: str) -> None:
    """With noise that moves along, a draw from the moved Gaussian is the moved draw."""
    rng = np.random.default_rng(3)
    arch, table, doubled = archs.architecture(name), archs.symmetry(name), archs.symmetry(f"gaussian-{name}")
    parameters = [tensor.name for tensor in arch.tensors if tensor.kind == "parameter"]
    shapes = {tensor.name: (3, *tensor.shape) for tensor in archs.architecture(f"gaussian-{name}").tensors}
    gaussians = {key: np.abs(rng.standard_normal(shape)) + 0.1 for key, shape in shapes.items()}
    noise = {tensor.name: rng.standard_normal((3, *tensor.shape)) for tensor in arch.tensors}
    element = GroupElement.random(table, 3, rng, spread=0.0)
    moved, moved_noise = apply(element, gaussians, doubled), apply(element, noise, table)
    drawn = {key: gaussians[key] + gaussians[f"{key}_std"] * noise[key] for key in parameters}
    others = {tensor.name: noise[tensor.name] for tensor in arch.tensors if tensor.name not in drawn}
    expected = apply(element, {**drawn, **others}, table)
    for key in parameters:
        np.testing.assert_allclose(moved[key] + moved[f"{key}_std"] * moved_noise[key], expected[key], rtol=1e-12)

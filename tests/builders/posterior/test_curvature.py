"""The curvature of a trained network: against autograd, its symmetries, and that no bit depends on threads."""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from builders import data, losses
from builders.data_source import DataSource
from builders.posterior import curvature
from builders.posterior.curvature import TrainingInputs, flatten, gauss_newton, last_layer, parameter_names
from builders.recipe import Recipe
from builders.state import Tensors
from ckptzoo import archs
from ckptzoo.errors import ZooError
from ckptzoo.symmetry import GroupElement, apply
from tests.support.effort import ALL

CASES = [
    ("optunet", "cross-entropy", (1, 28, 28)),
    ("mlp-tanh-3-5-4", "cross-entropy", (3,)),
    ("mlp-4-6-5-1", "binary-cross-entropy", (4,)),
    ("mlp-4-5-1", "squared-error", (4,)),
]
REAL = Path(os.environ.get(data.FOLDER_VARIABLE) or Path(__file__).parents[4] / "shared" / "data")
CARD = Path(__file__).parents[3] / "cards" / "mnist-optunet"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def network(architecture: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensors:
    """Random weights, and buffers as those of a trained network."""
    rng, weights = np.random.default_rng(seed), Tensors()
    for tensor in archs.architecture(architecture).tensors:
        if tensor.dtype == "int64":
            weights[tensor.name] = torch.tensor(7)
            continue
        scale = 1 if len(tensor.shape) < 2 else 1.5 / math.sqrt(math.prod(tensor.shape[1:]))
        values = scale * rng.standard_normal(tensor.shape)
        values = np.abs(values) + 0.1 if tensor.name.endswith("running_var") else values
        weights[tensor.name] = torch.from_numpy(np.asarray(values)).to(dtype)
    return weights


def examples_of(shape: tuple[int, ...], count: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, *shape)))


def outputs_of(architecture: str, weights: Tensors, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.func.functional_call(archs.get(architecture)().eval(), weights, (inputs,))


def loss_hessian(loss: str, outputs: torch.Tensor) -> torch.Tensor:
    """(K, K) by autograd twice; for a label that must not matter."""
    target = torch.ones(1, dtype=torch.int64 if loss == "cross-entropy" else torch.float64)

    def of_one(values: torch.Tensor) -> torch.Tensor:
        return losses.get(loss).mean(values[None], target)

    hessian = torch.autograd.functional.hessian(of_one, outputs)
    assert isinstance(hessian, torch.Tensor)
    return hessian


def by_autograd(architecture: str, loss: str, weights: Tensors, inputs: torch.Tensor) -> torch.Tensor:
    """The definition, in a loop over examples and outputs."""
    model = archs.get(architecture)().double().eval()
    model.load_state_dict(weights)
    parameters = dict(model.named_parameters())
    ordered = [parameters[name] for name in parameter_names(architecture)]
    total = torch.zeros((), dtype=torch.float64)
    for example in inputs:
        outputs = model(example[None])[0]
        rows = [torch.autograd.grad(value, ordered, retain_graph=True) for value in outputs]
        jacobian = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
        total = total + jacobian.T @ loss_hessian(loss, outputs.detach()) @ jacobian
    return total


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("architecture", "loss", "shape"), CASES)
def test_it_is_what_autograd_gives(architecture: str, loss: str, shape: tuple[int, ...]) -> None:
    weights, inputs = network(architecture), examples_of(shape, 12)
    expected = by_autograd(architecture, loss, weights, inputs)
    assert relative(gauss_newton(architecture, loss, weights, TrainingInputs(inputs)), expected) < 1e-12
    single = {name: tensor.float() for name, tensor in weights.items()}
    assert relative(gauss_newton(architecture, loss, single, TrainingInputs(inputs.float())), expected) < 1e-5


def test_the_path_of_optunet_is_the_general_one() -> None:
    weights, inputs = network("optunet", 3), examples_of((1, 28, 28), 700)
    rows = curvature.row_function("optunet", "cross-entropy", weights)(inputs)
    found = gauss_newton("optunet", "cross-entropy", weights, TrainingInputs(inputs))
    assert relative(found, rows.T @ rows) < 1e-12


@pytest.mark.exhaustive
@pytest.mark.parametrize(("architecture", "loss", "shape"), CASES)
@pytest.mark.sampled(2)
def test_threads_change_no_bit(architecture: str, loss: str, shape: tuple[int, ...]) -> None:
    weights = network(architecture, dtype=torch.float32)
    inputs = TrainingInputs(examples_of(shape, 4200).float())
    alone, factors = gauss_newton(architecture, loss, weights, inputs), last_layer(architecture, loss, weights, inputs)
    with ThreadPoolExecutor(3, initializer=torch.set_num_threads, initargs=(1,)) as workers:
        assert torch.equal(gauss_newton(architecture, loss, weights, inputs, workers), alone)
        other = last_layer(architecture, loss, weights, inputs, workers)
    assert torch.equal(other.inputs, factors.inputs) and torch.equal(other.outputs, factors.outputs)
    # the examples after the first block count as much as those before
    parts = [TrainingInputs(inputs.raw[start : start + 2100]) for start in (0, 2100)]
    total = torch.stack([gauss_newton(architecture, loss, weights, part) for part in parts]).sum(0)
    assert relative(alone, total) < 1e-6


def test_inputs_are_made_as_the_source_says() -> None:
    recipe = Recipe.load("digits-optunet")
    source = data.load(recipe)
    feed = DataSource.of(recipe, source, "cpu")
    raw, weights = torch.from_numpy(source.half("train")[0][:300]), network("optunet", dtype=torch.float32)
    before = raw.clone()
    found = gauss_newton("optunet", "cross-entropy", weights, TrainingInputs(raw, feed.network_inputs))
    seen = torch.from_numpy(data.inputs(recipe, source.train_images[:300]))
    assert relative(found, gauss_newton("optunet", "cross-entropy", weights, TrainingInputs(seen))) < 1e-4
    assert torch.equal(raw, before)


def scale_directions(weights: Tensors) -> torch.Tensor:
    """(12, P): how OptuNet's weights change with the logarithm of each scale of its table."""
    table = archs.symmetry("optunet")
    directions: list[torch.Tensor] = []
    stacked = {name: tensor.double().numpy()[None] for name, tensor in weights.items()}
    for group in table.groups:
        for channel in range(group.n):
            moved: list[torch.Tensor] = []
            for sign in (1, -1):
                element = GroupElement.identity(table, 1)
                element.scales[group.id][0, channel] = math.exp(0.5 * sign)
                applied = apply(element, stacked, table)
                moved.append(flatten({name: torch.from_numpy(applied[name][0]) for name in applied}, tuple(weights)))
            # a weight of degree 1 or -1 in the scale changes by as much times 2 sinh(1/2)
            directions.append((moved[0] - moved[1]) / (2 * math.sinh(0.5)))
    return torch.stack(directions)


def softmax_directions(weights: Tensors) -> torch.Tensor:
    """(11, P): a constant added to all outputs, through the bias and through each of the ten inputs of the last layer."""
    directions: list[torch.Tensor] = []
    for column in range(11):
        change = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        if column < 10:
            change["fc.weight"][:, column] = 1
        else:
            change["fc.bias"][:] = 1
        directions.append(flatten(change, tuple(weights)))
    return torch.stack(directions)


def test_it_annihilates_scales_and_softmax_shifts() -> None:
    weights = network("optunet", 5)
    found = gauss_newton("optunet", "cross-entropy", weights, TrainingInputs(examples_of((1, 28, 28), 200)))
    directions = torch.cat([scale_directions(weights), softmax_directions(weights)])
    assert torch.linalg.matrix_rank(directions) == len(directions) == 23
    changes = (found @ directions.T).norm(dim=0) / directions.norm(dim=1)
    assert changes.max() < 1e-12 * torch.linalg.matrix_norm(found, 2)


@pytest.mark.exhaustive
@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="MNIST is not there")
def test_a_trained_optunet_has_23_eigenvalues_of_0() -> None:
    recipe, zoo = Recipe.load("mnist-optunet"), ckptzoo.open(CARD)
    source = data.load(recipe, REAL)
    weights = {name: torch.tensor(zoo[name][0]) for name in parameter_names("optunet")}
    feed = DataSource.of(recipe, source, "cpu")
    raw = torch.from_numpy(source.half("train")[0][: 60_000 if ALL else 6000])
    found = gauss_newton("optunet", "cross-entropy", weights, TrainingInputs(raw, feed.network_inputs))
    values = torch.linalg.eigvalsh(found)
    # the gap: products in float64 leave the square of single precision's rounding
    assert values[22].abs() < 1e-12 * values[-1] < 1e-8 * values[-1] < values[23]
    if ALL:
        assert values[22] < 1 < values[23]


@pytest.mark.parametrize(("architecture", "loss", "shape"), CASES[:2])
def test_it_follows_permuted_weights(architecture: str, loss: str, shape: tuple[int, ...]) -> None:
    weights, inputs = network(architecture), TrainingInputs(examples_of(shape, 60))
    permuted, order, signs = permute(architecture, weights, 4)
    expected = torch.outer(signs, signs) * gauss_newton(architecture, loss, weights, inputs)[order][:, order]
    assert relative(gauss_newton(architecture, loss, permuted, inputs), expected) < 1e-12


def permute(architecture: str, weights: Tensors, seed: int) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
    """The weights with neurons permuted, and turned over where tanh allows; of each flat place the one it came from,
    and the sign."""
    table = archs.symmetry(architecture)
    element = GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.0)
    names = parameter_names(architecture)
    vector = flatten(weights, names)
    places = curvature.unflatten(torch.arange(1.0, len(vector) + 1, dtype=torch.float64), weights, names)
    moved = apply(element, {name: tensor.numpy()[None] for name, tensor in places.items()}, table)
    signed = flatten({name: torch.from_numpy(moved[name][0]) for name in names}, names)
    order, signs = signed.abs().long() - 1, signed.sign()
    assert not torch.equal(order, torch.arange(len(vector)))
    return curvature.unflatten(signs * vector[order], weights, names), order, signs


def test_a_network_too_large_is_refused() -> None:
    assert curvature.fits("mlp-74-74-2") and not curvature.fits("mlp-75-75-2")
    assert 8 * archs.architecture("mlp-74-74-2").parameters ** 2 <= 2**28
    with pytest.raises(ZooError, match="resnet18-10: bytes of the whole curvature: expected at most 268435456, got"):
        gauss_newton("resnet18-10", "cross-entropy", {}, TrainingInputs(torch.zeros(1, 3, 32, 32)))


LAST = [("resnet8-pad-3", "cross-entropy", (3, 32, 32), "linear"), ("mlp-3-4-3", "cross-entropy", (3,), "fc2")]


@pytest.mark.parametrize(("architecture", "loss", "shape", "layer"), LAST)
def test_factors_of_the_last_layer(architecture: str, loss: str, shape: tuple[int, ...], layer: str) -> None:
    weights, inputs = network(architecture), examples_of(shape, 9)
    found = last_layer(architecture, loss, weights, TrainingInputs(inputs))
    assert (found.layer, found.count, found.names) == (layer, 9, (f"{layer}.weight", f"{layer}.bias"))
    outputs = outputs_of(architecture, weights, inputs)
    # without the last layer: the inputs of it are what the outputs are a linear function of
    matrix, features = weights[f"{layer}.weight"], found.inputs
    assert features.shape == (matrix.shape[1] + 1,) * 2 and features[-1, -1] == 9
    whole = torch.cat([matrix, weights[f"{layer}.bias"][:, None]], 1)
    assert relative(whole @ features @ whole.T, outputs.T @ outputs) < 1e-12
    assert relative(whole @ features[:, -1], outputs.sum(0)) < 1e-12
    assert relative(found.outputs, torch.stack([loss_hessian(loss, row) for row in outputs]).sum(0)) < 1e-12


def test_factors_of_one_example_are_exact() -> None:
    weights, inputs = network("mlp-tanh-3-5-4"), examples_of((3,), 1)
    found = last_layer("mlp-tanh-3-5-4", "cross-entropy", weights, TrainingInputs(inputs))
    # weights and bias of an output are neighbours in the product, and apart in the whole
    order = torch.cat([torch.arange(24).view(4, 6)[:, :5].reshape(-1), torch.arange(5, 24, 6)])
    product = torch.kron(found.outputs, found.inputs)[order][:, order]
    whole = gauss_newton("mlp-tanh-3-5-4", "cross-entropy", weights, TrainingInputs(inputs))
    assert relative(product, whole[-24:, -24:]) < 1e-12


class _Softmaxed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc1(inputs).log_softmax(-1)


class _Twice(_Softmaxed):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc1(torch.relu(self.fc1(inputs)))


class _Unused(_Softmaxed):
    """The layer that comes last is not the one that gives the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.spare(inputs)
        return self.fc1(inputs)


def test_a_last_layer_must_give_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = TrainingInputs(examples_of((3,), 4))
    weights = {name: tensor.double() for name, tensor in _Softmaxed().state_dict().items()}
    for module in (_Softmaxed, _Twice):
        monkeypatch.setattr(archs, "get", lambda _, module=module: module)
        with pytest.raises(ZooError, match=r"mlp-3-3: last layer: expected a linear layer, used once, .* got fc1"):
            last_layer("mlp-3-3", "cross-entropy", weights, inputs)
    monkeypatch.setattr(archs, "get", lambda _: _Unused)
    both = {name: tensor.double() for name, tensor in _Unused().state_dict().items()}
    assert last_layer("mlp-3-3", "cross-entropy", both, inputs).layer == "fc1"
    monkeypatch.setattr(archs, "get", lambda _: lambda: nn.Sequential(nn.ReLU()))
    with pytest.raises(ZooError, match="got no linear layer"):
        last_layer("mlp-3-3", "cross-entropy", weights, inputs)

"""Alignment by activations: what layers read is recorded, planted permutations are found, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run
from ckptzoo.derive import align_zoo
from ckptzoo.derive.activations import ActivationProducts
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, trace
from tests.support.derived_zoos import weights_of

Weights = dict[str, np.ndarray]


def permuted(weights: Weights, table: Symmetry, K: int) -> Weights:
    """K copies of one network (1, *shape), permuted."""
    g = GroupElement.random(table, K, np.random.default_rng(1))
    g = GroupElement(g.perms, {name: np.ones_like(scale) for name, scale in g.scales.items()})
    return apply(g, {name: np.repeat(array, K, axis=0) for name, array in weights.items()}, table)


def one_of(weights: Weights) -> Weights:
    return {name: array[0] for name, array in weights.items()}


def random_inputs(arch: Architecture, count: int) -> np.ndarray:
    assert arch.input_shape is not None
    return np.random.default_rng(2).standard_normal((count, *arch.input_shape)).astype(np.float32)


class Mixed(torch.nn.Module):
    """Two branches that are joined and flattened; a layer reads channels of both, by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Conv2d(1, 6, 3), torch.nn.Conv2d(1, 4, 3)
        self.middle = torch.nn.Conv2d(10, 5, 3)
        self.last = torch.nn.Parameter(torch.randn(3, 20))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        both = torch.cat([torch.relu(self.one(inputs)), torch.relu(self.other(inputs))], 1)
        return torch.nn.functional.linear(torch.relu(self.middle(both)).flatten(1), weight=self.last)


@pytest.mark.parametrize("name", ["mlp-6-9-3", "mlp-6-20-12-4", "optunet"])
@pytest.mark.sampled(2)
def test_planted_permutations_are_found(name: str) -> None:
    arch, table = archs.architecture(name), archs.symmetry(name)
    weights = weights_of(1, 5, arch=arch)
    copies = permuted(weights, table, 11)
    recorded = ActivationProducts(arch, table, one_of(weights), random_inputs(arch, 200))
    products = recorded.products(copies)
    found = align(copies, one_of(weights), table, method="activations", activations=products)
    assert not found.ties.any()
    np.testing.assert_array_equal(found.distance, 0)
    some = recorded.products({key: array[3:5] for key, array in copies.items()})
    for group, array in some.items():
        np.testing.assert_array_equal(array, products[group][3:5])


def test_networks_in_another_order_are_aligned_alike() -> None:
    name = "mlp-6-20-12-4"
    arch, table = archs.architecture(name), archs.symmetry(name)
    weights, reference = weights_of(1, 5, arch=arch), one_of(weights_of(1, 6, arch=arch))
    copies = permuted(weights, table, 4)
    products = ActivationProducts(arch, table, reference, random_inputs(arch, 200)).products(copies)
    found = align(copies, reference, table, method="activations", activations=products)
    assert not found.ties.any()
    for array in found.weights.values():
        np.testing.assert_array_equal(array, np.repeat(array[:1], 4, axis=0))


def test_normalised_residual_networks() -> None:
    name = "resnet8-pad-10"
    arch, table = archs.architecture(name), archs.symmetry(name)
    weights = weights_of(1, 0, arch=arch)
    for tensor in arch.tensors:
        if "bn" in tensor.name and tensor.name.endswith((".weight", ".bias", ".running_var")):
            least = np.float32(0.1 if tensor.name.endswith(".weight") else 0.5)  # no channel that is always 0
            weights[tensor.name] = np.abs(weights[tensor.name]) + least
    copies = permuted(weights, table, 3)
    recorded = ActivationProducts(arch, table, one_of(weights), random_inputs(arch, 12))
    found = align(copies, one_of(weights), table, method="activations", activations=recorded.products(copies))
    assert not found.ties.any()
    np.testing.assert_array_equal(found.distance, 0)


def test_what_is_recorded_is_what_layers_read() -> None:
    """Joined, flattened and read by a function: every position is an example."""
    torch.manual_seed(0)
    module = Mixed()
    inputs = torch.randn(7, 1, 6, 6)
    traced = trace(module, inputs)
    weights = {name: tensor.detach().numpy()[None] for name, tensor in module.state_dict().items()}
    recorded = ActivationProducts(traced.architecture, traced.symmetry, one_of(weights), inputs.numpy(), module)
    products = recorded.products(weights)
    with torch.no_grad():
        one, other = torch.relu(module.one(inputs)), torch.relu(module.other(inputs))
        middle = torch.relu(module.middle(torch.cat([one, other], 1)))
    for group, values in (("one", one), ("other", other), ("middle", middle)):
        examples = values.transpose(0, 1).flatten(1).double()
        np.testing.assert_allclose(products[group][0], (examples @ examples.T).numpy(), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_recorded_is_refused() -> None:
    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 5), torch.nn.Parameter(torch.randn(5, 2))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.first(inputs)) @ self.second

    module, inputs = Product(), torch.randn(3, 4)
    traced = trace(module, inputs)
    weights = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    expected = "activations: expected linear layers or convolutions that read the channels of every group, got 0 of 1"
    with pytest.raises(SymmetryError, match=expected):
        ActivationProducts(traced.architecture, traced.symmetry, weights, inputs.numpy(), module)


def zoo_of(path: Path, copies: Weights, arch: Architecture) -> Path:
    with ckptzoo.create(path, arch=arch) as writer:
        writer.add(copies, [{"id": f"m{at}"} for at in range(len(next(iter(copies.values()))))])
    return path


def test_a_variant_of_a_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arch, table = archs.architecture("optunet"), archs.symmetry("optunet")
    weights, inputs = weights_of(1, 6, arch=arch), random_inputs(arch, 60)
    copies = permuted(weights, table, 5)
    copies["fc.bias"][3] = np.nan
    path = zoo_of(tmp_path / "zoo", copies, arch)
    np.save(tmp_path / "images.npy", inputs)
    options = ["--label", "one", "--method", "activations", "--inputs", str(tmp_path / "images.npy")]
    assert run(["align", str(path), "--to", "m1", *options]) == 0
    assert "largest difference of the outputs" in capsys.readouterr().out
    zoo = ckptzoo.open(path)
    for name, array in copies.items():
        np.testing.assert_array_equal(
            np.asarray(zoo[name, "aligned-one"])[[0, 1, 2, 4]], np.repeat(array[1:2], 4, axis=0)
        )
    assert zoo.variant_metadata("aligned-one")["gauged"].to_pylist() == [True, True, True, False, True]
    part = zoo.contents.derived("aligned-one").parts[0]
    assert (part.facts["method"], part.facts["examples"]) == ("activations", 60)
    assert part.facts["inputs"].startswith("sha256:") and part.facts["inputs_name"] == "images.npy"
    assert ckptzoo.verify(path) == []
    kept: dict[str, Any] = {"label": "one", "certify": "none"}
    with pytest.raises(SymmetryError, match="method: expected activations, got weights"):
        align_zoo(path, "m1", **kept)
    with pytest.raises(SymmetryError, match=r"inputs: expected sha256:.*got sha256:"):
        align_zoo(path, "m1", method="activations", inputs=inputs[:50], **kept)
    assert align_zoo(path, "m1", method="activations", inputs=inputs, **kept).already == 5
    align_zoo(path, "m1", label="two", certify="none")
    with pytest.raises(SymmetryError, match="method: expected weights, got activations"):
        align_zoo(path, "m1", label="two", method="activations", inputs=inputs, certify="none")


def test_networks_of_a_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = Mixed(), torch.randn(7, 1, 6, 6)
    traced = trace(module, inputs)
    weights = {name: tensor.detach().numpy()[None] for name, tensor in module.state_dict().items()}
    copies = permuted(weights, traced.symmetry, 3)
    path = zoo_of(tmp_path / "zoo", copies, traced.architecture)
    given: dict[str, Any] = {"label": "one", "method": "activations", "inputs": inputs.numpy()}
    align_zoo(path, "m1", module=module, **given)
    for name, array in copies.items():
        np.testing.assert_array_equal(
            np.asarray(ckptzoo.open(path)[name, "aligned-one"]), np.repeat(array[1:2], 3, axis=0)
        )
    with pytest.raises(ZooError, match=r"forward function: expected one of ckptzoo\.archs, or a module"):
        align_zoo(path, "m2", **{**given, "label": "two"})


def test_inputs_are_needed(tmp_path: Path) -> None:
    arch = archs.architecture("optunet")
    path = zoo_of(tmp_path / "zoo", weights_of(2, 0, arch=arch), arch)
    given: dict[str, Any] = {"label": "one", "method": "activations"}
    for inputs, match in (
        (None, "inputs of method 'activations': expected some, got none. Name some, such as training images"),
        (np.zeros((3, 2, 4, 4)), r"align: shape of the inputs: expected \(N, 1, .* got \(3, 2, 4, 4\)"),
        (random_inputs(arch, 3)[:0], "shape of the inputs"),
        (np.nan * random_inputs(arch, 3), "inputs: expected finite numbers, got others"),
    ):
        with pytest.raises(ZooError, match=match):
            align_zoo(path, "m1", inputs=inputs, **given)
    assert not (path / "derived").exists()

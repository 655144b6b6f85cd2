"""Hessians of stacks against those of torch.func, and what symmetries do to them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ckptzoo import archs, symmetry
from ckptzoo.derive.hessians import Hessians
from ckptzoo.errors import ZooError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.symmetry import GroupElement
from tests.support.derived_zoos import inputs_of, weights_of

COUNT = 21


class Tied(nn.Module):
    """Two layers with one weight, a buffer that state dicts lack, and softplus, which has second derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.two(functional.softplus(self.one(inputs)) * self.scale)


TIED = Architecture(
    "tied",
    (Tensor("one.weight", (4, 4), aliases=("two.weight",)), Tensor("one.bias", (4,)), Tensor("two.bias", (4,))),
    input_shape=(4,),
)


def exact(arch: Architecture, module: nn.Module, weights: dict[str, Any], inputs: Any, labels: Any) -> np.ndarray:
    """The Hessian of one network by torch.func, in the order of its tensors."""
    module, names = module.double().eval(), [tensor.name for tensor in arch.tensors if tensor.kind == "parameter"]
    values = {tensor.name: torch.from_numpy(np.array(weights[tensor.name])) for tensor in arch.tensors}
    constants = {n: v.double() if v.is_floating_point() else v for n, v in values.items() if n not in names}

    def loss(flat: torch.Tensor) -> torch.Tensor:
        state, start = dict(constants), 0
        for tensor in (arch[name] for name in names):
            for name in (tensor.name, *tensor.aliases):
                state[name] = flat[start : start + tensor.size].view(tensor.shape)
            start += tensor.size
        outputs = torch.func.functional_call(module, state, (torch.from_numpy(inputs).double(),), tie_weights=False)
        return functional.cross_entropy(outputs, torch.from_numpy(labels))

    return torch.func.jacrev(torch.func.grad(loss))(
        torch.cat([values[name].double().reshape(-1) for name in names])
    ).numpy()


@pytest.mark.parametrize(
    "name",
    ["mlp-6-4-3", "mlp-tanh-5-3", "optunet", "tied", pytest.param("optunet-vmap", marks=pytest.mark.exhaustive)],
)
def test_they_are_those_of_torch(name: str) -> None:
    arch = TIED if name == "tied" else archs.architecture(name.partition("-vmap")[0])
    own = Tied() if name == "tied" else archs.get("optunet")() if name == "optunet-vmap" else None
    count = 3 if arch.parameters < 100 else 2
    weights = weights_of(count, 2, arch=arch)
    inputs = inputs_of(arch, COUNT if arch.parameters < 100 else 3).astype(np.float32)
    labels = np.random.default_rng(3).integers(0, 3, len(inputs))
    hessians = Hessians(arch, inputs, labels, module=own)
    losses, matrices = hessians.matrices(weights)
    vectors = np.random.default_rng(4).standard_normal((count, 3, hessians.size))
    np.testing.assert_allclose(losses, hessians.losses(weights), rtol=1e-12)
    scale = np.abs(matrices).max()
    np.testing.assert_allclose(hessians.products(weights, vectors), vectors @ matrices, atol=1e-12 * scale)
    for at in range(count if arch.parameters < 100 else 1):
        module = own or archs.get(name)()
        expected = exact(arch, module, {key: array[at] for key, array in weights.items()}, inputs, labels)
        np.testing.assert_allclose(matrices[at], expected, atol=1e-12 * scale)


def test_batches_and_stacks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    arch = archs.architecture("mlp-tanh-5-4-3")
    weights, inputs = weights_of(5, 2, arch=arch), inputs_of(arch, COUNT).astype(np.float32)
    labels = np.arange(COUNT) % 3
    whole = Hessians(arch, inputs, labels).matrices(weights)
    monkeypatch.setattr("ckptzoo.derive.hessians._BYTES", 2**15)
    small = Hessians(arch, inputs, labels)
    for found, expected in zip(small.matrices(weights), whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)
    alone = small.matrices({name: array[3:4] for name, array in weights.items()})
    np.testing.assert_allclose(alone[1][0], whole[1][3], atol=1e-13)


class OnlyAlone(nn.Module):
    """A network that asks for numbers, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = torch.tanh(self.layer(inputs)) ** 2
        return outputs if float(outputs.detach().sum()) > 0 else -outputs


def test_a_network_that_vmap_cannot_take_goes_one_by_one() -> None:
    arch = Architecture("alone", (Tensor("layer.weight", (2, 3)), Tensor("layer.bias", (2,))), input_shape=(3,))
    weights, inputs = weights_of(3, 0, arch=arch), inputs_of(arch, COUNT).astype(np.float32)
    with pytest.raises(ZooError, match="outputs for inputs"):
        Hessians(arch, inputs, np.zeros(COUNT, np.int64), module=OnlyAlone())
    labels = np.arange(COUNT) % 2

    class Branching(OnlyAlone):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(inputs)) ** 2 if inputs.is_meta else super().forward(inputs)

    module = Branching()
    _, matrices = Hessians(arch, inputs, labels, module=module).matrices(weights)
    simple = nn.Module()
    simple.layer, simple.forward = nn.Linear(3, 2), lambda inputs: torch.tanh(simple.layer(inputs)) ** 2  # type: ignore
    for at in range(3):
        expected = exact(arch, simple, {key: array[at] for key, array in weights.items()}, inputs, labels)
        np.testing.assert_allclose(matrices[at], expected, atol=1e-12)


@pytest.mark.parametrize("name", ["optunet", "mlp-6-4-3"])
def test_permutations_keep_the_spectrum_and_scales_do_not(name: str) -> None:
    arch, table = archs.architecture(name), archs.symmetry(name)
    weights = {key: array.astype(np.float64) for key, array in weights_of(2, 5, arch=arch).items()}
    inputs = inputs_of(arch, COUNT).astype(np.float32)
    hessians = Hessians(arch, inputs, np.arange(COUNT) % 3)
    element = GroupElement.random(table, 2, np.random.default_rng(6))
    permuted = GroupElement(element.perms, GroupElement.identity(table, 2).scales)
    spectra = [
        np.linalg.eigvalsh(hessians.matrices(each)[1])
        for each in (weights, symmetry.apply(permuted, weights, table), symmetry.apply(element, weights, table))
    ]
    np.testing.assert_allclose(spectra[1], spectra[0], atol=1e-12 * spectra[0].max())
    assert np.abs(spectra[2].sum(1) - spectra[0].sum(1)).max() > 0.01 * spectra[0].sum(1).max()


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.full(COUNT, 3), "labels: expected 21 integers from 0 to 2, got int64 .* from 3 to 3"),
        (np.full(COUNT, -1), "from -1 to -1"),
        (np.zeros(COUNT), "got float64"),
        (np.zeros(4, np.int64), r"got int64 \(4,\)"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: np.ndarray, said: str) -> None:
    arch = archs.architecture("mlp-6-4-3")
    with pytest.raises(ZooError, match=said):
        Hessians(arch, inputs_of(arch, COUNT).astype(np.float32), labels)

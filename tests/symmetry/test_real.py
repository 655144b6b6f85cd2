"""Strangers' networks: CIFAR-10 ResNets with 26 to 69 negative gains, and MNIST CNNs. Skipped where they are not.

The same laws hold for generated networks in tests/laws/test_symmetry.py and tests/archs/test_tables.py.
"""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo import archs
from ckptzoo.symmetry import GroupElement, apply, canonicalize, fingerprint, min_mass, trace
from ckptzoo.symmetry.mass.formulations import FORMULATIONS

DATA = Path(os.environ.get("CKPTZOO_DATA") or Path(__file__).parents[3] / "shared" / "data")
CHECKPOINTS = DATA.parent / "checkpoints"
RESNETS = CHECKPOINTS / "cifar10_resnet_akamaster"
CNNS = CHECKPOINTS / "mnist_cnn_outlier_exposure"
Weights = dict[str, np.ndarray]


class Cnn(nn.Module):
    """The network of the MNIST checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.drop, self.fc1, self.fc2 = nn.Dropout2d(), nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2)).view(-1, 320)
        return self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training))


def loaded(path: Path) -> Weights:
    found = torch.load(path, weights_only=True, map_location="cpu")
    found = found.get("state_dict", found)
    return {name.removeprefix("module."): value.numpy()[None] for name, value in found.items()}


def outputs(module: nn.Module, weights: Weights, images: torch.Tensor) -> np.ndarray:
    state = {name: torch.tensor(array[0], dtype=torch.float64) for name, array in weights.items()}
    with torch.no_grad():
        return torch.func.functional_call(module.double().eval(), state, (images,)).numpy()


def assert_laws(module: nn.Module, weights: Weights, table, shape: tuple[int, ...]) -> None:
    images = torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape)))
    before = outputs(module, weights, images)
    g = GroupElement.random(table, 1, np.random.default_rng(1), spread=0.3)
    behind = {item.group for act in table.actions if act.exponent == 2 for item in act.segments}
    g = GroupElement(g.perms, {name: np.maximum(s, 1) if name in behind else s for name, s in g.scales.items()})
    double = {name: array.astype(np.float64) for name, array in weights.items()}
    np.testing.assert_allclose(outputs(module, apply(g, double, table), images), before, rtol=1e-9, atol=1e-11)
    for gauge in ("canonical", "first-weight", "unit-norm", "unit-std"):
        made = canonicalize(double, table, gauge=gauge)
        assert made.report.gauged.all()
        np.testing.assert_allclose(outputs(module, made.weights, images), before, rtol=1e-9, atol=1e-11)
        stored = canonicalize(weights, table, gauge=gauge).weights
        np.testing.assert_allclose(outputs(module, stored, images), before, rtol=1e-3, atol=1e-4 * np.abs(before).max())
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        stored = {name: array.astype(dtype) if array.dtype.kind == "f" else array for name, array in weights.items()}
        only = GroupElement(g.perms, GroupElement.identity(table, 1).scales)
        moved = {name: array.astype(stored[name].dtype) for name, array in apply(only, stored, table).items()}
        one, two = canonicalize(stored, table), canonicalize(moved, table)
        assert not one.report.unresolved.any() and fingerprint(one) == fingerprint(two)
        for name, array in one.weights.items():
            assert array.tobytes() == two.weights[name].tobytes(), name


@pytest.mark.slow
@pytest.mark.skipif(not RESNETS.is_dir(), reason="no ResNet checkpoints")
@pytest.mark.parametrize("depth", [20, *(pytest.param(depth, marks=pytest.mark.exhaustive) for depth in (32, 44, 56))])
def test_residual_networks(depth: int) -> None:
    name = f"resnet{depth}-pad-10"
    arch = archs.architecture(name)
    found = loaded(next(RESNETS.glob(f"resnet{depth}-*.th")))
    weights = {item.name: found.get(item.name, np.zeros((1, *item.shape), item.dtype)) for item in arch.tensors}
    assert min(array.min() for key, array in weights.items() if key.endswith("bn1.weight")) < 0
    assert_laws(archs.get(name)(), weights, archs.symmetry(name), (3, 16, 16))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not RESNETS.is_dir(), reason="no ResNet checkpoints")
def test_a_residual_network_is_traced_with_its_own_weights() -> None:
    module = archs.get("resnet20-pad-10")()
    found = loaded(next(RESNETS.glob("resnet20-*.th")))
    state = {name: torch.from_numpy(array[0]) for name, array in found.items()}
    module.load_state_dict(state, strict=False)
    traced = trace(module, torch.randn(2, 3, 32, 32))
    assert traced.notes == () and traced.worst < 1e-9
    weights = {
        item.name: found.get(item.name, np.zeros((1, *item.shape), item.dtype)) for item in traced.architecture.tensors
    }
    assert_laws(module, weights, traced.symmetry, (3, 16, 16))


@pytest.mark.slow
@pytest.mark.skipif(not CNNS.is_dir(), reason="no CNN checkpoints")
def test_convolutional_networks() -> None:
    paths = sorted(CNNS.glob("*.pt"))
    assert len(paths) == 6
    traced = trace(Cnn(), torch.randn(2, 1, 28, 28))
    assert [(group.n, group.scale) for group in traced.symmetry.groups] == [
        (10, "positive"),
        (20, "positive"),
        (50, "positive"),
    ]
    everyone = [loaded(path) for path in paths]
    for weights in everyone:
        assert_laws(Cnn(), weights, traced.symmetry, (1, 28, 28))
    stacked = {name: np.concatenate([weights[name] for weights in everyone]) for name in everyone[0]}
    assert len(set(fingerprint(canonicalize(stacked, traced.symmetry)))) == 6


@pytest.mark.slow
@pytest.mark.skipif(not RESNETS.is_dir(), reason="no ResNet checkpoints")
@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("depth", [20, pytest.param(56, marks=pytest.mark.exhaustive)])
def test_least_masses_of_residual_networks(depth: int, formulation: str) -> None:
    name = f"resnet{depth}-pad-10"
    arch, module = archs.architecture(name), archs.get(name)()
    found = loaded(next(RESNETS.glob(f"resnet{depth}-*.th")))
    weights = {item.name: found.get(item.name, np.zeros((1, *item.shape), item.dtype)) for item in arch.tensors}
    double = {key: array.astype(np.float64) if array.dtype.kind == "f" else array for key, array in weights.items()}
    made = min_mass(double, name, formulation=formulation)
    assert made.gap.max() < 1e-10 and not made.degenerate.any()
    assert made.mass_after < 0.75 * made.mass_before
    images = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 16, 16)))
    np.testing.assert_allclose(
        outputs(module, made.weights, images), outputs(module, double, images), rtol=1e-9, atol=1e-11
    )


@pytest.mark.skipif(not CNNS.is_dir(), reason="no CNN checkpoints")
def test_least_masses_of_convolutional_networks() -> None:
    traced = trace(Cnn(), torch.randn(2, 1, 28, 28))
    everyone = [loaded(path) for path in sorted(CNNS.glob("*.pt"))]
    stacked = {name: np.concatenate([weights[name] for weights in everyone]) for name in everyone[0]}
    made = min_mass(stacked, traced.symmetry)
    assert made.gap.max() < 1e-10 and (made.mass_after < made.mass_before).all()
    again = min_mass(stacked, traced.symmetry, engine="cvxpy")
    np.testing.assert_allclose(made.mass_after, again.mass_after, rtol=1e-6)

"""Statistics of batches, renewed for weights that no training has visited: of a small perceptron with BatchNorm."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from builders.posterior import batch_norm
from ckptzoo.schema.architecture import Architecture, Tensor

COUNT, FEATURES = 1300, 4


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, np.ndarray]:
    inputs = np.random.default_rng(0).normal(2, 3, (COUNT, FEATURES)).astype(np.float32)
    state = network().state_dict()
    tensors = tuple(
        Tensor(name, tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."), kind="buffer")
        if name.startswith("1.running") or name.endswith("tracked")
        else Tensor(name, tuple(value.shape))
        for name, value in state.items()
    )
    recipe = SimpleNamespace(arch=Architecture("perceptron", tensors), architecture="perceptron", train=COUNT)
    monkeypatch.setattr(batch_norm.archs, "get", lambda name: network)
    monkeypatch.setattr(batch_norm.sources, "train_inputs", lambda recipe, source, start, stop: inputs[start:stop])
    return recipe, inputs


def test_statistics_are_those_of_one_pass_over_the_training_set(planted: tuple[Any, np.ndarray]) -> None:
    recipe, inputs = planted
    torch.manual_seed(0)
    members = [network().state_dict() for _ in range(3)]
    weights = {name: torch.stack([member[name] for member in members]) for name in members[0]}
    weights["1.running_mean"] += 7  # of earlier weights: forgotten
    found = batch_norm.renewed_statistics(recipe, None, weights)  # pyright: ignore[reportArgumentType]
    batches = np.split(inputs, range(512, COUNT, 512))
    for member in range(3):
        hidden = [
            batch.astype(np.float64) @ weights["0.weight"][member].double().numpy().T
            + weights["0.bias"][member].double().numpy()
            for batch in batches
        ]
        sizes = np.array([len(batch) for batch in batches])
        mean = np.average([values.mean(0) for values in hidden], axis=0, weights=sizes)
        variance = np.average([values.var(0, ddof=1) for values in hidden], axis=0, weights=sizes)
        assert np.allclose(found["1.running_mean"][member], mean, rtol=1e-4, atol=1e-4)
        assert np.allclose(found["1.running_var"][member], variance, rtol=1e-4)
        assert int(found["1.num_batches_tracked"][member]) == len(batches)
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"):
        assert torch.equal(found[name], weights[name])


def test_networks_without_buffers_are_left_alone() -> None:
    arch = ckptzoo.archs.architecture("mlp-2-2-1")
    weights = {tensor.name: torch.zeros(2, *tensor.shape) for tensor in arch.tensors}
    recipe: Any = SimpleNamespace(arch=arch, architecture="mlp-2-2-1", train=10)
    assert batch_norm.renewed_statistics(recipe, None, weights) is weights  # pyright: ignore[reportArgumentType]

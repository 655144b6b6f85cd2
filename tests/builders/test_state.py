"""What a training state holds of networks with buffers, and that all of it is saved."""

import dataclasses
from pathlib import Path

import pytest
import torch

from builders import rng
from builders.checkpointing import BuildFolder, Unit
from builders.energy import Spent
from builders.recipe import Recipe
from builders.state import TrainingState, as_stored

RESIDUAL = dataclasses.replace(Recipe.load("digits-optunet"), architecture="resnet18-1-2", momentum=0.9)
ARCH = RESIDUAL.arch
BUFFERS = [tensor.name for tensor in ARCH.tensors if tensor.kind == "buffer"]
PARAMETERS = [tensor.name for tensor in ARCH.tensors if tensor.kind == "parameter"]


def moved(state: TrainingState) -> None:
    """Change every tensor, as training does."""
    torch.manual_seed(0)
    for tensors in (state.weights, state.momentum):
        for tensor in tensors.values():
            tensor.copy_(torch.rand(tensor.shape) if tensor.is_floating_point() else torch.arange(len(tensor)) + 7)
    state.step = 7


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_parameters_have_momentum_and_buffers_have_none(precision: str) -> None:
    recipe = dataclasses.replace(RESIDUAL, precision=precision)
    state = TrainingState.initial(recipe, [3, 4, 5], "cpu")
    assert list(state.weights) == list(ARCH.names) and list(state.momentum) == PARAMETERS
    dtype = torch.float64 if precision == "float64" else torch.float32
    assert {tensor.dtype for tensor in state.momentum.values()} == {dtype}
    counters = [name for name in BUFFERS if name.endswith("num_batches_tracked")]
    assert len(counters) == 20 and len(BUFFERS) == 60
    for name, tensor in state.weights.items():
        assert tensor.dtype == (torch.int64 if name in counters else dtype)
        assert tensor.shape == (3, *ARCH[name].shape)
    assert not TrainingState.initial(dataclasses.replace(recipe, momentum=0.0), [3], "cpu").momentum
    stored = as_stored(state.weights)
    assert {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in stored.items()} == {
        tensor.name: tensor.dtype for tensor in ARCH.tensors
    }


def test_a_training_in_float64_starts_at_the_weights_that_float32_can_hold() -> None:
    double = dataclasses.replace(RESIDUAL, precision="float64")
    keys = rng.member_keys(RESIDUAL.digest, [3, 4])
    weights = {name: torch.from_numpy(array) for name, array in rng.initial_weights(ARCH, keys).items()}
    state = TrainingState.of(double, keys, weights)
    for name, tensor in as_stored(state.weights).items():
        assert torch.equal(tensor, weights[name])


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_saved_state_carries_buffers_bit_for_bit(precision: str, tmp_path: Path) -> None:
    recipe = dataclasses.replace(RESIDUAL, precision=precision)
    unit, folder = Unit("unit", (3, 4, 5)), BuildFolder(tmp_path)
    state, fresh = (TrainingState.initial(recipe, list(unit.seeds), "cpu") for _ in range(2))
    moved(state)
    folder.save(unit, state, Spent(1.0))
    assert folder.restore(unit, fresh) == Spent(1.0)
    assert fresh.step == 7
    for found, expected in ((fresh.weights, state.weights), (fresh.momentum, state.momentum)):
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    folder.keep(unit, 7, state.weights, [])
    kept, _ = folder.read_kept(unit, 7)
    assert {name: str(array.dtype) for name, array in kept.items()} == {
        tensor.name: tensor.dtype for tensor in ARCH.tensors
    }
    assert kept["bn1.num_batches_tracked"].tolist() == [7, 8, 9]


def test_a_part_of_a_state_is_the_same_memory_buffers_included() -> None:
    state = TrainingState.initial(RESIDUAL, [3, 4, 5], "cpu")
    for part in state.split(2):
        moved(part)
    for tensors in (state.weights, state.momentum):
        assert all(tensor.count_nonzero() == tensor.numel() for tensor in tensors.values())

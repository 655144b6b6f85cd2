"""The compiled engine: its gradient, members that diverge, and where it is chosen."""

import dataclasses
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from builders import data, engines
from builders.data_source import DataSource, steps
from builders.engines import compiled
from builders.engines.compiled import rng, training
from builders.engines.compiled.workspace import Workspace
from builders.recipe import Recipe
from builders.state import TrainingState
from builders.train import open_trainer
from ckptzoo import archs
from ckptzoo.errors import MissingExtraError, ZooError

DIGITS = Recipe.load("digits-optunet")
FULL = data.load(DIGITS)
NAMES = ("conv1.weight", "conv2.weight", "fc.weight", "fc.bias")


def test_it_is_the_fastest_where_it_is_able() -> None:
    on_a_gpu = "fused" if find_spec("triton") else "optunet"
    assert engines.fastest(DIGITS) == engines.fastest(DIGITS, "cpu") == "compiled"
    assert engines.fastest(DIGITS, "cuda") == engines.fastest(DIGITS, "cuda:1") == on_a_gpu
    assert engines.fastest(Recipe.load("toy")) == "mlp"
    with open_trainer(DIGITS, FULL) as trainer:
        assert trainer.engine is compiled.advance


def test_without_numba_there_are_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert engines.usable(DIGITS) == ("single", "general", "optunet")
    assert engines.fastest(DIGITS) == "optunet"
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[fast\]"):
        engines.get("compiled")


def test_what_runs_was_compiled_from_these_files() -> None:
    files = sorted(Path(training.__file__).parent.glob("*.py"))
    data_source, rule, keys = (
        DataSource.of(DIGITS, FULL, "cpu"),
        compiled.sgd_settings(DIGITS, 0, 1),
        np.empty(0, np.uint64),
    )
    nobody = tuple(np.empty((0, size), np.float32) for size in (32, 250, 100, 10))
    images, batch = compiled.images(data_source), training.LaneBatch.empty(rule.batch)
    ran = {
        training.train(Workspace.empty(), images, rule, batch, keys, nobody, nobody, 0, 1),
        training.batch_gradients(Workspace.empty(), images, rule, batch, keys, nobody, nobody, 0),
    }
    (ran,) = ran
    assert ran == sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_it_needs_no_place_for_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = "numba.core.caching.ZipCacheLocator"
    monkeypatch.setattr("numba.core.config.CACHE_LOCATOR_CLASSES", nowhere)
    assert [type(loop._cache).__name__ for loop in training.compile_loops()] == ["NullCache"] * 2
    monkeypatch.undo()
    assert [type(loop._cache).__name__ for loop in training.compile_loops()] == ["FunctionCache"] * 2


def test_other_images_are_refused() -> None:
    data_source = DataSource.of(DIGITS, FULL, "cpu")
    with pytest.raises(ZooError, match="expected 28x28 pixels on cpu, got 27x28 on cpu"):
        compiled.advance(
            dataclasses.replace(data_source, height=data_source.height - 1),
            TrainingState.initial(DIGITS, [0], "cpu"),
            1,
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 15, 16, 64, 70])
def test_the_gradient_is_that_of_double_precision(size: int) -> None:
    recipe = dataclasses.replace(DIGITS, batch=size)
    data_source = DataSource.of(recipe, FULL, "cpu")
    for seed in range(4):
        state = TrainingState.initial(recipe, [seed], "cpu")
        batch = next(data_source.batches(state.keys, 3, 4))
        weights = {name: (tensor[0] * 2).double().requires_grad_() for name, tensor in state.weights.items()}
        model = archs.get("optunet")().double()
        outputs = torch.func.functional_call(model, weights, (batch.inputs[0].double(),))
        nn.functional.cross_entropy(outputs, batch.targets[0]).backward()

        step = next(steps(data_source, state.keys, 3, 4))
        workspace, padding = Workspace.empty(), -size % 16
        corners, labels = (np.pad(part[0].numpy(), (0, padding), mode="edge") for part in (step.corners, step.labels))
        drawn = training.LaneBatch(corners, labels, np.ones((len(corners), 10), np.float32))
        flat = tuple(weights[name].detach().float().numpy().reshape(-1) for name in NAMES)
        training.gradients(workspace, compiled.images(data_source), flat, drawn, size, dropout=False)
        for name, found in zip(NAMES, (workspace.conv1, workspace.conv2, workspace.head, workspace.bias), strict=True):
            exact = weights[name].grad
            assert exact is not None
            expected = exact.numpy().reshape(-1)
            assert np.abs(found[: expected.size] - expected).max() < 2e-6 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("rate", [10.0, 1e4, 1e30])
def test_members_diverge_as_in_the_general_engine(rate: float) -> None:
    recipe = dataclasses.replace(DIGITS, learning_rate=rate)
    data_source = DataSource.of(recipe, FULL, "cpu")
    ours, theirs = (
        TrainingState.initial(recipe, list(range(6)), "cpu"),
        TrainingState.initial(recipe, list(range(6)), "cpu"),
    )
    for stop in range(1, 6):
        compiled.advance(data_source, ours, stop)
        engines.get(engines.GENERAL)(data_source, theirs, stop)
        for name, tensor in theirs.weights.items():
            assert torch.equal(ours.weights[name].isnan(), tensor.isnan()), (stop, name)
            assert torch.equal(ours.weights[name].isinf(), tensor.isinf()), (stop, name)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -1e37, 1e20])
def test_one_weight_that_is_no_number_spreads_as_in_the_general_engine(value: float) -> None:
    data_source = DataSource.of(DIGITS, FULL, "cpu")
    ours, theirs = (
        TrainingState.initial(DIGITS, list(range(8)), "cpu"),
        TrainingState.initial(DIGITS, list(range(8)), "cpu"),
    )
    for state in (ours, theirs):
        for member, (name, place) in enumerate((name, place) for name in NAMES for place in (0, -1)):
            state.weights[name][member].view(-1)[place] = value
    for stop in (1, 2):
        compiled.advance(data_source, ours, stop)
        engines.get(engines.GENERAL)(data_source, theirs, stop)
        for name, tensor in theirs.weights.items():
            assert torch.equal(ours.weights[name].isnan(), tensor.isnan()), (stop, name)


@pytest.mark.parametrize("epochs", [(0, 1), (1, 3)])
def test_sides_and_rates_are_those_of_the_order_and_the_recipe(epochs: tuple[int, int]) -> None:
    recipe = dataclasses.replace(DIGITS, milestones=(1, 2))
    first, last = epochs
    rule = compiled.sgd_settings(recipe, first * recipe.epoch_steps, last * recipe.epoch_steps)
    assert rule.rates[: last - first].tolist() == pytest.approx(
        [recipe.rates.learning_rate_at(epoch) for epoch in range(first, last)]
    )
    assert (rng.side(255), rng.side(256), rng.side(257), rng.side(60000)) == (16, 16, 18, 246)

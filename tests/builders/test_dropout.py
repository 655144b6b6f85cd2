"""Training with dropout, and the gradients that engines evaluate for methods that take other steps than SGD's."""

import dataclasses

import numpy as np
import pytest
import torch

from builders import engines, losses, rng, sources
from builders.data_source import Feed
from builders.recipe import Recipe
from builders.state import TrainingState
from ckptzoo import archs
from ckptzoo.errors import SpecError, ZooError

DIGITS = dataclasses.replace(Recipe.load("digits-optunet"), dropout=0.3)
TOY = dataclasses.replace(Recipe.load("toy"), dropout=0.4)
ENERGY = dataclasses.replace(Recipe.load("toy"), architecture="mlp-tanh-2-5-3-1", dropout=0.25)


def feed(recipe: Recipe) -> Feed:
    return sources.data_source(recipe, sources.load(recipe), "cpu")


def exact_gradient(recipe: Recipe, data_source: Feed, state: TrainingState, member: int) -> dict[str, torch.Tensor]:
    """By autograd in double precision, through the module alone: its last layer's inputs are masked by a hook."""
    batch = next(data_source.batches(state.keys, state.step, state.step + 1))
    assert batch.scales is not None
    scales = batch.scales[member].double()
    model = archs.get(recipe.architecture)().double()
    layer = model.get_submodule(recipe.head.removesuffix(".weight"))
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * scales,))
    weights = {name: tensor[member].double().requires_grad_() for name, tensor in state.weights.items()}
    outputs = torch.func.functional_call(model, weights, (batch.inputs[member].double(),))
    losses.get(recipe.loss).mean(outputs, batch.targets[member].double()).backward()
    return {name: tensor.grad for name, tensor in weights.items() if tensor.grad is not None}


@pytest.mark.parametrize(
    ("recipe", "engine"),
    [
        *((DIGITS, name) for name in ("general", "optunet", "compiled")),
        *((recipe, name) for recipe in (TOY, ENERGY) for name in ("general", "mlp")),
    ],
)
def test_every_engine_has_the_gradient_of_the_masked_network(recipe: Recipe, engine: str) -> None:
    data_source = feed(recipe)
    state = TrainingState.initial(recipe, [3, 4, 5], "cpu")
    state.step = recipe.epoch_steps - 1  # the last, short batch of an epoch
    step = next(engines.gradient_steps(engine)(data_source, state.keys, state.step, state.step + 1))
    found = step.gradient(state.weights)
    for member in range(3):
        for name, exact in exact_gradient(recipe, data_source, state, member).items():
            assert torch.allclose(found[name][member].double(), exact, rtol=2e-5, atol=2e-6), (member, name)


@pytest.mark.parametrize("engine", ["general", "optunet", "compiled"])
def test_the_steps_of_an_engine_are_sgd_with_its_gradients(engine: str) -> None:
    data_source = feed(DIGITS)
    trained, stepped = (TrainingState.initial(DIGITS, [0, 1], "cpu") for _ in range(2))
    engines.get(engine)(data_source, trained, 4)
    for step in engines.gradient_steps(engine)(data_source, stepped.keys, 0, 4):
        for name, gradient in step.gradient(stepped.weights).items():
            slope = gradient + DIGITS.weight_decay * stepped.weights[name]
            if DIGITS.momentum:
                slope += DIGITS.momentum * stepped.momentum[name]
                stepped.momentum[name] = slope
            stepped.weights[name] -= step.rate * slope
    for name, tensor in trained.weights.items():
        assert torch.allclose(tensor, stepped.weights[name], rtol=1e-5, atol=1e-6), name


def test_masks_have_their_probability_and_differ_between_examples_and_members() -> None:
    keys = rng.member_keys(DIGITS.digest, range(20))
    kept = rng.kept_units(keys, 2, np.arange(500), 10, 0.3)
    assert kept.shape == (20, 500, 10)
    assert abs(kept.mean() - 0.7) < 5 * (0.21 / kept.size) ** 0.5
    assert np.abs(kept.mean((0, 1)) - 0.7).max() < 5 * (0.21 / 10_000) ** 0.5
    assert len(np.unique(kept.reshape(-1, 10), axis=0)) > 500  # of 2**10
    moved = rng.kept_units(torch.from_numpy(keys.view(np.int64)), 2, torch.arange(500), 10, 0.3)
    assert np.array_equal(moved.numpy(), kept)


def test_what_dropout_cannot_be() -> None:
    with pytest.raises(SpecError, match=r"dropout: expected a number from 0 to below 1, got 1\.0"):
        dataclasses.replace(DIGITS, dropout=1.0)
    assert "fused" not in engines.usable(DIGITS, "cuda")
    with pytest.raises(ZooError, match="engine fused: engine: expected one that evaluates single gradients"):
        pytest.importorskip("triton")
        engines.gradient_steps("fused")


def test_recipes_without_the_later_keys_keep_their_digests() -> None:
    plain = Recipe.load("mnist-optunet")
    assert "dropout" not in plain.facts() and "warmup" not in plain.facts()
    assert dataclasses.replace(plain, dropout=0.2).digest != plain.digest
    assert dataclasses.replace(plain, warmup=2, warmup_from=0.1).digest != plain.digest

"""The density in JAX is that of torch's forward functions and losses."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from builders import losses, rng, sources
from builders.posterior.method import flatten, parameters, unflatten
from builders.recipe import Recipe
from ckptzoo import archs

TOY, DIGITS = Recipe.load("toy"), Recipe.load("digits-optunet")
PRIOR, TEMPERATURE = 0.7, 0.3


def changed(recipe: Recipe, **keys: Any) -> Recipe:
    return dataclasses.replace(recipe, **keys)


RECIPES = {
    "relu": changed(TOY, architecture="mlp-2-6-5-1"),
    "tanh": changed(TOY, architecture="mlp-tanh-2-6-5-1"),
    "linear": changed(TOY, architecture="mlp-2-1", loss="squared-error"),
    "squared": changed(TOY, architecture="mlp-tanh-2-20-1", loss="squared-error"),
    "classes": changed(TOY, architecture="mlp-2-30-2", loss="cross-entropy"),
    "images": changed(DIGITS, architecture="mlp-784-16-10"),
    "optunet": DIGITS,
}


def by_torch(recipe: Recipe, position: np.ndarray) -> tuple[float, np.ndarray]:
    """The density and its gradient in float64, by the architecture's module and the loss of training."""
    source = sources.load(recipe)
    inputs = torch.from_numpy(sources.train_inputs(recipe, source, 0, recipe.train)).double()
    targets = torch.from_numpy(np.array(source.half("train")[1]))
    like = {name: torch.zeros(1, *recipe.arch[name].shape) for name in parameters(recipe.arch)}
    flat = torch.from_numpy(position)[None].requires_grad_()
    weights = {name: part[0] for name, part in unflatten(flat, like, list(like)).items()}
    outputs = torch.func.functional_call(archs.get(recipe.architecture)().double(), weights, (inputs,))
    loss = losses.get(recipe.loss).mean(outputs, targets) * recipe.train
    density = -loss / TEMPERATURE - flat.square().sum() / (2 * PRIOR**2)
    density.backward()
    assert flat.grad is not None
    return density.item(), flat.grad[0].numpy()


@pytest.mark.parametrize(
    ("name", "precision", "tolerance"),
    [
        *((name, "float64", 1e-12) for name in RECIPES),
        *(pytest.param(name, "float32", 1e-6, marks=pytest.mark.exhaustive) for name in RECIPES),
    ],
)
@pytest.mark.sampled(8)
def test_the_density_is_torch_s(name: str, precision: str, tolerance: float) -> None:
    jax = pytest.importorskip("jax", reason="the extra hmc is not installed")
    from builders.posterior.log_density import examples_last, log_density

    recipe = changed(RECIPES[name], precision=precision)
    source = sources.load(recipe)
    examples = sources.train_inputs(recipe, source, 0, recipe.train), source.half("train")[1]
    arrays = rng.initial_weights(recipe.arch, rng.member_keys(recipe.digest, range(3)))
    weights = {key: 2 * torch.from_numpy(array) for key, array in arrays.items()}
    with jax.enable_x64(True):
        given = [jax.numpy.asarray(array) for array in examples_last(recipe, *examples)]
        density = jax.jit(jax.value_and_grad(log_density(recipe, PRIOR, TEMPERATURE, *given)))
        for position in flatten(weights, parameters(recipe.arch)).double().numpy():
            value, gradient = density(position)
            expected, slope = by_torch(recipe, position)
            assert value.dtype == gradient.dtype == np.float64
            assert float(value) == pytest.approx(expected, rel=tolerance)
            assert np.abs(np.asarray(gradient) - slope).max() < 50 * tolerance * np.abs(slope).max()

"""Training commutes with permutations and signs: from g w with the same draws it ends at g of where w ends.

arXiv 2310.08287, Proposition 3. Rounding grows with the steps, so that float64 shows it after many and float32 after
one.
"""

import dataclasses

import numpy as np
import pytest
import torch

from builders import data, engines, rng, sources
from builders.recipe import Recipe
from builders.sources import Source
from builders.state import Tensors, TrainingState
from ckptzoo import archs
from ckptzoo.symmetry import GroupElement, apply
from tests.support.effort import examples

MEMBERS = 2
FEW = dataclasses.replace(
    Recipe.load("digits-optunet"),
    train=150,
    test=10,
    batch=4,
    learning_rate=0.1,
    momentum=0.9,
    nesterov=True,
    weight_decay=1e-3,
    flip=True,
    schedule="cosine",
    milestones=(),
)
TOY = dataclasses.replace(Recipe.load("toy"), learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
RECIPES = {
    "optunet": FEW,
    "residual": dataclasses.replace(
        Recipe.load("cifar100-resnet18"), architecture="resnet8-conv-3", train=40, test=4, batch=4, milestones=(7,)
    ),
    "relu": dataclasses.replace(TOY, architecture="mlp-2-6-5-1"),
    "tanh": dataclasses.replace(TOY, architecture="mlp-tanh-2-6-5-1"),
}


def loaded(recipe: Recipe) -> Source:
    if recipe.dataset == "cifar100":
        numbers = np.random.default_rng(2)
        pixels = numbers.integers(0, 256, (44, 3, 8, 8), dtype=np.uint8)
        labels = np.arange(44, dtype=np.int64) % 3
        return data.Data("cifar100", pixels[:40], labels[:40], pixels[40:], labels[40:])
    if recipe.dataset != "digits":
        return sources.load(recipe)
    full = data.load(Recipe.load("digits-optunet"))
    train, test = slice(recipe.train), slice(recipe.test)
    images, labels = full.train_images, full.train_labels
    return data.Data("digits", images[train], labels[train], images[test], labels[test])


@pytest.mark.parametrize(("precision", "steps", "tolerance"), [("float64", 200, 1e-8), ("float32", 1, 1e-5)])
@pytest.mark.parametrize(
    ("kind", "engine"), [(kind, engine) for kind, recipe in RECIPES.items() for engine in engines.usable(recipe)]
)
@pytest.mark.sampled(6)
def test_training_commutes_with_permutations_and_signs(
    kind: str, engine: str, precision: str, steps: int, tolerance: float
) -> None:
    recipe = dataclasses.replace(RECIPES[kind], precision=precision)
    if engine == "single" or (kind, engine) == ("optunet", "general"):
        steps = examples(steps, 20)  # 30 milliseconds each
    data_source = sources.data_source(recipe, loaded(recipe), "cpu")
    table = archs.symmetry(recipe.architecture)
    element = GroupElement.random(table, MEMBERS, np.random.default_rng(1), spread=0)

    def transformed(weights: Tensors) -> Tensors:
        moved = apply(element, {name: tensor.numpy() for name, tensor in weights.items()}, table)
        return {name: torch.from_numpy(np.array(array)) for name, array in moved.items()}

    def trained(weights: Tensors) -> Tensors:
        state = TrainingState.of(recipe, keys, {name: tensor.clone() for name, tensor in weights.items()})
        engines.get(engine)(data_source, state, steps)
        return state.weights

    keys = rng.member_keys(recipe.digest, range(MEMBERS))
    start = {name: torch.from_numpy(array) for name, array in rng.initial_weights(recipe.arch, keys).items()}
    plain, other = trained(start), trained(transformed(start))
    for name, expected in transformed(plain).items():
        assert not torch.allclose(plain[name], start[name].to(plain[name].dtype), atol=1e-3)
        torch.testing.assert_close(other[name], expected, rtol=0, atol=tolerance)
    moved = [name for name in plain if not torch.allclose(other[name], plain[name], atol=1e-3)]
    assert len(moved) >= 3, "the element changes the network's weights"

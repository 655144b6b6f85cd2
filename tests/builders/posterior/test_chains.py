"""How the chains of methods differ from the recipe: schedules, augmentation, momentum, precision."""

import dataclasses

import pytest

from builders import posterior
from builders.recipe import ImageRecipe, Recipe

RECIPE = dataclasses.replace(
    Recipe.load("digits-optunet"),
    epochs=10,
    schedule="cosine",
    milestones=(),
    momentum=0.9,
    nesterov=True,
    flip=True,
    precision="float64",
)


def chain(method: str) -> ImageRecipe:
    found = (
        posterior.get(method).load(RECIPE, None, {"learning_rate": 0.5, "ramp": 2} if method == "swag" else {}).chain
    )
    assert isinstance(found, ImageRecipe)
    return found


def test_swag_goes_from_the_last_rate_of_the_cosine_to_its_own() -> None:
    rates = chain("swag").rates
    last = RECIPE.rates.learning_rate_at(9)
    expected = [(last + 0.5) / 2, 0.5, 0.5, 0.5]
    assert [rates.learning_rate_at(epoch) for epoch in (0, 1, 2, chain("swag").epochs - 1)] == pytest.approx(expected)


@pytest.mark.parametrize("method", ["sghmc", "laplace"])
def test_what_meets_the_data_as_they_are_flips_nothing(method: str) -> None:
    assert not chain(method).flip and chain(method).crop_pad == 0


@pytest.mark.parametrize("method", ["dropout", "bnn", "csghmc", "swag"])
def test_what_trains_on_augmented_data_flips_as_the_recipe_does(method: str) -> None:
    assert chain(method).flip and chain(method).crop_pad == RECIPE.crop_pad


@pytest.mark.parametrize("method", posterior.names())
def test_steps_are_in_the_precision_of_the_recipe_and_a_curvature_is_that_of_the_stored_network(method: str) -> None:
    assert chain(method).precision == ("float32" if method == "laplace" else "float64")

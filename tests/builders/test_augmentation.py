"""Crops and flips: what is drawn, and what batches of images of any number of channels hold."""

import dataclasses

import numpy as np
import pytest
import torch

from builders import data, rng
from builders.data_source import DataSource, steps
from builders.recipe import ImageRecipe, Recipe
from builders.state import dtype_of
from builders.train import open_trainer

DIGITS = data.require_images(Recipe.load("digits-optunet"))
KEYS = rng.member_keys("sha256:" + 64 * "0", range(64))
COLOUR = dataclasses.replace(
    DIGITS, train=11, test=1, batch=4, flip=True, crop_pad=2, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3)
)
"""Three steps an epoch, the last of 3 images."""


def colour(channels: int, height: int, width: int, count: int = 11) -> data.Data:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return data.Data("colour", images, np.arange(count) % 3, images[:1], np.zeros(1, np.int64))


def test_a_flip_is_the_top_bit_of_the_third_word_of_the_crops_block() -> None:
    positions = np.array([0, 5, 2**31 - 1])
    words = rng.philox((positions, 7, 2, 0), KEYS[:, None])
    assert np.array_equal(rng.flips(KEYS, 7, positions), words[2] >> 31 == 1)
    down, right = rng.crops(KEYS, 7, positions, 4)
    assert np.array_equal(down, words[0] * 9 >> 32) and np.array_equal(right, words[1] * 9 >> 32)


def test_numpy_and_torch_draw_the_same_flips() -> None:
    positions, lanes = np.arange(500), torch.from_numpy(KEYS.view(np.int64))
    flips = rng.flips(KEYS, 3, positions)
    assert flips.dtype == bool and flips.shape == (64, 500)
    assert np.array_equal(rng.flips(lanes, 3, torch.from_numpy(positions)).numpy(), flips)
    assert np.array_equal(rng.flips(KEYS[7:8], 3, positions[90:])[0], flips[7, 90:])
    assert 0.4 < (rng.flips(KEYS, 4, positions) == flips).mean() < 0.6


def test_half_of_the_crops_are_flipped_whatever_their_place() -> None:
    positions = np.arange(2**14)
    flips = rng.flips(KEYS, 0, positions)
    assert 0.498 < flips.mean() < 0.502
    down, right = rng.crops(KEYS, 0, positions, 4)
    for place in range(9):
        for at in (down == place, right == place):
            assert abs(flips[at].mean() - 0.5) < 5 * 0.5 / at.sum() ** 0.5


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 5, 4), (3, 6, 6), (2, 4, 7)])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_batches_are_cropped_then_flipped_then_normalised(
    channels: int, height: int, width: int, flip: bool, precision: str
) -> None:
    mean, std = (0.1, 0.3, 0.5)[:channels], (0.2, 0.3, 0.4)[:channels]
    recipe = dataclasses.replace(COLOUR, flip=flip, precision=precision, mean=mean, std=std)
    source, pad = colour(channels, height, width), recipe.crop_pad
    keys = KEYS[:3]
    batches = list(DataSource.of(recipe, source, "cpu").batches(keys, 0, 2 * recipe.epoch_steps))
    normalize = [np.reshape(values, (channels, 1, 1)) for values in (mean, std)]
    for epoch in range(2):
        positions = np.arange(recipe.train)
        items = rng.order(keys, epoch, positions, recipe.train)
        down, right = rng.crops(keys, epoch, positions, pad)
        flipped = rng.flips(keys, epoch, positions)
        ours = batches[epoch * recipe.epoch_steps : (epoch + 1) * recipe.epoch_steps]
        inputs, targets = (torch.cat([getattr(batch, name) for batch in ours], 1) for name in ("inputs", "targets"))
        assert inputs.dtype == dtype_of(recipe) and inputs.shape == (3, recipe.train, channels, height, width)
        assert np.array_equal(targets.numpy(), source.train_labels[items])
        for member, position in np.ndindex(items.shape):
            image = np.pad(source.train_images[items[member, position]], ((0, 0), (pad, pad), (pad, pad)))
            y, x = down[member, position], right[member, position]
            crop = image[:, y : y + height, x : x + width]
            crop = crop[..., ::-1] if flip and flipped[member, position] else crop
            expected = (crop / 255 - normalize[0]) / normalize[1]
            found = inputs[member, position].numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 if precision == "float64" else 1e-5)


def test_flipping_changes_nothing_else() -> None:
    source = colour(3, 8, 8)
    plain, flipped = (
        list(steps(DataSource.of(dataclasses.replace(COLOUR, flip=flip), source, "cpu"), KEYS, 1, 6))
        for flip in (False, True)
    )
    for one, two in zip(plain, flipped, strict=True):
        assert torch.equal(one.corners, two.corners) and torch.equal(one.labels, two.labels)
        assert one.flips is None and two.flips is not None and two.flips.shape == two.corners.shape


def test_one_number_for_all_channels_and_the_same_for_each_give_the_same_bits() -> None:
    def inputs(recipe: ImageRecipe) -> torch.Tensor:
        return next(DataSource.of(recipe, colour(3, 8, 8), "cpu").batches(KEYS, 0, 1)).inputs

    one = dataclasses.replace(COLOUR, mean=0.3057, std=0.3251)
    # the last deviation differs by one unit, so that each channel is normalised by its own numbers
    near = dataclasses.replace(one, mean=(0.3057,) * 3, std=(0.3251, 0.3251, float(np.nextafter(0.3251, 1))))
    same = dataclasses.replace(one, mean=(0.3057,) * 3, std=(0.3251,) * 3)
    assert torch.equal(inputs(one), inputs(same)) and torch.equal(inputs(one), inputs(near))


def test_images_may_be_read_only_as_memory_maps_are() -> None:
    full, recipe = data.load(DIGITS), dataclasses.replace(DIGITS, train=20, test=10)
    arrays = {
        f"{half}_{kind}": getattr(full, f"{half}_{kind}")[:count]
        for half, count in (("train", 20), ("test", 10))
        for kind in ("images", "labels")
    }
    for array in arrays.values():
        array.setflags(write=False)
    with open_trainer(recipe, data.Data("digits", **arrays), engine="optunet") as trainer:
        state = trainer.start([0, 1])
        trainer.advance(state, 2)
        assert np.isfinite(trainer.measure(state.weights)["train_loss"]).all()

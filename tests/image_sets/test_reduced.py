"""Data sets with images of other sizes: ``mnist-14x14`` and ``mnist-3x32x32``."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from builders import data, engines, sources
from builders.recipe import Recipe
from builders.train import open_trainer
from ckptzoo import archs, derive, image_sets
from ckptzoo.errors import SpecError, UnknownNameError, ZooError
from ckptzoo.image_sets.image_set import ImageSet
from ckptzoo.image_sets.lookup import have_same_classes
from tests.support.derived_zoos import weights_of, written

RNG = np.random.default_rng(0)


def write(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """MNIST of 30 training and 20 test images, as .npz files."""
    halves = {"train": 30, "test": 20}
    arrays = {
        half: (RNG.integers(0, 256, (count, 28, 28), np.uint8), RNG.integers(0, 10, count))
        for half, count in halves.items()
    }
    for half, (images, labels) in arrays.items():
        np.savez(folder / f"mnist_{half}.npz", images=images, labels=labels)
    return arrays


def test_a_pixel_is_the_mean_of_a_block(tmp_path: Path) -> None:
    images, labels = write(tmp_path)["test"]
    found = image_sets.find("mnist-14x14/test-10", tmp_path)
    assert found is not None and found.name == "mnist-14x14" and found.images.shape == (10, 1, 14, 14)
    blocks = [
        [np.rint(images[:10, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2))) for j in range(14)] for i in range(14)
    ]
    expected = np.moveaxis(np.array(blocks), -1, 0)
    np.testing.assert_array_equal(found.images[:, 0], expected)
    np.testing.assert_array_equal(found.labels, labels[:10])
    white = ImageSet("x", np.full((1, 3, 32, 32), 255, np.uint8), np.zeros(1, np.int64)).reduced(1)
    assert white.images.ravel().tolist() == [255, 255, 255]


def test_sizes_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ZooError, match="a side that divides 28 x 28"):
        image_sets.find("mnist-13x13", tmp_path)
    assert image_sets.find("mnist-14x7", tmp_path) is None
    assert image_sets.has_training_set("mnist-7x7") and not image_sets.has_training_set("textures-32x32")
    with pytest.raises(UnknownNameError):
        image_sets.load("unknown-14x14", "test", tmp_path)


def test_grey_images_have_margins_and_three_equal_channels(tmp_path: Path) -> None:
    images, labels = write(tmp_path)["test"]
    found = image_sets.find("mnist-3x32x32/test-10", tmp_path)
    assert found is not None and found.name == "mnist-3x32x32" and found.images.shape == (10, 3, 32, 32)
    expected = np.pad(images[:10], ((0, 0), (2, 2), (2, 2)))
    for channel in range(3):
        np.testing.assert_array_equal(found.images[:, channel], expected)
    np.testing.assert_array_equal(found.labels, labels[:10])
    # odd margins: the right and the lower one are wider
    odd = ImageSet("x", np.full((1, 3, 2, 1), 9, np.uint8), np.zeros(1, np.int64)).padded(4, 3)
    assert odd.images[0, 0].tolist() == [[0, 0, 0, 0], [0, 9, 0, 0], [0, 9, 0, 0], [0, 0, 0, 0]]
    assert image_sets.has_training_set("mnist-3x32x32") and have_same_classes("mnist-3x32x32", "svhn")
    for name, said in (("mnist-3x20x20", "at least 28"), ("mnist-9x9999x9999", "at most 8,589,934,592 bytes")):
        with pytest.raises(ZooError, match=said):
            image_sets.find(name, tmp_path)
    with pytest.raises(ZooError, match="3, or any number of grey images"):
        odd.padded(8, 1)


def test_perceptrons_train_on_the_first_small_images(tmp_path: Path) -> None:
    """A recipe with ``train_of`` sees the first images; perceptrons take images, in training and in predictions."""
    arrays = write(tmp_path)
    changes: dict[str, int] = {"train": 12, "train_of": 30, "test": 20, "epochs": 1, "batch": 5}
    recipe = dataclasses.replace(Recipe.load("mnist14-mlp"), **changes, architecture="mlp-196-4-10")
    source = sources.load(recipe, tmp_path)
    assert isinstance(source, data.Data) and source.train_images.shape == (12, 1, 14, 14)
    np.testing.assert_array_equal(source.train_labels, arrays["train"][1][:12])
    weights = []
    for engine in ("general", "single"):
        with open_trainer(recipe, source, engine=engine) as trainer:
            state = trainer.start([0, 1])
            trainer.advance(state, recipe.steps)
            assert np.isfinite(trainer.measure(state.weights)["test_loss"]).all()
        weights.append(state.weights["fc1.weight"])
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-6)
    with pytest.raises(SpecError, match="train_of"):
        dataclasses.replace(recipe, train_of=11)


def test_the_engine_for_narrow_perceptrons_leaves_wide_ones_alone() -> None:
    assert engines.usable(Recipe.load("energy-mlp"))[-1] == "mlp"
    assert engines.fastest(Recipe.load("mnist-mlp")) == "general"


def test_predictions_of_perceptrons_take_images(tmp_path: Path) -> None:
    arch = archs.architecture("mlp-12-5-3")
    zoo = written(tmp_path / "zoo", arch, weights_of(3, 0, arch=arch))
    images = RNG.standard_normal((7, 1, 3, 4)).astype(np.float32)
    assert derive.predict(zoo, images, set="mnist/test").checkpoints == 3
    assert derive.predict(zoo, images.reshape(7, 12), set="mnist/test").already == 3
    with pytest.raises(ZooError, match="shape of the inputs"):
        derive.predict(zoo, images[:, :, :2], set="mnist/other")

"""Data sets of images that recipes train on, as arrays of pixels and labels."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builders.recipe import ImageRecipe, Recipe
from ckptzoo import image_sets
from ckptzoo.errors import IntegrityError, MissingExtraError, Problem, UnknownNameError, ZooError
from ckptzoo.image_sets import FOLDER_VARIABLE as FOLDER_VARIABLE
from ckptzoo.image_sets import TRAINING_SETS, ImageSet
from ckptzoo.image_sets import folder_of as folder_of
from ckptzoo.image_sets.digits import read_digits
from ckptzoo.image_sets.image_set import Images, Labels, hash_array, hash_class_names

_DIGITS = "digits"


@dataclass(frozen=True, eq=False)
class Data:
    """A training and a test set. Images are (N, C, H, W) uint8, raw pixels, perhaps memory maps; labels are (N,) int64,
    from 0. ``class_names`` are in the order of the labels; None where the data set has none.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    class_names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, train: ImageSet, test: ImageSet) -> "Data":
        """Combine the two halves of a data set."""
        return cls(train.name, train.images, train.labels, test.images, test.labels, train.class_names)

    @property
    def classes(self) -> int:
        """The number of labels."""
        return int(self.train_labels.max()) + 1

    def half(self, name: str) -> tuple[Images, Labels]:
        """Return raw images (N, C, H, W) and labels (N,) of ``"train"`` or ``"test"``."""
        return getattr(self, f"{name}_images"), getattr(self, f"{name}_labels")

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of names, shapes and bytes of the four arrays, and of the class names where there are any.

        It is the same for every form that the data set is stored in. The axis of a single channel is left out of
        shapes: zoos of grey images hold digests that were made so.
        """
        total = hashlib.sha256()
        for name in ("train_images", "train_labels", "test_images", "test_labels"):
            array: NDArray[Any] = getattr(self, name)
            shape = array.shape[:1] + array.shape[2:] if array.shape[1:2] == (1,) else array.shape
            hash_array(total, array, f"{name} {shape}")
        hash_class_names(total, self.class_names)
        return "sha256:" + total.hexdigest()


def load(recipe: Recipe, folder: str | Path | None = None) -> Data:
    """Load the images that a recipe names; ``builders.sources.load`` loads the data of any recipe.

    ``folder`` has the files, or a subfolder of the data set's name; by default it is the environment variable
    ``CKPTZOO_DATA``, and where that is not set either the data set is fetched through ``datasets``. ``digits`` is
    bundled with scikit-learn and needs neither. ``ckptzoo.image_sets.find`` lists the forms.

    Raises ZooError: a file is missing, or nothing could be fetched. Raises IntegrityError: a file is not what it should
    be, or the recipe counts other images than there are.
    """
    if not image_sets.has_training_set(recipe.dataset):
        raise UnknownNameError(f"recipe {recipe.name!r}", "data set", recipe.dataset, (_DIGITS, *TRAINING_SETS))
    if recipe.dataset != _DIGITS:
        train_of = require_images(recipe).train_of or recipe.train
        halves = image_sets.load_halves(recipe.dataset, folder, {"train": train_of, "test": recipe.test})
        return Data.of(halves["train"].first(recipe.train), halves["test"])
    data = _digits(recipe)
    problems: list[Problem] = []
    for half, count in (("train", recipe.train), ("test", recipe.test)):
        images, labels = data.half(half)
        if len(images) != count or len(labels) != count:
            got = f"{len(images)} and {len(labels)}"
            step = "Correct the recipe, or use the whole data set."
            problems.append(Problem(data.name, f"{half} images and labels", f"{count} of each", got, step))
    if problems:
        raise IntegrityError(problems)
    return data


def inputs(recipe: Recipe, images: Images) -> NDArray[np.float32]:
    """Return (N, C, H, W) float32, the inputs from raw uint8 pixels: ``(pixel / 255 - mean) / std`` rounded once,
    with one mean and deviation or one a channel.
    """
    recipe = require_images(recipe)
    return image_sets.network_inputs(images, recipe.mean, recipe.std)


def require_images(recipe: Recipe) -> ImageRecipe:
    """Return a recipe that trains on images. Raises ZooError: it trains on something else."""
    if not isinstance(recipe, ImageRecipe):
        got = f"one for {type(recipe).__name__.removesuffix('Recipe').lower()} data"
        raise ZooError(Problem(f"recipe {recipe.name!r}", "inputs", "images", got, "Choose a recipe with images."))
    return recipe


def _digits(recipe: Recipe) -> Data:
    """Load scikit-learn's 1,797 digits, enlarged from 8x8 to 28x28, with a fixed shuffled split."""
    digits = read_digits()
    if digits is None:
        raise MissingExtraError("scikit-learn", "build")
    images, labels = digits
    # scikit-learn gives no split; ``read_digits`` has shuffled them by a fixed seed
    train, test = slice(recipe.train), slice(recipe.train, None)
    return Data(_DIGITS, images[train], labels[train], images[test], labels[test])


def from_datasets(name: str, splits: Mapping[str, Any]) -> Data:
    """Return a known data set from a ``datasets.DatasetDict`` as on the hub, with any number of images."""
    halves = image_sets.halves_from(name, splits)
    return Data.of(halves["train"], halves["test"])

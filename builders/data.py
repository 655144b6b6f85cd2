"""Data sets of images, as arrays of pixels and labels, checked before they are used."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builders.recipe import ImageRecipe, Recipe
from ckptzoo.errors import IntegrityError, MissingExtraError, Problem, UnknownNameError, ZooError, require
from ckptzoo.hub import test_sets
from ckptzoo.hub.test_sets import FOLDER_VARIABLE, folder_of

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Data:
    """A training and a test set.

    Parameters
    ----------
    name : of the data set.
    train_images, test_images : (N, 28, 28) uint8, raw pixels.
    train_labels, test_labels : (N,) int64, from 0.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return int(self.train_labels.max()) + 1

    def half(self, name: str) -> tuple[Images, Labels]:
        """Raw images (N, 1, 28, 28) and labels (N,) of ``"train"`` or ``"test"``."""
        return getattr(self, f"{name}_images")[:, None], getattr(self, f"{name}_labels")

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of names, shapes and bytes of the four arrays."""
        total = hashlib.sha256()
        for name in ("train_images", "train_labels", "test_images", "test_labels"):
            array = np.ascontiguousarray(getattr(self, name))
            # dtype.str names the byte order too, as in "<i8"
            total.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
            total.update(array.tobytes())
        return "sha256:" + total.hexdigest()


def load(recipe: Recipe, folder: str | Path | None = None) -> Data:
    """The images that a recipe names; ``builders.sources.load`` loads the data of any recipe.

    Parameters
    ----------
    recipe : names the data set and says how many images each half has.
    folder : where the files are, or a folder with a subfolder of the data set's name; by default the environment
        variable ``CKPTZOO_DATA``, and where that is not set either the data set is fetched through ``datasets``.
        ``digits`` is bundled with scikit-learn and needs neither.

    Raises
    ------
    ZooError
        A file is missing, or nothing could be fetched.
    IntegrityError
        A file is not what it should be, or the recipe counts other images than there are.
    """
    if recipe.dataset not in _LOADERS:
        raise UnknownNameError(f"recipe {recipe.name!r}", "data set", recipe.dataset, tuple(_LOADERS))
    data = _LOADERS[recipe.dataset](recipe, folder_of(folder))
    problems: list[Problem] = []
    for half, count in (("train", recipe.train), ("test", recipe.test)):
        images, labels = getattr(data, f"{half}_images"), getattr(data, f"{half}_labels")
        if len(images) != count or len(labels) != count:
            got = f"{len(images)} and {len(labels)}"
            step = "Correct the recipe, or use the whole data set."
            problems.append(Problem(data.name, f"{half} images and labels", f"{count} of each", got, step))
    if problems:
        raise IntegrityError(problems)
    return data


def inputs(recipe: Recipe, images: Images) -> NDArray[np.float32]:
    """(N, 1, H, W) float32: what the network sees of raw pixels, ``(pixel / 255 - mean) / std`` rounded once."""
    recipe = require_images(recipe)
    # a pixel has 256 values, so that each is computed once, in float64
    values = (np.arange(256) / 255 - recipe.mean) / recipe.std
    return values.astype(np.float32)[images[:, None]]


def require_images(recipe: Recipe) -> ImageRecipe:
    """A recipe that trains on images.

    Raises
    ------
    ZooError
        It trains on something else.
    """
    if not isinstance(recipe, ImageRecipe):
        got = f"one for {type(recipe).__name__.removesuffix('Recipe').lower()} data"
        raise ZooError(Problem(f"recipe {recipe.name!r}", "inputs", "images", got, "Choose a recipe with images."))
    return recipe


def _digits(recipe: Recipe, folder: Path | None) -> Data:
    """scikit-learn's 1,797 digits, enlarged from 8x8 to 28x28; a fixed shuffled split."""
    digits = test_sets.read_digits()
    if digits is None:
        raise MissingExtraError("scikit-learn", "build")
    images, labels = digits[0][:, 0], digits[1]
    train, test = slice(recipe.train), slice(recipe.train, None)
    return Data("digits", images[train], labels[train], images[test], labels[test])


def _mnist(recipe: Recipe, folder: Path | None) -> Data:
    """MNIST from the four idx files of a folder, or through ``datasets``."""
    if folder is None:
        return from_datasets("mnist", _fetch("ylecun/mnist"))
    folder = folder / "mnist" if (folder / "mnist").is_dir() else folder
    arrays: list[NDArray[Any]] = []
    for stem, count in (("train", recipe.train), ("t10k", recipe.test)):
        arrays.append(test_sets.read_idx(folder, f"{stem}-images-idx3-ubyte", (count, 28, 28)))
        arrays.append(test_sets.read_idx(folder, f"{stem}-labels-idx1-ubyte", (count,), largest=9).astype(np.int64))
    return Data("mnist", *arrays)


def _fetch(address: str) -> Mapping[str, Any]:
    datasets = require("datasets", "hub")
    try:
        return datasets.load_dataset(address)
    # datasets raises its own errors, those of huggingface_hub, httpx and fsspec, OSError and ValueError
    except Exception as error:
        got, step = (
            f"{type(error).__name__}: {error}",
            f"Name a folder that holds its files with --data or {FOLDER_VARIABLE}.",
        )
        raise ZooError(Problem(address, "data set", "to fetch it through datasets", got, step)) from error


def from_datasets(name: str, splits: Mapping[str, Any]) -> Data:
    """Arrays from a ``datasets.DatasetDict`` with splits train and test and columns image and label."""
    arrays: list[NDArray[Any]] = []
    for half in ("train", "test"):
        table = splits[half]
        arrays.append(np.stack([np.asarray(image, dtype=np.uint8) for image in table["image"]]))
        arrays.append(np.asarray(table["label"], dtype=np.int64))
    return Data(name, *arrays)


_LOADERS: dict[str, Callable[[Recipe, Path | None], Data]] = {"digits": _digits, "mnist": _mnist}

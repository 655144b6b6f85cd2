"""Loads the data of any recipe, brings it to a device, and makes its test inputs as networks see them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builders import data, tables
from builders.data import Data
from builders.data_source import DataSource, Feed, TabularData
from builders.recipe import GaussianRecipe, Recipe, TableRecipe
from builders.rng import normal_pair, philox, uniform
from builders.tables import Table
from ckptzoo.image_sets import folder_of
from ckptzoo.loader.permutation import derive_key


def load_gaussians(recipe: GaussianRecipe) -> Table:
    r"""Return the training and the test points of a recipe, class by class, in float32.

    Point i of a half has the label :math:`y = \lfloor i C / N \rfloor`, with C centres :math:`\mu_c` and N points, and
    is :math:`\mu_y + z`, z standard normal; the two halves are independent.
    """
    arrays: list[NDArray[np.float32]] = []
    for number, count in enumerate((recipe.train, recipe.test)):
        # the recipe's counts are multiples of the number of centres
        labels = np.repeat(np.arange(len(recipe.centres)), count // len(recipe.centres))
        centres = np.array(recipe.centres, dtype=np.float64)
        points = centres[labels] + normals(recipe.data_seed, number, count, centres.shape[1])
        arrays += [points.astype(np.float32), labels.astype(np.float32)]
    return Table(recipe.dataset, *arrays)


def normals(seed: int, stream: int, count: int, size: int) -> NDArray[np.float64]:
    r"""Return (count, size) independent standard normal numbers, the same for the same seed and stream. Numbers 2 b and
    2 b + 1 of a row are made by ``builders.rng.normal_pair`` of the first two words of Philox block (b, row, stream,
    0). The distribution is tested in ``tests/builders/test_tables.py``.
    """
    blocks = np.arange(-(-size // 2), dtype=np.int64)
    words = philox((blocks, np.arange(count, dtype=np.int64)[:, None], stream, 0), derive_key(seed))
    return np.stack(normal_pair(*map(uniform, words[:2])), axis=-1).reshape(count, -1)[:, :size]


Source = Data | Table
"""A data set: either has a ``name``, a ``digest`` and two halves."""


def load(recipe: Recipe, folder: str | Path | None = None) -> Source:
    """Load the data that a recipe names.

    The files are in ``folder``, or in a subfolder of the data set's name; by default it is the environment variable
    ``CKPTZOO_DATA``. Points drawn around centres need none, and some data sets can be fetched without.

    Raises ZooError as in ``builders.data.load`` and ``builders.tables.load``.
    """
    if isinstance(recipe, GaussianRecipe):
        return load_gaussians(recipe)
    if isinstance(recipe, TableRecipe):
        return tables.load(recipe, folder_of(folder))
    return data.load(recipe, folder)


def data_source(recipe: Recipe, source: Source, device: str) -> Feed:
    """Return the training set on a device, as engines read it."""
    if isinstance(source, Table):
        return TabularData.of(recipe, source, device)
    return DataSource.of(recipe, source, device)


def test_inputs(recipe: Recipe, source: Source, limit: int | None = None) -> NDArray[Any]:
    """Return the first test inputs as the network sees them, float32 (N, ...)."""
    if isinstance(source, Table):
        return source.test_inputs[:limit]
    return data.inputs(recipe, source.test_images[:limit])


def train_inputs(recipe: Recipe, source: Source, start: int, stop: int) -> NDArray[Any]:
    """Return training inputs as the network sees them, float32 (stop - start, ...), in order and not augmented."""
    if isinstance(source, Table):
        return source.train_inputs[start:stop]
    return data.inputs(recipe, source.train_images[start:stop])


def input_bytes(source: Source) -> int:
    """Return the bytes of one input in float32, as the network sees it."""
    return 4 * int(np.prod(source.half("train")[0].shape[1:]))

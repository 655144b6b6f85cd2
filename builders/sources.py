"""What a recipe trains on, of whatever kind: loading it, bringing it to a device, showing it as networks see it."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builders import data, gaussians, tables
from builders.data import Data
from builders.material import Feed, Material, Rows
from builders.recipe import GaussianRecipe, Recipe, TableRecipe
from builders.tables import Table

Source = Data | Table
"""Either has a ``name``, a ``digest`` and two halves."""


def load(recipe: Recipe, folder: str | Path | None = None) -> Source:
    """The data that a recipe names.

    Parameters
    ----------
    folder : where the files lie, or a folder with a subfolder of the data set's name; by default the environment
        variable ``CKPTZOO_DATA``. Points drawn around centres need none, and some data sets can be fetched without.

    Raises
    ------
    ZooError
        As in ``builders.data.load`` and ``builders.tables.load``.
    """
    if isinstance(recipe, GaussianRecipe):
        return gaussians.load(recipe)
    if isinstance(recipe, TableRecipe):
        return tables.load(recipe, data.folder_of(folder))
    return data.load(recipe, folder)


def material(recipe: Recipe, source: Source, device: str) -> Feed:
    """The training set on a device, as engines read it."""
    if isinstance(source, Table):
        return Rows.of(recipe, source, device)
    return Material.of(recipe, source, device)


def test_inputs(recipe: Recipe, source: Source, limit: int | None = None) -> NDArray[Any]:
    """float32 (N, ...): the first test inputs as the network sees them."""
    if isinstance(source, Table):
        return source.test_inputs[:limit]
    return data.inputs(recipe, source.test_images[:limit])


def input_bytes(source: Source) -> int:
    """How many bytes an input is in float32, as the network sees it."""
    return 4 * int(np.prod(source.half("train")[0].shape[1:]))

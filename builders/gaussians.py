"""Points drawn around the centres of classes: a data set that is a function of a recipe alone."""

import numpy as np
from numpy.typing import NDArray

from builders.philox import philox, uniform
from builders.recipe import GaussianRecipe
from builders.tables import Table
from ckptzoo.loader.order import derive_key


def load(recipe: GaussianRecipe) -> Table:
    r"""The training and the test points of a recipe, class by class, in float32.

    Point i of a half has the label :math:`y = \lfloor i C / N \rfloor`, with C centres :math:`\mu_c` and N points, and
    is :math:`\mu_y + z`, z standard normal; the two halves are independent.
    """
    arrays: list[NDArray[np.float32]] = []
    for number, count in enumerate((recipe.train, recipe.test)):
        labels = np.repeat(np.arange(len(recipe.centres)), count // len(recipe.centres))
        centres = np.array(recipe.centres, dtype=np.float64)
        points = centres[labels] + normals(recipe.data_seed, number, count, centres.shape[1])
        arrays += [points.astype(np.float32), labels.astype(np.float32)]
    return Table(recipe.dataset, *arrays)


def normals(seed: int, stream: int, count: int, size: int) -> NDArray[np.float64]:
    r"""(count, size) independent standard normal numbers, the same for the same seed and stream.

    :math:`\sqrt{-2 \log u}\,\cos 2 \pi v` and the same with the sine, for uniform u and v (Box and Muller, "A note on
    the generation of random normal deviates", 1958, equation 1). Number 2 b of a row is made of the first two words
    of Philox block (b, row, stream, 0), and so is number 2 b + 1.

    Notes
    -----
    ``tests/builders/test_tables.py`` holds the distribution.
    """
    blocks = np.arange(-(-size // 2), dtype=np.int64)
    words = philox((blocks, np.arange(count, dtype=np.int64)[:, None], stream, 0), derive_key(seed))
    u, v = (uniform(word) for word in words[:2])
    radius, angle = np.sqrt(-2 * np.log(u)), 2 * np.pi * v
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(count, -1)[:, :size]

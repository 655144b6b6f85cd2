"""The compiled engine for OptuNet on a CPU: a member's whole step in the cache of one core (extra ``fast``).

One member at a time, sixteen images at a time, one in each lane of a vector: crop, forward, backward, update, and the
draws of order and crops, in one loop that Numba compiles and that holds no lock of Python's. It is compiled when it is
first used and kept on disk: beside these files where they can be written, else in the user's cache or in the folder
that ``NUMBA_CACHE_DIR`` names. Members are trained one by one, so that a member's bits depend on nothing but its key,
the recipe, the data and the processor's kind.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from builders.data_source import DataSource
from builders.engines.compiled import rng
from builders.engines.compiled.training import Images, LaneBatch, SGDSettings, Tensors, batch_gradients, train
from builders.engines.compiled.workspace import PITCH, Workspace
from builders.engines.sgd import GradientStep
from builders.recipe import ImageRecipe
from builders.rng import dropout_threshold
from builders.state import Tensors as TensorsByName
from builders.state import TrainingState
from ckptzoo.errors import Problem, ZooError

_NAMES = ("conv1.weight", "conv2.weight", "fc.weight", "fc.bias")


def advance(data_source: DataSource, state: TrainingState, stop: int) -> None:
    """Take the steps of every member up to ``stop``, as every ``builders.engines.Engine``. Raises ZooError: the data is
    not on a CPU, or its images are not of 28x28 pixels.
    """
    recipe, members = data_source.recipe, len(state)
    train(
        Workspace.empty(),
        images(data_source),
        sgd_settings(recipe, state.step, stop),
        LaneBatch.empty(recipe.batch),
        state.keys,
        _rows(state.weights, members),
        _rows(state.momentum, members),
        state.step,
        stop,
    )
    state.step = stop


def gradient_steps(data_source: DataSource, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[GradientStep]:
    """Yield the steps with their gradients; raises as ``advance``."""
    recipe, workspace = data_source.recipe, Workspace.empty()
    settings, training_set, batch = (
        sgd_settings(recipe, start, stop),
        images(data_source),
        LaneBatch.empty(recipe.batch),
    )
    # memory for weights and gradients of all steps: what surrounds the loop costs as much as the loop for few members
    shapes = {name: (len(keys), *recipe.arch[name].shape) for name in _NAMES}
    points, slopes = ({name: torch.empty(shape) for name, shape in shapes.items()} for _ in range(2))
    point_rows, slope_rows = _rows(points, len(keys)), _rows(slopes, len(keys))

    def gradient(step: int, weights: TensorsByName) -> TensorsByName:
        for name, tensor in points.items():
            tensor.copy_(weights[name])
        batch_gradients(workspace, training_set, settings, batch, keys, point_rows, slope_rows, step)
        return slopes

    for step in range(start, stop):
        yield GradientStep(recipe.rates.learning_rate_at(step // recipe.epoch_steps), partial(gradient, step))


def images(data_source: DataSource) -> Images:
    """Return the training set as the compiled loop takes it; raises as ``advance`` does."""
    recipe = data_source.recipe
    size = data_source.crop_shape
    if data_source.device.type != "cpu" or size != (PITCH, PITCH):
        got = f"{size[0]}x{size[1]} on {data_source.device.type}"
        step = "Choose the engine optunet."
        raise ZooError(Problem("engine compiled", "images", "28x28 pixels on cpu", got, step))
    (mean,), (std,) = recipe.statistics(1)
    return Images(
        data_source.pixels.numpy(),
        data_source.labels.numpy(),
        data_source.height,
        data_source.width,
        recipe.crop_pad,
        # pixels are bytes: (p / 255 - mean) / std = (p - 255 mean) / (255 std), one product a pixel
        np.float32(255 * mean),
        np.float32(1 / (255 * std)),
    )


def sgd_settings(recipe: ImageRecipe, start: int, stop: int) -> SGDSettings:
    """Return the settings of the steps from ``start`` to ``stop``."""
    # a rate too many where ``stop`` ends an epoch; the loop reads only those of its steps
    epochs = range(start // recipe.epoch_steps, stop // recipe.epoch_steps + 1)
    return SGDSettings(
        recipe.train,
        recipe.batch,
        rng.side(recipe.train),
        np.array([recipe.rates.learning_rate_at(epoch) for epoch in epochs], np.float32),
        np.float32(recipe.weight_decay),
        np.float32(recipe.momentum),
        dropout_threshold(recipe.dropout),
        np.float32(1 / (1 - recipe.dropout)),
    )


def _rows(tensors: TensorsByName, members: int) -> Tensors:
    """Return the same memory as rows, one a member; without columns where there are no tensors."""
    rows: list[NDArray[np.float32]] = [
        tensors[name].view(members, -1).numpy() if tensors else np.empty((members, 0), np.float32) for name in _NAMES
    ]
    return rows[0], rows[1], rows[2], rows[3]

"""Stores the outputs of a recipe's networks on its test set, and on its out-of-distribution set, with their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from builders import data, losses, sources
from builders.build import write_page
from builders.recipe import ImageRecipe, Recipe
from builders.sources import Source
from ckptzoo import derive, image_sets
from ckptzoo.cli.options import bar
from ckptzoo.errors import Problem, ZooError
from ckptzoo.image_sets import Images


@dataclass(frozen=True, eq=False)
class InputSet:
    """A set of inputs, with a name such as ``mnist/test``.

    ``inputs`` are (N, ...) float32, as the network sees them; ``targets`` are (N,) int64 labels, None where they are
    not whole numbers, or not among the K outputs of the networks.
    """

    name: str
    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | None


NORMALISATIONS = ("own-statistics", "unnormalised")
"""Further normalisations of the out-of-distribution set: by its own mean and deviation, and as pixels divided by 255.
"""


def input_sets(
    recipe: Recipe, folder: str | Path | None = None, *, normalisations: Sequence[str] = ()
) -> tuple[InputSet, ...]:
    """Return the test set of a recipe, then its out-of-distribution set where it names one.

    That set is repeated in each of the ``normalisations``, as ``<name>/test-<normalisation>``. It is a subfolder of
    ``folder`` with its name, or a folder of its name beside that one.

    A recipe names the other set as ``svhn``, or as ``svhn/test-10000`` for its first 10,000 test images.

    Raises ZooError as in ``builders.sources.load``, or the other set is not there or of another shape.
    """
    source = sources.load(recipe, folder)
    targets = source.half("test")[1]
    labels, outputs = targets.astype(np.int64), losses.get(recipe.loss).outputs(source.half("train")[1])
    are_labels = np.array_equal(labels, targets) and bool(((labels >= 0) & (labels < outputs)).all())
    test_set = InputSet(f"{recipe.dataset}/test", sources.test_inputs(recipe, source), labels if are_labels else None)
    if not isinstance(recipe, ImageRecipe) or recipe.ood is None:
        return (test_set,)
    name, images = _ood_images(recipe, recipe.ood, source, folder)
    others = [InputSet(name, data.inputs(recipe, images), None)]
    for normalisation in normalisations:
        mean, std = _statistics(images) if normalisation == NORMALISATIONS[0] else (0.0, 1.0)
        shown = image_sets.network_inputs(images, mean, std)
        others.append(InputSet(f"{name}-{normalisation}", shown, None))
    return test_set, *others


def _ood_images(recipe: Recipe, ood: str, source: Source, folder: str | Path | None) -> tuple[str, Images]:
    """Return the name of a set of another data set, and its pixels (N, C, H, W)."""
    name = ood if "/" in ood else f"{ood}/test"
    dataset = name.partition("/")[0]
    data_folder = image_sets.folder_of(folder)
    # data sets lie beside one another; resolve: a link leads to where its neighbours are
    candidates = (None,) if data_folder is None else (data_folder, data_folder.resolve().parent / dataset)
    images = next((item for place in candidates if (item := image_sets.find(name, place)) is not None), None)
    if images is None:
        step = f"Name a folder that has it as {dataset}/, or beside it, with --data or {image_sets.FOLDER_VARIABLE}."
        got = "none" if data_folder is None else f"none in {data_folder / dataset} or {candidates[-1]}"
        raise ZooError(Problem(str(data_folder or "data"), "out-of-distribution set", dataset, got, step))
    expected, shape = source.half("test")[0].shape[1:], images.images.shape[1:]
    if shape != expected:
        step = "Name another set in the recipe."
        raise ZooError(Problem(dataset, "images", f"{expected}, as those of {source.name}", str(shape), step))
    return name, images.images


def _statistics(images: Images) -> tuple[float | list[float], float | list[float]]:
    """Return mean and deviation of pixels divided by 255; of each channel where there are several."""
    if images.shape[1] == 1:
        pixels = images / 255
        return float(pixels.mean()), float(pixels.std())
    channels = [images[:, channel] / 255 for channel in range(images.shape[1])]
    return [float(pixels.mean()) for pixels in channels], [float(pixels.std()) for pixels in channels]


def predict(zoo: str | Path, sets: Sequence[InputSet], console: Console, *, device: str = "cpu") -> None:
    """Store the outputs of every checkpoint on these sets, computed on a device; existing ones stay."""
    for item in sets:
        with bar(f"outputs on {item.name}") as progress:
            report = derive.predict(
                zoo, item.inputs, set=item.name, targets=item.targets, device=device, progress=progress
            )
        report.print(console)
    if sets:
        write_page(Path(zoo))

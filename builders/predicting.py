"""The outputs of a recipe's networks on its test set and on a set of other things, stored beside their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from builders import data, sources
from builders.build import describe
from builders.recipe import ImageRecipe, Recipe
from builders.sources import Source
from ckptzoo import derive
from ckptzoo.cli.output import bar
from ckptzoo.errors import ZooError
from ckptzoo.hub import heldout


@dataclass(frozen=True, eq=False)
class Shown:
    """A set of inputs.

    Parameters
    ----------
    name : such as ``mnist/test``.
    inputs : (N, ...) float32, as the network sees them.
    targets : (N,) int64 labels; None where they are not whole numbers, or not the networks' classes.
    """

    name: str
    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | None


def shown(recipe: Recipe, folder: str | Path | None = None) -> tuple[Shown, ...]:
    """The test set of a recipe, then its out-of-distribution set where it names one.

    Parameters
    ----------
    folder : where the data lies; see ``builders.sources.load``. The other set is a subfolder of its name.

    Raises
    ------
    ZooError
        As in ``builders.sources.load``, or the other set is not there or of another shape.
    """
    source = sources.load(recipe, folder)
    targets = source.half("test")[1]
    labels = targets.astype(np.int64)
    own = Shown(
        f"{recipe.dataset}/test",
        sources.test_inputs(recipe, source),
        labels if np.array_equal(labels, targets) and (labels >= 0).all() else None,
    )
    if not isinstance(recipe, ImageRecipe) or recipe.ood is None:
        return (own,)
    return own, Shown(f"{recipe.ood}/test", _others(recipe, recipe.ood, source, folder), None)


def _others(recipe: Recipe, name: str, source: Source, folder: str | Path | None) -> NDArray[Any]:
    """Images of other things, normalised as the recipe's own."""
    place = heldout.folder_of(folder)
    found = heldout.find(name, place)
    if found is None:
        step = f"Name a folder that has it as {name}/ with --data or {heldout.FOLDER_VARIABLE}."
        raise ZooError(f"{place or 'data'}: out-of-distribution set: expected {name}, got none. {step}")
    expected, shape = source.half("test")[0].shape[1:], found.images.shape[1:]
    if shape != expected:
        step = "Name another set in the recipe."
        raise ZooError(f"{name}: images: expected {expected}, as those of {source.name}, got {shape}. {step}")
    return data.inputs(recipe, found.images[:, 0])


def predict(zoo: str | Path, sets: Sequence[Shown], console: Console) -> None:
    """Store the outputs of every checkpoint on these sets; those that are there stay as they are."""
    for item in sets:
        with bar(f"outputs on {item.name}") as progress:
            found = derive.predict(zoo, item.inputs, set=item.name, targets=item.targets, progress=progress)
        found.print(console)
    if sets:
        describe(Path(zoo))

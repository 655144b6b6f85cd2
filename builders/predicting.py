"""The outputs of a recipe's networks on its test set and on a set of other things, stored beside their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from builders import data, losses, sources
from builders.build import describe
from builders.recipe import ImageRecipe, Recipe
from builders.sources import Source
from ckptzoo import derive
from ckptzoo.cli.options import bar
from ckptzoo.errors import ZooError
from ckptzoo.hub import test_sets


@dataclass(frozen=True, eq=False)
class Shown:
    """A set of inputs.

    Parameters
    ----------
    name : such as ``mnist/test``.
    inputs : (N, ...) float32, as the network sees them.
    targets : (N,) int64 labels; None where they are not whole numbers, or not among the K outputs of the networks.
    """

    name: str
    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | None


def shown(recipe: Recipe, folder: str | Path | None = None) -> tuple[Shown, ...]:
    """The test set of a recipe, then its out-of-distribution set where it names one.

    Parameters
    ----------
    folder : where the data lies; see ``builders.sources.load``. The other set is a subfolder of its name, or a folder
        of its name beside this one.

    Raises
    ------
    ZooError
        As in ``builders.sources.load``, or the other set is not there or of another shape.
    """
    source = sources.load(recipe, folder)
    targets = source.half("test")[1]
    labels, outputs = targets.astype(np.int64), losses.get(recipe.loss).outputs(source.half("train")[1])
    among = np.array_equal(labels, targets) and bool(((labels >= 0) & (labels < outputs)).all())
    own = Shown(f"{recipe.dataset}/test", sources.test_inputs(recipe, source), labels if among else None)
    if not isinstance(recipe, ImageRecipe) or recipe.ood is None:
        return (own,)
    return own, Shown(f"{recipe.ood}/test", _others(recipe, recipe.ood, source, folder), None)


def _others(recipe: Recipe, name: str, source: Source, folder: str | Path | None) -> NDArray[Any]:
    """Images of other things, normalised as the recipe's own."""
    place = test_sets.folder_of(folder)
    places = (None,) if place is None else (place, place.resolve().parent / name)
    found = next((item for here in places if (item := test_sets.find(name, here)) is not None), None)
    if found is None:
        step = f"Name a folder that has it as {name}/, or beside it, with --data or {test_sets.FOLDER_VARIABLE}."
        got = "none" if place is None else f"none in {place / name} or {places[-1]}"
        raise ZooError(f"{place or 'data'}: out-of-distribution set: expected {name}, got {got}. {step}")
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

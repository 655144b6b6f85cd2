"""Data sets of rows: tables as arrays of numbers, checked before they are used."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from builders.recipe import TableRecipe
from ckptzoo.errors import IntegrityError, Problem, UnknownNameError, ZooError
from ckptzoo.image_sets import FOLDER_VARIABLE
from ckptzoo.loader.permutation import derive_key, keyed_permutation

# recipes have means and deviations with about seven digits
_TOLERANCE = 1e-4
"""The largest difference of a mean or deviation from the recipe's, in deviations."""


@dataclass(frozen=True, eq=False)
class Table:
    """A training and a test set of rows. Inputs are (N, D) float32, as the network sees them, and targets (N,) float32,
    as the loss sees them: labels from 0, or numbers.
    """

    name: str
    train_inputs: NDArray[np.float32]
    train_targets: NDArray[np.float32]
    test_inputs: NDArray[np.float32]
    test_targets: NDArray[np.float32]

    def half(self, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return inputs (N, D) and targets (N,) of ``"train"`` or ``"test"``."""
        return getattr(self, f"{name}_inputs"), getattr(self, f"{name}_targets")

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of names, shapes and bytes of the four arrays."""
        total = hashlib.sha256()
        for name in ("train_inputs", "train_targets", "test_inputs", "test_targets"):
            array = np.ascontiguousarray(getattr(self, name))
            # dtype.str has the byte order
            total.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
            total.update(array.tobytes())
        return "sha256:" + total.hexdigest()


def load(recipe: TableRecipe, folder: Path | None) -> Table:
    """Load the table that a recipe names, split by a fixed shuffle and standardised.

    The first ``recipe.train`` rows of the shuffle are for training, the others for testing.

    The file is in ``folder``, or in a subfolder of the data set's name.

    Raises ZooError: there is no folder, or no such file in it. Raises IntegrityError: the file is not what it should
    be, or the recipe says other counts, means or deviations than there are.
    """
    if recipe.dataset not in _LOADERS:
        raise UnknownNameError(f"recipe {recipe.name!r}", "data set", recipe.dataset, tuple(_LOADERS))
    inputs, targets = _LOADERS[recipe.dataset](folder)
    # the same split for every recipe and version: the key of seed 0
    order = np.asarray(keyed_permutation(np.arange(len(inputs)), len(inputs), derive_key(0)))
    train, test = order[: recipe.train], order[recipe.train :]
    problems = list(_problems(recipe, inputs[train], targets[train], len(test)))
    if problems:
        raise IntegrityError(problems)
    scaled_inputs = ((inputs - np.array(recipe.mean)) / np.array(recipe.std)).astype(np.float32)
    scaled_targets = ((targets - recipe.target_mean) / recipe.target_std).astype(np.float32)
    return Table(recipe.dataset, scaled_inputs[train], scaled_targets[train], scaled_inputs[test], scaled_targets[test])


def _problems(
    recipe: TableRecipe, inputs: NDArray[np.float64], targets: NDArray[np.float64], test: int
) -> Iterator[Problem]:
    """Yield where the recipe differs from these training rows and the number of test rows."""
    location, step = f"recipe {recipe.name!r}", "Correct the recipe."
    if (recipe.train, recipe.test) != (len(inputs), test):
        yield Problem(
            location,
            "rows to train and test",
            f"{len(inputs) + test} in all",
            f"{recipe.train} and {recipe.test}",
            step,
        )
        return
    if len(recipe.mean) != inputs.shape[1]:
        yield Problem(location, "means and deviations", f"{inputs.shape[1]}, one a column", str(len(recipe.mean)), step)
        return
    columns = np.column_stack([inputs, targets])
    mean, std = columns.mean(0), columns.std(0)
    for key, measured, stated in (
        ("mean, target_mean", mean, (*recipe.mean, recipe.target_mean)),
        ("std, target_std", std, (*recipe.std, recipe.target_std)),
    ):
        if not (np.abs(measured - np.array(stated)) <= _TOLERANCE * std).all():
            expected = ", ".join(f"{value:.7g}" for value in measured)
            yield Problem(location, key, expected, ", ".join(f"{value:.7g}" for value in stated), step)


def _energy(folder: Path | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Load UCI energy efficiency: eight facts about each of 768 buildings, and the heating load (Y1)."""
    name, header = "ENB2012_data.csv", "X1,X2,X3,X4,X5,X6,X7,X8,Y1,Y2"
    source = f"Save the sheet of https://archive.ics.uci.edu/dataset/242/energy+efficiency as {name}"
    if folder is None:
        step = f"{source} and name its folder with --data or {FOLDER_VARIABLE}."
        raise ZooError(Problem("energy", "data", f"a folder with {name}", "none", step))
    folder = folder / "energy" if (folder / "energy").is_dir() else folder
    path = folder / name
    if not path.is_file():
        raise ZooError(Problem(str(folder), "data", name, "no such file", f"{source} there."))
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines[:1] != [header]:
        raise _file_error(path, "first line", header, (lines or ["nothing"])[0][:80])
    try:
        values = np.array([[float(item) for item in line.split(",")] for line in lines[1:]])
    except ValueError as error:
        raise _file_error(path, "rows", "ten numbers each", str(error)[:200]) from error
    if values.shape != (768, 10) or not np.isfinite(values).all():
        raise _file_error(path, "rows", "768 of ten finite numbers", f"{len(lines) - 1}, shape {values.shape}")
    return values[:, :8], values[:, 8]


def _file_error(path: Path, what: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(path.name, what, expected, got, "Fetch the file again."))


_LOADERS: dict[str, Callable[[Path | None], tuple[NDArray[np.float64], NDArray[np.float64]]]] = {"energy": _energy}

"""Recipes: everything that decides how a member is trained, read from ``builders/recipes/*.toml``."""

import dataclasses
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from builders import draws
from ckptzoo import archs
from ckptzoo.errors import Problem, SpecError, UnknownNameError
from ckptzoo.spec.document import digest_of

FOLDER = Path(__file__).parent / "recipes"
_STEP = "Correct the recipe."


@dataclass(frozen=True)
class Recipe:
    """Plain stochastic gradient descent with momentum on cropped images.

    Parameters
    ----------
    name : letters, digits and hyphens; the beginning of every checkpoint's id.
    architecture : a name in ``ckptzoo.archs``.
    dataset : a name in ``builders.data``.
    train, test : images of the training and the test set; the data must agree.
    epochs, batch : an epoch visits every training image once; its last batch holds what is left over.
    learning_rate, momentum, weight_decay : of ``torch.optim.SGD``.
    milestones, factor : the learning rate is multiplied by ``factor`` at the start of each of these epochs.
    crop_pad : raw pixels of 0 added on every side before a crop of the original size.
    mean, std : of the training pixels divided by 255; inputs are ``(pixel / 255 - mean) / std``.
    summary : a sentence for people; not part of the digest.
    full_epochs : epochs of the recipe that this one shortens; None where it is the recipe itself.
    """

    name: str
    architecture: str
    dataset: str
    train: int
    test: int
    epochs: int
    batch: int
    learning_rate: float
    momentum: float
    weight_decay: float
    milestones: tuple[int, ...]
    factor: float
    crop_pad: int
    mean: float
    std: float
    summary: str = ""
    full_epochs: int | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise SpecError(problems)

    @classmethod
    def load(cls, name: str | Path) -> "Recipe":
        """A recipe of ``builders/recipes`` by name, or any by the path of its ``.toml`` file.

        Raises
        ------
        UnknownNameError
            No such recipe.
        SpecError
            With every problem found.
        """
        path = Path(name) if str(name).endswith(".toml") else FOLDER / f"{name}.toml"
        if not path.is_file():
            raise UnknownNameError("builders", "recipe", str(name), names())
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SpecError(Problem(path.name, "TOML", "a recipe", str(error), _STEP)) from error
        known = {field.name: field for field in fields(cls) if field.name != "full_epochs"}
        needed = [key for key, field in known.items() if field.default is dataclasses.MISSING]
        problems = [
            Problem(path.name, f"key {key!r}", "a key of builders/recipe.py", "an unknown one", _STEP)
            for key in content
            if key not in known
        ]
        problems += [
            Problem(path.name, f"key {key!r}", "a value", "none", _STEP) for key in needed if key not in content
        ]
        if problems:
            raise SpecError(problems)
        made: dict[str, Any] = {key: tuple(value) if type(value) is list else value for key, value in content.items()}
        return cls(**made)

    def shortened(self, epochs: int) -> "Recipe":
        """The same recipe for another number of epochs; another digest, so that the two are never mixed up."""
        if epochs == self.epochs:
            return self
        return dataclasses.replace(self, epochs=epochs, full_epochs=self.full_epochs or self.epochs)

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of everything that decides the weights, the summary left out."""
        content = dataclasses.asdict(self)
        del content["summary"]
        return digest_of({**content, "milestones": list(self.milestones), "draws": draws.VERSION})

    @property
    def prefix(self) -> str:
        """How the ids of its members begin: the name and the first 8 digits of the digest."""
        return f"{self.name}-{self.digest.removeprefix('sha256:')[:8]}"

    @property
    def epoch_steps(self) -> int:
        """Optimiser steps of one epoch, the last short batch counted."""
        return -(-self.train // self.batch)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.epochs * self.epoch_steps

    def rate(self, epoch: int) -> float:
        """The learning rate during an epoch, counted from 0."""
        return self.learning_rate * self.factor ** sum(epoch >= milestone for milestone in self.milestones)

    def facts(self) -> dict[str, Any]:
        """The recipe's numbers, for the ``extra`` column."""
        content = {key: value for key, value in dataclasses.asdict(self).items() if key not in ("name", "summary")}
        return {**content, "milestones": list(self.milestones)}


def names() -> tuple[str, ...]:
    """Every recipe of ``builders/recipes``."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def _problems(recipe: Recipe) -> Iterator[Problem]:
    def wrong(key: str, expected: str) -> Problem:
        return Problem(f"recipe {recipe.name!r}", key, expected, repr(getattr(recipe, key)), _STEP)

    name = recipe.name
    if not isinstance(name, str) or not name.replace("-", "").isalnum() or not name.isascii():
        yield wrong("name", "letters, digits and hyphens")
    if not archs.known(recipe.architecture):
        yield wrong("architecture", "one of " + ", ".join(archs.names()))
    for key in ("dataset", "summary"):
        if not isinstance(getattr(recipe, key), str):
            yield wrong(key, "a string")
    for key, least, most in (
        ("train", 1, 2**31),
        ("test", 1, 2**31),
        ("epochs", 1, 10**6),
        ("batch", 1, 2**20),
        ("crop_pad", 0, 2**10),
    ):
        value = getattr(recipe, key)
        if type(value) is not int or not least <= value <= most:
            yield wrong(key, f"an integer from {least} to {most}")
    for key, least in (("learning_rate", 0.0), ("momentum", 0.0), ("weight_decay", 0.0), ("factor", 0.0)):
        if not _finite(getattr(recipe, key)) or getattr(recipe, key) < least:
            yield wrong(key, f"a finite number, at least {least:g}")
    if not _finite(recipe.mean):
        yield wrong("mean", "a finite number")
    if not _finite(recipe.std) or recipe.std <= 0:
        yield wrong("std", "a finite number above 0")
    milestones = recipe.milestones
    if not isinstance(milestones, tuple) or any(type(item) is not int or item < 1 for item in milestones):
        yield wrong("milestones", "a list of epochs, at least 1")
    elif list(milestones) != sorted(set(milestones)):
        yield wrong("milestones", "rising epochs")


def _finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # pyright: ignore[reportArgumentType]

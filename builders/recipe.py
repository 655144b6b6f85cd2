"""Recipes: everything that decides how a member is trained, read from ``builders/recipes/*.toml``."""

import dataclasses
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from builders import rng, schedules
from builders.schedules import CosineSchedule, MilestoneSchedule, Schedule
from ckptzoo import archs
from ckptzoo.errors import Problem, SpecError, UnknownNameError, ZooError, suggestion
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import digest_of, read_toml

FOLDER = Path(__file__).parent / "recipes"
CROSS_ENTROPY = "cross-entropy"
"""The loss where a recipe names none."""
FLOAT32, TF32, BFLOAT16, FLOAT64 = "float32", "tf32", "bfloat16", "float64"
PRECISIONS = (FLOAT32, TF32, BFLOAT16, FLOAT64)
"""The values of the key ``precision``."""
_LATER_KEYS: dict[str, Any] = {
    "loss": CROSS_ENTROPY,
    "warmup": 0,
    "warmup_from": 0.0,
    "dropout": 0.0,
    "schedule": schedules.MILESTONES,
    "nesterov": False,
    "precision": FLOAT32,
    "flip": False,
    "train_of": None,
}
"""Keys that came after the first recipes, and what is meant where one is missing."""
UNITS = {
    "train": "examples",
    "test": "examples",
    "epochs": "epochs",
    "batch": "examples",
    "learning_rate": "weight per unit of gradient",
    "momentum": "share, 0 or more",
    "weight_decay": "per step, times the learning rate",
    "milestones": "epochs",
    "factor": "factor",
    "warmup": "epochs",
    "warmup_from": "as `learning_rate`",
    "dropout": "probability, 0 to below 1",
    "full_epochs": "epochs",
    "crop_pad": "pixels",
    "mean": "that of the inputs",
    "std": "that of the inputs",
    "train_of": "examples",
    "target_mean": "that of the target",
    "target_std": "that of the target",
    "centres": "that of the inputs",
}
"""The units of the numbers of recipes; other keys are names, texts and switches."""
_STEP = "Correct the recipe."


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Plain stochastic gradient descent with momentum; the recipes derived from it say what the inputs are.

    Parameters
    ----------
    name
        letters, digits and hyphens; the beginning of every checkpoint's id.
    architecture
        a name in ``ckptzoo.archs``.
    dataset
        the name of the data set.
    train
        size of the training set; the data must agree.
    test
        size of the test set; the data must agree.
    epochs
        how often every training example is visited.
    batch
        examples of one optimiser step; the last batch of an epoch holds what is left over.
    learning_rate
        of ``torch.optim.SGD``, before the first milestone and behind the warm-up.
    momentum
        of ``torch.optim.SGD``: the share of the last step's velocity that is kept.
    weight_decay
        of ``torch.optim.SGD``: this times the weight is added to the gradient of every parameter, of no buffer.
    milestones
        epochs, counted from 0, from which on the learning rate is multiplied by ``factor`` once more.
    factor
        what the learning rate is multiplied by at each milestone.
    warmup
        epochs at the beginning in which the learning rate moves in equal steps from ``warmup_from``.
    warmup_from
        the learning rate before the first epoch of a warm-up.
    nesterov
        whether the momentum is Nesterov's.
    schedule
        ``milestones``, or ``cosine``: half a cosine from ``learning_rate`` down, with neither milestones nor a warm-up.
    precision
        of the arithmetic of training: ``float32``; ``tf32``, whose matrix products and convolutions round their factors
        to 10 bits; ``bfloat16``, which computes them in that type (autocast) while weights, momentum and statistics
        stay float32; ``float64``, in which all of these are. Checkpoints and measures are float32.
    dropout
        the probability with which each input of the last linear layer is set to 0 in training, again for each example;
        the others are divided by 1 - ``dropout``.
    loss
        a name in ``builders.losses``: what the mean over a batch is taken of.
    summary
        a sentence for people; not part of the digest.
    full_epochs
        epochs of the recipe that this one shortens; None where it is the recipe itself.
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
    loss: str = CROSS_ENTROPY
    warmup: int = 0
    warmup_from: float = 0.0
    dropout: float = 0.0
    schedule: str = schedules.MILESTONES
    nesterov: bool = False
    precision: str = FLOAT32
    summary: str = ""
    full_epochs: int | None = None

    def __post_init__(self) -> None:
        problems = [*_problems(self), *self.input_problems()]
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
            is_path = str(name).endswith(".toml")
            hint = "There is no such file: correct its path, or name one of these without .toml." if is_path else None
            raise UnknownNameError("builders", "recipe", str(name), names(), hint)
        content = read_toml(path, expected="a recipe in TOML", step=_STEP, location=path.name)
        return cls.from_content(content, location=path.name, excluded=("full_epochs",))

    @classmethod
    def from_content(cls, content: Mapping[str, Any], *, location: str, excluded: Collection[str] = ()) -> "Recipe":
        """The recipe with these keys and values, as JSON or TOML has them.

        Parameters
        ----------
        content
            the keys and values.
        location
            where they are, for errors.
        excluded
            keys that may not be there.

        Raises
        ------
        SpecError
            With every problem found.
        """
        kind = content.get("inputs", _IMAGES)
        recipe_class = KINDS.get(kind) if isinstance(kind, str) else None
        if recipe_class is None:
            raise SpecError(Problem(location, "key 'inputs'", "one of " + ", ".join(KINDS), repr(kind), _STEP))
        values = {key: _as_tuples(value) for key, value in content.items() if key != "inputs"}
        known = {field.name: field for field in fields(recipe_class) if field.name not in excluded}
        needed = [key for key, field in known.items() if field.default is dataclasses.MISSING]
        unknown, listed = [key for key in values if key not in known], ", ".join(known)
        problems = [
            Problem(location, f"key {key!r}", f"one of {listed}", "an unknown one", suggestion(key, list(known), _STEP))
            for key in unknown
        ]
        problems += [Problem(location, f"key {key!r}", "a value", "none", _STEP) for key in needed if key not in values]
        if problems:
            raise SpecError(problems)
        return recipe_class(**cast(dict[str, Any], values))

    @classmethod
    def of(
        cls,
        recipe: "Recipe | str | Path",
        epochs: int | None = None,
        precision: str | None = None,
        architecture: str | None = None,
    ) -> "Recipe":
        """A recipe, or the one of this name or file; for other epochs, in another precision, for another architecture.

        Each makes another recipe, with its own digest.
        """
        whole = recipe if isinstance(recipe, Recipe) else cls.load(recipe)
        whole = whole if epochs is None else whole.shortened(epochs)
        given = {"precision": precision, "architecture": architecture}
        return dataclasses.replace(whole, **{key: value for key, value in given.items() if value is not None})

    def shortened(self, epochs: int) -> "Recipe":
        """The same recipe for another number of epochs; another digest, so that the two are never mixed up."""
        if epochs == self.epochs:
            return self
        # of one that was shortened before, still the epochs of the original
        return dataclasses.replace(self, epochs=epochs, full_epochs=self.full_epochs or self.epochs)

    @cached_property
    def arch(self) -> Architecture:
        """The architecture of its name."""
        return archs.architecture(self.architecture)

    @cached_property
    def rates(self) -> Schedule:
        """The learning rate of each epoch."""
        if self.schedule == schedules.COSINE:
            return CosineSchedule(self.learning_rate, self.epochs)
        return MilestoneSchedule(self.learning_rate, self.milestones, self.factor, self.warmup, self.warmup_from)

    @cached_property
    def head(self) -> str:
        """The name of the last linear layer's weight: the last tensor of two axes (outputs, inputs)."""
        return next(tensor.name for tensor in reversed(self.arch.tensors) if len(tensor.shape) == 2)

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of everything that decides the weights, the summary left out."""
        content = self._content()
        del content["summary"]
        return digest_of({**content, "draws": rng.VERSION})

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

    def steps_to_keep(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Rising optimiser steps at which checkpoints are kept: these and the last.

        Raises
        ------
        ZooError
            One of them is not a step of the training.
        """
        wrong = [step for step in steps if not 0 <= step <= self.steps]
        if wrong:
            expected = f"0 to {self.steps} ({self.epochs} epochs of {self.epoch_steps} steps)"
            raise ZooError(Problem("build", "steps to keep", expected, str(wrong[0]), "Choose steps of the training."))
        return tuple(sorted({*steps, self.steps}))

    def facts(self) -> dict[str, Any]:
        """The recipe's numbers, for the ``extra`` column."""
        return {key: value for key, value in self._content().items() if key not in ("name", "summary")}

    @property
    def content(self) -> dict[str, Any]:
        """The keys and values from which ``from_content`` makes the same recipe; those with their default left out."""
        kind = next(name for name, recipe_class in KINDS.items() if type(self) is recipe_class)
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        content = {key: value for key, value in given.items() if value != defaults[key]}
        return content if kind == _IMAGES else {"inputs": kind, **content}

    def to_toml(self) -> str:
        """The text of a file from which ``load`` reads the same recipe, but for ``full_epochs``, which no file has."""
        # strings, numbers, lists and booleans are written in TOML as in JSON
        lines = (
            f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
            for key, value in self.content.items()
            if key != "full_epochs"
        )
        return "".join(lines)

    def input_problems(self) -> Iterator[Problem]:
        """The problems of the keys that describe the inputs."""
        yield from ()

    def _content(self) -> dict[str, Any]:
        """Every key and value; defaults of keys that the first recipes lacked are left out: their digests stay."""
        content = dataclasses.asdict(self)
        for key, default in _LATER_KEYS.items():
            if key in content and content[key] == default:
                del content[key]
        return {**content, "milestones": list(self.milestones)}

    def problem_with(self, key: str, expected: str) -> Problem:
        """The problem of a key that has another value than it should."""
        return Problem(f"recipe {self.name!r}", key, expected, repr(getattr(self, key)), _STEP)


@dataclass(frozen=True, kw_only=True)
class ImageRecipe(Recipe):
    """Training on random crops of images.

    Parameters
    ----------
    crop_pad
        raw pixels of 0 added on every side before a crop of the original size.
    flip
        whether crops are mirrored, their columns reversed, each with probability 1/2.
    mean
        of the training pixels divided by 255, one number or one a channel; inputs are ``(pixel / 255 - mean) / std``,
        computed last, so that the padding is raw 0 and not the mean.
    std
        the standard deviation of the same, one number or one a channel.
    ood
        a data set of other things, whose test images can be shown to the networks; not part of the digest.
    train_of
        the images of the training set, of which the first ``train`` are used; None where these are all.
    """

    crop_pad: int
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    flip: bool = False
    ood: str | None = None
    train_of: int | None = None

    def statistics(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The mean and the deviation of each channel.

        Raises
        ------
        ZooError
            The recipe has those of another number of channels.
        """
        mean, std = (values if isinstance(values, tuple) else (values,) * channels for values in (self.mean, self.std))
        if len(mean) != channels:
            expected = f"one number, or {channels}: one a channel of the images"
            raise ZooError(self.problem_with("mean", expected))
        return mean, std

    def input_problems(self) -> Iterator[Problem]:
        if type(self.crop_pad) is not int or not 0 <= self.crop_pad <= 2**10:
            yield self.problem_with("crop_pad", f"an integer from 0 to {2**10}")
        if type(self.flip) is not bool:
            yield self.problem_with("flip", "true or false")
        if isinstance(self.mean, tuple):
            if not self.mean or not all(map(_finite, self.mean)):
                yield self.problem_with("mean", "a finite number, or a list of one a channel")
            elif not _positives(self.std, len(self.mean)):
                yield self.problem_with("std", f"{len(self.mean)} finite numbers above 0, as many as in mean")
        else:
            if not _finite(self.mean):
                yield self.problem_with("mean", "a finite number, or a list of one a channel")
            if not _positive(self.std):
                yield self.problem_with("std", "a finite number above 0, as mean is one number")
        if self.ood is not None and (not isinstance(self.ood, str) or self.ood == self.dataset):
            yield self.problem_with("ood", "the name of another data set")
        if self.train_of is not None and (type(self.train_of) is not int or not self.train <= self.train_of <= 2**31):
            yield self.problem_with("train_of", "an integer from the number of training images, train")

    def _content(self) -> dict[str, Any]:
        """The set that no training uses is left out."""
        content = super()._content()
        del content["ood"]
        return content


@dataclass(frozen=True, kw_only=True)
class TableRecipe(Recipe):
    """Training on the rows of a table, all of whose columns are standardised.

    Parameters
    ----------
    mean
        one a column, of the training rows; inputs are ``(value - mean) / std``. The data must agree.
    std
        the standard deviations of the same columns.
    target_mean
        of the training rows' target; the network predicts ``(target - target_mean) / target_std``.
    target_std
        the standard deviation of the same.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    target_mean: float
    target_std: float

    def input_problems(self) -> Iterator[Problem]:
        if not isinstance(self.mean, tuple) or not all(map(_finite, self.mean)):
            yield self.problem_with("mean", "a list of finite numbers")
        elif not _positives(self.std, len(self.mean)):
            yield self.problem_with("std", f"{len(self.mean)} finite numbers above 0, as many as in mean")
        if not _finite(self.target_mean):
            yield self.problem_with("target_mean", "a finite number")
        if not _positive(self.target_std):
            yield self.problem_with("target_std", "a finite number above 0")


@dataclass(frozen=True, kw_only=True)
class GaussianRecipe(Recipe):
    """Training on points drawn around the centres of classes, as they are.

    Parameters
    ----------
    centres
        one point a class; the classes are normal with the identity as covariance, and equally large.
    data_seed
        of the points, which are the same for every member.
    """

    centres: tuple[tuple[float, ...], ...]
    data_seed: int

    def input_problems(self) -> Iterator[Problem]:
        centres = self.centres
        points = isinstance(centres, tuple) and all(isinstance(point, tuple) and point for point in centres)
        if not points or len(centres) < 2 or len({len(point) for point in centres}) > 1:
            yield self.problem_with("centres", "a list of two or more points of equal length")
        elif not all(_finite(value) for point in centres for value in point):
            yield self.problem_with("centres", "finite numbers")
        else:
            for key in ("train", "test"):
                if type(getattr(self, key)) is int and getattr(self, key) % len(centres):
                    yield self.problem_with(key, f"a multiple of {len(centres)}, the number of centres")
        if type(self.data_seed) is not int or not 0 <= self.data_seed < 2**63:
            yield self.problem_with("data_seed", "an integer from 0 to 2**63 - 1")


_IMAGES = "images"
KINDS: dict[str, type[Recipe]] = {_IMAGES: ImageRecipe, "table": TableRecipe, "gaussians": GaussianRecipe}
"""The values of the key ``inputs`` of a recipe's file; images where it is left out."""


def names() -> tuple[str, ...]:
    """Every recipe of ``builders/recipes``."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def _problems(recipe: Recipe) -> Iterator[Problem]:
    wrong, name = recipe.problem_with, recipe.name
    if not isinstance(name, str) or not name.replace("-", "").isalnum() or not name.isascii():
        yield wrong("name", "letters, digits and hyphens")
    if not archs.known(recipe.architecture):
        yield wrong("architecture", "one of " + ", ".join(archs.names()))
    for key in ("dataset", "loss", "summary"):
        if not isinstance(getattr(recipe, key), str):
            yield wrong(key, "a string")
    # positions and epochs are words of 32 bits in the counters of builders.rng
    for key, least, most in (("train", 1, 2**31), ("test", 1, 2**31), ("epochs", 1, 10**6), ("batch", 1, 2**20)):
        value = getattr(recipe, key)
        if type(value) is not int or not least <= value <= most:
            yield wrong(key, f"an integer from {least} to {most}")
    if recipe.full_epochs is not None and (type(recipe.full_epochs) is not int or not 1 <= recipe.full_epochs <= 10**6):
        yield wrong("full_epochs", f"none, or an integer from 1 to {10**6}")
    for key in ("momentum", "weight_decay"):
        if not _finite(getattr(recipe, key)) or getattr(recipe, key) < 0:
            yield wrong(key, "a finite number, at least 0")
    if not _finite(recipe.dropout) or not 0 <= recipe.dropout < 1:
        yield wrong("dropout", "a number from 0 to below 1")
    if recipe.schedule not in schedules.NAMES:
        yield wrong("schedule", " or ".join(schedules.NAMES))
    if recipe.schedule == schedules.COSINE:
        for key, unused in (("milestones", ()), ("warmup", 0)):
            if getattr(recipe, key) != unused:
                yield wrong(key, f"{unused!r}, because the schedule {schedules.COSINE} has none")
    if type(recipe.nesterov) is not bool:
        yield wrong("nesterov", "true or false")
    elif recipe.nesterov and recipe.momentum == 0:
        yield wrong("nesterov", "false, because there is no momentum")
    if recipe.precision not in PRECISIONS:
        is_half = recipe.precision == "float16"
        reason = " (float16 needs loss scaling, which skips steps and is one more state)" if is_half else ""
        yield wrong("precision", f"one of {', '.join(PRECISIONS)}{reason}")
    for key, expected in recipe.rates.wrong_values():
        yield wrong(key, expected)


def _finite(value: object) -> bool:
    # not isinstance: TOML's true is an int for Python
    return type(value) in (int, float) and math.isfinite(value)  # pyright: ignore[reportArgumentType]


def _positive(value: object) -> bool:
    return _finite(value) and value > 0  # pyright: ignore[reportOperatorIssue]


def _positives(values: object, count: int) -> bool:
    return isinstance(values, tuple) and len(values) == count and all(map(_positive, values))


def _as_tuples(value: object) -> object:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value

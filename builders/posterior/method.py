"""A posterior method: a chain of optimiser steps, the moments at which draws are taken, and the draws."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from builders import engines, rng
from builders.data_source import Feed
from builders.engines.sgd import GradientStep
from builders.posterior.batch_norm import renewed_statistics
from builders.recipe import FOLDER, Recipe
from builders.schedules import MILESTONES
from builders.sources import Source
from builders.state import Tensors, TrainingState
from ckptzoo.errors import Problem, SpecError, suggestion
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import digest_of, read_toml

SETTINGS = FOLDER / "posterior"
"""The settings of every method, ``<method>.toml``, or ``<method>-<architecture>.toml`` where an architecture has its
own, or all whose names begin alike, as in ``dropout-resnet18.toml``; each number comes with its source."""
# 2^18 float64 numbers are 2 MiB
_STEPS_AT_ONCE, _NUMBERS_AT_ONCE = 16, 2**18
"""Steps whose noise is drawn at once, and numbers that are drawn at once at most."""
VERSION = 1
"""Part of every method's digest: raised when the same settings would give other draws."""
_STEP = "Correct the settings."


def number(least: float, most: float = math.inf, *, above: bool = False, whole: bool = False) -> Any:
    """A setting: a number from ``least`` (or above it) to ``most``, an integer where ``whole``."""
    return field(metadata={"least": least, "most": most, "above": above, "whole": whole})


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The environment of a method: the training set as loaded, ``source``, and as engines read it by the recipe of the
    chain, ``data_source``; and the name of the engine that takes steps or evaluates gradients.
    """

    data_source: Feed
    source: Source
    engine: str

    def train(self, state: TrainingState, stop: int) -> None:
        """Plain training by the recipe of the chain, in place."""
        engines.get(self.engine)(self.data_source, state, stop)

    def gradient_steps(self, state: TrainingState, stop: int) -> Iterator[GradientStep]:
        """The steps of a state up to ``stop``, each with its gradient at any weights."""
        return engines.gradient_steps(self.engine)(self.data_source, state.keys, state.step, stop)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """An approximate posterior of the networks that a recipe trains; what the derived ones add are its settings.

    Parameters
    ----------
    recipe
        whose posterior it is.
    """

    unit_size: ClassVar[int | None] = None
    """Modes that advance together at most, where their states are large or their steps are long."""
    one_at_a_time: ClassVar[bool] = False
    """Whether modes advance one after another, so that how many there are makes none of them faster."""
    sampler: ClassVar[str | None] = None
    """The name of the sampler that takes the steps, where no engine does."""
    name: ClassVar[str]
    """As it is asked for, and as the column ``method`` has it."""
    starts: ClassVar[str] = "chain"
    """The kind of mode: a ``member`` of a zoo that the recipe trained, or a ``chain`` that starts at random weights."""

    recipe: Recipe

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise SpecError(problems)

    @classmethod
    def load(cls, recipe: Recipe, path: str | Path | None = None, changes: Mapping[str, Any] | None = None) -> Self:
        """The method with its settings from a file, by default that of its name, and changes to them.

        Raises
        ------
        SpecError
            With every problem found: unknown or missing settings, values that are out of range, an architecture that
            the method cannot serve.
        """
        family = recipe.architecture.partition("-")[0]
        names = (f"{cls.name}-{recipe.architecture}", f"{cls.name}-{family}", cls.name)
        own = next(file for name in names if (file := SETTINGS / f"{name}.toml").is_file())
        file = own if path is None else Path(path)
        values = read_toml(file, expected=f"settings of {cls.name} in TOML", step=_STEP, location=file.name)
        values |= changes or {}
        # what has a default is decided elsewhere
        known = {item.name for item in fields(cls) if item.default is dataclasses.MISSING} - {"recipe"}
        listed = ", ".join(sorted(known))
        unknown, missing = [key for key in values if key not in known], sorted(known - set(values))
        problems = [
            Problem(
                file.name, f"key {key!r}", f"one of {listed}", "an unknown one", suggestion(key, sorted(known), _STEP)
            )
            for key in unknown
        ]
        problems += [Problem(file.name, f"key {key!r}", "a value", "none", _STEP) for key in missing]
        if problems:
            raise SpecError(problems)
        return cls(recipe=recipe, **values)

    # What a method is.

    @property
    @abstractmethod
    def chain(self) -> Recipe:
        """The recipe by which the steps of a chain meet the data: order, batches, crops, learning rate."""

    @property
    def steps(self) -> int:
        """Optimiser steps from the start of a mode to its last draw."""
        return self.chain.steps

    @property
    def max_draws(self) -> int | None:
        """The number of draws that a mode has at most, where it is limited."""
        return None

    def stops(self, numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
        """The rising steps at which draws are taken, and which of these draws; by default all of them at the end."""
        return [(self.steps, list(numbers))]

    def start(self, surroundings: Surroundings, keys: NDArray[np.uint64], weights: Tensors | None) -> TrainingState:
        """The state from which modes proceed: these weights, or freshly initialised ones."""
        device = surroundings.data_source.device
        if weights is None:
            arrays = rng.initial_weights(self.recipe.arch, keys)
            weights = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        else:
            # a state changes in place
            weights = {name: tensor.clone() for name, tensor in weights.items()}
        return TrainingState.of(self.chain, keys, weights)

    @abstractmethod
    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        """Take the steps of every mode up to ``stop``, in place; in threads, each with some of the modes."""

    @abstractmethod
    def draw(self, surroundings: Surroundings, state: TrainingState, number: int) -> Tensors:
        """Draw ``number`` of every mode: whole checkpoints ``{name: (M, *shape)}``, a function of the mode's key,
        its state and the number."""

    def gaussian(self, surroundings: Surroundings, state: TrainingState) -> Tensors | None:
        """Means ``T`` and standard deviations ``T_std`` of every parameter, where the method ends with such."""
        return None

    @property
    def modes_are(self) -> str:
        """``chain`` or ``member``, as ``starts``."""
        return self.starts

    def from_members(self) -> Self:
        """The method whose modes start at members of a zoo, where it can; else itself."""
        return self

    def mode_facts(self, state: TrainingState) -> list[dict[str, Any]]:
        """The facts of each mode at this state, for the column ``extra`` of its draws."""
        return [{} for _ in range(len(state))]

    # What it is called.

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "recipe"}

    @property
    def digested(self) -> dict[str, Any]:
        """The settings as the digest has them."""
        return self.settings

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of the recipe, the method and its settings."""
        return digest_of(
            {"recipe": self.recipe.digest, "method": self.name, "settings": self.digested, "version": VERSION}
        )

    @property
    def label(self) -> str:
        """The value of the column ``recipe`` of its draws."""
        return f"{self.recipe.name}-{self.name}"

    @property
    def prefix(self) -> str:
        """How the ids of its draws begin: the label and the first 8 digits of the digest."""
        return f"{self.label}-{self.digest.removeprefix('sha256:')[:8]}"

    def facts(self) -> dict[str, Any]:
        """The settings, the recipe, and how it scales inputs, for the ``extra`` column."""
        scaling = {key: value for key, value in self.recipe.facts().items() if key in ("mean", "std")}
        recipe = {"name": self.recipe.name, "digest": self.recipe.digest}
        return {"settings": self.settings, "base_recipe": recipe, **scaling}

    # What is wrong with it.

    def problem_with(self, key: str, expected: str) -> Problem:
        """The problem of a setting that has another value than it should."""
        return Problem(f"method {self.name!r}", key, expected, repr(getattr(self, key)), _STEP)

    def refusal(self, expected: str, got: str, step: str) -> Problem:
        """The problem of a recipe that the method cannot serve."""
        return Problem(f"method {self.name!r} for {self.recipe.name!r}", "architecture", expected, got, step)

    def unservable(self) -> Iterator[Problem]:
        """Why the method cannot serve the recipe, where it cannot."""
        yield from ()

    def _problems(self) -> Iterator[Problem]:
        for item in fields(self):
            if not item.metadata:
                continue
            value, least, most = getattr(self, item.name), item.metadata["least"], item.metadata["most"]
            above, whole = item.metadata["above"], item.metadata["whole"]
            kinds = (int,) if whole else (int, float)
            # not isinstance: true and false are integers for Python
            fits = type(value) in kinds and math.isfinite(value) and (least < value if above else least <= value)
            if not fits or value > most:
                kind = "an integer" if whole else "a number"
                upper = f" to {most}" if math.isfinite(most) else ""
                yield self.problem_with(item.name, f"{kind} {'above' if above else 'from'} {least}{upper}")
        yield from self.unservable()


class MarkovChain(Method):
    """A method whose draws are states of its chain at some of its steps."""

    @property
    @abstractmethod
    def draw_steps(self) -> list[int]:
        """The step of each draw, by its number; see ``spread``."""

    @property
    def max_draws(self) -> int | None:
        return len(self.draw_steps)

    def stops(self, numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Each draw is the chain at one step."""
        steps = self.draw_steps
        return sorted((steps[item], [item]) for item in numbers)

    def draw(self, surroundings: Surroundings, state: TrainingState, number: int) -> Tensors:
        """Statistics of BatchNorm are computed for each draw, because gradients move none."""
        weights = {name: tensor.clone() for name, tensor in state.weights.items()}
        return renewed_statistics(self.recipe, surroundings.source, weights)


def parameters(arch: Architecture) -> list[str]:
    """The names of the tensors that a method moves: all but the buffers."""
    return [tensor.name for tensor in arch.tensors if tensor.kind != "buffer"]


def flatten(tensors: Tensors, names: Sequence[str]) -> torch.Tensor:
    """(M, P): the named tensors of every mode in one row."""
    return torch.cat([tensors[name].reshape(len(tensors[name]), -1) for name in names], 1)


def unflatten(flat: torch.Tensor, like: Tensors, names: Sequence[str]) -> Tensors:
    """Views of the columns of ``flat`` (M, P) in the shapes of the named tensors, as ``flatten`` joined them."""
    parts = flat.split([like[name][0].numel() for name in names], 1)
    return {name: part.view(len(flat), *like[name].shape[1:]) for name, part in zip(names, parts, strict=True)}


def standard_normals(keys: NDArray[np.uint64], purpose: int, index: int, like: torch.Tensor) -> torch.Tensor:
    """Standard normal numbers (M, P) in the precision and on the device of ``like`` (M, P); see ``rng.normals``."""
    return torch.as_tensor(rng.normals(_lanes(keys, like), index, like.shape[1], purpose)).to(like.dtype)


class StepNormals:
    """The standard normal numbers of consecutive steps, drawn for many steps at once: alone each costs much the same.

    ``keys`` and ``purpose`` are those of ``rng.normals``; the numbers have the precision and the device of ``like`` (M,
    P).
    """

    def __init__(self, keys: NDArray[np.uint64], purpose: int, like: torch.Tensor) -> None:
        self._keys, self._purpose, self._like = keys, purpose, like
        self._at_once = max(1, min(_STEPS_AT_ONCE, _NUMBERS_AT_ONCE // max(1, like.numel())))
        self._drawn, self._numbers = range(0), like.new_empty(0)

    def __getitem__(self, index: int) -> torch.Tensor:
        """(M, P): those of a step, as ``standard_normals`` gives them."""
        if index not in self._drawn:
            self._drawn = range(index, index + self._at_once)
            keys: Any = _lanes(self._keys, self._like)
            drawn = rng.normals(keys, self._drawn, self._like.shape[1], self._purpose)
            self._numbers = torch.as_tensor(drawn).to(self._like.dtype)
        return self._numbers[:, index - self._drawn.start]


def _lanes(keys: NDArray[np.uint64], like: torch.Tensor) -> Any:
    return keys if like.device.type == "cpu" else torch.from_numpy(keys.view(np.int64)).to(like.device)


def derived(recipe: Recipe, **changes: Any) -> Recipe:
    """A recipe with some keys changed; what is not a key of its kind of inputs is left out."""
    known = {item.name for item in fields(recipe)}
    return dataclasses.replace(recipe, **{key: value for key, value in changes.items() if key in known})


def without_sgd(recipe: Recipe, **changes: Any) -> Recipe:
    """A recipe without augmentation and without SGD's momentum, decay and rate, and with some keys changed."""
    return derived(
        recipe,
        crop_pad=0,
        flip=False,
        momentum=0.0,
        nesterov=False,
        weight_decay=0.0,
        learning_rate=0.0,
        schedule=MILESTONES,
        milestones=(),
        **changes,
    )


def spread(moments: Sequence[int]) -> list[int]:
    """The same moments in an order of which every beginning is spread over the whole: the last, the middle, ...

    The order of the bit-reversed places counted from the end (van der Corput), so that the first ten draws of a chain
    are as far from one another as ten can be.

    Examples
    --------
    >>> spread([1, 2, 3, 4, 5, 6, 7, 8])
    [8, 4, 6, 2, 7, 3, 5, 1]
    """
    count = len(moments)
    bits = max(1, math.ceil(math.log2(max(count, 2))))
    places = [int(f"{place:0{bits}b}"[::-1], 2) for place in range(2**bits)]
    return [moments[count - 1 - place] for place in places if place < count]

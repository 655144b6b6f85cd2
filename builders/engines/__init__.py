"""Engines: how members that are trained side by side take their steps.

An engine is a function ``advance(data_source, state, stop)`` that changes the state in place, and for methods that
take other steps than SGD's a function ``gradient_steps(data_source, keys, start, stop)``. It takes its examples
from ``builders.data_source`` alone, so that every engine sees the same ones in the same order; a compiled one draws the
same bits by the algorithms of ``builders.rng`` and ``ckptzoo.loader.permutation``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from builders.data_source import Feed
from builders.engines.sgd import GradientStep
from builders.recipe import BFLOAT16, FLOAT32, FLOAT64, TF32, ImageRecipe, Recipe
from builders.state import TrainingState
from ckptzoo.errors import MissingExtraError, Problem, UnknownNameError, ZooError

GENERAL = "general"


@dataclass(frozen=True)
class _Abilities:
    """The recipes that an engine can train.

    ``architectures`` is a pattern of their names. ``buffers`` tells whether it trains architectures with buffers, such
    as BatchNorm's; ``one_at_a_time`` whether it trains members one after another, each as fast as any number of them.
    It needs ``package``, which the extra ``extra`` installs.
    """

    module: str
    architectures: str = ".*"
    devices: tuple[str, ...] = ("cpu", "cuda")
    precisions: tuple[str, ...] = (FLOAT32, FLOAT64)
    buffers: bool = False
    one_at_a_time: bool = False
    dropout: bool = True
    flip: bool = True
    nesterov: bool = True
    package: str | None = None
    extra: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether the package that it needs is there, without importing it."""
        return self.package is None or find_spec(self.package) is not None

    def reasons(self, recipe: Recipe, device: str) -> Iterator[str]:
        """Yield why it cannot train a recipe on a kind of device; nothing where it can."""
        if not self.is_installed:
            yield f"needs {self.package}"
        if not re.fullmatch(self.architectures, recipe.architecture):
            yield f"trains {self.architectures} alone"
        # members under vmap or in one stacked product would share the running statistics of one module
        elif not self.buffers and any(tensor.kind == "buffer" for tensor in recipe.arch.tensors):
            yield "trains no architecture with buffers (BatchNorm has some)"
        if device not in self.devices:
            yield f"does not train on {device}"
        if recipe.precision not in self.precisions:
            yield f"does not train in {recipe.precision}"
        # TensorFloat-32 is a mode of NVIDIA's tensor cores, from Ampere on
        elif recipe.precision == TF32 and device != "cuda":
            yield f"has no {TF32} on {device}"
        if recipe.dropout and not self.dropout:
            yield "drops no units"
        if isinstance(recipe, ImageRecipe) and recipe.flip and not self.flip:
            yield "flips no images"
        if recipe.nesterov and not self.nesterov:
            yield "takes no steps of Nesterov's"


_SINGLE = partial(_Abilities, precisions=(FLOAT32, TF32, BFLOAT16, FLOAT64), buffers=True, one_at_a_time=True)
_ENGINES = {
    "single-compile": _SINGLE("builders.engines.single.compile", devices=("cuda",)),
    "single-graph": _SINGLE(
        # its learning rate is a tensor, which torch's fused SGD reads in single precision
        "builders.engines.single.graph",
        devices=("cuda",),
        precisions=(FLOAT32, TF32, BFLOAT16),
    ),
    "single": _SINGLE("builders.engines.single"),
    GENERAL: _Abilities("builders.engines.general"),
    "optunet": _Abilities("builders.engines.optunet", "optunet"),
    "fused": _Abilities(
        "builders.engines.fused",
        "optunet",
        devices=("cuda",),
        precisions=(FLOAT32,),
        dropout=False,
        flip=False,
        nesterov=False,
        package="triton",
        extra="gpu",
    ),
    # sums of outer products: at 784 inputs 12 (16 hidden units) to 40 times (256) as slow as the products of general
    "mlp": _Abilities("builders.engines.mlp", r"mlp-(?:tanh-)?\d{1,2}(?:-\d{1,2})*"),
    "compiled": _Abilities(
        "builders.engines.compiled",
        "optunet",
        devices=("cpu",),
        precisions=(FLOAT32,),
        flip=False,
        nesterov=False,
        package="numba",
        extra="fast",
    ),
}
"""Every engine; schedules are for the recipe to compute, so that each follows any.

A faster engine comes after a slower one. One that was not measured on ResNets yet comes before those that were, so
that it is taken only where it is asked for: today these are the two of ``single`` that are for GPUs alone.
"""


class Engine(Protocol):
    """The function ``advance`` of every engine's module, which takes steps."""

    def __call__(self, data_source: Feed, state: TrainingState, stop: int) -> None:
        """Train every member from ``state.step`` to ``stop`` optimiser steps, in place."""
        ...


class GradientSteps(Protocol):
    """The function ``gradient_steps`` of an engine's module, which gives the gradients of optimiser steps."""

    def __call__(self, data_source: Feed, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[GradientStep]:
        """Yield the steps from ``start`` to ``stop`` of members with these keys, each to be used before the next."""
        ...


def names() -> tuple[str, ...]:
    """Return the names of all engines."""
    return tuple(_ENGINES)


def is_one_at_a_time(name: str) -> bool:
    """Return whether an engine trains members one after another, so that their number makes none of them faster."""
    return _ENGINES[name].one_at_a_time


def get(name: str) -> Engine:
    """Return an engine by name; raises UnknownNameError, or MissingExtraError if a package that it needs is missing."""
    if name not in _ENGINES:
        raise UnknownNameError("builders", "engine", name, names())
    engine = _ENGINES[name]
    if engine.package is not None and not engine.is_installed:
        raise MissingExtraError(engine.package, engine.extra)
    return import_module(engine.module).advance


def gradient_steps(name: str) -> GradientSteps:
    """Return the function ``gradient_steps`` of an engine; raises as ``get``, and ``ZooError`` where it has none."""
    advance = get(name)
    steps = getattr(import_module(_ENGINES[name].module), "gradient_steps", None)
    if steps is None:
        expected, step = "one that evaluates single gradients", "Choose another one."
        raise ZooError(Problem(f"engine {name}", "engine", expected, advance.__module__, step))
    return steps


def usable(recipe: Recipe, device: str = "cpu") -> tuple[str, ...]:
    """Return the engines that are installed and can train a recipe on a device, the fastest of the measured last."""
    kind = device.partition(":")[0]
    # the order of the dictionary is that of measured speed
    return tuple(name for name, engine in _ENGINES.items() if not any(engine.reasons(recipe, kind)))


def fastest(recipe: Recipe, device: str = "cpu") -> str:
    """Return the fastest of the measured engines that are installed and can train a recipe on a device. Raises
    ZooError: there is none; the message says why of every engine that knows the architecture.
    """
    if engines := usable(recipe, device):
        return engines[-1]
    raise refusal(recipe, device)


def refusal(recipe: Recipe, device: str, name: str | None = None) -> ZooError:
    """Return the error that says why an engine, or none of them, trains a recipe on a device."""
    kind, engines = device.partition(":")[0], usable(recipe, device)
    if name is not None:
        got, step = f"{name}, which {' and '.join(_ENGINES[name].reasons(recipe, kind))}", "Choose one of them."
        return ZooError(Problem(recipe.architecture, "engine", " or ".join(engines) or "another one", got, step))
    reasons = (
        f"{engine} {' and '.join(abilities.reasons(recipe, kind))}"
        for engine, abilities in _ENGINES.items()
        if re.fullmatch(abilities.architectures, recipe.architecture)
    )
    step = "Change the recipe, or write an engine for it in builders/engines."
    expected = f"one that trains {recipe.name} on {kind}"
    return ZooError(Problem(recipe.architecture, "engine", expected, f"none ({'; '.join(reasons)})", step))

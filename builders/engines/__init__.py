"""Engines: how members that are trained side by side take their steps.

An engine is a function ``advance(data_source, state, stop)`` that changes the state in place, and for methods that
take other steps than SGD's a function ``gradient_steps(data_source, keys, start, stop)``. It takes its examples
from ``builders.data_source`` alone, so that every engine sees the same ones in the same order; a compiled one draws the
same bits by the algorithms of ``builders.rng`` and ``ckptzoo.loader.permutation``.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from builders.data_source import Feed
from builders.engines.sgd import GradientStep
from builders.recipe import Recipe
from builders.state import TrainingState
from ckptzoo.errors import MissingExtraError, Problem, UnknownNameError, ZooError

GENERAL = "general"
_MODULES = {
    GENERAL: "builders.engines.general",
    "mlp": "builders.engines.mlp",
    "optunet": "builders.engines.optunet",
    "compiled": "builders.engines.compiled",
    "fused": "builders.engines.fused",
}
_ARCHITECTURES = {"fused": "optunet", "optunet": "optunet", "mlp": "mlp-.*", "compiled": "optunet"}
"""The architectures that an engine can train, a pattern of their names; the general one tries any.

A faster engine comes after a slower one. One that was not measured on any device yet comes before those that were, so
that it is taken only where it is asked for: today that is ``fused``, which is tested on a CPU.
"""
_DEVICES = {"compiled": ("cpu",), "fused": ("cuda",)}
"""The kinds of devices that an engine knows, where it does not know all."""
_WITHOUT_DROPOUT = ("fused",)
"""The engines that cannot drop units."""
_EXTRAS = {"compiled": ("numba", "fast"), "fused": ("triton", "gpu")}
"""The package that an engine needs, and the extra that has it."""


class Engine(Protocol):
    """How steps are taken: the function ``advance`` of every engine's module."""

    def __call__(self, data_source: Feed, state: TrainingState, stop: int) -> None:
        """Train every member from ``state.step`` to ``stop`` optimiser steps, in place."""
        ...


class GradientSteps(Protocol):
    """The gradients of optimiser steps: the function ``gradient_steps`` of an engine's module."""

    def __call__(self, data_source: Feed, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[GradientStep]:
        """The steps from ``start`` to ``stop`` of the members with these keys, each to be used before the next."""
        ...


def names() -> tuple[str, ...]:
    """Every engine."""
    return tuple(_MODULES)


def get(name: str) -> Engine:
    """An engine by name.

    Raises
    ------
    UnknownNameError
        No such engine.
    MissingExtraError
        A package that it needs is not installed.
    """
    if name not in _MODULES:
        raise UnknownNameError("builders", "engine", name, names())
    if not _installed(name):
        raise MissingExtraError(*_EXTRAS[name])
    return import_module(_MODULES[name]).advance


def gradient_steps(name: str) -> GradientSteps:
    """The function ``gradient_steps`` of an engine; raises as ``get``, and ``ZooError`` where it has none."""
    advance = get(name)
    steps = getattr(import_module(_MODULES[name]), "gradient_steps", None)
    if steps is None:
        expected, step = "one that evaluates single gradients", "Choose another one."
        raise ZooError(Problem(f"engine {name}", "engine", expected, advance.__module__, step))
    return steps


def usable(recipe: Recipe, device: str = "cpu") -> tuple[str, ...]:
    """The engines that are installed and can train a recipe on a device, the fastest of the measured last."""
    kind = device.partition(":")[0]
    fit = (
        name
        for name, pattern in _ARCHITECTURES.items()
        if re.fullmatch(pattern, recipe.architecture)
        and kind in _DEVICES.get(name, (kind,))
        and not (recipe.dropout and name in _WITHOUT_DROPOUT)
        and _installed(name)
    )
    return (GENERAL, *fit)


def fastest(recipe: Recipe, device: str = "cpu") -> str:
    """The fastest of the measured engines that are installed and can train a recipe on a device."""
    return usable(recipe, device)[-1]


def _installed(name: str) -> bool:
    """Whether the package that an engine needs is there, without importing it."""
    return name not in _EXTRAS or find_spec(_EXTRAS[name][0]) is not None

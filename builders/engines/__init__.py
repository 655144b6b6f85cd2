"""Engines: how members that stand side by side take their steps.

An engine is a function ``advance(material, state, stop)`` that changes the state in place. It takes its examples from
``builders.material`` alone, so that every engine sees the same ones in the same order; a compiled one draws the same
bits by the algorithms of ``builders.philox`` and ``ckptzoo.loader.order``.
"""

import re
from importlib import import_module
from typing import Protocol

from builders.material import Feed
from builders.recipe import Recipe
from builders.state import State
from ckptzoo.errors import UnknownNameError

GENERAL = "general"
_MODULES = {
    GENERAL: "builders.engines.general",
    "mlp": "builders.engines.mlp",
    "optunet": "builders.engines.optunet",
}
_MADE_FOR = {"optunet": "optunet", "mlp": "mlp-.*"}
"""The architectures that an engine can train, a pattern of their names; the general one tries any."""


class Engine(Protocol):
    """The seam."""

    def __call__(self, material: Feed, state: State, stop: int) -> None:
        """Train every member from ``state.step`` to ``stop`` optimiser steps, in place."""
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
    """
    if name not in _MODULES:
        raise UnknownNameError("builders", "engine", name, names())
    return import_module(_MODULES[name]).advance


def able(recipe: Recipe) -> tuple[str, ...]:
    """The engines that can train a recipe, the fastest last."""
    fit = (name for name, pattern in _MADE_FOR.items() if re.fullmatch(pattern, recipe.architecture))
    return (GENERAL, *fit)


def best(recipe: Recipe) -> str:
    """The fastest engine that can train a recipe."""
    return able(recipe)[-1]

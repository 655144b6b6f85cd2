"""Engines: how members that stand side by side take their steps.

An engine is a function ``advance(material, state, stop)`` that changes the state in place. It takes its order and crops
from ``builders.material.steps`` alone, so that every engine sees the same images in the same order; a compiled one
draws the same bits by the algorithms of ``builders.philox`` and ``ckptzoo.loader.order``.
"""

from importlib import import_module
from typing import Protocol

from builders.material import Material
from builders.recipe import Recipe
from builders.state import State
from ckptzoo.errors import UnknownNameError

GENERAL = "general"
_MODULES = {GENERAL: "builders.engines.general", "optunet": "builders.engines.optunet"}
_MADE_FOR = {"optunet": "optunet"}


class Engine(Protocol):
    """The seam."""

    def __call__(self, material: Material, state: State, stop: int) -> None:
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


def best(recipe: Recipe) -> str:
    """The fastest engine that can train a recipe."""
    return _MADE_FOR.get(recipe.architecture, GENERAL)

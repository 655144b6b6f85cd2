"""Known architectures: forward functions, declared tensors and declared symmetries, by name.

Importing this package imports no torch; ``get`` does, because a forward function needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ckptzoo.errors import UnknownNameError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.symmetry import Symmetry

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class _Entry:
    """Where an architecture lives: its declaration (no torch), its module, its class."""

    spec: str
    module: str
    factory: str


_REGISTRY = {
    "optunet": _Entry("ckptzoo.archs.optunet_spec", "ckptzoo.archs.optunet", "OptuNet"),
}


def names() -> tuple[str, ...]:
    """Every registered name."""
    return tuple(_REGISTRY)


def get(name: str) -> "Callable[[], nn.Module]":
    """The class or function that makes the module, freshly initialised; imports torch.

    Raises
    ------
    UnknownNameError
        No such architecture.
    """
    entry = _entry(name)
    return getattr(import_module(entry.module), entry.factory)


def architecture(name: str) -> Architecture:
    """The declared tensors, without importing torch.

    Raises
    ------
    UnknownNameError
        No such architecture.
    """
    return import_module(_entry(name).spec).ARCHITECTURE


def symmetry(name: str) -> Symmetry | None:
    """The declared symmetry table, without importing torch; None where none is declared.

    Raises
    ------
    UnknownNameError
        No such architecture.
    """
    return getattr(import_module(_entry(name).spec), "SYMMETRY", None)


def _entry(name: str) -> _Entry:
    if name not in _REGISTRY:
        raise UnknownNameError("ckptzoo.archs", "architecture", name, names())
    return _REGISTRY[name]

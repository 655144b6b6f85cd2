"""Approximate posteriors: methods that write draws of a recipe's networks into a zoo, ``python -m builders posterior``.

``method`` says what a method is; ``build`` writes the zoo, around the ``modes`` that it finds, by a ``plan`` whose
units ``training`` does. ``dropout``, ``bnn``, ``sghmc``, ``csghmc``, ``swag``, ``laplace`` and ``hmc`` are one method
each, its derivation above its code; ``curvature``, ``optunet`` and ``gaussian`` are the mathematics of Laplace's
approximation, ``log_density`` is that of ``hmc``.
"""

from importlib import import_module

from builders.posterior.method import Method
from ckptzoo.errors import Problem, UnknownNameError, ZooError, require

_METHODS = {
    "dropout": ("dropout", "Dropout"),
    "bnn": ("bnn", "Bnn"),
    "sghmc": ("sghmc", "Sghmc"),
    "csghmc": ("csghmc", "CyclicalSghmc"),
    "swag": ("swag", "Swag"),
    "laplace": ("laplace", "Laplace"),
    "hmc": ("hmc", "Hmc"),
}
"""The module and class of each method."""
_PACKAGES = {"hmc": "blackjax"}
"""The package that a method needs; the extra has the method's name."""
ENSEMBLE = "ensemble"
"""The method that needs no building: members of a zoo, selected."""


def names() -> tuple[str, ...]:
    """Return the names of all methods that build draws."""
    return tuple(_METHODS)


def get(name: str) -> type[Method]:
    """Return a method by name.

    Raises UnknownNameError: no such method. Raises ZooError: it is ``ensemble``, which is a selection of members.
    Raises MissingExtraError: a package that it needs is not installed.
    """
    if name == ENSEMBLE:
        got, step = "ensemble", "Build members with python -m builders build; ckptzoo study posteriors selects them."
        raise ZooError(Problem("builders", "posterior method", "a method that makes draws", got, step))
    if name not in _METHODS:
        raise UnknownNameError("builders", "posterior method", name, (*names(), ENSEMBLE))
    if name in _PACKAGES:
        require(_PACKAGES[name], name)
    module, method = _METHODS[name]
    return getattr(import_module(f"builders.posterior.{module}"), method)

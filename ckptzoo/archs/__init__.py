"""Known architectures: forward functions, declared tensors and declared symmetries, by name.

A name holds the parameters, so that the name alone gives the module: ``mlp-784-100-10``, ``resnet20-pad-10``,
``optunet-3-5-2-8-4-1``.
``gaussian-`` before another name is a Gaussian over the weights of that network: ``gaussian-optunet``.
Importing this package imports no torch; ``get`` does, because a forward function needs it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeGuard

from ckptzoo.archs.optunet_spec import OPTUNET
from ckptzoo.arguments import checked
from ckptzoo.errors import UnknownNameError, require
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry

__all__ = ["architecture", "base_of", "get", "known", "names", "optunet_name", "stacked", "symmetry"]

if TYPE_CHECKING:
    from torch import Tensor, nn

    StackedOutputs = Callable[[Mapping[str, Tensor], Tensor], Tensor]

# names come from untrusted zoos: without bounds one of them could declare a network of any size
_MAX_WIDTH = 32_768
_MAX_LINEAR_LAYERS = 100
_MAX_RESNET_DEPTH = 200
_RESNET18_WIDTH = 64
"""Channels of the first stage where a name does not say them, as published."""
_OPTUNET_PIXELS = 28
"""Height and width of the images."""


@dataclass(frozen=True)
class _ArchitectureFamily:
    """Architectures whose names differ in numbers.

    ``shown`` is the name that people read, ``pattern`` that of a whole name, whose groups hold numbers, joined by
    hyphens. ``factory`` is the class in ``module`` of ``ckptzoo.archs``, whose declaration is next to it, in
    ``<module>_spec``; ``arguments`` are those before the numbers, the same for the whole family. ``fits`` says whether
    the numbers, positive integers of up to 5 digits, make a network, and ``stacked`` names the function in the module
    that computes the outputs of many members at once, where there is one.
    """

    shown: str
    pattern: str
    module: str
    factory: str
    arguments: tuple[str | int, ...]
    fits: Callable[[tuple[int, ...]], bool]
    stacked: str | None = None


def _are_widths(numbers: tuple[int, ...]) -> bool:
    return len(numbers) <= _MAX_LINEAR_LAYERS + 1 and max(numbers, default=1) <= _MAX_WIDTH


def _are_depth_and_classes(numbers: tuple[int, ...]) -> bool:
    depth, classes = numbers  # a depth of 6 n + 2: three stages of n blocks of two convolutions, and two layers more
    return depth % 6 == 2 and 8 <= depth <= _MAX_RESNET_DEPTH and classes <= _MAX_WIDTH


def _are_width_and_classes(numbers: tuple[int, ...]) -> bool:
    # the last stage is eight times as wide; one of width 64 has the shorter name
    width, classes = numbers
    return width != _RESNET18_WIDTH and 8 * width <= _MAX_WIDTH and classes <= _MAX_WIDTH


def _are_optunet(numbers: tuple[int, ...]) -> bool:
    channels1, kernel1, pool, channels2, kernel2, groups, *_ = numbers
    # convolutions without padding: 29 - kernel1 outputs a side, which the max-pool divides
    reaches = kernel1 <= _OPTUNET_PIXELS and kernel2 <= (_OPTUNET_PIXELS + 1 - kernel1) // pool
    return numbers != OPTUNET and reaches and channels1 % groups == channels2 % groups == 0 and _are_widths(numbers)


_GAUSSIAN = "gaussian-"
_N = "[1-9][0-9]{0,4}"
"""A positive integer without leading zeros, so that every network has one name."""
_FAMILIES = (
    _ArchitectureFamily("optunet", "optunet", "optunet", "OptuNet", (), _are_widths, "stacked_outputs"),
    _ArchitectureFamily("mlp-<in>-<hidden>-...-<out>", f"mlp-({_N}(?:-{_N})+)", "mlp", "MLP", ("relu",), _are_widths),
    _ArchitectureFamily(
        "mlp-tanh-<in>-<hidden>-...-<out>", f"mlp-tanh-({_N}(?:-{_N})+)", "mlp", "MLP", ("tanh",), _are_widths
    ),
    _ArchitectureFamily(
        "resnet18-<classes>", f"resnet18-({_N})", "resnet18", "ResNet18", (_RESNET18_WIDTH,), _are_widths
    ),
    _ArchitectureFamily(
        "resnet18-<width>-<classes>",
        f"resnet18-({_N})-({_N})",
        "resnet18",
        "ResNet18",
        (),
        _are_width_and_classes,
    ),
    *(
        _ArchitectureFamily(
            f"resnet<6n+2>-{shortcut}-<classes>",
            f"resnet({_N})-{shortcut}-({_N})",
            "resnet_cifar",
            "ResNetCIFAR",
            (shortcut,),
            _are_depth_and_classes,
        )
        for shortcut in ("conv", "pad")
    ),
    _ArchitectureFamily(
        "optunet-<channels>-<kernel>-<pool>-<channels>-<kernel>-<groups>[-<hidden>]",
        f"optunet-({_N}(?:-{_N}){{5,6}})",
        "optunet",
        "OptuNet",
        (),
        _are_optunet,
    ),
)


def names() -> tuple[str, ...]:
    """The names that may be asked for, as people read them: ``<...>`` is a positive integer.

    At most 32,768 inputs, hidden units, channels or classes, 100 linear layers, and a ResNet of depth 200. A ResNet-18
    whose first stage has 64 channels is ``resnet18-<classes>``, and ``optunet-2-4-3-10-5-2`` is ``optunet``.
    """
    return (*(family.shown for family in _FAMILIES), f"{_GAUSSIAN}<another name>")


def base_of(name: str | None) -> str | None:
    """The name of the network whose weights a Gaussian is over: ``optunet`` for ``gaussian-optunet``; else None.

    Parameters
    ----------
    name
        of an architecture, or anything else.
    """
    base = name.removeprefix(_GAUSSIAN) if isinstance(name, str) and name.startswith(_GAUSSIAN) else None
    return base if _find(base) is not None else None


@checked
def optunet_name(*numbers: int) -> str:
    """The name of a network of OptuNet's family, whose numbers are those of ``ckptzoo.archs.optunet.OptuNet``.

    Parameters
    ----------
    numbers
        channels, kernel and pool of the first layer, channels, kernel and groups of the second, then widths of hidden
        layers where there are some.

    Examples
    --------
    >>> optunet_name(2, 4, 3, 10, 5, 2), optunet_name(3, 5, 2, 8, 4, 1, 20)
    ('optunet', 'optunet-3-5-2-8-4-1-20')
    """
    return "optunet" if numbers == OPTUNET else "-".join(map(str, ("optunet", *numbers)))


def known(name: str | None) -> TypeGuard[str]:
    """Whether there is such an architecture.

    Parameters
    ----------
    name
        of an architecture, or anything else.
    """
    return _find(name) is not None or base_of(name) is not None


@checked
def get(name: str) -> "Callable[[], nn.Module]":
    """Return the function that makes the module, freshly initialised; imports torch.

    Parameters
    ----------
    name
        as ``names`` lists them, with numbers in place of ``<...>``.

    Raises
    ------
    UnknownNameError
        No such architecture.
    MissingExtraError
        torch is not installed.
    """
    if (base := base_of(name)) is not None:
        require("torch", "torch")
        return partial(import_module("ckptzoo.archs.gaussian").Gaussian, get(base))
    family, numbers = _family(name)
    require("torch", "torch")
    factory = getattr(import_module(f"ckptzoo.archs.{family.module}"), family.factory)
    return partial(factory, *family.arguments, *numbers)


def stacked(name: str, input_shape: tuple[int, ...]) -> "StackedOutputs | None":
    """Return the function for the outputs of many members on the same inputs, faster than ``vmap``; imports torch.

    From ``{name: (K, *shape)}`` and inputs (B, *input_shape), on one device and of one dtype, float32 or float64, to
    outputs (K, B, features) without gradients: those of the module to rounding. A member's outputs depend neither on
    the other members nor on their number, to the last bit. None where there is no such function, or none for inputs of
    this shape.

    Parameters
    ----------
    name
        as ``names`` lists them, with numbers in place of ``<...>``.
    input_shape
        of one input, without the axis of examples.

    Raises
    ------
    UnknownNameError
        No such architecture.
    MissingExtraError
        torch is not installed.
    """
    family, _ = _family(name)
    if family.stacked is None or architecture(name).input_shape != tuple(input_shape):
        return None
    require("torch", "torch")
    return getattr(import_module(f"ckptzoo.archs.{family.module}"), family.stacked)


@checked
def architecture(name: str) -> Architecture:
    """The declared tensors, without importing torch.

    Parameters
    ----------
    name
        as ``names`` lists them, with numbers in place of ``<...>``.

    Raises
    ------
    UnknownNameError
        No such architecture.
    """
    return _declaration(name)[0]


@checked
def symmetry(name: str) -> Symmetry:
    """The declared symmetry table, without importing torch.

    Parameters
    ----------
    name
        as ``names`` lists them, with numbers in place of ``<...>``.

    Raises
    ------
    UnknownNameError
        No such architecture.
    """
    return _declaration(name)[1]


# declaring a ResNet takes 6 ms, as long as aligning two; what is declared never changes
@lru_cache(maxsize=64)
def _declaration(name: str) -> tuple[Architecture, Symmetry]:
    if (base := base_of(name)) is not None:
        return import_module("ckptzoo.archs.gaussian_spec").declare(name, *_declaration(base))
    family, numbers = _family(name)
    declare = import_module(f"ckptzoo.archs.{family.module}_spec").declare
    return declare(name, *family.arguments, *numbers)


def _family(name: str) -> tuple[_ArchitectureFamily, tuple[int, ...]]:
    match = _find(name)
    if match is None:
        raise UnknownNameError("ckptzoo.archs", "architecture", name, _proper_name(name) or names())
    return match


def _proper_name(name: str) -> tuple[str, ...]:
    """The one name of a network that was asked for by a longer one, so that every network has one name."""
    if name == "-".join(map(str, ("optunet", *OPTUNET))):
        return (optunet_name(*OPTUNET),)
    match = re.fullmatch(f"resnet18-{_RESNET18_WIDTH}-({_N})", name)
    return () if match is None else (f"resnet18-{match[1]}",)


def _find(name: object) -> tuple[_ArchitectureFamily, tuple[int, ...]] | None:
    """The family of a name and the numbers in it."""
    for family in _FAMILIES:
        match = re.fullmatch(family.pattern, name) if isinstance(name, str) else None
        # patterns exclude one another, so that the first that fits is the only one
        if match is not None:
            numbers = tuple(int(number) for part in match.groups() for number in part.split("-"))
            return (family, numbers) if family.fits(numbers) else None
    return None

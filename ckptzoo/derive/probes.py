"""The inputs on which certificates are computed."""

import hashlib
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.derive.rule import Rule
from ckptzoo.errors import MissingExtraError, ZooError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.document import Document

RANDOM_INPUTS = 8
"""Standard normal inputs, the same for every checkpoint."""


def probes_of(
    arch: Architecture, rule: Rule, inputs: NDArray[Any] | None, *, module: Any = None
) -> dict[str, NDArray[Any]]:
    """The inputs of the certificates by name; none where no forward function is known, or no certificate wanted."""
    known, shape = module is not None or archs.known(arch.forward), arch.input_shape
    if rule == Rule(None, None):
        if inputs is not None:
            raise ZooError(
                f"{arch.name}: real inputs: expected none where nothing is certified, got {inputs.shape}. "
                "Leave them out, or certify."
            )
        return {}
    if inputs is not None and (not known or (shape is not None and inputs.shape[1:] != shape) or not len(inputs)):
        expected = f"shape (B, {str(shape)[1:]}" if shape else "a forward function in ckptzoo.archs, or a module"
        step = "Pass them as the network takes them." if known else "Pass derive(..., module=...) from Python."
        raise ZooError(f"{arch.name}: real inputs: expected {expected}, got shape {inputs.shape}. {step}")
    found: dict[str, NDArray[Any]] = {}
    if known and shape is not None:
        found["random"] = np.random.default_rng(0).standard_normal((RANDOM_INPUTS, *shape))
    if inputs is not None:
        found["real"] = np.asarray(inputs, np.float64)
    return found


def torch_side(name: str) -> Any:
    """A module of this room that imports torch, or an error that names the install command."""
    try:
        return import_module(f"ckptzoo.derive.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "torch") from error


def described(inputs: NDArray[Any]) -> Document:
    """How many inputs, and the sha256 of their float64 bytes."""
    return {"inputs": len(inputs), "sha256": hashlib.sha256(np.ascontiguousarray(inputs).tobytes()).hexdigest()}

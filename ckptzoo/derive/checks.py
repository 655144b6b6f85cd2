"""Which checkpoints get a certificate, and in which precision it is computed.

The inputs on which certificates are computed.
"""

import hashlib
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import MissingExtraError, UnknownNameError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import Document

Precision = Literal["float64", "float32"]
"""What both outputs are computed in."""
PRECISIONS: tuple[Precision, ...] = ("float64", "float32")
"""Every precision, the most precise first."""

CERTIFY = ("auto", "all", "sample", "none")
"""Names of the rules; ``auto`` is ``all`` for small networks and ``sample`` for others."""
SMALL_BYTES = 4 * 2**20
"""A network is small up to so many bytes a checkpoint."""
SAMPLE = 8
"""Checkpoints in a part's sample: of its finite ones the first, the last, and others evenly between them."""


@dataclass(frozen=True)
class CheckPolicy:
    """The precision of the certificates of a part's checkpoints.

    Parameters
    ----------
    every : for every finite checkpoint; None for no certificate.
    sample : for those of the sample, in its stead; None where there is no sample.
    """

    every: Precision | None
    sample: Precision | None

    @classmethod
    def of(cls, certify: str, arch: Architecture) -> "CheckPolicy":
        """The rule of a name in ``CERTIFY`` for a network.

        Raises
        ------
        UnknownNameError
            No such rule.
        """
        if certify not in CERTIFY:
            raise UnknownNameError("derive", "rule for certificates", certify, CERTIFY)
        small = arch.nbytes <= SMALL_BYTES
        name = certify if certify != "auto" else "all" if small else "sample"
        if name == "all":
            return cls("float64", None) if small else cls("float32", "float64")
        return cls(None, "float64" if name == "sample" else None)

    def precisions(self, finite: NDArray[np.bool_]) -> list[Precision | None]:
        """The precision for each row of a part, by whether its weights are finite."""
        found: list[Precision | None] = [self.every if good else None for good in finite.tolist()]
        rows = np.flatnonzero(finite)
        if self.sample is not None:
            for place in np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).round().astype(np.int64):
                found[rows[place]] = self.sample
        return found

    def to_json(self) -> Document:
        """The rule as the facts of a part hold it."""
        of = SAMPLE if self.sample is not None else 0
        return {"every": self.every, "sample": self.sample, "checkpoints": of}


RANDOM_INPUTS = 8
"""Standard normal inputs, the same for every checkpoint."""


def probes_of(
    arch: Architecture, rule: CheckPolicy, inputs: NDArray[Any] | None, *, module: Any = None
) -> dict[str, NDArray[Any]]:
    """The inputs of the certificates by name; none where no forward function is known, or no certificate wanted."""
    known, shape = module is not None or archs.known(arch.forward), arch.input_shape
    if rule == CheckPolicy(None, None):
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

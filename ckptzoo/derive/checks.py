"""The equivalence check on sampled inputs: which checkpoints get one, in which precision, and on which inputs.

Raw and derived weights compute the same function by the algebra of the symmetry table. The check evaluates both on a
few inputs and keeps the largest difference of their outputs. It shows that nothing went wrong on these inputs; it
proves nothing about others. On disk its columns are called ``certificate_random``, ``certificate_real`` and
``certified`` (docs/format.md).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import Problem, UnknownNameError, ZooError, require
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import Document

Precision = Literal["float64", "float32"]
"""The dtype of both outputs."""
PRECISIONS: tuple[Precision, ...] = ("float64", "float32")
"""Every precision, the most precise first."""

CERTIFY = ("auto", "all", "sample", "none")
"""Names of the policies; ``auto`` is ``all`` for small networks and ``sample`` for others."""
SMALL_BYTES = 4 * 2**20
"""Networks of at most this many bytes a checkpoint are small."""
SAMPLE = 8
"""Checkpoints in a part's sample: of its finite ones the first, the last, and others evenly between them."""
RANDOM_INPUTS = 8
"""Standard normal inputs, the same for every checkpoint."""


@dataclass(frozen=True)
class CheckPolicy:
    """Which of a part's checkpoints are checked, and in which precision.

    ``every`` applies to every finite checkpoint, None for no check; ``sample`` replaces it for those of the sample,
    None where there is no sample.
    """

    every: Precision | None
    sample: Precision | None

    @classmethod
    def of(cls, certify: str, arch: Architecture) -> "CheckPolicy":
        """The policy of a name in ``CERTIFY`` for a network.

        Raises ``UnknownNameError`` if there is no such policy.
        """
        if certify not in CERTIFY:
            raise UnknownNameError("derive", "rule for equivalence checks", certify, CERTIFY)
        small = arch.nbytes <= SMALL_BYTES
        name = certify if certify != "auto" else "all" if small else "sample"
        if name == "all":
            return cls("float64", None) if small else cls("float32", "float64")
        return cls(None, "float64" if name == "sample" else None)

    def precisions(self, finite: NDArray[np.bool_]) -> list[Precision | None]:
        """The precision for each row of a part, by whether its weights are finite."""
        precisions: list[Precision | None] = [self.every if good else None for good in finite.tolist()]
        rows = np.flatnonzero(finite)
        if self.sample is not None:
            for place in np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).round().astype(np.int64):
                precisions[rows[place]] = self.sample
        return precisions

    def to_json(self) -> Document:
        """The policy as a part's facts record it."""
        checkpoints = SAMPLE if self.sample is not None else 0
        return {"every": self.every, "sample": self.sample, "checkpoints": checkpoints}


def check_inputs(
    arch: Architecture, policy: CheckPolicy, inputs: NDArray[Any] | None, *, module: Any = None
) -> dict[str, NDArray[Any]]:
    """The inputs of the checks, ``random`` and ``real``; none where no forward function is known or nothing is checked.

    Raises ``ZooError`` if real inputs were given, and nothing is checked or they do not fit the network.
    """
    known, shape = module is not None or archs.known(arch.forward), arch.input_shape
    if policy == CheckPolicy(None, None):
        if inputs is not None:
            step = "Leave them out, or choose which checkpoints to check."
            raise ZooError(Problem(arch.name, "real inputs", "none where nothing is checked", str(inputs.shape), step))
        return {}
    if inputs is not None and (not known or (shape is not None and inputs.shape[1:] != shape) or not len(inputs)):
        fitting = shape is not None and inputs.shape[1:] != shape
        expected = f"shape (B, {str(shape)[1:]}" if fitting else "a forward function in ckptzoo.archs, or a module"
        step = (
            "Pass them as the network takes them."
            if known
            else "Name the network: --module FILE.py:NAME, or derive(..., module=...) from Python."
        )
        raise ZooError(Problem(arch.name, "real inputs", expected, f"shape {inputs.shape}", step))
    by_name: dict[str, NDArray[Any]] = {}
    if known and shape is not None:
        by_name["random"] = np.random.default_rng(0).standard_normal((RANDOM_INPUTS, *shape))
    if inputs is not None:
        by_name["real"] = np.asarray(inputs, np.float64)
    return by_name


def missing_for_checks(*, network: bool) -> tuple[str, str]:
    """Return what lacked where nothing was checked, and the options of ``ckptzoo derive`` that add the checks.

    Parameters
    ----------
    network
        whether the network was given.
    """
    options = "--certify all --module FILE.py:NAME"
    if network:
        return "the zoo does not say the shape of an input", f"{options} --input-shape SHAPE"
    return "ckptzoo.archs has no forward function for it", options


def import_with_torch(name: str) -> Any:
    """A module of ckptzoo.derive that imports torch at its top: ``"output_differences"`` or ``"forward"``.

    Raises ``MissingExtraError`` if torch is not installed.
    """
    require("torch", "torch")
    return import_module(f"ckptzoo.derive.{name}")


def check_columns(
    checker: Any,
    raw: Mapping[str, NDArray[Any]],
    derived: Mapping[str, NDArray[Any]],
    inputs: Mapping[str, NDArray[Any]],
    precisions: Sequence[Precision | None],
) -> dict[str, list[Any]]:
    """The columns of the equivalence checks of K checkpoints: null where none is wanted, or raw outputs are not finite.

    ``raw`` and ``derived`` map tensor names to (K, *shape); ``precisions`` has one for each checkpoint's check, None
    for no check.
    """
    wanted = np.array(precisions, object)
    differences = {f"certificate_{name}": np.full(len(wanted), np.nan) for name in inputs}
    for precision in PRECISIONS:
        if not len(rows := np.flatnonzero(wanted == precision)):
            continue
        # without a copy where these are all
        first, second = (
            weights if len(rows) == len(wanted) else {name: array[rows] for name, array in weights.items()}
            for weights in (raw, derived)
        )
        for name, values in inputs.items():
            found = checker.output_differences(first, second, values, precision=precision)
            differences[f"certificate_{name}"][rows] = found
    columns = {
        name: [None if np.isnan(value) else value for value in values.tolist()] for name, values in differences.items()
    }
    certified = [
        precision if any(value is not None for value in values) else None
        for precision, *values in zip(precisions, *columns.values(), strict=True)
    ]
    return {**columns, "certified": certified}


def check_facts(inputs: Mapping[str, NDArray[Any]], policy: CheckPolicy) -> Document:
    """The record of a part's equivalence checks: the number of inputs, the sha256 of their float64 bytes, the policy.

    Nothing where there are no inputs.
    """
    described = {
        name: {"inputs": len(values), "sha256": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()}
        for name, values in inputs.items()
    }
    return {**described, "rule": policy.to_json()} if described else {}

"""How a variant's weights follow from those as trained: by a gauge, or by alignment with a reference."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, canonicalize, fingerprint
from ckptzoo.symmetry.alignment.align import Aligned, comparable
from ckptzoo.symmetry.alignment.joint_signs import moved_signs
from ckptzoo.symmetry.alignment.nested_matching import moves_two_axes
from ckptzoo.symmetry.gauges import gauge_of
from ckptzoo.symmetry.matrices.tables import lifted
from ckptzoo.symmetry.report import Report

Weights = Mapping[str, NDArray[Any]]
"""Tensor name to (K, *shape)."""
ALIGNMENT_VERSION = 1
"""Raised whenever alignment gives other permutations for some weights; versions are never mixed."""
MOVED_SIGNS_VERSION = 3
"""The version for tables with signs that meet others: versions 1 and 2 missed disguised copies there."""
TWO_AXES_VERSION = 4
"""The version where permutations move two axes of a tensor: the others left them in the order in which they started."""
_PRODUCTS_BYTES = 128 * 2**20
"""The maximum number of bytes of products of activations that a thread holds, unless one checkpoint has more."""


@dataclass(frozen=True)
class Transformed:
    """K checkpoints of a variant.

    ``weights`` are at least float32; ``element`` holds the group elements that lead to them; ``fingerprints`` is None
    for rules that do not give all copies of a network the same weights.
    """

    weights: Weights
    element: GroupElement
    report: Report
    fingerprints: Sequence[str | None] | None


class VariantRule(Protocol):
    """A rule that makes a variant."""

    @property
    def name(self) -> str:
        """The name of the variant."""
        ...

    def facts(self, symmetry: Symmetry) -> Document:
        """The facts of the rule that its parts record; parts with other facts are never mixed with them."""
        ...

    @property
    def notes(self) -> Document:
        """Notes for people that its parts record besides."""
        ...

    def transform(self, weights: Weights, symmetry: Symmetry) -> Transformed:
        """Bring K checkpoints (K, *shape) into the variant, in the caller's thread."""
        ...


@dataclass(frozen=True)
class GaugeRule:
    """The rule of a gauge, which picks a representative.

    ``name`` is both the gauge's and the variant's.
    """

    name: GaugeName

    def facts(self, symmetry: Symmetry) -> Document:
        return {"gauge": self.name, "version": gauge_of(self.name, symmetry).version}

    @property
    def notes(self) -> Document:
        return {}

    def transform(self, weights: Weights, symmetry: Symmetry) -> Transformed:
        made = canonicalize(weights, symmetry, gauge=self.name, threads=1)
        # with matrices rounding moves canonical weights too far for digests of them
        marks = fingerprint(made) if made.gauge.complete and not symmetry.has_matrices else None
        element = made.element
        if symmetry.has_matrices and not element.matrices:  # of the permutations and scales alone
            element = lifted(element, symmetry)
        return Transformed(made.weights, element, made.report, marks)


@dataclass(frozen=True, eq=False)
class ActivationMatching:
    """The activations on some inputs by which channels are matched.

    ``source`` is an ``ActivationProducts`` of the reference, ``inputs`` the digest of its inputs
    (``digest_of_inputs``), ``examples`` their number, and ``name`` their name for people.
    """

    source: Any
    inputs: str
    examples: int
    name: str


@dataclass(frozen=True, eq=False)
class AlignmentRule:
    """The rule of alignment: permutations that bring checkpoints closest to a reference.

    The variant is ``aligned-<label>``; ``reference`` maps tensor names to (*shape), and ``source`` says where it is
    from, for people. All checkpoints are first brought into ``gauge``, if one is given; channels are matched by
    ``activations``, or by their weights where these are None; ``scales`` is ``fixed`` or ``fit``, as for ``align``.
    """

    label: str
    reference: Weights
    source: str
    gauge: GaugeName | None
    activations: ActivationMatching | None = None
    scales: str = "fixed"

    @property
    def name(self) -> str:
        return layout.ALIGNED + self.label

    def facts(self, symmetry: Symmetry) -> Document:
        """The digest of the reference stands for its weights."""
        gauge = None
        if self.gauge is not None:
            gauge = {"name": self.gauge, "version": gauge_of(self.gauge, symmetry).version}
        facts: Document = {
            "gauge": self.name,
            "version": self._version(symmetry),
            "reference": reference_digest(self.reference),
            "scales": gauge,
        }
        # variants that are aligned by weights at fixed scales have the facts that they had before there was a choice
        if self.scales == "fit":
            facts["fitted"] = True
        if self.activations is not None:
            facts |= {
                "method": "activations",
                "inputs": self.activations.inputs,
                "examples": self.activations.examples,
            }
        return facts

    def _version(self, symmetry: Symmetry) -> int:
        if self.activations is not None:
            return ALIGNMENT_VERSION
        if moves_two_axes(symmetry, comparable(self.reference, symmetry)):
            return TWO_AXES_VERSION
        return MOVED_SIGNS_VERSION if self.scales == "fixed" and moved_signs(symmetry) else ALIGNMENT_VERSION

    @property
    def notes(self) -> Document:
        named = {} if self.activations is None else {"inputs_name": self.activations.name}
        return {"source": self.source, **named}

    def transform(self, weights: Weights, symmetry: Symmetry) -> Transformed:
        K = len(next(iter(weights.values())))
        size = K if self.activations is None else max(1, _PRODUCTS_BYTES // max(1, self.activations.source.nbytes))
        made = [
            self._aligned({name: array[start : start + size] for name, array in weights.items()}, symmetry)
            for start in range(0, K, size)
        ]
        report = Report.blank(K)
        report.ties[:] = np.concatenate([found.ties for found in made])
        report.refuse(~np.concatenate([found.aligned for found in made]))
        placed = _joined([found.weights for found in made])
        kinds = ("perms", "scales", "matrices")
        element = GroupElement(*(_joined([getattr(found.element, kind) for found in made]) for kind in kinds))
        return Transformed(placed, element, report, None)

    def _aligned(self, weights: Weights, symmetry: Symmetry) -> Aligned:
        options: dict[str, Any] = {"gauge": self.gauge, "scales": self.scales, "threads": 1}
        if self.activations is not None:
            options |= {"method": "activations", "activations": self.activations.source.products(weights)}
        return align(weights, self.reference, symmetry, **options)


def _joined(parts: Sequence[Weights]) -> Weights:
    """Concatenate stacks."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def reference_digest(reference: Weights) -> str:
    """``sha256:...`` of a network: for each tensor in the order of names a line of name, dtype and shape, and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(reference.items()):
        array = np.ascontiguousarray(value)
        digest.update(f"{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return f"sha256:{digest.hexdigest()}"

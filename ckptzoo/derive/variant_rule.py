"""How a variant's weights follow from those as trained: by a gauge, or by alignment with a reference."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, GroupElement, align, canonicalize, fingerprint
from ckptzoo.symmetry.report import Report

Weights = Mapping[str, NDArray[Any]]
"""Tensor name to (K, *shape)."""
ALIGNMENT_VERSION = 1
"""Raised whenever alignment gives other permutations for some weights; versions are never mixed."""


@dataclass(frozen=True)
class Transformed:
    """K checkpoints of a variant.

    Parameters
    ----------
    weights : at least float32.
    element : the group elements that lead to them.
    report : what was found in each checkpoint.
    fingerprints : of the weights; None for rules that do not give all copies of a network the same weights.
    """

    weights: Weights
    element: GroupElement
    report: Report
    fingerprints: Sequence[str | None] | None


class VariantRule(Protocol):
    """What makes a variant."""

    @property
    def name(self) -> str:
        """Of the variant."""
        ...

    @property
    def facts(self) -> Document:
        """What its parts record of the rule; parts with other facts are never mixed with them."""
        ...

    @property
    def notes(self) -> Document:
        """What its parts record besides, for people."""
        ...

    def transform(self, weights: Weights, symmetry: Symmetry) -> Transformed:
        """Bring K checkpoints (K, *shape) into the variant, in the caller's thread."""
        ...


@dataclass(frozen=True)
class GaugeRule:
    """The representative that a gauge picks.

    Parameters
    ----------
    name : of the gauge, and of the variant.
    """

    name: str

    @property
    def facts(self) -> Document:
        """See ``VariantRule``."""
        return {"gauge": self.name, "version": GAUGES[self.name].version}

    @property
    def notes(self) -> Document:
        """See ``VariantRule``."""
        return {}

    def transform(self, weights: Weights, symmetry: Symmetry) -> Transformed:
        """See ``VariantRule``."""
        made = canonicalize(weights, symmetry, gauge=self.name, threads=1)
        marks = fingerprint(made) if GAUGES[self.name].complete else None
        return Transformed(made.weights, made.element, made.report, marks)


@dataclass(frozen=True, eq=False)
class AlignmentRule:
    """The permutations that bring checkpoints closest to a reference.

    Parameters
    ----------
    label : the variant is ``aligned-<label>``.
    reference : tensor name to (*shape).
    source : where the reference is from, for people.
    gauge : into which all are brought before; None for none.
    """

    label: str
    reference: Weights
    source: str
    gauge: str | None

    @property
    def name(self) -> str:
        """See ``VariantRule``."""
        return layout.ALIGNED + self.label

    @property
    def facts(self) -> Document:
        """See ``VariantRule``; the digest of the reference stands for its weights."""
        gauge = None if self.gauge is None else {"name": self.gauge, "version": GAUGES[self.gauge].version}
        return {
            "gauge": self.name,
            "version": ALIGNMENT_VERSION,
            "reference": reference_digest(self.reference),
            "scales": gauge,
        }

    @property
    def notes(self) -> Document:
        """See ``VariantRule``."""
        return {"source": self.source}

    def transform(self, weights: Weights, symmetry: Symmetry) -> Transformed:
        """See ``VariantRule``."""
        found = align(weights, self.reference, symmetry, gauge=self.gauge, threads=1)
        report = Report.blank(len(found.aligned))
        report.ties[:] = found.ties
        report.refuse(~found.aligned)
        return Transformed(found.weights, found.element, report, None)


def reference_digest(reference: Weights) -> str:
    """``sha256:...`` of a network: for each tensor in the order of names a line of name, dtype and shape, and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(reference.items()):
        array = np.ascontiguousarray(value)
        digest.update(f"{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return f"sha256:{digest.hexdigest()}"

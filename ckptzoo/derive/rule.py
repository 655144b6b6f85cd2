"""Which checkpoints get a certificate, and in which precision it is computed."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import UnknownNameError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.document import Document

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
class Rule:
    """The precision of the certificates of a part's checkpoints.

    Parameters
    ----------
    every : for every finite checkpoint; None for no certificate.
    sample : for those of the sample, in its stead; None where there is no sample.
    """

    every: Precision | None
    sample: Precision | None

    @classmethod
    def of(cls, certify: str, arch: Architecture) -> "Rule":
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

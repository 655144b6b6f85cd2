"""The result of ``ckptzoo.symmetry.trace``, which needs no torch."""

from dataclasses import dataclass

from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry


@dataclass(frozen=True)
class Traced:
    """A module's symmetries, derived and verified.

    Parameters
    ----------
    symmetry
        the table.
    architecture
        of the module's state dict; tied tensors are aliases.
    notes
        what keeps groups in place, unscaled or apart: one sentence each.
    worst
        largest relative difference of the outputs that the verification found, in float64.
    """

    symmetry: Symmetry
    architecture: Architecture
    notes: tuple[str, ...]
    worst: float

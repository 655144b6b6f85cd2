"""Variants of a zoo with equivalence checks, predictions, draws, and checkpoints that are one network."""

from ckptzoo.derive.aligned import align_zoo
from ckptzoo.derive.draws import draws
from ckptzoo.derive.duplicates import Duplicates, dedupe
from ckptzoo.derive.near_copies import NearCopies, near_copies
from ckptzoo.derive.predictions import Predicted, predict
from ckptzoo.derive.tables import declare
from ckptzoo.derive.variants import Derived, EquivalenceReport, derive

__all__ = [
    "Derived",
    "Duplicates",
    "EquivalenceReport",
    "NearCopies",
    "Predicted",
    "align_zoo",
    "declare",
    "dedupe",
    "derive",
    "draws",
    "near_copies",
    "predict",
]

"""Variants of a zoo with equivalence checks, predictions, curvature, draws, averages, and checkpoints that are one."""

from ckptzoo.derive.aligned import align_zoo
from ckptzoo.derive.averages import Averaged, Trial, average, measured_on, soup
from ckptzoo.derive.draws import draws
from ckptzoo.derive.duplicates import Duplicates, dedupe
from ckptzoo.derive.landscapes import Landscape, landscape
from ckptzoo.derive.near_copies import NearCopies, near_copies
from ckptzoo.derive.predictions import Predicted, predict
from ckptzoo.derive.tables import declare
from ckptzoo.derive.variants import Derived, EquivalenceReport, derive

__all__ = [
    "Averaged",
    "Derived",
    "Duplicates",
    "EquivalenceReport",
    "Landscape",
    "NearCopies",
    "Predicted",
    "Trial",
    "align_zoo",
    "average",
    "declare",
    "dedupe",
    "derive",
    "draws",
    "landscape",
    "measured_on",
    "near_copies",
    "predict",
    "soup",
]

"""Symmetries of networks on stacked weights: group elements, their action, and gauges. Pure arrays, no files."""

from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.counts import Counts, count
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.fingerprint import fingerprint
from ckptzoo.symmetry.gauges import GAUGES, Canonical, Gauge, canonicalize, ordering_keys
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.softmax import remove_softmax_shift

__all__ = [
    "GAUGES",
    "Canonical",
    "Counts",
    "Gauge",
    "GroupElement",
    "Report",
    "apply",
    "canonicalize",
    "count",
    "fingerprint",
    "ordering_keys",
    "remove_softmax_shift",
]

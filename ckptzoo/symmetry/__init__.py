"""Symmetries of networks on stacked weights: group elements, their action, and gauges. Pure arrays, no files."""

from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.gauges import GAUGES, Canonical, Gauge, canonicalize
from ckptzoo.symmetry.report import Report

__all__ = ["GAUGES", "Canonical", "Gauge", "GroupElement", "Report", "apply", "canonicalize"]

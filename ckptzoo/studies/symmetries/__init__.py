"""How much of a zoo is symmetry? Counts, how well the gauge is defined, and how far raw checkpoints are from it."""

from ckptzoo.studies.symmetries.study import Symmetries, symmetries

__all__ = ["Symmetries", "symmetries"]

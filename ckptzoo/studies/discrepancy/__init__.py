"""How far apart are two sets of checkpoints, layer by layer? Maximum mean discrepancy as arXiv 2310.08287 has it."""

from ckptzoo.studies.discrepancy.result import Discrepancy
from ckptzoo.studies.discrepancy.study import mmd

__all__ = ["Discrepancy", "mmd"]

"""From raw weights to variants, with certificates; to predictions; and duplicates found in disguise."""

from ckptzoo.derive.duplicates import Duplicates, dedupe
from ckptzoo.derive.predictions import Predicted, predict
from ckptzoo.derive.result import Certified, Derived
from ckptzoo.derive.tables import declare
from ckptzoo.derive.variant import derive

__all__ = ["Certified", "Derived", "Duplicates", "Predicted", "declare", "dedupe", "derive", "predict"]

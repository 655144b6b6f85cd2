"""From raw weights to variants: gauges applied to whole zoos, with certificates; and duplicates found in disguise."""

from ckptzoo.derive.duplicates import Duplicates, dedupe
from ckptzoo.derive.result import Certified, Derived
from ckptzoo.derive.tables import declare
from ckptzoo.derive.variant import derive

__all__ = ["Certified", "Derived", "Duplicates", "declare", "dedupe", "derive"]

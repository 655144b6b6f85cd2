"""From raw weights to variants: gauges applied to whole zoos, with certificates."""

from ckptzoo.derive.variant import Derived, derive

__all__ = ["Derived", "derive"]

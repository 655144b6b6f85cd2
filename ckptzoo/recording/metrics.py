"""Figures of a trainer, as columns and facts of a checkpoint."""

import math
from collections.abc import Mapping
from typing import Any


def measured(metrics: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the values of columns and the finite numbers for ``extra`` among the metrics of a trainer."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):  # a table, an image
            continue
    figures = {columns[name]: value for name, value in numbers.items() if name in columns}
    # JSON has no NaN
    return figures, {name: value for name, value in numbers.items() if math.isfinite(value)}

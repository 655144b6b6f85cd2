"""How the images of a test set become inputs: ``Evaluation``, as rows say it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ckptzoo.schema.documents import JsonFields

EVALUATION_KEY = "evaluation"
"""The key in a row's ``extra`` under which the measurement of its figures is recorded."""
_MAX_CHANNELS = 16


@dataclass(frozen=True)
class Evaluation(JsonFields):
    """A test set and the scaling of its pixels: inputs are ``(pixel / 255 - mean) / std``.

    ``dataset`` is the data set whose test images are used, such as ``mnist``; ``mean`` and ``std`` are one number for
    all channels or one a channel.
    """

    dataset: str
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __str__(self) -> str:
        return f"{self.dataset}, mean {_format_numbers(self.mean)}, std {_format_numbers(self.std)}"


def evaluation_of(extra: Mapping[str, Any], dataset: str | None) -> Evaluation | None:
    """A row's evaluation, as ``contribute`` wrote it or from the numbers of a builder's recipe. Rows are untrusted:
    None where they say nothing, or nothing that makes sense.
    """
    values = extra.get(EVALUATION_KEY, extra)
    if not isinstance(values, Mapping):
        return None
    values = cast(Mapping[str, Any], values)
    name = values.get("dataset", dataset)
    mean, std = finite_numbers(values.get("mean")), finite_numbers(values.get("std"))
    # one number or one a channel; where both are of several channels, of as many
    if not isinstance(name, str) or not mean or not std or min(std) <= 0 or len({1, len(mean), len(std)}) > 2:
        return None
    return Evaluation(name, mean, std)


def finite_numbers(value: object) -> tuple[float, ...] | None:
    """Finite numbers, one or several; None where it is anything else."""
    listed = list(cast(Sequence[object], value)) if isinstance(value, list | tuple) else [value]
    if not 1 <= len(listed) <= _MAX_CHANNELS:
        return None
    # True is an instance of int
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in listed):
        return None
    floats = tuple(float(cast(float, item)) for item in listed)
    return floats if all(math.isfinite(item) for item in floats) else None


def _format_numbers(values: tuple[float, ...]) -> str:
    return json.dumps(values if len(values) > 1 else sum(values))

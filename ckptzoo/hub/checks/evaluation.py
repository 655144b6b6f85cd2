"""How networks are evaluated: which test set they are shown, and how its pixels are scaled."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ckptzoo.hub.checks.rows import extra_of
from ckptzoo.loader.zoo import Zoo

KEY = "evaluation"
"""Under which a row's ``extra`` says how its figures were measured."""
_CHANNELS = 16


@dataclass(frozen=True)
class Evaluation:
    """Inputs are ``(pixel / 255 - mean) / std``.

    Parameters
    ----------
    dataset : the data set whose test images are shown, such as ``mnist``.
    mean, std : one number for all channels or one a channel.
    """

    dataset: str
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a row's ``extra``."""
        return {"dataset": self.dataset, "mean": list(self.mean), "std": list(self.std)}

    def __str__(self) -> str:
        return f"{self.dataset}, mean {_shown(self.mean)}, std {_shown(self.std)}"


def evaluation_of(extra: Mapping[str, Any], dataset: str | None) -> Evaluation | None:
    """What a row says of its evaluation: what ``contribute`` wrote, or the numbers of a builder's recipe.

    Strangers wrote it: what makes no sense is as good as nothing.
    """
    told = extra.get(KEY, extra)
    if not isinstance(told, Mapping):
        return None
    told = cast(Mapping[str, Any], told)
    name = told.get("dataset", dataset)
    mean, std = numbers(told.get("mean")), numbers(told.get("std"))
    if not isinstance(name, str) or not mean or not std or min(std) <= 0 or len({1, len(mean), len(std)}) > 2:
        return None
    return Evaluation(name, mean, std)


def evaluations(zoo: Zoo) -> list[Evaluation | None]:
    """The evaluation of each checkpoint by its own row; None where it says nothing."""
    rows = zoo.metadata.select(["dataset", "extra"]).to_pylist()
    return [evaluation_of(extra_of(row["extra"]) or {}, row["dataset"]) for row in rows]


def of_recipe(zoo: Zoo, recipe: str) -> Evaluation | None:
    """How a zoo's checkpoints of a recipe are evaluated, if all that say so agree."""
    rows = zoo.contents.raw.rows.select(["recipe", "dataset", "extra"]).to_pylist()
    told = {(row["dataset"], row["extra"]) for row in rows if row["recipe"] == recipe}
    found = {evaluation_of(extra_of(extra) or {}, dataset) for dataset, extra in told} - {None}
    return found.pop() if len(found) == 1 else None


def numbers(value: object) -> tuple[float, ...] | None:
    """Finite numbers, one or several; None where it is anything else."""
    listed = list(cast(Sequence[object], value)) if isinstance(value, list | tuple) else [value]
    if not 1 <= len(listed) <= _CHANNELS:
        return None
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in listed):
        return None
    made = tuple(float(cast(float, item)) for item in listed)
    return made if all(math.isfinite(item) for item in made) else None


def _shown(values: tuple[float, ...]) -> str:
    return json.dumps(values if len(values) > 1 else sum(values))

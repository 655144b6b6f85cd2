"""The draws of approximate posteriors in a zoo: by method and settings, one mode or several, and their predictions."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import finite_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.studies.ensemble_scores import SummedPredictions, log_softmax


@dataclass(frozen=True, eq=False)
class DrawGroup:
    """The draws of one method with the same settings."""

    method: str
    label: str
    rows: list[dict[str, Any]]

    def _by_mode(self) -> dict[str, list[int]]:
        """The rows of each mode, in the order of draws, modes in the zoo's order."""
        draws_by_mode: dict[str, list[tuple[int, int]]] = {}
        for row in self.rows:
            draws_by_mode.setdefault(row["mode"], []).append((row["draw"], row["place"]))
        return {mode: [row_number for _, row_number in sorted(items)] for mode, items in draws_by_mode.items()}

    def one(self, replicates: int) -> list[list[int]]:
        """The modes with the most draws, one a replicate."""
        rows = list(self._by_mode().values())
        most = max(map(len, rows))
        # mmd takes two checkpoints or more
        return [draws for draws in rows if len(draws) == most and most > 1][:replicates]

    def several(self, modes: int, draws: int, replicates: int) -> list[list[int]]:
        """The first draws of as many modes, other modes for each replicate; of all modes where there are fewer."""
        rows = [rows_of_mode[:draws] for rows_of_mode in self._by_mode().values()]
        size = min(modes, len(rows))
        # disjoint blocks of modes: replicates share none
        blocks = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)][:replicates]
        return [[place for rows_of_mode in block for place in rows_of_mode] for block in blocks if size > 1]


def draw_groups(samples: Zoo) -> list[DrawGroup]:
    """The finite draws by method and settings."""
    drawn = np.flatnonzero(samples.column("method").is_valid().to_numpy())
    table = samples.metadata.select(("method", "mode", "draw", "recipe_digest", "diverged", "extra")).to_pylist()
    finite = drawn[finite_networks(samples.take(drawn))]
    rows = [{**table[place], "place": place} for place in finite.tolist()]
    if not rows:
        expected, step = "rows that name a method", "Make some with python -m builders posterior."
        raise ZooError(Problem(samples.name, "draws", expected, "none", step))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], str(row["recipe_digest"])), []).append(row)
    of_method: dict[str, list[list[dict[str, Any]]]] = {}
    for (method, _), items in groups.items():
        of_method.setdefault(method, []).append(items)
    labels = {key: _label(key[0], items, of_method[key[0]]) for key, items in groups.items()}
    shared = {label for label, count in Counter(labels.values()).items() if count > 1}
    return [
        # recipes whose printed settings are equal are distinguished by their digests
        DrawGroup(key[0], f"{label} {key[1].removeprefix('sha256:')[:8]}" if label in shared else label, groups[key])
        for key, label in labels.items()
    ]


def _label(method: str, rows: list[dict[str, Any]], groups: list[list[dict[str, Any]]]) -> str:
    """The method's name, with the settings in which the groups of draws of this method differ."""
    own, *others = (_settings(items[0]) for items in [rows, *groups])
    differing = [name for name in own if any(other.get(name, own[name]) != own[name] for other in others)]
    return " ".join([method, *(f"{name}={own[name]:g}" for name in differing)])


def _settings(row: dict[str, Any]) -> dict[str, float]:
    """The numbers among the settings that a row tells in ``extra``; none where it does not."""
    settings = (parse_extra(row["extra"]) or {}).get("settings")
    numbers = settings.items() if isinstance(settings, dict) else ()
    return {name: value for name, value in numbers if name.isidentifier() and isinstance(value, int | float)}


def summed_predictions(zoo: Zoo, name: str) -> SummedPredictions:
    """The predictions of all draws on a set, summed."""
    predictions = zoo.predictions(name)
    total: SummedPredictions | None = None
    for batch in predictions.stream(batch_size=16):
        for logits in batch["logits"]:
            likelihoods = SummedPredictions.of(log_softmax(logits))
            if total is None:
                total = likelihoods
            else:
                total.add(likelihoods)
    assert total is not None
    return total

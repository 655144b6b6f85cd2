"""What other programs note about their checkpoints, as columns of a zoo's rows."""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.tables import number

Row = dict[str, Any]

_COLUMNS = {
    "claimed_test_accuracy": ("test_accuracy", "test_acc", "test/acc", "test/accuracy", "test.accuracy", "test.acc"),
    "claimed_test_loss": ("test_loss", "test/loss", "test.loss"),
    "seed": ("seed", "random_seed", "manual_seed", "rng_seed", "model.seed", "ss_seed"),
    "wall_seconds": ("time_total_s", "time_total"),
    "dataset": ("dataset", "dataset.name"),
    "epoch": ("epoch", "epochs_trained", "current_epoch", "meta.epoch", "ss_epoch"),
}
"""Columns, and what programs call them, the likeliest first. Training figures are means during an epoch, with dropout,
so that they stay in ``extra``."""
_SETTINGS = (
    "config", "cfg", "conf", "args", "hparams", "hyper_parameters", "hyperparameters", "options", "settings", "params",
    "training_args", "train_config", "init_args", "meta",
)  # fmt: skip
"""What programs keep settings under; those of one run are at most one seed and one data set."""
_PRIVATE = re.compile(
    r"(^|[._/])(host(name)?|node_?(ip|name|id)?|ip(_address)?|pid|user(name)?|log_?dir|trial_?dir|local_?dir|"
    r"(data|model|checkpoint|save|out(put)?|root|work(ing)?)_?(path|dir|root|folder)|cwd|cuda_visible_devices)$",
    re.IGNORECASE,
)
"""Names of what says where and by whom something ran, and nothing about the network."""
_ABSOLUTE = re.compile(r"\s*(/|~|\\\\|[A-Za-z]:[\\/]|file:)")
_MAX_DEPTH = 8
_MAX_TEXT = 10_000
_MAX_NUMBER = 40
"""Characters of a number."""


def row_of(facts: Mapping[str, Any], *, location: str, percent: bool = False) -> Row:
    """Columns for the facts that have one, and ``extra`` with all others, nested by the dots in their names.

    Names are split at ``::`` and dots. Host names, addresses, process numbers and absolute paths are left out, and so
    are values that JSON has none of.

    Parameters
    ----------
    facts
        by name; mappings may be nested.
    percent
        whether accuracies go up to 100.

    Raises
    ------
    ZooError
        An accuracy is no fraction from 0 to 1.

    Examples
    --------
    >>> row_of({"optim::lr": 0.1, "test_acc": 0.5, "hostname": "n1"}, location="a")
    {'claimed_test_accuracy': 0.5, 'extra': {'optim': {'lr': 0.1}}}
    """
    flat = {name: value for name, value in _flattened(facts) if not _is_private(name, value)}
    row: Row = {}
    for column, names in _COLUMNS.items():
        if column in ("seed", "dataset"):
            # of several settings the first, which are those nearest to the checkpoint
            names = (*names, *(name for name in flat if _is_setting(name, names)))
        found = next((name for name in names if _fits(column, _number(column, flat.get(name)))), None)
        if found is not None:
            row[column] = _converted(column, _number(column, flat.pop(found)))
    accuracy = row.get("claimed_test_accuracy")
    if accuracy is not None and percent:
        accuracy = row["claimed_test_accuracy"] = accuracy / 100
    if accuracy is not None and not 0 <= accuracy <= 1:
        step = "Give --percent where accuracies go up to 100; else correct it."
        raise ZooError(Problem(location, "test accuracy", "a fraction from 0 to 1", f"{accuracy:g}", step))
    row["extra"] = nested(flat)
    return row


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted names as objects within objects; where a name is also the start of another, it stays dotted.

    >>> nested({"optim.lr": 0.1, "model": "cnn", "model.width": 8})
    {'optim': {'lr': 0.1}, 'model': 'cnn', 'model.width': 8}
    """
    made: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        inner: Any = made
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                break
        if isinstance(inner, dict) and not isinstance(inner.get(last), dict):
            inner[last] = value
        else:
            made[name] = value
    return made


def merged(*extras: Mapping[str, Any]) -> dict[str, Any]:
    """Objects within objects put together; what comes later wins."""
    made: dict[str, Any] = {}
    for extra in extras:
        for name, value in extra.items():
            before = made.get(name)
            made[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return made


def _flattened(facts: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in facts.items():
        name = prefix + str(key).replace("::", ".")
        if isinstance(value, Mapping):
            found += _flattened(value, f"{name}.", depth + 1) if depth < _MAX_DEPTH else []
        elif _is_storable(value):
            found.append((name, list(value) if isinstance(value, tuple) else value))
    return found


def _is_storable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 1000 and all(_is_storable(item) and not isinstance(item, list) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, bool) or value is None:
        return value is not None
    return (type(value) is int and -(2**63) <= value < 2**63) or (isinstance(value, str) and len(value) <= _MAX_TEXT)


def _is_private(name: str, value: Any) -> bool:
    return bool(_PRIVATE.search(name)) or (isinstance(value, str) and bool(_ABSOLUTE.match(value)))


def _is_setting(name: str, names: Collection[str]) -> bool:
    settings, _, inside = name.partition(".")
    return settings in _SETTINGS and inside in names


def _number(column: str, value: Any) -> Any:
    """The number that a text is: all facts of a safetensors file are texts."""
    return number(value) if isinstance(value, str) and column != "dataset" and len(value) < _MAX_NUMBER else value


def _fits(column: str, value: Any) -> bool:
    if column == "dataset":
        return isinstance(value, str)
    if column == "seed":
        return type(value) is int
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and (column != "epoch" or value >= 0)  # YOLO ends a run with the epoch -1


def _converted(column: str, value: Any) -> Any:
    return value if column in ("seed", "dataset") else float(value)

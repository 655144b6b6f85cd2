"""Converts the notes of other programs about their checkpoints into columns of a zoo's rows."""

import math
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.exported import exported_row, is_exported
from ckptzoo.hub.untrusted.facts import columns_of

Row = dict[str, Any]

_PRIVATE = re.compile(
    r"(^|[._/])(host(name)?|node_?(ip|name|id)?|ip(_address)?|pid|user(name)?|log_?dir|trial_?dir|local_?dir|"
    r"(data|model|checkpoint|save|out(put)?|root|work(ing)?)_?(path|dir|root|folder)|cwd|cuda_visible_devices)$",
    re.IGNORECASE,
)
"""Names of what says where and by whom something ran, and nothing about the network."""
_ABSOLUTE = re.compile(r"\s*(/|~|\\\\|[A-Za-z]:[\\/]|file:)")
_MAX_DEPTH = 8
_MAX_TEXT = 10_000


def row_of(facts: Mapping[str, Any], *, location: str, percent: bool = False, shared: Collection[str] = ()) -> Row:
    """Return columns for the facts that have one, and ``extra`` with all others, nested by the dots in their names.

    Names are split at ``::`` and dots; mappings may be nested. Host names, addresses, process numbers, absolute paths
    and values that JSON lacks are left out. A row that ``export`` wrote is restored (``exported``). With ``percent``
    accuracies go up to 100. Figures under the names ``shared`` are of several checkpoints, and no columns. Raises
    ``ZooError`` where an accuracy is no fraction from 0 to 1.

    >>> row_of({"optim::lr": 0.1, "test_acc": 0.5, "hostname": "n1"}, location="a")
    {'claimed_test_accuracy': 0.5, 'extra': {'optim': {'lr': 0.1}}}
    """
    if not facts:  # as of most files
        return {"extra": {}}
    if is_exported(facts):
        return exported_row(facts)
    flat = flattened(facts)
    row: Row = {}
    own = {name: value for name, value in flat.items() if name.partition(".")[0] not in shared} if shared else flat
    figures = columns_of(own) if shared else {}
    for column, (name, value) in columns_of(flat).items():
        if shared and column.startswith("claimed_"):
            if column not in figures:
                continue
            name, value = figures[column]
        row[column] = value
        del flat[name]
    accuracy = row.get("claimed_test_accuracy")
    if accuracy is not None and percent:
        accuracy = row["claimed_test_accuracy"] = accuracy / 100
    if accuracy is not None and not 0 <= accuracy <= 1:
        step = "Give --percent where accuracies go up to 100; else correct it."
        raise ZooError(Problem(location, "test accuracy", "a fraction from 0 to 1", f"{accuracy:g}", step))
    row["extra"] = nested(flat)
    return row


def flattened(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts by dotted names, without what is private and what JSON lacks."""
    return {name: value for name, value in _flattened(facts) if not _is_private(name, value)}


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted names as objects within objects; where a name is also the start of another, it stays dotted.

    >>> nested({"optim.lr": 0.1, "model": "cnn", "model.width": 8})
    {'optim': {'lr': 0.1}, 'model': 'cnn', 'model.width': 8}
    """
    row: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        inner: Any = row
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                break
        if isinstance(inner, dict) and not isinstance(inner.get(last), dict):
            inner[last] = value
        else:
            row[name] = value
    return row


def merged(*extras: Mapping[str, Any]) -> dict[str, Any]:
    """Merge objects within objects; later values win."""
    joined: dict[str, Any] = {}
    for extra in extras:
        for name, value in extra.items():
            before = joined.get(name)
            joined[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return joined


def together(row: Row, other: Row) -> Row:
    """Merge two rows of one checkpoint; columns of the second win."""
    return {**row, **other, "extra": merged(row.get("extra", {}), other.get("extra", {}))}


def _flattened(facts: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in facts.items():
        name = prefix + str(key).replace("::", ".")
        if isinstance(value, Mapping):
            flat += _flattened(value, f"{name}.", depth + 1) if depth < _MAX_DEPTH else []
        elif type(value) is int and 2**63 <= abs(value) < 2**1024:
            flat.append((name, str(value)))  # more than a column or JSON's readers take
        elif _is_storable(value):
            flat.append((name, list(value) if isinstance(value, tuple) else value))
    return flat


def _is_storable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 1000 and all(_is_storable(item) and not isinstance(item, list) for item in value)
    if isinstance(value, float):
        # JSON has no NaN and no infinities
        return math.isfinite(value)
    if isinstance(value, bool) or value is None:
        return value is not None
    return (type(value) is int and -(2**63) <= value < 2**63) or (isinstance(value, str) and len(value) <= _MAX_TEXT)


def _is_private(name: str, value: Any) -> bool:
    return _is_private_name(name) or (isinstance(value, str) and bool(_ABSOLUTE.match(value)))


@lru_cache(maxsize=4096)
def _is_private_name(name: str) -> bool:
    return _PRIVATE.search(name) is not None

"""Restores the row of a checkpoint that ``ckptzoo export`` wrote, from ``config.json`` or the header of its file."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from ckptzoo import archs
from ckptzoo.errors import ZooError
from ckptzoo.hub.untrusted.runs import identifier
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.metadata import COLUMNS, MAX_ID, parse_extra, value_problems

OWN_ID, OWN_MEMBER, OWN_ARCHITECTURE = "own_id", "own_member", "own_architecture"
"""Keys of a row, until it is written, for the names that a checkpoint had before, and for its architecture there."""
_OF_IMPORT = ("unit", "finite", "source", "extra", "id", "member")
"""Columns that an import writes by itself."""
_CLAIMED = {"test_accuracy": "claimed_test_accuracy", "test_loss": "claimed_test_loss"}
_MEASURED = ("train_loss", "train_accuracy", "test_nll", "test_brier", "test_ece")
"""Columns that only the program may write that measured them; a file claims them."""


def is_exported(facts: Mapping[str, Any]) -> bool:
    """Whether facts are those that ``export`` writes."""
    if "zoo" not in facts or not all(isinstance(facts.get(name), str) for name in ("id", "variant")):
        return False
    zoo = facts["zoo"]
    return "architecture" in facts and (isinstance(zoo, str) or (isinstance(zoo, Mapping) and "name" in zoo))


def exported_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an exported checkpoint; values that none can have are left out.

    ``facts``, for which ``is_exported`` is true, are objects of JSON, or the texts of a header.

    >>> exported_row({"id": "m3", "seed": "3", "test_accuracy": "0.5", "zoo": "few", "variant": "raw",
    ...               "architecture": "mine"})
    {'own_id': 'm3', 'own_member': 'm3', 'seed': 3, 'claimed_test_accuracy': 0.5, 'extra': {'exported_from': 'few'}}
    """
    id = _name(facts["id"])
    member = _name(facts["member"]) if isinstance(facts.get("member"), str) else id
    row: dict[str, Any] = {OWN_ID: id, OWN_MEMBER: member}
    extra: dict[str, Any] = {}
    for column in COLUMNS:
        value = None if column.name in _OF_IMPORT else _value(column.type, facts.get(column.name))
        if value is None:
            continue
        if column.name in _MEASURED:
            extra[column.name] = value
        else:
            row.setdefault(_CLAIMED.get(column.name, column.name), value)
    extra = {**_object(facts.get("extra")), **extra, "exported_from": _origin(facts["zoo"])}
    if average := _object(facts.get("average")):
        extra["average"] = average
    if facts["variant"] != "raw":
        extra["variant"] = facts["variant"]
    row["extra"] = extra
    for name in [key for key in row if key not in (OWN_ID, OWN_MEMBER)]:
        value = json.dumps(row[name]) if name == "extra" else row[name]
        alone = {"id": "a", "method": row.get("method"), name: value}
        if next(value_problems([alone], location=""), None) is not None:
            row[name] = {} if name == "extra" else None
    if (architecture := _architecture(facts)) is not None:
        row[OWN_ARCHITECTURE] = architecture
    return row


def _architecture(facts: Mapping[str, Any]) -> Architecture | None:
    """Return the architecture that was written beside a checkpoint, or one of ``ckptzoo.archs`` that its name is of."""
    with suppress(ZooError):
        content = facts["architecture"]
        if isinstance(content, Mapping):
            architecture = Architecture.from_json(dict(cast(Mapping[str, Any], content)))
            return architecture if architecture.forward is None or archs.known(architecture.forward) else None
        return archs.architecture(content) if archs.known(content) else None
    return None


def _object(value: Any) -> dict[str, Any]:
    """Return an object for a row's ``extra``, also from the text that a header has of it; else an empty one."""
    return parse_extra(value if isinstance(value, str) else json.dumps(value)) or {}


def _origin(zoo: Any) -> Any:
    """Return the zoo that a checkpoint was exported from: its name, or its address and revision too."""
    if not isinstance(zoo, Mapping):
        return zoo
    return {name: text for name, text in cast(Mapping[str, Any], zoo).items() if isinstance(text, str)}


def _name(text: str) -> str:
    return "/".join(identifier(part) for part in text.split("/"))[:MAX_ID]


def _value(kind: str, value: Any) -> Any:
    """Return a value of a column's type, also from the text that a header has of it; None where it is none."""
    with suppress(ValueError):
        if kind == "timestamp":
            time = datetime.fromisoformat(value) if isinstance(value, str) else None
            # rows have times in UTC; JSON and headers may leave the zone out
            return time if time is None or time.tzinfo else time.replace(tzinfo=UTC)
        if kind == "string":
            return value if isinstance(value, str) and value.isprintable() and len(value) <= 1000 else None
        if isinstance(value, str) and len(value) <= 40:
            value = {"true": True, "false": False}.get(value, value)
            value = value if isinstance(value, bool) else int(value) if kind == "int64" else float(value)
        if kind == "bool":
            return value if isinstance(value, bool) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        if kind == "int64":
            return value if isinstance(value, int) and abs(value) < 2**63 else None  # columns are int64
        return float(value)
    return None

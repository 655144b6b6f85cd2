"""How the checkpoints were trained, as their rows say."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ckptzoo.hub.card.figures import between, counts
from ckptzoo.hub.card.markdown import code, listed, table

MAX_GROUPS, MAX_SETTINGS, MAX_VALUE = 12, 30, 60
_KEYS = ("recipe", "recipe_digest", "dataset", "builder")
_SAID = ("architecture", "dataset")
"""Entries of ``extra`` that the card says elsewhere."""


def training(rows: pa.Table) -> str:
    """A line for each recipe and data set, and the settings that all checkpoints of a recipe share; may be empty.

    Parameters
    ----------
    rows : of the checkpoints.
    """
    keys = rows.select([*_KEYS]).append_column("row", pa.array(range(len(rows)), pa.int64()))
    found = keys.group_by([*_KEYS]).aggregate([("row", "list")]).to_pylist()
    groups = [(item, rows.take(pa.array(sorted(item["row_list"])))) for item in found]
    groups = [(item, own) for item, own in groups if any(item[key] for key in _KEYS)]
    if not groups:
        return ""
    groups.sort(key=lambda group: (-len(group[1]), *(str(group[0][key] or "") for key in _KEYS)))
    header = ("recipe", "data set", "checkpoints", "epochs", "steps", "precision", "device", "program")
    text = [table(header, [_line(item, own) for item, own in groups[:MAX_GROUPS]], right=(2, 3, 4))]
    if len(groups) > MAX_GROUPS:
        text.append(f"And {len(groups) - MAX_GROUPS:,} more.")
    for item, own in groups[:4]:
        if shared := _settings(own):
            name = f" of {code(item['recipe'])}" if item["recipe"] else ""
            text.append(f"Settings{name}: {', '.join(shared)}.")
    return "\n\n".join(text)


def _line(item: dict[str, Any], own: pa.Table) -> Sequence[str]:
    return (
        code(item["recipe"]) if item["recipe"] else "",
        code(item["dataset"]) if item["dataset"] else "",
        f"{len(own):,}",
        _range(own["epoch"]),
        _range(own["step"]),
        listed(list(counts(own["precision"])), most=3),
        listed(list(counts(own["device"])), most=3),
        code(item["builder"]) if item["builder"] else "",
    )


def _range(column: pa.ChunkedArray) -> str:
    found = [value for value in column.unique().to_pylist() if value is not None and math.isfinite(value)]
    if not found:
        return ""
    least, most = (int(end) if end == int(end) else end for end in (min(found), max(found)))
    return between(least, most)


def _settings(own: pa.Table) -> list[str]:
    """The entries of ``extra`` that are the same in all of these rows, in the order of their names."""
    first, *others = map(_entries, own["extra"].unique().to_pylist())
    same = [name for name, shown in sorted(first.items()) if all(other.get(name) == shown for other in others)]
    pairs = [f"{name} = {first[name]}" for name in same if name not in _SAID]
    shown = [code(pair) for pair in pairs if len(pair) <= MAX_VALUE]
    more = [f"{len(shown) - MAX_SETTINGS:,} more"] if len(shown) > MAX_SETTINGS else []
    return [*shown[:MAX_SETTINGS], *more]


def _entries(text: str | None) -> dict[str, str]:
    """The entries of a JSON object in anybody's text, each as JSON; none where it is no object."""
    try:
        found = json.loads(text or "")
        pairs = found.items() if isinstance(found, dict) else ()
        return {name: json.dumps(value) for name, value in pairs if value is not None}
    except (ValueError, RecursionError):
        return {}

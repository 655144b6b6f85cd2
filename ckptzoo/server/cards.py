"""The metadata at the head of a README.md."""

import re
from datetime import date
from typing import Any

import yaml

_FRONT = re.compile(r"\A\s*---\r?\n(.*?)(?:\r?\n)?---(?:\r?\n|\Z)", re.DOTALL)
MAX_TEXT = 2**18
"""How much of a card is looked at, in bytes."""
_MAX_TAGS = 100


def front_matter(text: str) -> dict[str, Any]:
    """The YAML between the two ``---`` lines; empty where there is none.

    Raises
    ------
    ValueError
        It is not a plain YAML mapping. References (``*name``) are refused, because a short text may stand for a huge
        one with them.
    """
    found = _FRONT.match(text[:MAX_TEXT])
    if found is None:
        return {}
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(found[1], Loader=yaml.SafeLoader)):
            raise ValueError("expected plain YAML, got a reference")
        content = yaml.safe_load(found[1])
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"expected a mapping, got {type(content).__name__}")
    return {str(name): _plain(value) for name, value in content.items()}


def tags(content: dict[str, Any]) -> list[str]:
    """What a card can be found by: its tags, and ``key:value`` for the entries that the hub shows so."""
    found = [str(tag) for tag in _listed(content.get("tags"))]
    for name in ("license", "language", "size_categories", "task_categories", "task_ids"):
        found += [f"{name}:{value}" for value in _listed(content.get(name))]
    return found[:_MAX_TAGS]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, date | bytes) or (isinstance(value, float) and not abs(value) < float("inf")):
        return str(value)
    return value

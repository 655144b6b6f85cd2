"""``FilePattern``: columns of checkpoints in the names of their files, such as ``{member}-checkpoint-{epoch}.pt``."""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptzoo.schema.metadata import COLUMNS

FIELDS = {"id": "string", "member": "string"} | {
    column.name: column.type
    for column in COLUMNS
    if column.name in ("seed", "step", "epoch", "recipe", "method", "mode", "draw")
}
"""The columns that a name may hold, with their types."""
_FORMS = {"string": "[A-Za-z0-9._-]+?", "int64": "[0-9]{1,18}", "float64": "[0-9]{1,18}(?:\\.[0-9]{1,18})?"}
_VALUES = {"string": str, "int64": int, "float64": float}
_OWN_ENTRIES = {"epoch": ("epoch", "epochs"), "step": ("step", "global_step", "steps", "iteration", "iter")}
"""Scalars beside a state dict that say how long it was trained, as common training programs call them."""


@dataclass(frozen=True)
class FilePattern:
    """How files are named.

    >>> FilePattern.parse("{member}-checkpoint-{epoch}.pt").columns("run7-checkpoint-30.pt")
    {'member': 'run7', 'epoch': 30.0}

    Parameters
    ----------
    text
        as it is given.
    """

    text: str
    _expression: re.Pattern[str] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> "FilePattern":
        """Read a pattern: names of columns in braces, and all else as it is; a doubled brace is a brace.

        Raises
        ------
        ValueError
            It names no column, one twice, or something that is none.
        """
        pieces: list[str] = []
        named: list[str] = []
        for literal, name, form, conversion in string.Formatter().parse(text):
            pieces.append(re.escape(literal))
            if name is None:
                continue
            if name not in FIELDS or form or conversion:
                raise ValueError(f"{{{name}}}; known are {', '.join(FIELDS)}")
            if name in named:
                raise ValueError(f"{{{name}}} twice")
            named.append(name)
            pieces.append(f"(?P<{name}>{_FORMS[FIELDS[name]]})")
        if not named:
            raise ValueError("no column in braces")
        return cls(text, re.compile("".join(pieces)))

    def columns(self, name: str) -> dict[str, Any] | None:
        """The columns that a file's name holds; None where it does not have this form."""
        found = self._expression.fullmatch(name)
        return None if found is None else {key: _VALUES[FIELDS[key]](text) for key, text in found.groupdict().items()}


def own_columns(facts: Mapping[str, Any]) -> dict[str, Any]:
    """``epoch`` and ``step`` from the scalars that a file holds beside its tensors, where they are numbers from 0."""
    columns: dict[str, Any] = {}
    for column, names in _OWN_ENTRIES.items():
        value = _first_number(facts, names)
        if value is not None:
            columns[column] = float(value) if FIELDS[column] == "float64" else value
    return columns


def _first_number(facts: Mapping[str, Any], names: Sequence[str]) -> int | None:
    # True is an instance of int
    values = (facts[name] for name in names if type(facts.get(name)) is int)
    return next((value for value in values if 0 <= value < 2**53), None)

"""``FilePattern``: columns of checkpoints in the names of their files, such as ``{member}-checkpoint-{epoch}.pt``."""

import os
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ckptzoo.hub.untrusted.facts import claims, columns_of, names_cross_entropy
from ckptzoo.schema.metadata import COLUMNS, parse_extra

FIELDS = {"id": "string", "member": "string"} | {
    column.name: column.type
    for column in COLUMNS
    if column.name in ("seed", "step", "epoch", "recipe", "method", "mode", "draw")
}
"""The columns that a name may hold, with their types."""
# 18 digits fit into int64; texts take as little as they can, so that a later column gets its digits
_FORMS = {"string": "[A-Za-z0-9._-]+?", "int64": "[0-9]{1,18}", "float64": "[0-9]{1,18}(?:\\.[0-9]{1,18})?"}
_VALUES = {"string": str, "int64": int, "float64": float}


@dataclass(frozen=True)
class FilePattern:
    """The pattern of files' names.

    >>> FilePattern.parse("{member}-checkpoint-{epoch}.pt").columns("run7-checkpoint-30.pt")
    {'member': 'run7', 'epoch': 30.0}
    """

    text: str
    _expression: re.Pattern[str] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> "FilePattern":
        """Read a pattern: names of columns in braces, all else literal; a doubled brace is a brace.

        Raises ``ValueError`` where it names no column, one twice, or something that is none.
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
        """Return the columns that a file's name holds; None where it does not have this form."""
        matched = self._expression.fullmatch(name)
        return (
            None if matched is None else {key: _VALUES[FIELDS[key]](text) for key, text in matched.groupdict().items()}
        )


def distinct_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Name each file: its own name, and the folders by which it differs where several have the same one.

    >>> list(distinct_names([Path("runs/a/net.pt"), Path("runs/b/net.pt"), Path("last.pt")]).values())
    ['a/net.pt', 'b/net.pt', 'last.pt']
    """
    by_name: dict[str, list[Path]] = {}
    for path in paths:
        by_name.setdefault(path.name, []).append(path)
    names: dict[Path, str] = {}
    for equal in by_name.values():
        shared = os.path.commonpath([path.absolute().parent for path in equal])
        names |= {path: path.absolute().relative_to(shared).as_posix() for path in equal}
    return {path: names[path] for path in paths}


def claimed_accuracy(row: Mapping[str, Any]) -> float | None:
    """Return the test accuracy that a contributor claims of a row: in ``claimed_test_accuracy``, or among what its file
    held (``extra``).
    """
    if (claimed := row["claimed_test_accuracy"]) is not None:
        return claimed
    facts = (parse_extra(row["extra"]) or {}).get("facts")
    return claims(facts).get("claimed_test_accuracy") if isinstance(facts, Mapping) else None


class ClaimedLoss(NamedTuple):
    """A test loss that a contributor claims, and whether it is known to be the mean cross entropy in nats."""

    value: float
    is_cross_entropy: bool


def claimed_loss(row: Mapping[str, Any]) -> ClaimedLoss | None:
    """Return the test loss that a contributor claims of a row, in ``claimed_test_loss`` or among what its file held
    (``extra``); None without one.
    """
    facts = (parse_extra(row["extra"]) or {}).get("facts")
    of_file = columns_of(facts).get("claimed_test_loss") if isinstance(facts, Mapping) else None
    said = row["claimed_test_loss"]
    if said is not None and (of_file is None or said != of_file[1]):  # a person's, whose convention the card says
        return ClaimedLoss(said, is_cross_entropy=True)
    return None if of_file is None else ClaimedLoss(of_file[1], names_cross_entropy(of_file[0]))

"""``FilePattern``: columns of checkpoints in the names of their files, such as ``{member}-checkpoint-{epoch}.pt``."""

import math
import os
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ckptzoo.hub.untrusted.runs import identifier, run_of, step_of
from ckptzoo.schema.metadata import COLUMNS, parse_extra

FIELDS = {"id": "string", "member": "string"} | {
    column.name: column.type
    for column in COLUMNS
    if column.name in ("seed", "step", "epoch", "recipe", "method", "mode", "draw")
}
"""The columns that a name may hold, with their types."""
_FORMS = {"string": "[A-Za-z0-9._-]+?", "int64": "[0-9]{1,18}", "float64": "[0-9]{1,18}(?:\\.[0-9]{1,18})?"}
_VALUES = {"string": str, "int64": int, "float64": float}
_EPOCHS = ("epoch", "epochs", "current_epoch", "epochs_trained")
"""Scalars beside a state dict that say how many epochs it was trained, as common training programs call them."""
_CLAIMS = {
    "claimed_test_accuracy": ("test_accuracy", "test_acc", "accuracy_test", "acc_test", "test_acc1", "test_top1"),
    "claimed_test_loss": ("test_nll", "nll_test", "test_cross_entropy", "test_loss", "loss_test"),
}
_CROSS_ENTROPIES = ("test_nll", "nll_test", "test_cross_entropy")
"""Names that say which loss it is; others may be with smoothed labels, sums, or of another loss."""
"""The figures beside a state dict that are claims, with other signs than letters and digits as ``_``; also within
others, as ``metrics.test_acc``. The best of a training may be that of other weights."""


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


def own_columns(path: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read member, epoch, step and claimed figures from a file's path and the scalars beside its tensors.

    Parameters
    ----------
    path
        of the file, or its name.
    facts
        the scalars, which go before what the path says.
    """
    run = run_of(path)
    columns: dict[str, Any] = dict(claims(facts))
    if run.is_part and run.member:
        columns["member"] = identifier(run.member.replace("/", "-"))
    # True is an instance of int
    epochs = [facts[name] for name in _EPOCHS if type(facts.get(name)) is int and 0 <= facts[name] < 2**53]
    if epochs or run.epoch is not None:
        columns["epoch"] = float(epochs[0] if epochs else run.epoch or 0)
    step = step_of(facts)
    if step is None:
        step = run.step
    if step is not None:
        columns["step"] = step
    return columns


def distinct_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Name each file: its own name, and the folders by which it differs where several have the same one.

    Examples
    --------
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


def claims(facts: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a test set among what a file holds beside its tensors, as columns; accuracies as fractions.

    >>> claims({"test_acc": 0.5, "metrics.test_loss": 1.5, "best_test_acc": 0.9}), claims({"test/acc": "63.2"})
    ({'claimed_test_accuracy': 0.5, 'claimed_test_loss': 1.5}, {'claimed_test_accuracy': 0.632})
    """
    found: dict[str, float] = {}
    named = {re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_"): value for name, value in facts.items()}
    for column, names in _CLAIMS.items():
        for name in names:
            within = (value for key, value in named.items() if key.endswith(f"_{name}") and "best" not in key)
            number = next((n for value in (named.get(name), *within) if (n := _figure(value)) is not None), None)
            if number is None or (column.endswith("accuracy") and number > 100):
                continue
            # fractions are at most 1; what is above is percent
            is_percent = column.endswith("accuracy") and number > 1
            found[column] = round(number / 100, 12) if is_percent else number
            break
    return found


def claimed_accuracy(row: Mapping[str, Any]) -> float | None:
    """The test accuracy that a contributor claims of a row: in its column, or among what its file held.

    Parameters
    ----------
    row
        with ``claimed_test_accuracy`` and ``extra``.
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
    """The test loss that a contributor claims of a row, in its column or among what its file held; None without one.

    Parameters
    ----------
    row
        with ``claimed_test_loss`` and ``extra``.
    """
    facts = (parse_extra(row["extra"]) or {}).get("facts")
    of_file = claims(facts) if isinstance(facts, Mapping) else {}
    held, said = of_file.get("claimed_test_loss"), row["claimed_test_loss"]
    if said is not None and said != held:  # a person's, whose convention the card says
        return ClaimedLoss(said, is_cross_entropy=True)
    if held is None:
        return None
    named = {re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_"): _figure(fact) for name, fact in facts.items()}
    known = any(n.endswith(_CROSS_ENTROPIES) and "best" not in n and value == held for n, value in named.items())
    return ClaimedLoss(held, is_cross_entropy=known)


def _figure(value: Any) -> float | None:
    """A finite number from 0, also as a text: files of safetensors hold texts alone."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value.strip())
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if value >= 0 else None

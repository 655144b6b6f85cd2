"""The outcome of checks and a summary of each contributed checkpoint, as tables for consoles, JSON and Markdown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ckptzoo.console import say
from ckptzoo.hub.card import markdown
from ckptzoo.hub.contributions.file_names import claimed_accuracy, claimed_loss
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import counted, printable, shortened

MAX_DETAIL = 2_000
"""Characters of a detail in lines and in Markdown; four ids with reasons fit."""
MAX_TEXT = 60_000
"""Characters of a description or a comment; ``ckptzoo.server`` cuts texts at 65,536."""
MAX_ROWS = 50
"""Checkpoints that a table lists."""
_HEADER = ("checkpoint", "claimed", "stated", "measured", "finite", "copy of")
_LOSSES = ("claimed loss", "measured loss")
"""Columns after ``measured`` where a loss is claimed."""
_TEXTS = ("checkpoint", "finite", "copy of")
_CHECK_HEADER = ("check", "outcome", "detail")

ACCURACY = "accuracy"
"""The name of the check of accuracies."""
Outcome = Literal["passed", "failed", "not done"]


@dataclass(frozen=True)
class ReviewCheck(JsonFields):
    """The outcome of one check.

    Parameters
    ----------
    name
        what was checked, in a word or two.
    outcome
        ``passed``, ``failed``, or ``not done`` where something that it needs was not available.
    detail
        what was found, in one line.
    """

    name: str
    outcome: Outcome
    detail: str


def check_result(name: str, wrong: Sequence[str], right: str) -> ReviewCheck:
    """Return a check that failed, with the first four things that are wrong, or passed, with what is right."""
    more = f"; and {len(wrong) - 4:,} more" if len(wrong) > 4 else ""
    return ReviewCheck(name, "failed", "; ".join(wrong[:4]) + more) if wrong else ReviewCheck(name, "passed", right)


def failures(checks: Sequence[ReviewCheck]) -> tuple[ReviewCheck, ...]:
    """Return the checks that failed."""
    return tuple(check for check in checks if check.outcome == "failed")


def checks_table(checks: Sequence[ReviewCheck]) -> Table:
    """Return the checks as a table for a terminal, with details folded to its width."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in _CHECK_HEADER:
        table.add_column(name, no_wrap=name != "detail", overflow="fold")
    for check in checks:
        table.add_row(check.name, check.outcome, printable(check.detail))
    return table


def check_lines(checks: Sequence[ReviewCheck]) -> list[str]:
    """Return the checks in columns, one line each, whose details have at most ``MAX_DETAIL`` characters."""
    rows = [_CHECK_HEADER, *((check.name, check.outcome, shortened(check.detail, MAX_DETAIL)) for check in checks)]
    names, outcomes = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"{name:<{names}}  {outcome:<{outcomes}}  {detail}" for name, outcome, detail in rows]


def checks_markdown(checks: Sequence[ReviewCheck]) -> str:
    """Return the checks as a table in Markdown; untrusted text is in code spans."""
    outcomes = {"passed": "passed", "failed": "**failed**", "not done": "*not done*"}
    rows = [(check.name, outcomes[check.outcome], markdown.code(check.detail, limit=MAX_DETAIL)) for check in checks]
    return markdown.table(_CHECK_HEADER, rows)


@dataclass(frozen=True)
class CheckpointSummary:
    """One contributed checkpoint.

    Test accuracies are ``claimed`` and ``stated`` (as measured by whoever wrote the row) in its row, and ``measured``
    here, None where it was not. ``finite`` is what its row says of its elements; ``copy`` describes the checkpoint that
    it copies. ``measured_loss`` is the mean cross entropy in nats.
    """

    id: str
    claimed: float | None
    stated: float | None
    measured: float | None
    finite: bool | None
    copy: str | None
    claimed_loss: float | None = None
    measured_loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "claimed_test_accuracy": _finite_or_none(self.claimed),
            "test_accuracy": _finite_or_none(self.stated),
            "measured_test_accuracy": _finite_or_none(self.measured),
            "claimed_test_loss": _finite_or_none(self.claimed_loss),
            "measured_test_loss": _finite_or_none(self.measured_loss),
            "finite": self.finite,
            "copy_of": self.copy,
        }

    def cells(self, *, losses: bool) -> tuple[str, ...]:
        """Return its figures for a table, after the id; with losses where any is claimed."""
        finite = {True: "yes", False: "no", None: "-"}[self.finite]
        accuracies = _percent(self.claimed), _percent(self.stated), _percent(self.measured)
        return (*accuracies, *(map(_loss, (self.claimed_loss, self.measured_loss)) if losses else ()), finite)


def summarize(
    zoo: Zoo, measured: Mapping[str, Mapping[str, float]], copies: Mapping[str, str]
) -> tuple[CheckpointSummary, ...]:
    """Return a summary of each checkpoint of a zoo, with its measured accuracy and what it is a copy of."""
    columns = ["id", "claimed_test_accuracy", "claimed_test_loss", "test_accuracy", "finite", "extra"]
    return tuple(
        CheckpointSummary(
            row["id"],
            claimed_accuracy(row),
            row["test_accuracy"],
            measured.get(row["id"], {}).get("test_accuracy"),
            row["finite"],
            copies.get(row["id"]),
            None if (loss := claimed_loss(row)) is None else loss.value,
            measured.get(row["id"], {}).get("test_nll"),
        )
        for row in zoo.metadata.select(columns).to_pylist()
    )


def summaries_table(summaries: Sequence[CheckpointSummary]) -> Table:
    """Return the first summaries as a table for a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    header, losses = _header(summaries)
    for name in header:
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=True)
    for entry in summaries[:MAX_ROWS]:
        table.add_row(printable(entry.id), *entry.cells(losses=losses), printable(entry.copy or "-"))
    if len(summaries) > MAX_ROWS:
        table.add_row(f"and {len(summaries) - MAX_ROWS:,} more")
    return table


def summaries_markdown(summaries: Sequence[CheckpointSummary]) -> str:
    """Return the first summaries as a table in Markdown."""
    header, losses = _header(summaries)
    rows = [
        (markdown.code(entry.id), *entry.cells(losses=losses), markdown.code(entry.copy) if entry.copy else "-")
        for entry in summaries[:MAX_ROWS]
    ]
    table = markdown.table(header, rows, right=[at for at, name in enumerate(header) if name not in _TEXTS])
    return table + (f"\n\nand {len(summaries) - MAX_ROWS:,} more" if len(summaries) > MAX_ROWS else "")


def _header(summaries: Sequence[CheckpointSummary]) -> tuple[tuple[str, ...], bool]:
    """Return the columns of a table, and whether those of losses are among them."""
    losses = any(entry.claimed_loss is not None for entry in summaries)
    return (*_HEADER[:4], *(_LOSSES if losses else ()), *_HEADER[4:]), losses


def unmeasured(checks: Sequence[ReviewCheck], summaries: Sequence[CheckpointSummary]) -> str:
    """Return a sentence where figures are claimed or stated and none was measured; else empty."""
    undone = any(check.name == ACCURACY and check.outcome == "not done" for check in checks)
    claimed = any(value is not None for entry in summaries for value in (entry.claimed, entry.claimed_loss))
    said = said_as(claimed=claimed, stated=any(entry.stated is not None for entry in summaries))
    return f"Figures are {said}, not measured: the check {ACCURACY} says what is missing." if undone and said else ""


def said_as(*, claimed: bool, stated: bool) -> str:
    """Return how figures are given, by the headers of the table's columns: ``claimed``, ``stated``, both or neither."""
    return " or ".join(["claimed"] * claimed + ["stated"] * stated)


def undone_checks(checks: Sequence[ReviewCheck]) -> str:
    """Return ``; 2 checks not done: accuracy, near copies``; empty where all were done."""
    names = [check.name for check in checks if check.outcome == "not done"]
    return f"; {counted(len(names), 'check')} not done: {', '.join(names)}" if names else ""


def _loss(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2%}"


def _finite_or_none(value: float | None) -> float | None:
    # JSON has no NaN and no infinities
    return None if value is None or not math.isfinite(value) else value


def print_report(out: Console, summaries: Sequence[CheckpointSummary], checks: Sequence[ReviewCheck]) -> None:
    """Print checks and summaries, with an empty line below each; no table without checkpoints."""
    # rich would read [text] in untrusted words as a style
    if summaries:
        out.print(summaries_table(summaries), markup=False, highlight=False)
        out.print()
    if out.is_terminal:
        out.print(checks_table(checks), markup=False, highlight=False)
    else:
        say(out, *check_lines(checks))
    out.print()

"""What a contribution came to.

The text of a pull request, from which its reviewer decides.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ckptzoo.console import say
from ckptzoo.hub.card.markdown import code, table
from ckptzoo.hub.contributions.report import Check, CheckpointSummary, failures, show, written
from ckptzoo.hub.contributions.submission import Submission
from ckptzoo.text import counted, printable, shortened, size


@dataclass(frozen=True)
class Contribution:
    """What ``contribute`` made of files, and where it went.

    Parameters
    ----------
    repository : the zoo's, ``org/zoo``.
    zoo : its name.
    part : the folder of the new part, from the zoo's.
    nbytes : of the part.
    entries : the checkpoints.
    checks : what was looked at.
    notes : what was done to make files fit, and which of them.
    left_out : what files hold besides the weights.
    license, source : as the contributor says.
    folder : where the part lies on this machine, if it was kept.
    number, url : of the pull request, if one was opened or was open already; the page where the hub has pages.
    status : ``proposed`` (a pull request was opened), ``published`` (a new zoo), ``open`` or ``merged`` (there
        already), ``dry run``, or ``refused`` (a check failed, and nothing was uploaded).
    """

    repository: str
    zoo: str
    part: str
    nbytes: int
    entries: tuple[CheckpointSummary, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    license: str = ""
    source: str = ""
    folder: Path | None = None
    number: int | None = None
    url: str | None = None
    status: str = "dry run"

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not failures(self.checks)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON-ready values."""
        return {
            "repository": self.repository,
            "zoo": self.zoo,
            "status": self.status,
            "number": self.number,
            "url": self.url,
            "part": self.part,
            "nbytes": self.nbytes,
            "folder": None if self.folder is None else str(self.folder),
            "license": self.license,
            "source": self.source,
            "checkpoints": [entry.to_json() for entry in self.entries],
            "checks": [check.to_json() for check in self.checks],
            "notes": list(self.notes),
            "left_out": list(self.left_out),
        }

    def print(self, console: Console | None = None) -> None:
        """Print it as tables on a rich console, by default the standard output."""
        out = console or Console()
        show(out, self.entries, self.checks)
        remarks = [f"note: {text}" for text in self.notes] + [f"left out: {text}" for text in self.left_out]
        say(out, *remarks, f"{self.repository}: {self._ending()}")

    def _ending(self) -> str:
        what = f"{counted(len(self.entries), 'checkpoint')} ({size(self.nbytes)})"
        where = "" if self.folder is None else f" The part lies in {self.folder / self.part}."
        page = self.url or f"ckptzoo review {self.repository} {self.number}"
        place = f": {self.url}" if self.url else f"; ckptzoo.open({self.repository!r}) reads it."
        return {
            "proposed": f"pull request {self.number} adds {what}: {page}",
            "published": f"published with {what}{place}{where}",
            "open": f"pull request {self.number} adds the same already: {page}",
            "merged": "the same checkpoints are in the zoo already; nothing was uploaded.",
            "dry run": f"nothing was uploaded; it would be {what}.{where}",
            "refused": f"{counted(len(failures(self.checks)), 'check')} failed; nothing was uploaded.{where}",
        }[self.status]


MAX_TITLE = 120
MAX_TEXT = 60_000
_REMARKS = 20
_FIGURES = (
    "*claimed* is what the contributor says; *stated* was measured by the program that made the part, and stands in "
    "its rows; *measured* is what that program measured again."
)
_AGAIN = (
    "The contributor's machine made these checks. To make them again from the bytes on the hub, with this pull "
    "request's number as N:"
)
_AFTERWARDS = (
    "`--merge` merges it and makes the zoo's page anew. Derived variants are the owner's to bring up to date: "
    "`ckptzoo pull`, `ckptzoo derive`, `ckptzoo push`."
)


def title(made: Contribution, submission: Submission) -> str:
    """``Add 3 checkpoints (J. Doe)``."""
    who = shortened(printable(str(submission.defaults["contributor"])), 60)
    return shortened(f"Add {counted(len(made.entries), 'checkpoint')} ({who})", MAX_TITLE)


def description(made: Contribution, submission: Submission) -> str:
    """Markdown: what is added, by whom and under which licence, every checkpoint, and every check with its outcome.

    Whatever strangers wrote stands in code spans, where it can do nothing but be read.
    """
    told = submission.defaults
    facts = [(key, code(str(told[key]), limit=200)) for key in ("contributor", "license", "source", "dataset", "recipe")
             if key in told]  # fmt: skip
    if submission.training:
        facts.append(("training", code(submission.training, limit=1000)))
    facts.append(("part", f"{code(made.part)}, {size(made.nbytes)}"))
    lines = [
        f"{counted(len(made.entries), 'checkpoint')} for {code(made.zoo)}, in one new part. No other file changes.",
        "",
        table(("", ""), facts),
        "",
        "## Checkpoints",
        "",
        written(made.entries),
        "",
        _FIGURES,
        "",
        "## Checks",
        "",
        table(
            ("check", "outcome", "detail"),
            [(check.name, _mark(check.outcome), code(check.detail, limit=400)) for check in made.checks],
        ),
        "",
    ]
    for head, texts in (("Notes", made.notes), ("Left out of the files", made.left_out)):
        if texts:
            more = [f"- and {len(texts) - _REMARKS:,} more"] if len(texts) > _REMARKS else []
            lines += [f"## {head}", "", *(f"- {code(text, limit=300)}" for text in texts[:_REMARKS]), *more, ""]
    lines += [
        "## Review",
        "",
        _AGAIN,
        "",
        "```",
        f"ckptzoo review {made.repository} N",
        "```",
        "",
        _AFTERWARDS,
    ]
    return shortened("\n".join(lines), MAX_TEXT)


def _mark(outcome: str) -> str:
    return {"passed": "passed", "failed": "**failed**", "not done": "*not done*"}[outcome]

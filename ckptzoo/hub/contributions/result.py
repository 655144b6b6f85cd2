"""``Contribution``, the result of ``contribute``, and the title and text of its pull request."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ckptzoo.console import PrintedResult, say
from ckptzoo.hub.card.markdown import code, table
from ckptzoo.hub.contributions.report import (
    MAX_TEXT,
    CheckpointSummary,
    ReviewCheck,
    checks_markdown,
    failures,
    print_report,
    summaries_markdown,
    unmeasured,
)
from ckptzoo.hub.contributions.submission import Submission
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import counted, excerpt, shortened, size


@dataclass(frozen=True)
class Contribution(PrintedResult, JsonFields, without=("options",), named={"entries": "checkpoints"}):
    """The result of ``contribute``: the part, and where it went.

    Parameters
    ----------
    repository
        the zoo's, ``org/zoo``.
    zoo
        its name.
    part
        the folder of the new part, from the zoo's.
    nbytes
        of the part.
    entries
        the checkpoints.
    checks
        what was checked.
    notes
        what was done to make files fit, and to how many of them.
    left_out
        what files hold besides the weights.
    license, source
        as the contributor says.
    folder
        where the part is on this machine, if it was kept.
    number, url
        of the pull request, if one was opened or was open already; the page where the hub has pages.
    status
        ``proposed`` (a pull request was opened), ``published`` (a new zoo), ``open`` or ``merged`` (there already),
        ``dry run``, or ``refused`` (a check failed, and nothing was uploaded).
    options
        of ``ckptzoo review``, with placeholders: the module and the inputs that it needs to measure the checkpoints.
    """

    repository: str
    zoo: str
    part: str
    nbytes: int
    entries: tuple[CheckpointSummary, ...]
    checks: tuple[ReviewCheck, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    license: str = ""
    source: str = ""
    folder: Path | None = None
    number: int | None = None
    url: str | None = None
    status: str = "dry run"
    options: str = ""

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not failures(self.checks)

    def print(self, console: Console | None = None) -> None:
        """Print it as tables on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        out = console or Console()
        print_report(out, self.entries, self.checks)
        remarks = [f"note: {text}" for text in self.notes] + [f"left out: {text}" for text in self.left_out]
        untested = unmeasured(self.checks, self.entries)
        say(out, *remarks, *([untested] if untested else []), f"{self.repository}: {self._last_line()}")

    def _last_line(self) -> str:
        added = f"{counted(len(self.entries), 'checkpoint')} ({size(self.nbytes)})"
        location = "" if self.folder is None else f" The part is in {self.folder / self.part}."
        page = self.url or f"ckptzoo review {self.repository} {self.number}{self.options}"
        published = f": {self.url}" if self.url else f"; ckptzoo.open({self.repository!r}) reads it."
        return {
            "proposed": f"pull request {self.number} adds {added}: {page}",
            "published": f"published with {added}{published}{location}",
            "open": f"pull request {self.number} adds the same already: {page}",
            "merged": "the same checkpoints are in the zoo already; nothing was uploaded.",
            "dry run": f"nothing was uploaded; it would be {added}.{location}",
            "refused": f"{counted(len(failures(self.checks)), 'check')} failed; nothing was uploaded.{location}",
        }[self.status]


# a hub takes titles of up to 200 characters
MAX_TITLE = 120
_MAX_REMARKS = 20
_FIGURES_NOTE = (
    "*claimed* is what the contributor says; *stated* was measured by the program that made the part, and is in "
    "its rows; *measured* is what that program measured again."
)
_CHECK_AGAIN = (
    "The contributor's machine made these checks. To make them again from the bytes on the hub, with this pull "
    "request's number as N:"
)
_AFTERWARDS = (
    "`--merge` merges it and makes the zoo's page again. Derived variants are the owner's to bring up to date: "
    "`ckptzoo pull`, `ckptzoo derive`, `ckptzoo push`."
)


def title(contribution: Contribution, submission: Submission) -> str:
    """Return ``Add 3 checkpoints (J. Doe)``."""
    who = excerpt(submission.defaults["contributor"], 60)
    return shortened(f"Add {counted(len(contribution.entries), 'checkpoint')} ({who})", MAX_TITLE)


def description(contribution: Contribution, submission: Submission) -> str:
    """Describe in Markdown what is added, by whom and under which licence, every checkpoint, and every check.

    Untrusted text is put into code spans, where it cannot be a link, a mention or HTML.
    """
    defaults = submission.defaults
    listed = ("contributor", "license", "source", "dataset", "recipe")
    facts = [(key, code(str(defaults[key]), limit=200)) for key in listed if key in defaults]
    if submission.training:
        facts.append(("training", code(submission.training, limit=1000)))
    facts.append(("part", f"{code(contribution.part)}, {size(contribution.nbytes)}"))
    added = counted(len(contribution.entries), "checkpoint")
    lines = [
        f"{added} for {code(contribution.zoo)}, in one new part. No other file changes.",
        "",
        table(("", ""), facts),
        "",
        "## Checkpoints",
        "",
        summaries_markdown(contribution.entries),
        "",
        _FIGURES_NOTE,
        "",
        "## Checks",
        "",
        checks_markdown(contribution.checks),
        "",
    ]
    for heading, texts in (("Notes", contribution.notes), ("Left out of the files", contribution.left_out)):
        if texts:
            remaining = [f"- and {len(texts) - _MAX_REMARKS:,} more"] if len(texts) > _MAX_REMARKS else []
            lines += [
                f"## {heading}",
                "",
                *(f"- {code(text, limit=300)}" for text in texts[:_MAX_REMARKS]),
                *remaining,
                "",
            ]
    lines += [
        "## Review",
        "",
        _CHECK_AGAIN,
        "",
        "```",
        f"ckptzoo review {contribution.repository} N{contribution.options}",
        "```",
        "",
        _AFTERWARDS,
    ]
    return shortened("\n".join(lines), MAX_TEXT)

"""The text of a pull request, from which its reviewer decides."""

from ckptzoo.hub.card.markdown import code, table
from ckptzoo.hub.checks.entries import written
from ckptzoo.hub.contributing.result import Contribution
from ckptzoo.hub.contributing.submission import Submission
from ckptzoo.words import counted, printable, shortened, size

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
    facts = [(key, code(str(told[key]), most=200)) for key in ("contributor", "license", "source", "dataset", "recipe")
             if key in told]  # fmt: skip
    if submission.training:
        facts.append(("training", code(submission.training, most=1000)))
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
            [(check.name, _mark(check.outcome), code(check.detail, most=400)) for check in made.checks],
        ),
        "",
    ]
    for head, texts in (("Notes", made.notes), ("Left out of the files", made.left_out)):
        if texts:
            more = [f"- and {len(texts) - _REMARKS:,} more"] if len(texts) > _REMARKS else []
            lines += [f"## {head}", "", *(f"- {code(text, most=300)}" for text in texts[:_REMARKS]), *more, ""]
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

"""Writes docs/guide/commands.md behind its marker again: every command of the command line, from Typer."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ckptzoo.cli.app import app

PAGE = Path(__file__).with_name("guide") / "commands.md"
MARKER = "<!-- Written by `python docs/commands.py`. -->\n"


def described() -> str:
    """A section for each command, with its arguments and options."""
    group: Any = typer.main.get_command(app)
    return "\n".join(
        section for name, command in group.commands.items() for section in _sections(f"ckptzoo {name}", command, "##")
    )


def written(page: str) -> str:
    """The page with its part behind the marker written again."""
    return page.partition(MARKER)[0] + MARKER + "\n" + described()


def _sections(name: str, command: Any, heading: str) -> Iterator[str]:
    """A command, and those below it one level deeper."""
    context = command.make_context(name, [], resilient_parsing=True)
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [
        f"| `{_cell(names.removesuffix(' <str>'))}` | {_cell(_paragraph(help))} |"
        for names, help in filter(None, records)
        if "--help" not in names
    ]
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines = [f"{heading} {name}\n", f"{_paragraph(command.help)}\n", f"    {usage}\n"]
    if rows:
        lines += ["| argument or option | |", "|---|---|", *rows, ""]
    yield "\n".join(lines)
    for inner, below in getattr(command, "commands", {}).items():
        yield from _sections(f"{name} {inner}", below, heading + "#")


def _paragraph(help: str | None) -> str:
    """A help text in one line of Markdown, whose words in angle brackets stay words."""
    return " ".join((help or "").replace("\b", "").split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    """A text within a cell of a table; Markdown would take ``[default: 3] [x>=1]`` for a link."""
    return re.sub(r"\]\s+\[", "; ", text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

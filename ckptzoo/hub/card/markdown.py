"""Markdown in which nobody's text can do anything but be read."""

import re
from collections.abc import Iterable, Sequence

MAX_SHOWN = 80


def code(text: str, *, most: int = MAX_SHOWN) -> str:
    r"""Text as a code span that can stand anywhere, in a table too.

    Parameters
    ----------
    text : anybody's. Backticks, bars and whatever is not printable are written as escapes, such as ``\x60``.
    most : characters between the backticks; what is longer ends in dots.

    Notes
    -----
    ``tests/hub/card/test_markdown.py`` renders arbitrary text.
    """
    shown = "".join(map(_escaped, text[: most + 1]))
    if not shown.strip():
        return "(blank)"
    return f"`{shown if len(shown) <= most else shown[: most - 3] + '...'}`"


def listed(texts: Sequence[str], *, most: int) -> str:
    """The first of several texts as code spans, and how many more there are."""
    more = [f"{len(texts) - most:,} more"] if len(texts) > most else []
    return ", ".join([*map(code, texts[:most]), *more])


def fenced(text: str, language: str = "") -> str:
    """A block of code; its fence is longer than any in the text."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def folded(title: str, text: str) -> str:
    """Text behind a line that opens it."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """A table of cells that are Markdown already; columns in ``right`` are aligned there."""
    edge = set(right)
    rule = ["---:" if at in edge else "---" for at in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def _escaped(character: str) -> str:
    if character in "`|":
        return f"\\x{ord(character):02x}"
    return character if character.isprintable() else character.encode("unicode_escape").decode()

"""Markdown in which untrusted text can only be read: code spans, fences, folds and tables."""

import re
from collections.abc import Iterable, Sequence

MAX_SHOWN = 80
"""Characters of untrusted text in a code span, unless the caller says otherwise."""


def code(text: str, *, limit: int = MAX_SHOWN, escape: bool = True) -> str:
    r"""Write untrusted text as a code span of at most ``limit`` characters between the backticks; longer text ends in
    dots.

    With ``escape`` backticks, bars and whatever is not printable become escapes, such as ``\x60``, so that the span
    can be anywhere, in a table too. Otherwise the text is shown letter by letter, whole and on one line, which is
    not for tables.

    >>> print(code("a`b"), code("a`b", escape=False))
    `a\x60b` ``a`b``
    """
    if not escape:
        line, fence = " ".join(text.split()), _fence(text)
        # A backtick beside the fence would belong to it; one space on each side is not shown (CommonMark 0.31, 6.1).
        space = " " if line.startswith("`") or line.endswith("`") else ""
        return f"{fence}{space}{line}{space}{fence}"
    shown = "".join(map(_escaped, text[: limit + 1]))
    if not shown.strip():
        return "(blank)"
    return f"`{shown if len(shown) <= limit else shown[: limit - 3] + '...'}`"


def _escaped(character: str) -> str:
    # a bar ends a cell of a table in a code span too (GitHub Flavored Markdown, 4.10)
    if character in "`|":
        return f"\\x{ord(character):02x}"
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _fence(text: str, shortest: int = 1) -> str:
    """Return one backtick more than follow one another anywhere in a text."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    return "`" * max(shortest, longest + 1)


def listed(texts: Sequence[str], *, limit: int) -> str:
    """Return the first ``limit`` of several texts as code spans, and how many more there are."""
    more = [f"{len(texts) - limit:,} more"] if len(texts) > limit else []
    return ", ".join([*map(code, texts[:limit]), *more])


def fenced(text: str, language: str = "") -> str:
    """Return a block of code; its fence is longer than any in the text."""
    # a block ends at a fence that is as long as its first or longer (CommonMark 0.31, 4.5)
    fence = _fence(text, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def folded(title: str, text: str) -> str:
    """Hide text until its title is clicked."""
    # Markdown within HTML begins behind an empty line (CommonMark 0.31, 4.6)
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return a table of cells in Markdown; ``right`` are the numbers of the columns that are aligned right."""
    right = set(right)
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))

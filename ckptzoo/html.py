"""Small HTML tables for notebooks: escaped, of bounded size, without scripts, colours or anything to fetch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ckptzoo.text import counted, printable, shortened

MAX_BYTES = 20_000
"""The largest fragment in bytes: a notebook keeps each in its file."""
MAX_ROWS, MAX_COLUMNS = 40, 16
"""Rows and columns of a table that are shown at most."""
MAX_TEXT = 500
"""Characters of a cell or a paragraph that are shown."""
_NOTE_BYTES = 400
"""Kept free for the end of a table, and what it says of rows and columns that are left out."""

# Notebooks align cells right and style tables by class: only an attribute of the cell itself stands above that.
# Colours are those of the page around, so that dark pages stay dark.
_TABLE = '<table cellpadding="4" style="border-collapse:collapse;margin:.3em 0">'
_TEXT = "text-align:left;overflow-wrap:anywhere"
_NAME = "text-align:left;white-space:nowrap"
_NUMBER = "text-align:right"


@dataclass(frozen=True)
class Grid:
    """A table.

    ``rows`` hold cells as plain text; ``header`` has the names of the columns, none for a table of names and values;
    ``numbers`` are the positions of the columns that are aligned right. A table with a title can be folded.
    """

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    numbers: frozenset[int] = frozenset()
    title: str = ""


def fragment(*blocks: str | Grid) -> str:
    """Paragraphs and tables as HTML of at most ``MAX_BYTES`` bytes, which says how much is left out.

    >>> fragment("a < b")
    '<div><p style="margin:.3em 0;white-space:pre-wrap">a &lt; b</p></div>'
    """
    pieces: list[str] = []
    room = MAX_BYTES - len("<div></div>") - _NOTE_BYTES
    for number, block in enumerate(blocks):
        piece = _paragraph(block, room) if isinstance(block, str) else _table(block, room)
        if _nbytes(piece) > room:
            pieces.append(_paragraph(f"{counted(len(blocks) - number, 'more piece')} not shown"))
            break
        pieces.append(piece)
        room -= _nbytes(piece)
    return f"<div>{''.join(pieces)}</div>"


def listed(names: Iterable[str], limit: int = MAX_ROWS) -> str:
    """Names with commas between them, and how many more there are than the limit."""
    every = list(names)
    more = [f"and {len(every) - limit:,} more"] if len(every) > limit else []
    return ", ".join([*(shortened(name, 80) for name in every[:limit]), *more])


def _paragraph(text: str, room: int = MAX_BYTES) -> str:
    """The lines that fit into ``room`` bytes, at most ``MAX_ROWS`` of them."""
    lines, shown, used = text.split("\n"), list[str](), _NOTE_BYTES
    for line in lines[:MAX_ROWS]:
        piece = _escaped(line)
        if (used := used + _nbytes(piece) + 1) > room:
            break
        shown.append(piece)
    if len(shown) < len(lines):
        shown.append(f"{counted(len(lines) - len(shown), 'more line')} not shown")
    return f'<p style="margin:.3em 0;white-space:pre-wrap">{"<br>".join(shown)}</p>'


def _table(grid: Grid, room: int) -> str:
    """The rows that fit into ``room`` bytes, at most ``MAX_ROWS`` of them."""
    width = max(map(len, (grid.header, *grid.rows)), default=0)
    fold = f"<details open><summary>{_escaped(grid.title)}</summary>" if grid.title else ""
    pieces = [fold, _TABLE, _row("th", grid.header, grid.numbers) if grid.header else ""]
    used, shown = sum(map(_nbytes, pieces)) + _NOTE_BYTES, 0
    for row in grid.rows[:MAX_ROWS]:
        piece = _row("td", row, grid.numbers, named=not grid.header)
        if (used := used + _nbytes(piece)) > room:
            break
        pieces.append(piece)
        shown += 1
    pieces.append("</table>")
    left_out = [
        counted(number, f"more {what}")
        for number, what in ((len(grid.rows) - shown, "row"), (width - MAX_COLUMNS, "column"))
        if number > 0
    ]
    if left_out:
        pieces.append(_paragraph(f"{' and '.join(left_out)} not shown"))
    return "".join([*pieces, "</details>" if grid.title else ""])


def _row(kind: str, cells: Sequence[str], numbers: frozenset[int], *, named: bool = False) -> str:
    """``named``: the first cell is the name of the others."""
    pieces: list[str] = []
    for place, cell in enumerate(cells[:MAX_COLUMNS]):
        tag = "th" if named and place == 0 else kind
        style = _NUMBER if place in numbers else _NAME if tag == "th" else _TEXT
        indented = ";white-space:pre-wrap" if cell.startswith(" ") else ""
        pieces.append(f'<{tag} style="{style}{indented}">{_escaped(cell)}</{tag}>')
    return f"<tr>{''.join(pieces)}</tr>"


def _escaped(text: str) -> str:
    """Text of which nothing is markup; lines stay lines, and what has no shape is written out as an escape."""
    lines = shortened(text[: MAX_TEXT + 1], MAX_TEXT).split("\n")
    return "<br>".join(escape(printable(line)) for line in lines)


def _nbytes(text: str) -> int:
    return len(text.encode())

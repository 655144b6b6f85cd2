"""Lines and small tables on a console."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from ckptzoo.text import printable


def say(out: Console, *lines: str) -> None:
    """Print lines as they are, however long; what a terminal would obey is written out."""
    for line in lines:
        out.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and texts, one pair a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, printable(text))
    return table


def columns(first: str, *others: str) -> Table:
    """An empty table of these columns: names in the first, numbers in the others."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table

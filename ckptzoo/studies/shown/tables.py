"""Facts and tables of figures, as all studies print them."""

from collections.abc import Iterable

from rich.table import Table

from ckptzoo.words import printable


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and texts, one pair a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, printable(text))
    return table


def columns(first: str, *others: str) -> Table:
    """An empty table of these columns: names in the first, figures in the others."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table

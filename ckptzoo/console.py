"""Lines and small tables on a console, and the same in a notebook."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from io import StringIO

from rich.console import Console, ConsoleRenderable, Group, RenderableType, RenderHook
from rich.table import Table
from rich.text import Text

from ckptzoo import html
from ckptzoo.text import printable


class PrintedResult(ABC):
    """A result that can be printed; a notebook shows the same lines, and the tables as tables."""

    @abstractmethod
    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output."""

    def _repr_html_(self) -> str:
        return html.fragment(*printed_blocks(self))


def printed_blocks(result: PrintedResult) -> list[str | html.Grid]:
    """Return the words of a result: lines that follow one another, as one text, and tables."""
    printed = _Kept()
    console = Console(file=StringIO(), force_jupyter=False)
    console.push_render_hook(printed)
    result.print(console)
    return printed.blocks


class _Kept(RenderHook):
    """A console file that keeps what is printed for ``printed_blocks`` and writes nothing.

    ``blocks`` are lines that follow one another, as one text, and tables.
    """

    def __init__(self) -> None:
        self.blocks: list[str | html.Grid] = []

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Keep these; a console calls it with everything that is printed."""
        for item in renderables:
            self._keep(item)
        return []

    def _keep(self, item: RenderableType) -> None:
        if isinstance(item, Group):
            for inner in item.renderables:
                self._keep(inner)
        elif isinstance(item, Table):
            self.blocks.append(_grid(item))
        elif text := _text(item).strip("\n"):
            before = [self.blocks.pop()] if self.blocks and isinstance(self.blocks[-1], str) else []
            self.blocks.append("\n".join([*map(str, before), text]))


def _grid(table: Table) -> html.Grid:
    columns = [[_text(cell) for cell in column.cells] for column in table.columns]
    header = [_text(column.header) for column in table.columns] if table.show_header else []
    numbers = frozenset(place for place, column in enumerate(table.columns) if column.justify == "right")
    return html.Grid(list(zip(*columns, strict=True)), header, numbers)


def _text(item: RenderableType) -> str:
    """Render as a wide console would, without colours."""
    if isinstance(item, str | Text):
        return str(item)
    wide = Console(file=StringIO(), width=1_000, color_system=None, force_jupyter=False)
    with wide.capture() as captured:
        wide.print(item, markup=False, highlight=False)
    return captured.get().rstrip("\n")


def say(out: Console, *lines: str) -> None:
    """Print lines without wrapping; control characters of terminals are escaped."""
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

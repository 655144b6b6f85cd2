"""Results in a notebook: what their print prints, as escaped tables of bounded size."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from rich.console import Console, Group
from rich.text import Text

from ckptzoo.console import PrintedResult, columns, facts
from ckptzoo.html import MAX_COLUMNS, MAX_ROWS
from ckptzoo.hub.push.api import Planned
from ckptzoo.studies.inventory import inventory
from ckptzoo.studies.marginals import marginals
from ckptzoo.studies.overview import overview
from ckptzoo.studies.symmetries import symmetries
from tests.support.html_checks import shown_text

GAUGE = "first-weight"
HOSTILE = "<script>alert(1)</script> [bold]&\x1b[31m"


@dataclass(frozen=True)
class Wide(PrintedResult):
    """A result of other people's words, with a table of so many rows and columns."""

    rows: int
    columns: int

    def print(self, console: Console | None = None) -> None:
        table = columns("first", *(f"column {number}" for number in range(1, self.columns)))
        for _ in range(self.rows):
            table.add_row(*[HOSTILE] * self.columns)
        out = console or Console()
        out.print(Group(facts([("name", HOSTILE)]), "", HOSTILE, table), markup=False, highlight=False)
        out.print(Text("behind", style="red"), "the table")


@pytest.mark.parametrize(
    "study", [inventory, overview, partial(marginals, variant=GAUGE), partial(symmetries, variant=GAUGE)]
)
def test_a_result_shows_the_words_that_it_prints(
    perceptrons: Callable[..., Any], capsys: pytest.CaptureFixture[str], study: Callable[[Any], PrintedResult]
) -> None:
    result = study(perceptrons()[0])
    start = time.perf_counter()
    shown = shown_text(result._repr_html_())
    seconds = time.perf_counter() - start
    assert capsys.readouterr().out == "" and seconds < 0.5
    console = Console(width=500)
    with console.capture() as printed:
        result.print(console)
    assert shown.split() == printed.get().split()


def test_20_ms_are_enough(perceptrons: Callable[..., Any]) -> None:
    result = symmetries(perceptrons()[0], GAUGE)
    for item in (result, Wide(100, 20)):
        seconds = list[float]()
        for _ in range(5):
            start = time.perf_counter()
            item._repr_html_()
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 0.02


@pytest.mark.parametrize(("rows", "width"), [(3, 4), (1_000, 3), (3, 300), (1_000, 300)])
def test_words_of_others_are_text_and_large_tables_are_cut(rows: int, width: int) -> None:
    fragment = Wide(rows, width)._repr_html_()
    text = shown_text(fragment)
    assert "<script" not in fragment and "\x1b" not in fragment
    cells = text.count("<script>alert(1)</script> [bold]&") - 2  # two are above the table
    shown = cells // min(width, MAX_COLUMNS)
    assert cells == shown * min(width, MAX_COLUMNS) and min(3, rows) <= shown <= MAX_ROWS
    left_out = [f"{rows - shown:,} more rows"] if rows > shown else []
    left_out += [f"{width - MAX_COLUMNS:,} more columns"] if width > MAX_COLUMNS else []
    assert (f"{' and '.join(left_out)} not shown" in text) if left_out else text.endswith("behind the table")


def test_long_lists_are_cut() -> None:
    parts = tuple(f"parts/{number:06d}-{'0' * 8}" for number in range(5_000))
    planned = Planned("lab/zoo", None, True, 3, parts, 0, ("zoo.json",), (), 10**9)
    text = shown_text(planned._repr_html_())
    assert "5,000 parts to upload in a new repository" in text and "more lines not shown" in text

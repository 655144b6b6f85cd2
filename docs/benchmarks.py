"""Writes what pages show of benchmarks again, from the figures in docs/benchmarks/*.json: tables, and figures in texts.

A table stands between ``<!-- table PROGRAM: TABLE -->`` and ``<!-- end -->``, on lines of their own, a figure of a text
between ``<!--= PROGRAM: TABLE: ROW | COLUMN -->`` and ``<!--/-->``. ``make bench`` measures; a table whose program has
no figures yet says so.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
KEPT = DOCS / "benchmarks"
TABLE = re.compile(
    r"(?P<head><!-- table (?P<program>\w+): (?P<table>[\w -]+) -->\n).*?(?P<tail><!-- end -->)", re.DOTALL
)
FIGURE = re.compile(
    r"(?P<head><!--= (?P<program>\w+): (?P<table>[\w -]+): (?P<row>[^|\n]+) \| (?P<column>[^|\n]+) -->).*?"
    r"(?P<tail><!--/-->)",
    re.DOTALL,
)
LADDERS = {
    "s": (
        (3 * 3600.0, 3600.0, "h"), (600.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "us"),
        (0.0, 1e-9, "ns"),
    ),
    "bytes": ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (0.0, 1.0, "B")),
    "share": ((0.0, 0.01, "%"),),
}  # fmt: skip
"""Units that people read: the value from which on each is taken, and its size, in the unit of the figures."""
BUSY = 0.5
"""A machine of which more cores were busy before a program began had other work."""


def pages() -> list[Path]:
    """Every page that shows figures."""
    found = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if TABLE.search(page.read_text()) or FIGURE.search(page.read_text())]


def written(page: str) -> str:
    """The page with its tables and figures written again.

    Raises
    ------
    KeyError
        A text shows a figure that is not there.
    """

    def table(found: re.Match[str]) -> str:
        return f"{found['head']}\n{table_of(found['program'], found['table'])}\n{found['tail']}"

    def figure(found: re.Match[str]) -> str:
        place = {key: found[key] for key in ("table", "row", "column")}
        figures = figures_of(found["program"]).get("figures", ())
        only = next((each for each in figures if place.items() <= each.items()), None)
        if only is None:
            raise KeyError(f"{found['program']}: {' | '.join(place.values())}: expected a figure, got none.")
        return f"{found['head']}{shown(only, spread=False)}{found['tail']}"

    return FIGURE.sub(figure, TABLE.sub(table, page))


@cache
def figures_of(program: str) -> dict[str, Any]:
    """What was measured by a program; nothing where it has not run."""
    path = KEPT / f"{program}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def table_of(program: str, name: str) -> str:
    """A table of a program's figures, and a line on how they were measured."""
    content = figures_of(program)
    figures = [figure for figure in content.get("figures", ()) if figure["table"] == name]
    if not figures:
        return f"Not measured yet: `make bench ONLY={program}`.\n"
    rows, columns = (list(dict.fromkeys(figure[key] for figure in figures)) for key in ("row", "column"))
    cells = {(figure["row"], figure["column"]): _unbroken(shown(figure)) for figure in figures}
    lines = [_line(["", *columns]), "|---|" + "--:|" * len(columns)]
    lines += [_line([row, *(cells.get((row, column), "") for column in columns)]) for row in rows]
    return "\n".join([*lines, "", _measured(content, figures), ""])


def _unbroken(cell: str) -> str:
    """Text of a cell with spaces at which no line is broken, but that before the parentheses."""
    return cell.replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}(", " (")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _measured(content: dict[str, Any], figures: Sequence[dict[str, Any]]) -> str:
    """When, on what, by which command, and what stands in parentheses."""
    return f"*{' '.join(_sentences(content, figures))}*"


def _sentences(content: dict[str, Any], figures: Sequence[dict[str, Any]]) -> Iterator[str]:
    machine, commit = content.get("machine", {}), content.get("commit")
    cores = f"{machine.get('cores', 2)} cores"
    place = f"{cores} of {machine['cpu']}" if "cpu" in machine else cores
    place = f"{machine['gpu']} with {place}" if machine.get("gpu") else place
    state = f", at {commit}" if commit else ""
    yield f"Measured on {content['measured']} by `{content['command']}` on {place}{state}."
    if "note" in content:
        yield content["note"]
    if content.get("busy", 0.0) > BUSY:
        yield f"The machine had other work ({content['busy']:g} cores were busy before)."
    runs = sorted({figure["runs"] for figure in figures if "low" in figure})
    if runs:
        count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        yield f"Medians, with the least and the greatest of {count} runs."


def shown(figure: dict[str, Any], spread: bool = True) -> str:
    """A figure for people: three digits, in a unit that suits it."""
    if "text" in figure:
        return figure["text"]
    factor, unit = _unit(figure["median"], figure["unit"])
    numbers = ratio if figure["unit"] == "times" else number
    text = f"{numbers(figure['median'] / factor)}{f' {unit}' if unit else ''}"
    if not spread or "low" not in figure:
        return text
    return f"{text} ({numbers(figure['low'] / factor)} to {numbers(figure['high'] / factor)})"


def _unit(value: float, unit: str) -> tuple[float, str]:
    return next(((size, name) for least, size, name in LADDERS.get(unit, ()) if abs(value) >= least), (1.0, ""))


def number(value: float) -> str:
    """Three digits, thousands apart, without zeros at the end."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    text = f"{rounded:,.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio(value: float) -> str:
    """Two places behind the point, so that near 1 a difference shows; three digits of a large and of a small one."""
    return f"{value:.2f}" if 0.1 <= value < 10 else number(value)


if __name__ == "__main__":
    for path in pages():
        path.write_text(written(path.read_text()))

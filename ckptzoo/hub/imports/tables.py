"""Tables that published zoos have beside their weights: metadata, and where in a vector each tensor is."""

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ckptzoo.errors import Problem, ZooError

_MAX_UNPACKED = 2**30
_SHAPE = re.compile(r"[\[(]?\s*((?:\d{1,9}\s*,?\s*)*)[\])]?")
_NAMES = ("varname", "name")
_WHOLE = {"seed", "step"}
"""Columns of a table of metadata that are whole numbers in a zoo."""
_STEP = "Correct the table: columns varname, start_idx, end_idx, shape."


def bytes_of(path: Path) -> bytes:
    """Return the bytes of a file that a person names; raise ``ZooError`` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        got = error.strerror or type(error).__name__
        raise ZooError(Problem(str(path), "file", "one that can be read", got, "Correct the path.")) from error


def read_table(data: bytes, location: str) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, also packed by gzip; numbers as such, without empty values.

    Raises ``ZooError`` where it is none, or unpacks to more than 1 GiB.
    """
    return [
        {name: number(text) for name, text in fields.items() if name and text != ""}
        for _, fields in table_rows(data, location)
    ]


def table_rows(data: bytes, location: str) -> list[tuple[int, dict[str, str]]]:
    """Return the number of the line and the texts of each row of a CSV file by column, also packed by gzip.

    Raises ``ZooError`` where it is none, a row has other fields than the header, or two columns have one name.
    """
    # without strict, csv passes over quotes that do not end
    lines = csv.reader(text_of(data, location), strict=True)
    rows: list[tuple[int, dict[str, str]]] = []
    try:
        head = next((row for row in lines if row), [])
        twice = next((name for name, count in Counter(head).items() if name and count > 1), None)
        if twice is not None:
            step = "Name each column once."
            raise ZooError(Problem(location, "columns", "each once", f"{twice[:80]!r} twice", step))
        for row in filter(None, lines):
            if len(row) != len(head):
                step = "Correct the row: a comma in a value needs quotes around it, and a missing value its comma."
                problem = Problem(location, f"line {lines.line_num}: fields", str(len(head)), str(len(row)), step)
                raise ZooError(problem)
            rows.append((lines.line_num, dict(zip(head, row, strict=True))))
    except csv.Error as error:
        raise ZooError(Problem(location, "table", "CSV", f"{error}"[:200], "Correct or remove it.")) from None
    return rows


def text_of(data: bytes, location: str) -> io.StringIO:
    """Decode a text, also packed by gzip; raise ``ZooError`` where it is not UTF-8, or unpacks to more than 1 GiB."""
    if data.startswith(b"\x1f\x8b"):
        data = _unpacked(data, location)
    try:
        # spreadsheets begin a text with a byte order mark
        return io.StringIO(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ZooError(Problem(location, "text", "UTF-8", f"{error}"[:200], "Correct or remove it.")) from None


def _unpacked(data: bytes, location: str) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            unpacked = stream.read(_MAX_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ZooError(Problem(location, "table", "gzip", f"{error}"[:200], "Fetch it again.")) from None
    if len(unpacked) > _MAX_UNPACKED:
        raise ZooError(Problem(location, "table", f"at most {_MAX_UNPACKED} bytes", "more", "Do not use it."))
    return unpacked


def read_by_path(data: bytes, location: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table by their column ``path`` (or ``file``), without it.

    Raises ``ZooError`` where there is no such column, or two rows are about one path.
    """
    rows_by_path: dict[str, dict[str, Any]] = {}
    for line, fields in table_rows(data, location):
        column = next((name for name in ("path", "file") if fields.get(name)), None)
        if column is None:
            got = ", ".join(name for name, text in fields.items() if text)[:160] or "none"
            raise ZooError(Problem(location, f"line {line}: column", "path", got, "Name the files in a column path."))
        path = fields.pop(column)
        if path in rows_by_path:
            raise ZooError(Problem(location, "path", "each once", f"{path[:80]!r} twice", "Remove one of the rows."))
        row = {name: number(text) for name, text in fields.items() if name and text != ""}
        for name in sorted(_WHOLE & row.keys()):
            value = row[name]
            if isinstance(value, float) and value.is_integer():  # as pandas writes a column with gaps
                value = row[name] = int(value)
            # a seed in words is a fact in extra
            if not (type(value) is int and -(2**63) <= value < 2**63) and (name != "seed" or type(value) is int):
                step = "Correct it, or give the column another name: it is then in extra."
                expected, got = "a whole number of 64 bits", repr(fields[name])[:80]
                raise ZooError(Problem(location, f"line {line}: {name}", expected, got, step))
        rows_by_path[path] = row
    return rows_by_path


def number(text: str) -> Any:
    """Return a number of a table as such, truth values too; another text as it is.

    >>> number("3"), number("0.5"), number("relu"), number("True")
    (3, 0.5, 'relu', True)
    """
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            # underscores are Python's, and no number's
            return kind(text) if "_" not in text else text
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Slice:
    """The range of a tensor in a vector, ``start`` to ``stop``, with this shape."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def read_layout(data: bytes, location: str) -> tuple[Slice, ...]:
    r"""Return the range and shape of each tensor, from a table with columns ``varname, start_idx, end_idx, shape``,
    in order.

    ``end_idx`` may be that of the last number or the one behind it. Raises ``ZooError`` where columns are
    missing, tensors overlap or leave gaps, or a shape is not as large as its range.

    >>> text = b"varname,start_idx,end_idx,shape\nb:0,0,2,\"(2,)\"\nw:0,2,6,\"(2, 2)\""
    >>> [(item.name, item.start, item.stop, item.shape) for item in read_layout(text, "layout.csv")]
    [('b:0', 0, 2, (2,)), ('w:0', 2, 6, (2, 2))]
    """
    rows = read_table(data, location)
    slices: list[Slice] = []
    for line, row in enumerate(rows, start=2):
        name = next((str(row[key]) for key in _NAMES if key in row), "")
        start, stop = row.get("start_idx"), row.get("end_idx")
        shape = shape_of(row.get("shape"))
        if not name or type(start) is not int or type(stop) is not int or shape is None:
            got = ", ".join(f"{key} {value!r}" for key, value in row.items())[:160]
            raise ZooError(Problem(location, f"line {line}", "a name, two positions and a shape", got, _STEP))
        slices.append(Slice(name, start, start + prod(shape), shape))
        if stop - start not in (prod(shape), prod(shape) - 1):
            got = f"{stop - start} for the shape {shape}"
            raise ZooError(Problem(location, f"line {line}: numbers of {name!r}", str(prod(shape)), got, _STEP))
    slices.sort(key=lambda item: item.start)
    expected = 0
    for item in slices:
        if item.start != expected:
            what = f"start of {item.name!r}"
            got = f"{item.start}: {'a gap' if item.start > expected else 'an overlap'}"
            raise ZooError(Problem(location, what, str(expected), got, _STEP))
        expected = item.stop
    if not slices or len({item.name for item in slices}) < len(slices):
        raise ZooError(Problem(location, "names", "one or more, each once", "others", _STEP))
    return tuple(slices)


def shape_of(text: Any) -> tuple[int, ...] | None:
    """Return a shape as it is printed, ``(3, 3, 1, 16)``; nothing of it is evaluated."""
    if type(text) is int:
        return (text,) if text >= 0 else None
    matched = _SHAPE.fullmatch(text.strip()) if isinstance(text, str) else None
    return None if matched is None else tuple(int(digits) for digits in re.findall(r"\d+", matched[1]))

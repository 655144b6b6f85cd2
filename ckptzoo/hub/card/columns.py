"""The metadata that is filled, column by column."""

import math
from datetime import datetime

import pyarrow as pa

from ckptzoo.hub.card.figures import between, counts, figure
from ckptzoo.hub.card.markdown import code, folded, table
from ckptzoo.spec.metadata import COLUMNS
from ckptzoo.words import counted

_FEW = 3


def columns(rows: pa.Table) -> str:
    """A line for every column with a value in it: how many have one, which values, and what it means."""
    lines = [
        (code(column.name), _filled(rows[column.name]), _values(rows[column.name], column.type), column.doc)
        for column in COLUMNS
        if rows[column.name].null_count < len(rows)
    ]
    text = table(("column", "filled", "values", "meaning"), lines, right=(1,))
    return folded(f"{counted(len(lines), 'column')} of each checkpoint's row", text)


def _filled(column: pa.ChunkedArray) -> str:
    known = len(column) - column.null_count
    return "all" if known == len(column) else f"{known:,}"


def _values(column: pa.ChunkedArray, kind: str) -> str:
    found = column.drop_null()
    if kind == "string":
        distinct = counts(found) if len(found.unique()) <= _FEW else {}
        return ", ".join(code(text, most=40) for text in distinct) or f"{len(found.unique()):,} different"
    if kind == "bool":
        true = int(found.to_numpy().sum())
        return "true" if true == len(found) else "false" if not true else f"true for {true:,}"
    if kind == "timestamp":
        moments = found.unique().to_pylist()
        return " to ".join(dict.fromkeys((_day(min(moments)), _day(max(moments)))))
    return _range(found)


def _range(found: pa.ChunkedArray) -> str:
    values = [value for value in found.unique().to_pylist() if math.isfinite(value)]
    odd = sum(not math.isfinite(value) for value in found.to_pylist())
    text = [_plain(values)] if values else []
    return ", ".join([*text, *([f"{odd:,} not finite"] if odd else [])])


def _plain(values: list[float]) -> str:
    """A range; figures up to a million are written in full where they are whole."""
    ends = [int(end) if end == int(end) and abs(end) < 1e6 else end for end in (min(values), max(values))]
    return between(*ends) if ends[0] != ends[1] else figure(ends[0])


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"

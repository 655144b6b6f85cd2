"""Filters on metadata: as pyarrow and datasets take them, as an expression, or as text from a command line."""

import ast
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ckptzoo.errors import UnknownNameError, ZooError

Filters = Any
"""``[("a", ">", 1)]`` (all hold), ``[[...], [...]]`` (any list holds), or a ``pyarrow.compute.Expression``."""

_COMPARE = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_STEP = "Write, for example, test_accuracy > 0.8 and seed < 500."


def expression(filters: Filters, columns: list[str]) -> pc.Expression:
    """Any accepted form as one expression over known columns.

    Raises
    ------
    UnknownNameError
        A column that the metadata lacks.
    ZooError
        The filters do not have an accepted form.
    """
    if isinstance(filters, pc.Expression):
        return filters
    if isinstance(filters, str):
        return parse(filters, columns)
    if filters == []:
        return pc.scalar(True)
    try:
        for item in filters:
            for name, *_ in [item] if isinstance(item, tuple) else item:
                _known(name, columns)
        return pq.filters_to_expression(filters)
    except (TypeError, ValueError) as error:
        raise ZooError(
            f"where: filters: expected [(column, operator, value), ...], got {filters!r}. {_STEP}"
        ) from error


def used(condition: pc.Expression, columns: list[str]) -> list[str]:
    """The columns that a condition may read: those whose names stand in it."""
    words = set(re.findall(r"\w+", str(condition)))
    return [name for name in columns if name in words]


def parse(text: str, columns: list[str]) -> pc.Expression:
    """A condition in Python's syntax: columns, numbers, strings, comparisons, ``in``, and, or, not. Never evaluated."""
    if len(text) > 10_000:
        raise ZooError(f"where: condition: expected at most 10,000 characters, got {len(text)}. {_STEP}")
    try:
        return _made(ast.parse(text.strip(), mode="eval").body, columns)
    except (SyntaxError, RecursionError, MemoryError, ValueError, pa.ArrowException) as error:
        step = "Compare with ==." if re.search(r"[^=!<>]=[^=]", text) else _STEP
        raise ZooError(f"where: {text[:200]!r}: expected a condition, got {error}. {step}") from error


def _made(node: ast.expr, columns: list[str]) -> pc.Expression:
    match node:
        case ast.BoolOp(op=op, values=values):
            parts = [_made(value, columns) for value in values]
            made = parts[0]
            for part in parts[1:]:
                made = made & part if isinstance(op, ast.And) else made | part
            return made
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_made(operand, columns)
        case ast.Compare(left=left, ops=ops, comparators=others):
            terms = [left, *others]
            made = None
            for a, op, b in zip(terms, ops, others, strict=False):
                part = _compared(a, op, b, columns)
                made = part if made is None else made & part
            assert made is not None
            return made
        case ast.Name(id=name):
            return pc.field(_known(name, columns))
    raise ZooError(f"where: {ast.unparse(node)!r}: expected a comparison, got {type(node).__name__}. {_STEP}")


def _compared(a: ast.expr, op: ast.cmpop, b: ast.expr, columns: list[str]) -> pc.Expression:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(b, ast.List | ast.Tuple):
        values = [_constant(item) for item in b.elts]
        found = _term(a, columns).isin(values)
        return found if isinstance(op, ast.In) else ~found
    if isinstance(op, ast.Is | ast.IsNot) and isinstance(b, ast.Constant) and b.value is None:
        found = _term(a, columns).is_null()
        return found if isinstance(op, ast.Is) else ~found
    if type(op) not in _COMPARE:
        step = "To find missing values write: seed is None."
        raise ZooError(f"where: {ast.unparse(a)!r}: expected < <= == != >= > or in, got {type(op).__name__}. {step}")
    return _COMPARE[type(op)](_term(a, columns), _term(b, columns))


def _term(node: ast.expr, columns: list[str]) -> pc.Expression:
    if isinstance(node, ast.Name):
        return pc.field(_known(node.id, columns))
    return pc.scalar(_constant(node))


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_constant(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool):
        return node.value
    raise ZooError(f"where: {ast.unparse(node)!r}: expected a column, a number or a string, got another thing. {_STEP}")


def _known(name: str, columns: list[str]) -> str:
    if name not in columns:
        if (meant := {"true": "True", "false": "False", "null": "None", "none": "None"}.get(name.lower())) is not None:
            hint = "seed is None" if meant == "None" else f"diverged == {meant}"
            raise ZooError(f"where: {name!r}: expected {meant}, got {name}. Write, for example, {hint}.")
        raise UnknownNameError("where", "column", name, columns)
    return name

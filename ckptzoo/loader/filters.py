"""Which checkpoints a condition on their metadata keeps: text, tuples, equalities, a pyarrow expression, or a mask.

Every form but pyarrow's own is checked against the columns' types before anything is read, so that errors speak of
columns and values.
"""

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.format.table import array_of, array_of_values, filled_with, scalar_of
from ckptzoo.loader.extra import dotted, extra_column, names_in
from ckptzoo.text import excerpt

Filters = Any
"""The conditions that ``Zoo.where`` accepts."""

_COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "==": (operator.eq, "equal"),
    "!=": (operator.ne, "not_equal"),
    "<": (operator.lt, "less"),
    "<=": (operator.le, "less_equal"),
    ">": (operator.gt, "greater"),
    ">=": (operator.ge, "greater_equal"),
}
"""Comparisons of pyarrow's expressions, and the functions of pyarrow for columns."""
_SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_OPERATORS = (*_COMPARE, "in", "not in")
"""Operators of ``(column, operator, value)``; ``=`` is ``==``, as in pyarrow."""
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None", "none": "None"}
"""Names in SQL and JSON of Python's constants."""
_MAX_CONDITION = 10_000
_STEP = "Write, for example, test_accuracy > 0.8 and seed < 500."
_LISTED = "Write, for example, seed in [1, 2]."
_AND = "Write and, or and not, or brackets round each comparison: (seed > 1) & (seed < 3)."

_EXAMPLES = {
    "number": "seed == 3",
    "text": "dataset == 'name'",
    "truth": "diverged == False",
    "time": "created >= '2024-01-31'",
}
"""A comparison of every kind of column."""
_VALUES = {"number": "a number", "text": "a string", "truth": "True or False", "time": "a date"}


@dataclass(frozen=True)
class _Column:
    name: str
    type: pa.DataType

    @property
    def kind(self) -> str:
        """One of ``_EXAMPLES``."""
        if pa.types.is_timestamp(self.type):
            return "time"
        if pa.types.is_boolean(self.type):
            return "truth"
        return "text" if pa.types.is_string(self.type) else "number"

    def example(self) -> str:
        """A condition on this column that is right."""
        _, rest = _EXAMPLES[self.kind].split(" ", 1)
        return f"{self.name} {'> 0.8' if pa.types.is_floating(self.type) else rest}"

    def __str__(self) -> str:
        return f"the column {self.name!r} ({self.type})"


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition on rows: pyarrow's expression, for its text, and what tells of a table in which rows it holds, truths
    and nulls; None where a user made the expression. ``Table.filter`` of an expression would import pandas.
    """

    expression: pc.Expression
    holds: Callable[[pa.Table], Any] | None

    @classmethod
    def of(cls, expression: pc.Expression, function: str, values: Sequence[Any], options: Any = None) -> "Condition":
        """A function of pyarrow of columns, conditions and constants."""

        def holds(rows: pa.Table) -> Any:
            return pc.call_function(function, [_of_rows(value, rows) for value in values], options)

        return cls(expression, holds)

    def __and__(self, other: "Condition") -> "Condition":
        return Condition.of(self.expression & other.expression, "and_kleene", [self, other])

    def __or__(self, other: "Condition") -> "Condition":
        return Condition.of(self.expression | other.expression, "or_kleene", [self, other])

    def __invert__(self) -> "Condition":
        return Condition.of(~self.expression, "invert", [self])

    def __str__(self) -> str:
        return str(self.expression)

    def positions(self, rows: pa.Table) -> NDArray[np.int64]:
        """The rows of a table in which it holds. Raises ``pa.ArrowException`` where it does not fit the columns."""
        if self.holds is None:
            numbered = rows.append_column("__row", array_of(np.arange(len(rows))))
            return filled_with(numbered.filter(self.expression)["__row"], -1)
        held = self.holds(rows)
        if isinstance(held, pa.Scalar):
            return np.arange(len(rows) if held.as_py() else 0)
        return np.flatnonzero(filled_with(held, False))


def _of_rows(value: Any, rows: pa.Table) -> Any:
    """A column of some rows, where a condition holds in them, or a constant as it is."""
    if isinstance(value, _Column):
        return rows[value.name]
    return value.holds(rows) if isinstance(value, Condition) and value.holds is not None else value


def expression(filters: Filters, schema: pa.Schema) -> Condition:
    """Any accepted form but a mask as one condition on the columns of a schema.

    Raises ``UnknownNameError`` for a column that the metadata lacks, and ``ZooError`` if the filters do not have an
    accepted form, or compare a column with a value of another type.
    """
    if isinstance(filters, pc.Expression):
        return Condition(filters, None)
    if isinstance(filters, str):
        return parse(filters, schema)
    if isinstance(filters, Mapping):
        return _all(_equality(name, value, schema) for name, value in filters.items())
    if isinstance(filters, tuple) and filters and isinstance(filters[0], str):
        filters = [filters]
    if isinstance(filters, list | tuple):
        if all(isinstance(item, tuple) for item in filters):
            return _all(_term(item, schema) for item in filters)
        if all(isinstance(item, list) for item in filters):
            return reduce(operator.or_, (_all(_term(term, schema) for term in terms) for terms in filters))
    raise _malformed(filters)


def matching(filters: Filters, metadata: pa.Table, *, location: str) -> NDArray[np.int64]:
    """The positions of the rows that satisfy filters other than masks, also of values within ``extra``.

    Raises ``UnknownNameError`` and ``ZooError`` as ``expression``, the latter also if pyarrow cannot evaluate the
    expression.
    """
    for name in names_in(filters):
        values = extra_column([metadata["extra"]], name, location=location)
        metadata = metadata.append_column(name, values)
    condition = expression(filters, metadata.schema)
    try:
        positions = condition.positions(metadata)
    except pa.ArrowException as error:
        raise unfit(condition, error, metadata.schema) from error
    nulls = {name: metadata[name].null_count for name in columns_in(condition, metadata.schema.names)}
    if not len(positions) and (note := without_values(condition, nulls, len(metadata))) is not None:
        warnings.warn(f"{location}: {note}", UserWarning, stacklevel=3)  # at the caller of Collection.where
    return positions


def kept(filters: Filters, count: int) -> NDArray[np.int64] | None:
    """The positions that a mask keeps; None where the filters are no mask.

    ``filters`` is a list of booleans, or an array of numpy, pyarrow, pandas or torch; nulls are False; ``count`` is the
    required length of the mask. Raises ``ZooError`` for an array of anything else, or a mask of another length.
    """
    if isinstance(filters, pa.Array | pa.ChunkedArray) and pa.types.is_boolean(filters.type):
        filters = np.asarray(filters.fill_null(False))
    listed = isinstance(filters, list | tuple) and len(filters) > 0
    if listed and all(isinstance(item, bool | int | np.bool_ | np.integer) for item in filters):
        filters = np.asarray(filters)
    if not hasattr(filters, "__array__"):
        return None
    mask = np.asarray(filters)
    if mask.dtype != bool or mask.shape != (count,):
        got = f"{mask.dtype} of shape {mask.shape}"
        step = f"Make it of all {count:,} of them."
        if np.issubdtype(mask.dtype, np.integer):
            step = "Positions are taken with zoo.take(positions)."
        raise ZooError(Problem("where", "mask", f"booleans of shape ({count},), one a checkpoint", got, step))
    return np.flatnonzero(mask)


def columns_in(condition: Condition, columns: list[str]) -> list[str]:
    """The columns that a condition may read: those whose names are in its text, which pyarrow gives no list of."""
    words = set(re.findall(r"\w+", str(condition)))
    return [name for name in columns if name in words or ("." in name and name in str(condition))]


def without_values(condition: Condition, nulls: Mapping[str, int], count: int) -> str | None:
    """Name the columns that a condition compares and that have no value in any row; None where each has some.

    ``nulls`` are the missing values of each column that the condition may read, in ``count`` rows. Columns are left out
    of which the condition asks whether a value is missing, and those of ``not in``, which missing values satisfy.
    """
    # a quoted text of the condition may have the name of a column in it
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(condition))
    asked = set(re.findall(r"\b(?:is_null|is_valid|invert\(is_in)\(([\w.]+)", text))
    read = set(re.findall(r"[\w.]+", text)) - asked
    names = [name for name, missing in nulls.items() if missing == count > 0 and name in read]
    if not names:
        return None
    columns = f"column{'s' * (len(names) > 1)} {' and '.join(map(repr, names))}"
    rows = "the only checkpoint" if count == 1 else f"all {count:,} checkpoints"
    step = f"To find rows without a value write: {names[0]} is None."
    return f"{columns}: empty in {rows}, so that no comparison holds. {step}"


def unfit(condition: Condition, error: pa.ArrowException, schema: pa.Schema) -> ZooError:
    """The error to raise where pyarrow cannot evaluate an expression that a user made."""
    if (absent := re.search(r"FieldRef\.Name\((\w+)\)", str(error))) is not None:
        return UnknownNameError("where", "column", absent[1], schema.names)
    used = [str(_Column(name, schema.field(name).type)) for name in columns_in(condition, schema.names)]
    got = f"{excerpt(str(condition))} of {', '.join(used) or 'no column'}"
    return ZooError(Problem("where", "expression", "a condition that fits the columns' types", got, _STEP))


def parse(text: str, schema: pa.Schema) -> Condition:
    """A condition in Python's syntax: columns, numbers, strings, comparisons, ``in``, and, or, not. Never evaluated."""
    if len(text) > _MAX_CONDITION:
        raise ZooError(Problem("where", "condition", f"at most {_MAX_CONDITION:,} characters", str(len(text)), _STEP))
    try:
        return _condition(ast.parse(text.strip(), mode="eval").body, schema)
    except SyntaxError as error:
        step = "Compare with ==." if re.search(r"[^=!<>]=[^=]", text) else _STEP
        if "&&" in text or "||" in text:
            step = _AND
        got = error.msg if text.strip() else "nothing"
        raise ZooError(Problem("where", repr(text[:200]), "a condition", got, step)) from error
    # the parser raises MemoryError or RecursionError where brackets are nested too deep for it, and ValueError for
    # null bytes
    except (RecursionError, MemoryError) as error:
        raise ZooError(Problem("where", repr(text[:200]), "a condition", "too many brackets", _STEP)) from error
    except ValueError as error:
        raise ZooError(Problem("where", repr(text[:200]), "a condition", str(error), _STEP)) from error


def _condition(node: ast.expr, schema: pa.Schema) -> Condition:
    match node:
        case ast.BoolOp(op=op, values=values):
            terms = [_condition(value, schema) for value in values]
            # conditions overload & and |; "and" would ask one for its truth
            return reduce(operator.and_ if isinstance(op, ast.And) else operator.or_, terms)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() as op, right=right):
            terms = [_condition(left, schema), _condition(right, schema)]
            return reduce(operator.and_ if isinstance(op, ast.BitAnd) else operator.or_, terms)
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            return ~_condition(operand, schema)
        case ast.Compare(left=left, ops=ops, comparators=others):
            pairs = zip([left, *others], ops, others, strict=False)  # 0 < a < 1 is 0 < a and a < 1
            return reduce(operator.and_, [_comparison(a, _SYMBOLS[type(op)], b, schema) for a, op, b in pairs])
        case ast.Name() | ast.Attribute() if (name := _named(node)) is not None:
            column = _column(name, schema)
            if column.kind != "truth":
                step = f"Write, for example, {column.example()}."
                raise ZooError(Problem("where", repr(name), "a comparison", f"{column} alone", step))
            return Condition(pc.field(name), lambda rows: rows[name])
    step = _AND if isinstance(node, ast.BinOp) else _STEP
    raise ZooError(Problem("where", repr(ast.unparse(node)), "a comparison", _described(node), step))


def _comparison(a: ast.expr, symbol: str, b: ast.expr, schema: pa.Schema) -> Condition:
    shown = f"{ast.unparse(a)} {symbol} {ast.unparse(b)}"
    if symbol in ("in", "not in"):
        column = _operand(a, schema)
        if not isinstance(column, _Column):
            raise ZooError(Problem("where", repr(shown), f"a column before {symbol}", _described(a), _LISTED))
        if not isinstance(b, ast.List | ast.Tuple | ast.Set):
            raise ZooError(Problem("where", repr(shown), f"a list behind {symbol}", _described(b), _LISTED))
        return _among(column, [_constant(item) for item in b.elts], symbol, shown)
    if symbol in ("is", "is not"):
        if not (isinstance(b, ast.Constant) and b.value is None):
            step = "Compare values with == or !=; to find missing ones write: seed is None."
            raise ZooError(Problem("where", repr(shown), "== or !=", symbol, step))
        symbol = "==" if symbol == "is" else "!="
    column = _operand(a, schema)
    if isinstance(column, _Column) and column.kind == "text" and _lost_quotes(b, schema):
        got = f"{ast.unparse(b)!r} without quotes"
        raise ZooError(Problem("where", repr(shown), "a string", got, f"Write, for example, {column.example()}."))
    return _compared(column, symbol, _operand(b, schema), shown)


def _lost_quotes(node: ast.expr, schema: pa.Schema) -> bool:
    """Whether it may be a text: ada-half reads as a difference of columns, and ada as a column."""
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.BitAnd | ast.BitOr)
    return isinstance(node, ast.Name) and node.id not in schema.names and node.id.lower() not in _PYTHON_WORDS


def _operand(node: ast.expr, schema: pa.Schema) -> Any:
    """A column, or the value of a constant."""
    name = _named(node)
    return _column(name, schema) if name is not None else _constant(node)


def _named(node: ast.expr) -> str | None:
    """The column that a part of a condition names, also within ``extra``; None where it is something else."""
    return node.id if isinstance(node, ast.Name) else dotted(node)


def _constant(node: ast.expr) -> Any:
    # Python's grammar has no negative numbers: -1 is a minus before the constant 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    elif isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    mixed = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr)
    expected = "a column, a number or a string"
    raise ZooError(Problem("where", repr(ast.unparse(node)), expected, _described(node), _AND if mixed else _STEP))


def _described(node: ast.expr) -> str:
    """A part of a condition in words."""
    match node:
        case ast.Constant(value=value):
            return _spoken(value)
        case ast.Name(id=name):
            return f"the column {name!r}"
        case ast.UnaryOp() | ast.BinOp():
            return "arithmetic"
        case ast.Call():
            return "a call"
        case ast.List() | ast.Tuple() | ast.Set():
            return "a list"
        case ast.Compare() | ast.BoolOp():
            return "a comparison"
    return "something else"


def _spoken(value: Any) -> str:
    """A constant in words."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return f"the string {excerpt(repr(value), 80)}"
    return f"the number {value}" if isinstance(value, int | float) else f"a {type(value).__name__}"


def _term(term: Any, schema: pa.Schema) -> Condition:
    """One ``(column, operator, value)``."""
    if not (isinstance(term, tuple) and len(term) == 3 and isinstance(term[0], str)):
        raise _malformed(term)
    name, symbol, value = term
    column, symbol = _column(name, schema), "==" if symbol == "=" else symbol
    shown = f"{name} {symbol} {excerpt(repr(value), 80)}"
    if symbol not in _OPERATORS:
        step = f"Write, for example, [({name!r}, '==', ...)]."
        raise ZooError(
            Problem("where", "operator of the filters", f"one of {', '.join(_OPERATORS)}", repr(symbol), step)
        )
    value = _plain(value)
    if symbol not in ("in", "not in"):
        return _compared(column, symbol, value, shown)
    if not isinstance(value, list):
        raise ZooError(Problem("where", repr(shown), f"a list behind {symbol}", _spoken(value), _LISTED))
    return _among(column, value, symbol, shown)


def _equality(name: Any, value: Any, schema: pa.Schema) -> Condition:
    """A column and the value, or the list of values, that it is to have."""
    if not isinstance(name, str):
        raise _malformed({name: value})
    return _term((name, "in" if isinstance(_plain(value), list) else "==", value), schema)


def _plain(value: Any) -> Any:
    """A value as Python's own: a list of them for arrays and sets, numbers for numpy's scalars."""
    if isinstance(value, set | frozenset | tuple | range):
        value = list(value)
    elif isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif isinstance(value, pa.Scalar):
        value = value.as_py()
    elif isinstance(value, pa.Array | pa.ChunkedArray):
        value = value.to_pylist()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _column(name: str, schema: pa.Schema) -> _Column:
    if name not in schema.names:
        if (word := _PYTHON_WORDS.get(name.lower())) is not None:
            example = "seed is None" if word == "None" else f"diverged == {word}"
            raise ZooError(Problem("where", repr(name), word, name, f"Write, for example, {example}."))
        raise UnknownNameError("where", "column", name, schema.names)
    return _Column(name, schema.field(name).type)


def _compared(a: Any, symbol: str, b: Any, shown: str) -> Condition:
    """Two columns, or a column and a value, compared; None asks for missing values."""
    if isinstance(a, _Column) and isinstance(b, _Column):
        if a.kind != b.kind:
            step = f"Write, for example, {a.example()}."
            raise ZooError(Problem("where", repr(shown), f"{_VALUES[a.kind]} to compare {a} with", str(b), step))
        return _pair(symbol, a, b)
    if isinstance(a, _Column):
        if b is None:
            return _missing(a, symbol, shown)
        return _pair(symbol, a, _fitting(a, b, shown))
    if isinstance(b, _Column):
        if a is None:
            return _missing(b, symbol, shown)
        return _pair(symbol, _fitting(b, a, shown), b)
    raise ZooError(Problem("where", repr(shown), "a comparison with a column", "none", _STEP))


def _pair(symbol: str, *values: Any) -> Condition:
    """Columns and constants compared."""
    compare, function = _COMPARE[symbol]
    plain = [value if isinstance(value, _Column | pa.Scalar) else scalar_of(value) for value in values]
    expressions = [pc.field(value.name) if isinstance(value, _Column) else pc.scalar(value) for value in plain]
    return Condition.of(compare(*expressions), function, plain)


def _missing(column: _Column, symbol: str, shown: str) -> Condition:
    if symbol not in ("==", "!="):
        step = f"To find missing values write: {column.name} is None."
        raise ZooError(Problem("where", repr(shown), f"a value to compare {column} with", "None", step))
    field, function = pc.field(column.name), "is_null" if symbol == "==" else "is_valid"
    return Condition.of(field.is_null() if symbol == "==" else field.is_valid(), function, [column])


def _among(column: _Column, values: Sequence[Any], symbol: str, shown: str) -> Condition:
    fitting: list[Any] = [_fitting(column, value, shown) for value in values if value is not None]
    if pa.types.is_integer(column.type):
        # pyarrow converts the list to the column's type, and a fraction or a number beyond 64 bits is in no row
        fitting = [int(value) for value in fitting if math.isfinite(value) and value == int(value)]
        fitting = [value for value in fitting if -(2**63) <= value < 2**63]
    elif pa.types.is_floating(column.type):
        fitting = [float(value) for value in fitting]
    if column.kind == "time":
        fitting = [moment.value for moment in fitting]
    listed = array_of_values(fitting, pa.int64() if column.kind == "time" else column.type).cast(column.type)
    found = Condition.of(pc.field(column.name).isin(listed), "is_in", [column], pc.SetLookupOptions(listed))
    if None in values:
        found |= _missing(column, "==", shown)
    return found if symbol == "in" else ~found


def _fitting(column: _Column, value: Any, shown: str) -> Any:
    """A value that a column can be compared with."""
    truth = isinstance(value, bool)
    if column.kind == "number" and isinstance(value, int | float) and not truth:
        # pyarrow has no integers beyond 64 bits, and compares none beyond 53 with floats
        exact = pa.types.is_integer(column.type) and -(2**63) <= value < 2**63
        return value if exact else _as_float(value)
    if (column.kind == "text" and isinstance(value, str)) or (column.kind == "truth" and truth):
        return value
    if column.kind == "time" and (moment := _moment(value)) is not None:
        return array_of_values([moment], column.type)[0]
    step = f"Write, for example, {column.example()}."
    raise ZooError(
        Problem("where", repr(shown), f"{_VALUES[column.kind]} to compare {column} with", _spoken(value), step)
    )


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _moment(value: Any) -> datetime | None:
    """A point in time, of UTC where it names no other zone; None where the value is none."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def _all(conditions: Iterable[Condition]) -> Condition:
    true = scalar_of(True)
    return reduce(operator.and_, conditions, Condition(pc.scalar(true), lambda rows: true))


def _malformed(filters: Any) -> ZooError:
    forms = "a condition as text, (column, operator, value), {column: value} or a mask"
    got = "a function" if callable(filters) else excerpt(repr(filters))
    step = "Write, for example, zoo.where(\"test_accuracy > 0.8 and seed < 500\") or zoo.where({'seed': 3})."
    return ZooError(Problem("where", "filters", forms, got, step))

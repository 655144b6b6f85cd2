"""Values within the JSON of the column ``extra`` as columns of their own: ``extra.optim.lr``."""

import ast
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.lazy_names import lazy_module

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = lazy_module("pyarrow.compute")

PREFIX = "extra."
_KINDS = (pa.float64(), pa.string(), pa.bool_())
"""Types of values, in the order in which they are tried; integers are read as float64."""
_BLOCK_BYTES = 64 * 2**20
"""More than the largest ``extra``: pyarrow wants a row in one block."""
_LOOKED_AT = 1000
"""The number of rows whose names are listed where one is unknown."""


def names_in(filters: Any) -> list[str]:
    """The names ``extra.<...>`` in any form of filters."""
    if isinstance(filters, str):
        try:
            nodes = list(ast.walk(ast.parse(filters.strip(), mode="eval")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # which the parser of filters reports
            return []
        found: Iterable[str | None] = (dotted(node) for node in nodes if isinstance(node, ast.Attribute))
        listed = [name for name in found if name is not None]
        # of a.b.c the tree holds a.b too
        return [name for name in dict.fromkeys(listed) if not any(other.startswith(f"{name}.") for other in listed)]
    if isinstance(filters, pc.Expression):
        return list(dict.fromkeys(re.findall(r"\bextra\.[\w.]*\w", str(filters))))
    if isinstance(filters, Mapping):
        return [name for name in filters if isinstance(name, str) and name.startswith(PREFIX)]
    if isinstance(filters, tuple) and filters and isinstance(filters[0], str):
        return [filters[0]] if filters[0].startswith(PREFIX) else []
    if isinstance(filters, list | tuple):
        return list(
            dict.fromkeys(name for item in filters if isinstance(item, list | tuple) for name in names_in(item))
        )
    return []


def dotted(node: ast.expr | ast.AST) -> str | None:
    """The dotted name ``extra.optim.lr`` for a syntax tree of it; None for anything else."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) and node.id == PREFIX[:-1] else None


def extra_column(runs: Iterable[pa.ChunkedArray], name: str, *, location: str) -> pa.ChunkedArray:
    """The values under one name, null where a row has none.

    ``runs`` are the rows of the column ``extra``, some at a time; ``name`` is ``extra.`` and the keys, joined by dots,
    which keys may contain. Returns float64 for numbers, string, or bool. Raises ``UnknownNameError`` if no row has it,
    and ``ZooError`` if values are of several types, or objects or lists. Parsed by pyarrow where all rows of a run have
    the same form, else by json, ten times more slowly.
    """
    path = name.removeprefix(PREFIX).split(".")
    found: list[pa.Array] = []
    present = set[pa.DataType | None]()
    known: set[str] | None = None
    for texts in runs:
        known = extra_names(texts) if known is None else known
        values, kinds = _of_run(texts, path)
        present |= kinds
        if len(present) > 1 or None in present:
            got = "values of several types, objects or lists"
            raise ZooError(Problem(location, name, "numbers, texts or truth values in all rows", got, "Name another."))
        found.append(values)
    if not present:
        raise UnknownNameError(location, "column", name, sorted(known or ()))
    (kind,) = present
    return pa.chunked_array([values.cast(kind) for values in found], kind)


def _of_run(texts: pa.ChunkedArray, path: list[str]) -> tuple[pa.Array, set[pa.DataType | None]]:
    """The values of some rows, all null where there are none, and their types; None for objects and lists."""
    encoded = texts.combine_chunks().dictionary_encode()
    if 2 * len(encoded.dictionary) > len(texts):
        return _of_texts(texts, path)
    # the rows of a build have the same text, which is parsed once
    values, kinds = _of_texts(encoded.dictionary, path)
    return values.take(encoded.indices), kinds


def _of_texts(texts: pa.Array | pa.ChunkedArray, path: list[str]) -> tuple[pa.Array, set[pa.DataType | None]]:
    """The values of each of some texts, as ``_of_run``."""
    data = "\n".join(text or "{}" for text in texts.to_pylist()).encode()
    # a key with dots in it stands for several, which pyarrow would not find
    stretches = [".".join(path[start:stop]) for stop in range(2, len(path) + 1) for start in range(stop - 1)]
    has_dotted_keys = any(f'"{words}"'.encode() in data for words in stretches)
    for kind in () if has_dotted_keys else _KINDS:
        found = _parsed(data, path, kind, len(texts))
        if found is not None and found.null_count < len(found):
            return found, {kind}
    values = [_value(json.loads(text) if text else None, path) for text in texts.to_pylist()]
    present = {_kind(value) for value in values if value is not None}
    if len(present) == 1 and None not in present:
        return pa.array(values, next(iter(present))), present
    return pa.nulls(len(values)), present


def _value(content: Any, path: list[str]) -> Any:
    """The value under the keys of one row, one by one or several joined by dots; None where there is none."""
    if not path:
        return content
    if not isinstance(content, dict):
        return None
    for count in range(len(path), 0, -1):
        if (key := ".".join(path[:count])) in content:
            return _value(content[key], path[count:])
    return None


def _kind(value: Any) -> pa.DataType | None:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int | float):
        return pa.float64()
    return pa.string() if isinstance(value, str) else None


def _parsed(data: bytes, path: list[str], kind: pa.DataType, count: int) -> pa.Array | None:
    """The values of a type; None where there are others."""
    from pyarrow import json as pj  # only here, because it is a library of its own to load

    field = pa.field(path[-1], kind)
    for key in reversed(path[:-1]):
        field = pa.field(key, pa.struct([field]))
    options = pj.ParseOptions(
        explicit_schema=pa.schema([field]), unexpected_field_behavior="ignore", newlines_in_values=True
    )
    try:
        table = pj.read_json(io.BytesIO(data), pj.ReadOptions(block_size=max(_BLOCK_BYTES, 1)), options)
    except pa.ArrowInvalid:
        return None
    column = table.column(0).combine_chunks()
    for key in path[1:]:
        # Array.field would not pass on which parents are null
        column = pc.call_function("struct_field", [column], pc.StructFieldOptions([key]))
    return column if len(column) == count else None


def extra_names(texts: pa.ChunkedArray) -> set[str]:
    """Names of values in the first rows."""
    found: set[str] = set()

    def note(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                note(item, f"{name}.{key}")
        else:
            found.add(name)

    for text in texts[:_LOOKED_AT].to_pylist():
        note(json.loads(text) if text else {}, PREFIX[:-1])
    return found

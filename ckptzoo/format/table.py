"""Parquet files whose every byte is checked, and the schemas of the tables in a zoo.

A sealed file carries in its footer a JSON object under the key ``ckptzoo``; its ``seal`` is the sha256 of the
file's bytes with the seal's own 64 digits replaced by zeros. The seal is checked before Arrow sees the bytes.
"""

import difflib
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, SpecError, UnknownNameError
from ckptzoo.format import limits
from ckptzoo.format.durable import regular
from ckptzoo.lazy_names import lazy_module
from ckptzoo.schema.documents import REFETCH, Document, parse
from ckptzoo.schema.metadata import COLUMNS, Column
from ckptzoo.text import shortened

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = lazy_module("pyarrow.compute")

KEY = b"ckptzoo"
"""The key of our JSON object among the Parquet file's own key-value metadata."""
UNREADABLE = (pa.ArrowException, OSError, ValueError, RuntimeError)
"""The exceptions of pyarrow for damaged Parquet; RuntimeError for those of the C++ library that it does not know, where
it reads the facts of a column."""
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The beginnings of the years 1 and 10000 in microseconds since 1970: Python has no times outside."""
_PLAIN = 4096
"""The number of values of a column that are Python objects at a time."""
_NEAR, _SHOWN = 0.75, 4
"""How similar a name is to be that is proposed, and how many unknown ones a message shows."""
_MARK = b'"seal":"'
_BLANK = b"0" * 64
"""Replaces the seal's own digits while the seal is computed."""
_THRIFT_STRINGS, _THRIFT_ITEMS = 2**28, 2**24
"""Limits on what the parser of a Parquet footer allocates, in bytes of a string and items of a list."""

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_TYPES_SHOWN = {
    **{kind: str(kind) for kind in (*TYPES.values(), pa.list_(pa.int64()), pa.binary(32))},
    TYPES["string"]: "string (a text)",
    TYPES["int64"]: "int64 (an integer)",
    TYPES["float64"]: "float64 (a number)",
    TYPES["timestamp"]: "timestamp (a datetime.datetime)",
}
"""Names of types in messages."""
INDEX_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("tensor", pa.string()),
        pa.field("row_start", pa.int64(), nullable=False),
        pa.field("row_stop", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("dtype", pa.string()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("sha256", pa.binary(32), nullable=False),
    ]
)
"""One row per (shard, tensor, block of rows); the row of a whole shard has no tensor, dtype and shape."""


class Columns(Protocol):
    """A table, or what gives its columns one by one."""

    @property
    def column_names(self) -> list[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, name: str, /) -> pa.ChunkedArray: ...


@cache
def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    """The Arrow schema of a part's rows; ``id`` is never null."""
    return pa.schema([pa.field(column.name, TYPES[column.type], column.name != "id") for column in columns])


METADATA_SCHEMA = schema_of(COLUMNS)


def table_of(rows: list[dict[str, Any]], schema: pa.Schema, *, location: str) -> pa.Table:
    """Rows as a table of exactly this schema.

    Raises ``UnknownNameError`` if a row has a column that the schema lacks, and ``SpecError`` if a value does not have
    its column's type, or an id is missing.
    """
    names = set(schema.names)  # which pyarrow puts together whenever it is asked for them
    for row in rows:
        if not names.issuperset(row):
            unknown = {name: value for name, value in row.items() if name not in names}
            name = str(next(iter(unknown)))
            hint = own_facts(unknown, schema.names) if "extra" in names else None
            raise UnknownNameError(location, "column", name, schema.names, hint)
    columns: list[pa.Array] = []
    problems: list[Problem] = []
    given = set[str]().union(*rows)
    for spec in schema:
        if spec.name not in given and spec.nullable:
            columns.append(pa.nulls(len(rows), spec.type))
            continue
        values = [row.get(spec.name) for row in rows]
        try:
            # Arrow truncates floats silently
            if pa.types.is_integer(spec.type) and any(isinstance(value, float) for value in values):
                raise ValueError("not whole")
            columns.append(_array(values, spec.type))
        except (pa.ArrowException, TypeError, OverflowError, ValueError):
            odd = next((value for value in values if not _is_of(value, spec.type)), values[0])
            got = f"{shortened(repr(odd), 100)} of type {type(odd).__name__}"
            problems.append(
                Problem(location, f"column {spec.name!r}", _TYPES_SHOWN[spec.type], got, "Correct the rows.")
            )
            continue
        if not spec.nullable and columns[-1].null_count:
            step = "Give every row one."
            problems.append(Problem(location, f"column {spec.name!r}", "a value in every row", "none in some", step))
    if problems:
        raise SpecError(problems)
    return pa.Table.from_arrays(columns, schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return what ``pa.array`` does, without importing pandas for few values; for many it is the faster way."""
    if _Few.left >= len(values) and "pandas" not in sys.modules:
        _Few.left -= len(values)
        with suppress(ValueError, OverflowError):  # which pyarrow says in its own words
            if _is_simple([value for value in values if value is not None], kind):
                return array_of_values(values, kind)
    return pa.array(values, kind)


def _is_simple(values: list[Any], kind: pa.DataType) -> bool:
    """Whether ``array_of_values`` makes what ``pa.array`` does of these values, which has more rules for others."""
    types = set(map(type, values))
    if pa.types.is_timestamp(kind):
        return types <= {datetime} and all(value.utcoffset() == timedelta() for value in values)
    if pa.types.is_float64(kind):
        if not types <= {int, float}:
            return False
        return int not in types or all(type(value) is float or abs(value) <= _EXACT for value in values)
    if pa.types.is_list(kind):
        return types <= {list, tuple} and all(type(item) is int for value in values for item in value)
    if pa.types.is_fixed_size_binary(kind):
        return types <= {bytes} and all(len(value) == kind.byte_width for value in values)
    return kind in _PYTHON_TYPES and types <= {_PYTHON_TYPES[kind]}


def _is_of(value: Any, kind: pa.DataType) -> bool:
    """Whether a value can be in a column of this type."""
    if isinstance(value, float) and pa.types.is_integer(kind):
        return False
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return False
    return True


def own_facts(unknown: dict[Any, Any], known: Sequence[str]) -> str:
    """The next step for unknown columns: a near name where there is one, and ``extra`` for the rest."""
    near = {name: difflib.get_close_matches(str(name), known, n=1, cutoff=_NEAR) for name in list(unknown)[:_SHOWN]}
    own = ", ".join(f"{str(name)!r}: {shortened(repr(unknown[name]), 20)}" for name in near)
    typing_errors = [found[0] for found in near.values() if found]
    meant = f"Did you mean {' and '.join(typing_errors)}? " if typing_errors else ""
    more = ", ..." if len(unknown) > len(near) else ""
    return f'{meant}Facts of your own go into one column: "extra": {{{own}{more}}}.'


def numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """(N,) a column of numbers without nulls.

    ``ChunkedArray.to_numpy`` would import pandas, which takes longer than opening a zoo.
    """
    return np.concatenate([np.empty(0, column.type.to_pandas_dtype()), *map(np.from_dlpack, column.chunks)])


def filled_with(column: pa.ChunkedArray | pa.Array, missing: float) -> NDArray[Any]:
    """(N,) a column of numbers or truth values, with ``missing`` where it holds nothing.

    ``fill_null`` and ``to_numpy`` of pyarrow would import pandas.
    """
    is_bool, kind = pa.types.is_boolean(column.type), np.dtype(column.type.to_pandas_dtype())
    pieces = [np.empty(0, kind)]
    for chunk in filter(len, column.chunks if isinstance(column, pa.ChunkedArray) else [column]):
        own, (valid, data) = slice(chunk.offset, chunk.offset + len(chunk)), chunk.buffers()
        values = _bits(data) if is_bool else np.frombuffer(data, kind)
        pieces.append(np.where(_bits(valid)[own], values[own], kind.type(missing)) if chunk.null_count else values[own])
    return np.concatenate(pieces)


def _bits(buffer: pa.Buffer) -> NDArray[np.bool_]:
    """The bits of a buffer, in Arrow's order."""
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little").view(np.bool_)


def array_of(values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers, or truths, as an array of Arrow, numbers over the same memory, null where they are not valid;
    ``pa.array`` would import pandas.
    """
    data = _packed(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_packed(valid), data])


def array_of_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of Python, or None, as an array; ``pa.array`` would import pandas.

    Numbers, truths, texts, bytes, times of UTC, and lists of integers.
    """
    if "pandas" in sys.modules:
        return pa.array(values, kind)
    valid = np.array([value is not None for value in values]) if None in values else None
    if pa.types.is_timestamp(kind):
        since = [timedelta() if value is None else value - _EPOCH for value in values]
        return array_of(np.array([value // _MICROSECOND for value in since], np.int64), valid).cast(kind)
    if pa.types.is_fixed_size_binary(kind):
        data = b"".join(bytes(kind.byte_width) if value is None else value for value in values)
        return pa.Array.from_buffers(kind, len(values), [_packed(valid), pa.py_buffer(data)])
    if pa.types.is_list(kind):
        ends = np.cumsum([0, *(len(value or ()) for value in values)], dtype=np.int32)
        items = array_of(np.array([item for value in values for item in value or ()], np.int64))
        return pa.Array.from_buffers(kind, len(values), [_packed(valid), pa.py_buffer(ends)], children=[items])
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        numbers = values if valid is None else [0 if value is None else value for value in values]
        return array_of(np.array(numbers, kind.to_pandas_dtype()), valid)
    held = ["" if value is None else value for value in values] if valid is not None else values
    texts: Sequence[Any] = held
    if pa.types.is_binary(kind) or not (joined := "".join(held)).isascii():
        texts = [text.encode() if isinstance(text, str) else text for text in held]
        data = b"".join(texts)
    else:
        data = joined.encode()
    if len(data) >= 2**31:
        raise OverflowError("offsets of Arrow's strings have 32 bits")
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.Array.from_buffers(kind, len(texts), [_packed(valid), pa.py_buffer(ends), pa.py_buffer(data)])


def _packed(truths: NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Truths as the bits of a buffer, in Arrow's order."""
    return None if truths is None else pa.py_buffer(np.packbits(truths, bitorder="little"))


def scalar_of(value: bool | int | float | str | bytes) -> pa.Scalar:
    """A value of Python as one of Arrow; ``pa.scalar`` would import pandas."""
    return array_of_values([value], _KINDS[type(value)])[0]


def row_of(rows: pa.Table, position: int) -> dict[str, Any]:
    """One row by columns, as ``to_pylist`` has it, which would import pandas for times."""
    row: dict[str, Any] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        is_time = pa.types.is_timestamp(column.type)
        (value,) = (column.slice(position, 1).cast(pa.int64()) if is_time else column.slice(position, 1)).to_pylist()
        row[name] = _EPOCH + timedelta(microseconds=value) if is_time and value is not None else value
    return row


def times_of(column: pa.ChunkedArray) -> list[datetime]:
    """The different times in a column; ``to_pylist`` would import pandas for them."""
    counts = column.drop_null().cast(pa.int64()).unique().to_pylist()
    return [_EPOCH + timedelta(microseconds=count) for count in counts]


_KINDS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
_PYTHON_TYPES = {kind: type_ for type_, kind in _KINDS.items()}
_EXACT = 2**53
"""No float64 tells larger integers apart; pyarrow refuses them."""


class _Few:
    """The number of values that this process may still make into arrays without ``pa.array``.

    ``pa.array`` imports pandas once and is then three times as fast. A million values are those of about forty thousand
    rows.
    """

    left = 2**20


_EPOCH = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))
"""The time that timestamps count from, in the time zone that pyarrow gives them."""
_MICROSECOND = timedelta(microseconds=1)
"""The unit of timestamps."""


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables have the same columns and values, NaN being the same as NaN, and -0.0 another number than 0.0.

    ``Table.equals`` says that NaN differs from itself.
    """
    pairs = zip(one.columns, other.columns, strict=False)
    return one.schema.equals(other.schema) and all(_comparable(own).equals(_comparable(its)) for own, its in pairs)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column, of float64 the bits with one pattern for every NaN, as digests see them."""
    if not pa.types.is_float64(column.type):
        return column
    is_nan = pc.call_function("is_nan", [column])
    one_nan = pc.call_function("if_else", [is_nan, scalar_of(float("nan")), column])
    return pa.chunked_array([chunk.view(pa.int64()) for chunk in one_nan.chunks], pa.int64())


def plain(table: Columns, name: str) -> Iterator[list[Any]]:
    """A column as JSON-ready values, some thousand at a time: times in microseconds since 1970, digests in hex."""
    whole = table[name]
    for start in range(0, len(table), _PLAIN):
        column = whole.slice(start, _PLAIN)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        yield [None if value is None else value.hex() for value in values] if name == "sha256" else values


def encode(tables: list[pa.Table], facts: Document, *, sealed: bool) -> bytes:
    """Parquet bytes, a row group per table, with ``facts`` (and a seal) in the footer."""
    content = dict(facts)
    if sealed:
        content["seal"] = _BLANK.decode()
    sink = io.BytesIO()
    schema = tables[0].schema
    # equal rows give equal bytes at equal versions of pyarrow, which writes its version into the footer
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, len(table)))
        writer.add_key_value_metadata({KEY.decode(): json.dumps(content, sort_keys=True, separators=(",", ":"))})
    data = sink.getvalue()
    if not sealed:
        return data
    start = data.rfind(_MARK + _BLANK) + len(_MARK)
    return data[:start] + hashlib.sha256(data).hexdigest().encode() + data[start + 64 :]


def check_seal(data: bytes, *, location: str) -> None:
    """Raise IntegrityError unless the seal agrees with every byte of the file."""
    start = data.rfind(_MARK) + len(_MARK)  # less than the mark's length where there is none
    seal = data[start : start + 64]
    expected = hashlib.sha256(data[:start] + _BLANK + data[start + 64 :]).hexdigest().encode()
    if start < len(_MARK) or seal != expected:
        got = seal.decode("ascii", "replace") if start >= len(_MARK) else "no seal"
        raise IntegrityError(Problem(location, "seal", expected.decode(), got, REFETCH))


def read_bytes(path: Path, *, location: str, max_bytes: int = limits.MAX_FILE) -> bytes:
    """A whole file, its size bounded before it is read; a missing file is an IntegrityError."""
    try:
        with open(path, "rb", opener=regular) as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
    except OSError as error:
        raise IntegrityError(Problem(location, "file", "a readable file", error.strerror or "none", REFETCH)) from error
    if len(data) > max_bytes:
        raise IntegrityError(
            Problem(location, "size", f"at most {max_bytes} bytes", f"more than {max_bytes} bytes", REFETCH)
        )
    return data


def open_table(
    data: bytes | bytearray | io.RawIOBase, *, location: str, by_group: bool = False
) -> tuple[pq.ParquetFile, Document]:
    """Parquet bytes that were checked, as a file and the facts of its footer; sizes are bounded first.

    ``data`` may be an open file of them. ``by_group`` bounds the size of every row group, and not that of all together.
    """
    try:
        file = _parquet(data)
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        sizes = [each.total_byte_size for each in groups]
        least = min((*sizes, *(each.num_rows for each in groups)), default=0)
        total = max(sizes, default=0) if by_group else sum(sizes)
        raw = (file.metadata.metadata or {}).get(KEY, b"")
    except UNREADABLE as error:
        raise IntegrityError(Problem(location, "Parquet", "a readable table", str(error)[:160], REFETCH)) from error
    limit = limits.table_in(_length(data))
    if least < 0 or total > limit:
        got = str(least if least < 0 else total)
        raise IntegrityError(Problem(location, "size of the table", f"0 to {limit} bytes", got, REFETCH))
    return file, parse(raw, location=f"{location} (footer)")


def _parquet(data: bytes | bytearray | io.RawIOBase, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(data, mode="r") if isinstance(data, io.RawIOBase) else pa.BufferReader(data),
        page_checksum_verification=True,
        thrift_string_size_limit=_THRIFT_STRINGS,
        thrift_container_size_limit=_THRIFT_ITEMS,
        **options,
    )


def _length(data: bytes | bytearray | io.RawIOBase) -> int:
    return data.seek(0, io.SEEK_END) if isinstance(data, io.RawIOBase) else len(data)


def check_count(file: pq.ParquetFile, limit: int, *, location: str) -> None:
    """Raise IntegrityError where a table has more rows than a limit; from the footer alone, nothing is decoded."""
    if not 0 <= (rows := file.metadata.num_rows) <= limit:
        raise IntegrityError(Problem(location, "rows of the table", f"at most {limit}", str(rows), REFETCH))


def read_table(
    data: bytes | bytearray,
    file: pq.ParquetFile,
    schema: pa.Schema,
    *,
    location: str,
    least: int | None = None,
    names: Sequence[str] | None = None,
    packed: bool = False,
) -> pa.Table:
    """The table with the columns that it has: those of the schema, or at least its first ``least``.

    ``names`` are the columns to read, of those that it has; by default all. ``packed`` is as in ``read_bounded``.
    """
    try:
        stored = file.schema_arrow
        if not has_columns(stored, schema, least):
            newer = len(stored) > len(schema) and stored.names[: len(schema)] == schema.names
            step = "Upgrade ckptzoo to read it." if newer else REFETCH
            got = _difference(stored, schema)
            raise IntegrityError(Problem(location, "columns", "those of docs/format.md", got, step))
        own = set(stored.names)  # which pyarrow puts together whenever it is asked for them
        columns = None if names is None else [name for name in names if name in own]
        read = read_bounded(data, file, location=location, columns=columns, packed=packed)
        return read.replace_schema_metadata(None).combine_chunks()
    except UNREADABLE as error:
        raise IntegrityError(Problem(location, "Parquet", "a readable table", str(error)[:160], REFETCH)) from error


def read_bounded(
    data: bytes | bytearray | io.RawIOBase,
    file: pq.ParquetFile,
    *,
    location: str,
    group: int | None = None,
    columns: list[str] | None = None,
    packed: bool = False,
) -> pa.Table:
    """Some columns of a table, or of one row group of it, whose size in memory is bounded.

    Parquet packs equal values by their number, so a few kilobytes may hold any number of rows of any length: where the
    table might be large, its texts are read as they are packed, each once, and measured before they are copied to every
    row. ``data`` holds the bytes of the file, ``file`` is the result of ``open_table`` for them; ``packed`` leaves the
    texts of many rows as dictionaries. Raises ``IntegrityError`` if the table is too large.
    """
    groups = list(range(file.num_row_groups)) if group is None else [group]
    # Facts of single columns are not asked for: where they contradict one another, the C++ library throws an exception
    # that pyarrow (26) does not catch there, and the process ends. While reading it does.
    facts = [file.metadata.row_group(number) for number in groups]
    # no text is longer than its group; no other value of ours is longer than a digest
    worst = sum(each.num_rows * (each.total_byte_size + 32 * each.num_columns) for each in facts)
    packed = packed and sum(each.num_rows for each in facts) >= limits.FREE_ROWS
    if worst <= limits.MAX_TABLE and not packed:
        return _validated(file.read_row_groups(groups, columns=columns, use_threads=False))
    stored = file.schema_arrow
    texts = [field.name for field in stored if pa.types.is_string(field.type)]
    found = _parquet(data, read_dictionary=texts).read_row_groups(groups, columns=columns, use_threads=False)
    found = _validated(found)
    if (nbytes := sum(map(_unpacked_bytes, found.columns))) > limits.MAX_TABLE:
        expected = f"at most {limits.MAX_TABLE} bytes"
        raise IntegrityError(Problem(location, "size of the table", expected, str(nbytes), REFETCH))
    return found if packed else found.cast(pa.schema([stored.field(name) for name in found.column_names]))


def _validated(table: pa.Table) -> pa.Table:
    """The table; ArrowInvalid where a text is not UTF-8, or a time is none of Python's: its reader asks neither."""
    table.validate(full=True)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            ends = pc.call_function("min_max", [column.cast(pa.int64())]).as_py()
            if any(value is not None and not _FIRST_TIME <= value < _LAST_TIME for value in ends.values()):
                raise pa.ArrowInvalid(f"{name} outside of the years 1 to 9999")
    return table


def _unpacked_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of a column once every text is in every row that has it."""
    if not pa.types.is_dictionary(column.type):
        return column.nbytes
    lengths = (pc.call_function("binary_length", [chunk.dictionary]).take(chunk.indices) for chunk in column.chunks)
    return sum(pc.call_function("sum", [each.cast(pa.int64())]).as_py() or 0 for each in lengths) + 4 * len(column)


def has_columns(stored: pa.Schema, schema: pa.Schema, least: int | None = None) -> bool:
    """Whether a table has the columns of a schema, in order; it may lack those behind the first ``least``."""
    count = len(stored)
    return (least or len(schema)) <= count <= len(schema) and stored.equals(pa.schema(list(schema)[:count]))


def filled(stored: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the last columns that it lacks, null in every row."""
    missing = list(schema)[stored.num_columns :]
    columns = [*stored.columns, *(pa.nulls(len(stored), spec.type) for spec in missing)]
    return pa.Table.from_arrays(columns, schema=schema)


def _typed(spec: pa.Field) -> str:
    return f"{spec.type}{'' if spec.nullable else ' not null'}"


def _difference(stored: pa.Schema, expected: pa.Schema) -> str:
    for spec in expected:
        position = stored.get_field_index(spec.name)
        if position < 0:
            return f"no column {spec.name!r}"
        if not stored.field(position).equals(spec):
            return f"{spec.name!r} as {_typed(stored.field(position))} instead of {_typed(spec)}"
    extra = [name for name in stored.names if name not in expected.names]
    return f"also {extra[:5]}" if extra else "another order"

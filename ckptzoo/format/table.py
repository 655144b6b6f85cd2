"""Parquet files whose every byte is checked, and the schemas of the tables in a zoo.

A sealed file carries in its footer a JSON object under the key ``ckptzoo``; its ``seal`` is the sha256 of the
file's bytes with the seal's own 64 digits replaced by zeros. The seal is checked before Arrow sees the bytes.
"""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ckptzoo.errors import IntegrityError, Problem, SpecError, UnknownNameError
from ckptzoo.schema.documents import REFETCH, Document, parse
from ckptzoo.schema.metadata import COLUMNS, Column

KEY = b"ckptzoo"
"""Of our JSON object among the Parquet file's own key-value metadata."""
MAX_FILE = 2**30
"""Bytes of a file that are read into memory at most."""
MAX_TABLE = 4 * 2**30
"""Bytes of a table in memory at most."""
_PIECE = 2**28
"""Bytes of a piece of a table whose size in memory is not known beforehand, about."""
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


def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    """The Arrow schema of a part's rows; ``id`` is never null."""
    return pa.schema([pa.field(column.name, TYPES[column.type], column.name != "id") for column in columns])


METADATA_SCHEMA = schema_of(COLUMNS)


def table_of(rows: list[dict[str, Any]], schema: pa.Schema, *, location: str) -> pa.Table:
    """Rows as a table of exactly this schema.

    Raises
    ------
    UnknownNameError
        A row has a column that the schema lacks.
    SpecError
        A value does not have its column's type, or an id is missing.
    """
    for row in rows:
        for name in row:
            if name not in schema.names:
                raise UnknownNameError(location, "column", name, schema.names)
    columns: list[pa.Array] = []
    problems: list[Problem] = []
    for spec in schema:
        try:
            values = [row.get(spec.name) for row in rows]
            # Arrow truncates floats silently
            if pa.types.is_integer(spec.type) and (odd := [value for value in values if isinstance(value, float)]):
                raise ValueError(f"{odd[0]!r}")
            columns.append(pa.array(values, spec.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
            step = "Correct the rows."
            problems.append(Problem(location, f"column {spec.name!r}", str(spec.type), str(error)[:160], step))
            continue
        if not spec.nullable and columns[-1].null_count:
            step = "Give every row one."
            problems.append(Problem(location, f"column {spec.name!r}", "a value in every row", "none in some", step))
    if problems:
        raise SpecError(problems)
    return pa.Table.from_arrays(columns, schema=schema)


def plain(table: pa.Table) -> dict[str, list[Any]]:
    """The table as JSON-ready columns: times in microseconds since 1970, digests in hexadecimal."""
    columns: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        columns[name] = [None if value is None else value.hex() for value in values] if name == "sha256" else values
    return columns


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


def read_bytes(path: Path, *, location: str, max_bytes: int = MAX_FILE) -> bytes:
    """A whole file, its size bounded before it is read; a missing file is an IntegrityError."""
    try:
        with path.open("rb") as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
    except OSError as error:
        raise IntegrityError(Problem(location, "file", "a readable file", error.strerror or "none", REFETCH)) from error
    if len(data) > max_bytes:
        raise IntegrityError(Problem(location, "size", f"at most {max_bytes} bytes", "more", REFETCH))
    return data


def open_table(data: bytes | bytearray, *, location: str) -> tuple[pq.ParquetFile, Document]:
    """Parquet bytes that were checked, as a file and the facts of its footer; sizes are bounded first."""
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            page_checksum_verification=True,
            thrift_string_size_limit=_THRIFT_STRINGS,
            thrift_container_size_limit=_THRIFT_ITEMS,
        )
        total = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
        raw = (file.metadata.metadata or {}).get(KEY, b"")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IntegrityError(Problem(location, "Parquet", "a readable table", str(error)[:160], REFETCH)) from error
    if not 0 <= total <= MAX_TABLE:
        raise IntegrityError(Problem(location, "size of the table", f"at most {MAX_TABLE} bytes", str(total), REFETCH))
    return file, parse(raw, location=f"{location} (footer)")


def read_table(file: pq.ParquetFile, schema: pa.Schema, *, location: str, least: int | None = None) -> pa.Table:
    """The whole table with the columns that it has: those of the schema, or at least its first ``least``."""
    try:
        stored = file.schema_arrow
        if not has_columns(stored, schema, least):
            newer = len(stored) > len(schema) and stored.names[: len(schema)] == schema.names
            step = "Upgrade ckptzoo to read it." if newer else REFETCH
            got = _difference(stored, schema)
            raise IntegrityError(Problem(location, "columns", "those of docs/format.md", got, step))
        return read_bounded(file, location=location).replace_schema_metadata(None).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IntegrityError(Problem(location, "Parquet", "a readable table", str(error)[:160], REFETCH)) from error


def read_bounded(
    file: pq.ParquetFile, *, location: str, group: int | None = None, columns: list[str] | None = None
) -> pa.Table:
    """Some columns of a table, or of one row group of it, whose size in memory is bounded.

    Parquet packs equal values by their number, so a few kilobytes may hold any number of rows: where the table might
    be larger than ``MAX_TABLE``, it is read in pieces, and no further.

    Raises
    ------
    IntegrityError
        It is too large.
    """
    groups = list(range(file.num_row_groups)) if group is None else [group]
    names = set(file.schema_arrow.names if columns is None else columns)
    worst = longest = 0
    for number in groups:
        for position in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(number).column(position)
            if chunk.path_in_schema.partition(".")[0] in names:
                # no string is longer than its chunk; no other value of ours is longer than a digest
                each = chunk.total_uncompressed_size if chunk.physical_type == "BYTE_ARRAY" else 32
                worst, longest = worst + chunk.num_values * each, max(longest, each)
    if worst <= MAX_TABLE:
        return file.read_row_groups(groups, columns=columns, use_threads=False)
    pieces: list[pa.RecordBatch] = []
    total, rows = 0, max(1, min(2**16, _PIECE // max(1, longest)))
    for piece in file.iter_batches(batch_size=rows, row_groups=groups, columns=columns, use_threads=False):
        total += piece.nbytes
        if total > MAX_TABLE:
            raise IntegrityError(Problem(location, "size of the table", f"at most {MAX_TABLE} bytes", "more", REFETCH))
        pieces.append(piece)
    return pa.Table.from_batches(pieces, file.schema_arrow if columns is None else None)


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

"""Values of Python as columns: the same arrays and the same refusals with and without pandas."""

import struct
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ckptzoo.errors import SpecError
from ckptzoo.format import table

TIMES = [
    datetime(1970, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2026, 1, 2),
    datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-7, seconds=1))),
]  # fmt: skip
VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): ["", "a", "\0", "żółw 🐢", "x" * 1000, b"bytes", np.str_("n"), 5, "\ud800"],
    pa.int64(): [0, -1, 2**63 - 1, -(2**63), 2**63, True, 1.0, np.int32(7), "1"],
    pa.float64(): [0.0, -0.0, float("nan"), struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0], float("-inf"), 5e-324, 1,
                   2**53, 2**53 + 1, -(2**60), 10**400, True, np.float32(0.1), "1"],
    pa.bool_(): [True, False, 0, 1, np.True_, "yes"],
    pa.timestamp("us", tz="UTC"): [*TIMES, 5, "2026-01-01"],
    pa.binary(32): [b"a" * 32, bytes(32), b"short", "t" * 32, bytearray(32)],
    pa.list_(pa.int64()): [[], [1], [3, -4, 2**62], (5, 6), [None], [1.5], [True], [2**64], np.array([1, 2])],
}  # fmt: skip
"""Values of each type of column, and behind them such as it may refuse."""


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_columns_are_what_pyarrow_makes_of_them(monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = VALUES[kind][: max(1, 1 + seed % len(VALUES[kind]))]  # with more and more that is refused
    values = [pool[at] if at < len(pool) else None for at in rng.integers(0, len(pool) + 2, rng.integers(1, 9))]
    try:
        expected = pa.array(values, kind)
        if pa.types.is_integer(kind) and any(isinstance(value, float) for value in values):
            expected = None
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        expected = None
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    rows = [{"id": str(at), "value": value} for at, value in enumerate(values)]
    schema = pa.schema([pa.field("id", pa.string(), False), pa.field("value", kind)])
    if expected is None:
        with pytest.raises(SpecError, match="column 'value'"):
            table.table_of(rows, schema, location="here")
        return
    found = table.table_of(rows, schema, location="here")["value"]
    found.validate(full=True)
    assert found.null_count == expected.null_count and found.is_valid().equals(pa.chunked_array([expected.is_valid()]))
    assert _bits(found.combine_chunks()) == _bits(expected)


def _bits(array: pa.Array) -> list[Any]:
    """Values with the bits of floats, and times as numbers: NaN is not equal to itself, and -0.0 to 0.0."""
    if pa.types.is_float64(array.type):
        return [None if value is None else struct.pack("<d", value) for value in array.to_pylist()]
    return (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()

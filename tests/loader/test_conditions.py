"""A condition holds in the rows in which pyarrow's expression of it holds, over random conditions and columns."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.format.table import array_of_values, row_of
from ckptzoo.loader.filters import expression
from tests.support.effort import examples

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[object], st.SearchStrategy[str]]] = {
    "seed": (
        pa.int64(),
        st.integers(-3, 3) | st.sampled_from([2**53 + 1, -(2**63)]),
        st.sampled_from(["0", "-2", "1.5", "2", "9007199254740993"]),
    ),
    "loss": (
        pa.float64(),
        st.sampled_from([0.0, -0.0, 1.5, -2.0, float("nan"), float("inf")]),
        st.sampled_from(["0", "1.5", "-2", "7"]),
    ),
    "name": (pa.string(), st.sampled_from(["", "a", "b c", "é"]), st.sampled_from(["''", "'a'", "'é'"])),
    "diverged": (pa.bool_(), st.booleans(), st.sampled_from(["True", "False"])),
    "created": (
        pa.timestamp("us", tz="UTC"),
        st.integers(-(10**15), 10**15),
        st.sampled_from(["'1970-01-01'", "'1990-05-01T12:00:00.000001+02:00'"]),
    ),
}
"""The type of each column, its values, and constants that are compared with it."""


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(VALUES)))
    constants = VALUES[name][2]
    match draw(st.sampled_from(["compared", "turned", "missing", "listed", "columns", "alone"])):
        case "compared":
            return f"{name} {draw(st.sampled_from(['==', '!=', '<', '<=', '>', '>=']))} {draw(constants)}"
        case "turned":
            return f"{draw(constants)} {draw(st.sampled_from(['==', '<', '>=']))} {name}"
        case "missing":
            return f"{name} is {draw(st.sampled_from(['', 'not ']))}None"
        case "columns":
            return f"seed {draw(st.sampled_from(['==', '<', '>']))} loss"
        case "alone":
            return "diverged"
        case _:
            listed = draw(st.lists(constants | st.just("None"), max_size=3))
            return f"{name} {draw(st.sampled_from(['in', 'not in']))} [{', '.join(listed)}]"


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from(["and", "or"]), inner)
    return pairs.map(lambda pair: f"({pair[0]}) {pair[1]} ({pair[2]})") | inner.map(lambda text: f"not ({text})")


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    sizes = draw(st.lists(st.integers(0, 5), max_size=3))
    columns: dict[str, pa.ChunkedArray] = {}
    for name, (kind, values, _) in VALUES.items():
        chunks = [draw(st.lists(values | st.none(), min_size=size, max_size=size)) for size in sizes]
        columns[name] = pa.chunked_array([pa.array(chunk, kind) for chunk in chunks], kind)
    return pa.table(columns)


@settings(max_examples=examples(2000, 100), deadline=None)
@given(table=tables(), text=st.recursive(comparisons(), joined, max_leaves=5), start=st.integers(0, 3))
def test_a_condition_holds_where_its_expression_does(table: pa.Table, text: str, start: int) -> None:
    rows = table.slice(start)
    condition = expression(text, rows.schema)
    numbered = rows.append_column("__row", pa.array(range(len(rows)), pa.int64()))
    try:
        expected = numbered.filter(condition.expression)["__row"].to_pylist()
    except pa.ArrowException:
        expected = None
    try:
        found = condition.positions(rows).tolist()
    except pa.ArrowException:
        found = None
    assert found == expected, text


@given(table=tables(), texts=st.lists(st.binary(max_size=3) | st.none(), max_size=4))
def test_values_are_arrays_and_rows_as_pyarrow_makes_them(table: pa.Table, texts: list[bytes | None]) -> None:
    assert array_of_values(texts, pa.binary()).equals(pa.array(texts, pa.binary()))
    for name in ("seed", "name", "diverged"):
        values = table[name].to_pylist()
        assert array_of_values(values, table.schema.field(name).type).equals(pa.array(values, table[name].type))
    without_nan = table.drop_columns(["loss"])
    assert [row_of(without_nan, at) for at in range(len(table))] == without_nan.to_pylist()

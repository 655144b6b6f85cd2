"""Results whose fields are their JSON."""

import json
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.schema.documents import JsonFields, canonical, json_value
from tests.support.effort import examples

ROOT = Path(__file__).parents[2]
STATING = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "ckptzoo").rglob("*.py"))
    if "JsonFields" in (text := path.read_text()) or "(StudyResult" in text
]


@dataclass(frozen=True)
class Point:
    """A part of a result, which says nothing about JSON itself."""

    x: float
    where: Path


@dataclass(frozen=True, eq=False)
class Cloud(JsonFields, without=("secret",), derived=("size", "most"), named={"most": "max", "label": "name"}):
    """A result with every kind of field."""

    label: str
    points: tuple[Point, ...]
    secret: object
    values: "np.ndarray[Any, Any]"
    by_step: dict[int, Any]

    @property
    def size(self) -> int:
        """The number of points."""
        return len(self.points)

    @property
    def most(self) -> Any:
        """The largest value."""
        return self.values.max()


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(),
    st.text(max_size=8),
    st.builds(PurePath, st.from_regex(r"[a-z]{1,4}", fullmatch=True)),
    st.datetimes(timezones=st.just(UTC)),
    st.builds(np.float64, st.floats()),
    st.builds(
        lambda values: np.array(values, np.float64).reshape(-1, 2), st.lists(st.floats(), min_size=2, max_size=2)
    ),
    st.builds(Point, st.floats(), st.just(Path("a/b"))),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(0, 9), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=5,
)


def plain(value: Any) -> bool:
    """Whether a value is of the types that JSON has, all the way down, exactly."""
    if type(value) is dict:
        return all(type(key) is str and plain(item) for key, item in value.items())
    return all(map(plain, value)) if type(value) is list else type(value) in (str, int, float, bool, type(None))


@given(VALUES)
@settings(max_examples=examples(20), deadline=None)
def test_any_nest_of_values_becomes_plain_json_and_stays_as_it_is(value: Any) -> None:
    once = json_value(value)
    assert plain(once) and canonical(json_value(once)) == canonical(once)
    assert canonical(json.loads(canonical(once))) == canonical(once)


@given(VALUES)
@settings(max_examples=examples(10), deadline=None)
def test_fields_of_nested_results_are_those_of_each(value: Any) -> None:
    inner = Cloud("in", (), object(), np.arange(3), {1: value})
    outer = Cloud("out", (Point(0.5, Path("a")),), object(), np.zeros((1, 2)), {0: inner, 7: (inner, None)})
    document = outer.to_json()
    assert set(document) == {"name", "points", "values", "by_step", "size", "max"}
    assert document["points"] == [{"x": 0.5, "where": "a"}] and document["values"] == [[0.0, 0.0]]
    assert canonical(document["by_step"]) == canonical({"0": inner.to_json(), "7": [inner.to_json(), None]})
    assert (document["size"], document["max"], inner.to_json()["max"]) == (1, 0.0, 2)


def test_times_and_paths_are_texts() -> None:
    time = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    assert json_value([time, Path("a/b"), "c"]) == ["2026-01-02T03:04:00+00:00", "a/b", "c"]


def test_names_of_json_are_fields_and_properties() -> None:
    stating = [item for module in STATING for item in vars(import_module(module)).values() if isinstance(item, type)]
    results = {item for item in stating if issubclass(item, JsonFields) and is_dataclass(item)}
    assert len(results) > 40
    for item in results:
        stored = {field.name for field in fields(item)}
        assert set(item._without) <= stored and set(item._named) <= {*stored, *item._derived}, item
        assert all(hasattr(item, name) and name not in stored for name in item._derived), item

"""Values within ``extra`` in conditions, streams and as columns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.format.maintenance import compact
from ckptzoo.loader.extra import extra_column
from tests.support.derived_zoos import weights_of
from tests.support.serving import Served, running

NAME = "mlp-4-5-3"
EXTRAS: list[Any] = [
    {"optim": {"lr": 0.1, "name": "sgd"}, "depth": 3, "flag": True, "mixed": 1, "a.b": 5, "list": [1]},
    {"optim": {"lr": 0.01, "name": "adam"}, "depth": 4, "flag": False, "mixed": "x", "list": [1]},
    None,
    {"optim": {"lr": 1}, "depth": -2, "only": "here\n", "more": {"x": None}},
]


@pytest.fixture
def zoo(tmp_path: Path) -> ckptzoo.Zoo:
    arch = archs.architecture(NAME)
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        rows = [
            {"id": f"m{at}", "extra": json.dumps(extra, indent=1) if extra else None} for at, extra in enumerate(EXTRAS)
        ]
        writer.add(weights_of(4, 1, arch=arch), rows)
    return ckptzoo.open(tmp_path / "zoo")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("extra.optim.lr < 0.05", ["m1"]), ("0.05 < extra.optim.lr <= 1", ["m0", "m3"]), ("extra.depth == 3", ["m0"]),
        ("extra.optim.name == 'adam'", ["m1"]), ("extra.optim.name in ['sgd', 'adam']", ["m0", "m1"]),
        ("extra.flag", ["m0"]), ("not extra.flag", ["m1"]), ("extra.flag == False and id == 'm1'", ["m1"]),
        ("extra.optim.lr is None", ["m2"]), ("extra.only != None", ["m3"]),
        ([("extra.a.b", "==", 5)], ["m0"]), ({"extra.depth": [3, 4]}, ["m0", "m1"]),
        ([[("extra.depth", ">", 3)], [("extra.optim.lr", "==", 1)]], ["m1", "m3"]),
        (pc.field("extra.depth") > 3, ["m1"]),
    ],
)  # fmt: skip
def test_conditions_on_values_within_extra(zoo: ckptzoo.Zoo, condition: Any, expected: list[str]) -> None:
    assert zoo.where(condition).ids == expected
    # of a selection, too
    assert zoo.take([3, 2, 1, 0]).where(condition).ids == expected[::-1]


def test_streams_hand_them_over(zoo: ckptzoo.Zoo) -> None:
    (batch,) = zoo.stream("fc1", columns=["extra.optim.lr", "extra.optim.name", "id"], batch_size=4)
    assert np.array_equal(batch["extra.optim.lr"], [0.1, 0.01, np.nan, 1], equal_nan=True)
    assert batch["extra.optim.name"] == ["sgd", "adam", None, None] and batch["id"] == ["m0", "m1", "m2", "m3"]


def test_what_is_not_there_or_of_several_types_is_named(zoo: ckptzoo.Zoo) -> None:
    with pytest.raises(UnknownNameError, match=r"extra\.optim\.lr") as caught:
        zoo.where("extra.optim.rl < 1")
    assert "extra.optim.rl" in str(caught.value)
    for name in ("extra.mixed == 1", "extra.list == 1", "extra.optim == 1"):
        with pytest.raises(ZooError, match="values of several types, objects or lists"):
            zoo.where(name)
    with pytest.raises(ZooError, match="a number to compare"):
        zoo.where("extra.depth == 'three'")


def test_keys_with_dots_stand_for_several() -> None:
    def read(*rows: Any) -> list[Any]:
        return extra_column(
            [pa.chunked_array([[json.dumps(row) for row in rows]])], "extra.a.b.c", location="zoo"
        ).to_pylist()

    assert read({"a.b": {"c": 5}}, {"a": {"b.c": 6}}, {"a": {"b": {"c": 7}}}, {"a.b.c": 8}, {}) == [5, 6, 7, 8, None]
    with pytest.raises(ZooError, match="several types"):
        read({"a.b.c": "x"}, {"a": {"b": {"c": 6}}})


def test_the_command_line_takes_them(zoo: ckptzoo.Zoo, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(zoo.path), "--where", "extra.optim.lr < 0.05", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"] == 1


def test_of_a_zoo_on_another_machine_the_column_is_fetched_where_it_is_named(zoo: ckptzoo.Zoo) -> None:
    compact(zoo.path)
    files = {f"/zoo/{path.relative_to(zoo.path)}": path.read_bytes() for path in zoo.path.rglob("*") if path.is_file()}
    with running(Served(files)) as served:
        there = ckptzoo.open(f"{served.url}/zoo")
        assert there.where("extra.depth > 3").ids == ["m1"]


@pytest.mark.parametrize("seed", range(8))
def test_texts_that_many_rows_share_give_what_each_would_alone(seed: int) -> None:
    """Parsed once each, whatever their order and whichever rows have none."""
    rng = np.random.default_rng(seed)
    extras: list[Any] = [None, {}, {"b": 1}, *({"a": {"x": value}} for value in rng.integers(0, 9, 4).tolist())]
    if seed % 2:
        extras += [{"a.x": 7}, {"a": {"x": 2.5, "y": "\n"}}]
    texts = [None if extra is None else json.dumps(extra, indent=seed % 3 or None) for extra in extras]
    chosen = rng.integers(0, len(texts), (4, 60))
    runs = [pa.chunked_array([[texts[at] for at in half] for half in np.split(run, 2)], pa.string()) for run in chosen]
    expected = [None if (value := _under(extras[at])) is None else float(value) for at in chosen.ravel()]
    found = extra_column(runs, "extra.a.x", location="zoo")
    assert found.to_pylist() == expected and found.type == pa.float64()


def _under(extra: Any) -> Any:
    """The value under ``a.x`` of one row."""
    return (extra or {}).get("a.x", (extra or {}).get("a", {}).get("x"))

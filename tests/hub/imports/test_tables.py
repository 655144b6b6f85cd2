"""Tables of metadata: every value lands in the column and the row that it stands in, or the line is named."""

import csv
import io
import json
import pickle  # noqa: TID251  what others wrote
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import import_zoo
from ckptzoo.hub.imports.tables import read_by_path
from tests.support.effort import examples

CELL = st.sampled_from(["", "0.1", "relu", "0,1", 'a "b"', "two\nlines", "1e3"])


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5),
    extra=st.integers(-1, 1),
    at=st.integers(0, 4),
    header=st.sampled_from(["lr,act", "lr,lr"]),
)
def test_a_row_of_other_fields_is_refused_by_its_line(
    rows: list[tuple[str, str]], extra: int, at: int, header: str
) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["path", *header.split(",")])
    table = [[f"0{number}.pt", *row] for number, row in enumerate(rows)]
    if extra and at < len(table):
        table[at] = table[at][:-1] if extra < 0 else [*table[at], "more"]
    writer.writerows(table)
    data = text.getvalue().encode()
    if header == "lr,lr":
        with pytest.raises(ZooError, match="columns: expected each once, got 'lr' twice"):
            read_by_path(data, "m.csv")
    elif extra and at < len(table):
        line = 2 + sum(1 + sum(cell.count("\n") for cell in row) for row in table[: at + 1]) - 1
        with pytest.raises(ZooError, match=rf"m\.csv: line {line}: fields: expected 3, got {3 + extra}"):
            read_by_path(data, "m.csv")
    else:
        found = read_by_path(data, "m.csv")
        # paths are texts, also where they look like numbers
        assert list(found) == [f"0{number}.pt" for number in range(len(rows))]
        for (lr, act), row in zip(rows, found.values(), strict=True):
            expected = {name: text for name, text in (("lr", lr), ("act", act)) if text}
            assert {name: str(value) for name, value in row.items()} == {
                name: "1000.0" if text == "1e3" else text for name, text in expected.items()
            }


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [("seed", "7.0", 7), ("step", "1e3", 1000), ("seed", "spring", "spring"), ("seed", str(2**63), None),
     ("step", "1.5", None), ("step", "ten", None), ("seed", str(2**63 - 1), 2**63 - 1)],
)  # fmt: skip
def test_whole_numbers(column: str, text: str, value: object) -> None:
    table = f"path,{column}\na.pt,{text}\n".encode()
    if value is None:
        with pytest.raises(ZooError, match=rf"m\.csv: line 2: {column}: expected a whole number"):
            read_by_path(table, "m.csv")
    else:
        assert read_by_path(table, "m.csv") == {"a.pt": {column: value}}


@pytest.mark.parametrize("step", ["5.0", "5"])
def test_a_step_beside_a_file_is_whole(tmp_path: Path, step: str) -> None:
    (tmp_path / "nets").mkdir()
    torch.save({"w": torch.ones(2, 2)}, tmp_path / "nets/a.pt")
    (tmp_path / "nets/a.json").write_text(f'{{"step": {step}, "seed": {2**70}}}')
    import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    zoo = ckptzoo.open(tmp_path / "zoo")
    # a number that no column takes is kept as a text
    assert zoo.metadata["step"].to_pylist() == [5] and json.loads(zoo[0].row["extra"])["seed"] == str(2**70)
    (tmp_path / "nets/a.json").write_text('{"step": 5.5}')
    with pytest.raises(ZooError, match=r"a\.pt: step, as a file beside it says: expected a whole number, got 5\.5"):
        import_zoo(tmp_path / "nets", tmp_path / "again", license="MIT")


@pytest.mark.parametrize("behind", [pickle.dumps({"w": np.zeros((2, 2))}), b"GARBAGE"])
@pytest.mark.parametrize("is_torch", [False, True])
def test_what_follows_an_object_is_not_passed_over(tmp_path: Path, behind: bytes, is_torch: bool) -> None:
    (tmp_path / "nets").mkdir()
    path = tmp_path / f"nets/a.{'pt' if is_torch else 'pkl'}"
    if is_torch:
        torch.save({"w": torch.ones(2, 2)}, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(pickle.dumps({"w": np.ones((2, 2))}))
    whole = path.read_bytes()
    path.write_bytes(whole + behind)
    with pytest.raises(ZooError, match=rf"content: expected one object, got {len(behind)} bytes behind it"):
        import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    path.write_bytes(whole + bytes(9))
    import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("word", ["steps", "epochs", "iterations"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_lists_of_times_are_found_at_any_depth(tmp_path: Path, depth: int, word: str, as_tensor: bool) -> None:
    def run(seed: int) -> object:
        states = [
            {
                "0.weight": torch.full((3, 2), float(10 * seed + at)),
                "0.bias": torch.ones(3),
                "2.weight": torch.ones(2, 3),
            }
            for at in range(3)
        ]
        times = [0, 500, 700]
        inner: object = {"saved": states, word: torch.tensor(times) if as_tensor else times}
        for level in range(depth):
            inner = {f"level{level}": inner}
        return inner

    (tmp_path / "nets").mkdir()
    content = run(0) if depth == 0 else {f"run{name}": run(seed) for seed, name in enumerate("ab")}
    torch.save(content, tmp_path / "nets/a.pt")
    import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    rows = ckptzoo.open(tmp_path / "zoo").metadata
    column = "epoch" if word == "epochs" else "step"
    assert len(set(rows["member"].to_pylist())) == (1 if depth == 0 else 2)
    assert rows[column].to_pylist() == [0, 500, 700] * (1 if depth == 0 else 2)

"""Files of landscape figures: they stay with their checkpoints whatever comes later, and damaged ones are named."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.format import landscapes, table
from ckptzoo.format.landscapes import FIGURES, add_landscape
from tests.support.effort import examples

pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("w", (2,)),))
FACTS = {
    "set": "own/test",
    "examples": 3,
    "inputs": "sha256:1",
    "targets": "sha256:2",
    "loss": "cross-entropy",
    "probes": 0,
    "steps": 0,
    "tolerance": 0.0,
    "seed": 0,
}


def add(path: Path, count: int) -> None:
    start = len(ckptzoo.open(path).contents.raw.rows)
    with ckptzoo.append(path) as writer:
        rows = [{"id": f"m{number}"} for number in range(start, start + count)]
        writer.add({"w": np.full((count, 2), start, np.float32)}, rows)


def rows_of(path: Path, ids: list[str], value: float = 1.0) -> pa.Table:
    raw = ckptzoo.open(path).contents.raw
    units = [part.digest for part in raw.parts for _ in range(part.rows)]
    known = dict(zip(raw.rows["id"].to_pylist(), units, strict=True))
    columns = {name: pa.array([value] * len(ids), pa.float64()) for name in FIGURES}
    return pa.table({"id": ids, "unit": [known.get(name, "sha256:0") for name in ids], **columns})


def stored(path: Path, ids: list[str], value: float = 1.0, **facts: Any) -> Path:
    return path / add_landscape(path, rows_of(path, ids, value), {**FACTS, **facts})


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    ckptzoo.create(tmp_path / "zoo", arch=ARCH, card=ckptzoo.Card("tiny"))
    add(tmp_path / "zoo", 2)
    return tmp_path / "zoo"


@settings(max_examples=examples(60, 2), deadline=None)
@given(data=st.data())
def test_whatever_comes_later_figures_are_the_same(tmp_path_factory: Any, data: st.DataObject) -> None:
    zoo = tmp_path_factory.mktemp("measured") / "zoo"
    ckptzoo.create(zoo, arch=ARCH, card=ckptzoo.Card("tiny"))
    add(zoo, 2)
    said: dict[str, float] = {}
    for number in range(data.draw(st.integers(1, 8))):
        step = data.draw(st.sampled_from(["add", "retract", "measure", "measure", "compact", "pull"]))
        ids = ckptzoo.open(zoo).ids
        if step == "add":
            add(zoo, data.draw(st.integers(1, 2)))
        elif step == "retract" and len(ids) > 1:
            ckptzoo.retract(zoo, [data.draw(st.sampled_from(ids))], reason="a test")
        elif step == "measure" and (missing := [name for name in ids if name not in said]):
            chosen = data.draw(st.lists(st.sampled_from(missing), unique=True, min_size=1))
            stored(zoo, chosen, float(number))
            said |= dict.fromkeys(chosen, float(number))
        elif step == "pull":
            again = zoo.with_name(f"{zoo.name}-again")
            ckptzoo.pull(zoo, again)
            zoo = again
        elif step == "compact":
            ckptzoo.compact(zoo)
        if said:
            opened = ckptzoo.open(zoo)
            figures = opened.landscape()
            assert figures["id"].to_pylist() == opened.ids
            assert figures["loss"].to_pylist() == [said.get(name) for name in opened.ids]
            reverse = opened.take(slice(None, None, -1)).landscape("own/test")
            assert reverse["hessian_top"].to_pylist() == [said.get(name) for name in reversed(opened.ids)]
        assert ckptzoo.verify(zoo) == []


def resealed(path: Path, change: Any) -> str:
    """A file with other facts or rows, sealed again under its own name; returns the name."""
    data = path.read_bytes()
    file = pq.ParquetFile(io.BytesIO(data))
    facts = json.loads(file.metadata.metadata[b"ckptzoo"])
    facts.pop("seal")
    rows = file.read().replace_schema_metadata(None)
    rows = change(facts, rows) or rows
    path.unlink()
    made = table.encode([rows], facts, sealed=True)
    seal = json.loads(pq.ParquetFile(io.BytesIO(made)).metadata.metadata[b"ckptzoo"])["seal"]
    path.with_name(f"{seal[:16]}.parquet").write_bytes(made)
    return f"landscape/{seal[:16]}.parquet"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda facts, rows: facts.update(zoo="sha256:0"), "digest of the zoo"),
        (lambda facts, rows: facts.update(version=2), "format version: expected 1, got 2"),
        (lambda facts, rows: facts.update(kind="release"), "format and kind"),
        (lambda facts, rows: facts.pop("loss") and None, "fields"),
        (lambda facts, rows: facts.update(set="Own"), "set: expected <data set>/<split>"),
        (lambda facts, rows: facts.update(set=["own/test"]), "set: expected a text"),
        (lambda facts, rows: facts.update(examples=-1), "examples: expected an integer from 0"),
        (lambda facts, rows: facts.update(tolerance="0"), "tolerance: expected a number"),
        (lambda facts, rows: rows.drop_columns(["loss"]), "columns: expected those of"),
        (lambda facts, rows: pa.concat_tables([rows, rows]), "ids: expected each id once on own/test"),
        (lambda facts, rows: rows.set_column(0, rows.schema.field(0), [["x"]]), "ids: expected checkpoints of this"),
        (lambda facts, rows: rows.set_column(1, rows.schema.field(1), [["x"]]), "ids: expected checkpoints of this"),
    ],
)
def test_a_wrong_file_is_named(zoo: Path, change: Any, said: str) -> None:
    name = resealed(stored(zoo, ["m0"]), change)
    (problem,) = ckptzoo.verify(zoo)
    assert said in str(problem) and name in str(problem)


def test_flipped_bytes_other_names_and_strangers_are_named(zoo: Path) -> None:
    path = stored(zoo, ["m0"])
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // examples(400, 12))):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert len(ckptzoo.verify(zoo)) == 1
        with pytest.raises(IntegrityError):
            ckptzoo.open(zoo).landscape()
        with pytest.raises(IntegrityError):
            ckptzoo.pull(zoo, zoo.with_name(f"pulled-{at}"))
    path.unlink()
    path.with_name("0" * 16 + ".parquet").write_bytes(data)
    assert "name: expected landscape/" in str(ckptzoo.verify(zoo)[0])
    path.with_name("0" * 16 + ".parquet").rename(path)
    (zoo / "landscape" / "notes.txt").write_text("mine")
    assert "figures: expected <16 hex>.parquet, got 'notes.txt'" in str(ckptzoo.verify(zoo)[0])


def test_files_and_bytes_are_bounded(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(zoo, ["m0"])
    nbytes = path.stat().st_size
    assert stored(zoo, ["m0"]) == path  # the same figures are the same file
    with monkeypatch.context() as patched:
        patched.setattr(landscapes, "MAX_TOTAL", nbytes)
        with pytest.raises(ZooError, match="files: expected at most"):
            stored(zoo, ["m1"])
        patched.setattr(landscapes, "MAX_TOTAL", nbytes - 1)
        with pytest.raises(IntegrityError, match=f"bytes of files: expected at most {nbytes - 1:,}"):
            ckptzoo.open(zoo).landscape()
        assert len(ckptzoo.verify(zoo)) == 1
    monkeypatch.setattr(landscapes, "MAX_ROWS", 0)
    with pytest.raises(IntegrityError, match="rows of the table"):
        ckptzoo.open(zoo).landscape()
    monkeypatch.setattr(landscapes, "MAX_FILES", 1)
    with pytest.raises(ZooError, match="files: expected at most 1"):
        stored(zoo, ["m1"])


def test_a_part_of_a_zoo_and_a_merged_one_have_none(zoo: Path, tmp_path: Path) -> None:
    add(zoo, 2)
    stored(zoo, ["m0"])
    ckptzoo.pull(zoo, tmp_path / "cut", where="id == 'm0'")
    ckptzoo.merge_parts(zoo, tmp_path / "merged")
    for path in (tmp_path / "cut", tmp_path / "merged"):
        assert ckptzoo.open(path).landscapes == () and ckptzoo.verify(path) == []

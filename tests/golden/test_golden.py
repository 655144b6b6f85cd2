"""Version 1 stays readable for ever, and its bytes stay what they are."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ckptzoo
from ckptzoo.format.files import Folder
from ckptzoo.format.header import lay_out
from ckptzoo.format.part import PartWriter, read_part, read_rows, stored_rows
from ckptzoo.format.table import schema_of
from ckptzoo.schema.documents import Identity, seal
from ckptzoo.schema.metadata import COLUMNS, LEAST, RETRACTED_COLUMNS, VARIANT_COLUMNS
from ckptzoo.symmetry import GroupElement, apply

GOLDEN = Path(__file__).parent / "v1"

TINY = ckptzoo.Architecture(
    "tiny",
    (
        ckptzoo.Tensor("a.weight", (2,), "float16"),
        ckptzoo.Tensor("b", (), "int64", "buffer"),
        ckptzoo.Tensor("a.bias", (1,), "float32", aliases=("c",)),
    ),
)


@pytest.fixture
def zoo():
    with pytest.warns(UserWarning, match="v1: 1 of 3 checkpoints retracted"):
        return ckptzoo.open(GOLDEN)


def test_the_golden_zoo_is_sound_and_reads_the_same(zoo):
    assert ckptzoo.verify(GOLDEN) == []
    assert zoo.name == "golden-v1" and zoo.ids == ["golden-0", "golden-2"] and zoo.variants == ("raw", "first-weight")
    assert zoo.revision == "sha256:4d96458cb3c79cb79a742aec55c60a1227965a566933e894fabfcbf5679b3fc7"
    weights = np.random.default_rng(2310_08287).normal(size=(3, 2, 1, 4, 4)).astype("f4")
    assert np.array_equal(np.asarray(zoo["conv1.weight"]), weights[[0, 2]])
    assert zoo.metadata["test_accuracy"].to_pylist() == [0.0, 0.5]
    assert [json.loads(extra) for extra in zoo.metadata["extra"].to_pylist()] == [{"n": 0}, {"n": 2}]
    assert zoo.retracted.to_pylist()[0]["reason"] == "to show a tombstone"
    assert zoo.contents.snapshot is not None


def test_the_golden_variant_is_g_applied_to_raw(zoo):
    assert zoo.symmetry is not None
    element = GroupElement.from_tensors(
        {name: np.asarray(stack) for name, stack in zoo.group_element("first-weight").items()}
    )
    made = apply(element, {name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry)
    for name in zoo.arch.names:
        assert made[name].tobytes() == np.asarray(zoo[name, "first-weight"]).tobytes()
    assert max(zoo.variant_metadata("first-weight")["certificate_random"].to_pylist()) < 1e-6


def test_columns_that_came_later_are_null_in_the_golden_variant(zoo):
    rows = zoo.variant_metadata("first-weight")
    assert rows.schema.equals(schema_of(VARIANT_COLUMNS)) and rows["ties"].null_count == 0
    assert all(rows[column.name].null_count == 2 for column in VARIANT_COLUMNS[8:])
    for part in zoo.contents.derived("first-weight").parts:
        assert stored_rows(Folder(GOLDEN), part).column_names == [column.name for column in VARIANT_COLUMNS[:8]]


@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
@pytest.mark.parametrize("weights", [True, False])
def test_old_and_new_parts_live_together(tmp_path, weights):
    """A part with today's columns, with or without weights, beside those of the golden zoo, read with and without a snapshot."""
    path = tmp_path / "v1"
    shutil.copytree(GOLDEN, path)
    before = ckptzoo.open(path)
    rng = np.random.default_rng(1)
    fresh = {t.name: rng.standard_normal((2, *t.shape)).astype(t.dtype) for t in before.arch.tensors}
    with ckptzoo.append(path) as writer:
        writer.add(fresh, [{"id": "new-0"}, {"id": "new-1"}])
    contents = ckptzoo.open(path).contents
    assert contents.symmetry is not None
    element = GroupElement.random(contents.symmetry, 2, rng)
    arrays = {"first-weight": apply(element, fresh, contents.symmetry), "g": element.to_tensors()}
    if not weights:
        del arrays["first-weight"]
    raw = contents.raw.parts[-1].digest
    sets = {
        stem: [ckptzoo.Tensor(name, array.shape[1:], array.dtype.name) for name, array in stacked.items()]
        for stem, stacked in arrays.items()
    }
    facts = {**contents.derived("first-weight").parts[0].facts, "raw": raw}
    new = PartWriter(path / "derived/first-weight", sets=sets, schema=schema_of(VARIANT_COLUMNS), facts=facts)
    rows = [{"id": f"new-{at}", "unit": raw, "clamped": at, "fingerprint": "x"} for at in range(2)]
    new.add(arrays, rows)
    new.commit(path, refuse=lambda _: None)

    assert ckptzoo.verify(path) == []
    for compacted in (False, True):
        if compacted:
            ckptzoo.compact(path)
            assert len(list((path / "snapshots").iterdir())) == 1 and ckptzoo.verify(path) == []
        zoo = ckptzoo.open(path)
        assert zoo.contents.snapshot is not None
        assert zoo.ids == ["golden-0", "golden-2", "new-0", "new-1"]
        assert zoo.variant_metadata("first-weight")["clamped"].to_pylist() == [None, None, 0, 1]
        expected = apply(element, fresh, contents.symmetry)
        for name in zoo.arch.names:
            read = np.asarray(zoo[name, "first-weight"])
            assert read[:2].tobytes() == np.asarray(before[name, "first-weight"]).tobytes()
            assert read[2:].tobytes() == expected[name].tobytes()


@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
def test_compacting_the_golden_zoo_again_replaces_its_snapshot(tmp_path, zoo):
    shutil.copytree(GOLDEN, tmp_path / "v1")
    made = ckptzoo.compact(tmp_path / "v1")
    assert [path.name for path in (tmp_path / "v1/snapshots").iterdir()] == [made.name]
    assert ckptzoo.verify(tmp_path / "v1") == []
    again = ckptzoo.open(tmp_path / "v1")
    assert again.metadata.equals(zoo.metadata) and again.revision == zoo.revision
    assert again.variant_metadata("first-weight").equals(zoo.variant_metadata("first-weight"))


def test_a_reader_written_from_the_page_alone():
    """docs/format.md, without ckptzoo: JSON, Parquet, and bytes at an offset."""
    content = json.loads((GOLDEN / "zoo.json").read_bytes())
    assert content["format"] == "ckptzoo" and content["version"] == 1
    read = []
    for part in sorted(path for path in (GOLDEN / "parts").iterdir() if not path.name.startswith(".")):
        data = (part / "index.parquet").read_bytes()
        at = data.rfind(b'"seal":"') + 8
        assert hashlib.sha256(data[:at] + b"0" * 64 + data[at + 64 :]).hexdigest().encode() == data[at : at + 64]
        index = pq.read_table(part / "index.parquet").to_pylist()
        block = next(row for row in index if row["tensor"] == "fc.weight")
        shard = (part / block["file"]).read_bytes()[block["offset"] : block["offset"] + block["nbytes"]]
        assert hashlib.sha256(shard).digest() == block["sha256"]
        read.append(np.frombuffer(shard, block["dtype"]).reshape(block["shape"]))
    with pytest.warns(UserWarning, match="retracted"):
        zoo = ckptzoo.open(GOLDEN)
    assert np.array_equal(np.concatenate(read)[[0, 2]], np.asarray(zoo["fc.weight"]))


def test_the_bytes_of_a_header():
    layout = lay_out(TINY.tensors, 3, {"ckptzoo": "raw"})
    assert layout.header == (
        b"\xf8\x0f\x00\x00\x00\x00\x00\x00"
        b'{"__metadata__":{"ckptzoo":"raw"},'
        b'"b":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},'
        b'"a.bias":{"dtype":"F32","shape":[3,1],"data_offsets":[24,36]},'
        b'"a.weight":{"dtype":"F16","shape":[3,2],"data_offsets":[36,48]}}'
    ).ljust(4096)


def test_the_bytes_of_the_documents():
    digest = "sha256:0b2c9c8d4e6d7d7fdfaf140994e2998de621f89d4c7d508a1a55cf9933ee272e"
    assert seal(TINY.to_json()) == (
        b'{"digest":"' + digest.encode() + b'","forward":null,"input_shape":null,"name":"tiny","tensors":['
        b'{"aliases":[],"dtype":"float16","kind":"parameter","name":"a.weight","shape":[2]},'
        b'{"aliases":[],"dtype":"int64","kind":"buffer","name":"b","shape":[]},'
        b'{"aliases":["c"],"dtype":"float32","kind":"parameter","name":"a.bias","shape":[1]}]}\n'
    )
    assert seal(Identity("tiny", digest).to_json()) == (
        b'{"architecture":"' + digest.encode() + b'",'
        b'"digest":"sha256:00312ca2788f8c065dc70fcf976419e74d6b6670653ed43d8a13362cfb396ef6",'
        b'"format":"ckptzoo","name":"tiny","symmetry":null,"version":1}\n'
    )


def test_the_shard_of_the_golden_zoo_is_written_the_same_today(zoo, tmp_path):
    with pytest.warns(UserWarning, match="retracted"):
        everything = ckptzoo.open(GOLDEN).contents
    part = everything.raw.parts[0]
    rows = read_rows(Folder(GOLDEN), part).to_pylist()
    weights, at = {}, 0
    shard = GOLDEN / part.path / "raw-00.safetensors"
    header, data = shard.read_bytes()[:4096], shard.read_bytes()[4096:]
    for entry in lay_out(zoo.arch.tensors, 2, {"ckptzoo": "raw"}).entries:
        weights[entry.name] = np.frombuffer(data[at : at + entry.nbytes], "f4").reshape(entry.shape)
        at += entry.nbytes
    first = schema_of(COLUMNS[: LEAST["raw"]])
    old = PartWriter(tmp_path / "old/parts", sets={"raw": zoo.arch.tensors}, schema=first, facts={"kind": "raw"})
    old.add({"raw": weights}, [{name: row[name] for name in first.names} for row in rows])
    assert old.commit(tmp_path / "old", refuse=lambda _: None).digest == part.digest
    with ckptzoo.create(tmp_path / "again", arch=zoo.arch) as writer:
        writer.add(weights, rows)
    again = next((tmp_path / "again" / "parts").iterdir())
    assert (again / "raw-00.safetensors").read_bytes() == header + data
    made = read_part(Folder(tmp_path / "again"), "parts", again.name)[0]
    assert made.digest != part.digest, "the digest covers the columns that came since"
    assert read_rows(Folder(tmp_path / "again"), made).to_pylist() == rows


def test_the_page_names_every_column():
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    assert all(column.name in page for column in (*COLUMNS, *VARIANT_COLUMNS, *RETRACTED_COLUMNS))

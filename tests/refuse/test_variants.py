"""What a variant without weights must not get away with, and columns that a reader does not know."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest

import ckptzoo
from ckptzoo.errors import IntegrityError, SymmetryError, ZooError
from ckptzoo.format import table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import part_digest, read_part, stored_rows
from ckptzoo.schema.documents import digest_of, seal
from ckptzoo.schema.layout import part_name
from ckptzoo.schema.metadata import KINDS, LEAST
from tests.conftest import rows_of
from tests.support.derived_parts import TABLE, elements_of, raw_of, write_part, write_raw, write_variant
from tests.support.effort import examples


@pytest.fixture
def path(tmp_path):
    write_raw(tmp_path / "zoo", (4, 3), raw_of(7))
    return tmp_path / "zoo"


@pytest.fixture
def bare(path):
    """A variant without weights."""
    write_variant(path, elements_of(7), bare=(True, True))
    assert ckptzoo.verify(path) == []
    return path


def refused(path, *words, read=True):
    """Found by verify, and by who reads the variant."""
    text = "\n".join(map(str, ckptzoo.verify(path)))
    assert all(word in text for word in words), text
    if read:
        with pytest.raises(IntegrityError) as caught:
            ckptzoo.open(path)["conv.weight", "made"][:]
        assert all(word in str(caught.value) for word in words)


@pytest.mark.slow
def test_every_flipped_byte_is_found(bare):
    rng = random.Random(0)
    part = next((bare / "derived/made").glob("000001-*"))
    assert sorted(file.name for file in part.iterdir()) == ["g-00.safetensors", "index.parquet", "metadata.parquet"]
    for file in part.iterdir():
        data = file.read_bytes()
        for at in sorted({0, 8, len(data) - 1, *rng.sample(range(len(data)), examples(25, 2))}):
            broken = bytearray(data)
            broken[at] ^= 1 << rng.randrange(8)
            file.write_bytes(broken)
            assert ckptzoo.verify(bare), f"{file.name}, byte {at}"
        file.write_bytes(data)
    assert ckptzoo.verify(bare) == []


def test_a_truncated_or_missing_shard_is_refused(bare):
    shard = next((bare / "derived/made").glob("000002-*/g-00.safetensors"))
    data = shard.read_bytes()
    zoo = ckptzoo.open(bare)
    assert zoo["conv.weight", "made"].shape == (7, 4, 3, 2)
    shard.write_bytes(data[:-8])
    refused(bare, f"{shard.parent.name}/g-00.safetensors: size: expected {len(data)} bytes, got {len(data) - 8} bytes")
    with pytest.raises(IntegrityError, match=r"g-00\.safetensors: size"):
        zoo["conv.weight", "made"][5]
    shard.unlink()
    refused(bare, "g-00.safetensors: file", "no file")


def g_of(rows):
    return elements_of(7)[rows].to_tensors()


LIES = {
    "no shards": (lambda g: g.clear(), "tensor 'norm.perm': expected int32 (4,), got no such tensor"),
    "a group without a permutation": (lambda g: g.pop("norm.perm"), "tensor 'norm.perm': expected int32 (4,)"),
    "a group without its scale": (lambda g: g.pop("fc.scale"), "tensor 'fc.scale': expected float64 (6,), got no such"),
    "another size": (lambda g: g.update({"fc.perm": g["conv.perm"]}), "expected int32 (6,), got int32 (4,)"),
    "rounded scales": (
        lambda g: g.update({"fc.scale": g["fc.scale"].astype("f4")}),
        "tensor 'fc.scale': expected float64 (6,), got float32 (6,)",
    ),
    "permutations that are no integers": (lambda g: g.update({"fc.perm": g["fc.scale"]}), "expected int32 (6,)"),
    "an unknown group": (lambda g: g.update({"gc.perm": g["fc.perm"]}), "tensor 'gc.perm': expected no such tensor"),
    "a scale where there is none": (
        lambda g: g.update({"grouped.scale": np.ones((4, 4))}),
        "tensor 'grouped.scale': expected no such tensor",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_elements_that_are_not_the_tables(path, lie):
    change, words = LIES[lie]
    g = g_of(slice(0, 4))
    change(g)
    write_part(path, 0, {"g": g} if g else {}, rows_of_ids(4))
    refused(path, words)


def rows_of_ids(count, start=0):
    return [{"id": row["id"], "gauged": True} for row in rows_of(count, start)]


def test_integers_of_any_width_are_permutations(path):
    g = {name: array.astype("u1") if "perm" in name else array for name, array in g_of(slice(0, 4)).items()}
    write_part(path, 0, {"g": g}, rows_of_ids(4))
    write_part(path, 1, {"g": g_of(slice(4, 7))}, rows_of_ids(3, 4))
    assert ckptzoo.verify(path) == []


def test_a_row_that_is_no_permutation_is_refused_when_it_is_used(path):
    g = g_of(slice(0, 4))
    g["conv.perm"][2] = [0, 1, 1, 3]
    write_part(path, 0, {"g": g}, rows_of_ids(4))
    write_part(path, 1, {"g": g_of(slice(4, 7))}, rows_of_ids(3, 4))
    zoo = ckptzoo.open(path)
    with pytest.raises(SymmetryError, match="group 'conv': perm: expected each of 0 to 3 once"):
        zoo["conv.weight", "made"][:]
    assert zoo["conv.weight", "made"][3:].shape == (4, 4, 3, 2) and zoo["fc.order", "made"][:].shape == (7, 6)


def test_a_part_of_another_table_or_of_other_weights_is_refused(path):
    other = write_part(path, 0, {"g": g_of(slice(0, 4))}, rows_of_ids(4), symmetry="sha256:" + "0" * 64)
    refused(path, "digest of symmetry.json: expected sha256:000", f"got {TABLE.digest}")
    for file in other.iterdir():
        file.unlink()
    other.rmdir()
    raw = ckptzoo.open(path).contents.raw.parts
    wrong = write_part(path, 0, {"g": g_of(slice(0, 4))}, rows_of_ids(4), raw=raw[1].digest)
    write_part(path, 1, {"g": g_of(slice(4, 7))}, rows_of_ids(3, 4))
    refused(path, f"{wrong.name}: raw part of its rows: expected {raw[1].digest}, got {raw[0].digest}. Move")


def test_a_zoo_that_lost_its_table_is_refused(bare):
    content = json.loads((bare / "zoo.json").read_bytes())
    del content["digest"]
    (bare / "zoo.json").write_bytes(seal(content | {"symmetry": None}))
    assert ckptzoo.verify(bare) == []
    (bare / "symmetry.json").unlink()
    refused(bare, "digest of symmetry.json", "got no such file. Restore symmetry.json from a copy.")
    assert ckptzoo.open(bare)["conv.weight"][:].shape == (7, 4, 3, 2)


def test_weights_of_a_variant_have_at_least_float32(path):
    raw = {name: array[:4] for name, array in raw_of(7).items()}
    write_part(path, 0, {"made": raw, "g": g_of(slice(0, 4))}, rows_of_ids(4))
    refused(path, "tensor 'norm.bias': expected float32 (4,), got float16 (4,)", "tensor 'fc.weight': expected float32")


def test_checkpoints_that_were_not_derived_are_named(path):
    write_part(path, 1, {"g": g_of(slice(4, 7))}, rows_of_ids(3, 4))
    assert ckptzoo.verify(path) == []
    message = r"expected all 7 checkpoints, got 3 \(4 without it\)\. Take those that have it with zoo\.having\('made'\)"
    with pytest.raises(ZooError, match=message):
        ckptzoo.open(path)["conv.weight", "made"]


def rewritten(path, part, change):
    """Other columns in a derived part, sealed, digested and named again."""
    held, index = read_part(Folder(path), "derived/made", part.name)
    rows = change(stored_rows(Folder(path), held))
    digest = part_digest(rows, index, held.facts)
    footer = {"version": 1, "digest": digest, "rows": held.rows, "facts": held.facts}
    (part / "index.parquet").write_bytes(table.encode([index], footer, sealed=True))
    (part / "metadata.parquet").write_bytes(table.encode([rows], {"version": 1}, sealed=True))
    return part.rename(part.with_name(part_name(int(part.name[:6]), digest)))


COLUMNS = {
    "one too few": (lambda rows: rows.select(range(LEAST["variant"] - 1)), "no column 'certificate_real'", "Fetch"),
    "a hole": (lambda rows: rows.drop_columns(["clamped"]), "no column 'clamped'", "Fetch"),
    "another order": (
        lambda rows: rows.select([*range(8), 9, 8, *range(10, rows.num_columns)]),
        "another order",
        "Fetch",
    ),
    "another type": (
        lambda rows: rows.set_column(9, "clamped", pa.nulls(len(rows), pa.float64())),
        "'clamped' as double instead of int64",
        "Fetch",
    ),
    "one of tomorrow": (
        lambda rows: rows.append_column("tomorrow", pa.nulls(len(rows), pa.int64())),
        "also ['tomorrow']",
        "Upgrade ckptzoo to read it.",
    ),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_that_are_refused(bare, case):
    change, got, step = COLUMNS[case]
    rewritten(bare, next((bare / "derived/made").glob("000001-*")), change)
    refused(bare, "metadata.parquet: columns: expected those of docs/format.md", got, step)


def test_a_digest_over_columns_that_the_file_lacks_is_found(bare):
    part = next((bare / "derived/made").glob("000001-*"))
    full = (part / "metadata.parquet").read_bytes()
    short = rewritten(bare, part, lambda rows: rows.select(range(LEAST["variant"])))
    assert ckptzoo.verify(bare) == []
    (short / "metadata.parquet").write_bytes(full)
    refused(bare, "digest of the part", read=False)


def test_the_least_columns_are_those_of_the_first_release():
    assert {kind: KINDS[kind][count - 1].name for kind, count in LEAST.items()} == {
        "raw": "extra", "variant": "certificate_real", "retracted": "created", "predictions": "finite", "measured": "certified",
        "digests": "finite",
    }  # fmt: skip
    kinds = ("raw", "variant", "retracted")
    first = [[column.name, column.type] for kind in kinds for column in KINDS[kind][: LEAST[kind]]]
    assert digest_of(first) == "sha256:c188a3da9125a26e0eb4fe243c0c89f548b85e9af927838051952c200be41a77"

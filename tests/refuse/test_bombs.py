"""Parquet packs equal rows by their number: a few kilobytes may claim any number of rows, and none is decoded."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import IntegrityError, UnknownNameError
from ckptzoo.format import limits, snapshot, table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import part_digest, read_part, read_rows
from ckptzoo.format.reader import read_trees
from ckptzoo.format.tree import LazyTable, Tree
from ckptzoo.hub.pull import pull
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.schema.layout import part_name
from tests.conftest import MIXED, rows_of, weights_of

ROWS = 600_000


def repeated(rows, count):
    """The table's last row, repeated behind its rows until there are this many."""
    return rows.take(pa.array([*range(len(rows)), *[len(rows) - 1] * (count - len(rows))], pa.int64()))


@pytest.fixture
def one(make_zoo):
    """A zoo of one part, its folder, facts, rows and index."""
    path, _ = make_zoo((4,))
    folder = next((path / "parts").iterdir())
    part, index = read_part(Folder(path), "parts", folder.name)
    return path, folder, part, index, read_rows(Folder(path), part)


def replaced(folder, index, footer, rows=None):
    """Write index and rows with right seals, under the name that they ask for."""
    footer = {"version": 1, **footer}
    (folder / "index.parquet").write_bytes(table.encode([index], footer, sealed=True))
    if rows is not None:
        (folder / "metadata.parquet").write_bytes(table.encode([rows], {"version": 1}, sealed=True))
    folder.rename(folder.with_name(part_name(1, footer["digest"])))


@pytest.fixture
def undecoded(monkeypatch):
    """Fails where a row of a large table is decoded."""
    read, pieces = pq.ParquetFile.read_row_groups, pq.ParquetFile.iter_batches

    def small(wrapped):
        def call(file, *arguments, **options):
            assert file.metadata.num_rows < 100_000
            return wrapped(file, *arguments, **options)

        return call

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", small(read))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", small(pieces))


def refused(path, *words):
    with pytest.raises(IntegrityError) as error:
        ckptzoo.open(path).metadata  # noqa: B018
    found = "\n".join(map(str, ckptzoo.verify(path)))
    for word in words:
        assert word in str(error.value) and word in found, found


def test_an_index_of_many_rows(one, undecoded):
    path, folder, part, index, _ = one
    replaced(folder, repeated(index, ROWS), {"digest": part.digest, "rows": 4, "facts": part.facts})
    assert sum(file.stat().st_size for file in path.rglob("*.parquet")) < 100_000
    # 6 tensors, two elements for each of their 8 axes without a table, two stems and the outputs, 4 times
    refused(path, "rows of the table", "at most 100", f"got {ROWS}")


def append_one(path):
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(writer.arch, 1), rows_of(1, 9))


@pytest.mark.parametrize(
    "use",
    [ckptzoo.compact, append_one, lambda path: pull(path, path.with_name("got"))],
    ids=["compact", "append", "pull"],
)
def test_an_index_of_many_rows_in_other_ways(one, undecoded, use):
    path, folder, part, index, _ = one
    replaced(folder, repeated(index, ROWS), {"digest": part.digest, "rows": 4, "facts": part.facts})
    with pytest.raises(IntegrityError, match=f"rows of the table: expected at most .*, got {ROWS}"):
        use(path)


def test_a_snapshot_of_many_rows(one, undecoded):
    path, _, _, index, _ = one
    raw = read_trees(Folder(path))["parts"]
    numbered = repeated(index, ROWS).append_column("part", pa.repeat(pa.scalar(0, pa.int32()), ROWS))
    name, data = snapshot.encode({"parts": Tree(raw.parts, LazyTable.of(raw.metadata), LazyTable.of(numbered))})
    (path / "snapshots").mkdir()
    (path / name).write_bytes(data)
    refused(path, "index rows of parts: expected at most 100", f"got {ROWS}")


def test_many_rows(one, undecoded):
    path, folder, part, index, rows = one
    replaced(folder, index, {"digest": part.digest, "rows": 4, "facts": part.facts}, repeated(rows, ROWS))
    refused(path, "metadata.parquet", "at most 4,", f"got {ROWS}")


def test_many_rows_and_as_many_in_the_index(one, undecoded):
    path, folder, part, index, rows = one
    footer = {"digest": part.digest, "rows": ROWS, "facts": part.facts}
    replaced(folder, index, footer, repeated(rows, ROWS))
    refused(path, "index.parquet: checkpoints: expected", f"got {ROWS}")


def test_more_rows_than_the_shards_hold(one, undecoded):
    """Ids that differ are packed well, too: rows of checkpoints that no shard holds are not decoded."""
    path, folder, part, index, rows = one
    many = 300_000
    rows = with_ids(rows, many)
    footer = {"digest": part_digest(rows, index, part.facts), "rows": many, "facts": part.facts}
    replaced(folder, index, footer, rows)
    refused(path, "in shards of", f"got {many}")


def with_ids(rows, count):
    """The last row, repeated, under ids that differ."""
    ids = pa.array([f"m{number:05d}" for number in range(count)])
    return repeated(rows, count).set_column(0, rows.schema.field("id"), ids)


def test_a_long_text_in_a_small_file(one):
    path, folder, part, index, rows = one
    at = rows.schema.get_field_index("extra")
    text = pa.array(["x" * 40 * 2**20] * 4)
    replaced(
        folder,
        index,
        {"digest": part.digest, "rows": 4, "facts": part.facts},
        rows.set_column(at, rows.schema.field("extra"), text),
    )
    refused(path, "metadata.parquet: size of the table", "expected 0 to")


def test_a_text_that_many_rows_have(one):
    """Parquet stores it once; it is not copied to all rows before that is seen."""
    path, folder, part, index, rows = one
    count, at = 5000, rows.schema.get_field_index("extra")
    text = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 2**20]))
    packed, sink = with_ids(rows, count).set_column(at, "extra", text), pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, packed.schema, compression="zstd", write_page_checksum=True, store_schema=False
    ) as file:
        file.write_table(packed)
        file.add_key_value_metadata({"ckptzoo": '{"seal":"' + "0" * 64 + '","version":1}'})
    data = sink.getvalue().to_pybytes()
    start = data.rfind(b'"seal":"') + 8
    footer = {"digest": part.digest, "rows": count, "facts": part.facts}
    (folder / "metadata.parquet").write_bytes(
        data[:start] + hashlib.sha256(data).hexdigest().encode() + data[start + 64 :]
    )
    replaced(folder, index, footer)
    words = "metadata.parquet: size of the table: expected at most 1073741824 bytes"
    with pytest.raises(IntegrityError, match=words):
        read_trees(Folder(path))["parts"].rows.take(["extra"], np.arange(1))
    assert any(words in str(problem) for problem in ckptzoo.verify(path))


def test_problems_are_counted_to_a_hundred(one):
    path, folder, part, index, rows = one
    many = repeated(rows, 1000)
    ids = pa.array([f"m{number:05d}" for number in range(1000)])
    many = many.set_column(0, many.schema.field("id"), ids)
    wrong = repeated(index, 20_000)
    stop = wrong.schema.get_field_index("row_stop")
    wrong = wrong.set_column(stop, wrong.schema.field(stop), pa.array([0] * 20_000, pa.int64()))
    digest = part_digest(many, wrong, part.facts)
    replaced(folder, wrong, {"digest": digest, "rows": 1000, "facts": part.facts}, many)
    found = ckptzoo.verify(path)
    assert len(found) == 101 and str(found[-1]).startswith("zoo: problems: expected at most 100 in a report, got more.")
    with pytest.raises(IntegrityError) as error:
        ckptzoo.open(path)
    assert len(error.value.problems) <= 101


def test_rows_of_little_content_are_read(tmp_path):
    """The densest rows that a zoo may have, of short ids that differ, are within the limits."""
    rows = 200_000
    ids = pa.table(
        {"id": [f"{number}" for number in range(rows)]}, schema=pa.schema([pa.field("id", pa.string(), False)])
    )
    data = table.encode([ids], {"version": 1}, sealed=True)
    assert rows < limits.FREE_ROWS + 8 * len(data)
    digests = [hashlib.sha256(b"%d" % number).digest() for number in range(rows)]
    assert rows < len(table.encode([pa.table({"sha256": digests})], {"version": 1}, sealed=True))


def nested(depth):
    """The type of lists of lists of texts."""
    kind = pa.string()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


STRANGE = {
    "columns": (lambda rows: rows.append_column("more", pa.nulls(4, pa.string())), "also"),
    "many columns": (
        lambda rows: pa.table(
            {
                **dict(zip(rows.column_names, rows.columns, strict=True)),
                **dict.fromkeys((f"c{at}" for at in range(2_000)), pa.nulls(4, pa.string())),
            },
        ),
        "those of docs/format.md",
    ),
    "no columns": (lambda rows: rows.select([]), "rows: expected 4, got 0"),
    "a column of nulls": (lambda rows: with_extra(rows, pa.nulls(4)), "'extra' as null instead of string"),
    "lists": (lambda rows: with_extra(rows, pa.nulls(4, nested(3))), "instead of string"),
    "lists in lists": (lambda rows: with_extra(rows, pa.nulls(4, nested(60))), "a readable table"),
    "a dictionary of dictionaries": (
        lambda rows: with_extra(rows, pa.nulls(4, pa.struct([("a", pa.struct([("b", pa.string())]))]))),
        "instead of string",
    ),
}


def with_extra(rows, values):
    """Rows with another column ``extra``."""
    at = rows.schema.get_field_index("extra")
    return rows.set_column(at, pa.field("extra", values.type), values)


@pytest.mark.parametrize("strange", STRANGE)
def test_rows_of_other_columns(one, strange):
    path, folder, part, index, rows = one
    change, words = STRANGE[strange]
    replaced(folder, index, {"digest": part.digest, "rows": 4, "facts": part.facts}, change(rows))
    refused(path, "metadata.parquet", words)


def test_a_listing_of_what_is_not_there(one):
    """Names of many parts, of files elsewhere, and those that no file can have: problems, a hundred at most."""
    path, *_ = one
    ckptzoo.compact(path)
    listing, strange = path / "listing.json", {"parts/\0", "../" * 40 + "etc/passwd", "x" * 10_000, "", "/"}
    named, _ = unseal(listing.read_bytes(), location="listing.json")
    for names in ((f"parts/{at:06d}-{at:08x}/index.parquet" for at in range(3_000)), strange):
        files = {**named["files"], **{name: [100, None] for name in names}}
        listing.write_bytes(seal({**named, "files": files}))
        found = ckptzoo.verify(path)
        assert len(found) == min(101, len(files) - len(named["files"]))
        assert all("compact" in str(problem) or "Correct these" in str(problem) for problem in found)
        assert len(ckptzoo.open(path).metadata) == 4
    ckptzoo.compact(path)
    assert ckptzoo.verify(path) == []


def test_facts_of_ten_thousand_names(tmp_path, capsys):
    """Every row has others in ``extra``: all can be asked for, and what is said of them is short."""
    path = tmp_path / "zoo"
    with ckptzoo.create(path, arch=MIXED) as writer:
        rows = [
            row | {"extra": {f"k{100 * at + key}": key for key in range(100)}} for at, row in enumerate(rows_of(100))
        ]
        writer.add(weights_of(MIXED, 100), rows)
    zoo = ckptzoo.open(path)
    assert zoo.where("extra.k777 == 77").ids == [rows[7]["id"]]
    with pytest.raises(UnknownNameError) as error:
        zoo.where("extra.other == 77")
    assert len(str(error.value)) < 600 and "Did you mean" in str(error.value)
    assert run(["info", str(path)]) == 0 and len(capsys.readouterr().out) < 3000

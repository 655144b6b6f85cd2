"""A snapshot is checked to the last byte, by one read of the file; and the folders that paths lie in."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pytest

import ckptzoo
from ckptzoo.errors import IntegrityError
from ckptzoo.format import limits, snapshot, table
from ckptzoo.format.files import Folder, folders_of
from ckptzoo.format.part import PartWriter
from ckptzoo.format.reader import read_contents, read_trees
from ckptzoo.format.snapshot import Snapshot, encode
from ckptzoo.format.table import METADATA_SCHEMA
from ckptzoo.format.tree import INDEX_SCHEMA, LazyTable, Tree
from ckptzoo.schema.layout import Span


class Counting(Folder):
    """A folder that counts what is read of each file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.spans_of, self.wholes = Counter[str](), Counter[str]()

    def read(self, name: str, **how: int) -> bytes:
        self.wholes[name] += 1
        return super().read(name, **how)

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        self.spans_of.update(span.name for span in wanted)
        return super().spans(wanted)


@pytest.fixture
def compacted(make_zoo: Callable[..., tuple[Path, object]]) -> Path:
    """A snapshot of three parts and a tombstone."""
    path, _ = make_zoo((3, 2, 2))
    ckptzoo.retract(path, ["m00001"], reason="a test")
    made = ckptzoo.compact(path)
    assert made is not None
    return made


def test_opening_reads_the_tail_and_every_column_is_read_once(compacted: Path) -> None:
    files = Counting(compacted.parents[1])
    contents = read_contents(files)
    name = f"snapshots/{compacted.name}"
    assert contents.snapshot is not None and files.spans_of[name] == 1
    for _ in range(2):
        assert len(contents.raw.rows["id"]) == 7 and files.spans_of[name] == 2
    for _ in range(2):
        assert len(contents.raw.metadata) == 7 and len(contents.raw.index) > 0
    # the digests of the index are the only column of it before the tail
    assert files.spans_of[name] == 1 + len(contents.raw.rows.schema) + 1 and files.wholes[name] == 0
    assert not [part for part in files.wholes if part.startswith("parts/")]


def test_a_byte_that_flipped_anywhere_is_found(compacted: Path) -> None:
    whole = compacted.read_bytes()
    places = np.random.default_rng(5).permutation(len(whole))[:200]
    for place in [0, len(whole) - 1, *places.tolist()]:
        wrong = bytearray(whole)
        wrong[place] ^= 1
        compacted.write_bytes(wrong)
        with pytest.raises(IntegrityError, match="sha256"):
            Snapshot(Folder(compacted.parents[1]), compacted.name).check()
    compacted.write_bytes(whole)
    Snapshot(Folder(compacted.parents[1]), compacted.name).check()


def test_the_same_parts_give_the_same_snapshot(compacted: Path) -> None:
    files = Folder(compacted.parents[1])
    trees = read_trees(files)
    assert encode(trees, ids_differ=True) == (f"snapshots/{compacted.name}", compacted.read_bytes())


def test_folders_are_told_from_paths(tmp_path: Path) -> None:
    """What is told of the paths of all files is what a folder lists."""
    names = ["zoo.json", "parts/1/b", "parts/1/a", "parts/2/a", "derived/x/1/a"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    told = folders_of(names)
    assert told["parts/1"] == ("a", "b") and told[""] == ("derived", "parts", "zoo.json")
    assert told == {folder: Folder(tmp_path).listed(folder) for folder in told}
    assert len(told) == 1 + sum(path.is_dir() for path in tmp_path.rglob("*"))


def test_threads_read_columns_of_one_snapshot_one_after_the_other(
    compacted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reads at once of one file of Arrow's end in errors, or the process."""
    names, inside, most = [*INDEX_SCHEMA.names], list[str](), list[int]()
    expected = read_contents(Folder(compacted.parents[1])).raw.blocks
    read = table.read_bounded

    def counted(*arguments: Any, **options: Any) -> Any:
        inside.append("")
        most.append(len(inside))
        time.sleep(0.01)
        found = read(*arguments, **options)
        inside.pop()
        return found

    monkeypatch.setattr(table, "read_bounded", counted)
    blocks = read_contents(Folder(compacted.parents[1])).raw.blocks
    with ThreadPoolExecutor(len(names)) as pool:
        columns = list(pool.map(lambda name: blocks.select([name]), names))
    assert all(column == expected.select([name]) for column, name in zip(columns, names, strict=True))
    assert len(most) > 1 and max(most) == 1


def test_a_part_without_rows_has_its_place(tmp_path: Path) -> None:
    """In front of others, between them and alone; in one group of rows and in several."""
    arch = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("a", (1,)),))
    for name, sizes in (("alone", (0,)), ("between", (0, 3, 0, 0, 2, 0))):
        path = tmp_path / name
        ckptzoo.create(path, arch=arch)
        for number, size in enumerate(sizes):
            part = PartWriter(path / "parts", sets={"raw": arch.tensors}, schema=METADATA_SCHEMA, facts={"kind": "raw"})
            if size:
                part.add(
                    {"raw": {"a": np.zeros((size, 1), np.float32)}},
                    [{"id": f"m{number}-{at}", "extra": "{}", "seed": at} for at in range(size)],
                )
            part.commit(path, refuse=lambda _: None)
        before = ckptzoo.open(path).metadata
        ckptzoo.compact(path)
        zoo = ckptzoo.open(path)
        assert zoo.contents.snapshot is not None and zoo.metadata.equals(before) and len(zoo) == sum(sizes)
        assert len(zoo.last_steps()) == len(zoo.where("seed >= 0")) == len(zoo)
        assert ckptzoo.verify(path) == []


def test_an_index_that_is_damaged_or_gone_is_read_from_the_parts(compacted: Path) -> None:
    """It may be gone where another process replaced the snapshot after the zoo was opened."""
    zoo, whole = compacted.parents[1], compacted.read_bytes()
    expected = {name: tree.index for name, tree in read_trees(Folder(zoo)).items()}
    chunks = Snapshot(Folder(zoo), compacted.name)._chunks  # pyright: ignore[reportPrivateUsage]
    damaged = [(name, chunk.stop - 1) for (_, name), chunk in chunks.items() if name.startswith("index:")]
    assert damaged
    for _, place in damaged:
        wrong = bytearray(whole)
        wrong[place] ^= 1
        compacted.write_bytes(wrong)
        files = Folder(zoo)
        found = read_trees(files, Snapshot(files, compacted.name))
        assert all(found[name].index.equals(index) for name, index in expected.items())
    compacted.write_bytes(whole)
    contents = read_contents(Folder(zoo))
    compacted.unlink()
    assert contents.raw.index.equals(expected["parts"])
    # where the parts cannot be read either, the message is that of the snapshot
    compacted.write_bytes(whole)
    contents = read_contents(Folder(zoo))
    compacted.unlink()
    next(zoo.glob("parts/*/index.parquet")).unlink()
    with pytest.raises(IntegrityError, match=compacted.name):
        _ = contents.raw.index


@pytest.mark.parametrize("wrong", ["twice", "within", "across"])
def test_columns_that_share_bytes_are_refused(compacted: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """By ``verify`` with a message; to open the zoo its parts are read."""
    zoo = compacted.parents[1]
    described, trees = snapshot._described, read_trees(Folder(compacted.parents[1]))  # pyright: ignore[reportPrivateUsage]

    def shifted(file: BinaryIO, *arguments: Any, **options: Any) -> Any:
        chunks, rest, cut = described(file, *arguments, **options)
        own = next(iter(chunks.values()))
        start, nbytes, _ = next(iter(own.values()))
        start, nbytes = {"twice": (start, nbytes), "within": (start + 1, 1), "across": (start + 1, nbytes)}[wrong]
        file.seek(start)
        own["other"] = [start, nbytes, hashlib.sha256(file.read(nbytes)).hexdigest()]
        return chunks, rest, cut

    monkeypatch.setattr(snapshot, "_described", shifted)
    name, data = encode(trees)
    compacted.unlink()
    (zoo / name).write_bytes(data)
    (zoo / "listing.json").unlink(missing_ok=True)
    assert [problem.what for problem in ckptzoo.verify(zoo)] == ["columns in the footer"]
    assert read_contents(Folder(zoo)).snapshot is None


def test_bytes_between_columns_are_checked_some_at_a_time(compacted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_CHECKED_BYTES", 3)
    Snapshot(Folder(compacted.parents[1]), compacted.name).check()


def test_a_snapshot_of_more_rows_than_it_may_have_is_not_used(compacted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is decoded: Parquet packs equal rows into few bytes."""
    monkeypatch.setattr(limits, "_ROWS_A_BYTE", 1)
    zoo = compacted.parents[1]
    trees = read_trees(Folder(zoo))
    gone = trees["derived/retracted"]
    count, (part,) = 150_000, gone.parts
    repeated = gone.metadata.take(pa.array([0] * count))
    trees["derived/retracted"] = Tree((replace(part, rows=count),), LazyTable.of(repeated), gone.blocks)
    name, data = encode(trees)
    compacted.unlink()
    (zoo / name).write_bytes(data)
    with pytest.raises(IntegrityError, match=f"rows of derived/retracted: expected at most .*, got {count}"):
        Snapshot(Folder(zoo), name.rpartition("/")[2])
    contents = read_contents(Folder(zoo))
    assert contents.snapshot is None and len(contents.retracted.rows) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("index_rows", [1, 5])
def test_an_index_is_in_several_row_groups(compacted: Path, monkeypatch: pytest.MonkeyPatch, index_rows: int) -> None:
    """Damage in any of them is passed over, and the parts are read."""
    zoo, trees = compacted.parents[1], read_trees(Folder(compacted.parents[1]))
    expected = trees["parts"].index
    monkeypatch.setattr(snapshot, "_INDEX_ROWS", index_rows)
    name, data = encode(trees)
    compacted.unlink()
    (zoo / "listing.json").unlink()
    (zoo / name).write_bytes(data)
    assert ckptzoo.verify(zoo) == []
    opened = Snapshot(Folder(zoo), name.rpartition("/")[2])
    assert len(opened.index_pieces("parts", trees["parts"].parts)) == -(-len(expected) // index_rows)
    assert opened.tree("parts").index.equals(expected)
    columns = [(column, chunk.start) for (_, column), chunk in opened._chunks.items()]  # pyright: ignore[reportPrivateUsage]
    damaged = [start for column, start in columns if column.startswith("index:")]
    assert len(damaged) > 2
    for start in damaged[:: max(1, len(damaged) // 6)]:
        wrong = bytearray(data)
        wrong[start] ^= 1
        (zoo / name).write_bytes(wrong)
        contents = read_contents(Folder(zoo))
        assert contents.snapshot is not None and contents.raw.index.equals(expected)


def test_tables_are_bounded_column_by_column(compacted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of an index that the parts' own limits let through is not refused for the sum of its columns."""
    opened = Snapshot(Folder(compacted.parents[1]), compacted.name)
    expected = opened.tree("parts").index
    most = max(column.nbytes for column in expected.columns) + 4 * len(expected)
    assert expected.nbytes > 2 * most
    monkeypatch.setattr(limits, "table_in", lambda nbytes: 2**20)
    monkeypatch.setattr(limits, "MAX_TABLE", most)
    assert opened.tree("parts").index.equals(expected)
    monkeypatch.setattr(limits, "MAX_TABLE", most // 8)
    with pytest.raises(IntegrityError, match="size of the table"):
        _ = opened.tree("parts").index


def test_row_groups_are_of_a_bounded_size(compacted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that readers do not refuse what was written of long texts."""
    zoo = compacted.parents[1]
    expected = read_contents(Folder(zoo)).raw.metadata
    monkeypatch.setattr(snapshot, "_GROUP_BYTES", 1)
    made = ckptzoo.compact(zoo)
    assert made is not None
    opened = read_contents(Folder(zoo))
    assert opened.snapshot is not None and opened.raw.metadata.equals(expected) and ckptzoo.verify(zoo) == []
    assert [len(group) for group in snapshot._row_groups(opened.raw, ["id"])] == [3, 2, 2]  # pyright: ignore[reportPrivateUsage]

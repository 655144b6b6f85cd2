"""Tables of many parts: each is checked before others are fetched, and together they are bounded."""

import shutil

import numpy as np
import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.format import limits, reader
from ckptzoo.format.files import Folder
from ckptzoo.format.part import read_part
from ckptzoo.format.reader import read_trees


class Counted(Folder):
    """A folder that notes which indices and rows are read together."""

    def __init__(self, root):
        super().__init__(root)
        self.indices, self.rows = [], []

    def read_many(self, names, *, max_bytes=limits.MAX_FILE):
        if names[0].startswith("parts/"):
            groups = self.indices if names[0].endswith("index.parquet") else self.rows
            groups.append([name.split("/")[1][:6] for name in names])
        return super().read_many(names, max_bytes=max_bytes)


@pytest.fixture
def files(make_zoo):
    """A zoo of six parts, and a copy of it."""
    path, _ = make_zoo((2, 1, 1, 3, 1, 1))
    shutil.copytree(path, path.with_name("copy"))
    return Counted(path)


def size_of(files, name, file="index.parquet"):
    return (files.here / "parts" / name / file).stat().st_size


def test_small_tables_are_read_at_once_and_rows_when_they_are_asked_for(files):
    tree = read_trees(files)["parts"]
    assert len(files.indices) == 1 and [part.rows for part in tree.parts] == [2, 1, 1, 3, 1, 1] and not files.rows
    assert len(tree.rows["id"]) == 9 and len(tree.rows["id"]) == 9 and len(files.rows) == 1
    assert len(tree.metadata) == 9 and len(files.rows) == 2


def test_tables_are_checked_before_others_are_read(files, monkeypatch):
    names = files.listed("parts")
    for file, groups in (("index.parquet", files.indices), ("metadata.parquet", files.rows)):
        groups.clear()
        monkeypatch.setattr(reader, "_TOGETHER", sum(size_of(files, name, file) for name in names[:2]))
        rows = read_trees(files)["parts"].metadata
        assert [number for group in groups for number in group] == [name[:6] for name in names]
        assert len(groups[0]) == 2 and max(map(len, groups)) <= 2 and len(rows) == 9
        groups.clear()
        (files.here / "parts" / names[2] / file).write_bytes(b"\0" * size_of(files, names[2], file))
        with pytest.raises(IntegrityError, match=f"{names[2]}/{file}: seal"):
            read_trees(files)["parts"].metadata  # noqa: B018
        assert groups[0] == ["000001", "000002"] and not any("000006" in group for group in groups)
        shutil.rmtree(files.here)
        shutil.copytree(files.here.with_name("copy"), files.here)


def test_indices_that_are_too_large_together_are_not_read(files, monkeypatch):
    nbytes = sum(size_of(files, name) for name in files.listed("parts"))
    monkeypatch.setattr(limits, "MAX_FILE", nbytes - 1)
    with pytest.raises(IntegrityError, match=f"size of all indices: expected at most {nbytes - 1} bytes, got {nbytes}"):
        read_trees(files)
    assert not files.indices
    monkeypatch.setattr(limits, "MAX_FILE", nbytes)
    assert len(read_trees(files)["parts"].parts) == 6


def test_indices_are_bounded_together_in_memory(files, monkeypatch):
    """Each of many small files may unpack to some megabytes."""
    most = sum(read_part(files, "parts", name)[1].get_total_buffer_size() for name in files.listed("parts"))
    monkeypatch.setattr(limits, "indices_in", lambda nbytes: most)
    assert len(read_trees(files)["parts"].parts) == 6
    monkeypatch.setattr(limits, "indices_in", lambda nbytes: most - 1)
    with pytest.raises(IntegrityError, match=f"size in memory of all indices: expected at most {most - 1} bytes, got"):
        read_trees(files)


def test_columns_that_are_asked_for_at_once_are_bounded_and_their_rows_can_be_read(files, monkeypatch):
    rows = read_trees(files)["parts"].rows
    monkeypatch.setattr(limits, "columns_in", lambda nbytes: 100)
    assert len(rows.select(["seed"])) == 9
    with pytest.raises(
        IntegrityError, match=r"size in memory of the columns: expected at most 100 bytes, got .* fewer"
    ):
        rows.select(["id", "seed"])
    assert rows.take(["seed"], np.array([8, 0]))["seed"].to_pylist() == [8, 0]
    files.rows.clear()
    monkeypatch.setattr(reader, "_TOGETHER", 1)
    with pytest.raises(IntegrityError, match="size in memory of the columns"):
        read_trees(files)["parts"].rows.select(["id", "seed", "member"])
    assert len(files.rows) < 6  # the rest is not read any more

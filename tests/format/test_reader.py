"""Tables of many parts: each is checked before others are fetched, and together they are bounded."""

import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.format import reader, table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import read_part, read_rows
from ckptzoo.format.reader import read_trees


class Counted(Folder):
    """A folder that notes what is read together."""

    def __init__(self, root):
        super().__init__(root)
        self.groups = []

    def read_many(self, names, *, max_bytes=table.MAX_FILE):
        if names[0].startswith("parts/"):
            self.groups.append([name.split("/")[1][:6] for name in names[::2]])
        return super().read_many(names, max_bytes=max_bytes)


@pytest.fixture
def files(make_zoo):
    """A zoo of six parts."""
    return Counted(make_zoo((2, 1, 1, 3, 1, 1))[0])


def size_of(files, name):
    return sum((files.here / "parts" / name / file).stat().st_size for file in ("index.parquet", "metadata.parquet"))


def test_small_tables_are_read_at_once(files):
    tree = read_trees(files)["parts"]
    assert len(files.groups) == 1 and [part.rows for part in tree.parts] == [2, 1, 1, 3, 1, 1]


def test_tables_are_checked_before_others_are_read(files, monkeypatch):
    names = files.listed("parts")
    monkeypatch.setattr(reader, "_TOGETHER", sum(size_of(files, name) for name in names[:2]))
    rows = read_trees(files)["parts"].metadata
    assert [number for group in files.groups for number in group] == [name[:6] for name in names]
    assert len(files.groups[0]) == 2 and max(map(len, files.groups)) <= 2 and len(rows) == 9
    files.groups.clear()
    (files.here / "parts" / names[2] / "index.parquet").write_bytes(b"\0" * size_of(files, names[2]))
    with pytest.raises(IntegrityError, match=f"{names[2]}/index.parquet: seal"):
        read_trees(files)
    assert files.groups[0] == ["000001", "000002"] and not any("000004" in group for group in files.groups)


def test_tables_that_are_too_large_together_are_not_read(files, monkeypatch):
    nbytes = sum(size_of(files, name) for name in files.listed("parts"))
    monkeypatch.setattr(table, "MAX_FILE", nbytes - 1)
    with pytest.raises(IntegrityError, match=f"size of all tables: expected at most {nbytes - 1} bytes, got {nbytes}"):
        read_trees(files)
    assert not files.groups
    monkeypatch.setattr(table, "MAX_FILE", nbytes)
    assert len(read_trees(files)["parts"].parts) == 6


def test_tables_are_bounded_together_in_memory(files, monkeypatch):
    """Each of many small files may unpack to some megabytes."""
    parts = [read_part(files, "parts", name) for name in files.listed("parts")]
    indices = sum(index.get_total_buffer_size() for _, index in parts)
    rows = sum(read_rows(files, part).get_total_buffer_size() for part, _ in parts)
    monkeypatch.setattr(reader, "_MAX_TREE", most := max(indices, rows))
    assert len(read_trees(files)["parts"].parts) == 6
    monkeypatch.setattr(reader, "_MAX_TREE", most - 1)
    with pytest.raises(IntegrityError, match=f"size in memory of every .*: expected at most {most - 1} bytes, got"):
        read_trees(files)

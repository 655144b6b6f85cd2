"""Parquet files broken at random and sealed again: refused or read, never a crash, a hang or another exception."""

import contextlib
import hashlib
import random
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ckptzoo
from ckptzoo.errors import IntegrityError
from ckptzoo.format import limits, snapshot, table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import read_part
from ckptzoo.format.reader import read_trees
from ckptzoo.format.tree import LazyTable, Tree
from tests.conftest import MIXED, weights_of
from tests.support.effort import ALL

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "v1"


def sealed(data: bytes) -> bytes:
    at = data.rfind(b'"seal":"') + 8
    if at < 8:
        return data
    blank = data[:at] + b"0" * 64 + data[at + 64 :]
    return data[:at] + hashlib.sha256(blank).hexdigest().encode() + data[at + 64 :]


def hammer(folder: Path, cases: int, seed: int) -> None:
    """Runs in a process of its own, with bounded memory, so that a crash is seen."""
    import resource
    import warnings

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
    rng = random.Random(seed)
    files = sorted(folder.rglob("*.parquet"))
    for _ in range(cases):
        path = rng.choice(files)
        data = path.read_bytes()
        broken = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5, 20])):
            at = rng.randrange(len(broken))
            broken[at] = rng.choice([rng.randrange(256), 0, 255, broken[at] ^ 1 << rng.randrange(8)])
        made = sealed(bytes(broken))
        place = path
        if path.parent.name == "snapshots":
            place = path.with_name(f"{path.name[:7]}{hashlib.sha256(made).hexdigest()}.parquet")
            path.unlink()
        place.write_bytes(made)
        ckptzoo.verify(folder, deep=False)
        with contextlib.suppress(ckptzoo.ZooError):
            ckptzoo.open(folder).variants  # noqa: B018
        place.unlink()
        path.write_bytes(data)


@pytest.mark.slow
def test_malformed_tables_are_survived(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "zoo")
    command = [sys.executable, "-m", "tests.refuse.test_malformed_tables", str(tmp_path / "zoo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    hammer(Path(sys.argv[1]), cases=250 if ALL else 25, seed=0)


def texts_of(*values: bytes) -> pa.Array:
    """A column of texts that need not be UTF-8."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def times_of(*microseconds: int) -> pa.Array:
    return pa.array(microseconds, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


YEAR_10000 = 253_402_300_800_000_000
UNREADABLE = {
    "half a letter": ("id", texts_of(b"a", b"\xc3")),
    "a surrogate": ("extra", texts_of(b"{}", b"\xed\xa0\x80")),
    "no letters": ("recipe", texts_of(b"\xff\xfe", b"x")),
    "after the year 9999": ("created", times_of(0, YEAR_10000)),
    "the last time": ("created", times_of(2**63 - 1, 0)),
    "before the year 1": ("created", times_of(0, -62_135_596_800_000_001)),
}


@pytest.mark.parametrize("column", UNREADABLE)
@pytest.mark.parametrize("large", [False, True])
def test_values_that_python_has_none_of(make_zoo, monkeypatch, column, large):
    """Parquet's reader takes any bytes as a text, and any number as a time; in parts, small and large, and snapshots."""
    path, _ = make_zoo((2,))
    folder = next((path / "parts").iterdir())
    part, _ = read_part(Folder(path), "parts", folder.name)
    raw = read_trees(Folder(path))["parts"]
    name, values = UNREADABLE[column]
    place = raw.metadata.schema.get_field_index(name)
    rows = raw.metadata.set_column(place, raw.metadata.schema.field(name), values)
    (folder / "metadata.parquet").write_bytes(table.encode([rows], {"version": 1}, sealed=True))
    with monkeypatch.context() as patch:
        if large:
            # texts are then read as they are packed, each once, and measured before they are copied to every row
            sizes = [pq.read_metadata(file).row_group(0).total_byte_size for file in folder.glob("*.parquet")]
            patch.setattr(limits, "MAX_TABLE", max(sizes))
        with pytest.raises(IntegrityError, match=r"metadata.parquet: Parquet: expected a readable table"):
            ckptzoo.open(path).metadata  # noqa: B018
        assert any("metadata.parquet: Parquet: expected a readable" in str(problem) for problem in ckptzoo.verify(path))
    file, data = snapshot.encode({"parts": Tree((part,), LazyTable.of(rows), raw.blocks)})
    (path / "snapshots").mkdir()
    (path / file).write_bytes(data)
    copied = snapshot.Snapshot(Folder(path), file.rpartition("/")[2]).tree("parts")
    assert copied.rows["member"].to_pylist() == raw.rows["member"].to_pylist()
    with pytest.raises(IntegrityError, match="table"):
        copied.rows.select([name])


def test_the_first_and_the_last_time(make_zoo):
    path, _ = make_zoo((2,))
    times = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(MIXED, 2), [{"id": f"t{at}", "created": time} for at, time in enumerate(times)])
    assert ckptzoo.verify(path) == [] and ckptzoo.open(path).metadata["created"].to_pylist()[2:] == times

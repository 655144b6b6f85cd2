"""Rows of local shards that are not in memory: what the kernel is asked to read before anybody touches it."""

import ctypes
import mmap
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.format.writer import Writer
from ckptzoo.loader import readers
from ckptzoo.schema.architecture import Architecture, Tensor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mincore(2) and posix_fadvise(2) of Linux")
ROW = 2**18
ROWS = 12


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Rows of 256 KiB in shards of five, none of them in memory."""
    arch = Architecture("wide", (Tensor("weight", (ROW // 4,)),), None, None)
    ckptzoo.create(tmp_path / "zoo", arch=arch)
    values = np.arange(ROWS * ROW // 4, dtype=np.float32).reshape(ROWS, -1)
    with Writer(tmp_path / "zoo", arch, shard_bytes=5 * ROW) as writer:
        writer.add({"weight": values}, [{"id": f"net-{number}"} for number in range(ROWS)])
    for shard in shards(tmp_path / "zoo"):
        with shard.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_rows(tmp_path / "zoo"):
        pytest.skip("the file system keeps pages in memory")
    return tmp_path / "zoo"


def shards(zoo: Path) -> list[Path]:
    found = sorted(zoo.rglob("*.safetensors"))
    assert len(found) == 3
    return found


def resident_rows(zoo: Path) -> list[int]:
    """The rows of which all pages are in memory; rows end where their shard ends."""
    found: list[int] = []
    for number, shard in enumerate(shards(zoo)):
        size = shard.stat().st_size
        flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        with shard.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            address = ctypes.c_void_p(view.ctypes.data)
            assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), flags) == 0
            del view
        count = min(5, ROWS - 5 * number)
        for row in range(count):
            first = (size - (count - row) * ROW) // mmap.PAGESIZE
            last = (size - (count - row - 1) * ROW - 1) // mmap.PAGESIZE
            if all(flag & 1 for flag in flags[first : last + 1]):
                found.append(5 * number + row)
    return found


def becomes_resident(zoo: Path, expected: list[int]) -> bool:
    """Whether just these rows come into memory; the kernel reads ahead while nobody waits."""
    for _ in range(200):
        if set(resident_rows(zoo)) >= set(expected):
            return resident_rows(zoo) == expected
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("key", "expected"),
    [((slice(1, 4),), [1, 2, 3]), ((slice(0, 5, 2),), []), ((slice(1, 4), slice(3)), []), ((2,), [])],
    ids=["adjacent", "gaps", "a part of each", "a single one"],
)
def test_adjacent_rows_are_asked_for(zoo: Path, key: tuple[object, ...], expected: list[int]) -> None:
    weights = ckptzoo.open(zoo)["weight"][key]
    if expected:
        assert becomes_resident(zoo, expected)
    else:
        time.sleep(0.2)
        assert resident_rows(zoo) == []
    whole = np.arange(ROWS * ROW // 4, dtype=np.float32).reshape(ROWS, -1)
    np.testing.assert_array_equal(weights, whole[key])


def test_a_checkpoint_is_asked_for(zoo: Path) -> None:
    """Also where the page that it shares with a neighbour is in memory."""
    opened = ckptzoo.open(zoo)
    assert list(opened[6]) == ["weight"] and becomes_resident(zoo, [6])
    assert list(opened[7]) == ["weight"] and becomes_resident(zoo, [6, 7])


def test_runs_are_asked_for_as_they_come(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = ckptzoo.open(zoo).take(range(1, ROWS))["weight"].views()
    assert len(next(views)) == 4 and becomes_resident(zoo, [1, 2, 3, 4])
    monkeypatch.setattr(readers, "ADVISED_BYTES", 4 * ROW)  # of the next shard all five rows are wanted
    assert len(next(views)) == 5
    time.sleep(0.2)
    assert resident_rows(zoo) == [1, 2, 3, 4]

"""Blocks of results that are kept as files: what was stored comes back, and nothing else does."""

from pathlib import Path

import numpy as np
import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.format.saved_blocks import Arrays, SavedBlocks

ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "1" * 16 + "2" * 48
"""Two keys whose files have the same names."""


def arrays() -> Arrays:
    """Of several types and shapes, one of them not contiguous and one empty."""
    values = np.arange(6, dtype=np.float64).reshape(2, 3)
    return {"values": values.T, "flags": np.array([True, False]), "empty": np.zeros((0, 3), np.float32)}


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    saved = SavedBlocks(tmp_path / "a" / "b", ONE)
    assert not saved.has(7)
    saved.store(7, arrays(), {"columns": "3", "key": "none of theirs"})
    assert saved.has(7) and not saved.has(6)
    found, facts = SavedBlocks(tmp_path / "a" / "b", ONE).load(7)
    assert facts == {"columns": "3", "key": ONE, "number": "7"}
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        name: (array.dtype, array.tolist()) for name, array in arrays().items()
    }
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["1111111111111111-000007.safetensors"]


@pytest.mark.parametrize("place", [0, 9, 30, 40, 50, 70, 90, 120, 200, -1, -9, -40])
def test_no_bit_of_a_file_may_differ(tmp_path: Path, place: int) -> None:
    saved = SavedBlocks(tmp_path, ONE)
    saved.store(0, arrays(), {"columns": "3"})
    data = bytearray(saved.path(0).read_bytes())
    data[place] ^= 1
    saved.path(0).write_bytes(data)
    with pytest.raises(IntegrityError, match=r"000000\.safetensors: block: expected results of this one.* Remove the"):
        saved.load(0)


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_cut_files_are_refused(tmp_path: Path, size: int) -> None:
    saved = SavedBlocks(tmp_path, ONE)
    saved.store(0, arrays(), {})
    saved.path(0).write_bytes(saved.path(0).read_bytes()[:size])
    with pytest.raises(IntegrityError, match=r"000000\.safetensors: block"):
        saved.load(0)


def test_blocks_of_others_are_refused(tmp_path: Path) -> None:
    saved, other = SavedBlocks(tmp_path, ONE), SavedBlocks(tmp_path, OTHER)
    other.store(0, arrays(), {})
    with pytest.raises(IntegrityError, match="got those of another one"):
        saved.load(0)
    saved.store(0, arrays(), {})
    saved.path(1).write_bytes(saved.path(0).read_bytes())
    with pytest.raises(IntegrityError, match=r"000001\.safetensors.*got those of another one"):
        saved.load(1)

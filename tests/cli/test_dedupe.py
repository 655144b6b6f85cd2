"""Comparisons that processes share: the same result for any number of shares, blocks that are damaged or of others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import described_rows, duplicates
from ckptzoo.derive.near_copies import near_copies
from ckptzoo.errors import IntegrityError, ZooError
from tests.support.derived_zoos import ARCH, files_of, weights_of, written

COUNT, BLOCK = 23, 5


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """23 OptuNets in blocks of 5; the last is a copy of the first, and the one before rounds the second."""
    monkeypatch.setattr(described_rows, "BLOCK_BYTES", BLOCK * ARCH.nbytes)
    weights = weights_of(COUNT, 0)
    for array in weights.values():
        array[-1] = array[0]
        array[-2] = array[1].astype(np.float16)
    return written(tmp_path / "zoo", ARCH, weights)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_any_number_of_shares_finds_the_same(cli: Any, zoo: Path, tmp_path: Path, count: int) -> None:
    alone, before = cli("dedupe", zoo, "--json"), files_of(zoo)
    found = json.loads(alone.out)
    assert [item["ids"] for item in found["groups"]] == [["0", "22"]] and found["outputs"]["near"], found
    kept = ("--saved", tmp_path / "kept")
    for number in reversed(range(count)):
        ended = cli("dedupe", zoo, *kept, "--share", f"{number}/{count}")
        assert ended.code == 0, ended
    assert "kept: 10 of 10 blocks. The same command without --share has the result." in ended.out
    written_at = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert len(written_at) == 10
    assert cli("dedupe", zoo, *kept, "--json").out == alone.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()} == written_at
    assert files_of(zoo) == before


def test_a_comparison_that_was_stopped_goes_on(zoo: Path, tmp_path: Path) -> None:
    opened, kept = ckptzoo.open(zoo), tmp_path / "kept"

    class _StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 12:
            raise _StopError

    with pytest.raises(_StopError):
        duplicates.dedupe(opened, saved_in=kept, progress=stop)
    assert len(list(kept.iterdir())) == 2
    seen: list[tuple[int, int]] = []
    found = duplicates.dedupe(opened, saved_in=kept, progress=lambda *now: seen.append(now))
    assert found == duplicates.dedupe(opened) and len(list(kept.iterdir())) == 5
    assert seen[0] == (5, COUNT) and seen[-1] == (COUNT, COUNT) and seen == sorted(seen)


def test_others_may_keep_theirs_in_the_folder(zoo: Path, tmp_path: Path) -> None:
    kept, opened = tmp_path / "kept", ckptzoo.open(zoo)
    selections = (opened, opened.take(slice(0, 20)), opened.take(list(range(20))[::-1]))
    for number, selection in enumerate(selections, 1):
        found = near_copies(selection, saved_in=kept)
        assert found == near_copies(selection)
        assert duplicates.dedupe(selection, saved_in=kept) == duplicates.dedupe(selection)
        prefixes = {path.name[:16] for path in kept.iterdir()}
        assert len(prefixes) == 2 * number


@pytest.mark.parametrize("damage", ["cut", "other", "short"])
def test_damaged_blocks_are_refused(zoo: Path, tmp_path: Path, damage: str) -> None:
    opened, kept = ckptzoo.open(zoo), tmp_path / "kept"
    duplicates.dedupe(opened, saved_in=kept)
    first, *_, last = sorted(kept.iterdir())
    data = first.read_bytes()
    if damage == "cut":
        first.write_bytes(data[:-9])
    elif damage == "short":
        first.write_bytes(last.read_bytes())
    else:
        first.write_bytes(data.replace(b"sha256:", b"sha256;"))
    with pytest.raises(IntegrityError, match=rf"{first.name}: block: expected results of this one.* Remove the file"):
        duplicates.dedupe(opened, saved_in=kept)
    first.unlink()
    assert duplicates.dedupe(opened, saved_in=kept) == duplicates.dedupe(opened)


def test_what_is_refused(cli: Any, zoo: Path, tmp_path: Path) -> None:
    for option in (("--share", "0/2"), ("--on", "ray")):
        ended = cli("dedupe", zoo, *option)
        assert ended.code == 2 and "expected --saved FOLDER" in ended.err
    ended = cli("dedupe", zoo, "--saved", tmp_path / "kept", "--share", "2/2")
    assert ended.code == 2 and "I/N" in ended.err, ended
    with pytest.raises(ZooError, match="folder for blocks: expected one, to share them, got none"):
        duplicates.descriptions(ckptzoo.open(zoo)).share((0, 1))


def test_without_a_forward_function_the_weights_are_shared_alone(cli: Any, zoo: Path, tmp_path: Path) -> None:
    shapeless = ckptzoo.Architecture("optunet", ARCH.tensors, "optunet")
    path = written(tmp_path / "shapeless", shapeless, weights_of(7, 0))
    alone = cli("dedupe", path)
    assert "outputs were not compared" in alone.out
    for number in range(2):
        ended = cli("dedupe", path, "--saved", tmp_path / "kept", "--share", f"{number}/2")
    assert "2 of 2 blocks" in ended.out
    assert cli("dedupe", path, "--saved", tmp_path / "kept").out == alone.out

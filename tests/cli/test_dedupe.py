"""Comparisons that processes share: the same result for any number of shares, blocks that are damaged or of others."""

import errno
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.cli import derive as cli_derive
from ckptzoo.derive import described_rows, duplicates
from ckptzoo.derive.near_copies import near_copies, outputs
from ckptzoo.errors import IntegrityError, ZooError
from tests.support.derived_zoos import ARCH, files_of, run, weights_of, written

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


@pytest.mark.parametrize("count", [5, 1, 2, 9])
@pytest.mark.sampled(4)
def test_any_number_of_shares_finds_the_same(cli: Any, zoo: Path, tmp_path: Path, count: int) -> None:
    alone, before = cli("dedupe", zoo, "--json"), files_of(zoo)
    found = json.loads(alone.out)
    assert [item["ids"] for item in found["groups"]] == [["0", "22"]] and found["outputs"]["near"], found
    kept = ("--saved", tmp_path / "kept")
    shares = [cli("dedupe", zoo, *kept, "--share", f"{number}/{count}") for number in reversed(range(count))]
    assert all(ended.code == 0 for ended in shares), shares
    assert "kept: 10 of 10 blocks. The same command without --share has the result." in shares[-1].out
    written_at = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert len(written_at) == 10
    assert cli("dedupe", zoo, *kept, "--json").out == alone.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()} == written_at
    assert files_of(zoo) == before


@pytest.mark.parametrize("size", [4, 1, 5, 9])
@pytest.mark.sampled(4)
def test_blocks_are_the_same_bits_kept_or_not(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also of last blocks of one checkpoint, for which products of matrices may be rounded in another way."""
    monkeypatch.setattr(described_rows, "BLOCK_ROWS", size)
    opened = ckptzoo.open(zoo).take(slice(0, 21))
    for describe in (duplicates.descriptions, outputs):
        alone = describe(opened).arrays()
        kept = tmp_path / describe.__name__
        for number in (1, 2, 0):
            describe(opened, saved_in=kept).share((number, 3))
        shared = describe(opened, saved_in=kept).arrays()
        assert {name: array.tobytes() for name, array in shared.items()} == {
            name: array.tobytes() for name, array in alone.items()
        }


def test_blocks_are_bounded_in_bytes_and_in_rows(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = ckptzoo.open(zoo)
    assert [block.stop - block.start for block in duplicates.descriptions(opened).blocks] == [5, 5, 5, 5, 3]
    monkeypatch.setattr(described_rows, "BLOCK_ROWS", 4)
    assert [block.stop - block.start for block in outputs(opened).blocks] == [4, 4, 4, 4, 4, 3]


def test_each_share_has_its_part_of_both_passes(cli: Any, zoo: Path, tmp_path: Path) -> None:
    """Ten blocks are one each for ten processes, though each pass has five."""
    for number in range(10):
        ended = cli("dedupe", zoo, "--saved", tmp_path / "kept", "--share", f"{number}/10")
        assert f"kept: {number + 1} of 10 blocks" in ended.out and ("missing" in ended.out) == (number < 9)


@pytest.mark.exhaustive
def test_a_share_that_was_killed_is_repeated(cli: Any, zoo: Path, tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from ckptzoo.cli.app import run
from ckptzoo.derive import described_rows
from ckptzoo.format import durable
described_rows.BLOCK_BYTES = {described_rows.BLOCK_BYTES}
replace = durable.Path.replace
written = []
def killed(self, target):
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # the third block lies under its temporary name
    written.append(target)
    return replace(self, target)
durable.Path.replace = killed
run(sys.argv[1:])
"""
    alone, kept = cli("dedupe", zoo, "--json"), tmp_path / "kept"
    share = ("dedupe", str(zoo), "--saved", str(kept), "--share", "0/2")
    with run(code, *share) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    names = sorted(path.name for path in kept.iterdir())
    assert len(names) == 3 and names[0].startswith(".")
    assert "5 of 10 blocks" in cli(*share).out
    assert "10 of 10 blocks" in cli(*share[:-1], "1/2").out
    assert cli("dedupe", zoo, "--saved", kept, "--json").out == alone.out


@pytest.mark.exhaustive
def test_another_zoo_with_the_same_ids_keeps_its_own(zoo: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    other = written(tmp_path / "other", ARCH, weights_of(COUNT, 1))
    for path in (zoo, other, zoo):
        opened = ckptzoo.open(path)
        assert duplicates.dedupe(opened, saved_in=kept) == duplicates.dedupe(opened)
        assert near_copies(opened, saved_in=kept) == near_copies(opened)
    assert duplicates.dedupe(ckptzoo.open(zoo)).groups and not duplicates.dedupe(ckptzoo.open(other)).groups
    assert len(list(kept.iterdir())) == 20


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


@pytest.mark.exhaustive
def test_others_may_keep_theirs_in_the_folder(zoo: Path, tmp_path: Path) -> None:
    kept, opened = tmp_path / "kept", ckptzoo.open(zoo)
    selections = (opened, opened.take(slice(0, 20)), opened.take(list(range(20))[::-1]))
    for number, selection in enumerate(selections, 1):
        found = near_copies(selection, saved_in=kept)
        assert found == near_copies(selection)
        assert duplicates.dedupe(selection, saved_in=kept) == duplicates.dedupe(selection)
        prefixes = {path.name[:16] for path in kept.iterdir()}
        assert len(prefixes) == 2 * number


@pytest.mark.parametrize("damage", ["cut", "other", "short", "moved", "flipped"])
def test_damaged_blocks_are_refused(zoo: Path, tmp_path: Path, damage: str) -> None:
    opened, kept = ckptzoo.open(zoo), tmp_path / "kept"
    duplicates.dedupe(opened, saved_in=kept)
    first, second, *_, last = sorted(kept.iterdir())
    data = first.read_bytes()
    if damage == "cut":
        first.write_bytes(data[:-9])
    elif damage == "short":
        first.write_bytes(last.read_bytes())
    elif damage == "moved":
        first.write_bytes(second.read_bytes())
    elif damage == "flipped":
        first.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    else:
        first.write_bytes(data.replace(b"sha256:", b"sha256;"))
    with pytest.raises(IntegrityError, match=rf"{first.name}: block: expected results of this one.* Remove the file"):
        duplicates.dedupe(opened, saved_in=kept)
    first.unlink()
    assert duplicates.dedupe(opened, saved_in=kept) == duplicates.dedupe(opened)


def test_damaged_outputs_are_no_reason_to_leave_them_out(cli: Any, zoo: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    near_copies(ckptzoo.open(zoo), saved_in=kept)
    first = min(kept.iterdir())
    first.write_bytes(first.read_bytes()[:-9])
    for share in ((), ("--share", "0/1")):
        ended = cli("dedupe", zoo, "--saved", kept, *share)
        assert ended.code == 3 and first.name in ended.err and "Remove the file" in ended.err, ended


def test_without_torch_the_weights_are_shared_alone(
    cli: Any, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    alone = cli("dedupe", zoo)
    assert "outputs were not compared: torch is not installed" in alone.out
    ended = cli("dedupe", zoo, "--saved", tmp_path / "kept", "--share", "0/1")
    assert ended.code == 0 and "5 of 5 blocks" in ended.out, ended
    assert cli("dedupe", zoo, "--saved", tmp_path / "kept").out == alone.out


def test_what_is_printed_is_bounded(cli: Any, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(4, 5)
    copies = {name: np.concatenate([array[[0, 0, 0, 1, 1, 1]], array[2:4]]) for name, array in weights.items()}
    with ckptzoo.append(zoo) as writer:
        writer.add(copies, [{"id": f"copy{at}"} for at in range(8)])
    whole = json.loads(cli("dedupe", zoo, "--json").out)
    assert [len(group["ids"]) for group in whole["groups"]] == [2, 3, 3]
    assert whole["outputs"]["found"] == len(whole["outputs"]["near"]) > 7
    monkeypatch.setattr(cli_derive, "_MAX_PAIRS", 2)
    monkeypatch.setattr(cli_derive, "_MAX_NAMED", 2)
    lines = cli("dedupe", zoo).out.splitlines()
    assert lines[:3] == ["the same: 0, 22", "the same: copy0, copy1, and 1 more", "1 more group; --json lists all."]
    monkeypatch.setattr(cli_derive, "_MAX_PAIRS", 0)
    others = len(whole["outputs"]["near"]) - 7
    assert f"{others} more pair{'s' if others > 1 else ''}; --json lists the nearest" in cli("dedupe", zoo).out


def test_a_full_disk_is_said(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class _Full:
        def write(self, data: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def full(dir: Path) -> Iterator[_Full]:
        yield _Full()

    monkeypatch.setattr(described_rows.tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match=r"No space left on device\. .*kept"):
        near_copies(ckptzoo.open(zoo), saved_in=tmp_path / "kept")


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
    shares = [cli("dedupe", path, "--saved", tmp_path / "kept", "--share", f"{number}/2") for number in range(2)]
    assert "2 of 2 blocks" in shares[-1].out
    assert cli("dedupe", path, "--saved", tmp_path / "kept").out == alone.out

"""Files that appear whole or not at all."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from builders.__main__ import run
from ckptzoo.cli.app import run as command
from ckptzoo.errors import ZooError
from ckptzoo.format.durable import TEMPORARY, check_replaceable, publish_file, sweep, temporary_file, write_file
from tests.faults.disks import disk


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_file(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """A device's name would become that of a file for the whole machine; nothing is written in /dev here."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name, got in (("folder", "a folder"), ("pipe", "a device or a pipe"), ("link", "a device or a pipe")):
        with pytest.raises(ZooError, match=f"output: expected a file, or nothing there yet, got {got}"):
            write_file(tmp_path / name, b"data")
    for path in ("/dev/null", "/dev/stdout", "/dev/none"):
        with pytest.raises(ZooError, match="got a device or a pipe"):
            check_replaceable(Path(path))
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 3


ROOM = r"No space left on device\. Make room there, or choose a folder on another disk, and repeat\."


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    arch = ckptzoo.Architecture("wide", (ckptzoo.Tensor("w", (1000,)),))
    with disk(tmp_path / "disk", 100_000) as place:
        with pytest.raises(OSError, match=ROOM) as caught:
            write_file(place.path / "file", bytes(200_000))
        assert caught.value.filename == str(place.path / "file") and list(place.path.iterdir()) == []
        zoo = place.path / "zoo"
        with ckptzoo.create(zoo, arch=arch) as writer:
            writer.add({"w": np.zeros((2, 1000), "float32")}, [{"id": "a"}, {"id": "b"}])
        with pytest.raises(OSError, match=ROOM) as caught, ckptzoo.append(zoo) as writer:
            writer.add({"w": np.ones((50, 1000), "float32")}, [{"id": f"c{at}"} for at in range(50)])
        assert caught.value.filename == str(zoo / "parts") and ckptzoo.verify(zoo) == []
        (place.path / "rest").write_bytes(bytes(place.free))
        with pytest.raises(OSError, match=ROOM) as caught:
            ckptzoo.create(place.path / "other", arch=arch)
        assert caught.value.filename == str(place.path / "other") and not (place.path / "other").exists()


@pytest.mark.parametrize(
    ("number", "step"), [(errno.ENOSPC, " Make room"), (errno.EDQUOT, " Make room"), (errno.EIO, "")]
)
def test_an_error_without_a_file_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, step: str
) -> None:
    with ckptzoo.create(tmp_path / "zoo", arch=ckptzoo.Architecture("one", (ckptzoo.Tensor("w", (1,)),))) as writer:
        writer.add({"w": np.zeros((1, 1), "float32")}, [{"id": "a"}])

    def fsync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    target = tmp_path / "a.safetensors"
    assert command(["export", str(tmp_path / "zoo"), "a", "-o", str(target)]) == 4
    said = capsys.readouterr().err
    assert said.startswith(f"ckptzoo: error: {target}: path: expected ") and f", got {os.strerror(number)}. " in said
    assert step in said and not target.exists()
    with pytest.raises(OSError, match=os.strerror(number)) as caught, ckptzoo.append(tmp_path / "zoo") as writer:
        writer.add({"w": np.zeros((1, 1), "float32")}, [{"id": "b"}])
    assert caught.value.filename == str(tmp_path / "zoo" / "parts")


def test_a_folder_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "none", tmp_path / "file", tmp_path / "file" / "none"):
        with pytest.raises(ZooError) as caught:
            write_file(folder / "x.npy", b"data")
        assert str(caught.value) == f"{folder}: folder: expected one to write x.npy to, got none. Make it first."
    assert run(["inputs", "toy", "-o", str(tmp_path / "none" / "x.npy")]) == 2
    assert f"builders: error: {tmp_path / 'none'}: folder: expected one" in capsys.readouterr().err


def test_files_of_dead_processes_are_swept_and_those_of_live_ones_are_left(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY}dead").write_bytes(b"left by a process that was killed")
    with temporary_file(tmp_path) as (temporary, file):
        sweep(tmp_path)
        assert list(tmp_path.iterdir()) == [temporary]
        publish_file(file, temporary, tmp_path / "made")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]

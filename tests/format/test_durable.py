"""Files that appear whole or not at all."""

from pathlib import Path

import pytest

from builders.__main__ import run
from ckptzoo.errors import ZooError
from ckptzoo.format.durable import write_file


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_file(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "none", tmp_path / "file", tmp_path / "file" / "none"):
        with pytest.raises(ZooError) as caught:
            write_file(folder / "x.npy", b"data")
        assert str(caught.value) == f"{folder}: folder: expected one to write x.npy to, got none. Make it first."
    assert run(["inputs", "toy", "-o", str(tmp_path / "none" / "x.npy")]) == 2
    assert f"builders: error: {tmp_path / 'none'}: folder: expected one" in capsys.readouterr().err

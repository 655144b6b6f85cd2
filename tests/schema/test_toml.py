"""Files in TOML that people write: what cannot be parsed is a sentence that names the file, never Python's own error."""

from pathlib import Path

import pytest

from builders.cli.app import run as builders_run
from ckptzoo.cli.app import run
from ckptzoo.errors import SpecError
from ckptzoo.schema.documents import MAX_TOML, read_toml

DAMAGED = {
    "a number of 5,000 digits": b"seed = " + b"1" * 5000,
    "3,000 nested lists": b"seed = " + b"[" * 3000,
    "no UTF-8": b"seed = '\xff'",
    "half a line": b"seed =",
    "too many bytes": b"#" * (MAX_TOML + 1),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files_are_named(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(DAMAGED[kind])
    with pytest.raises(SpecError, match=r"mine\.toml"):
        read_toml(path, expected="settings", step="Correct it.")
    source = tmp_path / "net.pt"
    source.write_bytes(b"x")
    named = ["import", str(source), "--to", str(tmp_path / "zoo"), "--names", str(path)]
    for arguments in (
        ["contribute", str(source), "--to", "org/zoo", "--card", str(path)],
        *([] if kind == "too many bytes" else [named]),  # tables of names may be large
    ):
        assert run(arguments) != 0
        shown = capsys.readouterr().err
        assert "mine.toml" in shown and "Traceback" not in shown
    assert builders_run(["build", str(path), "--members", "4", "--to", str(tmp_path / "zoo")]) != 0
    shown = capsys.readouterr().err
    assert "mine.toml" in shown and "Traceback" not in shown


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\n")
    assert read_toml(path, expected="settings", step="Correct it.") == {"seed": 3}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: file: expected settings, got No such file"):
        read_toml(tmp_path / "none.toml", expected="settings", step="Correct it.")

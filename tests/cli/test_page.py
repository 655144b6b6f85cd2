"""``ckptzoo page``: what it writes, prints and refuses."""

from pathlib import Path
from typing import Any

import pytest

from ckptzoo.schema.explorer import is_released
from tests.support.explorer_pages import payload_of


def test_page_writes_a_file_and_says_what_it_shows(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    output = tmp_path / "page.html"
    ended = cli("page", path, "-o", output)
    assert ended.code == 0 and ended.err == ""
    assert ended.out.startswith(f"{output}: ") and "12 members; 2 without places among the weights, raw" in ended.out
    assert is_released(output.read_bytes())
    ended = cli("page", path, "-o", output, "--layers", "fc,conv1", "--where", "seed < 6", "--max-rows", 4, "--json")
    found = ended.json
    assert (found["members"], found["total"], found["layers"]) == (4, 6, ["conv1", "fc"])
    assert found["nbytes"] == output.stat().st_size and found["path"] == str(output)
    assert payload_of(output).header["code"] == "zoo.where('seed < 6')"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "expected one of -o FILE and --in-place, got none"),
        (["-o", "page.html", "--in-place"], "expected one of -o FILE and --in-place, got both"),
        (["-o", "."], "output: expected a file, got a folder"),
        (["-o", "page.html", "--layers", "fd"], "layer 'fd': expected one of conv1, conv2, fc"),
        (["-o", "none/page.html"], "expected one to write page.html to, got none. Make it first."),
        (["-o", "page.html", "--max-rows", "0"], "Invalid value for '--max-rows'"),
        (["-o", "page.html", "--where", "accuracy > 1"], "column 'accuracy'"),
    ],
)
def test_page_says_what_is_wrong(
    cli: Any, optunets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = cli("page", optunets[0], *options)
    assert ended.code == 2 and said in ended.line
    assert not (tmp_path / "page.html").exists()


def test_page_of_a_zoo_elsewhere_is_not_written_in_place(cli: Any, tmp_path: Path) -> None:
    ended = cli("page", tmp_path / "none", "--in-place")
    assert ended.code == 2 and "expected a zoo's folder, got nothing" in ended.line

"""card."""

from pathlib import Path
from typing import Any

import ckptzoo


def test_card_writes_the_page_and_says_what_changed(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    assert cli("card", path, "--check").code == 1
    ended = cli("card", path)
    assert ended.code == 0 and "+| checkpoints | **12** of 12 members |\n" in ended.out
    assert ended.out.splitlines()[-1].startswith(f"{path / 'README.md'}: written, ")
    assert "**12** of 12" in (path / "README.md").read_text(encoding="utf-8")
    again = cli("card", path, "--check")
    assert (again.code, again.out) == (0, f"{path}: the page is as it should be.\n")

    (tmp_path / "mine.toml").write_text('name = "nets"\nsummary = "Twelve\\u001b[31m nets."\n')
    before = (path / "README.md").read_bytes()
    checked = cli("card", path, "--card", tmp_path / "mine.toml", "--check")
    assert checked.code == 1 and "the page differs: 3 lines to add, 1 to remove." in checked.out
    assert (path / "README.md").read_bytes() == before
    found = cli("card", path, "--card", tmp_path / "mine.toml", "--json").json
    assert found["written"] and "+Twelve \\[31m nets." in found["changes"]
    assert cli("card", path, "--check").code == 0 and ckptzoo.verify(path) == []


def test_card_refuses_what_it_cannot_use(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    (tmp_path / "mine.toml").write_text('name = "nets"\nlicence = "mit"\n')
    refused = cli("card", path, "--card", tmp_path / "mine.toml")
    assert refused.code == 3 and "got licence" in refused.line
    (path / "card.toml").unlink()
    lacking = cli("card", path)
    assert (
        lacking.code == 3 and "card.toml: file: expected a card in TOML, got none. Pass one with --card" in lacking.line
    )
    assert cli("card", tmp_path / "nothing").code == 2

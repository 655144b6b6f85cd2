"""``ckptzoo release`` and ``ckptzoo cite``."""

from typing import Any

import ckptzoo


def test_make_list_and_cite(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    assert cli("release", path).out == f"{path}: no releases; ckptzoo release {path} NAME makes one.\n"
    revision = ckptzoo.open(path).revision
    ended = cli("release", path, "2026-12", "--notes", "All\n\x1btwelve.")
    assert (ended.code, ended.out) == (0, f"{path}: 2026-12 is revision {revision}.\n")
    listed = cli("release", path).out
    assert "2026-12" in listed and "All \\x1btwelve." in listed and revision[:19] in listed
    (item,) = cli("release", path, "--json").json["releases"]
    assert item["name"] == "2026-12" and item["revision"] == revision
    ckptzoo.retract(path, ["net-001"], reason="a test")
    found = cli("cite", path, "--revision", "stable", "--where", "seed < 5", "--json").json
    assert (found["version"], found["checkpoints"], found["total"]) == ("2026-12", 5, 12)
    text = cli("cite", path, "--revision", "stable", "--where", "seed < 5").out
    assert text == found["bibtex"] + "\n" and "version = {2026-12}" in text
    assert "version" not in cli("cite", path).out


def test_bad_input_is_one_line(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    assert "name: expected small letters, digits" in cli("release", path, "A B").line
    assert "--notes: expected NAME before it" in cli("release", path, "--notes", "a").line
    assert "release 'stable': expected one of (none)" in cli("cite", path, "--revision", "stable").line
    cli("release", path, "one")
    ckptzoo.retract(path, ["net-001"], reason="a test")
    assert "Choose another name: a release never changes." in cli("release", path, "one").line

"""info, verify and show: what they print, and what they exit with."""

import json
from pathlib import Path
from typing import Any

import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.studies.inventory import inventory


def test_info_says_what_the_zoo_is(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("info", path)
    assert ended.code == 0 and ended.err == ""
    for word in ("optunet: 392 parameters", "12 (12 members, 2 diverged, 1 not finite)", "digits", "raw"):
        assert word in ended.out
    assert "mean 85.40%" in ended.out and "80.00% to 91.00% (10 checkpoints)" in ended.out


def test_info_as_json_is_the_inventory(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("info", path, "--json")
    assert ended.code == 0 and ended.out.count("\n") == 1
    expected = inventory(ckptzoo.open(path)).to_json()
    assert ended.json == json.loads(json.dumps(expected))


def test_where_selects(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("info", path, "--where", "test_accuracy > 0.825 and seed < 8", "--json")
    assert (ended.json["checkpoints"], ended.json["total"]) == (5, 12)
    assert "0 of 12 (0 members)" in cli("info", path, "--where", "seed > 100").out


def test_nothing_is_cut_or_coloured_off_the_terminal(cli: Any, optunets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    path, _ = optunets
    long = path.rename(path.with_name("long-name-" * 20))
    ended = cli("info", long)
    assert str(long) in ended.out and "\x1b" not in ended.out and "…" not in ended.out


def test_a_retracted_checkpoint_is_one_line_on_stderr(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ckptzoo.retract(path, ["net-001"], reason="wrong data")
    ended = cli("info", path, "--json")
    assert ended.code == 0 and ended.json["retracted"] == 1
    assert ended.line.startswith("ckptzoo: warning: nets: 1 ") and "retracted" in ended.line


def test_verify_of_a_sound_zoo(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    ended = cli("verify", path)
    assert (
        ended.code == 0
        and ended.out.endswith(
            "no problem found; every byte was checked but those of the card, its pictures and pages/explorer.html, which have no digest.\n"
        )
        and not ended.err
    )
    assert cli("verify", path, "--json").json == {"zoo": str(path), "deep": True, "problems": [], "waiting": 0}


def test_verify_finds_a_flipped_byte_and_exits_1(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    shard = sorted(path.glob("parts/*/*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    ended = cli("verify", path)
    *problems, summary = ended.out.splitlines()
    assert ended.code == 1 and len(problems) == 2 and summary.endswith(": 2 problems found.")
    assert all(shard.name in line and "expected" in line for line in problems)
    found = cli("verify", path, "--json")
    assert (
        found.code == 1
        and [set(item) for item in found.json["problems"]] == [{"where", "what", "expected", "got", "next_step"}] * 2
    )
    shallow = cli("verify", path, "--shallow", "--json")
    assert shallow.code == 0 and shallow.json["problems"] == [] and shallow.json["deep"] is False


@pytest.mark.exhaustive
def test_show_draws_into_a_folder(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    derive(path, gauge="first-weight", certify="none")
    ended = cli("show", path, "-o", tmp_path / "drawn")
    names = ["accuracy.png", "marginals.png", "scatter.png", "summary.json"]
    assert ended.code == 0 and ended.out.splitlines()[-4:] == [str(tmp_path / "drawn" / name) for name in names]
    assert "first-weight: mean" in ended.out
    assert sorted(file.name for file in (tmp_path / "drawn").iterdir()) == names


def test_show_takes_where_variant_and_json(
    cli: Any, optunets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = optunets
    monkeypatch.chdir(tmp_path)
    ended = cli("show", path, "--where", "seed < 6", "--variant", "raw", "--json")
    assert ended.code == 0 and ended.json["shown"] == 5 and ended.json["variants"] == ["raw"]
    assert ended.json["files"][-1] == "nets-pictures/summary.json" and Path(ended.json["files"][-1]).exists()


def test_show_of_nothing_sound(cli: Any, optunets: Any, tmp_path: Path) -> None:
    path, _ = optunets
    ended = cli("show", path, "--where", "diverged == True", "-o", tmp_path / "drawn")
    assert ended.code == 2 and "got none of 2" in ended.line and not (tmp_path / "drawn").exists()

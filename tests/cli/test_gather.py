"""``ckptzoo gather``, and what other commands say of checkpoints that wait."""

from pathlib import Path

from ckptzoo.recording.units import member_folder, unit_path
from tests.cli.conftest import Cli
from tests.recording.test_gather import flip, recorded


def test_gathering(tmp_path: Path, cli: Cli) -> None:
    zoo = recorded(tmp_path / "zoo")
    flip(unit_path(member_folder(zoo, "c"), 2))
    waits = f"9 recorded checkpoints not gathered yet: ckptzoo gather {zoo}"
    assert waits in cli("info", zoo).out.replace("\n", " ") and waits in cli("verify", zoo).out
    assert cli("info", zoo, "--json").json["waiting"] == cli("verify", zoo, "--json").json["waiting"] == 9
    shown = cli("gather", zoo)
    assert shown.code == 1 and f"{zoo}: 8 checkpoints of 3 members added in 1 part." in shown.out
    assert "saved work: expected bytes with the digest" in shown.out
    shown = cli("gather", zoo, "--json")
    assert shown.code == 1 and shown.json["checkpoints"] == 0
    assert [problem["what"] for problem in shown.json["problems"]] == ["saved work"]
    assert "expected --contribute and --card together" in cli("gather", zoo, "--contribute", "a/b").line
    unit_path(member_folder(zoo, "c"), 2).unlink()
    shown = cli("gather", zoo)
    assert (shown.code, shown.out) == (0, f"{zoo}: 0 checkpoints of 0 members added; nothing waits.\n")
    assert "not gathered" not in cli("info", zoo).out

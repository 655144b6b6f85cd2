"""A zoo that is sound, behind, damaged, elsewhere or no zoo, and the command with its exit code."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.cli.app import run as run_command
from ckptzoo.derive import derive
from ckptzoo.doctor import NOTE, OK, PROBLEM, Check, examine, zoo
from ckptzoo.schema import layout
from tests.support.hosted import hosted
from tests.support.hub_zoos import grown, zoo_of


def found(path: Path | str) -> dict[str, Check]:
    return {check.name: check for check in zoo.checks(str(path))}


@pytest.fixture
def derived(tmp_path: Path) -> Path:
    """Two parts, in unit-norm."""
    path = zoo_of(tmp_path / "zoo")
    derive(path, gauge="unit-norm", certify="none")
    return path


def test_a_sound_zoo(derived: Path) -> None:
    checks = found(derived)
    assert {check.outcome for check in checks.values()} == {OK}
    assert checks["zoo"].detail == "zoo: 5 checkpoints of optunet in 2 parts, format 1"
    assert checks["snapshot"].detail == "none: opening reads 4 parts"
    assert checks["variant unit-norm"].detail == "5 checkpoints"
    assert checks["one block"].detail.startswith("256 B of conv1.weight in parts/000002-")
    ckptzoo.compact(derived)
    assert found(derived)["snapshot"] == Check("snapshot", OK, "covers 4 of 4 parts")


def test_what_came_later_is_not_derived_and_not_in_the_snapshot(derived: Path) -> None:
    ckptzoo.compact(derived)
    grown(derived, (1,) * 9, start=2)
    checks = found(derived)
    assert {check.outcome for check in checks.values()} == {OK, NOTE}
    step = f"ckptzoo derive {derived} --gauge unit-norm"
    assert checks["variant unit-norm"] == Check("variant unit-norm", NOTE, "5 of 14 checkpoints; 9 came later", step)
    step = f"ckptzoo compact {derived}"
    assert checks["snapshot"] == Check("snapshot", NOTE, "covers 4 of 13 parts", step)


def test_retracted_checkpoints_are_no_lack(derived: Path) -> None:
    ckptzoo.retract(derived, ["m0-1"], reason="a mistake")
    listed = list(zoo.checks(str(derived)))
    (note,) = [check for check in listed if check.outcome == NOTE]
    assert "1 of 5 checkpoints retracted" in note.detail
    assert Check("variant unit-norm", OK, "5 checkpoints") in listed


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_byte_of_the_weights(derived: Path) -> None:
    shard = max(derived.glob("parts/*/raw-00.safetensors"))
    start = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
    flip(shard, start)
    check = found(derived)["one block"]
    assert check.outcome == PROBLEM and f"{shard.parent.name}/raw-00.safetensors: sha256" in check.detail
    assert check.step == f"ckptzoo verify {derived} lists all that is damaged."


def test_a_byte_of_a_document_an_index_and_a_snapshot(derived: Path) -> None:
    ckptzoo.compact(derived)
    (snapshot,) = (derived / layout.SNAPSHOTS).iterdir()
    flip(snapshot, 100)
    check = found(derived)["snapshot"]
    assert check.outcome == PROBLEM and snapshot.name in check.detail and "ckptzoo compact" in check.step
    snapshot.unlink()
    flip(max(derived.glob("derived/unit-norm/*/index.parquet")), 300)
    checks = found(derived)
    assert checks["zoo"].outcome == OK and checks["variant unit-norm"].outcome == PROBLEM
    flip(derived / layout.ZOO, 30)
    checks = found(derived)
    assert list(checks) == ["file system of the zoo", "zoo"]
    assert checks["zoo"].outcome == PROBLEM and "ckptzoo verify" in checks["zoo"].step


def test_a_lost_shard(derived: Path) -> None:
    max(derived.glob("parts/*/raw-00.safetensors")).unlink()
    checks = found(derived)
    assert checks["zoo"].outcome == PROBLEM and "raw-00.safetensors" in checks["zoo"].detail


@pytest.mark.parametrize("name", ["", "nothing", "file"])
def test_what_is_no_zoo(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (check,) = zoo.checks(str(tmp_path / name))
    assert check.outcome == PROBLEM


def test_an_empty_zoo_and_one_without_raw_weights(tmp_path: Path, derived: Path) -> None:
    assert found(zoo_of(tmp_path / "empty", ()))["one block"].detail == "none: there are no weights"
    ckptzoo.pull(derived, tmp_path / "bare", variants=["unit-norm"])
    checks = found(tmp_path / "bare")
    assert {check.outcome for check in checks.values()} == {OK}
    assert "in derived/unit-norm/" in checks["one block"].detail


@pytest.mark.exhaustive
@pytest.mark.usefixtures("isolated_clients")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_a_zoo_on_a_hub(derived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path / "served") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", server.tokens["write"])
        server.api().create_repo("lab/zoo", repo_type="dataset", private=True)
        server.api().upload_folder(folder_path=derived, repo_id="lab/zoo", repo_type="dataset")
        examination = examine("lab/zoo")
        checks = {check.name: check for check in examination.checks}
        assert examination.problems == 0 and "lab, role write" in checks["token"].detail
        assert checks["one block"].outcome == OK and checks["variant unit-norm"].outcome == OK
        monkeypatch.setenv("HF_TOKEN", server.tokens["contribute"])
        examination = examine("lab/zoo")
        assert examination.problems == 1 and examination.checks[-1].name == "zoo"
        assert not any(token in str(examination) for token in server.tokens.values())


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """``ckptzoo doctor``, to its exit code and everything that it prints."""

    def called(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        code = run_command(["doctor", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.err + captured.out

    return called


@pytest.mark.exhaustive
@pytest.mark.usefixtures("isolated_clients")
def test_the_command_ends_with_0_or_1(run: Run, derived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTZOO_OFFLINE", "1")
    code, shown = run(derived)
    assert code == 0, shown
    outcomes = {line.split(maxsplit=1)[0] for line in shown.splitlines() if line[:1].isalpha()}
    assert {"ok", "note"} == outcomes
    assert shown.splitlines()[-1].startswith("0 problems, ")
    assert run()[0] == 0
    flip(derived / layout.ZOO, 30)
    code, shown = run(derived, "--json")
    told = json.loads(shown)
    assert code == 1 and told["problems"] == 1
    assert [item["name"] for item in told["checks"] if item["outcome"] == PROBLEM] == ["zoo"]
    assert set(told["checks"][0]) == {"name", "outcome", "detail", "step"}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("isolated_clients")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_secret_is_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    token, password = "hf_QWERTYuiopASDFghjkl", "passw0rd"
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:{password}@127.0.0.1:1")
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / token))
    for address in (f"http://me:{password}@127.0.0.1:1/{token}", tmp_path / token):
        code, shown = run(address, *options)
        assert code == 1 and token not in shown and password not in shown and "***" in shown


def test_a_notebook_shows_it_as_a_table() -> None:
    from ckptzoo.doctor import Examination
    from tests.support.html_checks import shown_text

    text = shown_text(Examination((Check("hub", PROBLEM, "no <answer>", "Try again."),))._repr_html_())
    assert "no <answer>" in text and "1 problem, 0 notes." in text

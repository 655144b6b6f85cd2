"""``ckptzoo card`` for a zoo on a hub: page and snapshot for what the repository holds."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import HubError, SpecError
from ckptzoo.hub.client import Client, HubRetryPolicy
from ckptzoo.hub.push import Refreshed, rewrite
from ckptzoo.schema.card import Card
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import assert_generated_page, downloaded, inject_faults, pushed

Make = Callable[..., Path]
QUICK = HubRetryPolicy(max_attempts=2, first_pause=0.01)


def rewritten(server: Hosted, card: Card | None = None, role: str = "write", *, check: bool = False) -> Refreshed:
    return rewrite(ZOO, card, check=check, endpoint=server.url, token=server.tokens[role], retry_policy=QUICK)


def by_hand(server: Hosted, zoo: Path) -> Client:
    """The files of a zoo on a hub as the client library puts them there: no snapshot, and a page of before."""
    api = server.api()
    api.create_repo(ZOO, repo_type="dataset")
    api.upload_folder(repo_id=ZOO, repo_type="dataset", folder_path=zoo)
    return Client(server.url, server.tokens["write"])


def test_page_and_snapshot_are_made_in_one_commit(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    client = by_hand(server, make_zoo())
    head = client.head(ZOO)
    checked = rewritten(server, role="read", check=True)
    assert checked.commit is None and "+| checkpoints | **5** of 5 members |" in checked.changes
    assert client.head(ZOO) == head
    found = rewritten(server)
    assert found.commit == client.head(ZOO) and found.changes == checked.changes and found.url is None
    assert client.commits(ZOO)[1] == head
    down = downloaded(server, tmp_path)
    assert assert_generated_page(down) == found.text and ckptzoo.verify(down) == []
    assert [path.name[:6] for path in (down / "snapshots").iterdir()] == ["000002"]
    again = rewritten(server)
    assert again.commit is None and again.changes == () and again.text == found.text


def test_what_a_push_left_needs_nothing(server: Hosted, make_zoo: Make) -> None:
    pushed(server, make_zoo())
    assert rewritten(server, role="read").commit is None


@pytest.mark.exhaustive
def test_another_card_is_kept(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    pushed(server, make_zoo())
    card = Card("zoo", summary="In other words.", license="mit")
    assert rewritten(server, card).commit is not None
    down = downloaded(server, tmp_path)
    assert Card.from_toml(down / "card.toml") == card and "In other words." in assert_generated_page(down)
    assert rewritten(server, card).commit is None
    with pytest.raises(SpecError, match="expected 'zoo', got 'other'"):
        rewritten(server, Card("other"))


def test_without_a_card(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    (zoo / "card.toml").unlink()
    client = by_hand(server, zoo)
    head = client.head(ZOO)
    with pytest.raises(SpecError, match=r"card\.toml: file: expected a card in TOML, got none\. Pass one with --card"):
        rewritten(server)
    assert client.head(ZOO) == head
    assert rewritten(server, Card("zoo")).commit is not None


@pytest.mark.exhaustive
def test_a_lost_race_is_run_again(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    client = by_hand(server, make_zoo())
    with inject_faults(server, at=(0, 1), kinds=("conflict",)):
        found = rewritten(server)
    assert found.commit == client.head(ZOO)
    assert_generated_page(downloaded(server, tmp_path))
    with inject_faults(server, rate=1.0, kinds=("conflict",)), pytest.raises(HubError, match="one of 16 races won"):
        rewritten(server, Card("zoo", summary="Never."))


@pytest.mark.parametrize("role", ["read", "contribute"])
def test_who_may_not_write(server: Hosted, make_zoo: Make, role: str) -> None:
    by_hand(server, make_zoo())
    with pytest.raises(HubError, match=r"\. Use a token that may write there\."):
        rewritten(server, role=role)


def test_the_command(
    server: Hosted, make_zoo: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = by_hand(server, make_zoo())
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", server.tokens["write"])

    def say(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    code, out, err = say("card", ZOO, "--check")
    assert (code, err) == (1, "") and "the page differs: " in out
    assert f"Run ckptzoo card {ZOO}." in out
    code, out, err = say("card", f"hf://datasets/{ZOO}")
    assert (code, err) == (0, "") and f"{ZOO} at {server.url}: written, " in out
    assert say("card", ZOO, "--check") == (0, f"{ZOO}: the page is as it should be.\n", "")
    (tmp_path / "mine.toml").write_text('name = "zoo"\nsummary = "Other words."\n')
    code, out, _ = say("card", ZOO, "--card", tmp_path / "mine.toml", "--json")
    report = json.loads(out)
    assert code == 0 and report["written"] and len(report["commit"]) == 40 and "+Other words." in report["changes"]
    assert "Other words." in client.read(ZOO, "README.md", client.listing(ZOO)).decode()
    assert say("card", "lab/none")[0] == 2 and say("card", f"{ZOO}@v1")[0] == 2
    code, _, err = say("card", tmp_path / "none")
    assert code == 2 and "expected a zoo's folder" in err

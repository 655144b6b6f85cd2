"""Sound pull requests, and what happens beside their review."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd

import ckptzoo
from ckptzoo.errors import HubError, ZooError
from ckptzoo.hub.client import HubRetryPolicy
from ckptzoo.hub.contributions.review import review
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import assert_generated_page, downloaded, files_of, inject_faults
from tests.support.tampering import Tamper


@pytest.fixture
def tamper(server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path) -> Tamper:
    return Tamper(server, make_zoo("zoo"), tmp_path)


def test_a_sound_part_is_merged(tamper: Tamper) -> None:
    found = tamper.review(tamper.propose(tamper.part(50, 51)))
    assert found.merged is not None and len(found.entries) == 2 and found.nbytes > 0
    assert found.head != found.base == found.main


def test_a_merge_brings_page_and_snapshot_up_to_date(tamper: Tamper, tmp_path: Path) -> None:
    server = tamper.server
    found = tamper.review(tamper.propose(tamper.part(50)))
    assert found.merged is not None and found.notes == ()
    down = downloaded(server, tmp_path)
    text = assert_generated_page(down)
    assert "**6** of 6 members" in text and "`Ada Stranger`" in text and "cc-by-4.0" in text
    (snapshot,) = (down / "snapshots").iterdir()
    assert snapshot.name.startswith("000003-") and ckptzoo.verify(down) == []
    assert server.api().list_repo_commits(ZOO, repo_type="dataset")[1].commit_id == found.merged
    before = len(server.request_log.entries)
    assert len(ckptzoo.open(ZOO, endpoint=server.url)) == 6
    assert len(server.request_log.entries) - before <= 6


def test_a_page_that_cannot_be_made_does_not_undo_a_merge(
    tamper: Tamper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number, page = tamper.propose(tamper.part(50)), files_of(downloaded(tamper.server, tmp_path))["README.md"]
    with inject_faults(tamper.server, rate=1.0, kinds=("conflict",), operations=("commit",)):
        found = tamper.review(number, retry_policy=HubRetryPolicy(max_attempts=2, first_pause=0.01))
    assert found.merged is not None and found.passed
    assert "the page and the snapshot are as they were" in found.notes[0] and f"ckptzoo card {ZOO}" in found.notes[0]
    found.print()
    assert "note: merged, but" in capsys.readouterr().out and found.to_json()["notes"]
    assert files_of(downloaded(tamper.server, tmp_path))["README.md"] == page
    assert ckptzoo.open(ZOO, endpoint=tamper.server.url).ids[-1] == "net50"


def test_the_pull_request_moves_on_during_the_review(tamper: Tamper, monkeypatch: pytest.MonkeyPatch) -> None:
    number = tamper.propose(tamper.part())

    def then(*arguments: Any) -> Any:
        found = fetch(*arguments)
        tamper.server.api("contribute").create_commit(
            ZOO,
            [CommitOperationAdd("zoo.json", b"{}")],
            commit_message="More",
            repo_type="dataset",
            revision=f"refs/pr/{number}",
        )
        return found

    module = sys.modules["ckptzoo.hub.contributions.review"]
    fetch = module.fetch
    monkeypatch.setattr(module, "fetch", then)
    found = tamper.review(number)
    assert found.merged is None and "the pull request moved on" in found.checks[-1].detail
    monkeypatch.setattr(module, "fetch", fetch)
    again = tamper.review(number)
    assert not again.passed and "zoo.json is changed" in again.checks[1].detail


def test_two_pull_requests_with_one_number(tamper: Tamper) -> None:
    """Both may be merged, one after the other; the same checkpoints twice may not."""
    one, two = tamper.part(50), tamper.part(51)
    again = tamper.part(50)
    numbers = [tamper.propose(files) for files in (one, two, again)]
    assert tamper.review(numbers[0]).merged
    found = tamper.review(numbers[1])
    assert found.merged and found.base != found.main
    third = tamper.review(numbers[2])
    assert third.merged is None and not third.passed
    zoo = ckptzoo.open(ZOO, endpoint=tamper.server.url)
    assert sorted(zoo.ids[5:]) == ["net50", "net51"]


def test_what_cannot_be_reviewed(tamper: Tamper) -> None:
    with pytest.raises(HubError):
        tamper.review(7)
    number = tamper.propose(tamper.part())
    api = tamper.server.api()
    api.change_discussion_status(ZOO, number, new_status="closed", repo_type="dataset")
    found = tamper.review(number)
    assert [check.name for check in found.checks] == ["open"] and not found.passed and "closed" in str(found.checks)
    talk = api.create_discussion(ZOO, "A talk", repo_type="dataset")
    assert not tamper.review(talk.num).passed
    with pytest.raises(ZooError, match="org/zoo"):
        review("lab/zoo@main2", 1, endpoint=tamper.server.url)


def test_who_may_not_merge(tamper: Tamper) -> None:
    number = tamper.propose(tamper.part())
    with pytest.raises(HubError, match=r"leave to do so, got status 403 .*\. Use a token that may write there\.$"):
        tamper.review(number, token=tamper.server.tokens["contribute"])
    assert tamper.review(number, token=tamper.server.tokens["read"], merge=False).passed

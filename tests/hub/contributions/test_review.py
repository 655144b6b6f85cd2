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
from ckptzoo.hub.client.client import PullRequests
from ckptzoo.hub.contributions.review import review
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import assert_generated_page, downloaded, files_of, inject_faults
from tests.support.tampering import Tamper


@pytest.fixture
def tamper(server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path) -> Tamper:
    return Tamper(server, make_zoo("zoo"), tmp_path)


@pytest.mark.exhaustive
def test_a_sound_part_is_merged(tamper: Tamper) -> None:
    found = tamper.review(tamper.propose(tamper.part(50, 51)))
    assert found.merged is not None and len(found.entries) == 2 and found.nbytes > 0
    assert found.head != found.base == found.main


def test_the_checks_become_a_comment(tamper: Tamper) -> None:
    number = tamper.propose(tamper.part(50))
    found = tamper.review(number, merge=False, post=True)

    def texts() -> list[str]:
        details = tamper.server.api().get_discussion_details(ZOO, number, repo_type="dataset")
        return [event.content for event in details.events if event.type == "comment"]

    text = texts()[-1]
    assert text.startswith(f"Reviewed `{found.head}` against main at `{found.main}`, ") and found.verdict in text
    assert "`stranger/net50`" in text and all(f"| {check.name} | " in text for check in found.checks)
    before = len(texts())
    assert tamper.review(number, post=True).merged is not None
    assert len([other for other in texts() if other == text]) == 1 and len(texts()) == before + 1  # that of the merge


def test_a_merge_brings_page_and_snapshot_up_to_date(tamper: Tamper, tmp_path: Path) -> None:
    server = tamper.server
    found = tamper.review(tamper.propose(tamper.part(50)))
    assert found.merged is not None and found.notes == ()
    down = downloaded(server, tmp_path)
    text = assert_generated_page(down)
    assert "**6** of 6 members" in text and "`Ada Stranger`" in text and "cc-by-4.0" in text
    (snapshot,) = (down / "snapshots").iterdir()
    # behind the new part comes what was measured of it: its row states an accuracy
    assert snapshot.name.startswith("000004-") and ckptzoo.verify(down) == []
    assert "not measured again" not in text
    assert server.api().list_repo_commits(ZOO, repo_type="dataset")[1].commit_id == found.merged
    before = len(server.request_log.entries)
    assert len(ckptzoo.open(ZOO, endpoint=server.url)) == 6
    assert len(server.request_log.entries) - before <= 6


@pytest.mark.exhaustive
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
    assert ckptzoo.open(ZOO, endpoint=tamper.server.url).ids[-1] == "stranger/net50"


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


@pytest.mark.parametrize("target", ["the pull request", "the zoo"])
@pytest.mark.parametrize("name", ["parts/000009-01234567/raw-00.safetensors", "zoo.json", "more.txt"])
@pytest.mark.parametrize("expects", [True, False], ids=["own server", "hub without expected commits"])
@pytest.mark.sampled(9)
def test_a_commit_that_arrives_behind_the_last_look(
    tamper: Tamper, monkeypatch: pytest.MonkeyPatch, target: str, name: str, expects: bool
) -> None:
    number = tamper.propose(tamper.part())
    merge = PullRequests.merge

    def late(own: PullRequests, repo: str, number: int, comment: str | None = None, **expected: Any) -> Any:
        tamper.server.api("write").create_commit(
            ZOO,
            [CommitOperationAdd(name, b"{}")],
            commit_message="More",
            repo_type="dataset",
            revision=f"refs/pr/{number}" if target == "the pull request" else "main",
        )
        return merge(own, repo, number, comment, **(expected if expects else {}))

    monkeypatch.setattr(PullRequests, "merge", late)
    if expects:
        found = tamper.review(number)
        assert found.merged is None and "moved on during the review" in found.checks[-1].detail
        assert tamper.server.api().get_discussion_details(ZOO, number, repo_type="dataset").status == "open"
    else:
        with pytest.raises(HubError, match=rf"{name} behind the merge: expected what was reviewed"):
            tamper.review(number)


@pytest.mark.exhaustive
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
    assert sorted(zoo.ids[5:]) == ["stranger/net50", "stranger/net51"]


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
    before = len(tamper.server.request_log.entries)
    for role in ("contribute", "read"):
        with pytest.raises(
            HubError, match=rf"token: expected one that may merge, got one of \w+ that may {role}\. Use an"
        ):
            tamper.review(number, token=tamper.server.tokens[role])
    # it is said before anything of the pull request is fetched
    asked = [entry.path for entry in tamper.server.request_log.entries[before:]]
    assert not any("/resolve/" in path for path in asked), asked
    assert tamper.review(number, token=tamper.server.tokens["read"], merge=False).passed

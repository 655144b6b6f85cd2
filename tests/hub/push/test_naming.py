"""Releases on a real server: a document, a tag at its commit, races, interrupted calls, squashing and collection."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ckptzoo
from ckptzoo.errors import HubError, UnknownNameError, ZooError
from ckptzoo.hub.client import Client
from ckptzoo.server.store.garbage import collect
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import grown, pushed

Make = Callable[..., Path]


@pytest.fixture
def hub(server: Hosted) -> dict[str, Any]:
    return {"endpoint": server.url, "token": server.tokens["write"]}


def test_a_release_of_a_repository(server: Hosted, hub: dict[str, Any], make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo("zoo", (3,))
    pushed(server, zoo)
    made = ckptzoo.release(ZOO, "2026-11", "The first.", **hub)
    assert made.revision == ckptzoo.open(zoo).revision
    client = Client(**hub)
    assert client.tags(ZOO) == {"2026-11": client.head(ZOO)}
    assert ckptzoo.release(ZOO, "2026-11", "The first.", **hub) == made  # nothing new
    grown(zoo, (2,), start=1)
    pushed(server, zoo)
    ckptzoo.release(ZOO, "2026-12", **hub)
    grown(zoo, (1,), start=2)
    pushed(server, zoo)
    sizes = {name: len(ckptzoo.open(ZOO, revision=name, **hub)) for name in ("2026-11", "2026-12", "stable")}
    assert sizes == {"2026-11": 3, "2026-12": 5, "stable": 5} and len(ckptzoo.open(ZOO, **hub)) == 6
    assert len(ckptzoo.open(f"hf://datasets/{ZOO}@2026-11", **hub)) == 3  # by the tag
    with pytest.raises(ZooError, match=r"2026-11\.json: release: expected none of the name.*Choose another name"):
        ckptzoo.release(ZOO, "2026-11", **hub)
    with pytest.raises(UnknownNameError, match="release '2026-10': expected one of 2026-11, 2026-12, stable"):
        ckptzoo.open(ZOO, revision="2026-10", **hub)


@pytest.mark.exhaustive
def test_names_are_kept_when_history_is_squashed_and_garbage_collected(
    server: Hosted, hub: dict[str, Any], make_zoo: Make
) -> None:
    zoo = make_zoo("zoo", (2,))
    pushed(server, zoo)
    ckptzoo.release(ZOO, "one", **hub)
    tagged = Client(**hub).tags(ZOO)
    grown(zoo, (1,), start=1)
    pushed(server, zoo)
    server.api().super_squash_history(ZOO, repo_type="dataset")
    collect(server.root, server.service.database, grace=timedelta(0))
    assert Client(**hub).tags(ZOO) == tagged
    for place, revision in ((ZOO, "one"), (ZOO, "stable"), (f"{ZOO}@one", None)):
        opened = ckptzoo.open(place, revision=revision, **hub)
        assert len(opened) == 2 and opened["conv1.weight"][:].shape[0] == 2


def test_push_tags_the_releases_of_a_folder(server: Hosted, hub: dict[str, Any], make_zoo: Make) -> None:
    zoo = make_zoo("zoo", (2,))
    ckptzoo.release(zoo, "one")
    result = pushed(server, zoo)
    client = Client(**hub)
    assert "releases/one.json" in result.documents and client.tags(ZOO) == {"one": client.head(ZOO)}
    assert len(ckptzoo.open(ZOO, revision="stable", **hub)) == 2
    server.api().delete_tag(ZOO, tag="one", repo_type="dataset")  # as where a push was killed before it made the tag
    pushed(server, zoo)
    assert set(client.tags(ZOO)) == {"one"}


def test_push_tags_no_release_of_fewer_checkpoints(server: Hosted, hub: dict[str, Any], make_zoo: Make) -> None:
    zoo = make_zoo("zoo", (2,))
    ckptzoo.release(zoo, "old")
    grown(zoo, (1,), start=1)
    ckptzoo.release(zoo, "new")
    pushed(server, zoo)
    client = Client(**hub)
    assert client.tags(ZOO) == {"new": client.head(ZOO)}
    assert len(ckptzoo.open(ZOO, revision="old", **hub)) == 2
    grown(zoo, (1,), start=2)
    tags = client.tags(ZOO)
    pushed(server, zoo)
    assert client.tags(ZOO) == tags and len(ckptzoo.open(ZOO, **hub)) == 4


def test_a_branch_may_have_a_slash_in_its_name(server: Hosted, hub: dict[str, Any], make_zoo: Make) -> None:
    zoo = make_zoo("zoo", (2,))
    pushed(server, zoo)
    server.api().create_branch(ZOO, branch="more/seeds", repo_type="dataset")
    grown(zoo, (1,), start=1)
    pushed(server, zoo)
    opened = ckptzoo.open(ZOO, revision="more/seeds", **hub)
    assert len(opened) == 2 and len(opened.refresh()) == 2 and len(ckptzoo.open(ZOO, **hub)) == 3
    assert len(ckptzoo.open(f"{ZOO}@more/seeds", **hub)) == 2


def test_a_release_that_was_killed_before_its_tag_is_carried_on(
    server: Hosted, hub: dict[str, Any], make_zoo: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(server, make_zoo("zoo", (2,)))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Client, "add_tags", killed)
        ckptzoo.release(ZOO, "one", **hub)
    client = Client(**hub)
    head = client.head(ZOO)
    assert client.tags(ZOO) == {} and len(ckptzoo.open(ZOO, revision="one", **hub)) == 2
    ckptzoo.release(ZOO, "one", **hub)
    assert client.tags(ZOO) == {"one": head} and client.head(ZOO) == head


@pytest.mark.exhaustive
def test_of_two_at_once_both_come_in_or_one_is_told(server: Hosted, hub: dict[str, Any], make_zoo: Make) -> None:
    pushed(server, make_zoo("zoo", (2,)))
    ended: list[object] = []

    def name(text: str, notes: str) -> None:
        try:
            ended.append(ckptzoo.release(ZOO, text, notes, **hub).name)
        except ZooError as error:
            ended.append(error.problem.what)

    for calls, expected in ([(("a", ""), ("b", "")), ["a", "b"]], [(("c", "x"), ("c", "y")), ["c", "release"]]):
        ended.clear()
        threads = [threading.Thread(target=name, args=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, ended)) == expected
    assert set(Client(**hub).tags(ZOO)) == {"a", "b", "c"}


def test_tags_of_others_stay_and_open_too(server: Hosted, hub: dict[str, Any], make_zoo: Make) -> None:
    zoo = make_zoo("zoo", (2,))
    pushed(server, zoo)
    server.api().create_tag(ZOO, tag="paper", repo_type="dataset")
    grown(zoo, (1,), start=1)
    pushed(server, zoo)
    with pytest.raises(HubError, match="tag paper: expected none of the name, got one without a release"):
        ckptzoo.release(ZOO, "paper", **hub)
    assert len(ckptzoo.open(ZOO, revision="paper", **hub)) == 2 and len(ckptzoo.open(ZOO, **hub)) == 3


def test_what_cannot_be_released(server: Hosted, hub: dict[str, Any], make_zoo: Make, tmp_path: Path) -> None:
    pushed(server, make_zoo("zoo", (2,)))
    with pytest.raises(ZooError, match="Release it in its folder, then push the collection"):
        ckptzoo.release(f"hf://datasets/{ZOO}/few", "one", **hub)
    with pytest.raises(ZooError, match="repository: expected org/zoo, got another address"):
        ckptzoo.release("https://example.org/zoo", "one", **hub)
    with pytest.raises(ZooError, match="repository: expected org/zoo"):
        ckptzoo.release(str(tmp_path / "none"), "one", **hub)
    with pytest.raises(HubError, match="permission"):
        ckptzoo.release(ZOO, "one", endpoint=server.url, token=server.tokens["read"])

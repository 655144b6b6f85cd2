"""Pushes of many files: equal ones are sent once, and every commit is a valid zoo."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.format import table
from ckptzoo.format.writer import Writer
from ckptzoo.hub.client import Client
from ckptzoo.hub.push.plan import MAX_FILES
from tests.support.effort import ALL
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import ARCH, TABLE, downloaded, files_of, grown, pushed, weights_of, zoo_of


def test_equal_shards_are_sent_once(server: Hosted, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    writer = ckptzoo.create(zoo, arch=ARCH)
    for part in range(4):
        writer.add(weights_of(2, 0), [{"id": f"{part}-{at}"} for at in range(2)])
        writer.commit()
    found = pushed(server, zoo)
    shards = {path.read_bytes() for path in zoo.glob("parts/*/raw-00.safetensors")}
    assert len(shards) == 1 and len(found.parts) == 4
    paths = [entry.path for entry in server.request_log.entries if entry.operation == "upload"]
    assert len(paths) == len(set(paths)) == 4 * 2 + 1 + 1
    assert found.sent == found.nbytes - 3 * len(shards.pop())


@pytest.mark.exhaustive
def test_every_table_is_decoded_once(server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For checks, plan, page and snapshot together, whether the repository is new, lacks a part or nothing."""
    zoo = zoo_of(tmp_path / "zoo", (2, 1, 3))
    derive(zoo, certify="none")
    ckptzoo.retract(zoo, ["m0-0"], reason="a test")
    opened, open_table = list[str](), table.open_table

    def noted(data: Any, *, location: str, **options: Any) -> Any:
        opened.append(location)
        return open_table(data, location=location, **options)

    monkeypatch.setattr(table, "open_table", noted)
    for parts, added in ((3, 7), (3, 0), (4, 1)):
        if parts == 4:
            grown(zoo, (1,), start=3)
        opened.clear()
        assert len(pushed(server, zoo).parts) == added
        tables = [name for name in opened if "/snapshots/" not in name]
        assert len(tables) == len(set(tables)) == len(list(zoo.rglob("index.parquet"))) * 2


def many(path: Path, parts: int) -> Path:
    """A zoo of ``parts`` parts of one checkpoint, three files each."""
    ckptzoo.create(path, arch=ARCH, symmetry=TABLE)
    return grown(path, (1,) * parts)


@pytest.mark.slow
def test_many_files_come_in_commits_each_of_which_is_a_valid_zoo(
    server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full with the real number of files of a commit; by default with a few."""
    limit, parts = (MAX_FILES, 82) if ALL else (13, 10)
    plan = import_module("ckptzoo.hub.push.plan")  # as an attribute, ckptzoo.hub.push is the function
    monkeypatch.setattr(plan, "MAX_FILES", limit)
    zoo = many(tmp_path / "zoo", parts)
    assert len(files_of(zoo)) > 2.5 * limit - 5
    found = pushed(server, zoo)
    assert len(found.commits) == 3 and len(found.parts) == parts
    rows: list[int] = []
    for commit in found.commits:
        down = downloaded(server, tmp_path, commit)
        assert ckptzoo.verify(down, deep=commit == found.commits[-1]) == []
        rows.append(len(ckptzoo.open(down)))
    assert rows[0] < rows[1] < rows[2] == parts
    info = server.api().list_repo_commits(ZOO, repo_type="dataset")
    assert [item.title[-8:] for item in info[:3]] == ["(3 of 3)", "(2 of 3)", "(1 of 3)"]
    counts = [len(Client(server.url).files(ZOO, commit)) - 1 for commit in found.commits]
    assert all(after - before <= limit for before, after in zip([0, *counts], counts, strict=False))


@pytest.mark.exhaustive
def test_a_part_of_many_files_is_one_commit(server: Hosted, tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path / "zoo", (2,))
    writer = Writer(zoo, ARCH, shard_bytes=1)
    writer.add(weights_of(105, 9), [{"id": f"x{at}", "seed": at} for at in range(105)])
    writer.commit()
    grown(zoo, (1,), start=2)
    found = pushed(server, zoo)
    client = Client(server.url)
    parts = [
        {name.split("/")[1] for name in client.files(ZOO, commit) if name.startswith("parts/")}
        for commit in found.commits
    ]
    assert [len(names) for names in parts] == [1, 2, 3]
    shards = [name for name in client.files(ZOO, found.commits[1]) if "/000002-" in name]
    assert len(shards) == 107

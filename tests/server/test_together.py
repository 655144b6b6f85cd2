"""Several clients at once, and files larger than the server may hold in memory."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.hosted import ZOO, Hosted, ask, commit_body
from tests.support.server_process import PlainClient, server_process, token_for

COMMIT = f"/api/datasets/{ZOO}/commit/main"


def attempt(found: Hosted, number: int, parent: str | None) -> int:
    """Commit one small file; returns the status."""
    value = {"summary": f"{number}"} | ({} if parent is None else {"parentCommit": parent})
    line = {"key": "file", "value": {"path": f"{number}.txt", "content": f"{number}"}}
    return ask(found, "POST", COMMIT, commit_body({"key": "header", "value": value}, line)).status


def test_one_of_those_who_race_wins(zoo: Hosted) -> None:
    parent = ask(zoo, "GET", f"/api/datasets/{ZOO}").json()["sha"]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: attempt(zoo, number, parent), range(8)))
    assert sorted(found) == [200, *[412] * 7]
    names = zoo.api().list_repo_files(ZOO, repo_type="dataset")
    assert sorted(names) == [".gitattributes", f"{found.index(200)}.txt"]


def test_without_a_parent_all_come_in_one_after_the_other(zoo: Hosted) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda number: attempt(zoo, number, None), range(16))) == {200}
    commits = zoo.api().list_repo_commits(ZOO, repo_type="dataset")
    assert sorted(found.title for found in commits) == sorted(["initial commit", *map(str, range(16))])
    assert len(zoo.api().list_repo_files(ZOO, repo_type="dataset")) == 17
    assert {found.oid for found in zoo.request_log.acknowledged} == {found.commit_id for found in commits[:-1]}


def test_the_same_file_from_several_is_kept_once(zoo: Hosted) -> None:
    data = bytes(300_000)
    oid = hashlib.sha256(data).hexdigest()
    asked = {"operation": "upload", "objects": [{"oid": oid, "size": len(data)}]}
    batch = f"/datasets/{ZOO}.git/info/lfs/objects/batch"
    items = [ask(zoo, "POST", batch, asked).json()["objects"][0] for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(lambda item: ask(zoo, "PUT", item["actions"]["upload"]["href"], data).status, items)
        assert set(found) == {200}
    assert [path.name for path in (zoo.root / "blobs").glob("*/*") if path.stat().st_size == len(data)] == [oid]


def peak(pid: int) -> int:
    """The most memory that a process has held, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    size = 64 * 2**20
    data = bytes(size)
    oid = hashlib.sha256(data).hexdigest()
    token = token_for(tmp_path)
    with server_process(tmp_path) as (server, url):
        client = PlainClient(url, token, "c", {})
        assert client.ask("POST", "/api/repos/create", b'{"name": "zoo", "type": "dataset"}')[0] == 200
        before = peak(server.pid)
        asked = f'{{"operation": "upload", "objects": [{{"oid": "{oid}", "size": {size}}}]}}'.encode()
        _, answer = client.ask("POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", asked)
        href = answer.decode().split('"href":"')[1].split('"')[0].partition(client.host)[2]
        assert client.ask("PUT", href, data)[0] == 200
        line = {"key": "lfsFile", "value": {"path": "a.bin", "algo": "sha256", "oid": oid}}
        assert client.ask("POST", COMMIT, commit_body({"key": "header", "value": {"summary": "x"}}, line))[0] == 200
        assert client.ask("GET", f"/datasets/{ZOO}/resolve/main/a.bin") == (200, data)
        assert peak(server.pid) - before < 32 * 2**20

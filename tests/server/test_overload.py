"""What a single client may ask for keeps nobody else waiting."""

import http.client
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptzoo.server import app
from ckptzoo.server.access import Subject
from ckptzoo.server.errors import Refusal
from ckptzoo.server.responses import MAX_FRONT_MATTER, front_matter
from ckptzoo.server.routes import discussions
from ckptzoo.server.store import database, repositories
from ckptzoo.server.store.commits import Commit, History, diff, merge
from ckptzoo.server.store.git_objects import Node, Trees
from ckptzoo.server.store.tokens import StoredToken
from tests.support.effort import examples
from tests.support.hosted import SMALL, ZOO, Hosted, ask, commit_body, hosted, push

ATTACKS = 45
"""More than there are threads."""
WAIT = 5.0
"""Seconds that an answer may take beside an attack; before there were bounds it took minutes."""


def abandon(server: Hosted, method: str, path: str, body: bytes = b"", role: str | None = None) -> None:
    """Send a request ``ATTACKS`` times, and go away once the server works on them."""
    token = "" if role is None else f"Authorization: Bearer {server.tokens[role]}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{token}Content-Length: {len(body)}\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        for _ in range(ATTACKS):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            connection.sendall(head.encode() + body)
        time.sleep(0.5)


def seconds_of_an_answer(server: Hosted, path: str = "/api/datasets?limit=1") -> float:
    """How long a request takes meanwhile."""
    start = time.monotonic()
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=3 * WAIT)
    connection.request("GET", path)
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - start


def test_long_front_matters_keep_nobody_waiting(server: Hosted) -> None:
    flow = "{a: [1, x]}, " * (250_000 // 13)
    body = json.dumps({"content": f"---\na: [{flow}]\n---\n", "repoType": "dataset"}).encode()
    abandon(server, "POST", "/api/validate-yaml", body)
    assert seconds_of_an_answer(server) < WAIT


UNANSWERABLE = (
    "a: !!timestamp foo", "a: !!python/object:os.system x", "a: !!int ''", "a: !!binary 1", "a: 2001-99-99", "a: 0x_",
    "a: " + "1:" * 400 + "1.0", "a: 0x" + "f" * 9000, "a: " + "9" * 9000, 'a: "\\ud800"', '"\\udfff": a', "a: &x 1\nb: *x",
    "a: " + "[" * 33 + "]" * 33, "a: [" + "1, " * 10_000 + "]", "=", "a: =", "<<: 1", "a: 2001-01-01 00:00:00 +99:00", "a: 0b_",
)  # fmt: skip


@pytest.mark.parametrize("text", UNANSWERABLE, ids=range(len(UNANSWERABLE)))
def test_front_matter_that_json_cannot_say_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        front_matter(f"---\n{text}\n---\n")


def test_front_matter_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="within"):
        front_matter("---\n" + "a: 1\n" * MAX_FRONT_MATTER)
    assert front_matter("no front matter " * MAX_FRONT_MATTER) == {}


@given(st.text(alphabet="a:-1 .0\n\"'[]{}!&*|>?#%@,=<xef_\\ud8Z+T", max_size=60))
def test_any_front_matter_is_read_or_refused(text: str) -> None:
    try:
        found = front_matter(f"---\n{text}\n---\n")
    except ValueError:
        return
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    "text", UNANSWERABLE[: examples(len(UNANSWERABLE), 4)], ids=range(examples(len(UNANSWERABLE), 4))
)
def test_one_readme_does_not_make_search_fail(zoo: Hosted, text: str) -> None:
    push(zoo, {"README.md": f"---\n{text}\n---\n".encode()})
    assert [item["id"] for item in ask(zoo, "GET", "/api/datasets?search=zoo").json()] == [ZOO]


def propose(server: Hosted, path: str, text: str, parent: str | None = None) -> tuple[int, str]:
    """Open a pull request as a contributor; the status, and the commit or the error."""
    header = {"summary": "x"} if parent is None else {"summary": "x", "parentCommit": parent}
    lines = commit_body({"key": "header", "value": header}, {"key": "file", "value": {"path": path, "content": text}})
    found = ask(server, "POST", f"/api/datasets/{ZOO}/commit/main?create_pr=1", lines, role="contribute")
    return found.status, found.json().get("commitOid") or found.json()["error"]


def test_abandoned_diffs_keep_nobody_waiting(zoo: Hosted) -> None:
    push(zoo, {"a.txt": "".join(f"{at % 999:x}\n" for at in range(60_000)).encode()})
    assert propose(zoo, "a.txt", "".join(f"{at * 7 % 997:x}\n" for at in range(60_000)))[0] == 200
    abandon(zoo, "GET", f"/api/datasets/{ZOO}/discussions/1?diff=1")
    assert seconds_of_an_answer(zoo) < WAIT


def test_a_pull_request_starts_from_its_target(zoo: Hosted) -> None:
    """From a commit of another pull request, both sides of a diff would be the contributor's."""
    first = push(zoo, {"a.txt": b"1"})
    push(zoo, {"a.txt": b"2"})
    status, theirs = propose(zoo, "b.txt", "b", first)
    assert status == 200
    status, error = propose(zoo, "c.txt", "c", theirs)
    assert status == 412 and "that the target has" in error


def test_waiting_writers_keep_no_reader_waiting(zoo: Hosted) -> None:
    push(zoo, {"a.txt": b"a"})
    body = b'{"title": "title", "description": "x"}'
    with closing(sqlite3.connect(zoo.root / "hub.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        abandon(zoo, "POST", f"/api/datasets/{ZOO}/discussions", body, "write")
        for path in (f"/datasets/{ZOO}/resolve/main/a.txt", f"/api/datasets/{ZOO}"):
            assert seconds_of_an_answer(zoo, path) < WAIT
        other.execute("ROLLBACK")


def test_a_database_that_stays_locked_is_said(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.1)
    zoo.service.database.close()  # the next connections wait for so long
    with closing(sqlite3.connect(zoo.root / "hub.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = ask(zoo, "POST", f"/api/datasets/{ZOO}/discussions", {"title": "title", "description": "x"})
        assert found.status == 503 and found.headers["retry-after"] == "5"
        other.execute("ROLLBACK")


def test_a_body_without_a_token_is_small(zoo: Hosted) -> None:
    paths = f"/api/datasets/{ZOO}/paths-info/main"
    text = {"content": "x" * zoo.service.limits.small_json_bytes}
    assert ask(zoo, "POST", "/api/validate-yaml", text).status == 200
    assert ask(zoo, "POST", "/api/validate-yaml", text, role=None).status == 413
    assert ask(zoo, "POST", paths, {"paths": ["x" * zoo.service.limits.small_json_bytes]}).status == 413


def test_callers_without_a_token_are_refused_before_their_body(zoo: Hosted) -> None:
    path = f"/api/datasets/{ZOO}/preupload/main"
    with closing(socket.create_connection(tuple(zoo.url.removeprefix("http://").split(":")), timeout=10)) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n"
        connection.sendall(head.encode() + b" " * 9_000_000)
        assert b" 401 " in connection.recv(1000)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"paths": [[]] * 2000}, 413),
        ({"paths": [[]]}, 400),
        ({"paths": None}, 400),
        ({"paths": ["README.md"], "expand": []}, 200),
        ({"paths": ["README.md"], "expand": True}, 200),
        ({"paths": 5}, 200),
    ],
)
def test_paths_are_counted_first(zoo: Hosted, sent: dict[str, Any], status: int) -> None:
    push(zoo, {"README.md": b"x"})
    answer = ask(zoo, "POST", f"/api/datasets/{ZOO}/paths-info/main", sent, Content_Type="application/json")
    assert answer.status == status


def test_transfers_of_another_type_are_ignored(zoo: Hosted) -> None:
    body = {"operation": "upload", "objects": [], "transfers": 5}
    assert ask(zoo, "POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", body).json()["transfer"] == "basic"


def test_no_handler_keeps_the_check_of_tokens_waiting(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every reader's thread is taken, callers without a token are refused at once."""
    release, arrived = threading.Event(), threading.Semaphore(0)

    def wait(*_: object) -> NoReturn:
        arrived.release()
        release.wait(WAIT)
        raise Refusal(404, "x")

    monkeypatch.setattr(History, "resolve", wait)
    readers = [
        threading.Thread(target=ask, args=(zoo, "GET", f"/api/datasets/{ZOO}/tree/main")) for _ in range(ATTACKS)
    ]
    for reader in readers:
        reader.start()
    try:
        assert all(arrived.acquire(timeout=WAIT) for _ in range(24))
        assert ask(zoo, "GET", "/api/whoami-v2", role=None).status == 401
        assert not release.is_set()
    finally:
        release.set()
        for reader in readers:
            reader.join()


def test_a_folder_is_removed_once(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    push(zoo, {f"f/{at}": b"x" for at in range(3)})
    walks: list[str] = []
    walk = Trees.walk

    def counted(self: Trees, root: str, path: str = "", **options: Any) -> Iterator[tuple[str, Node]]:
        walks.append(path)
        return walk(self, root, path, **options)

    monkeypatch.setattr(Trees, "walk", counted)
    removed = [{"key": "deletedFolder", "value": {"path": "f/"}}] * 50
    body = commit_body({"key": "header", "value": {"summary": "x"}}, *removed)
    assert ask(zoo, "POST", f"/api/datasets/{ZOO}/commit/main", body).status == 200
    assert walks == ["f"]


def test_comparing_folders_ends(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a pull request changes, its page is shown."""
    push(zoo, {"a.txt": b"1"})
    assert propose(zoo, "b/b.txt", "b")[0] == 200
    monkeypatch.setattr(discussions, "_MERGE_SECONDS", -1.0)
    found = ask(zoo, "GET", f"/api/datasets/{ZOO}/discussions/1?diff=1", role=None).json()
    assert found["filesWithConflicts"] is True
    with zoo.service.database.reading() as connection:
        trees = Trees(connection, 1)
        trees_of = [History(connection, 1).resolve(name).tree for name in ("main", "refs/pr/1")]
        assert (
            diff(trees, zoo.service.blobs, trees_of[0], trees_of[1], seconds=-1)
            == "The diff is too long to be shown whole.\n"
        )
        with pytest.raises(Refusal, match="too long"):
            merge(trees, *trees_of, trees_of[1], seconds=-1)


def held(server: Hosted, source: str, path: str) -> http.client.HTTPConnection:
    """A GET request that was sent from another address of this machine."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10, source_address=(source, 0))
    connection.request("GET", path)
    return connection


def test_one_address_has_few_costly_requests(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are refused at once, and another address comes soon."""
    release, limit = threading.Event(), zoo.service.limits.costly_requests
    listed = repositories.listed

    def wait(connection: sqlite3.Connection, kind: str) -> list[repositories.Repository]:
        release.wait(WAIT)
        return listed(connection, kind)

    monkeypatch.setattr(repositories, "listed", wait)
    with ExitStack() as stack:
        connections = [held(zoo, "127.0.0.2", "/api/datasets") for _ in range(limit + 3)]
        for connection in connections:
            stack.callback(connection.close)
        other = stack.enter_context(closing(held(zoo, "127.0.0.3", "/api/datasets")))
        time.sleep(0.3)
        release.set()
        answers = [connection.getresponse() for connection in connections]
        assert sorted(answer.status for answer in answers) == [200] * limit + [503] * 3
        assert {answer.headers["Retry-After"] for answer in answers} == {None, "1"}
        assert other.getresponse().status == 200
    assert ask(zoo, "GET", "/api/datasets").status == 200


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Hosted]:
    """A server with little memory and time for bodies."""
    limits = replace(SMALL, address_bytes=500_000, json_seconds=1, discussion_bytes=20_000, expand_seconds=-1)
    with hosted(tmp_path, limits=limits) as running:
        running.api().create_repo(ZOO, repo_type="dataset")
        yield running


def test_bodies_that_wait_are_bounded(tight: Hosted) -> None:
    """By the bytes of one address, and by the time that a whole one takes."""
    head = b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\nContent-Length: 200002\r\n\r\n"
    with ExitStack() as stack:
        address = tuple(tight.url.removeprefix("http://").split(":"))
        connections = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(3)]
        for connection in connections:
            connection.sendall(head + b" " * 200_000)
            time.sleep(0.2)
        connections[2].sendall(b"{}")
        assert connections[2].recv(1000).startswith(b"HTTP/1.1 503")
        time.sleep(1)
        connections[0].sendall(b"xx")
        assert connections[0].recv(1000).startswith(b"HTTP/1.1 408")
    assert ask(tight, "POST", "/api/validate-yaml", {"content": " " * 200_000}).status == 200


def test_answers_that_wait_are_bounded(tmp_path: Path) -> None:
    """An answer that nobody reads is larger than the kernel's buffers, and counts until it is sent."""
    with hosted(tmp_path, limits=replace(SMALL, address_bytes=8_000_000)) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        discussions = f"/api/datasets/{ZOO}/discussions"
        ask(server, "POST", discussions, {"title": "title"})
        for _ in range(12):
            ask(server, "POST", f"{discussions}/1/comment", {"comment": "\U0001f600" * 65536})
        path = f"{discussions}/1"
        with closing(socket.socket()) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = server.url.removeprefix("http://").split(":")
            connection.connect((host, int(port)))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            # its first bytes say that it is held
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert ask(server, "GET", path).status == 503
        assert until(lambda: ask(server, "GET", path).status, 200) == 200
        assert len(ask(server, "GET", path).json()["events"]) == 12


def until(call: Callable[[], int], expected: int) -> int:
    """What a call returns at last, once it is what is expected."""
    end = time.monotonic() + WAIT
    while (found := call()) != expected and time.monotonic() < end:
        time.sleep(0.05)
    return found


def test_last_commits_are_looked_for_within_a_time(zoo: Hosted, tight: Hosted) -> None:
    found: list[list[str | None]] = []
    for server in (zoo, tight):
        first = push(server, {"f/a.txt": b"1", "b.txt": b"1"})
        second = push(server, {"f/c.txt": b"1"})
        paths = {"paths": ["f", "f/a.txt", "b.txt", "f/c.txt"], "expand": True}
        address = f"/api/datasets/{ZOO}/paths-info/main"
        entries = ask(server, "POST", address, paths, Content_Type="application/json").json()
        found.append([entry.get("lastCommit", {}).get("id") for entry in entries])
        if server is zoo:
            assert found[0] == [second, first, first, second]
            tree = ask(server, "GET", f"/api/datasets/{ZOO}/tree/main?expand=true").json()
            assert {entry["path"]: entry["lastCommit"]["id"] for entry in tree}["f"] == second
    assert found[1] == [None] * 4


def test_a_discussion_has_so_much_of_a_contributor(tight: Hosted) -> None:
    discussions = f"/api/datasets/{ZOO}/discussions"
    ask(tight, "POST", discussions, {"title": "title"}, role="contribute")
    comment = {"comment": "\U0001f600" * 2000}
    found = [ask(tight, "POST", f"{discussions}/1/comment", comment, role="contribute").status for _ in range(2)]
    assert found == [200, 413]
    assert ask(tight, "POST", f"{discussions}/1/comment", comment).status == 200
    assert ask(tight, "POST", f"{discussions}/1/status", {"status": "closed"}, role="contribute").status == 200


def test_few_versions_of_a_comment_are_kept(zoo: Hosted) -> None:
    discussions = f"/api/datasets/{ZOO}/discussions"
    ask(zoo, "POST", discussions, {"title": "title", "description": "0"}, role="contribute")
    id = ask(zoo, "GET", f"{discussions}/1").json()["events"][0]["id"]
    for text in range(1, 9):
        edited = {"content": str(text)}
        assert ask(zoo, "POST", f"{discussions}/1/comment/{id}/edit", edited, role="contribute").status == 200
    data = ask(zoo, "GET", f"{discussions}/1").json()["events"][0]["data"]
    assert [version["raw"] for version in data["history"]] == ["0", "5", "6", "7", "8"]
    assert ask(zoo, "POST", f"{discussions}/1/comment/{id}/edit", {"content": "x"}).status == 403
    assert ask(zoo, "POST", f"{discussions}/1/comment/{id}/hide").status == 200


def test_reads_of_clients_that_left_are_not_begun(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls, resolve = threading.Event(), [], History.resolve

    def wait(self: History, revision: str) -> Commit:
        calls.append(revision)
        release.wait(WAIT)
        return resolve(self, revision)

    monkeypatch.setattr(History, "resolve", wait)
    abandon(zoo, "GET", f"/api/datasets/{ZOO}")
    time.sleep(0.3)
    release.set()
    assert ask(zoo, "GET", f"/api/datasets/{ZOO}").status == 200
    assert len(calls) < ATTACKS / 2


def test_requests_of_clients_that_left_are_not_authorized(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls, identify = threading.Event(), [], app.identify

    def wait(connection: sqlite3.Connection, token: str) -> tuple[StoredToken, Subject] | None:
        calls.append(token)
        release.wait(WAIT)
        return identify(connection, token)

    monkeypatch.setattr(app, "identify", wait)
    abandon(zoo, "GET", "/api/whoami-v2", role="read")
    time.sleep(0.3)
    release.set()
    assert ask(zoo, "GET", "/api/whoami-v2").status == 200
    assert len(calls) < ATTACKS / 2

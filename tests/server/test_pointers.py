"""Texts that are Git LFS pointers: they get nobody another's bytes, and take the place of nobody's file."""

import base64
import hashlib
import json
import logging
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.server.service import Service
from ckptzoo.server.store.git_objects import is_pointer, object_id, pointer, pointer_file
from tests.support.hosted import ZOO, Answer, Hosted, ask, commit_body, hosted, push

DATA = random.Random(0).randbytes(6000)
SHA256 = hashlib.sha256(DATA).hexdigest()
POINTER = pointer(SHA256, len(DATA))
OTHER = "lab/other"


def propose(server: Hosted, path: str, content: bytes, repo: str = ZOO, role: str = "contribute") -> Answer:
    """Open a pull request with one small file."""
    value = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
    lines = commit_body({"key": "header", "value": {"summary": "x"}}, {"key": "file", "value": value})
    return ask(server, "POST", f"/api/datasets/{repo}/commit/main?create_pr=1", lines, role=role)


def read(server: Hosted, path: str, repo: str = ZOO) -> bytes:
    """A file of the main branch, wherever it is redirected to."""
    found = ask(server, "GET", f"/datasets/{repo}/resolve/main/{path}")
    return ask(server, "GET", found.headers["location"], role=None).body if found.status == 302 else found.body


def test_a_contributed_pointer_takes_no_files_place(zoo: Hosted) -> None:
    for text in (POINTER, POINTER.replace(b"\n", b"\r\n"), b"\n" + POINTER, POINTER.replace(b"git-lfs", b"hawser")):
        refused = propose(zoo, "part.txt", text)
        assert refused.status == 400 and "pointer" in refused.json()["error"], text
    push(zoo, {"part.safetensors": DATA})
    assert read(zoo, "part.safetensors") == DATA


def test_a_pointer_gives_nobody_another_repositorys_bytes(zoo: Hosted) -> None:
    zoo.api().create_repo(OTHER, repo_type="dataset", private=True)
    push(zoo, {"secret.safetensors": DATA}, f"datasets/{OTHER}")
    assert propose(zoo, "a.txt", POINTER).status == 400
    assert propose(zoo, "a.txt", POINTER + b"extra\n").status == 400
    assert propose(zoo, "a.txt", b"How a pointer begins: " + POINTER).status == 200


def test_pointers_are_told_from_texts() -> None:
    assert pointer_file(POINTER) is not None and is_pointer(POINTER)
    for text in (b"", b"version 1\n", POINTER[:-10], POINTER + b"x" * 1024, POINTER.replace(b"sha256", b"sha512")):
        assert not is_pointer(text) and pointer_file(text) is None
    assert is_pointer(POINTER + b"ext-0-x a\n") and pointer_file(POINTER + b"ext-0-x a\n") is None


def as_of_version_0(database: Path, change: str = "") -> None:
    """Put the table of files back to how it was, and change some rows."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(
            f"""CREATE TABLE old (
                oid TEXT PRIMARY KEY, size INTEGER NOT NULL, sha256 TEXT NOT NULL, large INTEGER NOT NULL) STRICT;
            INSERT INTO old SELECT oid, size, sha256, large FROM files;
            DROP TABLE files; ALTER TABLE old RENAME TO files; {change}; PRAGMA user_version = 0;"""
        )


def test_rows_that_were_wrong_are_mended_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first entry won: the owner's file was the contributor's text, whatever was pushed."""
    with hosted(tmp_path) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        server.api().create_repo(OTHER, repo_type="dataset")
        push(server, {"raw/part.safetensors": DATA})
        push(server, {"a.txt": b"some text"}, f"datasets/{OTHER}")
        server.service.blobs.add(POINTER)
    oid, text = object_id("blob", POINTER), hashlib.sha256(POINTER).hexdigest()
    change = f"UPDATE files SET size = {len(POINTER)}, sha256 = '{text}', large = 0 WHERE oid = '{oid}'"
    as_of_version_0(tmp_path / "hub.sqlite", change)
    with caplog.at_level(logging.WARNING), hosted(tmp_path) as server:
        (message,) = caplog.messages
        assert "lab/zoo: raw/part.safetensors" in message and "pointer" in message
        assert read(server, "raw/part.safetensors") == DATA
        assert read(server, "a.txt", OTHER) == b"some text"
    caplog.clear()
    with hosted(tmp_path) as server:
        assert read(server, "raw/part.safetensors") == DATA and caplog.messages == []


def test_a_text_that_gave_anothers_bytes_is_a_text_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hosted(tmp_path) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        server.api().create_repo(OTHER, repo_type="dataset", private=True)
        push(server, {"a.safetensors": DATA})
        push(server, {"secret.safetensors": DATA}, f"datasets/{OTHER}")
    as_of_version_0(
        tmp_path / "hub.sqlite",
        f"DELETE FROM contents WHERE repository = (SELECT id FROM repositories WHERE name = '{ZOO}')",
    )
    with caplog.at_level(logging.WARNING), hosted(tmp_path) as server:
        (message,) = caplog.messages
        assert "lab/zoo: a.safetensors" in message and "not given" in message
        assert read(server, "a.safetensors") == POINTER
        assert read(server, "secret.safetensors", OTHER) == DATA
        push(server, {"a.safetensors": DATA})
        assert read(server, "a.safetensors") == DATA


def test_contents_with_another_size_have_to_be_sent_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hosted(tmp_path) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        push(server, {"a.safetensors": DATA, "b.txt": b"b"})
        number = ask(server, "POST", f"/api/datasets/{ZOO}/discussions", {"title": "title", "description": "x"}).json()
        assert number["num"] == 1
    data = json.dumps({"latest": {"raw": "a\ud800b"}})
    change = f"UPDATE contents SET size = 68000000; UPDATE events SET data = '{data}'"
    as_of_version_0(tmp_path / "hub.sqlite", change)
    with caplog.at_level(logging.WARNING), hosted(tmp_path) as server:
        assert [message.split(":")[0] for message in caplog.messages] == [ZOO] * 3
        assert "68000000" in caplog.text and "discussion 1" in caplog.text
        events = ask(server, "GET", f"/api/datasets/{ZOO}/discussions/1").json()["events"]
        assert events[0]["data"]["latest"]["raw"] == "a\ufffdb"
        push(server, {"a.safetensors": DATA})
        assert read(server, "a.safetensors") == DATA and read(server, "b.txt") == b"b"


def test_tables_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    Service(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ZooError, match="version 4 or older, got 99"):
        Service(tmp_path)

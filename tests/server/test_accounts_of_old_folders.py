"""A server's folder from before there were accounts: its tokens and namespaces get some, at once or not at all."""

import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.schema.review_mark import ReviewMark
from ckptzoo.server.service import database_of
from ckptzoo.server.store import accounts, sessions
from ckptzoo.server.store.audit import OPERATOR
from ckptzoo.server.store.tokens import digest_of
from tests.support.hosted import Hosted, ask, hosted
from tests.support.pages import Browser

TOKENS = {
    "read": "hf_" + "1" * 40,
    "contribute": "hf_" + "2" * 40,
    "write": "hf_" + "3" * 40,
    "other": "hf_" + "4" * 40,
}
OWNERS = {"read": ("reader", "read"), "contribute": ("stranger", "contribute"), "write": ("lab", "write"),
          "other": ("Bob", "write")}  # fmt: skip


def folder_of_version_1(root: Path) -> None:
    """``lab/open`` and ``lab/secret``, ``gone/zoo`` of a namespace without tokens, and a token of each role."""
    with hosted(root) as server:
        for name, private in (("lab/open", False), ("lab/secret", True), ("gone/zoo", False)):
            with server.service.database.writing() as connection:
                from ckptzoo.server.store import repositories

                repositories.create(connection, "dataset", name, private=private, author="lab")
    with closing(sqlite3.connect(root / "hub.sqlite")) as connection:
        connection.executescript(
            """DROP TABLE tokens; DROP TABLE grants; DROP TABLE members; DROP TABLE accounts; DROP TABLE audit;
            ALTER TABLE repositories DROP COLUMN closed;
            CREATE TABLE tokens (
                digest TEXT PRIMARY KEY, user TEXT NOT NULL, role TEXT NOT NULL, created TEXT NOT NULL) STRICT;
            PRAGMA user_version = 1;"""
        )
        rows = [(digest_of(TOKENS[name]), *OWNERS[name], "2026-01-01T00:00:00+00:00") for name in TOKENS]
        connection.executemany("INSERT INTO tokens VALUES (?, ?, ?, ?)", rows)
        connection.commit()


def status(server: Hosted, method: str, path: str, role: str, body: Any = None) -> int:
    return ask(server, method, path, body, role=role).status


def test_tokens_keep_what_their_owners_may(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder_of_version_1(tmp_path)
    with caplog.at_level(logging.WARNING), hosted(tmp_path) as server:
        assert [text for text in caplog.messages if text.startswith("gone: has repositories and no tokens")]
        server.tokens.update(TOKENS)
        made = {"type": "dataset", "organization": "lab", "name": "new"}
        assert status(server, "POST", "/api/repos/create", "other", made) == 403
        assert status(server, "POST", "/api/repos/create", "write", made) == 200
        assert status(server, "DELETE", "/api/repos/delete", "write", made) == 200
        assert status(server, "POST", "/api/repos/create", "other", {**made, "organization": "Bob"}) == 200
        pull = {"title": "Hello", "description": "", "pullRequest": True}
        for role, expected in (("read", 403), ("contribute", 200), ("other", 403), ("write", 200)):
            assert status(server, "POST", "/api/datasets/lab/open/discussions", role, pull) == expected, role
        for role, expected in (("read", 404), ("contribute", 404), ("other", 404), ("write", 200)):
            assert status(server, "GET", "/api/datasets/lab/secret", role) == expected, role
        with server.service.database.reading() as connection:
            assert [item.name for item in accounts.listed(connection, accounts.ORGANISATION)] == ["gone"]
    caplog.clear()
    with hosted(tmp_path) as server:
        assert caplog.messages == [] and status(server, "GET", "/api/whoami-v2", "write") == 200


KILLED = """
import os, signal, sys
from ckptzoo.server.store import migrations
from ckptzoo.server.service import Service
made = migrations._make_accounts
def killed(connection):
    yield from made(connection)
    os.kill(os.getpid(), signal.SIGKILL)
migrations._make_accounts = killed
Service(sys.argv[1])
"""


def test_one_that_is_killed_midway_is_done_again(tmp_path: Path) -> None:
    folder_of_version_1(tmp_path)
    with pytest.raises(ZooError, match=r"tables: expected version 4, got 1\. Start ckptzoo serve once"):
        database_of(tmp_path)
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, timeout=60).returncode == -9
    with pytest.raises(ZooError, match=r"tables: expected version 4, got 1"):
        database_of(tmp_path)
    with hosted(tmp_path) as server:
        server.tokens.update(TOKENS)
        assert [status(server, "GET", "/api/whoami-v2", role) for role in TOKENS] == [200] * 4


def test_checks_of_before_roles_were_stored_do_not_count(tmp_path: Path) -> None:
    """A folder of version 3 opens; who posted its checks with which token is not known, so they are posted again."""
    with hosted(tmp_path) as server:
        api = server.api()
        api.create_repo("lab/open", repo_type="dataset")
        api.create_pull_request("lab/open", title="More", repo_type="dataset")
        api.change_discussion_status("lab/open", 1, "open", repo_type="dataset")
        head = (api.list_repo_refs("lab/open", repo_type="dataset", include_pull_requests=True).pull_requests or [])[0]
        mark = ReviewMark(head.target_commit, head.target_commit, True).line()
        api.comment_discussion("lab/open", 1, mark, repo_type="dataset")
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as connection:
        connection.executescript("ALTER TABLE events DROP COLUMN role; PRAGMA user_version = 3;")
    with hosted(tmp_path) as server:
        with server.service.database.writing() as connection:
            code = sessions.make_link(connection, "lab", actor=OPERATOR)
        browser, place = Browser(server), "/datasets/lab/open/discussions/1"
        assert browser.post(f"/-/link/{code}").status == 303
        form = {"head": head.target_commit, "target": head.target_commit}
        assert browser.post(f"{place}/merge", **form).status == 412
        server.api().comment_discussion("lab/open", 1, mark, repo_type="dataset")
        assert browser.post(f"{place}/merge", **form).status == 303

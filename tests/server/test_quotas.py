"""What one contributor may take up, and how long an answer about uploads may be."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptzoo.server.limits import ServerLimits
from tests.support.hosted import SMALL, ZOO, Answer, Hosted, ask, commit_body, hosted

LIMITS = replace(
    SMALL, contributor_bytes=400_000, contributor_discussions=3, contributor_uploads=2, batch_parts=20, batch_files=50
)
BATCH = f"/datasets/{ZOO}.git/info/lfs/objects/batch"
HEADER = {"key": "header", "value": {"summary": "x"}}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Hosted]:
    """A server with small quotas and an empty dataset."""
    with hosted(tmp_path, limits=LIMITS) as running:
        running.api().create_repo(ZOO, repo_type="dataset")
        yield running


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def batch(server: Hosted, *files: bytes | tuple[str, int], role: str = "contribute") -> Answer:
    """Ask where to send these files, of which some are only said to exist."""
    named = [item if isinstance(item, tuple) else (hashlib.sha256(item).hexdigest(), len(item)) for item in files]
    objects = [{"oid": oid, "size": size} for oid, size in named]
    body = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": objects}
    return ask(server, "POST", BATCH, body, role=role)


def action(answer: Answer) -> dict[str, Any]:
    (item,) = answer.json()["objects"]
    return item["actions"]["upload"]


def send(server: Hosted, data: bytes, role: str = "contribute") -> int:
    """Upload a file, whole or in parts; the status of the last answer."""
    upload = action(batch(server, data, role=role))
    header = dict(upload.get("header", {}))
    if not header:
        return ask(server, "PUT", upload["href"], data, role=None).status
    step, parts = int(header.pop("chunk_size")), []
    for number in range(1, len(header) + 1):
        part = data[(number - 1) * step : number * step]
        found = ask(server, "PUT", header[str(number)], part, role=None)
        if found.status != 200:
            return found.status
        parts.append({"partNumber": number, "etag": found.headers["etag"]})
    body = {"oid": hashlib.sha256(data).hexdigest(), "parts": parts}
    return ask(server, "POST", upload["href"], body, role=None).status


def propose(server: Hosted, *texts: str, end: bytes = b"") -> Answer:
    """Open a pull request with small files."""
    lines = [{"key": "file", "value": {"path": f"{at}.txt", "content": text}} for at, text in enumerate(texts)]
    body = commit_body(HEADER, *lines) + end
    return ask(server, "POST", f"/api/datasets/{ZOO}/commit/main?create_pr=1", body, role="contribute")


def test_a_contributor_sends_so_many_bytes(small: Hosted) -> None:
    assert send(small, noise(50_000)) == 200
    assert send(small, noise(200_000)) == 200
    assert small.service.quotas.room("stranger") == 150_000
    (item,) = batch(small, noise(150_001)).json()["objects"]
    assert item["error"]["code"] == 413 and "150000 more bytes" in item["error"]["message"]
    first, second = batch(small, noise(90_000, 1), noise(90_000, 2)).json()["objects"]
    assert "actions" in first and "error" in second
    assert send(small, noise(200_000, 3), role="write") == 200 and small.service.quotas.room("lab") == 400_000
    assert small.service.quotas.room("stranger") == 150_000


def test_addresses_that_were_asked_for_before_are_within_the_quota(small: Hosted) -> None:
    """Of files that each fit, those are refused that no longer do, before anything of them is kept."""
    files = [noise(60_000, at) for at in range(8)]
    uploads = [action(batch(small, data)) for data in files]
    found = [ask(small, "PUT", item["href"], data, role=None).status for item, data in zip(uploads, files, strict=True)]
    assert found == [200] * 6 + [413] * 2
    assert list((small.root / "incoming").iterdir()) == []


def test_small_files_count_whether_they_are_committed_or_not(small: Hosted) -> None:
    assert propose(small, "a" * 100_000).status == 200
    assert propose(small, "b" * 100_000, end=b"{").status == 400
    # besides, a folder and a commit were stored
    assert 197_000 < (room := small.service.quotas.room("stranger") or 0) < 200_000
    refused = propose(small, "c" * 150_000, "d" * 150_000)
    assert refused.status == 413 and "--quota" in refused.json()["error"]
    assert small.service.quotas.room("stranger") == room - 150_000
    assert ask(small, "GET", f"/api/datasets/{ZOO}/discussions").json()["count"] == 1


def test_a_contributor_has_so_many_open_discussions(small: Hosted) -> None:
    discussions = f"/api/datasets/{ZOO}/discussions"
    opened = {"title": "title", "description": "x"}
    assert propose(small, "a").status == 200
    assert ask(small, "POST", discussions, {**opened, "pullRequest": True}, role="contribute").status == 200
    assert ask(small, "POST", discussions, opened, role="contribute").status == 200
    assert ask(small, "POST", discussions, opened, role="contribute").status == 429
    assert propose(small, "b").status == 429
    assert ask(small, "POST", discussions, opened).status == 200
    assert ask(small, "POST", f"{discussions}/1/status", {"status": "closed"}, role="contribute").status == 200
    assert propose(small, "b").status == 200


def test_the_oldest_upload_ends_where_another_begins(small: Hosted) -> None:
    sizes = (70_000, 70_001, 70_002)
    uploads = [action(batch(small, noise(size))) for size in sizes]
    found = [ask(small, "PUT", item["header"]["1"], noise(65_536), role=None).status for item in uploads]
    assert found == [404, 200, 200]
    assert len(list((small.root / "incoming").iterdir())) == 2


def test_an_answer_about_uploads_is_bounded(small: Hosted) -> None:
    """However large the files are said to be; nothing is made on the disk before a part arrives."""
    files = [(f"{at:064x}", 10**9) for at in range(5)]
    answer = batch(small, *files, *files, role="write")
    items = answer.json()["objects"]
    assert len(items) == 5 and len(answer.body) < 20_000
    headers = [item["actions"]["upload"]["header"] for item in items]
    assert sum(len(header) - 1 for header in headers) <= LIMITS.batch_parts
    for header in headers:
        assert len(header) - 1 == -(-(10**9) // int(header["chunk_size"]))
    assert list((small.root / "incoming").iterdir()) == []


def test_the_default_answer_about_uploads_is_bounded(tmp_path: Path) -> None:
    with hosted(tmp_path, limits=ServerLimits()) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        answer = batch(server, *((f"{at:064x}", 49 * 10**9) for at in range(60)), role="write")
        assert len(answer.body) < 600_000


def test_quotas_outlive_the_server(tmp_path: Path) -> None:
    with hosted(tmp_path, limits=LIMITS) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        assert send(server, noise(50_000)) == 200
    with hosted(tmp_path, limits=LIMITS) as server:
        assert server.service.quotas.room("stranger") == 350_000


def test_a_contributor_changes_so_many_files_in_a_commit(tmp_path: Path) -> None:
    with hosted(tmp_path, limits=replace(LIMITS, contributor_files=3)) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        assert propose(server, "a", "b", "c").status == 200
        refused = propose(server, "a", "b", "c", "d")
        assert refused.status == 413 and "at most 3 operations" in refused.json()["error"]
        lines = [{"key": "file", "value": {"path": f"{at}.txt", "content": ""}} for at in range(4)]
        assert ask(server, "POST", f"/api/datasets/{ZOO}/commit/main", commit_body(HEADER, *lines)).status == 200


def test_opening_discussions_again_is_within_the_limit(small: Hosted) -> None:
    discussions = f"/api/datasets/{ZOO}/discussions"

    def status(number: int, wanted: str, role: str = "contribute") -> int:
        return ask(small, "POST", f"{discussions}/{number}/status", {"status": wanted}, role=role).status

    for number in range(1, 5):
        assert ask(small, "POST", discussions, {"title": "title"}, role="contribute").status == 200
        assert status(number, "closed") == 200
    assert [status(number, "open") for number in range(1, 5)] == [200, 200, 200, 429]
    assert [status(number, "open") for number in range(1, 4)] == [200, 200, 200]
    assert status(4, "open", "write") == 200


def test_rows_of_the_database_count(small: Hosted) -> None:
    """Empty files and comments take up room, too."""
    before = small.service.quotas.room("stranger")
    assert propose(small, *[""] * 100).status == 200
    after = small.service.quotas.room("stranger")
    assert before is not None and after is not None and before - after > 3_000
    comment = f"/api/datasets/{ZOO}/discussions/1/comment"
    found = [ask(small, "POST", comment, {"comment": f"{at}" * 60_000}, role="contribute").status for at in range(5)]
    assert found == [200, 200, 200, 413, 413]
    assert ask(small, "POST", comment, {"comment": "x" * 8000}, role="contribute").status == 200
    assert propose(small, *[""] * 1000).status == 413
    assert ask(small, "GET", f"/api/datasets/{ZOO}/discussions").json()["count"] == 1


def test_addresses_of_hidden_repositories_are_no_longer_good(small: Hosted) -> None:
    assert send(small, noise(50_000), role="write") == 200
    oid = hashlib.sha256(noise(50_000)).hexdigest()
    line = {"key": "lfsFile", "value": {"path": "a.bin", "oid": oid, "size": 50_000}}
    assert ask(small, "POST", f"/api/datasets/{ZOO}/commit/main", commit_body(HEADER, line)).status == 200
    resolve = f"/datasets/{ZOO}/resolve/main/a.bin"
    given = [ask(small, "GET", resolve, role=role).headers["location"] for role in (None, "read", "write")]

    def statuses() -> list[int]:
        return [ask(small, "GET", address, role=None).status for address in given]

    assert statuses() == [200] * 3
    assert ask(small, "PUT", f"/api/datasets/{ZOO}/settings", {"private": True}).status == 200
    assert statuses() == [403, 403, 200]
    body = {"type": "dataset", "organization": "lab", "name": "zoo"}
    assert ask(small, "DELETE", "/api/repos/delete", body).status == 200
    assert statuses() == [403] * 3

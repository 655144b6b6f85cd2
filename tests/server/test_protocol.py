"""The protocol on the wire: ranges, signed addresses, what is refused."""

import base64
import hashlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptzoo.server.limits import ServerLimits
from ckptzoo.server.store import accounts
from ckptzoo.server.store.audit import OPERATOR
from tests.support.hosted import ZOO, Answer, Hosted, ask, commit_body, hosted, push

DATA = bytes(range(256)) * 4
FILES = {"small.txt": DATA[:128], "large.safetensors": DATA}
RESOLVE = f"/datasets/{ZOO}/resolve/main"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A server with ``FILES`` in ``lab/zoo``, for all tests of this module that change nothing."""
    with hosted(tmp_path_factory.mktemp("protocol") / "served") as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        push(server, FILES)
        yield server


def follow(server: Hosted, path: str, method: str = "GET", **headers: str) -> Answer:
    """Ask for a file, with one redirect."""
    answer = ask(server, method, path, role=None, **headers)
    return ask(server, method, answer.headers["location"], role=None, **headers) if answer.status == 302 else answer


@pytest.mark.parametrize(("name", "data"), FILES.items())
def test_ranges(filled: Hosted, name: str, data: bytes) -> None:
    size = len(data)
    cases = {
        "bytes=0-0": (0, 1),
        "bytes=5-9": (5, 10),
        "bytes=100-": (100, size),
        "bytes=-7": (size - 7, size),
        f"bytes=-{size + 5}": (0, size),
        f"bytes=10-{size + 100}": (10, size),
    }
    for header, (start, stop) in cases.items():
        found = follow(filled, f"{RESOLVE}/{name}", Range=header)
        assert (found.status, found.body) == (206, data[start:stop]), header
        assert found.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
    for header in ("bytes=9-5", "bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=x-"):
        found = follow(filled, f"{RESOLVE}/{name}", Range=header)
        assert (found.status, found.body) == (200, data), header
    for header in (f"bytes={size}-", "bytes=-0", "bytes=99999-100000"):
        found = follow(filled, f"{RESOLVE}/{name}", Range=header)
        assert (found.status, found.headers["content-range"]) == (416, f"bytes */{size}"), header


def test_repositories_of_a_namespace(server: Hosted) -> None:
    assert ask(server, "GET", "/api/settings/repositories").json() == []
    api = server.api()
    with server.service.database.writing() as connection:
        accounts.add(connection, "else", accounts.ORGANISATION, actor=OPERATOR)
        accounts.set_member(connection, "else", "lab", "write", actor=OPERATOR)
    for name, kind, private in ((ZOO, "dataset", False), ("lab/net", "model", True), ("else/zoo", "dataset", False)):
        api.create_repo(name, repo_type=kind, private=private)
    push(server, FILES)
    own = {item["id"]: item for item in ask(server, "GET", "/api/settings/repositories").json()}
    assert own == {item.id: {**own[item.id], "storage": item.storage} for item in api.list_user_repos()}
    assert own[ZOO]["storage"] == ask(server, "GET", f"/api/datasets/{ZOO}").json()["usedStorage"] > 0
    assert {name: (item["type"], item["visibility"]) for name, item in own.items()} == {
        ZOO: ("dataset", "public"),
        "lab/net": ("model", "private"),
    }
    assert sum(item["storagePercent"] for item in own.values()) == pytest.approx(100)
    assert [item.id for item in api.list_user_repos(namespace="else")] == ["else/zoo"]
    assert list(api.list_user_repos(namespace="nobody")) == []
    for path in ("/api/settings/repositories", "/api/organizations/lab/settings/repositories"):
        assert ask(server, "GET", path, role=None).status == 401


def test_head_tells_what_get_sends(filled: Hosted) -> None:
    oid = filled.request_log.acknowledged[0].oid
    for name, data in FILES.items():
        head, whole = follow(filled, f"{RESOLVE}/{name}", "HEAD"), follow(filled, f"{RESOLVE}/{name}")
        assert head.status == whole.status == 200 and head.body == b"" and whole.body == data
        assert head.headers["content-length"] == whole.headers["content-length"] == str(len(data))
        assert head.headers["etag"] == whole.headers["etag"]
        assert head.headers["x-repo-commit"] == whole.headers["x-repo-commit"] == oid
    large = ask(filled, "HEAD", f"{RESOLVE}/large.safetensors")
    assert large.status == 302 and large.headers["x-repo-commit"] == oid
    assert large.headers["x-linked-etag"] == f'"{hashlib.sha256(DATA).hexdigest()}"'
    assert large.headers["x-linked-size"] == str(len(DATA))


def test_conditions(filled: Hosted) -> None:
    etag = follow(filled, f"{RESOLVE}/small.txt").headers["etag"]
    assert follow(filled, f"{RESOLVE}/small.txt", If_None_Match=etag).status == 304
    assert follow(filled, f"{RESOLVE}/small.txt", Range="bytes=1-2", If_Range=etag).body == DATA[1:3]
    assert follow(filled, f"{RESOLVE}/small.txt", Range="bytes=1-2", If_Range='"other"').body == DATA[:128]


def test_missing_things_have_their_codes(filled: Hosted) -> None:
    cases = {
        f"/datasets/{ZOO}/resolve/main/none": "EntryNotFound",
        f"/datasets/{ZOO}/resolve/none/small.txt": "RevisionNotFound",
        "/datasets/lab/none/resolve/main/small.txt": "RepoNotFound",
        f"/{ZOO}/resolve/main/small.txt": "RepoNotFound",
        f"/api/datasets/{ZOO}/tree/main/none": "EntryNotFound",
    }
    for path, code in cases.items():
        found = ask(filled, "GET", path)
        assert (found.status, found.headers["x-error-code"]) == (404, code), path
    assert "x-repo-commit" in ask(filled, "GET", f"/datasets/{ZOO}/resolve/main/none").headers
    assert ask(filled, "PATCH", f"/api/datasets/{ZOO}").status == 405
    assert ask(filled, "GET", "/nothing/here").status == 404


def test_a_changed_address_is_refused(filled: Hosted) -> None:
    address = ask(filled, "GET", f"{RESOLVE}/large.safetensors").headers["location"]
    assert ask(filled, "GET", address, role=None).body == DATA
    path, query = address.split("?")
    fields = query.split("&")
    names = ["commit", "expires", "name", "repository", "signature", "user"]
    assert sorted(field.split("=")[0] for field in fields) == names
    for at, field in enumerate(fields):
        last = "1" if field[-1] != "1" else "2"
        changed = [*fields[:at], field[:-1] + last, *fields[at + 1 :]]
        assert ask(filled, "GET", f"{path}?{'&'.join(changed)}", role=None).status == 403, field
        assert ask(filled, "GET", f"{path}?{'&'.join(fields[:at] + fields[at + 1 :])}", role=None).status == 403, field
    assert ask(filled, "GET", address.replace("_blobs", "_uploads"), role=None).status == 405
    assert ask(filled, "PUT", address.replace("_blobs", "_uploads"), b"x", role=None).status == 403
    other = hashlib.sha256(FILES["small.txt"]).hexdigest()
    assert ask(filled, "GET", address.replace(hashlib.sha256(DATA).hexdigest(), other), role=None).status == 403


def test_addresses_expire(tmp_path: Path) -> None:
    now = [1000.0]
    with hosted(tmp_path, clock=lambda: now[0]) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        push(server, FILES)
        address = ask(server, "GET", f"{RESOLVE}/large.safetensors").headers["location"]
        now[0] += 3599
        assert ask(server, "GET", address, role=None).status == 200
        now[0] += 2
        found = ask(server, "GET", address, role=None)
        assert found.status == 403 and "expired" in found.headers["x-error-message"]


def test_large_files_may_come_from_another_origin(tmp_path: Path) -> None:
    with hosted(tmp_path, blobs_url="http://localhost:1") as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        push(server, FILES)
        address = ask(server, "GET", f"{RESOLVE}/large.safetensors").headers["location"]
        assert address.startswith("http://localhost:1/_blobs/")
        assert ask(server, "GET", address.removeprefix("http://localhost:1"), role=None).body == DATA


def test_what_was_sent_is_checked(zoo: Hosted) -> None:
    oid = hashlib.sha256(DATA).hexdigest()
    asked = {"operation": "upload", "objects": [{"oid": oid, "size": len(DATA)}]}
    (item,) = ask(zoo, "POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", asked).json()["objects"]
    href = item["actions"]["upload"]["href"]
    assert ask(zoo, "PUT", href, DATA[:-1], role=None).status == 400
    assert ask(zoo, "PUT", href, DATA + b"x", role=None).status == 400
    assert ask(zoo, "PUT", href, DATA[:-1] + b"x", role=None).status == 422
    verify = item["actions"]["verify"]["href"]
    assert ask(zoo, "POST", verify, {"oid": oid, "size": len(DATA)}).status == 404
    line = {"key": "lfsFile", "value": {"path": "a.safetensors", "algo": "sha256", "oid": oid, "size": len(DATA)}}
    header = {"key": "header", "value": {"summary": "x"}}
    refused = ask(zoo, "POST", f"/api/datasets/{ZOO}/commit/main", commit_body(header, line))
    assert refused.status == 400 and "uploaded" in refused.json()["error"]
    assert list((zoo.root / "incoming").iterdir()) == []
    assert ask(zoo, "PUT", href, DATA, role=None).status == 200
    assert ask(zoo, "POST", verify, {"oid": oid, "size": len(DATA)}).status == 200
    assert ask(zoo, "POST", f"/api/datasets/{ZOO}/commit/main", commit_body(header, line)).status == 200


def test_parts_have_to_be_all_there(zoo: Hosted) -> None:
    data = random.Random(0).randbytes(150_000)
    oid = hashlib.sha256(data).hexdigest()
    asked = {"operation": "upload", "transfers": ["multipart"], "objects": [{"oid": oid, "size": len(data)}]}
    (item,) = ask(zoo, "POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", asked).json()["objects"]
    upload = item["actions"]["upload"]
    step = int(upload["header"]["chunk_size"])
    cut = {number: data[(number - 1) * step : number * step] for number in (1, 2, 3)}
    assert b"".join(cut.values()) == data
    etags = {
        number: ask(zoo, "PUT", upload["header"][str(number)], part).headers["etag"] for number, part in cut.items()
    }

    def join(tags: dict[int, str]) -> int:
        parts = [{"partNumber": number, "etag": tag} for number, tag in tags.items()]
        return ask(zoo, "POST", upload["href"], {"oid": oid, "parts": parts}, role=None).status

    assert join({1: etags[1], 2: etags[2]}) == 400
    assert join({**etags, 2: etags[1]}) == 400
    assert join({**etags, 3: "x"}) == 400
    assert ask(zoo, "PUT", upload["header"]["1"], cut[2], role=None).status == 200
    assert join(etags) == 200 and join(etags) == 200
    assert list((zoo.root / "incoming").iterdir()) == []


def batch_of(server: Hosted, sha256: str, size: int, repo: str = ZOO) -> dict[str, Any]:
    """What the server says to one large file."""
    asked = {"operation": "upload", "transfers": ["multipart"], "objects": [{"oid": sha256, "size": size}]}
    (item,) = ask(server, "POST", f"/datasets/{repo}.git/info/lfs/objects/batch", asked).json()["objects"]
    return item


def test_a_digest_alone_gives_no_content_and_no_size(zoo: Hosted) -> None:
    """What another repository has: its parts are required, and its size is that of its bytes."""
    push(zoo, FILES)
    other, sha256 = "lab/other", hashlib.sha256(DATA).hexdigest()
    zoo.api().create_repo(other, repo_type="dataset")
    upload = batch_of(zoo, sha256, 150_000, other)["actions"]["upload"]
    parts = [{"partNumber": number, "etag": "0" * 64} for number in (1, 2, 3)]
    assert ask(zoo, "POST", upload["href"], {"oid": sha256, "parts": parts}, role=None).status == 400
    etags = [ask(zoo, "PUT", upload["header"][f"{at}"], bytes(65_536)[: 150_000 - 65_536 * (at - 1)]).headers["etag"]
             for at in (1, 2, 3)]  # fmt: skip
    parts = [{"partNumber": number, "etag": etag} for number, etag in enumerate(etags, 1)]
    assert ask(zoo, "POST", upload["href"], {"oid": sha256, "parts": parts}, role=None).status == 422
    header = {"key": "header", "value": {"summary": "x"}}
    line = {"key": "lfsFile", "value": {"path": "a.safetensors", "algo": "sha256", "oid": sha256}}
    assert ask(zoo, "POST", f"/api/datasets/{other}/commit/main", commit_body(header, line)).status == 400


def test_a_known_content_has_one_size(filled: Hosted) -> None:
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert "actions" not in batch_of(filled, sha256, len(DATA)) and "error" not in batch_of(filled, sha256, len(DATA))
    assert batch_of(filled, sha256, 68_000_000)["error"]["code"] == 422
    header = {"key": "header", "value": {"summary": "x"}}
    line = {"key": "lfsFile", "value": {"path": "a.safetensors", "algo": "sha256", "oid": sha256, "size": 68_000_000}}
    refused = ask(filled, "POST", f"/api/datasets/{ZOO}/commit/main", commit_body(header, line))
    assert refused.status == 400 and f"expected {len(DATA)} bytes" in refused.json()["error"]


BAD_PATHS = (
    "../up", "a/../../up", "/etc/passwd", "a//b", "./a", "a/.", "", "a\\b", "a\0b", "a\nb", ".git/config", "C:x", "nul", "a. ",
    "a" * 256, "/".join(["a" * 100] * 11),
)  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS, ids=ascii)
def test_bad_file_names_are_refused_in_commits(filled: Hosted, path: str) -> None:
    header = {"key": "header", "value": {"summary": "x"}}
    value = {"path": path, "content": base64.b64encode(b"x").decode(), "encoding": "base64"}
    found = ask(
        filled, "POST", f"/api/datasets/{ZOO}/commit/main", commit_body(header, {"key": "file", "value": value})
    )
    assert found.status == 400 and "File name" in found.json()["error"]
    body = {"files": [{"path": path, "size": 1, "sample": ""}]}
    assert ask(filled, "POST", f"/api/datasets/{ZOO}/preupload/main", body).status == 400


SURROGATES = (
    rb'"\ud800"',
    rb'"a\udfffb"',
    b'"\xed\xa0\x80"',
    rb'["\udc00"]',
    rb'{"\ud800": 1}',
    b"NaN",
    b"-Infinity",
    b'"\xff"',
)


@pytest.mark.parametrize("value", SURROGATES, ids=range(len(SURROGATES)))
def test_what_no_answer_could_hold_is_refused(zoo: Hosted, value: bytes) -> None:
    header = {"key": "header", "value": {"summary": "x"}}
    line = {"key": "file", "value": {"path": "a.txt", "content": "a"}}
    base = f"/api/datasets/{ZOO}"
    assert ask(zoo, "POST", f"{base}/commit/main?create_pr=1", commit_body(header, line)).status == 200
    bodies = {
        "discussions": b'{"title": "abc", "description": %s}',
        "discussions/1/comment": b'{"comment": %s}',
        "discussions/1/title": b'{"title": "abc", "x": %s}',
        "commit/main": b'{"key": "header", "value": {"summary": "x", "description": %s}}',
        "preupload/main": b'{"files": [{"path": "a", "size": 1, "sample": %s}]}',
    }
    for path, body in bodies.items():
        assert ask(zoo, "POST", f"{base}/{path}", body % value, role="contribute").status == 400, path
    assert ask(zoo, "GET", f"{base}/discussions/1").status == 200
    assert ask(zoo, "GET", f"{base}/discussions").status == 200


def test_characters_of_every_plane_are_kept(zoo: Hosted) -> None:
    body = rb'{"title": "\ud83d\ude00 \u00e4bc", "description": "\\ud800"}'
    assert ask(zoo, "POST", f"/api/datasets/{ZOO}/discussions", body, role="contribute").status == 200
    found = ask(zoo, "GET", f"/api/datasets/{ZOO}/discussions/1").json()
    assert found["title"] == "\U0001f600 \xe4bc" and found["events"][0]["data"]["latest"]["raw"] == "\\ud800"


def test_deep_folders(zoo: Hosted) -> None:
    deep = "/".join(["d"] * 32)
    push(zoo, {deep: b"1"})
    assert ask(zoo, "GET", f"{RESOLVE}/{deep}").body == b"1"
    push(zoo, {"d/x": b"2"})
    names = [item["rfilename"] for item in ask(zoo, "GET", f"/api/datasets/{ZOO}").json()["siblings"]]
    assert names == [".gitattributes", deep, "d/x"]
    assert len(ask(zoo, "GET", f"/api/datasets/{ZOO}/tree/main?recursive=true").json()) == 34


def test_no_address_leads_out_of_a_repository(zoo: Hosted) -> None:
    (zoo.root / "secret").write_bytes(b"hidden content")
    ways = ("../../secret", "..%2F..%2Fsecret", "%2e%2e/%2e%2e/secret", "a/..%2f..%2fsecret", "%2Fetc%2Fpasswd", "..%5Csecret",
            "%00", "%ff", "a%2F%2Fb", "//secret")  # fmt: skip
    for way in ways:
        for path in (f"{RESOLVE}/{way}", f"/api/datasets/{ZOO}/tree/main/{way}", f"/_blobs/{way}"):
            found = ask(zoo, "GET", path)
            assert found.status in (400, 404) and b"hidden" not in found.body, path
    for name in ("..%2Flab/zoo", "lab%2Fzoo", "lab/zoo%2F..", "lab/..", "-lab/zoo", "lab/zoo--x", "api/zoo"):
        assert ask(zoo, "GET", f"/api/datasets/{name}/refs").status in (400, 404), name
    for branch in ("..", "refs%2Fpr%2F5", "a%2F..%2Fb", "a.lock", "a%0Ab", "a" * 40):
        assert ask(zoo, "POST", f"/api/datasets/{ZOO}/branch/{branch}", {}).status == 400, branch


def test_whole_addresses_and_bad_hosts_are_refused(zoo: Hosted) -> None:
    host, port = zoo.url.removeprefix("http://").split(":")
    for head in ("GET http://evil/api/datasets HTTP/1.1\r\nHost: x", "GET /api/datasets?limit=1 HTTP/1.1\r\nHost: a/b"):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
            status = connection.makefile("rb").readline()
        assert b" 404 " in status or b" 200 " in status
    push(zoo, FILES)
    assert ask(zoo, "GET", f"{RESOLVE}/large.safetensors", Host="evil/path").status == 400


def test_bodies_are_bounded(tmp_path: Path) -> None:
    limits = ServerLimits(
        json_bytes=1000, line_bytes=2000, commit_bytes=5000, commit_files=3, batch_files=3, file_bytes=100
    )
    with hosted(tmp_path, limits=limits) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        commit, header = f"/api/datasets/{ZOO}/commit/main", {"key": "header", "value": {"summary": "x"}}
        assert ask(server, "POST", "/api/validate-yaml", b" " * 1001).status == 413
        assert ask(server, "POST", commit, b"x" * 2001).status == 413
        assert ask(server, "POST", commit, (b"x" * 100 + b"\n") * 60).status in (400, 413)
        gone = [{"key": "file", "value": {"path": f"{at}", "content": ""}} for at in range(4)]
        assert ask(server, "POST", commit, commit_body(header, *gone[:3])).status == 200
        assert ask(server, "POST", commit, commit_body(header, *gone)).status == 413
        items = [{"oid": "0" * 64, "size": 101}] * 4
        batch = f"/datasets/{ZOO}.git/info/lfs/objects/batch"
        assert ask(server, "POST", batch, {"operation": "upload", "objects": items}).status == 400
        found = ask(server, "POST", batch, {"operation": "upload", "objects": items[:1]}).json()
        assert found["objects"][0]["error"]["code"] == 413
        paths = "&".join(f"paths={at}" for at in range(4)).encode()
        kind = "application/x-www-form-urlencoded"
        assert ask(server, "POST", f"/api/datasets/{ZOO}/paths-info/main", paths, Content_Type=kind).status == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"[" * 100_000, b'{"key": "file", "value": {"path": "a", "content": "!!", "encoding": "base64"}}',
     b'{"key": "rm", "value": {"path": "a"}}', b'{"key": "header", "value": 1}', b'{"key": "lfsFile", "value": {"path": "a"}}',
     b'{"key": "deletedFile", "value": {"path": "none"}}\n{"key": "header", "value": {"summary": "x"}}'],
)  # fmt: skip
def test_bad_commits_are_refused_whole(filled: Hosted, body: bytes) -> None:
    def state() -> tuple[str, int]:
        head = ask(filled, "GET", f"/api/datasets/{ZOO}").json()["sha"]
        return head, len(filled.request_log.acknowledged)

    before = state()
    assert ask(filled, "POST", f"/api/datasets/{ZOO}/commit/main", body).status in (400, 404)
    assert state() == before


def test_a_private_server_shows_nothing_without_a_token(tmp_path: Path) -> None:
    with hosted(tmp_path, private=True) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        push(server, FILES)
        for path in ("/api/datasets", f"/api/datasets/{ZOO}", f"{RESOLVE}/small.txt"):
            assert ask(server, "GET", path, role=None).status == 401, path
            assert ask(server, "GET", path, role="read").status == 200, path
        address = ask(server, "GET", f"{RESOLVE}/large.safetensors").headers["location"]
        assert ask(server, "GET", address, role=None).status == 200


def test_tokens_are_stored_as_digests(zoo: Hosted) -> None:
    kept = b"".join(path.read_bytes() for path in zoo.root.iterdir() if path.is_file())
    assert len(kept) > 10_000
    assert not any(token.encode() in kept for token in zoo.tokens.values())
    assert (zoo.root / "hub.sqlite").stat().st_mode & 0o077 == 0


def test_every_change_needs_its_role(zoo: Hosted) -> None:
    from ckptzoo.server.app import ROUTES

    base = f"/api/datasets/{ZOO}"
    changing = [route for route in ROUTES if route.method != "GET" and not route.pattern.pattern.startswith("/_")]
    open_to_all = [route.handler.__name__ for route in changing if route.role is None]
    assert open_to_all == ["validate_yaml", "paths_info"]
    for method, path in (("POST", f"{base}/branch/x"), ("POST", f"{base}/commit/main"), ("PUT", f"{base}/settings"),
                         ("POST", "/api/repos/create"), ("POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch")):  # fmt: skip
        assert ask(zoo, method, path, {}, role=None).status == 401, path
        assert ask(zoo, method, path, {}, role="read").status == 403, path


def test_a_merge_takes_what_was_reviewed_alone(zoo: Hosted) -> None:
    """A commit that arrives between the review and the merge, to the pull request or to its target, is not merged."""
    base = f"/api/datasets/{ZOO}"

    def commit(path: str, revision: str, role: str = "contribute") -> str:
        lines = commit_body(
            {"key": "header", "value": {"summary": "x"}}, {"key": "file", "value": {"path": path, "content": path}}
        )
        answer = ask(zoo, "POST", f"{base}/commit/{revision}", lines, role=role)
        assert answer.status == 200
        return answer.json()["commitOid"]

    def merged(**body: str) -> Answer:
        return ask(zoo, "POST", f"{base}/discussions/1/merge", body)

    reviewed, main = commit("a.txt", "main?create_pr=1"), ask(zoo, "GET", base).json()["sha"]
    later = commit("b.txt", "refs%2Fpr%2F1")
    refused = merged(expectedHead=reviewed, expectedTarget=main)
    assert refused.status == 412 and later in refused.json()["error"]
    moved = commit("c.txt", "main", "write")
    assert merged(expectedHead=later, expectedTarget=main).status == 412
    assert merged(expectedHead="x" * 10_000).status == 412 and merged(expectedHead="").status == 412
    assert ask(zoo, "GET", f"{base}/discussions/1").json()["status"] == "open"
    assert ask(zoo, "GET", base).json()["sha"] == moved
    done = merged(expectedHead=later, expectedTarget=moved).json()
    assert (done["head"], done["target"]) == (later, moved)
    names = [item["rfilename"] for item in ask(zoo, "GET", base).json()["siblings"]]
    assert names == [".gitattributes", "a.txt", "b.txt", "c.txt"]


def test_a_pull_request_has_a_branch_as_target(zoo: Hosted) -> None:
    base = f"/api/datasets/{ZOO}"
    lines = commit_body(
        {"key": "header", "value": {"summary": "x"}}, {"key": "file", "value": {"path": "a", "content": "a"}}
    )
    assert ask(zoo, "POST", f"{base}/commit/main?create_pr=1", lines, role="contribute").status == 200
    refused = ask(zoo, "POST", f"{base}/commit/refs%2Fpr%2F1?create_pr=1", lines, role="contribute")
    assert refused.status == 400 and "a branch" in refused.json()["error"]
    with zoo.service.database.writing() as connection:
        connection.execute("UPDATE discussions SET target = 'refs/pr/1'")  # as an earlier version let one be opened
    refused = ask(zoo, "POST", f"{base}/discussions/1/merge", {})
    assert refused.status == 400 and "a branch" in refused.json()["error"]


def test_pages_have_plain_numbers(filled: Hosted) -> None:
    for page in ("%C2%B2", "%D9%A1", "x", "-1", "1" * 30):
        for path in (f"commits/main?p={page}", f"discussions?p={page}"):
            assert ask(filled, "GET", f"/api/datasets/{ZOO}/{path}").status == 200, path
    assert ask(filled, "GET", f"/api/datasets/{ZOO}/commits/main?p=1").json() == []


def test_stored_bytes_are_the_servers_alone(filled: Hosted) -> None:
    paths = [path for name in ("blobs", "incoming") for path in (filled.root / name).rglob("*")]
    assert len([path for path in paths if path.is_file()]) >= len(FILES)
    for path in (filled.root / "blobs", filled.root / "incoming", *(path for path in paths if path.is_file())):
        assert path.stat().st_mode & 0o077 == 0, path


def test_addresses_name_this_machine_alone(zoo: Hosted, tmp_path: Path) -> None:
    push(zoo, FILES)
    port = zoo.url.rpartition(":")[2]
    asked = {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 1}]}
    batch = f"/datasets/{ZOO}.git/info/lfs/objects/batch"
    for host in (f"127.0.0.1:{port}", "localhost:9", "LOCALHOST", socket.gethostname()):
        (item,) = ask(zoo, "POST", batch, asked, Host=host).json()["objects"]
        assert item["actions"]["upload"]["href"].startswith(f"http://{host}/_uploads/")
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.2", "127.0.0.1.evil.example", "[::2]"):
        for method, path, body in (("POST", batch, asked), ("GET", f"{RESOLVE}/large.safetensors", None)):
            refused = ask(zoo, method, path, body, Host=host)
            assert refused.status == 421 and "--url" in refused.json()["error"], host
        assert ask(zoo, "GET", f"{RESOLVE}/small.txt", Host=host).body == FILES["small.txt"]
    with hosted(tmp_path / "named", url="https://zoos.example/") as server:
        assert ask(server, "POST", "/api/repos/create", {"name": "zoo", "type": "dataset"}).status == 200
        (item,) = ask(server, "POST", batch, asked, Host="evil.example").json()["objects"]
        assert item["actions"]["upload"]["href"].startswith("https://zoos.example/_uploads/")

"""The content of a repository: its folders, the facts about paths, the bytes of files."""

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, RedirectResponse, Response

from ckptzoo.server.access import READ, may
from ckptzoo.server.errors import Refusal, no_entry
from ckptzoo.server.names import checked_path, decoded
from ckptzoo.server.request import AuthorizedRequest
from ckptzoo.server.responses import file_response
from ckptzoo.server.store import accounts, repositories
from ckptzoo.server.store.commits import Commit, History
from ckptzoo.server.store.git_objects import Node, Trees, position
from ckptzoo.server.store.tokens import usable


def tree(request: AuthorizedRequest) -> Response:
    """Return a page of a folder; the next page's address names the commit, so that all pages are of one commit."""
    path = request.piece("path")
    if path:
        checked_path(path)
    expand, recursive = request.expands, request.is_set("recursive")
    limits = request.service.limits
    size = request.query_number("limit", limits.page, limits.page)
    size = min(size, limits.small_page) if expand else size
    with request.service.database.reading() as connection:
        history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
        commit = history.resolve(request.piece("revision"))
        root = trees.find(commit.tree, path)
        if root is None or not root.folder:
            raise no_entry(path, {"X-Repo-Commit": commit.oid})
        page: list[tuple[str, Node]] = []
        has_more = False
        for item in trees.walk(root.oid, path, recursive=recursive, after=_cursor(request.query.get("cursor", ""))):
            if len(page) == size:
                has_more = True
                break
            page.append(item)
        last = _last_commits(request, [path for path, _ in page], trees, history, commit) if expand else {}
        content = _entries(page, trees, last)
    headers = {"X-Repo-Commit": commit.oid}
    if has_more:
        cursor = base64.urlsafe_b64encode(position(*page[-1])).decode()
        below = f"/{quote(path, safe='')}" if path else ""
        address = f"{request.origin}/api/{request.repository.kind}s/{request.repository.name}/tree/{commit.oid}{below}"
        options = f"recursive={str(recursive).lower()}&expand={str(expand).lower()}&limit={size}"
        # huggingface_hub follows rel="next" of this header until there is none
        headers["Link"] = f'<{address}?{options}&cursor={cursor}>; rel="next"'
    return JSONResponse(content, headers=headers)


def paths_info(request: AuthorizedRequest) -> Response:
    """Return the facts about some paths; those that do not exist are left out."""
    form = request.form
    paths = form.get("paths", [])
    if len(paths) > request.service.limits.batch_files:
        raise Refusal(413, f"paths: expected at most {request.service.limits.batch_files}, got {len(paths)}.")
    with request.service.database.reading() as connection:
        history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
        commit = history.resolve(request.piece("revision"))
        nodes = [(path, trees.find(commit.tree, path)) for path in dict.fromkeys(paths) if path]
        existing = [(path, node) for path, node in nodes if node is not None]
        known = [path for path, _ in existing]
        last = _last_commits(request, known, trees, history, commit) if request.expands else {}
        content = _entries(existing, trees, last)
    return JSONResponse(content, headers={"X-Repo-Commit": commit.oid})


def resolve(request: AuthorizedRequest) -> Response:
    """Return the bytes of a small file, or a redirect to the signed address of a large one."""
    revision, path = request.piece("revision"), checked_path(request.piece("path"))
    service = request.service
    with service.database.reading() as connection:
        history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
        commit = history.resolve(revision)
        node = trees.find(commit.tree, path)
        # huggingface_hub names the snapshot folder by it, and refuses a file without it
        headers = {"X-Repo-Commit": commit.oid}
        if node is None or node.folder:
            raise no_entry(path, headers)
        file = trees.file(node.oid)
    if not file.large:
        # Never as HTML or the like, whatever the file's ending.
        text = "text/plain; charset=utf-8"
        return file_response(request.http_request, service.blobs.path(file.sha256), file.oid, headers, text)
    fields = {"commit": commit.oid, "name": path.split("/")[-1], "repository": request.repository.id}
    if request.caller is not None and request.caller.token is not None:
        fields["user"] = f"{request.user} {request.caller.token.number}"
    query = service.signer.query(f"read {file.sha256}", fields)
    target = f"{service.blobs_url or request.origin}/_blobs/{file.sha256}?{query}"
    # Clients read digest and size off the redirect, before they follow it.
    linked = {"X-Linked-ETag": f'"{file.sha256}"', "X-Linked-Size": str(file.size), "ETag": f'"{file.oid}"'}
    return RedirectResponse(target, 302, headers={**headers, **linked, "Accept-Ranges": "bytes"})


def blob(request: AuthorizedRequest) -> Response:
    """Return the bytes of a large file, for clients with its signed address."""
    sha256 = request.raw_pieces["sha256"]
    fields = request.service.signer.check(f"read {sha256}", request.query)
    with request.service.database.reading() as connection:
        repository = repositories.by_id(connection, int(fields["repository"]))
        # asked again, because the token may have been revoked and roles taken since the address was made
        asks = repository is not None and repository.private
        # empty where nobody asked, and in addresses that an earlier version signed
        number = fields.get("user", "").partition(" ")[2] if asks else ""
        token = usable(connection, int(number)) if number else None
        subject = None if token is None else accounts.subject_of(connection, token.user, token.limits)
    if repository is None or not may(subject, READ, repository.target):
        raise Refusal(403, "The address is no longer good: its repository was hidden or removed.")
    path = request.service.blobs.path(sha256)
    headers = {
        "X-Repo-Commit": fields["commit"],
        "X-Linked-ETag": f'"{sha256}"',
        "X-Linked-Size": str(path.stat().st_size),
        # an encoded name may hold any character (RFC 8187)
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(fields['name'], safe='')}",
    }
    return file_response(request.http_request, path, sha256, headers, "application/octet-stream")


def _cursor(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(decoded(text))
    except ValueError:
        raise Refusal(400, "cursor: expected one that the server gave.") from None


def _entries(items: Sequence[tuple[str, Node]], trees: Trees, last: Mapping[str, Commit]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    files = trees.files(node.oid for _, node in items if not node.folder)
    for path, node in items:
        if node.folder:
            entry: dict[str, Any] = {"type": "directory", "oid": node.oid, "size": 0, "path": path}
        else:
            file = files[node.oid]
            entry = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
            if file.large:
                entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
        if path in last:
            commit = last[path]
            entry["lastCommit"] = {"id": commit.oid, "title": commit.title, "date": commit.date}
        content.append(entry)
    return content


def _last_commits(
    request: AuthorizedRequest, paths: Iterable[str], trees: Trees, history: History, head: Commit
) -> dict[str, Commit]:
    """Return, for each path, the last commit that changed it, back along the first parents; those found in time."""
    last: dict[str, Commit] = {}
    remaining, commit = set(paths), head
    end = time.monotonic() + request.service.limits.expand_seconds
    while remaining and time.monotonic() < end and not request.gone.is_set():
        parent = next(iter(history.parents(commit.oid)), None)
        before = None if parent is None else history.commit(parent)
        changed = list(trees.differing(None if before is None else before.tree, commit.tree, remaining))
        last.update(dict.fromkeys(changed, commit))
        remaining.difference_update(changed)
        if before is None:
            break
        commit = before
    return last

"""One commit: its lines are read and its small files stored as they arrive, the rest is done in one transaction."""

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from anyio import CancelScope
from starlette.responses import JSONResponse, Response

from ckptzoo.server.errors import Refusal, no_entry
from ckptzoo.server.names import checked_path
from ckptzoo.server.request import AuthorizedRequest, digest_of, integer_of, parsed_json, text_of
from ckptzoo.server.routes.discussions import charge
from ckptzoo.server.store import repositories
from ckptzoo.server.store.commits import PULLS, Commit, History
from ckptzoo.server.store.database import ROW_BYTES
from ckptzoo.server.store.discussions import Discussions, StoredDiscussion
from ckptzoo.server.store.git_objects import Changes, File, Trees, is_pointer

_MAX_TITLE, _MAX_PULL_TITLE, _MAX_DESCRIPTION = 1000, 200, 65536
"""Characters; what is longer is cut."""
_UNKNOWN_SIZE = -1
"""The size of a large file until it is looked up."""


@dataclass
class _Proposal:
    """A client's proposal of a commit: kind, path and file of each operation, in order."""

    title: str | None = None
    description: str = ""
    parent: str | None = None
    operations: list[tuple[str, str, File | None]] = field(default_factory=list)
    stored_bytes: int = 0


async def commit(request: AuthorizedRequest) -> Response:
    """Make a commit on a branch or a pull request, or open a pull request with it."""
    proposal = _Proposal()
    try:
        async for line in _lines(request):
            await request.in_thread(_add_line, request, proposal, line)
        if proposal.title is None:
            raise Refusal(400, "Commit: expected a header line, got none.")
        return await request.in_thread(_commit, request, proposal)
    finally:
        if proposal.stored_bytes and request.contributor:
            with CancelScope(shield=True):  # also where the client goes away
                await request.in_thread(_charge, request, proposal)


def _charge(request: AuthorizedRequest, proposal: _Proposal) -> None:
    """Count the small files that were stored, whether the commit was made or not."""
    quotas = request.service.quotas
    try:
        with request.service.database.writing() as connection:
            quotas.charge(connection, request.contributor, proposal.stored_bytes)
    finally:
        quotas.end(request.contributor, proposal.stored_bytes)


async def _lines(request: AuthorizedRequest) -> AsyncIterator[bytes]:
    """Yield the lines of the body as they arrive (newline-delimited JSON), without empty ones."""
    limits, unfinished, total = request.service.limits, bytearray(), 0
    async for data in request.http_request.stream():
        total += len(data)
        # while a line is incomplete; bytes of complete ones go on to the disk
        request.memory.hold(len(unfinished) + len(data))
        unfinished += data
        lines: list[bytearray] = []
        # splitting only where a line ends keeps a long line linear in its length
        if b"\n" in data:
            *lines, unfinished = unfinished.split(b"\n")
        if total > limits.commit_bytes or max(map(len, (*lines, unfinished))) > limits.line_bytes:
            raise Refusal(413, f"Commit: expected at most {limits.commit_bytes} bytes, {limits.line_bytes} a line.")
        for line in lines:
            if line.strip():
                yield bytes(line)
    if unfinished.strip():
        yield bytes(unfinished)


def _add_line(request: AuthorizedRequest, proposal: _Proposal, line: bytes) -> None:
    """Check one line and add it to the proposal; a small file in it is stored."""
    try:
        item = parsed_json(line)
        key, value = item["key"], item["value"]
    except (ValueError, KeyError, TypeError):
        raise Refusal(400, "Commit: expected lines of JSON in Unicode with a key and a value.") from None
    if not isinstance(value, dict):
        raise Refusal(400, "Commit: expected an object as value.")
    if key == "header":
        proposal.title = text_of(value, "summary")[:_MAX_TITLE] or "Update"
        proposal.description = text_of(value, "description", "")[:_MAX_DESCRIPTION]
        proposal.parent = value.get("parentCommit") and text_of(value, "parentCommit")
        return
    limits = request.service.limits
    limit = limits.contributor_files if request.contributor else limits.commit_files
    if len(proposal.operations) >= limit:
        raise Refusal(413, f"Commit: expected at most {limit} operations.")
    path = text_of(value, "path")
    # huggingface_hub ends the path of a folder with a slash
    checked_path(path.rstrip("/") if key == "deletedFolder" else path)
    file: File | None = None
    if key == "file":
        file = _store_small(request, proposal, value)
    elif key == "lfsFile":
        # without a size, that of the bytes, which is looked up when the commit is made
        size = integer_of(value, "size") if value.get("size") is not None else _UNKNOWN_SIZE
        file = File.apart(digest_of(value, "oid"), size)
    elif key not in ("deletedFile", "deletedFolder"):
        raise Refusal(400, f"Commit: expected file, lfsFile, deletedFile or deletedFolder, got {str(key)[:100]!r}.")
    proposal.operations.append((str(key), path.rstrip("/"), file))


def _store_small(request: AuthorizedRequest, proposal: _Proposal, value: dict[str, Any]) -> File:
    """Store the bytes of a small file; a commit that fails leaves a blob that no tree names."""
    content = text_of(value, "content")
    try:
        # without validate=True Python skips what is not of the alphabet
        data = base64.b64decode(content, validate=True) if value.get("encoding") == "base64" else content.encode()
    except ValueError:
        raise Refusal(400, "content: expected base64 or text.") from None
    # its id in git is that of the large file, which the text would stand for (Trees)
    if is_pointer(data):
        step = "Send the file that it stands for; git lfs pull fetches it."
        raise Refusal(400, f"{text_of(value, 'path')}: expected a file, got the text of a Git LFS pointer. {step}")
    request.service.quotas.take(request.contributor, len(data))
    proposal.stored_bytes += len(data)
    request.service.blobs.add(data)
    return File.small(data)


def _commit(request: AuthorizedRequest, proposal: _Proposal) -> Response:
    revision, new_pull = request.piece("revision"), request.is_set("create_pr")
    blobs = request.service.blobs
    # the lock of blobs first, as in uploads: two requests would wait for one another otherwise
    with blobs.held(), request.writing() as connection:
        history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
        discussions = Discussions(connection, request.repository.id)
        ref = history.writable(revision)
        head = history.resolve(ref)
        base = _base(history, head, proposal.parent) if new_pull and proposal.parent else head
        pull = None
        if new_pull:
            request.service.quotas.check_discussions(connection, request.contributor)
            if ref.startswith(PULLS):
                raise Refusal(400, f"Pull request: expected a branch as target, got {ref}.")
            pull = discussions.create(
                title=(proposal.title or "")[:_MAX_PULL_TITLE],
                author=request.user,
                role=request.role,
                description=proposal.description,
                base=base.oid,
                target=ref,
            )
        elif ref.startswith(PULLS):
            pull = discussions.get(int(ref.removeprefix(PULLS)))
        _check_access(request, pull)
        if not new_pull and proposal.parent not in (None, head.oid):
            message = f"A commit has happened since. Expected parent {head.oid}, got {proposal.parent}."
            raise Refusal(412, message)  # as the hub answers a lost race
        tree = trees.changed(base.tree, _changes(request, proposal, base, trees))
        # a body, or the time since an upload, may have taken longer than blobs without a commit are kept
        if not blobs.touch(*{file.sha256 for *_, file in proposal.operations if file is not None}):
            message = "A file that was sent first is no longer there. Try again."
            raise Refusal(503, message, headers={"Retry-After": "1"})
        author, title = request.user, proposal.title or ""
        oid = history.add(tree, (base.oid,), author=author, title=title, message=proposal.description)
        history.point(ref if pull is None else pull.ref, oid)
        if pull is not None:
            discussions.note(pull.number, "commit", author, {"subject": title, "oid": oid})
            commit_bytes = ROW_BYTES + len(proposal.description.encode())
            charge(request, connection, discussions, pull.number, trees.written_bytes + commit_bytes)
    # the keys that huggingface_hub reads are commitOid, commitUrl and pullRequestUrl
    content = {"success": True, "commitOid": oid, "commitUrl": f"{request.address}/commit/{oid}", "hookOutput": ""}
    if new_pull and pull is not None:
        content["pullRequestUrl"] = f"{request.address}/discussions/{pull.number}"
    return JSONResponse(content)


def _base(history: History, head: Commit, parent: str) -> Commit:
    """Return the commit that a new pull request starts from, which its target has to have."""
    base = history.resolve(parent)
    if not history.reaches(head.oid, base.oid):
        raise Refusal(412, f"Expected a parent that the target has, such as {head.oid}, got {base.oid}.")
    return base


def _check_access(request: AuthorizedRequest, pull: StoredDiscussion | None) -> None:
    """Refuse callers without write access, except for a pull request of their own while it is open."""
    if pull is not None and pull.status not in ("draft", "open"):
        raise Refusal(403, f"Pull request {pull.number}: expected an open one, it is {pull.status}.")
    if not request.may("write") and (pull is None or pull.author != request.user):
        raise Refusal(403, "Expected a token that may write, or a pull request of your own (create_pr).")


def _changes(request: AuthorizedRequest, proposal: _Proposal, base: Commit, trees: Trees) -> Changes:
    changes: Changes = {}
    deleted_folders: set[str] = set()
    for key, path, file in proposal.operations:
        if key == "deletedFolder":
            if path in deleted_folders:
                continue
            deleted_folders.add(path)
            node = trees.find(base.tree, path)
            if node is None or not node.folder:
                raise no_entry(path)
            changes.update({below: None for below, inner in trees.walk(node.oid, path) if not inner.folder})
        elif key == "deletedFile":
            node = trees.find(base.tree, path)
            if changes.get(path) is None and (node is None or node.folder):
                raise no_entry(path)
            changes[path] = None
        else:
            assert file is not None
            if file.large:
                file = _given_file(request, file, path, trees)
            trees.add_file(file)
            changes[path] = file.oid
    return changes


def _given_file(request: AuthorizedRequest, named: File, path: str, trees: Trees) -> File:
    """Return a large file, which must have been uploaded to this repository and have the size that the client says."""
    size = repositories.given(trees.connection, request.repository.id, named.sha256)
    if size is None:
        raise Refusal(400, f"{path}: expected content that was uploaded to this repository, {named.sha256} was not.")
    if named.size not in (_UNKNOWN_SIZE, size):
        raise Refusal(400, f"{path}: expected {size} bytes, as was uploaded, got {named.size}.")
    return File.apart(named.sha256, size)
